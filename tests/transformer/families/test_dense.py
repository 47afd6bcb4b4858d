"""StarCoder 2, Phi-3, Granite, OLMo 1 to 3, Command-R, GLM-4: Llama with switches."""

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
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
HALF = {
    "full_attention": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "rope_theta": 5e5,
    }
}


@pytest.mark.parametrize(
    "switches",
    [{}, {"sliding_window": 5}, {"use_bias": False, "tie_word_embeddings": False, "hidden_act": "relu"}],
)
def test_starcoder2(switches: dict[str, Any], tmp_path: Any) -> None:
    from transformers import Starcoder2Config

    check(Starcoder2Config(**SMALL, **switches), tmp_path)


@pytest.mark.parametrize(
    "switches",
    [
        {},
        {
            "embedding_multiplier": 6.0,
            "residual_multiplier": 0.3,
            "attention_multiplier": 0.2,
            "logits_scaling": 0.5,
        },
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ],
)
def test_granite(switches: dict[str, Any], tmp_path: Any) -> None:
    from transformers import GraniteConfig

    check(GraniteConfig(**SMALL, **switches), tmp_path)


@pytest.mark.parametrize(
    "switches", [{}, {"clip_qkv": 0.3, "attention_bias": True, "tie_word_embeddings": True}]
)
def test_olmo(switches: dict[str, Any], tmp_path: Any) -> None:
    from transformers import OlmoConfig

    check(OlmoConfig(**SMALL, **switches), tmp_path)


@pytest.mark.parametrize("switches", [{}, {"attention_bias": True, "rms_norm_eps": 1e-3}])
def test_olmo2(switches: dict[str, Any], tmp_path: Any) -> None:
    from transformers import Olmo2Config

    check(Olmo2Config(**SMALL, **switches), tmp_path)


@pytest.mark.parametrize("switches", [{}, {"rope_parameters": HALF}, {"attention_bias": True}])
def test_olmo3(switches: dict[str, Any], tmp_path: Any) -> None:
    from transformers import Olmo3Config

    check(Olmo3Config(**SMALL, sliding_window=5, **switches), tmp_path)


@pytest.mark.parametrize(
    "switches",
    [{}, {"use_qk_norm": True, "logit_scale": 0.5}, {"attention_bias": True, "tie_word_embeddings": False}],
)
def test_cohere(switches: dict[str, Any], tmp_path: Any) -> None:
    from transformers import CohereConfig

    check(CohereConfig(**SMALL, **switches), tmp_path)


@pytest.mark.parametrize(
    "switches", [{}, {"logit_scale": 0.5, "attention_bias": True, "sliding_window_pattern": 2}]
)
def test_cohere2(switches: dict[str, Any], tmp_path: Any) -> None:
    from transformers import Cohere2Config

    check(Cohere2Config(**SMALL, sliding_window=5, **switches), tmp_path)


@pytest.mark.parametrize(
    "switches", [{}, {"partial_rotary_factor": 0.8, "attention_bias": False, "head_dim": 10}]
)
@pytest.mark.parametrize("number", ["", "4"])
def test_glm(number: str, switches: dict[str, Any], tmp_path: Any) -> None:
    import transformers

    made = getattr(transformers, f"Glm{number}Config")
    check(made(**{**SMALL, "head_dim": 8, **switches}), tmp_path)


@pytest.mark.parametrize(
    "switches",
    [
        {},
        {"qk_layernorm": True, "partial_rotary_factor": 1.0},
        {"tie_word_embeddings": True, "hidden_act": "relu"},
    ],
)
def test_phi(switches: dict[str, Any], tmp_path: Any) -> None:
    from transformers import PhiConfig

    check(PhiConfig(**SMALL, **switches), tmp_path)


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize(
    "switches", [{}, {"use_qkv_bias": True, "partial_rotary_factor": 0.5, "tie_word_embeddings": True}]
)
def test_stablelm(switches: dict[str, Any], parallel: bool, tmp_path: Any) -> None:
    from transformers import StableLmConfig

    check(StableLmConfig(**SMALL, use_parallel_residual=parallel, **switches), tmp_path)


def test_stablelm_with_a_norm_per_head_is_refused() -> None:
    spec = spec_from_config({"model_type": "stablelm", "qk_layernorm": True}, name="x", source="x")
    with pytest.raises(UnsupportedModelError, match="qk_layernorm=true"):
        build_network(spec)


@pytest.mark.parametrize(
    "model_type",
    [
        "phi",
        "stablelm",
        "starcoder2",
        "phi3",
        "granite",
        "olmo",
        "olmo2",
        "olmo3",
        "cohere",
        "cohere2",
        "glm",
        "glm4",
    ],
)
def test_default_count(model_type: str) -> None:
    check_default_count(model_type)
