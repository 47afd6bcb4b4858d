"""Latent attention: expanded equals absorbed, and both equal transformers' DeepSeek-V3 layer with the same weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headcount.errors import UsageError
from headcount.transformer.attention.latent import LatentAttention, LatentHeads
from headcount.transformer.attention.masks import Causal
from headcount.transformer.ops.operation import differentiate
from headcount.transformer.ops.rotary import turns

SHAPE = LatentHeads(
    width=24, heads=3, latent=10, plain_width=6, rotary_width=4, value_width=5, query_latent=8
)
TOKENS = 7
FREQUENCIES = 10000.0 ** -(torch.arange(0, 4, 2, dtype=torch.float64) / 4)


def layer(shape: LatentHeads = SHAPE) -> LatentAttention:
    torch.manual_seed(3)
    return LatentAttention(shape).double()


def angles() -> tuple[Tensor, Tensor]:
    return turns(torch.arange(TOKENS), FREQUENCIES, dtype=torch.float64)


def gradients(module: LatentAttention, x: Tensor, absorbed: bool) -> dict[str, Tensor]:
    x = x.detach().clone().requires_grad_()
    out = module(x, turns=angles(), mask=Causal(), absorbed=absorbed)
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    names = ["x", *dict(module.named_parameters())]
    grads = torch.autograd.grad((out * weight).sum(), [x, *module.parameters()])
    return {"out": out.detach(), **dict(zip(names, grads, strict=True))}


@pytest.mark.parametrize("kernel", ["naive", "composed", "tiled"])
@pytest.mark.parametrize("query_latent", [8, None])
def test_absorbed_equals_expanded(kernel: str, query_latent: int | None) -> None:
    module = layer(SHAPE.replace(kernel=kernel, query_latent=query_latent))
    x = torch.randn(2, TOKENS, 24, dtype=torch.float64)
    expanded, absorbed = gradients(module, x, False), gradients(module, x, True)
    for name, value in expanded.items():
        torch.testing.assert_close(absorbed[name], value, rtol=0, atol=1e-12, msg=name)


@pytest.mark.parametrize("absorbed", [False, True])
def test_gradients_equal_autograd(absorbed: bool) -> None:
    module, x = layer(), torch.randn(2, TOKENS, 24, dtype=torch.float64)
    by_hand = gradients(module, x, absorbed)
    with differentiate("autograd"):
        for name, value in gradients(module, x, absorbed).items():
            torch.testing.assert_close(by_hand[name], value, rtol=0, atol=1e-10, msg=name)


@pytest.mark.reference
@pytest.mark.parametrize("absorbed", [False, True])
@pytest.mark.parametrize("query_latent", [8, None])
def test_equals_transformers(absorbed: bool, query_latent: int | None) -> None:
    from transformers.models.deepseek_v3.configuration_deepseek_v3 import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention

    config = DeepseekV3Config(
        hidden_size=24,
        num_attention_heads=3,
        num_key_value_heads=3,
        kv_lora_rank=10,
        q_lora_rank=query_latent,
        qk_nope_head_dim=6,
        qk_rope_head_dim=4,
        v_head_dim=5,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    config._attn_implementation = "eager"
    theirs = DeepseekV3Attention(config, layer_idx=0).double()
    ours = layer(SHAPE.replace(query_latent=query_latent))
    for norm in ("q_a_layernorm", "kv_a_layernorm"):
        if getattr(theirs, norm, None) is not None:
            getattr(theirs, norm).variance_epsilon = 1e-6
    ups = torch.cat([ours.key_up, ours.value_up], dim=1).flatten(0, 1)
    state = {
        "kv_a_proj_with_mqa.weight": ours.down.weight,
        "kv_a_layernorm.weight": ours.latent_norm.weight,
        "kv_b_proj.weight": ups,
        "o_proj.weight": ours.output.weight,
    }
    if ours.query_down is not None and ours.query_norm is not None:
        state["q_a_proj.weight"] = ours.query_down.weight
        state["q_a_layernorm.weight"] = ours.query_norm.weight
        state["q_b_proj.weight"] = ours.query_up.weight
    else:
        state["q_proj.weight"] = ours.query_up.weight
    theirs.load_state_dict(state)
    x = torch.randn(2, TOKENS, 24, dtype=torch.float64)
    cos, sin = (torch.cat([part, part], -1)[None] for part in angles())
    mask = torch.full((TOKENS, TOKENS), -torch.inf, dtype=torch.float64).triu(1)[None, None]
    wanted = theirs(x, (cos, sin), mask)[0]
    found = ours(x, turns=angles(), mask=Causal(), absorbed=absorbed)
    # Their eager softmax is computed in float32 whatever the dtype.
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


def test_bad_sizes() -> None:
    with pytest.raises(UsageError, match="latent must be a whole number of 1 or more; given 0"):
        SHAPE.replace(latent=0)
