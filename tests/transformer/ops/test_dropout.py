"""Dropout: the gradient uses the mask of the forward; expectation, share and seed are what they should be."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from headcount.errors import UsageError
from headcount.transformer.ops.dropout import dropout
from headcount.transformer.ops.operation import differentiate


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(
    shape=st.lists(st.integers(1, 4), max_size=3),
    p=st.floats(0, 0.9),
    mode=st.sampled_from(["by_hand", "autograd"]),
)
def test_gradient_goes_through_the_same_mask(shape: list[int], p: float, mode: str) -> None:
    x = torch.randn(shape, dtype=torch.float64).add(3.0).requires_grad_()
    with differentiate(mode):
        # The same seed on each call, so finite differences see one fixed mask.
        assert gradcheck(lambda y: dropout(y, p, generator=seeded()), (x,))
        y = dropout(x, p, generator=seeded())
        y.sum().backward()
    mask = y.detach() / x.detach()
    torch.testing.assert_close(x.grad, mask, rtol=0, atol=1e-12)
    grown = 1 / (1 - p)
    assert ((mask == 0) | ((mask - grown).abs() < 1e-12)).all()


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_share_and_expectation(p: float) -> None:
    count = 200_000
    y = dropout(torch.ones(count), p, generator=seeded())
    spread = (p * (1 - p) / count) ** 0.5
    assert (y == 0).float().mean().item() == pytest.approx(p, abs=5 * spread)
    assert y.mean().item() == pytest.approx(1, abs=5 * spread / (1 - p))


def test_seed_decides() -> None:
    x = torch.ones(100)
    assert torch.equal(dropout(x, 0.5, generator=seeded(3)), dropout(x, 0.5, generator=seeded(3)))
    assert not torch.equal(dropout(x, 0.5, generator=seeded(3)), dropout(x, 0.5, generator=seeded(4)))


def test_nothing_dropped_is_the_input() -> None:
    x = torch.randn(5, requires_grad=True)
    y = dropout(x, 0.0)
    assert torch.equal(y, x)
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [1] * 5


def test_half_precision_drops_the_right_share() -> None:
    y = dropout(torch.ones(400_000, dtype=torch.float16), 1e-3, generator=seeded())
    assert y.dtype == torch.float16
    assert (y == 0).float().mean().item() == pytest.approx(1e-3, abs=3e-4)


@pytest.mark.parametrize("p", [-0.1, 1.0, 1.5, float("nan")])
def test_refused_probabilities(p: float) -> None:
    with pytest.raises(UsageError, match="give 0 <= p < 1"):
        dropout(torch.ones(2), p)
