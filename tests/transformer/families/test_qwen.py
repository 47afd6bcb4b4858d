"""Qwen 2 and 3: biases, query and key norms, windows from a layer on."""

from __future__ import annotations

from typing import Any

import pytest
from small_models import check, check_default_count

pytestmark = [pytest.mark.reference]
SMALL = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
SLIDING = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}


@pytest.mark.parametrize("switches", [{}, SLIDING, {"tie_word_embeddings": True, "hidden_act": "gelu"}])
def test_qwen2(switches: dict[str, Any], tmp_path: Any) -> None:
    from transformers import Qwen2Config

    check(Qwen2Config(**SMALL, **switches), tmp_path)


@pytest.mark.parametrize("switches", [{}, SLIDING, {"attention_bias": True, "tie_word_embeddings": True}])
def test_qwen3(switches: dict[str, Any], tmp_path: Any) -> None:
    from transformers import Qwen3Config

    check(Qwen3Config(**SMALL, head_dim=10, **switches), tmp_path)


def test_qwen2_stretched(tmp_path: Any) -> None:
    from transformers import Qwen2Config

    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 10000.0}
    check(Qwen2Config(**SMALL, rope_parameters=rope), tmp_path)


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3"])
def test_default_count(model_type: str) -> None:
    check_default_count(model_type)
