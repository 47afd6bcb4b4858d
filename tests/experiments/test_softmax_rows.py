"""Saturation and gradients against closed forms, PyTorch's autograd and published values of this experiment."""

from __future__ import annotations

import math

import pytest
import torch

from headcount.experiments.gradients import gradients_of, mean_law, row_gradients
from headcount.experiments.registry import run
from headcount.experiments.saturation import row_statistics, saturation_of


def test_statistics_of_flat_and_one_hot_rows() -> None:
    n = 8
    rows = torch.stack([torch.full((n,), 1 / n, dtype=torch.float64), torch.eye(n, dtype=torch.float64)[2]])
    found = {name: values.tolist() for name, values in row_statistics(rows).items()}
    assert found["max_probability"] == pytest.approx([1 / n, 1])
    assert found["entropy"] == pytest.approx([1, 0])
    assert found["trace"] == pytest.approx([1 - 1 / n, 0])
    assert found["jacobian"] == pytest.approx([math.sqrt(n - 1) / n, 0])


def test_statistics_against_the_jacobian_of_pytorch() -> None:
    scores = torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 2
    jacobian = torch.autograd.functional.jacobian(lambda s: torch.softmax(s, -1), scores)
    found = row_statistics(torch.softmax(scores, -1))
    assert float(found["trace"]) == pytest.approx(float(jacobian.trace()))
    assert float(found["jacobian"]) == pytest.approx(float(jacobian.norm()))


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_gradients_against_autograd(scale: float) -> None:
    stream = torch.Generator().manual_seed(1)
    q, k = (torch.randn(2, 5, 16, dtype=torch.float64, generator=stream) for _ in range(2))
    d_a = torch.randn(2, 5, 5, dtype=torch.float64, generator=stream)
    q.requires_grad_()
    s = (q @ k.mT * scale).detach().requires_grad_()
    torch.softmax(s, -1).backward(d_a)
    torch.softmax(q @ k.mT * scale, -1).backward(d_a)
    _, d_s, d_q = row_gradients(q.detach(), k, d_a, scale)
    torch.testing.assert_close(d_s, s.grad)
    torch.testing.assert_close(d_q, q.grad)


# Measured apart from this code: n = 64, unscaled; the acceptance band is +-0.02.
@pytest.mark.parametrize(("width", "largest"), [(64, 0.793), (128, 0.857), (1024, 0.948)])
def test_saturation_of_64_keys(width: int, largest: float) -> None:
    found = saturation_of(seed=5, repeat=0, width=width, keys=64, rows=2048)
    assert found["unscaled"]["max_probability"] == pytest.approx(largest, abs=0.02)
    assert found["scaled"]["max_probability"] == pytest.approx(0.1065, abs=0.01)


def test_mean_law_of_two_keys() -> None:
    width, rows = 256, 40_000
    found = gradients_of(seed=5, repeat=0, width=width, keys=2, rows=rows)["unscaled"]
    law = 1 / math.sqrt(4 * math.pi * width)
    # The integral of (p (1 - p))^2 over the gap is 1/6, which gives the variance of one row.
    assert found["p_q"] == pytest.approx(law, abs=4 * math.sqrt(law / 6 / rows))
    # ds = p (1 - p) (da_1 - da_2) (1, -1) and E|da_1 - da_2| = 2 / sqrt(pi).
    assert found["mean"] == pytest.approx(math.sqrt(2) * 2 / math.sqrt(math.pi) * law, rel=0.1)


def test_mean_law_at_known_distributions() -> None:
    # |q| is Rayleigh for 2 components, E[1/|q|] = sqrt(pi / 2), and Maxwell for 3, E[1/|q|] = sqrt(2 / pi).
    assert mean_law(2) == pytest.approx(math.sqrt(math.pi / 2) / math.sqrt(4 * math.pi))
    assert mean_law(3) == pytest.approx(math.sqrt(2 / math.pi) / math.sqrt(4 * math.pi))
    assert mean_law(10**6) == pytest.approx(1 / math.sqrt(4 * math.pi * 10**6), rel=1e-5)


def test_the_median_dies_and_the_mean_does_not() -> None:
    found = gradients_of(seed=5, repeat=0, width=1024, keys=64, rows=8192)
    raw, scaled = found["unscaled"], found["scaled"]
    assert scaled["median"] == pytest.approx(0.169, abs=0.01)
    assert 1e-4 < raw["median"] < 3e-4
    assert raw["dead_percent"] == pytest.approx(34, abs=3)
    assert scaled["dead_percent"] == 0
    assert raw["mean"] == pytest.approx(0.056, abs=0.01)
    assert raw["rms_d_q"] > 10 * scaled["rms_d_q"]


def test_verdicts() -> None:
    assert run("gradients", quick=True, repeats=1).verdict == "holds with a limit"
    assert run("saturation", quick=True, repeats=1).verdict == "holds with a limit"
