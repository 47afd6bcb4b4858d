"""BLOOM, MPT and Falcon: positions told as a bias, for head counts that are and are not powers of two."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_models import check, check_default_count, count

from headcount.errors import UnsupportedModelError
from headcount.spec.huggingface.config import spec_from_config
from headcount.transformer.families.registry import build_network

pytestmark = [pytest.mark.reference]
FALCON = {
    "vocab_size": 101,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "max_position_embeddings": 64,
}


@pytest.mark.parametrize("heads", [4, 6])
@pytest.mark.parametrize(
    "switches", [{}, {"apply_residual_connection_post_layernorm": True, "tie_word_embeddings": False}]
)
def test_bloom(heads: int, switches: dict[str, Any], tmp_path: Any) -> None:
    from transformers import BloomConfig

    check(BloomConfig(vocab_size=101, hidden_size=48, n_layer=2, n_head=heads, **switches), tmp_path)


@pytest.mark.parametrize("heads", [4, 6])
@pytest.mark.parametrize("attention", [{}, {"clip_qkv": 0.2, "softmax_scale": 0.5}])
def test_mpt(heads: int, attention: dict[str, Any], tmp_path: Any) -> None:
    from transformers import MptConfig

    config = MptConfig(
        vocab_size=101, d_model=48, n_layers=2, n_heads=heads, max_seq_len=64, attn_config=attention
    )
    check(config, tmp_path)


@pytest.mark.parametrize("heads", [8, 6, 12])
def test_mpt_alibi_bias_max(heads: int) -> None:
    """The reference's model leaves ``alibi_bias_max`` out of its call; its function, given it, is the published rule."""
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    config = {"model_type": "mpt", "d_model": 48, "n_heads": heads, "attn_config": {"alibi_bias_max": 4}}
    network = build_network(spec_from_config(config, name="x", source="x"))
    ours = network.layers[0].mixer.told.between(range(29, 30), range(30), torch.zeros(()))
    assert torch.equal(ours[0], build_mpt_alibi_tensor(heads, 30, alibi_bias_max=4))


@pytest.mark.parametrize(
    ("words", "config"),
    [
        ("logit_scale=inv_sqrt_d_model", {"logit_scale": "inv_sqrt_d_model"}),
        ("attn_config.prefix_lm=true", {"attn_config": {"prefix_lm": True}}),
        ("fewer key/value heads", {"attn_config": {"attn_type": "multiquery_attention"}}),
    ],
)
def test_mpt_refuses(words: str, config: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError, match=words):
        build_network(spec_from_config({"model_type": "mpt", **config}, name="x", source="x"))


@pytest.mark.parametrize(
    "switches",
    [
        {},  # 7B
        {"bias": True, "activation": "relu", "ffn_hidden_size": 70, "tie_word_embeddings": False},
        {"multi_query": False, "parallel_attn": False},
        {"new_decoder_architecture": True, "num_kv_heads": 2},  # 40B
        {
            "new_decoder_architecture": True,
            "num_kv_heads": 3,
            "num_ln_in_parallel_attn": 1,
            "bias": True,
        },  # 11B
    ],
)
def test_falcon(switches: dict[str, Any], tmp_path: Any) -> None:
    from transformers import FalconConfig

    check(FalconConfig(**FALCON, **switches), tmp_path)


@pytest.mark.parametrize("heads", [4, 6])
@pytest.mark.parametrize("parallel", [True, False])
def test_falcon_alibi(heads: int, parallel: bool, tmp_path: Any) -> None:
    """The bias is rounded at the key's own position, which padding in front shifts: compared without padding.

    With the reference's fused kernel: its eager code adds the bias a second time, along with the mask.
    """
    from transformers import FalconConfig

    switches = {"alibi": True, "multi_query": False, "parallel_attn": parallel, "bias": True}
    check(
        FalconConfig(**{**FALCON, "num_attention_heads": heads}, **switches),
        tmp_path,
        kernel="sdpa",
        padding=False,
    )


@pytest.mark.parametrize(
    "config",
    [
        {
            "model_type": "RefinedWeb",
            "n_head": 6,
            "n_head_kv": 2,
            "n_layer": 2,
            "hidden_size": 48,
            "vocab_size": 101,
        },
        {"model_type": "RefinedWebModel", "n_head": 6, "n_layer": 2, "hidden_size": 48, "multi_query": True},
    ],
)
def test_first_falcon_configs(config: dict[str, Any]) -> None:
    spec = spec_from_config(config, name="x", source="x")
    assert count(build_network(spec)) == spec.parameters


def test_falcon_norms_of_the_residual_are_refused() -> None:
    config = {"model_type": "falcon", "apply_residual_connection_post_layernorm": True}
    with pytest.raises(UnsupportedModelError, match="apply_residual_connection_post_layernorm=true"):
        build_network(spec_from_config(config, name="x", source="x"))


@pytest.mark.parametrize("model_type", ["bloom", "mpt", "falcon"])
def test_default_count(model_type: str) -> None:
    check_default_count(model_type)
