"""Cross-entropy against torch.nn.functional.cross_entropy, across group borders, and its stated policy."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck
from torch.nn import functional

from headcount.errors import OperandError, UsageError
from headcount.transformer.ops import cross_entropy as module
from headcount.transformer.ops.cross_entropy import cross_entropy
from headcount.transformer.ops.operation import differentiate


@given(
    rows=st.integers(1, 6),
    width=st.integers(1, 7),
    smoothing=st.sampled_from([0.0, 0.1, 1.0]),
    ignored=st.integers(0, 5),
    seed=st.integers(0, 2**31),
    mode=st.sampled_from(["by_hand", "autograd"]),
    group=st.sampled_from([1, 8, 1 << 18]),
)
def test_values_and_gradient(
    rows: int, width: int, smoothing: float, ignored: int, seed: int, mode: str, group: int
) -> None:
    torch.manual_seed(seed)
    logits = (torch.randn(rows, width, dtype=torch.float64) * 4).requires_grad_()
    targets = torch.randint(width, (rows,))
    targets[: min(ignored, rows - 1)] = -100
    with pytest.MonkeyPatch.context() as patch, differentiate(mode):
        patch.setattr(module, "GROUP", group)
        loss = cross_entropy(logits, targets, label_smoothing=smoothing)
        mine = torch.autograd.grad(loss * 3, logits)[0]
        assert gradcheck(lambda x: cross_entropy(x, targets, label_smoothing=smoothing), (logits,))
    expected = functional.cross_entropy(logits, targets, label_smoothing=smoothing)
    torch.testing.assert_close(loss, expected, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(mine, torch.autograd.grad(expected * 3, logits)[0], rtol=0, atol=1e-13)


def test_leading_dimensions_and_another_ignore_index() -> None:
    logits = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([[0, 4, 2], [2, 2, 1]])
    expected = functional.cross_entropy(logits.view(-1, 5), targets.view(-1), ignore_index=2)
    loss = cross_entropy(logits, targets, ignore_index=2)
    torch.testing.assert_close(loss, expected, rtol=1e-14, atol=0)
    torch.testing.assert_close(
        torch.autograd.grad(loss, logits)[0], torch.autograd.grad(expected, logits)[0], rtol=0, atol=1e-15
    )


def test_uniform_logits_cost_the_logarithm_of_the_vocabulary() -> None:
    assert cross_entropy(torch.zeros(4, 32000), torch.arange(4)).item() == pytest.approx(
        math.log(32000), rel=1e-6
    )


def test_large_logits_do_not_overflow() -> None:
    logits = torch.tensor([[1000.0, 1002.0]], requires_grad=True)
    loss = cross_entropy(logits, torch.tensor([0]))
    loss.backward()
    assert loss.item() == pytest.approx(2 + math.log1p(math.exp(-2)), rel=1e-6)
    share = 1 / (1 + math.exp(-2))
    assert logits.grad is not None and logits.grad[0].tolist() == pytest.approx([-share, share], rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_wide(dtype: torch.dtype) -> None:
    logits = (torch.randn(50, 300) * 3).to(dtype).requires_grad_()
    targets = torch.randint(300, (50,))
    wide = logits.detach().double().requires_grad_()
    expected = functional.cross_entropy(wide, targets, label_smoothing=0.1)
    expected.backward()
    loss = cross_entropy(logits, targets, label_smoothing=0.1)
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert logits.grad is not None and logits.grad.dtype == dtype and wide.grad is not None
    error = (logits.grad.double() - wide.grad).abs()
    assert (error <= torch.finfo(dtype).eps * 0.51 * wide.grad.abs() + 4e-8).all()


def test_ignored_rows_may_hold_anything() -> None:
    logits = torch.tensor([[math.nan, 0.0], [0.0, 0.0]], requires_grad=True)
    loss = cross_entropy(logits, torch.tensor([-100, 1]))
    loss.backward()
    assert loss.item() == pytest.approx(math.log(2), rel=1e-6)
    assert logits.grad is not None and logits.grad.tolist() == [[0, 0], [0.5, -0.5]]


@pytest.mark.parametrize("bad", [[math.nan, 0.0], [math.inf, 0.0], [-math.inf, -math.inf]])
def test_a_counted_row_without_a_distribution_gives_nan(bad: list[float]) -> None:
    assert cross_entropy(torch.tensor([bad, [0.0, 0.0]]), torch.tensor([1, 1])).isnan()


def test_refusals() -> None:
    with pytest.raises(UsageError, match="all 2 targets are ignored"):
        cross_entropy(torch.zeros(2, 3), torch.tensor([-100, -100]))
    with pytest.raises(OperandError, match="target 3 is outside the V = 3 logits"):
        cross_entropy(torch.zeros(2, 3), torch.tensor([0, 3]))
    with pytest.raises(UsageError, match="label smoothing 2"):
        cross_entropy(torch.zeros(2, 3), torch.tensor([0, 1]), label_smoothing=2.0)
    with pytest.raises(OperandError, match="one per row of logits"):
        module.forward(torch.zeros(2, 3), torch.tensor([0, 1, 2]))
