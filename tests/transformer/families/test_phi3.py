"""Phi-3: fused projections, a window, and longrope, whose long factors a sequence turns by once it is long."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from parity import close, disturb, loaded
from small_models import check

from headcount.errors import UnsupportedModelError, UsageError
from headcount.spec.huggingface.config import spec_from_config
from headcount.transformer.families.registry import build_network
from headcount.transformer.kv_cache.call import Call
from headcount.transformer.kv_cache.conversation import Conversation

pytestmark = [pytest.mark.reference]
SMALL = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
}
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [1.0, 2.0, 4.0, 8.0],
    "rope_theta": 10000.0,
}


@pytest.mark.parametrize("switches", [{}, {"sliding_window": 5, "tie_word_embeddings": True}])
def test_phi3(switches: dict[str, Any], tmp_path: Any) -> None:
    from transformers import Phi3Config

    check(Phi3Config(**SMALL, **switches), tmp_path)


def test_part_of_the_head_turns(tmp_path: Any) -> None:
    """Phi-4-mini: ``partial_rotary_factor``."""
    from transformers import Phi3Config

    small = {**SMALL, "num_attention_heads": 3, "num_key_value_heads": 1}
    check(Phi3Config(**small, partial_rotary_factor=0.75), tmp_path)


def longrope(folder: Any, trained: int) -> tuple[Any, Any]:
    """A reference model trained to ``trained`` tokens, stretched to four times as many, and ours."""
    from transformers import AutoModelForCausalLM, Phi3Config

    config = Phi3Config(
        **SMALL,
        rope_parameters=dict(LONG),
        original_max_position_embeddings=trained,
        max_position_embeddings=4 * trained,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    disturb(model)
    return model, loaded(model, folder)


@torch.no_grad()
@pytest.mark.parametrize("trained", [8, 40])
def test_longrope_by_the_length_of_the_sequence(trained: int, tmp_path: Any) -> None:
    model, ours = longrope(tmp_path, trained)
    ids = torch.randint(3, 101, (2, 24), generator=torch.Generator().manual_seed(1))
    close(ours.network(ids), model(ids, use_cache=False).logits, "whole")


@torch.no_grad()
def test_longrope_of_each_conversation_in_a_call(tmp_path: Any) -> None:
    """A long conversation beside a short one: each turns by the factors of its own length."""
    model, ours = longrope(tmp_path, 8)
    ids = torch.randint(3, 101, (2, 24), generator=torch.Generator().manual_seed(1))
    long, short = Conversation(ours.spec, format="fp32"), Conversation(ours.spec, format="fp32")
    packed = ours.network(torch.cat((ids[:1], ids[1:, :6]), 1), call=Call([(long, 24), (short, 6)]))
    close(packed[:, :24], model(ids[:1], use_cache=False).logits, "long")
    close(packed[:, 24:], model(ids[1:, :6], use_cache=False).logits, "short")


@torch.no_grad()
@pytest.mark.parametrize("chunk", [1, 5, 8, 9, 24])
def test_longrope_of_a_prompt_in_chunks(chunk: int, tmp_path: Any) -> None:
    """The first chunk of a long prompt turns by the long factors too, as when the prompt is read at once."""
    model, ours = longrope(tmp_path, 8)
    ids = torch.randint(3, 101, (1, 24), generator=torch.Generator().manual_seed(1))
    conversation = Conversation(ours.spec, format="fp32")
    parts = [
        ours.network(part, call=Call([(conversation, part.shape[1])], ends=[24]))
        for part in torch.split(ids, chunk, dim=1)
    ]
    close(torch.cat(parts, 1), model(ids, use_cache=False).logits, f"chunks of {chunk}")
    with pytest.raises(UsageError, match="none before the pass itself"):
        Call([(conversation, 2)], ends=[25])


@torch.no_grad()
@pytest.mark.parametrize("chunk", [4, 512])
def test_a_host_reads_a_long_prompt_alike_in_any_chunks(chunk: int, tmp_path: Any) -> None:
    from headcount.transformer.generation.host import Host
    from headcount.transformer.generation.reply import Asked
    from headcount.transformer.weights.model import LoadedModel

    model, ours = longrope(tmp_path, 8)
    ids = torch.randint(3, 101, (1, 20), generator=torch.Generator().manual_seed(1))
    theirs = model.generate(ids, max_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=0)[0, 20:]
    server = Host(LoadedModel(ours.spec, ours.network, ""), kv="fp32", chunk=chunk)
    reply = server.ask(ids[0].tolist(), Asked(limit=6))
    for _ in server.stream():
        pass
    assert reply.ids == theirs.tolist()


def test_other_rules_are_refused() -> None:
    config = {
        "model_type": "phi3",
        "rope_scaling": {"type": "yarn", "short_factor": [1.0], "long_factor": [1.0]},
    }
    with pytest.raises(UnsupportedModelError, match=r"rope_scaling\.type=yarn"):
        build_network(spec_from_config(config, name="x", source="x"))
