"""Var(q.k) = d_k: the reason for 1/sqrt(d_k), tested on three distributions, and broken by correlation.

For independent components of mean 0 and variance 1, s = sum_i q_i k_i is a sum of d_k terms of variance 1:

    Var(s) = d_k        Var(s / sqrt(d_k)) = 1        Var(s / d_k) = 1 / d_k

How exact a run of m pairs can be is known too. With kurtosis g of a component, a product q_i k_i has kurtosis g^2,
a sum of d_k of them has fourth cumulant d_k (g^2 - 3), and the sample variance a standard error of
sqrt((kappa_4 + 2 Var^2) / m): g = 3 for normal, 9/5 for uniform, 1 for +-1 components.

Correlated normal components (correlation rho, as training brings about):

    E[s] = rho d_k     Var(s) = d_k (1 + rho^2)     kappa_4 = 3 d_k ((1 + rho)^4 + (1 - rho)^4)

because q k = ((q + k)^2 - (q - k)^2) / 4 is a difference of two scaled chi-squares.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headcount.experiments.result import FAILS, HOLDS, LIMIT, Cell, Column, Result, Spread, Table
from headcount.experiments.seeds import generator
from headcount.record import Record

CLAIM = (
    "A score q.k of independent components with mean 0 and variance 1 has variance d_k; dividing by sqrt(d_k), and by "
    "no other constant, makes it 1 at every d_k; dividing by d_k makes it 1/d_k."
)
KURTOSIS = {"normal": 3.0, "uniform": 9 / 5, "plus_minus_one": 1.0}
# About a hundred cells are judged at once; chance alone passes 5 standard errors in one run of 20,000.
BAND = 5.0
_CHUNK = 2**21
_SHOWN = (16, 128, 1024)


class Moments(Record):
    """Mean and variance of the scores of one repeat at one width."""

    mean: float
    variance: float


def score_moments(
    kind: str, *, widths: tuple[int, ...], pairs: int, rho: float, stream: torch.Generator
) -> dict[int, Moments]:
    """Moments of q.k at every width. One draw serves all widths: d_k components are the first d_k of the widest."""
    rows = max(1, _CHUNK // widths[-1])
    total = torch.zeros(len(widths), dtype=torch.float64)
    square = torch.zeros(len(widths), dtype=torch.float64)
    cuts = [b - a for a, b in zip((0, *widths[:-1]), widths, strict=True)]
    done = 0
    while done < pairs:
        count = min(rows, pairs - done)
        q = _draw(kind, (count, widths[-1]), stream)
        k = _draw(kind, (count, widths[-1]), stream)
        if rho:
            k = rho * q + math.sqrt(1 - rho * rho) * k
        parts = torch.stack([part.sum(1) for part in torch.split_with_sizes(q * k, cuts, dim=1)]).double()
        s = parts.cumsum(0)
        total += s.sum(1)
        square += s.square().sum(1)
        done += count
    mean = total / pairs
    variance = (square - pairs * mean.square()) / (pairs - 1)
    return {
        w: Moments(mean=m, variance=v)
        for w, m, v in zip(widths, mean.tolist(), variance.tolist(), strict=True)
    }


def _draw(kind: str, shape: tuple[int, int], stream: torch.Generator) -> Tensor:
    """Components of mean 0 and variance 1."""
    if kind == "normal":
        return torch.randn(shape, generator=stream)
    if kind == "uniform":
        return torch.rand(shape, generator=stream).sub_(0.5).mul_(math.sqrt(12))
    return torch.randint(0, 2, shape, generator=stream, dtype=torch.int8).mul_(2).sub_(1).float()


def ratio_error(width: int, pairs: int, kind: str = "normal", rho: float = 0.0) -> float:
    """Standard error of the sample variance of s, divided by d_k (module docstring)."""
    if rho:
        fourth = 3 * ((1 + rho) ** 4 + (1 - rho) ** 4)
    else:
        fourth = KURTOSIS[kind] ** 2 - 3
    return math.sqrt((fourth / width + 2 * (1 + rho * rho) ** 2) / pairs)


def measure(
    *, seed: int, repeats: int, pairs: int, widths: tuple[int, ...], rho: tuple[float, ...]
) -> Result:
    """Run the experiment: options are those of the registry."""
    independent, worst = _independent(seed, repeats, pairs, widths)
    tables = [independent]
    correlations = tuple(value for value in rho if value)
    if correlations:
        table, worst_correlated = _correlated(seed, repeats, pairs, widths, correlations)
        tables.append(table)
        worst = max(worst, worst_correlated)
    verdict, reason = _judge(tables, worst)
    return Result(
        name="variance",
        claim=CLAIM,
        seed=seed,
        repeats=repeats,
        settings={"pairs": pairs, "widths": widths, "rho": rho},
        tables=tuple(tables),
        verdict=verdict,
        reason=reason,
        notes=(
            "Any c sqrt(d_k) keeps the variance the same at every d_k; c = 1 is the choice that makes it 1.",
            "The widths of one repeat share their draws, so their errors go together.",
        ),
    )


def _independent(seed: int, repeats: int, pairs: int, widths: tuple[int, ...]) -> tuple[Table, float]:
    """Var(s) / d_k by distribution, and the largest deviation in standard errors."""
    ratios: dict[str, list[dict[int, float]]] = {}
    for kind in KURTOSIS:
        ratios[kind] = []
        for repeat in range(repeats):
            stream = generator(seed, "variance", kind, repeat)
            found = score_moments(kind, widths=widths, pairs=pairs, rho=0.0, stream=stream)
            ratios[kind].append({width: found[width].variance / width for width in widths})
    rows: list[tuple[Cell, ...]] = []
    worst = 0.0
    for width in widths:
        by_kind = {kind: [one[width] for one in ratios[kind]] for kind in KURTOSIS}
        off = max(
            abs(value - 1) / ratio_error(width, pairs, kind)
            for kind, values in by_kind.items()
            for value in values
        )
        worst = max(worst, off)
        spreads = {kind: Spread.of(values) for kind, values in by_kind.items()}
        half_width = 1.96 * ratio_error(width, pairs)
        rows.append((width, *spreads.values(), half_width, off, spreads["normal"].over(width)))
    columns = (
        Column(name="d_k", header="d_k", form="d"),
        Column(name="normal", header="normal", form=".4f"),
        Column(name="uniform", header="uniform", form=".4f"),
        Column(name="plus_minus_one", header="+-1", form=".4f"),
        Column(name="band_95", header="95 % band", form="+-.4f"),
        Column(name="largest_error", header="worst, s.e.", form=".1f"),
        Column(name="over_d_k", header="Var(s/d_k)", form=".3g"),
    )
    note = "Theory: 1 in the ratio columns (which are also Var(s/sqrt(d_k))), 1/d_k in the last."
    return Table(
        title="Var(s) / d_k, independent components", columns=columns, rows=tuple(rows), note=note
    ), worst


def _correlated(
    seed: int, repeats: int, pairs: int, widths: tuple[int, ...], rho: tuple[float, ...]
) -> tuple[Table, float]:
    """Mean and variance of normal pairs with correlation rho at a few widths."""
    shown = tuple(width for width in _SHOWN if width in widths) or (widths[-1],)
    rows: list[tuple[Cell, ...]] = []
    worst = 0.0
    for value in rho:
        draws = [
            score_moments(
                "normal", widths=shown, pairs=pairs, rho=value, stream=generator(seed, "rho", value, repeat)
            )
            for repeat in range(repeats)
        ]
        for width in shown:
            law = 1 + value * value
            means = [draw[width].mean / width for draw in draws]
            ratios = [draw[width].variance / width for draw in draws]
            mean_error = math.sqrt(law / width / pairs)
            off = max(
                *(abs(mean - value) / mean_error for mean in means),
                *(abs(ratio - law) / ratio_error(width, pairs, rho=value) for ratio in ratios),
            )
            worst = max(worst, off)
            scaled = Spread.of([mean * math.sqrt(width) for mean in means])
            rows.append((value, width, Spread.of(means), Spread.of(ratios), law, scaled, off))
    columns = (
        Column(name="rho", header="rho", form=".2f"),
        Column(name="d_k", header="d_k", form="d"),
        Column(name="mean_over_d_k", header="E[s]/d_k", form=".4f"),
        Column(name="ratio", header="Var(s)/d_k", form=".4f"),
        Column(name="theory", header="1+rho^2", form=".4f"),
        Column(name="scaled_mean", header="E[s/sqrt(d_k)]", form=".2f"),
        Column(name="largest_error", header="worst, s.e.", form=".1f"),
    )
    note = "Theory: E[s]/d_k = rho, so the scaled score has mean rho sqrt(d_k)."
    return Table(title="Correlated normal components", columns=columns, rows=tuple(rows), note=note), worst


def _judge(tables: list[Table], worst: float) -> tuple[str, str]:
    """Compare with theory; correlation is the limit of the claim."""
    if worst > BAND:
        return FAILS, f"a cell lies {worst:.1f} standard errors from its law; chance allows {BAND:.0f}"
    agreed = f"every cell lies within {worst:.1f} standard errors of its law"
    if len(tables) == 1:
        return HOLDS, f"{agreed} for all three distributions"
    last = tables[1].as_rows()[-1]
    scaled = tables[1].number("scaled_mean", rho=last["rho"], d_k=last["d_k"])
    return LIMIT, (
        f"{agreed}, but only independent components have variance d_k: at rho = {last['rho']} and d_k = {last['d_k']} "
        f"the scaled score has mean {scaled:.2f}, so sqrt(d_k) is right at initialisation, not after training aligns "
        "q and k"
    )
