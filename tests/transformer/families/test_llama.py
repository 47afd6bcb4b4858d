"""Llama and Mistral: biases, tied heads, rotary scaling rules, windows."""

from __future__ import annotations

from typing import Any

import pytest
from small_models import check, check_default_count, reloaded_with

pytestmark = [pytest.mark.reference]
SMALL = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
ROTARIES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 500.0},
    "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
        "rope_theta": 10000.0,
    },
    "yarn": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "beta_fast": 8.0,
        "beta_slow": 1.0,
        "rope_theta": 10000.0,
    },
    "yarn_exact": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "truncate": False,
        "mscale": 0.7,
        "mscale_all_dim": 1.3,
        "rope_theta": 10000.0,
    },
}


@pytest.mark.parametrize("rule", ROTARIES)
def test_rotary_rules(rule: str, tmp_path: Any) -> None:
    from transformers import LlamaConfig

    check(LlamaConfig(**SMALL, rope_parameters=ROTARIES[rule]), tmp_path)


DYNAMIC = {"rope_type": "dynamic", "factor": 3.0, "rope_theta": 10000.0}


def test_dynamic_rotary_within_the_trained_length(tmp_path: Any) -> None:
    from transformers import LlamaConfig

    check(LlamaConfig(**{**SMALL, "max_position_embeddings": 24}, rope_parameters=DYNAMIC), tmp_path)


def test_dynamic_rotary_stretches_beyond_it(tmp_path: Any) -> None:
    """Whole only: the frequencies follow the length, so earlier keys of a growing conversation turned by others."""
    from transformers import LlamaConfig

    config = LlamaConfig(**{**SMALL, "max_position_embeddings": 8}, rope_parameters=DYNAMIC)
    reloaded_with(config, tmp_path, lambda path: None)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_biases_and_head(bias: bool, tied: bool, tmp_path: Any) -> None:
    from transformers import LlamaConfig

    config = LlamaConfig(
        **SMALL,
        attention_bias=bias,
        mlp_bias=bias,
        tie_word_embeddings=tied,
        hidden_act="gelu",
        rms_norm_eps=1e-3,
    )
    check(config, tmp_path)


def test_heads_of_their_own_width(tmp_path: Any) -> None:
    from transformers import LlamaConfig

    check(LlamaConfig(**{**SMALL, "num_attention_heads": 3, "num_key_value_heads": 1}, head_dim=10), tmp_path)


@pytest.mark.parametrize("window", [None, 5])
def test_mistral(window: int | None, tmp_path: Any) -> None:
    from transformers import MistralConfig

    check(MistralConfig(**SMALL, sliding_window=window), tmp_path)


@pytest.mark.parametrize("model_type", ["llama", "mistral"])
def test_default_count(model_type: str) -> None:
    check_default_count(model_type)
