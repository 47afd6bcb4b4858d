"""Is a recurrent layer cheaper than attention? Counted and timed over the sequence length n at width d.

Multiply-adds of one layer on one sequence:

    recurrent     n d^2 (hidden state) + n d^2 (input)      n steps, one after another
    attention     2 n^2 d (scores and values)               1 step: all pairs at once
                  + 4 n d^2 (W_Q, W_K, W_V, W_O)

Without the projections the two are equal at n = d; with them attention is dearer at every n. Table 1 of Vaswani et al.
2017 gives the leading terms, n d^2 against n^2 d, and the sequential steps, n against 1. Time is another matter: the n
steps of a recurrent layer are small products that wait for each other.

Timed: ``torch.nn.RNN`` (tanh), and attention with its fused kernel and 4 heads, forward only, batch 1.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from headcount.errors import UsageError
from headcount.experiments.result import FAILS, HOLDS, LIMIT, Cell, Column, Result, Spread, Table
from headcount.experiments.seeds import generator, seeded
from headcount.experiments.stopwatch import crossing, interleaved, on_threads
from headcount.transformer.attention.attend import attend
from headcount.transformer.attention.multi_head import Heads, MultiHeadAttention

CLAIM = (
    "A recurrent layer costs O(n), attention O(n^2): parallel computation does not make attention cheap, it is worse than "
    "a recurrent layer in cost."
)
HEADS = 4
RECURRENT, CORE, LAYER = "recurrent", "core", "layer"


def macs(n: int, d: int) -> dict[str, int]:
    """Multiply-adds of the recurrent layer, of scores and values, and of attention with its projections."""
    return {RECURRENT: 2 * n * d * d, CORE: 2 * n * n * d, LAYER: 2 * n * n * d + 4 * n * d * d}


def _calls(n: int, d: int, seed: int) -> dict[str, Callable[[], object]]:
    """What is timed at one length; weights and inputs come from the seed."""
    with seeded(seed, "recurrent", d):
        network = torch.nn.RNN(d, d, batch_first=True)
        layer = MultiHeadAttention(Heads(width=d, heads=HEADS, bias=False, kernel="fused"))
    stream = generator(seed, "recurrent", n)
    x = torch.randn(1, n, d, generator=stream)
    q, k, v = (torch.randn(1, HEADS, n, d // HEADS, generator=stream) for _ in range(3))
    return {
        RECURRENT: lambda: network(x),
        CORE: lambda: attend(q, k, v, kernel="fused"),
        LAYER: lambda: layer(x),
    }


def measure(*, seed: int, repeats: int, width: int, lengths: tuple[int, ...], threads: int) -> Result:
    """Run the experiment: options are those of the registry.

    Raises
    ------
    UsageError: a width that 4 heads do not divide, or fewer than two lengths.
    """
    if width % HEADS:
        raise UsageError(f"--width must be a multiple of {HEADS} heads; given {width}")
    if len(lengths) < 2:
        raise UsageError("--lengths needs at least two lengths, such as 64,4096")
    with torch.no_grad(), on_threads(threads):
        times = {n: interleaved(_calls(n, width, seed), repeats) for n in lengths}
    counted, timed = _counts(width, lengths), _times(times)
    crossings = {
        name: Spread.of(
            crossing(
                lengths,
                [times[n][name][repeat] for n in lengths],
                [times[n][RECURRENT][repeat] for n in lengths],
            )
            for repeat in range(repeats)
        )
        for name in (CORE, LAYER)
    }
    verdict, reason = _judge(width, lengths, times, crossings)
    return Result(
        name="recurrent",
        claim=CLAIM,
        seed=seed,
        repeats=repeats,
        settings={"width": width, "lengths": lengths, "threads": threads},
        tables=(counted, timed, _crossings(width, crossings)),
        verdict=verdict,
        reason=reason,
        notes=(
            "Two tokens n apart are n steps apart in a recurrent layer and 1 in attention: the reason to pay.",
            "Attention while generating is O(n) per token, with a cache that grows; a recurrent state does not grow.",
        ),
        timed=True,
    )


def _counts(width: int, lengths: tuple[int, ...]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for n in lengths:
        found = macs(n, width)
        rows.append((n, *(found[name] / 1e6 for name in (RECURRENT, CORE, LAYER)), n, 1))
    columns = (
        Column(name="n", header="n", form=",d"),
        Column(name="recurrent_macs_millions", header="recurrent", form=",.1f"),
        Column(name="core_macs_millions", header="scores+values", form=",.1f"),
        Column(name="layer_macs_millions", header="+projections", form=",.1f"),
        Column(name="recurrent_steps", header="steps RNN", form=",d"),
        Column(name="attention_steps", header="attention", form=",d"),
    )
    note = f"Scores and values equal the recurrent layer at n = d = {width:,}; with projections attention is always dearer."
    return Table(
        title=f"Counted, d = {width:,}: million multiply-adds", columns=columns, rows=tuple(rows), note=note
    )


def _times(times: dict[int, dict[str, list[float]]]) -> Table:
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (n, *(Spread.of(found[name]).over(1e-3) for name in (RECURRENT, CORE, LAYER)))
        for n, found in times.items()
    )
    columns = (
        Column(name="n", header="n", form=",d"),
        Column(name="recurrent_ms", header="recurrent", form=".3g", spread=True),
        Column(name="core_ms", header="scores+values", form=".3g", spread=True),
        Column(name="layer_ms", header="+projections", form=".3g", spread=True),
    )
    return Table(title="Timed: milliseconds", columns=columns, rows=rows)


def _crossings(width: int, crossings: dict[str, Spread]) -> Table:
    rows: tuple[tuple[Cell, ...], ...] = (
        ("scores and values", width, crossings[CORE]),
        ("with projections", 0, crossings[LAYER]),
    )
    columns = (
        Column(name="attention", header="attention"),
        Column(name="counted", header="counted", form=",d"),
        Column(name="timed", header="timed", form=",.0f", spread=True),
    )
    note = "0: dearer at every length; never: cheaper up to the longest length timed."
    return Table(title="Length at which attention becomes dearer", columns=columns, rows=rows, note=note)


def _judge(
    width: int,
    lengths: tuple[int, ...],
    times: dict[int, dict[str, list[float]]],
    crossings: dict[str, Spread],
) -> tuple[str, str]:
    """Growth of cost over the last doubling, and the range in which attention is the cheaper one."""
    a, b = lengths[-2:]
    growth = {}
    for name in (RECURRENT, LAYER):
        early, late = (Spread.of(times[n][name]).median or 0.0 for n in (a, b))
        growth[name] = late / early if early else 0.0
    end = crossings[LAYER].median
    shown = f"up to n = {end:,.0f}" if end else f"at every length up to {lengths[-1]:,}"
    said = (
        f"from n = {a:,} to {b:,} the recurrent layer takes {growth[RECURRENT]:.1f} times as long, attention "
        f"{growth[LAYER]:.1f} times"
    )
    if growth[LAYER] <= growth[RECURRENT]:
        return FAILS, f"{said}: attention does not grow faster at these lengths"
    if end == 0:
        return HOLDS, f"{said}, and attention is slower at every length timed"
    return LIMIT, (
        f"{said}; but the claim leaves d out: scores and values need fewer multiply-adds below n = d = {width:,}, and "
        f"the whole layer is faster {shown}, because it takes 1 step where the recurrent layer takes n"
    )
