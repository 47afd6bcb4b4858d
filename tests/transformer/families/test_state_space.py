"""Mamba-2 beside attention: the recurrence against the reference's chunked scan, its state from call to call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_models import check, check_default_count

from headcount.errors import UnsupportedModelError
from headcount.spec.huggingface.config import spec_from_config
from headcount.transformer.families.registry import build_network
from headcount.transformer.kv_cache.call import Call
from headcount.transformer.kv_cache.conversation import Conversation
from headcount.transformer.ops.operation import differentiate

pytestmark = [pytest.mark.reference]
MAMBA: dict[str, Any] = {
    "mamba_n_heads": 6,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 10,
    # Smaller than the token count: the reference crosses chunks.
    "mamba_chunk_size": 8,
}
SMALL: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "intermediate_size": 40,
    **MAMBA,
}
HYBRID = ["linear_attention", "full_attention", "linear_attention"]
MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "logits_scaling": 2.0,
    "residual_multiplier": 0.5,
    "attention_multiplier": 0.2,
}


def bamba(folder: Any, *, padding: bool = True, **switches: Any) -> Any:
    from transformers import BambaConfig

    return check(BambaConfig(**{**SMALL, "attn_layer_indices": [1], **switches}), folder, padding=padding)


@pytest.mark.parametrize(
    "switches",
    [
        {},
        {
            "mamba_n_groups": 3,
            "mamba_n_heads": 12,
            "mamba_d_head": "auto",
            "mamba_d_conv": 3,
            "mamba_conv_bias": False,
        },
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "hidden_act": "gelu"},
        {"time_step_limit": (0.01, 0.9), "mamba_n_groups": 1},
        {"attn_layer_indices": None, "mamba_d_conv": 2},
        {"attn_layer_indices": [0, 1, 2]},
    ],
)
def test_bamba(switches: dict[str, Any], tmp_path: Any) -> None:
    bamba(tmp_path, **switches)


def test_padding_leaves_no_trace_even_with_biases(tmp_path: Any) -> None:
    """The reference lets the bias of its input projection through at padded positions; truth here is the row alone."""
    ours = bamba(tmp_path, padding=False, mamba_proj_bias=True)
    ids = torch.randint(3, 101, (1, 15))
    keep = torch.arange(20)[None] >= 5
    padded = torch.cat((torch.full((1, 5), 7), ids), 1)
    with torch.no_grad():
        alone = ours.network(ids)
        beside = ours.network(padded, keep_BT=keep, positions_BT=(keep.long().cumsum(1) - 1).clamp(min=0))
    torch.testing.assert_close(beside[:, 5:], alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "switches",
    [
        {"num_local_experts": 5, "num_experts_per_tok": 3, "layer_types": HYBRID},
        {
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "layer_types": HYBRID,
            "position_embedding_type": "rope",
        },
        {"num_local_experts": 0, "num_experts_per_tok": 0, "tie_word_embeddings": True},
    ],
)
def test_granite_hybrid(switches: dict[str, Any], tmp_path: Any) -> None:
    from transformers import GraniteMoeHybridConfig

    check(GraniteMoeHybridConfig(**SMALL, **MULTIPLIERS, shared_intermediate_size=20, **switches), tmp_path)


def test_ragged_calls_keep_each_conversation_to_itself(tmp_path: Any) -> None:
    ours = bamba(tmp_path)
    texts = [torch.randint(3, 101, (1, n)) for n in (4, 9, 1, 6)]
    with torch.no_grad():
        alone = [ours.network(torch.cat((text, text), 1)) for text in texts]
        conversations = [Conversation(ours.spec) for _ in texts]
        shares = [(c, text.shape[1]) for c, text in zip(conversations, texts, strict=True)]
        first = ours.network(torch.cat(texts, 1), call=Call(shares))
        second = ours.network(torch.cat(texts[::-1], 1), call=Call(shares[::-1]))
    torch.testing.assert_close(
        first, torch.cat([a[:, : a.shape[1] // 2] for a in alone], 1), rtol=0, atol=1e-5
    )
    torch.testing.assert_close(
        second, torch.cat([a[:, a.shape[1] // 2 :] for a in alone[::-1]], 1), rtol=0, atol=1e-5
    )
    # Constant: (96 + 2 x 2 x 10) channels x 3 columns and a 96 x 10 matrix, whatever was read.
    for conversation in conversations:
        assert conversation.nbytes_by_kind()["state"] == 2 * 4 * (136 * 3 + 96 * 10)


def test_a_fork_goes_its_own_way(tmp_path: Any) -> None:
    ours = bamba(tmp_path)
    ids = torch.randint(3, 101, (1, 12))
    with torch.no_grad():
        one = Conversation(ours.spec)
        ours.network(ids[:, :8], call=Call([(one, 8)]))
        other = one.fork()
        ours.network(torch.randint(3, 101, (1, 4)), call=Call([(other, 4)]))
        rest = ours.network(ids[:, 8:], call=Call([(one, 4)]))
        torch.testing.assert_close(rest, ours.network(ids)[:, 8:], rtol=0, atol=1e-5)


def test_gradients_by_hand_equal_pytorchs() -> None:
    config = {"model_type": "bamba", **SMALL, "attn_layer_indices": [1], "mamba_n_groups": 3}
    network = build_network(spec_from_config(config, name="x", source="test"), seed=1).double()
    ids = torch.randint(3, 101, (2, 7), generator=torch.Generator().manual_seed(1))
    network.use_kernel("naive")

    def gradients() -> list[torch.Tensor]:
        return list(torch.autograd.grad(network(ids).square().mean(), list(network.parameters())))

    by_hand = gradients()
    with differentiate("autograd"):
        for (name, _), ours, theirs in zip(network.named_parameters(), by_hand, gradients(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("model_type", ["bamba", "granitemoehybrid"])
def test_default_count(model_type: str) -> None:
    check_default_count(model_type)


@pytest.mark.parametrize("limit", [[0.0], ["a", 1.0], [0.0, {"__float__": "NaN"}], [-1.0, 2.0]])
def test_a_limit_that_is_none_is_refused(limit: list[Any]) -> None:
    config = {"model_type": "bamba", **SMALL, "time_step_limit": limit}
    with pytest.raises(UnsupportedModelError, match="time_step_limit"):
        build_network(spec_from_config(config, name="x", source="test"))
