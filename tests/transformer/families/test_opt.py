"""OPT: offset positions, norms before or behind, narrow embeddings, norms without parameters."""

from __future__ import annotations

from typing import Any

import pytest
from small_models import check, check_default_count

pytestmark = [pytest.mark.reference]
SMALL = {
    "vocab_size": 101,
    "hidden_size": 48,
    "ffn_dim": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "max_position_embeddings": 40,
}


@pytest.mark.parametrize(
    "switches",
    [
        {},
        {"do_layer_norm_before": False, "word_embed_proj_dim": 20},  # 350m
        {"word_embed_proj_dim": 20, "tie_word_embeddings": False},
        {"enable_bias": False, "layer_norm_elementwise_affine": False},  # Galactica
        {"_remove_final_layer_norm": True, "activation_function": "gelu"},
    ],
)
def test_opt(switches: dict[str, Any], tmp_path: Any) -> None:
    from transformers import OPTConfig

    check(OPTConfig(**SMALL, **switches), tmp_path)


def test_default_count() -> None:
    check_default_count("opt")
