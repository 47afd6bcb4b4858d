"""Sums, products and scalings against PyTorch's own, with broadcasting, and on the chapter's worked attention."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from headcount.errors import OperandError
from headcount.transformer.ops.arithmetic import ADD, PRODUCT, SCORES, add, product, scale, scores, total
from headcount.transformer.ops.operation import differentiate
from headcount.transformer.ops.softmax import softmax

SIZES = st.integers(1, 4)
# Leading dimensions of two operands that broadcast together.
LEADS = st.sampled_from(
    [((), ()), ((3,), ()), ((), (2,)), ((3,), (3,)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((1,), (2, 3))]
)
MODES = st.sampled_from(["by_hand", "autograd"])


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator, requires_grad=True)


@given(leads=LEADS, width=SIZES, mode=MODES)
def test_add_broadcasts_and_folds_its_gradient(
    leads: tuple[tuple[int, ...], tuple[int, ...]], width: int, mode: str
) -> None:
    a, b = random(*leads[0], width), random(*leads[1], width, seed=1)
    torch.testing.assert_close(add(a, b), a + b, rtol=0, atol=0)
    with differentiate(mode):
        assert gradcheck(add, (a, b))


@given(leads=LEADS, sizes=st.tuples(SIZES, SIZES, SIZES), mode=MODES)
def test_products_against_matmul(
    leads: tuple[tuple[int, ...], tuple[int, ...]], sizes: tuple[int, int, int], mode: str
) -> None:
    t, d, s = sizes
    a, b, k = random(*leads[0], t, d), random(*leads[1], d, s, seed=1), random(*leads[1], s, d, seed=2)
    torch.testing.assert_close(product(a, b), torch.matmul(a, b), rtol=0, atol=1e-14)
    torch.testing.assert_close(scores(a, k), torch.einsum("...td,...sd->...ts", a, k), rtol=0, atol=1e-14)
    with differentiate(mode):
        assert gradcheck(product, (a, b))
        assert gradcheck(scores, (a, k))


@given(shape=st.lists(st.integers(0, 3), max_size=3), factor=st.floats(-3, 3))
def test_scale_and_total(shape: list[int], factor: float) -> None:
    x = random(*shape)
    torch.testing.assert_close(total(x), x.sum(), rtol=0, atol=1e-14)
    if x.numel():
        assert gradcheck(lambda y: scale(y, factor), (x,))
        assert gradcheck(total, (x,))


def test_four_step_backward_of_the_worked_attention() -> None:
    """Q = K = identity, V = [[1, 2], [3, 4]], L = sum O: the numbers a reader can follow by hand."""
    q, k = (torch.eye(2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    v = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64, requires_grad=True)
    s = scale(scores(q, k), 1 / math.sqrt(2))
    a = softmax(s)
    out = product(a, v)
    s.retain_grad(), a.retain_grad()
    total(out).backward()

    def rows(*values: float) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64).view(2, 2)

    close = {"rtol": 0, "atol": 1e-12}
    torch.testing.assert_close(s.detach(), rows(0.7071067811865475, 0, 0, 0.7071067811865475), **close)
    torch.testing.assert_close(
        a.detach(),
        rows(0.6697615493266569, 0.3302384506733431, 0.3302384506733431, 0.6697615493266569),
        **close,
    )
    torch.testing.assert_close(
        out.detach(),
        rows(1.6604769013466862, 2.6604769013466862, 2.3395230986533138, 3.3395230986533138),
        **close,
    )
    assert a.grad is not None and a.grad.tolist() == [[3, 7], [3, 7]]
    torch.testing.assert_close(v.grad, torch.ones(2, 2, dtype=torch.float64), **close)
    step = 0.8847240654808521
    torch.testing.assert_close(s.grad, rows(-step, step, -step, step), **close)
    step = 0.6255943861804416
    torch.testing.assert_close(q.grad, rows(-step, step, -step, step), **close)
    torch.testing.assert_close(k.grad, rows(-step, -step, step, step), **close)


def test_operands_that_do_not_fit_are_refused_by_letter() -> None:
    with pytest.raises(OperandError, match=r"product: b has shape \(D=4, S=2\).*expected D = 3"):
        PRODUCT(torch.ones(2, 3), torch.ones(4, 2))
    with pytest.raises(OperandError, match="do not broadcast"):
        ADD(torch.ones(2, 3), torch.ones(2, 2))
    with pytest.raises(OperandError, match="do not broadcast"):
        SCORES(torch.ones(2, 5, 3), torch.ones(4, 6, 3), transpose_b=True)
    with pytest.raises(OperandError, match="float64"):
        ADD(torch.ones(2), torch.ones(2, dtype=torch.float64))
