"""Linear against torch.nn.functional.linear."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from headcount.errors import OperandError
from headcount.transformer.ops.linear import LINEAR, linear
from headcount.transformer.ops.operation import differentiate

SIZES = st.integers(1, 4)


@given(
    lead=st.lists(st.integers(0, 3), max_size=3),
    sizes=st.tuples(SIZES, SIZES),
    biased=st.booleans(),
    mode=st.sampled_from(["by_hand", "autograd"]),
)
def test_values_and_gradient(lead: list[int], sizes: tuple[int, int], biased: bool, mode: str) -> None:
    shapes = [(*lead, sizes[0]), (sizes[1], sizes[0])] + [(sizes[1],)] * biased
    operands = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    torch.testing.assert_close(linear(*operands), torch.nn.functional.linear(*operands), rtol=0, atol=1e-14)
    with differentiate(mode):
        assert gradcheck(linear, operands)


def test_gradients_equal_pytorch_on_strided_operands() -> None:
    x = torch.randn(3, 5, 4, dtype=torch.float64).transpose(0, 1).requires_grad_()
    weight = torch.randn(4, 6, dtype=torch.float64).t().requires_grad_()
    bias = torch.randn(6, dtype=torch.float64, requires_grad=True)
    d_y = torch.randn(6, 5, 3, dtype=torch.float64).permute(1, 2, 0)
    ours = torch.autograd.grad(linear(x, weight, bias), (x, weight, bias), d_y)
    theirs = torch.autograd.grad(torch.nn.functional.linear(x, weight, bias), (x, weight, bias), d_y)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-13)


def test_refusal_names_the_letter() -> None:
    with pytest.raises(OperandError, match=r"weight has shape \(F=5, D=3\).*expected D = 4"):
        LINEAR(torch.ones(2, 4), torch.ones(5, 3))
