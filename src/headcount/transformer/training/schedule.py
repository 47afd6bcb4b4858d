"""Learning rates over the steps, counted from 1. All rise linearly over ``warmup`` steps to ``peak``.

    inverse_sqrt   peak min(s / w, sqrt(w / s))        with peak = (D w)^-1/2 this is the paper's equation 3:
                                                       D^-1/2 min(s^-1/2, s w^-3/2)
    cosine         falls from peak to peak / 10 along half a cosine at the last step
    constant       stays at peak

Sources: Vaswani et al. 2017, 5.3; Loshchilov and Hutter 2017 (cosine).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from headcount.errors import UnknownNameError, UsageError
from headcount.record import Record

FLOOR = 0.1


def published_peak(width: int, warmup: int) -> float:
    """The highest rate of the paper's equation 3: (D w)^-1/2, reached at step w."""
    return 1 / math.sqrt(width * warmup)


def _inverse_sqrt(step: int, warmup: int, steps: int) -> float:
    return math.sqrt(max(warmup, 1) / step)


def _cosine(step: int, warmup: int, steps: int) -> float:
    share = min(1.0, (step - warmup) / max(1, steps - warmup))
    return FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * share)) / 2


def _constant(step: int, warmup: int, steps: int) -> float:
    return 1.0


# Name -> share of the peak after the warm-up.
SCHEDULES: dict[str, Callable[[int, int, int], float]] = {
    "inverse_sqrt": _inverse_sqrt,
    "cosine": _cosine,
    "constant": _constant,
}


class Schedule(Record):
    """``rate(step)`` of a named schedule; ``steps`` is the last step, which only cosine looks at."""

    name: str
    peak: float
    warmup: int
    steps: int

    def _check(self) -> None:
        if self.name not in SCHEDULES:
            raise UnknownNameError(what="schedule", given=self.name, allowed=SCHEDULES)
        if not 0 < self.peak < math.inf or self.warmup < 0 or self.steps < 1:
            raise UsageError(
                f"schedule: peak rate {self.peak} must be positive, warm-up {self.warmup} 0 or more, "
                f"steps {self.steps} 1 or more"
            )

    def rate(self, step: int) -> float:
        """The learning rate of step ``step`` = 1, 2, ..."""
        if step < self.warmup:
            return self.peak * step / self.warmup
        return self.peak * SCHEDULES[self.name](step, self.warmup, self.steps)
