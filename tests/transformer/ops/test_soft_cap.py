"""Soft cap against PyTorch's tanh, finite differences, and its bounds."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from headcount.errors import UsageError
from headcount.transformer.ops.operation import differentiate
from headcount.transformer.ops.soft_cap import soft_cap


@given(
    shape=st.lists(st.integers(1, 4), max_size=3),
    cap=st.floats(0.5, 50),
    mode=st.sampled_from(["by_hand", "autograd"]),
)
def test_values_and_gradient(shape: list[int], cap: float, mode: str) -> None:
    s = (torch.randn(shape, dtype=torch.float64) * 5).requires_grad_()
    expected = torch.tanh(s / cap) * cap
    torch.testing.assert_close(soft_cap(s, cap), expected, rtol=0, atol=1e-13)
    d_y = torch.randn(shape, dtype=torch.float64)
    with differentiate(mode):
        assert gradcheck(lambda x: soft_cap(x, cap), (s,))
        mine = torch.autograd.grad(soft_cap(s, cap), s, d_y)
    torch.testing.assert_close(mine, torch.autograd.grad(expected, s, d_y), rtol=0, atol=1e-13)


def test_bounded_and_the_slope_keeps_its_digits_near_the_cap() -> None:
    s = torch.tensor([-1e4, 0.0, 200.0, 1e4], requires_grad=True)
    y = soft_cap(s, 30.0)
    y.sum().backward()
    assert y.abs().max() <= 30 and y[1] == 0
    exact = 1 / torch.cosh(torch.tensor(200 / 30, dtype=torch.float64)).item() ** 2
    assert s.grad is not None and s.grad.tolist() == pytest.approx([0, 1, exact, 0], rel=1e-6, abs=1e-30)


@pytest.mark.parametrize("cap", [0.0, -1.0, float("nan")])
def test_refused_caps(cap: float) -> None:
    with pytest.raises(UsageError, match="give c > 0"):
        soft_cap(torch.ones(2), cap)
