"""Multi-head attention with its projections against torch.nn and against the formula written out head by head."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from headcount.errors import HeadcountError
from headcount.transformer.attention.masks import Causal, Everything, Padding
from headcount.transformer.attention.multi_head import Heads, MultiHeadAttention
from headcount.transformer.ops.operation import differentiate
from headcount.transformer.ops.recording import record
from headcount.transformer.ops.rotary import turns
from headcount.transformer.ops.rotary_frequencies import rotary_frequencies


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def make(**choices: Any) -> MultiHeadAttention:
    layer = MultiHeadAttention(Heads(**choices)).double()
    for parameter in layer.parameters():
        parameter.data.normal_(std=0.3)
    return layer


@pytest.mark.parametrize("cross", [False, True], ids=["self", "cross"])
def test_equals_torch_multi_head(cross: bool) -> None:
    ours = make(width=12, heads=3, context_width=8 if cross else None)
    theirs = nn.MultiheadAttention(
        12, 3, batch_first=True, dtype=torch.float64, kdim=8 if cross else None, vdim=8 if cross else None
    )
    parts = [ours.query, ours.key, ours.value]
    with torch.no_grad():
        if cross:
            for name, part in zip(("q", "k", "v"), parts, strict=True):
                getattr(theirs, f"{name}_proj_weight").copy_(part.weight)
        else:
            theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        theirs.out_proj.load_state_dict(ours.output.state_dict())
    x = torch.randn(2, 5, 12, dtype=torch.float64, requires_grad=True)
    context = torch.randn(2, 7, 8, dtype=torch.float64, requires_grad=True) if cross else x
    keep = torch.ones(2, context.shape[1], dtype=torch.bool)
    keep[1, 4:] = False
    found = ours(x, context if cross else None, mask=Padding(keep_BS=keep))
    wanted, _ = theirs(x, context, context, key_padding_mask=~keep, need_weights=False)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    weight = torch.randn_like(found)
    leaves = [x, context] if cross else [x]
    ours_gradients = torch.autograd.grad((found * weight).sum(), leaves)
    theirs_gradients = torch.autograd.grad((wanted * weight).sum(), leaves)
    torch.testing.assert_close(ours_gradients, theirs_gradients, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernel", ["naive", "composed", "tiled"])
def test_every_option_at_once(kernel: str) -> None:
    """Unequal widths, shared key/value heads, QK-norm, rotary, soft cap and sinks, written out head by head."""
    shape = {"width": 10, "heads": 4, "kv_heads": 2, "head_width": 6, "value_width": 3, "bias": False}
    layer = make(**shape, qk_norm=True, soft_cap=2.0, sinks=True, scale=0.4, kernel=kernel)
    x = torch.randn(2, 5, 10, dtype=torch.float64)
    cos, sin = turns(torch.arange(5), rotary_frequencies("default", 6)[0].double(), dtype=torch.float64)
    q, k, v = (x @ part.weight.T for part in (layer.query, layer.key, layer.value))
    heads = []
    assert layer.sinks is not None and layer.query_norm is not None and layer.key_norm is not None
    for n in range(4):
        g = n // 2
        q_n = turned(normed(q[..., 6 * n : 6 * n + 6]) * layer.query_norm.weight, cos, sin)
        k_n = turned(normed(k[..., 6 * g : 6 * g + 6]) * layer.key_norm.weight, cos, sin)
        scores = torch.tanh(q_n @ k_n.mT * 0.4 / 2.0) * 2.0
        scores = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf)
        with_sink = torch.cat((scores, layer.sinks[n].expand(2, 5, 1)), -1)
        heads.append(torch.softmax(with_sink, -1)[..., :-1] @ v[..., 3 * g : 3 * g + 3])
    wanted = torch.cat(heads, -1) @ layer.output.weight.T
    found = layer(x, mask=Causal(), turns=(cos, sin))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    weight = torch.randn_like(found)
    ours = torch.autograd.grad((found * weight).sum(), list(layer.parameters()))
    stock = torch.autograd.grad((wanted * weight).sum(), list(layer.parameters()))
    torch.testing.assert_close(ours, stock, rtol=0, atol=1e-11)


def normed(x: Tensor) -> Tensor:
    return nn.functional.rms_norm(x, x.shape[-1:], eps=1e-6)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs of columns as complex numbers, multiplied by exp(i angle)."""
    a, b = x.chunk(2, -1)
    z = torch.complex(a, b) * torch.complex(cos, sin)
    return torch.cat((z.real, z.imag), -1)


def test_fused_kernel_by_name() -> None:
    layer = make(width=8, heads=2, kernel="fused")
    x = torch.randn(1, 4, 8, dtype=torch.float64)
    q, k, v = (
        part(x).unflatten(-1, (2, 4)).transpose(1, 2) for part in (layer.query, layer.key, layer.value)
    )
    wanted = layer.output(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))
    torch.testing.assert_close(layer(x, mask=Causal()), wanted, rtol=0, atol=1e-12)


def test_tape_is_connected_and_named() -> None:
    layer = make(width=8, heads=2, kernel="composed")
    x = torch.randn(1, 3, 8, dtype=torch.float64, requires_grad=True)
    with record() as tape:
        layer(x).sum().backward()
    made = {key for node in tape.nodes for key in node.outputs}
    given = {id(x), *(id(parameter) for parameter in layer.parameters())}
    for node in tape.nodes:
        assert set(node.inputs) <= made | given, node.operation
    assert {"Q", "K", "V", "O"} <= {value.name for value in tape.values.values()}
    assert all(tape.values[key].gradient is not None for node in tape.nodes for key in node.outputs[:1])


def test_by_hand_equals_autograd() -> None:
    layer = make(width=8, heads=4, kv_heads=2, qk_norm=True, sinks=True, soft_cap=3.0)
    x = torch.randn(2, 5, 8, dtype=torch.float64, requires_grad=True)
    gradients = []
    for mode in ("by_hand", "autograd"):
        with differentiate(mode):
            out = layer(x, mask=Causal())
            loss = (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum()
            gradients.append(torch.autograd.grad(loss, [x, *layer.parameters()]))
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"width": 10, "heads": 4}, "width 10 does not divide into 4 heads"),
        ({"width": 12, "heads": 4, "kv_heads": 3}, "4 query heads do not divide among 3 key/value heads"),
        ({"width": 12, "heads": 4, "kv_heads": 8}, "4 query heads do not divide among 8 key/value heads"),
        ({"width": 12, "heads": 0}, "heads must be a whole number of 1 or more; given 0"),
        ({"width": 12, "heads": 4, "kv_heads": 0}, "kv_heads must be a whole number of 1 or more; given 0"),
        ({"width": 12, "heads": 4, "kernel": "tilde"}, "unknown attention kernel 'tilde'; nearest: tiled"),
        ({"width": 12, "heads": 4, "soft_cap": -1.0}, "soft_cap must be positive"),
        (
            {"width": 12, "heads": 4, "rotary_layout": "halves"},
            "unknown rotary layout 'halves'; nearest: half",
        ),
    ],
)
def test_refusals(choices: dict[str, Any], words: str, plain_signatures: None) -> None:
    with pytest.raises(HeadcountError) as caught:
        MultiHeadAttention(Heads(**choices))
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_rotary_cross_attention_is_refused(plain_signatures: None) -> None:
    layer = make(width=8, heads=2)
    x = torch.zeros(1, 3, 8, dtype=torch.float64)
    with pytest.raises(HeadcountError, match="cross-attention has two"):
        layer(x, x.clone(), mask=Everything(), turns=(torch.ones(3, 2), torch.ones(3, 2)))
