"""Gradient norm by depth at initialisation: norms after the residual sum (post) against norms before (pre).

    post    x <- LN(x + f(x))      every gradient passes every norm of the blocks above
    pre     x <- x + f(LN(x))      the residual sum hands the gradient down undivided; one norm at the end

Measured: |dL/dW_down| of each block's feed-forward, L the cross-entropy of random targets, Glorot weights, sinusoidal
positions. Xiong et al. 2020 derive for a block near the output: independent of the depth L after post-norm, falling like
1 / sqrt(L) with pre-norm, because the last norm divides by the stream that L blocks have grown.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from headcount.errors import UsageError
from headcount.experiments.result import FAILS, HOLDS, LIMIT, Cell, Column, Result, Spread, Table
from headcount.experiments.seeds import generator, seeded
from headcount.transformer.ops.cross_entropy import cross_entropy
from headcount.transformer.stacks.config import EncoderOnlyConfig
from headcount.transformer.stacks.encoder_only import EncoderOnly

CLAIM = "Where the residual attaches and where LayerNorm sits needs no mathematics of its own: it is composition only."
POST, PRE = "post", "pre"
HEADS = 4
VOCABULARY = 64
BATCH = 8
# Post-norm and pre-norm are called alike when no gradient norm differs by more than this factor.
ALIKE = 1.5


def gradient_norms(norm: str, depth: int, *, width: int, tokens: int, seed: int, repeat: int) -> list[float]:
    """|dL/dW_down| of every block, bottom first."""
    config = EncoderOnlyConfig(
        vocabulary=VOCABULARY,
        width=width,
        layers=depth,
        heads=HEADS,
        feed_forward=4 * width,
        activation="relu",
        norm=norm,
        positions="sinusoidal",
        max_length=tokens,
        dropout=0.0,
    )
    with seeded(seed, "norms", "weights", depth, repeat):
        network = EncoderOnly(config)
    stream = generator(seed, "norms", "data", repeat)
    ids, targets = (torch.randint(0, VOCABULARY, (BATCH, tokens), generator=stream) for _ in range(2))
    cross_entropy(network.logits(network(ids)), targets).backward()  # type: ignore[no-untyped-call]
    blocks: Any = network.encoder.blocks
    return [float(block.feed_forward.down.weight.grad.norm()) for block in blocks]


def slope(depths: tuple[int, ...], values: list[float]) -> float:
    """Least-squares slope of log value over log depth: -1/2 for 1 / sqrt(L), 0 for no dependence."""
    xs = [math.log(depth) for depth in depths]
    ys = [math.log(value) for value in values]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    over = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    return over / sum((x - mean_x) ** 2 for x in xs)


def measure(*, seed: int, repeats: int, depths: tuple[int, ...], width: int, tokens: int) -> Result:
    """Run the experiment: options are those of the registry.

    Raises
    ------
    UsageError: one depth only, or a width that does not divide by 4 heads or is odd.
    """
    if len(depths) < 2:
        raise UsageError("--depths needs at least two depths to compare, such as 2,24")
    if width % HEADS:
        raise UsageError(f"--width must be a multiple of {HEADS} heads; given {width}")
    found = {
        (norm, depth): [
            gradient_norms(norm, depth, width=width, tokens=tokens, seed=seed, repeat=repeat)
            for repeat in range(repeats)
        ]
        for norm in (POST, PRE)
        for depth in depths
    }
    ends = _ends(found)
    slopes = _slopes(found, depths, repeats)
    verdict, reason = _judge(ends, slopes, depths)
    return Result(
        name="norms",
        claim=CLAIM,
        seed=seed,
        repeats=repeats,
        settings={"depths": depths, "width": width, "tokens": tokens, "heads": HEADS, "batch": BATCH},
        tables=(ends, slopes),
        verdict=verdict,
        reason=reason,
        notes=(
            "Post-norm's large gradients near the output are why its training starts with a warm-up of the learning "
            "rate (Xiong et al. 2020); the original's 4,000 steps are such a warm-up. Pre-norm trains without.",
        ),
    )


def _ends(found: dict[tuple[str, int], list[list[float]]]) -> Table:
    rows = tuple(
        (
            depth,
            norm,
            Spread.of([one[0] for one in runs]),
            Spread.of([one[-1] for one in runs]),
            Spread.of([one[0] / one[-1] for one in runs]),
        )
        for (norm, depth), runs in sorted(found.items(), key=lambda item: item[0][1])
    )
    columns = (
        Column(name="depth", header="L", form="d"),
        Column(name="norm", header="norm"),
        Column(name="first", header="first block", form=".3g", spread=True),
        Column(name="last", header="last block", form=".3g", spread=True),
        Column(name="ratio", header="first/last", form=".2f"),
    )
    return Table(title="|dL/dW_down| at initialisation", columns=columns, rows=rows)


def _slopes(found: dict[tuple[str, int], list[list[float]]], depths: tuple[int, ...], repeats: int) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for norm in (POST, PRE):
        fits = {
            place: Spread.of(
                slope(depths, [found[norm, depth][repeat][index] for depth in depths])
                for repeat in range(repeats)
            )
            for place, index in (("first", 0), ("last", -1))
        }
        rows.append((norm, fits["first"], fits["last"]))
    columns = (
        Column(name="norm", header="norm"),
        Column(name="first", header="first block", form=".2f", spread=True),
        Column(name="last", header="last block", form=".2f", spread=True),
    )
    note = "Theory for the last block: 0 after post-norm, -0.5 with pre-norm."
    return Table(title="Exponent: |dL/dW_down| ~ L^x", columns=columns, rows=tuple(rows), note=note)


def _judge(ends: Table, slopes: Table, depths: tuple[int, ...]) -> tuple[str, str]:
    """The claim stands only if the placement makes no difference."""
    deepest = depths[-1]
    last = {norm: ends.number("last", depth=deepest, norm=norm) for norm in (POST, PRE)}
    fits = {norm: slopes.number("last", norm=norm) for norm in (POST, PRE)}
    factor = last[POST] / last[PRE]
    said = (
        f"at L = {deepest} the last block's gradient is {factor:.1f} times as large after post-norm; over depth it goes "
        f"like L^{fits[POST]:.2f} post and L^{fits[PRE]:.2f} pre"
    )
    if max(factor, 1 / factor) > ALIKE:
        return FAILS, f"{said}: the place of the norm decides how gradients scale with depth"
    return (HOLDS if abs(fits[POST] - fits[PRE]) < 0.1 else LIMIT), said
