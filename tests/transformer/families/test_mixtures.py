"""Mixtures of experts with grouped-query attention: Mixtral, Qwen 2 and 3, gpt-oss, Granite."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from small_models import check, check_default_count

from headcount.errors import UnsupportedModelError
from headcount.spec.huggingface.config import spec_from_config
from headcount.spec.reader import read_model
from headcount.transformer.families.registry import build_network
from headcount.transformer.weights.model import load_model

pytestmark = [pytest.mark.reference]
SMALL: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "num_experts_per_tok": 2,
}
QWEN = {**SMALL, "num_experts": 5, "moe_intermediate_size": 24}
LOCAL = {**SMALL, "num_local_experts": 5}
MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "logits_scaling": 2.0,
    "residual_multiplier": 0.5,
    "attention_multiplier": 0.2,
}


@pytest.mark.parametrize(
    "switches",
    [
        {},
        {
            "head_dim": 10,
            "num_experts_per_tok": 3,
            "sliding_window": 6,
            "tie_word_embeddings": True,
            "hidden_act": "gelu",
        },
        {"num_experts_per_tok": 5},
        {"num_local_experts": 1, "num_experts_per_tok": 1},
    ],
)
def test_mixtral(switches: dict[str, Any], tmp_path: Any) -> None:
    from transformers import MixtralConfig

    check(MixtralConfig(**{**LOCAL, **switches}), tmp_path)


@pytest.mark.parametrize(
    "switches",
    [
        {},
        {"norm_topk_prob": True, "qkv_bias": False, "tie_word_embeddings": True},
        {"decoder_sparse_step": 2, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 2},
        {"mlp_only_layers": [0, 2]},
    ],
)
def test_qwen2_moe(switches: dict[str, Any], tmp_path: Any) -> None:
    from transformers import Qwen2MoeConfig

    check(Qwen2MoeConfig(**QWEN, shared_expert_intermediate_size=32, **switches), tmp_path)


@pytest.mark.parametrize(
    "switches",
    [
        {},
        {"norm_topk_prob": True, "attention_bias": True, "mlp_only_layers": [1], "tie_word_embeddings": True},
        {"use_sliding_window": True, "sliding_window": 5, "decoder_sparse_step": 3},
    ],
)
def test_qwen3_moe(switches: dict[str, Any], tmp_path: Any) -> None:
    from transformers import Qwen3MoeConfig

    check(Qwen3MoeConfig(**QWEN, head_dim=16, **switches), tmp_path)


@pytest.mark.parametrize(
    "switches",
    [
        {},
        # A limit that bites: the products of random experts are small.
        {"swiglu_limit": 0.05, "swiglu_alpha": 3.0, "attention_bias": False},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}, "num_experts_per_tok": 3},
        {
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
            "tie_word_embeddings": True,
        },
    ],
)
def test_gpt_oss(switches: dict[str, Any], tmp_path: Any) -> None:
    from transformers import GptOssConfig

    check(GptOssConfig(**{**LOCAL, "head_dim": 16, "sliding_window": 6, **switches}), tmp_path)


def test_packed_gpt_oss_opens_to_what_the_reference_opens(tmp_path: Any) -> None:
    """The experts replaced by blocks and scales, as released; the reference's own function says what they stand for."""
    from safetensors.torch import load_file, save_file
    from transformers import GptOssConfig, GptOssForCausalLM
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    torch.manual_seed(0)
    config = GptOssConfig(
        **{**LOCAL, "hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "sliding_window": 6}
    )
    model = GptOssForCausalLM._from_config(config, attn_implementation="eager").eval()
    packed = {}
    with torch.no_grad():
        for number, layer in enumerate(model.model.layers):
            for name in ("gate_up_proj", "down_proj"):
                weight = getattr(layer.mlp.experts, name)
                experts, inputs, outputs = weight.shape
                blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8)
                scales = torch.randint(118, 124, (experts, outputs, inputs // 32), dtype=torch.uint8)
                weight.copy_(convert_moe_packed_tensors(blocks, scales).float())
                whole = f"model.layers.{number}.mlp.experts.{name}"
                packed |= {whole + "_blocks": blocks, whole + "_scales": scales}
    model.save_pretrained(tmp_path, safe_serialization=True)
    file = str(tmp_path / "model.safetensors")
    others = {name: tensor for name, tensor in load_file(file).items() if name + "_blocks" not in packed}
    save_file({**others, **packed}, file, metadata={"format": "pt"})
    stated = json.loads((tmp_path / "config.json").read_text())
    stated["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (tmp_path / "config.json").write_text(json.dumps(stated))
    ours = load_model(str(tmp_path), dtype=torch.float32)
    ids = torch.randint(3, 99, (2, 24))
    with torch.no_grad():
        gap = (ours.network(ids) - model(ids, use_cache=False).logits).abs().max()
    assert gap <= 1e-5


@pytest.mark.parametrize(
    "switches", [{}, {"norm_topk_prob": True, "attention_bias": True, "tie_word_embeddings": True}]
)
def test_olmoe(switches: dict[str, Any], tmp_path: Any) -> None:
    from transformers import OlmoeConfig

    check(OlmoeConfig(**SMALL, num_experts=5, eos_token_id=2, **switches), tmp_path)


@pytest.mark.parametrize("attention_bias", [False, True])
def test_granite_moe(attention_bias: bool, tmp_path: Any) -> None:
    from transformers import GraniteMoeConfig

    check(GraniteMoeConfig(**LOCAL, **MULTIPLIERS, attention_bias=attention_bias), tmp_path)


@pytest.mark.parametrize("shared", [0, 20])
def test_granite_moe_shared(shared: int, tmp_path: Any) -> None:
    from transformers import GraniteMoeSharedConfig

    check(GraniteMoeSharedConfig(**LOCAL, **MULTIPLIERS, shared_intermediate_size=shared), tmp_path)


@pytest.mark.parametrize(
    "model_type", ["mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", "granitemoe", "granitemoeshared", "olmoe"]
)
def test_default_count(model_type: str) -> None:
    check_default_count(model_type)


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"model_type": "gpt_oss", "hidden_act": "gelu"}, "hidden_act"),
        ({"model_type": "mixtral", "hidden_act": "relu6"}, "activation"),
        ({"model_type": "olmoe", "clip_qkv": 8.0}, "clip_qkv"),
        (
            {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 0},
            "shared_expert_intermediate_size",
        ),
    ],
)
def test_what_is_not_run_is_named(config: dict[str, Any], word: str) -> None:
    with pytest.raises(UnsupportedModelError, match=word):
        build_network(spec_from_config(config, name="x", source="test"))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # As published; of DeepSeek-V3's 671,026,419,200 the 58 x 256 numbers of the correction are a buffer.
        ("mixtral-8x7b", 46_702_792_704),
        ("qwen1.5-moe-a2.7b", 14_315_784_192),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("gpt-oss-20b", 20_914_757_184),
        ("gpt-oss-120b", 116_829_156_672),
        ("deepseek-v2-lite", 15_706_484_224),
        ("deepseek-v3", 671_026_404_352),
        ("bamba-9b", 9_780_235_392),
        ("granite-4.0-h-tiny", 6_939_037_248),
    ],
)
def test_released_models_have_the_published_size(name: str, parameters: int) -> None:
    network = build_network(read_model(name))
    assert sum(parameter.numel() for parameter in network.parameters()) == parameters
