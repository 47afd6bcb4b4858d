"""PyTorch's own counter on running encoder-decoders against ``cost/``: FLOPs, parameters and both caches' bytes, equal."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from two_stacks import trained

from headcount.cost.cache import bytes_by_kind, conversation_bytes
from headcount.cost.flops import decode_step, prefill
from headcount.spec.huggingface.config import spec_from_config
from headcount.spec.kv_format import kv_format
from headcount.transformer.families.registry import build_network
from headcount.transformer.kv_cache.call import Call
from headcount.transformer.kv_cache.conversation import Conversation

LENGTH = 23
BART = {
    "vocab_size": 97,
    "d_model": 48,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 70,
    "decoder_ffn_dim": 50,
    "max_position_embeddings": LENGTH,
}
T5 = {
    "vocab_size": 97,
    "d_model": 48,
    "d_kv": 10,
    "d_ff": 70,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 3,
    "n_positions": LENGTH,
}
GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
CONFIGS: dict[str, dict[str, Any]] = {
    **{name: {"model_type": name, **BART} for name in ("bart", "marian", "mbart", "pegasus")},
    **{name: {"model_type": name, **T5} for name in ("mt5", "t5", "umt5")},
    "flan-t5": {"model_type": "t5", **T5, **GATED},
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("kv_heads", [None, 1])
def test_counted_equals_stated(name: str, kv_heads: int | None) -> None:
    """A source as long as the model allows, a prompt of 11 tokens, two steps."""
    overrides = {} if kv_heads is None else {"kv_heads": kv_heads}
    spec = spec_from_config(CONFIGS[name], name="x", source="test", overrides=overrides)
    network = build_network(spec, seed=0)
    network.use_kernel("rows")
    computed = 2 * LENGTH * 48 if name in ("marian", "pegasus") else 0
    assert trained(network) + computed == spec.parameters
    conversation = Conversation(spec, format="fp16")
    source, ids = torch.randint(3, 97, (1, LENGTH)), torch.randint(3, 97, (1, 13))
    with torch.no_grad():
        with FlopCounterMode(display=False) as counter:
            network.remember(conversation, source)
            network(ids[:, :11], call=Call([(conversation, 11)]), rows=torch.tensor([10]))
        assert counter.get_total_flops() == prefill(spec, 11).flops
        for context in (12, 13):
            with FlopCounterMode(display=False) as counter:
                network(ids[:, context - 1 : context], call=Call([(conversation, 1)]))
            assert counter.get_total_flops() == decode_step(spec, context).flops
    fp16 = kv_format("fp16")
    assert conversation.nbytes == conversation_bytes(spec, 13, fp16)
    assert conversation.nbytes_by_kind() == {
        kind: size for kind, (_, size) in bytes_by_kind(spec, 13, fp16).items()
    }
