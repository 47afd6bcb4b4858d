"""Learning rates against the printed equation and PyTorch's own schedulers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from headcount.errors import HeadcountError
from headcount.transformer.training.schedule import Schedule, published_peak


def test_equation_3_of_the_paper() -> None:
    """D^-1/2 min(s^-1/2, s w^-3/2) with D = 512, w = 4,000; its peak is 6.99e-4."""
    schedule = Schedule(name="inverse_sqrt", peak=published_peak(512, 4000), warmup=4000, steps=100_000)
    for step in (1, 10, 3999, 4000, 4001, 100_000):
        assert schedule.rate(step) == pytest.approx(512**-0.5 * min(step**-0.5, step * 4000**-1.5), rel=1e-12)
    assert schedule.rate(4000) == pytest.approx(6.99e-4, rel=1e-3)


def test_cosine_equals_pytorch() -> None:
    """PyTorch's warm-up and cosine annealing, one after the other, from step 20 on."""
    schedule = Schedule(name="cosine", peak=0.5, warmup=20, steps=120)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    annealing = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100, eta_min=0.05)
    for step in range(20, 121):
        assert schedule.rate(step) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
        optimizer.step()
        annealing.step()
    assert [schedule.rate(step) for step in (1, 10, 19)] == pytest.approx([0.025, 0.25, 0.475])
    assert schedule.rate(500) == pytest.approx(0.05)


def test_no_warmup_and_constant() -> None:
    assert Schedule(name="constant", peak=0.1, warmup=0, steps=9).rate(1) == 0.1
    assert Schedule(name="inverse_sqrt", peak=0.1, warmup=0, steps=9).rate(4) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Schedule(name="cosin", peak=0.1, warmup=0, steps=9), "nearest: cosine"),
        (lambda: Schedule(name="cosine", peak=0.0, warmup=0, steps=9), "peak rate 0.0 must be positive"),
        (lambda: Schedule(name="cosine", peak=0.1, warmup=-1, steps=9), "warm-up -1"),
    ],
)
def test_refusals(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(HeadcountError, match=words):
        make()
