"""Latent attention through its cache (a prompt expanded, later steps absorbed) and routing limited to groups of experts."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from small_models import check, check_default_count, reloaded_with

from headcount.errors import UnsupportedModelError
from headcount.spec.huggingface.config import spec_from_config
from headcount.spec.kv_format import kv_format
from headcount.transformer.families.registry import build_network
from headcount.transformer.kv_cache.call import Call
from headcount.transformer.kv_cache.conversation import Conversation

pytestmark = [pytest.mark.reference]
SMALL: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "max_position_embeddings": 128,
    "intermediate_size": 40,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
    "q_lora_rank": 24,
    "kv_lora_rank": 20,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
}
STRETCHED = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "mscale": 0.707,
    "mscale_all_dim": 0.5,
    "beta_fast": 32,
    "beta_slow": 1,
}


@pytest.mark.parametrize(
    "switches",
    [
        {"topk_method": "group_limited_greedy", "routed_scaling_factor": 3.0},
        {"q_lora_rank": None, "n_shared_experts": 1, "mlp_bias": True, "attention_bias": True},
        {"rope_parameters": STRETCHED, "first_k_dense_replace": 0, "tie_word_embeddings": True},
    ],
)
def test_deepseek_v2(switches: dict[str, Any], tmp_path: Any) -> None:
    from transformers import DeepseekV2Config

    check(DeepseekV2Config(**{**SMALL, **switches}), tmp_path)


@pytest.mark.parametrize(
    "switches",
    [
        {},
        {"q_lora_rank": None, "attention_bias": True, "norm_topk_prob": False, "rope_interleave": False},
        {"rope_parameters": STRETCHED, "n_group": 1, "topk_group": 1, "tie_word_embeddings": True},
        {"first_k_dense_replace": 3, "hidden_act": "gelu"},
    ],
)
def test_deepseek_v3(switches: dict[str, Any], tmp_path: Any) -> None:
    from transformers import DeepseekV3Config

    check(DeepseekV3Config(**{**SMALL, **switches}), tmp_path)


def test_kimi_k2_is_deepseek_v3_by_another_name(tmp_path: Any) -> None:
    from transformers import DeepseekV3Config

    def respell(file: Any) -> None:
        stated = json.loads(file.read_text())
        stated |= {"model_type": "kimi_k2", "topk_method": "noaux_tc", "scoring_func": "sigmoid"}
        file.write_text(json.dumps(stated))

    reloaded_with(DeepseekV3Config(**{**SMALL, "n_group": 1, "topk_group": 1}), tmp_path, respell)


def test_a_token_costs_the_latent_and_one_rotary_key(tmp_path: Any) -> None:
    from transformers import DeepseekV3Config

    ours = check(DeepseekV3Config(**SMALL), tmp_path)
    conversation = Conversation(ours.spec, format="fp32")
    with torch.no_grad():
        ours.network(torch.arange(3, 12)[None], call=Call([(conversation, 9)]))
    assert conversation.nbytes == 3 * 9 * (20 + 8) * 4
    assert conversation.nbytes == sum(
        mixer.kv_bytes(9, kv_format("fp32")) for layer in ours.spec.layers for mixer in layer.mixers
    )


def test_prediction_layers_of_a_release_are_left_out(tmp_path: Any) -> None:
    """Released files hold a 62nd layer for speculative decoding; the model of 61 layers loads without it."""
    import re

    from headcount.transformer.families.deepseek import IGNORED

    assert re.fullmatch("|".join(IGNORED), "model.layers.61.mlp.experts.0.gate_proj.weight")
    assert not re.fullmatch("|".join(IGNORED), "model.layers.6.mlp.gate.weight")


@pytest.mark.parametrize("model_type", ["deepseek_v2", "deepseek_v3"])
def test_default_count(model_type: str) -> None:
    # V2's class states no top_k at all.
    if model_type == "deepseek_v3":
        check_default_count(model_type)
        return
    spec = spec_from_config(
        {"model_type": model_type, "num_experts_per_tok": 6}, name="x", source="class defaults"
    )
    assert sum(p.numel() for p in build_network(spec).parameters()) == spec.parameters


@pytest.mark.parametrize(
    "switches",
    [
        {"model_type": "deepseek_v2", "norm_topk_prob": True},
        {"model_type": "deepseek_v2", "topk_method": "noaux_tc"},
        {"model_type": "deepseek_v2", "scoring_func": "sigmoid"},
        {"model_type": "deepseek_v3", "scoring_func": "softmax"},
        {"model_type": "deepseek_v3", "topk_method": "greedy"},
    ],
)
def test_other_routing_is_refused_by_name(switches: dict[str, Any]) -> None:
    spec = spec_from_config({**SMALL, **switches}, name="x", source="test")
    with pytest.raises(UnsupportedModelError, match=next(name for name in switches if name != "model_type")):
        build_network(spec)
