"""The mixture block against its sum written out, its gradients against autograd, and what it does not multiply."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from headcount.errors import UnknownNameError, UsageError
from headcount.transformer.blocks.mixture import Mixture, MixtureShape, RouterShape
from headcount.transformer.ops.experts import Groups
from headcount.transformer.ops.operation import differentiate

ROUTER = RouterShape(experts=6, top_k=2)
SHAPE = MixtureShape(width=8, inner=5, router=ROUTER)
SHAPES = {
    "plain": SHAPE,
    "biases": SHAPE.replace(bias=True, router=ROUTER.replace(bias=True)),
    "shared": SHAPE.replace(shared=7, shared_bias=True),
    "gated shared": SHAPE.replace(shared=7, shared_gate=True, router=ROUTER.replace(renormalize=False)),
    "clamped": SHAPE.replace(bias=True, clamp=(1.702, 0.5)),
    "grouped": SHAPE.replace(
        activation="gelu",
        router=ROUTER.replace(scoring="sigmoid", correction=True, groups=Groups(3, 2), scale=2.5, wide=True),
    ),
}


def block(shape: MixtureShape) -> Mixture:
    torch.manual_seed(0)
    module = Mixture(shape).double()
    for parameter in module.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    if module.router.correction is not None:
        module.router.correction += 0.3 * torch.randn(6, dtype=torch.float64)
    return module


def written_out(m: Mixture, x_MD: Tensor) -> Tensor:
    """Every expert on every token, weights of those not chosen zero."""
    shape, router = m.shape, m.shape.router
    z = functional.linear(x_MD, m.router.weight, m.router.bias)
    s = z.softmax(-1) if router.scoring == "softmax" else z.sigmoid()
    choice = s if m.router.correction is None else s + m.router.correction
    if router.groups is not None:
        grouped = choice.view(len(x_MD), router.groups.groups, -1)
        best = grouped.topk(router.groups.best, -1).values.sum(-1).topk(router.groups.kept, -1).indices
        open_groups = torch.zeros(grouped.shape[:2], dtype=torch.bool).scatter(1, best, True)
        choice = torch.where(open_groups[..., None], grouped, -torch.inf).flatten(1)
    w = torch.where(torch.zeros_like(s).scatter(1, choice.topk(router.top_k, -1).indices, 1) > 0, s, 0)
    w = (w / w.sum(-1, keepdim=True) if router.renormalize else w) * router.scale
    y = torch.zeros_like(x_MD)
    for e in range(router.experts):
        gate, up = x_MD @ m.gate[e].T, x_MD @ m.up[e].T
        if m.gate_bias is not None and m.up_bias is not None:
            gate, up = gate + m.gate_bias[e], up + m.up_bias[e]
        if shape.clamp is None:
            inner = {"silu": functional.silu, "gelu": functional.gelu}[shape.activation](gate) * up
        else:
            alpha, limit = shape.clamp
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            inner = (up + 1) * gate * torch.sigmoid(alpha * gate)
        out = inner @ m.down[e].T
        y = y + w[:, e, None] * (out if m.down_bias is None else out + m.down_bias[e])
    if m.shared is not None:
        shared = m.shared(x_MD)
        y = y + (shared if m.shared_gate is None else m.shared_gate(x_MD).sigmoid() * shared)
    return y


@pytest.mark.parametrize("name", SHAPES)
def test_equals_the_sum_written_out_with_its_gradients(name: str) -> None:
    module = block(SHAPES[name])
    x = torch.randn(3, 4, 8, dtype=torch.float64, requires_grad=True)
    inputs = [x, *module.parameters()]
    weight = torch.linspace(-1, 1, 96, dtype=torch.float64).view(3, 4, 8)
    ours = module(x)
    by_hand = torch.autograd.grad((ours * weight).sum(), inputs)
    with differentiate("autograd"):
        theirs = written_out(module, x.view(-1, 8)).view_as(ours)
        by_torch = torch.autograd.grad((theirs * weight).sum(), inputs)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    for mine, other in zip(by_hand, by_torch, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("top_k", [1, 2, 6])
def test_only_the_chosen_experts_are_multiplied(top_k: int) -> None:
    module = Mixture(SHAPE.replace(shared=7, shared_gate=True, router=ROUTER.replace(top_k=top_k)))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(torch.randn(11, 8))
    router_and_gate, experts, shared = 6 * 8 + 8, top_k * 3 * 8 * 5, 3 * 8 * 7
    assert counter.get_total_flops() == 2 * 11 * (router_and_gate + experts + shared)


def test_half_precision_stays_close() -> None:
    module = Mixture(SHAPE.replace(shared=7))
    x = torch.randn(9, 8)
    with torch.no_grad():
        exact = module(x)
        rounded = module.bfloat16()(x.bfloat16())
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.float(), exact, rtol=0.05, atol=0.05)


def test_the_correction_is_no_parameter() -> None:
    module = Mixture(SHAPES["grouped"])
    assert "router.correction" in module.state_dict()
    assert all("correction" not in name for name, _ in module.named_parameters())


def test_impossible_shapes_are_refused() -> None:
    with pytest.raises(UsageError, match="7 experts per token out of 6"):
        ROUTER.replace(top_k=7)
    with pytest.raises(UsageError, match="needs a shared expert"):
        SHAPE.replace(shared_gate=True)
    with pytest.raises(UnknownNameError, match="swish"):
        SHAPE.replace(activation="swish")
    with pytest.raises(UnknownNameError, match="router scoring"):
        ROUTER.replace(scoring="tanh")
