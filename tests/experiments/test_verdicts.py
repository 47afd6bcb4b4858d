"""Verdicts follow from the numbers: invented results on both sides of each line."""

from __future__ import annotations

import pytest

from headcount.experiments import crossover, heads, scaling
from headcount.experiments.result import FAILS, HOLDS, LIMIT, OPEN, Spread


def scaling_runs(none: int | None, root: int | None, full: int | None) -> scaling.Runs:
    names = {scaling.NONE: none, scaling.ROOT: root, scaling.FULL: full}
    return {
        ("adam", 64, name): [
            scaling.Run(start_deviation=1.0, start_gradient=1.0, loss=1.0, steps_to_goal=steps)
        ]
        * 3
        for name, steps in names.items()
    }


@pytest.mark.parametrize(
    ("none", "root", "full", "verdict", "words"),
    [
        (None, 100, None, HOLDS, "none never, 1/sqrt 100, 1/d never"),
        (None, 100, 200, LIMIT, "1/d learns the task too"),
        (300, 100, None, LIMIT, "slows training; it stops it nowhere"),
        (90, 100, 110, FAILS, "costs nothing"),
        (None, None, None, OPEN, "decide nothing"),
    ],
)
def test_scaling(none: int | None, root: int | None, full: int | None, verdict: str, words: str) -> None:
    found, reason = scaling.judge(scaling_runs(none, root, full), ("adam",), 64)
    assert found == verdict
    assert words in reason


def head_runs(one: float, four: float, steps_one: int | None, steps_four: int | None) -> heads.Runs:
    def run(right: float, steps: int | None) -> list[heads.Run]:
        return [heads.Run(parameters=1, far=right, near=right, together=right, steps_to_goal=steps)] * 3

    return {(1, 1): run(one, steps_one), (1, 4): run(four, steps_four)}


@pytest.mark.parametrize(
    ("runs", "verdict", "words"),
    [
        (head_runs(0.2, 1.0, None, 100), HOLDS, "N = 1 0.200, N = 4 1.000"),
        (head_runs(1.0, 1.0, 300, 100), LIMIT, "300 against 100 steps"),
        (head_runs(1.0, 1.0, 90, 100), FAILS, "not better"),
        (head_runs(0.2, 0.3, None, None), OPEN, "Too few steps"),
    ],
)
def test_heads(runs: heads.Runs, verdict: str, words: str) -> None:
    found, reason = heads.judge(runs, (1, 4), (1,), 500)
    assert found == verdict
    assert words in reason


@pytest.mark.parametrize(
    ("times", "longest", "verdict"),
    [
        ((2000, 2300, 2500), 4096, HOLDS),
        ((600, 1500, 2200), 4096, LIMIT),
        ((600, 0, None), 4096, FAILS),
        ((600, None, None), 1024, OPEN),
    ],
)
def test_crossover(times: tuple[float | None, ...], longest: int, verdict: str) -> None:
    crossings = {
        (name, "core"): Spread.of([time]) for name, time in zip(crossover.KERNELS, times, strict=True)
    }
    assert crossover.judge(2304, crossings, longest)[0] == verdict
