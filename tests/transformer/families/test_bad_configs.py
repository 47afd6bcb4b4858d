"""Constants that make no sense are refused by name, before a network is built or a kernel is told to write past a head."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headcount.errors import HeadcountError, OperandError
from headcount.spec.huggingface.config import spec_from_config
from headcount.transformer.decode.program import compile_program
from headcount.transformer.families.registry import build_network
from headcount.transformer.families.rotary import RotaryShape

LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64,
}  # fmt: skip
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0] * 8}


def built(config: dict[str, Any]) -> Any:
    return build_network(spec_from_config(config, name="bad", source="test"), seed=0)


@pytest.mark.parametrize(
    "rope",
    [
        {"partial_rotary_factor": 50},
        {"partial_rotary_factor": 1.5},
        {"partial_rotary_factor": -0.5},
        {"partial_rotary_factor": 0.1},
        {"rope_theta": 0},
        {"rope_theta": -1e4},
        {"rope_type": "yarn", "rope_theta": 1, "factor": 4},
        {"rope_type": "yarn", "factor": 4, "beta_fast": 0},
        {"rope_type": "yarn", "factor": 4, "attention_factor": "abc"},
        {"rope_type": "yarn", "factor": 4, "mscale": "abc", "mscale_all_dim": [1]},
        {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 0},
        {"rope_type": "yarn", "factor": -3},
        {"rope_type": "linear", "factor": 0},
        {"rope_type": "llama3", "factor": 8, "low_freq_factor": 0, "high_freq_factor": 0},
        {**LONG, "original_max_position_embeddings": 0},
        {**LONG, "original_max_position_embeddings": 1, "factor": 4},
        {**LONG, "attention_factor": {}},
        {**LONG, "long_factor": [0.0] * 8},
    ],
    ids=str,
)
def test_rotary_numbers_are_checked(rope: dict[str, Any]) -> None:
    with pytest.raises(HeadcountError, match=r"config"):
        built({**LLAMA, "rope_parameters": {"rope_theta": 1e4, **rope}})


@pytest.mark.parametrize("eps", [-1, 1, 1e29])
def test_an_epsilon_that_is_no_small_number(eps: float) -> None:
    with pytest.raises(HeadcountError, match="eps"):
        built({**LLAMA, "rms_norm_eps": eps})


def test_gemma_scores_without_a_scale() -> None:
    config = {
        **LLAMA,
        "model_type": "gemma3_text",
        "head_dim": 16,
        "sliding_window": 8,
        "query_pre_attn_scalar": 0,
    }
    with pytest.raises(HeadcountError, match="query_pre_attn_scalar"):
        built(config)


def test_the_compiled_step_never_turns_past_a_head() -> None:
    """Even a network that was changed after its config was checked."""
    network = built(LLAMA)
    wide = RotaryShape(width=800)
    network.shape = network.shape.replace(rotaries=(("all", wide),))
    with pytest.raises(OperandError, match="800 columns turn, a head has 16"), torch.inference_mode():
        compile_program(network, weights="fp32", threads=1)
