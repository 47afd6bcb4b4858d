"""FLOP crossover against time crossover: where attention overtakes the feed-forward, counted and timed on a real model's
widths.

Counted (cost/crossovers.py): scores and values cost N (H + H') multiply-adds per pair of tokens, the feed-forward m D F
per token; they are equal at n = m D F / (N (H + H')), for SmolLM2-135M at 3 x 576 x 1536 / 1152 = 2,304.

Timed: one layer, forward, batch 1, float32, random weights:

    naive        scores stored: Q K^T, scale, softmax, A V
    tiled        online softmax by tiles, no score matrix
    fused        PyTorch's kernel
    projections  W_Q, W_K, W_V, W_O
    feed-forward its m matrices

A FLOP of attention is not a FLOP of a large matrix product: softmax moves and exponentiates n^2 numbers per head that
count as no FLOPs, and the products are narrow (H wide). So the two crossovers need not agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from headcount.cost.crossovers import model_crossovers
from headcount.errors import UnsupportedModelError, UsageError
from headcount.experiments.result import FAILS, HOLDS, LIMIT, OPEN, Cell, Column, Result, Spread, Table
from headcount.experiments.seeds import generator
from headcount.experiments.stopwatch import crossing, interleaved, on_threads
from headcount.record import Record
from headcount.spec.attention import HeadedAttention
from headcount.spec.model import ModelSpec
from headcount.spec.reader import read_model
from headcount.transformer.attention.attend import attend
from headcount.transformer.attention.masks import mask as named_mask
from headcount.transformer.attention.rule import Rule
from headcount.transformer.ops.gated import gated
from headcount.transformer.ops.gelu import gelu
from headcount.transformer.ops.linear import linear
from headcount.units import GIB, human_bytes

CLAIM = (
    "Below the crossover of FLOPs the feed-forward is the bottleneck and attention only above it, so that is the length "
    "from which work on attention earns its keep."
)
KERNELS = ("naive", "tiled", "fused")
PROJECTIONS, FEED_FORWARD = "projections", "feed-forward"
MOST_WEIGHT_BYTES = 2 * GIB
MOST_SCORE_BYTES = 2 * GIB
# The time crossover counts as the FLOPs' when it is within this factor of it.
AGREE = 1.25


class Widths(Record):
    """One layer's sizes, read off a model."""

    width: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    inner: int
    matrices: int


def layer_widths(model: ModelSpec) -> Widths:
    """Sizes of the most frequent layer.

    Raises
    ------
    UnsupportedModelError: no plain query/key/value heads, no dense feed-forward, or one too large to time here.
    """
    layer, _ = max(model.layer_runs(), key=lambda run: run[1])
    mixer = layer.mixers[0] if len(layer.mixers) == 1 else None
    shape = layer.feed_forward
    if not isinstance(mixer, HeadedAttention) or shape is None or shape.experts:
        raise UnsupportedModelError(
            f"{model.name}: the crossover is timed for layers of plain heads and one dense feed-forward only"
        )
    found = Widths(
        width=model.hidden_size,
        heads=mixer.num_attention_heads,
        kv_heads=mixer.num_key_value_heads,
        head_dim=mixer.head_dim,
        value_dim=mixer.v_head_dim,
        inner=shape.width,
        matrices=shape.matrices,
    )
    weight_bytes = 4 * found.width * found.inner * found.matrices
    if weight_bytes > MOST_WEIGHT_BYTES:
        raise UnsupportedModelError(
            f"{model.name}: one feed-forward is {human_bytes(weight_bytes)} in float32, more than the "
            f"{human_bytes(MOST_WEIGHT_BYTES)} timed here; take a smaller model, such as smollm2-135m"
        )
    return found


class Layer:
    """Random weights of one layer, and the calls to time."""

    def __init__(self, widths: Widths, seed: int) -> None:
        self.widths = widths
        stream = generator(seed, "crossover", "weights")
        w = widths

        def matrix(rows: int, columns: int) -> Tensor:
            return torch.randn(rows, columns, generator=stream) / math.sqrt(columns)

        self.query = matrix(w.heads * w.head_dim, w.width)
        self.key = matrix(w.kv_heads * w.head_dim, w.width)
        self.value = matrix(w.kv_heads * w.value_dim, w.width)
        self.output = matrix(w.width, w.heads * w.value_dim)
        self.up = [matrix(w.inner, w.width) for _ in range(w.matrices - 1)]
        self.down = matrix(w.width, w.inner)

    def project(self, x: Tensor, o: Tensor) -> None:
        """W_Q, W_K, W_V on the input, W_O on the heads' output."""
        for weight in (self.query, self.key, self.value):
            linear(x, weight)
        linear(o, self.output)

    def feed(self, x: Tensor) -> Tensor:
        """Two matrices with GELU, or three with a gate."""
        parts = [linear(x, weight) for weight in self.up]
        inner = gated(parts[0], parts[1]) if len(parts) == 2 else gelu(parts[0])
        return linear(inner, self.down)

    def calls(self, n: int, rule: Rule, seed: int) -> dict[str, Callable[[], object]]:
        """Everything timed at length n; the naive kernel is left out where its scores would not fit."""
        w = self.widths
        stream = generator(seed, "crossover", n)
        x = torch.randn(1, n, w.width, generator=stream)
        o = torch.randn(1, n, w.heads * w.value_dim, generator=stream)
        q = torch.randn(1, w.heads, n, w.head_dim, generator=stream)
        k = torch.randn(1, w.kv_heads, n, w.head_dim, generator=stream)
        v = torch.randn(1, w.kv_heads, n, w.value_dim, generator=stream)

        def kernel(name: str) -> Callable[[], object]:
            return lambda: attend(q, k, v, rule=rule, kernel=name)

        calls: dict[str, Callable[[], object]] = {
            name: kernel(name)
            for name in KERNELS
            if name != "naive" or 4 * w.heads * n * n <= MOST_SCORE_BYTES
        }
        calls[PROJECTIONS] = lambda: self.project(x, o)
        calls[FEED_FORWARD] = lambda: self.feed(x)
        return calls


Times = Mapping[int, Mapping[str, list[float]]]


def measure(
    *, seed: int, repeats: int, model: str, lengths: tuple[int, ...], mask: str, threads: int
) -> Result:
    """Run the experiment: options are those of the registry.

    Raises
    ------
    UnsupportedModelError: a model without such a layer; UsageError: fewer than two lengths.
    """
    if len(lengths) < 2:
        raise UsageError("--lengths needs at least two lengths, such as 64,3072")
    spec = read_model(model)
    widths = layer_widths(spec)
    counted = model_crossovers(spec)
    if counted is None:
        raise UnsupportedModelError(f"{spec.name}: no layer holds both attention and a feed-forward")
    layer, rule = Layer(widths, seed), Rule(mask=named_mask(mask))
    with torch.no_grad(), on_threads(threads):
        times = {n: interleaved(layer.calls(n, rule, seed), repeats) for n in lengths}
    prefix = "causal_" if mask == "causal" else ""
    flops = {"core": counted[prefix + "quad_eq_ffn"], "layer": counted[prefix + "quad_plus_proj_eq_ffn"]}
    crossings = {(name, part): _crossing(times, name, part, repeats) for part in flops for name in KERNELS}
    verdict, reason = judge(flops["core"], crossings, lengths[-1])
    return Result(
        name="crossover",
        claim=CLAIM,
        seed=seed,
        repeats=repeats,
        settings={
            "model": spec.name,
            "lengths": lengths,
            "mask": mask,
            "threads": threads,
            **widths.as_dict(),
        },
        tables=(_times(times), _crossings(flops, crossings)),
        verdict=verdict,
        reason=reason,
        notes=("FLOP crossover is not time crossover, and neither is a property of the model alone.",),
        timed=True,
    )


def _crossing(times: Times, name: str, part: str, repeats: int) -> Spread:
    """Where kernel ``name`` (with projections for ``layer``) overtakes the feed-forward, once per repeat."""
    lengths = [n for n in times if name in times[n]]
    if len(lengths) < 2:
        return Spread.of([None] * repeats)

    def curve(repeat: int) -> list[float]:
        extra = PROJECTIONS if part == "layer" else None
        return [times[n][name][repeat] + (times[n][extra][repeat] if extra else 0.0) for n in lengths]

    return Spread.of(
        crossing(lengths, curve(repeat), [times[n][FEED_FORWARD][repeat] for n in lengths])
        for repeat in range(repeats)
    )


def _times(times: Times) -> Table:
    names = (*KERNELS, PROJECTIONS, FEED_FORWARD)
    rows: list[tuple[Cell, ...]] = []
    for n, found in times.items():
        rows.append((n, *(Spread.of(found[name]).over(1e-3) if name in found else None for name in names)))
    columns = (
        Column(name="n", header="n", form=",d"),
        *(Column(name=name.replace("-", "_") + "_ms", header=name, form=".3g") for name in names),
    )
    return Table(title="One layer, forward: milliseconds, medians", columns=columns, rows=tuple(rows))


def _crossings(flops: dict[str, int | None], crossings: dict[tuple[str, str], Spread]) -> Table:
    words = {"core": "scores and values", "layer": "with projections"}
    rows: list[tuple[Cell, ...]] = [
        (words[part], name, flops[part], found) for (name, part), found in crossings.items()
    ]
    columns = (
        Column(name="attention", header="attention"),
        Column(name="kernel", header="kernel"),
        Column(name="flops", header="by FLOPs", form=",d"),
        Column(name="time", header="by time", form=",.0f", spread=True),
    )
    note = "0: slower at every length timed; never: faster up to the longest one."
    return Table(
        title="Length at which attention overtakes the feed-forward",
        columns=columns,
        rows=tuple(rows),
        note=note,
    )


def judge(flops: int | None, crossings: dict[tuple[str, str], Spread], longest: int) -> tuple[str, str]:
    """Compare scores and values by kernel with their FLOP crossover."""
    found = {name: crossings[name, "core"].median for name in KERNELS}
    shown = ", ".join(f"{name} {'never' if n is None else f'{n:,.0f}'}" for name, n in found.items())
    said = f"by FLOPs at {flops:,}, by time: {shown}" if flops else f"by FLOPs at no length, by time: {shown}"
    if flops and longest < flops * AGREE and None in found.values():
        return OPEN, f"{said}; the lengths end at {longest:,}, too early to see the crossover"
    near = {name: bool(flops and n and flops / AGREE <= n <= flops * AGREE) for name, n in found.items()}
    if all(near.values()):
        return HOLDS, said
    if any(near.values()):
        agree = " and ".join(name for name, close in near.items() if close)
        return LIMIT, f"{said}; only {agree} crosses where the FLOPs do: the kernel moves the crossover"
    return FAILS, f"{said}; no kernel crosses where the FLOPs do"
