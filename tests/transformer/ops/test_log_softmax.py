"""Log-softmax against PyTorch, finite differences, and its stated policy."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from headcount.transformer.ops.log_softmax import log_softmax
from headcount.transformer.ops.operation import differentiate
from headcount.transformer.ops.softmax import softmax


@given(
    rows=st.integers(1, 4),
    width=st.integers(0, 6),
    seed=st.integers(0, 2**31),
    dim=st.sampled_from([-1, 0]),
    mode=st.sampled_from(["by_hand", "autograd"]),
)
def test_values_and_gradient(rows: int, width: int, seed: int, dim: int, mode: str) -> None:
    x = torch.randn(rows, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 5
    x.requires_grad_()
    torch.testing.assert_close(log_softmax(x, dim=dim), torch.log_softmax(x, dim), rtol=0, atol=1e-14)
    if x.numel():
        d_a = torch.randn(rows, width, dtype=torch.float64)
        with differentiate(mode):
            assert gradcheck(lambda s: log_softmax(s, dim=dim), (x,))
            mine = torch.autograd.grad(log_softmax(x, dim=dim), x, d_a)
        torch.testing.assert_close(
            mine, torch.autograd.grad(torch.log_softmax(x, dim), x, d_a), rtol=0, atol=1e-13
        )


def test_far_scores_keep_their_logarithm() -> None:
    scores = torch.tensor([1000.0, 1200.0])
    assert softmax(scores)[0] == 0
    assert log_softmax(scores).tolist() == [-200, 0]


@pytest.mark.parametrize("mode", ["by_hand", "autograd"])
def test_row_of_minus_infinity(mode: str) -> None:
    scores = torch.tensor([[-torch.inf, -torch.inf], [0.0, -torch.inf]], requires_grad=True)
    with differentiate(mode):
        out = log_softmax(scores)
        out.backward(torch.tensor([[1.0, 2.0], [3.0, 0.0]]))
    assert out.tolist() == [[-math.inf, -math.inf], [0, -math.inf]]
    assert scores.grad is not None and scores.grad.tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_and_inf_are_not_hidden(bad: float) -> None:
    out = log_softmax(torch.tensor([[bad, 0.0], [1.0, 1.0]]))
    assert out[0].isnan().all() and out[1].tolist() == pytest.approx([-math.log(2)] * 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(dtype: torch.dtype) -> None:
    x = (torch.randn(20, 500) * 3).to(dtype)
    exact = torch.log_softmax(x.double(), -1)
    out = log_softmax(x)
    assert out.dtype == dtype
    assert ((out.double() - exact).abs() <= torch.finfo(dtype).eps * 0.51 * exact.abs() + 1e-6).all()
