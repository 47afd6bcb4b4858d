"""ReLU, GELU (both forms), SiLU and the gated products against torch.nn.functional."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn import functional

from headcount.errors import OperandError, UnknownNameError
from headcount.transformer.ops.gated import ACTIVATIONS, GATED, gated
from headcount.transformer.ops.gelu import gelu
from headcount.transformer.ops.operation import differentiate
from headcount.transformer.ops.precision import GROUP
from headcount.transformer.ops.relu import relu
from headcount.transformer.ops.silu import silu

PAIRS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "relu": (relu, functional.relu),
    "gelu": (gelu, functional.gelu),
    "gelu_tanh": (lambda x: gelu(x, form="tanh"), lambda x: functional.gelu(x, approximate="tanh")),
    "silu": (silu, functional.silu),
}
STOCK: dict[str, Callable[[Tensor], Tensor]] = {
    **{name: theirs for name, (_, theirs) in PAIRS.items()},
    "sigmoid": torch.sigmoid,
}
SHAPES = st.lists(st.integers(0, 4), max_size=3)
MODES = st.sampled_from(["by_hand", "autograd"])


def random(*shape: int, seed: int) -> Tensor:
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 3
    # Finite differences across the kink of ReLU would see half a slope.
    return torch.where(x.abs() < 1e-3, 0.5, x).requires_grad_()


@pytest.mark.parametrize("name", PAIRS)
@given(shape=SHAPES, seed=st.integers(0, 2**31), mode=MODES)
def test_values_and_gradient(name: str, shape: list[int], seed: int, mode: str) -> None:
    ours, theirs = PAIRS[name]
    x = random(*shape, seed=seed)
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=1e-14)
    d_y = torch.randn(shape, dtype=torch.float64)
    with differentiate(mode):
        assert gradcheck(ours, (x,))
        mine = torch.autograd.grad(ours(x), x, d_y)
    torch.testing.assert_close(mine, torch.autograd.grad(theirs(x), x, d_y), rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ACTIVATIONS)
@given(shape=SHAPES.filter(len), seed=st.integers(0, 2**31), mode=MODES)
def test_gated_products(name: str, shape: list[int], seed: int, mode: str) -> None:
    gate, up = random(*shape, seed=seed), random(*shape, seed=seed + 1)
    expected = STOCK[name](gate) * up
    torch.testing.assert_close(gated(gate, up, activation=name), expected, rtol=0, atol=1e-13)
    d_y = torch.randn(shape, dtype=torch.float64)
    with differentiate(mode):
        assert gradcheck(lambda g, u: gated(g, u, activation=name), (gate, up))
        mine = torch.autograd.grad(gated(gate, up, activation=name), (gate, up), d_y)
    for ours, theirs in zip(mine, torch.autograd.grad(expected, (gate, up), d_y), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", PAIRS)
def test_far_from_zero_nothing_overflows(name: str) -> None:
    ends = torch.tensor([-1e4, -100.0, 100.0, 1e4])
    x = ends.clone().requires_grad_()
    y = PAIRS[name][0](x)
    y.sum().backward()
    assert y.tolist() == pytest.approx([0, 0, 100, 1e4], abs=1e-30)
    assert x.grad is not None and x.grad.tolist() == pytest.approx([0, 0, 1, 1], abs=1e-30)


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(name: str, dtype: torch.dtype) -> None:
    x = torch.linspace(-4, 4, 1001).to(dtype).requires_grad_()
    ours, theirs = PAIRS[name]
    wide = x.detach().double().requires_grad_()
    exact = theirs(wide)
    exact.sum().backward()
    out = ours(x)
    out.sum().backward()
    half_unit = torch.finfo(dtype).eps * 0.51
    tiny = torch.finfo(dtype).smallest_normal * half_unit + 1e-6
    assert out.dtype == dtype and x.grad is not None and wide.grad is not None
    assert ((out.double() - exact).abs() <= half_unit * exact.abs() + tiny).all()
    assert ((x.grad.double() - wide.grad).abs() <= half_unit * wide.grad.abs() + tiny).all()


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_longer_than_one_group(name: str, dtype: torch.dtype) -> None:
    ours, theirs = PAIRS[name]
    x = (torch.randn(3, GROUP // 2 + 1) * 3).to(dtype).t().requires_grad_()
    y, expected = ours(x), theirs(x)
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 1e-2}
    torch.testing.assert_close(y, expected, **close)
    d_y = torch.randn_like(y)
    mine, other = torch.autograd.grad(y, x, d_y)[0], torch.autograd.grad(expected, x, d_y)[0]
    torch.testing.assert_close(mine, other, **close)


def test_slope_of_relu_at_zero_is_zero() -> None:
    x = torch.zeros(3, requires_grad=True)
    relu(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [0, 0, 0]


def test_the_two_forms_of_gelu_differ_by_what_the_docstring_says() -> None:
    x = torch.linspace(-6, 6, 120_001, dtype=torch.float64)
    gap = (gelu(x) - gelu(x, form="tanh")).abs().max().item()
    assert 4.7e-4 < gap < 4.8e-4
    assert gelu(torch.tensor(1.0, dtype=torch.float64)).item() == pytest.approx(
        0.5 * (1 + math.erf(math.sqrt(0.5)))
    )


def test_refusals() -> None:
    with pytest.raises(UnknownNameError, match="unknown form of GELU 'tan'; nearest: tanh"):
        gelu(torch.ones(2), form="tan")
    with pytest.raises(UnknownNameError, match="unknown activation 'swilu'"):
        gated(torch.ones(2), torch.ones(2), activation="swilu")
    with pytest.raises(OperandError, match=r"up has shape .*F=3.*expected F = 2"):
        GATED(torch.ones(2), torch.ones(3))
