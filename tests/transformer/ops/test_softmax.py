"""Softmax against PyTorch, finite differences, and its stated policy."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headcount.transformer.ops.operation import differentiate
from headcount.transformer.ops.softmax import naive_softmax, softmax


@given(
    rows=st.integers(0, 4), width=st.integers(0, 7), seed=st.integers(0, 2**31), dim=st.sampled_from([-1, 0])
)
def test_values_and_gradient(rows: int, width: int, seed: int, dim: int) -> None:
    x = torch.randn(rows, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 5
    x.requires_grad_()
    if x.shape[dim]:
        torch.testing.assert_close(softmax(x, dim=dim), torch.softmax(x, dim), rtol=0, atol=1e-14)
        assert torch.autograd.gradcheck(lambda s: softmax(s, dim=dim), (x,))
    else:
        assert softmax(x, dim=dim).shape == x.shape


def test_overflow_of_the_naive_line_and_the_stable_answer() -> None:
    for dtype in (torch.float32, torch.float64):
        scores = torch.tensor([1000.0, 1002.0], dtype=dtype)
        assert naive_softmax(scores).isnan().all()
        assert softmax(scores).tolist() == pytest.approx(
            [1 / (1 + math.e**2), 1 / (1 + math.e**-2)], abs=1e-7
        )


@given(shift=st.floats(-1e3, 1e3))
def test_shift_changes_nothing(shift: float) -> None:
    scores = torch.tensor([0.3, -1.2, 2.5], dtype=torch.float64)
    torch.testing.assert_close(softmax(scores + shift), softmax(scores), rtol=0, atol=1e-12)


@pytest.mark.parametrize("mode", ["by_hand", "autograd"])
def test_masked_row_gives_zeros_and_zero_gradient(mode: str) -> None:
    scores = torch.tensor([[-torch.inf, -torch.inf], [0.0, -torch.inf]], requires_grad=True)
    with differentiate(mode):
        out = softmax(scores)
        (out * torch.tensor([[1.0, 2.0], [3.0, 4.0]])).sum().backward()
    assert out.tolist() == [[0.0, 0.0], [1.0, 0.0]]
    assert scores.grad is not None and scores.grad.tolist() == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_and_inf_are_not_hidden(bad: float) -> None:
    out = softmax(torch.tensor([[bad, 0.0], [1.0, 1.0]]))
    assert out[0].isnan().all() and out[1].tolist() == [0.5, 0.5]
