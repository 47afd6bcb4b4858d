"""Seconds of a call, and where two measured curves cross."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import NamedTuple

import torch

# A call shorter than this is repeated until the timer's resolution no longer matters.
SHORTEST = 2e-3


@contextmanager
def on_threads(count: int) -> Iterator[None]:
    """PyTorch's number of threads inside the block, as it was after it.

    One thread is the default of the timed experiments: with more, every small operation waits for all of them, and on a
    machine that others use too that wait is a scheduler's time slice (measured 2026-11-30 on 2 busy cores: a product of
    0.4 ms took 8 ms, whatever its size).
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Plan(NamedTuple):
    """How one call is measured: the least of ``tries`` means over ``times`` calls."""

    times: int
    tries: int


def plan_for(call: Callable[[], object]) -> Plan:
    """Choose from the call's own length; also warms it up."""
    once = seconds(call, Plan(1, 1))
    if once < 0.2:
        once = max(seconds(call, Plan(1, 1)), 1e-7)
    # What else runs on the machine only ever adds time, so the least of several tries is the call's own.
    return Plan(times=max(1, math.ceil(SHORTEST / once)), tries=5 if once < 0.02 else 3 if once < 0.2 else 1)


def seconds(call: Callable[[], object], plan: Plan) -> float:
    """Seconds of one call."""
    found = []
    for _ in range(plan.tries):
        begin = perf_counter()
        for _ in range(plan.times):
            call()
        found.append((perf_counter() - begin) / plan.times)
    return min(found)


def interleaved(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Time every call once per repeat, in turn: a slow moment of the machine meets them all."""
    plans = {name: plan_for(call) for name, call in calls.items()}
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            found[name].append(seconds(call, plans[name]))
    return found


def crossing(lengths: Sequence[int], rising: Sequence[float], other: Sequence[float]) -> float | None:
    """Where ``rising`` overtakes ``other`` for good, by straight lines in log-log; None if it is below at the end.

    0 when it is above at every length.
    """
    gaps = [math.log(a / b) for a, b in zip(rising, other, strict=True)]
    if gaps[-1] < 0:
        return None
    below = [index for index, gap in enumerate(gaps) if gap < 0]
    if not below:
        return 0.0
    left = below[-1]
    share = -gaps[left] / (gaps[left + 1] - gaps[left])
    return math.exp(math.log(lengths[left]) * (1 - share) + math.log(lengths[left + 1]) * share)
