"""GPT-2 and GPT-BigCode: learned positions, fused projections, scales per layer."""

from __future__ import annotations

from typing import Any

import pytest
from small_models import check, check_default_count

pytestmark = [pytest.mark.reference]
SMALL = {"vocab_size": 101, "n_embd": 48, "n_layer": 3, "n_head": 3, "n_positions": 40}


@pytest.mark.parametrize(
    "switches",
    [
        {},
        {"activation_function": "relu", "n_inner": 70, "layer_norm_epsilon": 1e-3},
        {"scale_attn_by_inverse_layer_idx": True, "tie_word_embeddings": False},
        {"scale_attn_weights": False, "reorder_and_upcast_attn": True},
    ],
)
def test_gpt2(switches: dict[str, Any], tmp_path: Any) -> None:
    from transformers import GPT2Config

    check(GPT2Config(**SMALL, **switches), tmp_path)


@pytest.mark.parametrize("multi_query", [True, False])
@pytest.mark.parametrize(
    "switches", [{}, {"activation_function": "gelu", "n_inner": 70, "scale_attn_weights": False}]
)
def test_gpt_bigcode(multi_query: bool, switches: dict[str, Any], tmp_path: Any) -> None:
    from transformers import GPTBigCodeConfig

    check(GPTBigCodeConfig(**SMALL, multi_query=multi_query, **switches), tmp_path)


@pytest.mark.parametrize("model_type", ["gpt2", "gpt_bigcode"])
def test_default_count(model_type: str) -> None:
    check_default_count(model_type)
