"""Sample moments of q.k against their laws; tolerances are standard errors from the laws' own fourth moments."""

from __future__ import annotations

import math

import pytest

from headcount.experiments.registry import run
from headcount.experiments.seeds import generator
from headcount.experiments.variance import ratio_error, score_moments

PAIRS = 50_000


@pytest.mark.parametrize("kind", ["normal", "uniform", "plus_minus_one"])
def test_variance_is_d_k(kind: str) -> None:
    widths = (2, 16, 64)
    found = score_moments(kind, widths=widths, pairs=PAIRS, rho=0.0, stream=generator(7, kind))
    for width in widths:
        # The largest of the three kurtoses (normal products: 9) bounds the standard error of all.
        tolerance = 4 * math.sqrt((6 / width + 2) / PAIRS)
        assert found[width].variance / width == pytest.approx(1, abs=tolerance)
        assert found[width].mean == pytest.approx(0, abs=4 * math.sqrt(width / PAIRS))


@pytest.mark.parametrize("rho", [0.1, 0.5, 1.0])
def test_correlation_shifts_the_mean_and_widens(rho: float) -> None:
    width = 64
    found = score_moments("normal", widths=(width,), pairs=PAIRS, rho=rho, stream=generator(7, rho))[width]
    variance = width * (1 + rho * rho)
    assert found.mean == pytest.approx(rho * width, abs=4 * math.sqrt(variance / PAIRS))
    assert found.variance == pytest.approx(variance, rel=0.05)


def test_a_fully_correlated_pair_is_a_chi_square() -> None:
    # rho = 1: s = |q|^2, chi-square with d_k degrees of freedom: mean d_k, variance 2 d_k, fourth cumulant 48 d_k.
    assert ratio_error(8, PAIRS, rho=1.0) == pytest.approx(math.sqrt((48 / 8 + 8) / PAIRS))


@pytest.mark.parametrize(("kind", "kurtosis"), [("normal", 9.0), ("uniform", 3.24), ("plus_minus_one", 1.0)])
def test_error_of_one_product_comes_from_its_kurtosis(kind: str, kurtosis: float) -> None:
    # Var of a sample variance is (mu_4 - sigma^4) / m for a mean that is known; mu_4 = g^2 for one product.
    assert ratio_error(1, PAIRS, kind) == pytest.approx(math.sqrt((kurtosis - 1) / PAIRS))


def test_result_says_where_the_claim_ends() -> None:
    result = run("variance", seed=3, repeats=2, pairs=20_000, widths=(2, 128), rho=(0.5,))
    assert result.verdict == "holds with a limit"
    assert result.table(1).number("scaled_mean", rho=0.5, d_k=128) == pytest.approx(
        0.5 * math.sqrt(128), rel=0.02
    )
    assert result.table().number("over_d_k", d_k=128) == pytest.approx(1 / 128, rel=0.05)
    assert run("variance", quick=True, repeats=1, rho=(0.0,)).verdict == "holds"
