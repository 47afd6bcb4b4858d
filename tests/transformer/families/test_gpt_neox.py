"""GPT-NeoX and GPT-J: parallel residuals, partial rotary positions."""

from __future__ import annotations

from typing import Any

import pytest
from small_models import check, check_default_count

pytestmark = [pytest.mark.reference]
NEOX = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "max_position_embeddings": 64,
}
GPTJ = {"vocab_size": 101, "n_embd": 48, "n_layer": 2, "n_head": 3, "n_positions": 40, "rotary_dim": 8}


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize(
    "switches",
    [
        {},
        {"rotary_pct": 1.0, "attention_bias": False, "hidden_act": "gelu_new"},
        {
            "rotary_pct": 0.5,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "linear", "factor": 2.0},
        },
    ],
)
def test_gpt_neox(parallel: bool, switches: dict[str, Any], tmp_path: Any) -> None:
    from transformers import GPTNeoXConfig

    check(GPTNeoXConfig(**NEOX, use_parallel_residual=parallel, **switches), tmp_path)


@pytest.mark.parametrize(
    "switches",
    [{}, {"n_inner": 70, "activation_function": "relu"}, {"tie_word_embeddings": True, "rotary_dim": 16}],
)
def test_gptj(switches: dict[str, Any], tmp_path: Any) -> None:
    from transformers import GPTJConfig

    check(GPTJConfig(**{**GPTJ, **switches}), tmp_path)


@pytest.mark.parametrize("model_type", ["gpt_neox", "gptj"])
def test_default_count(model_type: str) -> None:
    check_default_count(model_type)
