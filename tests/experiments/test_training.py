"""The toy task by brute force, the network's sizes, and that the training experiments are decided by their seed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from headcount.errors import UsageError
from headcount.experiments.lookup import FAR, NEAR, LookupNetwork, LookupShape, Trace, draw_batch
from headcount.experiments.registry import run
from headcount.experiments.seeds import seeded


def shape(**changes: Any) -> LookupShape:
    sizes = {
        "tokens": 8,
        "width": 32,
        "heads": 1,
        "head_width": 32,
        "value_width": 32,
        "questions": (FAR, NEAR),
    }
    return LookupShape(**{**sizes, **changes})


def test_answers_by_search() -> None:
    batch = draw_batch(3, 8, torch.Generator().manual_seed(0))
    keys, values, queries = (batch.parts[name].tolist() for name in ("key", "value", "query"))
    for row in range(3):
        assert sorted(keys[row]) == sorted(queries[row]) == list(range(8))
        for token in range(8):
            holder = keys[row].index(queries[row][token])
            assert int(batch.answers[FAR][row, token]) == values[row][holder]
            assert int(batch.answers[NEAR][row, token]) == values[row][token - 1]


def test_parameters_do_not_depend_on_the_number_of_heads() -> None:
    counts = set()
    for heads in (1, 2, 4):
        network = LookupNetwork(shape(heads=heads, head_width=32 // heads, value_width=32 // heads))
        counts.add(sum(weight.numel() for weight in network.parameters()))
    d, tables, readouts = 32, (8 + 16 + 8 + 8) * 32, 2 * (32 * 16 + 16)
    block = 4 * d * d + (2 * 4 * d * d + 4 * d + d) + 2 * 2 * d
    feed_forward_without_bias = block - 4 * d - d
    assert len(counts) == 1
    assert counts.pop() in (
        tables + block + 2 * d + readouts,
        tables + feed_forward_without_bias + 2 * d + readouts,
    )


@pytest.mark.parametrize("head_width", [64, 256])
def test_scores_start_with_the_deviation_of_the_variance_argument(head_width: int) -> None:
    batch = draw_batch(64, 16, torch.Generator().manual_seed(0))
    for scale, law in (
        (1.0, math.sqrt(head_width)),
        (None, 1.0),
        (1 / head_width, 1 / math.sqrt(head_width)),
    ):
        with seeded(0, "test", head_width):
            network = LookupNetwork(shape(tokens=16, width=64, head_width=head_width, scale=scale))
        assert network.score_deviation(batch) == pytest.approx(law, rel=0.1)


def test_steps_to_a_goal() -> None:
    trace = Trace([2.0] * 10 + [0.0] * 20, diverged=False)
    # The mean of ten falls below 0.5 once eight of them are 0.
    assert trace.steps_to(0.5) == 18
    assert trace.steps_to(0.0) is None
    assert trace.last() == 0.0
    assert Trace([math.inf], diverged=True).last() is None


SMALL: dict[str, dict[str, Any]] = {
    "scaling": {"steps": 20, "head_widths": (16,), "tokens": 4},
    "heads": {"steps": 20, "heads": (1, 2), "blocks": (0, 1), "width": 16, "tokens": 4},
    "norms": {"depths": (2, 4), "width": 16, "tokens": 8},
}


@pytest.mark.parametrize("name", sorted(SMALL))
def test_decided_by_the_seed(name: str) -> None:
    first = run(name, seed=1, repeats=1, quick=True, **SMALL[name])
    assert first == run(name, seed=1, repeats=1, quick=True, **SMALL[name])
    assert first.tables != run(name, seed=2, repeats=1, quick=True, **SMALL[name]).tables


def test_global_generator_is_left_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    run("scaling", repeats=1, quick=True, **SMALL["scaling"])
    assert torch.equal(torch.rand(2), expected)


def test_too_few_steps_decide_nothing() -> None:
    assert run("scaling", repeats=1, quick=True, **SMALL["scaling"]).verdict == "not decided"
    assert run("heads", repeats=1, quick=True, **SMALL["heads"]).verdict == "not decided"


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(UsageError, match="--heads 3 does not divide --width 32"):
        run("heads", quick=True, heads=(1, 3))
    with pytest.raises(UsageError, match="at least two"):
        run("heads", quick=True, heads=(2,))
