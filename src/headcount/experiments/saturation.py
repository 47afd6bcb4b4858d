"""Do unscaled scores saturate softmax? How one-hot a row is, and how large its Jacobian, over d_k.

For a row a = softmax(s) of n keys:

    largest probability   max_j a_j               1/n when flat, 1 when one-hot
    entropy / ln n        -sum a ln a / ln n      1 when flat, 0 when one-hot
    tr J                  1 - sum a^2             J = diag(a) - a a^T, the derivative of softmax
    |J|_F                 sqrt(sum a^2 - 2 sum a^3 + (sum a^2)^2)

A flat row has tr J = 1 - 1/n but |J|_F = sqrt(n - 1) / n only: a long row passes little gradient to each score even when
nothing saturates. Both ends of the scale have a small Jacobian; the largest lies between.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headcount.experiments.result import FAILS, HOLDS, LIMIT, Cell, Column, Result, Spread, Table
from headcount.experiments.score_rows import SCALED, UNSCALED, sequences
from headcount.transformer.ops.softmax import softmax

CLAIM = (
    "Without the scaling, softmax saturates to a near one-hot row as d_k grows; divided by sqrt(d_k), the row is as soft "
    "at every d_k."
)
ONE_HOT = 0.9
STATISTICS = ("max_probability", "max_q05", "max_q95", "entropy", "trace", "jacobian")


def row_statistics(a: Tensor) -> dict[str, Tensor]:
    """Per row of probabilities: largest, entropy / ln n, tr J, |J|_F (module docstring)."""
    second, third = a.square().sum(-1), a.pow(3).sum(-1)
    entropy = torch.special.entr(a).sum(-1) / math.log(a.shape[-1])
    return {
        "max_probability": a.amax(-1),
        "entropy": entropy,
        "trace": 1 - second,
        "jacobian": (second - 2 * third + second.square()).clamp_min(0).sqrt(),
    }


def saturation_of(*, seed: int, repeat: int, width: int, keys: int, rows: int) -> dict[str, dict[str, float]]:
    """Means over rows (and two quantiles of the largest probability) of one repeat, unscaled and scaled."""
    found: dict[str, list[dict[str, Tensor]]] = {UNSCALED: [], SCALED: []}
    for q, k, _ in sequences("saturation", seed=seed, repeat=repeat, width=width, keys=keys, rows=rows):
        s = q @ k.mT
        for name, scores in ((UNSCALED, s), (SCALED, s / math.sqrt(width))):
            found[name].append(row_statistics(softmax(scores)))
    answer = {}
    for name, parts in found.items():
        joined = {key: torch.cat([part[key].flatten() for part in parts]) for key in parts[0]}
        low, high = (
            joined["max_probability"].quantile(torch.tensor([0.05, 0.95], dtype=torch.float64)).tolist()
        )
        answer[name] = {key: float(value.mean()) for key, value in joined.items()}
        answer[name] |= {"max_q05": low, "max_q95": high}
    return answer


def measure(*, seed: int, repeats: int, widths: tuple[int, ...], keys: tuple[int, ...], rows: int) -> Result:
    """Run the experiment: options are those of the registry."""
    tables = tuple(_table(seed, repeats, widths, n, rows) for n in keys)
    verdict, reason = _judge(tables, widths, keys)
    spreads = [f"{width}: {math.sqrt(width):.4g}" for width in widths]
    return Result(
        name="saturation",
        claim=CLAIM,
        seed=seed,
        repeats=repeats,
        settings={"widths": widths, "keys": keys, "rows": rows},
        tables=tables,
        verdict=verdict,
        reason=reason,
        notes=(
            f"Standard deviation of unscaled scores, in logit units, by d_k: {', '.join(spreads)}. It is not a number "
            "of standard deviations.",
        ),
    )


def _table(seed: int, repeats: int, widths: tuple[int, ...], keys: int, rows: int) -> Table:
    cells: list[tuple[Cell, ...]] = []
    for width in widths:
        draws = [
            saturation_of(seed=seed, repeat=repeat, width=width, keys=keys, rows=rows)
            for repeat in range(repeats)
        ]
        for name in (UNSCALED, SCALED):
            spreads = [Spread.of([draw[name][key] for draw in draws]) for key in STATISTICS]
            cells.append((width, name, *spreads))
    columns = (
        Column(name="d_k", header="d_k", form="d"),
        Column(name="scores", header="scores"),
        Column(name="max_probability", header="largest a", form=".3f", spread=True),
        Column(name="max_q05", header="5 %", form=".3f"),
        Column(name="max_q95", header="95 %", form=".3f"),
        Column(name="entropy", header="H/ln n", form=".3f"),
        Column(name="trace", header="tr J", form=".3f"),
        Column(name="jacobian", header="|J|_F", form=".3f"),
    )
    note = f"A flat row: largest a {1 / keys:.3g}, tr J {1 - 1 / keys:.3f}, |J|_F {math.sqrt(keys - 1) / keys:.3f}."
    return Table(
        title=f"n = {keys:,} keys per row, means over rows", columns=columns, rows=tuple(cells), note=note
    )


def _judge(tables: tuple[Table, ...], widths: tuple[int, ...], keys: tuple[int, ...]) -> tuple[str, str]:
    """One-hot at the widest, soft at every width when scaled; the Jacobian is the limit."""
    widest = widths[-1]
    tops = [table.number("max_probability", d_k=widest, scores=UNSCALED) for table in tables]
    scaled = [[table.number("max_probability", d_k=w, scores=SCALED) for w in widths] for table in tables]
    drift = max(max(one) - min(one) for one in scaled)
    shown = " and ".join(f"{top:.3f} (n = {n:,})" for top, n in zip(tops, keys, strict=True))
    said = f"at d_k = {widest:,} the largest probability is {shown} unscaled; scaled it moves by {drift:.3f} over d_k"
    if min(tops) < ONE_HOT or drift > 0.1:
        return FAILS, f"{said}; {ONE_HOT} unscaled and a move below 0.1 would bear the claim out"
    larger = []
    for table, n in zip(tables, keys, strict=True):
        for width in widths:
            raw = table.number("jacobian", d_k=width, scores=UNSCALED)
            soft = table.number("jacobian", d_k=width, scores=SCALED)
            if raw > soft:
                larger.append((raw / soft, width, n, raw, soft))
    if not larger:
        return HOLDS, said
    _, width, n, raw, soft = max(larger)
    return LIMIT, (
        f"{said}; but a saturated row is not one without gradient: at n = {n:,}, d_k = {width:,} |J|_F is {raw:.3f} "
        f"unscaled and {soft:.3f} scaled"
    )
