"""Does the gradient through softmax vanish without the scaling? The typical row's does; the mean does not.

For a row a = softmax(s) and an upstream gradient da of independent normal components with variance 1:

    ds = a * (da - sum_k a_k da_k)               the hand-derived backward of ops/softmax.py
    dQ = c sum_j ds_j k_j                        c = 1 unscaled, 1/sqrt(d_k) scaled: the chain rule divides too

A row is called dead when no |ds_j| exceeds 1e-6. With n = 2 keys ds = p (1 - p) (da_1 - da_2) (1, -1), and the gap of
the two scores is normal with variance 2 |q|^2; as it widens,

    E[p (1 - p)]  ->  density of the gap at 0, times integral of p (1 - p)  =  E[1/|q|] / sqrt(4 pi)  ~  1 / sqrt(4 pi d_k)

since p (1 - p) is the derivative of the logistic function and integrates to 1. The mean falls like 1/sqrt(d_k): it is
carried by the few rows whose two scores are close. The median falls like exp(-gap): 3.4e-4 at a gap of 8, 1.3e-14 at 32.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headcount.experiments.result import FAILS, HOLDS, LIMIT, Cell, Column, Result, Spread, Table
from headcount.experiments.score_rows import DTYPE, SCALED, UNSCALED, sequences
from headcount.transformer.ops import softmax

CLAIM = (
    "Without the scaling the gradient through softmax vanishes almost everywhere as d_k grows, and large blocks of the "
    "model receive no gradient; with it the gradient does not depend on d_k."
)
DEAD = 1e-6
QUANTILES = {"q05": 0.05, "q25": 0.25, "median": 0.5, "q75": 0.75, "q95": 0.95}
# Below a hundredth a median counts as vanished; a mean above a tenth of the scaled one does not.
VANISHED, KEPT = 0.01, 0.1


def row_gradients(q: Tensor, k: Tensor, d_a: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``(a, dS, dQ)`` for scores q k^T scale, by the hand-derived backward."""
    a, saved = softmax.forward(q @ k.mT * scale)
    (d_s,) = softmax.backward(saved, d_a)
    return a, d_s, d_s @ k * scale


def gradients_of(*, seed: int, repeat: int, width: int, keys: int, rows: int) -> dict[str, dict[str, float]]:
    """Quantiles and mean of |ds|, share of dead rows, rms of dQ, mean of p (1 - p); unscaled and scaled."""
    norms: dict[str, list[Tensor]] = {UNSCALED: [], SCALED: []}
    sums = {name: {"dead": 0.0, "square": 0.0, "p_q": 0.0, "rows": 0, "entries": 0} for name in norms}
    for q, k, stream in sequences("gradients", seed=seed, repeat=repeat, width=width, keys=keys, rows=rows):
        d_a = torch.randn((*q.shape[:2], keys), generator=stream, dtype=DTYPE)
        for name, scale in ((UNSCALED, 1.0), (SCALED, 1 / math.sqrt(width))):
            a, d_s, d_q = row_gradients(q, k, d_a, scale)
            norms[name].append(d_s.norm(dim=-1).flatten())
            one = sums[name]
            one["dead"] += int((d_s.abs().amax(-1) <= DEAD).sum())
            one["square"] += float(d_q.square().sum())
            one["p_q"] += float((a[..., 0] * (1 - a[..., 0])).sum())
            one["rows"] += d_s[..., 0].numel()
            one["entries"] += d_q.numel()
    answer = {}
    for name, parts in norms.items():
        joined, one = torch.cat(parts), sums[name]
        levels = joined.quantile(torch.tensor(list(QUANTILES.values()), dtype=DTYPE)).tolist()
        answer[name] = dict(zip(QUANTILES, levels, strict=True)) | {
            "mean": float(joined.mean()),
            "dead_percent": 100 * one["dead"] / one["rows"],
            "rms_d_q": math.sqrt(one["square"] / one["entries"]),
            "p_q": one["p_q"] / one["rows"],
        }
    return answer


def mean_law(width: int) -> float:
    """E[1/|q|] / sqrt(4 pi): what E[p (1 - p)] of two unscaled keys tends to; infinite for d_k = 1."""
    if width == 1:
        return math.inf
    inverse = math.exp(math.lgamma((width - 1) / 2) - math.lgamma(width / 2)) / math.sqrt(2)
    return inverse / math.sqrt(4 * math.pi)


def measure(*, seed: int, repeats: int, widths: tuple[int, ...], keys: tuple[int, ...], rows: int) -> Result:
    """Run the experiment: options are those of the registry."""
    draws = {
        (n, width): [
            gradients_of(seed=seed, repeat=repeat, width=width, keys=n, rows=rows)
            for repeat in range(repeats)
        ]
        for n in keys
        for width in widths
    }
    tables = [_norms(draws, widths, n) for n in keys]
    tables.append(_queries(draws))
    if 2 in keys:
        tables.append(_law(draws, widths))
    # The chapters speak of typical rows: the key count in the middle of those asked for is judged.
    judged = len(keys) // 2
    verdict, reason = _judge(tables[judged], tables[len(keys)], widths, keys[judged])
    return Result(
        name="gradients",
        claim=CLAIM,
        seed=seed,
        repeats=repeats,
        settings={"widths": widths, "keys": keys, "rows": rows, "dead_below": DEAD},
        tables=tuple(tables),
        verdict=verdict,
        reason=reason,
        notes=("Which number is plotted decides what is seen: the mean alone would hide the dead rows.",),
    )


def _spread(draws: list[dict[str, dict[str, float]]], name: str, key: str) -> Spread:
    return Spread.of([draw[name][key] for draw in draws])


def _norms(
    draws: dict[tuple[int, int], list[dict[str, dict[str, float]]]], widths: tuple[int, ...], n: int
) -> Table:
    """Quantiles, mean and dead rows, one line per width and scaling."""
    keys = (*QUANTILES, "mean", "dead_percent")
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (width, name, *(_spread(draws[n, width], name, key) for key in keys))
        for width in widths
        for name in (UNSCALED, SCALED)
    )
    columns = (
        Column(name="d_k", header="d_k", form="d"),
        Column(name="scores", header="scores"),
        *(Column(name=key, header=_header(key), form=".2g") for key in (*QUANTILES, "mean")),
        Column(name="dead_percent", header="dead %", form=".1f"),
    )
    off = 0.0
    for row in rows:
        middle = row[4]
        if isinstance(middle, Spread) and middle.median:
            off = max(off, ((middle.high or 0) - (middle.low or 0)) / 2 / middle.median)
    note = f"Over the repeats the medians move by at most {100 * off:.0f} % of themselves."
    return Table(title=f"|ds| of a row, n = {n:,} keys", columns=columns, rows=rows, note=note)


def _header(key: str) -> str:
    return f"{100 * QUANTILES[key]:.0f} %" if key in QUANTILES and key != "median" else key


def _queries(draws: dict[tuple[int, int], list[dict[str, dict[str, float]]]]) -> Table:
    rows = tuple(
        (n, width, _spread(found, UNSCALED, "rms_d_q"), _spread(found, SCALED, "rms_d_q"))
        for (n, width), found in draws.items()
    )
    columns = (
        Column(name="n", header="n", form=",d"),
        Column(name="d_k", header="d_k", form="d"),
        Column(name=UNSCALED, header="unscaled", form=".2g", spread=True),
        Column(name=SCALED, header="scaled", form=".2g", spread=True),
    )
    note = "The scaled gradient is divided by sqrt(d_k) once more on its way to Q."
    return Table(title="rms of dQ, all rows and components", columns=columns, rows=rows, note=note)


def _law(draws: dict[tuple[int, int], list[dict[str, dict[str, float]]]], widths: tuple[int, ...]) -> Table:
    rows = tuple(
        (
            width,
            _spread(draws[2, width], UNSCALED, "p_q"),
            mean_law(width),
            1 / math.sqrt(4 * math.pi * width),
        )
        for width in widths
        if width > 1
    )
    columns = (
        Column(name="d_k", header="d_k", form="d"),
        Column(name="p_q", header="mean p(1-p)", form=".4f", spread=True),
        Column(name="law", header="E[1/|q|]/sqrt(4 pi)", form=".4f"),
        Column(name="asymptote", header="1/sqrt(4 pi d_k)", form=".4f"),
    )
    note = "The law is a limit: it overstates the mean where the gap is not wide yet."
    return Table(title="Two keys, unscaled: the mean law", columns=columns, rows=rows, note=note)


def _judge(norms: Table, queries: Table, widths: tuple[int, ...], n: int) -> tuple[str, str]:
    """The typical row, the mean, the dead rows and dQ at the widest head."""
    widest = widths[-1]
    raw = {key: norms.number(key, d_k=widest, scores=UNSCALED) for key in ("median", "mean", "dead_percent")}
    soft = {key: norms.number(key, d_k=widest, scores=SCALED) for key in ("median", "mean", "dead_percent")}
    d_q = {name: queries.number(name, n=n, d_k=widest) for name in (UNSCALED, SCALED)}
    said = (
        f"n = {n:,}, d_k = {widest:,}: the median falls from {soft['median']:.2g} scaled to {raw['median']:.2g} unscaled "
        f"and {raw['dead_percent']:.0f} % of rows are dead (scaled {soft['dead_percent']:.0f} %)"
    )
    if raw["median"] > VANISHED * soft["median"]:
        return FAILS, f"{said}: a typical row still has its gradient"
    if raw["mean"] > KEPT * soft["mean"]:
        return LIMIT, (
            f"{said}, but the mean is {raw['mean']:.2g} against {soft['mean']:.2g}, and rms dQ is "
            f"{d_q[UNSCALED]:.2g} against {d_q[SCALED]:.2g}: some rows starve, the layer does not"
        )
    return HOLDS, said
