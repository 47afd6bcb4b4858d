"""Norms, equivariance, counts and crossings against theory, PyTorch's FLOP counter and a published configuration."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from headcount.errors import UnsupportedModelError, UsageError
from headcount.experiments.crossover import layer_widths
from headcount.experiments.norms import slope
from headcount.experiments.recurrent import macs
from headcount.experiments.registry import run
from headcount.experiments.stopwatch import crossing
from headcount.spec.reader import read_model


def test_slope_of_power_laws() -> None:
    depths = (2, 6, 24)
    for power in (-0.5, 0.0, 1.3):
        assert slope(depths, [3 * depth**power for depth in depths]) == pytest.approx(power, abs=1e-12)


def test_gradient_of_the_last_block_over_depth() -> None:
    """Xiong et al. 2020, theorem 1: constant after post-norm, 1 / sqrt(L) with pre-norm."""
    result = run("norms", seed=4, repeats=3, depths=(2, 6, 12, 24))
    assert result.table(1).number("last", norm="post") == pytest.approx(0, abs=0.3)
    assert result.table(1).number("last", norm="pre") == pytest.approx(-0.5, abs=0.25)
    assert result.verdict == "does not hold"


def test_order_is_seen_with_positions_or_a_causal_mask_only() -> None:
    result = run("equivariance", seed=4, quick=True)
    errors = dict(zip(result.table().column("network"), result.table().column("error"), strict=True))
    for name, error in errors.items():
        blind = name in ("attention alone", "encoder, no positions")
        assert (error.high < 1e-12) if blind else (error.low > 1e-2), name  # type: ignore[union-attr, operator]
    for shift in (1, 100, 10_000):
        # Rounding of the angle grows with the position: 1e4 times the spacing of float64.
        assert result.table(1).number("error", positions="rotary", shift=shift) < 1e-11
        assert result.table(1).number("error", positions="sinusoidal", shift=shift) > 1e-2
    with pytest.raises(UsageError, match="multiple of 8"):
        run("equivariance", width=12)


def test_multiply_adds_against_the_flop_counter() -> None:
    n, d = 12, 8
    x, weight = torch.randn(n, d), torch.randn(d, d)
    with FlopCounterMode(display=False) as recurrent:
        state = torch.zeros(1, d)
        for step in range(n):
            state = torch.tanh(x[step : step + 1] @ weight + state @ weight)
    with FlopCounterMode(display=False) as core:
        torch.softmax(x @ x.mT, -1) @ x
    with FlopCounterMode(display=False) as layer:
        torch.softmax((x @ weight) @ (x @ weight).mT, -1) @ (x @ weight) @ weight
    found = macs(n, d)
    assert 2 * found["recurrent"] == recurrent.get_total_flops()
    assert 2 * found["core"] == core.get_total_flops()
    assert 2 * found["layer"] == layer.get_total_flops()
    assert macs(d, d)["core"] == macs(d, d)["recurrent"]


def test_crossing_of_power_laws() -> None:
    lengths = (2, 4, 16, 64)
    square, line = [n**2 for n in lengths], [10 * n for n in lengths]
    assert crossing(lengths, square, line) == pytest.approx(10)
    assert crossing(lengths, line, [100 * n for n in lengths]) is None
    assert crossing(lengths, line, [1.0] * 4) == 0
    # A curve that dips below again has crossed at the last time.
    assert crossing((1, 10, 100, 1000), [2, 0.5, 0.5, 2], [1, 1, 1, 1]) == pytest.approx(100 * 10**0.5)


def test_recurrent_result_counts_and_times() -> None:
    result = run("recurrent", quick=True, repeats=1, width=16, lengths=(8, 32))
    assert result.timed
    assert result.table().row(n=32)["recurrent_steps"] == 32
    assert all(cell.median > 0 for cell in result.table(1).column("recurrent_ms"))  # type: ignore[union-attr, operator]


def test_crossover_reads_the_published_widths() -> None:
    """config.json of HuggingFaceTB/SmolLM2-135M: 576, 9 heads, 3 key/value heads, 1,536."""
    widths = layer_widths(read_model("smollm2-135m"))
    assert widths.as_dict() == {
        "width": 576,
        "heads": 9,
        "kv_heads": 3,
        "head_dim": 64,
        "value_dim": 64,
        "inner": 1536,
        "matrices": 3,
    }
    result = run("crossover", quick=True, repeats=1, lengths=(16, 32))
    assert result.table(1).row(kernel="fused")["flops"] == 3 * 576 * 1536 // (9 * 2 * 64)
    assert result.verdict == "not decided"


@pytest.mark.parametrize("name", ["deepseek-v3", "mixtral-8x7b", "llama-3.1-405b"])
def test_models_that_cannot_be_timed_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedModelError, match=name):
        layer_widths(read_model(name))
