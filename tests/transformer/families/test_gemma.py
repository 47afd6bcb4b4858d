"""Gemma 1, 2 and 3: embeddings and norms scaled, caps, sandwiches, two rotaries, windows."""

from __future__ import annotations

from typing import Any

import pytest
from small_models import check, check_default_count

from headcount.errors import UnsupportedModelError
from headcount.spec.huggingface.config import spec_from_config
from headcount.transformer.families.registry import build_network

pytestmark = [pytest.mark.reference]
SMALL = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": 64,
}
# What each kind of layer turns by, as the reference saves it.
TWO = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 100000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
}


@pytest.mark.parametrize(
    "switches", [{}, {"hidden_act": "gelu"}, {"hidden_act": "relu", "attention_bias": True}]
)
@pytest.mark.parametrize("tied", [True, False])
def test_gemma1(switches: dict[str, Any], tied: bool, tmp_path: Any) -> None:
    from transformers import GemmaConfig

    check(GemmaConfig(**SMALL, tie_word_embeddings=tied, **switches), tmp_path)


@pytest.mark.parametrize(
    "switches",
    [
        {},
        {"query_pre_attn_scalar": 20, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 1.5},
        {"attn_logit_softcapping": None, "final_logit_softcapping": None, "attention_bias": True},
    ],
)
def test_gemma2(switches: dict[str, Any], tmp_path: Any) -> None:
    from transformers import Gemma2Config

    check(Gemma2Config(**SMALL, sliding_window=5, **switches), tmp_path)


@pytest.mark.parametrize(
    "switches",
    [
        {"sliding_window_pattern": 2},
        {"rope_parameters": TWO, "layer_types": ["sliding_attention", "full_attention"] * 2},
        {"query_pre_attn_scalar": 20, "final_logit_softcapping": 1.5},
        {"attention_bias": True, "tie_word_embeddings": False, "hidden_activation": "silu"},
    ],
)
def test_gemma3(switches: dict[str, Any], tmp_path: Any) -> None:
    from transformers import Gemma3TextConfig

    check(Gemma3TextConfig(**SMALL, sliding_window=5, **switches), tmp_path)


def test_gemma3_as_first_released(tmp_path: Any) -> None:
    """The older spelling: rope_theta, rope_local_base_freq, and rope_scaling for the full layers alone."""
    import json

    from small_models import reloaded_with
    from transformers import Gemma3TextConfig

    older = {
        "rope_theta": 100000.0,
        "rope_local_base_freq": 300.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    config = Gemma3TextConfig(**SMALL, sliding_window=5, rope_parameters=TWO, sliding_window_pattern=2)

    def respell(path: Any) -> None:
        stated = json.loads(path.read_text())
        del stated["rope_parameters"]
        path.write_text(json.dumps({**stated, **older}))

    reloaded_with(config, tmp_path, respell)


@pytest.mark.parametrize(
    ("model_type", "key", "value"),
    [
        ("gemma", "use_bidirectional_attention", True),
        ("gemma2", "use_bidirectional_attention", True),
        ("gemma3_text", "use_bidirectional_attention", True),
        ("gemma3_text", "attn_logit_softcapping", 50.0),
    ],
)
def test_refusals(model_type: str, key: str, value: Any) -> None:
    spec = spec_from_config({"model_type": model_type, key: value}, name="x", source="x")
    with pytest.raises(UnsupportedModelError, match=f"{key}={str(value).lower()}"):
        build_network(spec)


@pytest.mark.parametrize("model_type", ["gemma", "gemma2", "gemma3_text"])
def test_default_count(model_type: str) -> None:
    check_default_count(model_type)
