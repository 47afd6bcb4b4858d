"""Order: attention does not see it; sinusoids add it to the embeddings, rotary positions to the scores."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headcount.explain.arithmetic import short
from headcount.explain.asked import Asked
from headcount.explain.derivation import Derivation, Step, Symbol, Table, shown
from headcount.transformer.attention.attend import attend
from headcount.transformer.attention.masks import Causal
from headcount.transformer.attention.rule import Rule
from headcount.transformer.ops.positions import sinusoidal_positions, sinusoidal_table
from headcount.transformer.ops.rotary import rotary, turns
from headcount.transformer.ops.rotary_frequencies import plain

TOKENS, WIDTH = 6, 8


def derive(asked: Asked) -> Derivation:
    """Equivariance measured, then two ways of breaking it."""
    stream = torch.Generator().manual_seed(asked.seed)
    x = torch.randn(1, 1, TOKENS, WIDTH, generator=stream, dtype=torch.float64)
    weights = [
        torch.randn(WIDTH, WIDTH, generator=stream, dtype=torch.float64) / math.sqrt(WIDTH) for _ in range(3)
    ]
    order = torch.arange(TOKENS - 1, -1, -1)
    return Derivation(
        topic="positions",
        title="Positions: what attention cannot see by itself",
        summary=f"{TOKENS} random tokens of width {WIDTH} (seed {asked.seed}), float64.",
        symbols=(
            Symbol(symbol="P", meaning="a permutation of the tokens (a matrix of zeros and ones)"),
            Symbol(symbol="p, i, j", meaning="positions, counted from 0"),
            Symbol(symbol="D", meaning="model width; the sinusoids fill it in pairs"),
            Symbol(symbol="R(p)", meaning="rotation of each pair of columns by the angle p w"),
            Symbol(symbol="w", meaning="radians per token of a pair, base^(-2i/D)"),
        ),
        steps=(
            _equivariance(x, weights, order),
            _sinusoid(),
            _offset(),
            _rotary(),
            _relative(),
        ),
        sources=("Vaswani et al. 2017, section 3.5 (sinusoids)", "Su et al. 2021 (rotary positions)"),
    )


def _attention(x: Tensor, weights: list[Tensor], kind: str) -> Tensor:
    rule = Rule(mask=Causal()) if kind == "causal mask" else Rule()
    if kind == "sinusoids added":
        x = sinusoidal_positions(x)
    q, k, v = (x @ weight for weight in weights)
    if kind == "rotary":
        cos, sin = turns(
            torch.arange(x.shape[-2]), plain(WIDTH, dtype=torch.float64).inverse, dtype=torch.float64
        )
        q, k = rotary(q, cos, sin), rotary(k, cos, sin)
    return attend(q, k, v, rule=rule)


def equivariance_error(x: Tensor, weights: list[Tensor], order: Tensor, kind: str) -> float:
    """Largest entry of attention(P x) - P attention(x)."""
    return float(
        (_attention(x[:, :, order], weights, kind) - _attention(x, weights, kind)[:, :, order]).abs().max()
    )


def _equivariance(x: Tensor, weights: list[Tensor], order: Tensor) -> Step:
    kinds = ("no positions", "causal mask", "sinusoids added", "rotary")
    rows = tuple((kind, equivariance_error(x, weights, order, kind)) for kind in kinds)
    return Step(
        title="permute the tokens",
        why="Scores compare tokens pair by pair and the sum over keys has no order. So permuting the inputs "
        "permutes the outputs "
        "and does nothing else: 'dog bites man' and 'man bites dog' are one bag of tokens.",
        formula=("attention(P x) = P attention(x)",),
        arithmetic=(f"order {', '.join(str(int(i)) for i in order)}",),
        tables=(
            Table(
                title="largest entry of attention(P x) - P attention(x)", header=("", "difference"), rows=rows
            ),
        ),
        note="A causal mask breaks the symmetry too: a decoder can learn something about order without any positions.",
        chapters="list 'positional information' as an addition and never use it: both worked examples have "
        "none, so swapping "
        "their two tokens swaps the two output rows.",
    )


def _sinusoid() -> Step:
    table = sinusoidal_table(4, 4, dtype=torch.float64)
    entry = [float(v) for v in table[1]]
    return Step(
        title="sinusoids, added to the embeddings",
        why="Each pair of columns is a clock hand at its own speed; together they tell positions apart.",
        formula=("PE(p, 2i) = sin(p w_i)", "PE(p, 2i+1) = cos(p w_i)", "w_i = 10000^(-2i/D)"),
        arithmetic=(
            f"D = 4: w = [1, {10000 ** (-2 / 4):g}]; PE(1) = [sin 1, cos 1, sin 0.01, cos 0.01] = "
            f"[{', '.join(f'{v:.10f}' for v in entry)}]",
        ),
        values=(shown("PE", table, "positions 0 to 3, D = 4", rows=("p=0", "p=1", "p=2", "p=3")),),
    )


def _offset() -> Step:
    step, width = 3, 8
    table = sinusoidal_table(40, width, dtype=torch.float64)
    speeds = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    turn = torch.zeros(width, width, dtype=torch.float64)
    for index, speed in enumerate(speeds):
        c, s = math.cos(step * float(speed)), math.sin(step * float(speed))
        turn[2 * index : 2 * index + 2, 2 * index : 2 * index + 2] = torch.tensor(
            [[c, s], [-s, c]], dtype=turn.dtype
        )
    gap = float((table[:-step] @ turn.T - table[step:]).abs().max())
    rows = [
        (distance, float(table[0] @ table[distance]), float(table[20] @ table[20 + distance]))
        for distance in (0, 1, 2, 5, 10)
    ]
    return Step(
        title="a shift is a rotation, the same everywhere",
        why="By the addition theorems PE(p + k) is PE(p) turned pair by pair, whatever p is; so a dot product "
        "of two positions "
        "depends on their distance alone.",
        formula=("PE(p + k) = R(k) PE(p)", "PE(p) . PE(p + k) = sum_i cos(k w_i)"),
        values=(shown(f"largest |R({step}) PE(p) - PE(p+{step})|", gap, "over p = 0 to 36, D = 8"),),
        tables=(
            Table(
                title="dot products of positions, D = 8",
                header=("distance", "from 0", "from 20"),
                rows=tuple(rows),
            ),
        ),
        note="The sum x + PE mixes content and position in one vector; the model has to learn to keep them apart.",
    )


def _rotary() -> Step:
    frequencies = plain(4, dtype=torch.float64).inverse
    cos, sin = turns(torch.arange(3), frequencies, dtype=torch.float64)
    x = torch.tensor([[1.0, 0.0, 0.0, 1.0]], dtype=torch.float64).expand(3, -1)
    turned = rotary(x, cos, sin, layout="interleaved")
    c, s = math.cos(1), math.sin(1)
    return Step(
        title="rotary: turn queries and keys instead",
        why="Nothing is added. Each pair of columns of q and k is turned by its position times its speed.",
        formula=("a' = a cos(p w) - b sin(p w)", "b' = b cos(p w) + a sin(p w)"),
        arithmetic=(
            f"p = 1, first pair (1, 0), w = 1: a' = 1 x {short(c)} - 0 x {short(s)} = {short(c)}, "
            f"b' = 0 x {short(c)} + 1 x {short(s)} = {short(s)}",
        ),
        values=(
            shown("w", frequencies, "radians per token"),
            shown("x", x[0], "one vector"),
            shown("R(p) x", turned, "at positions 0, 1, 2", rows=("p=0", "p=1", "p=2")),
            shown("norms", turned.norm(dim=-1), "a rotation keeps lengths"),
        ),
    )


def _relative() -> Step:
    stream = torch.Generator().manual_seed(1)
    width = 8
    q = torch.randn(1, width, generator=stream, dtype=torch.float64)
    k = torch.randn(1, width, generator=stream, dtype=torch.float64)
    frequencies = plain(width, dtype=torch.float64).inverse

    def table(start: int) -> Tensor:
        cos, sin = turns(torch.arange(start, start + 5), frequencies, dtype=torch.float64)
        return rotary(q.expand(5, -1), cos, sin) @ rotary(k.expand(5, -1), cos, sin).T

    near, far = table(0), table(100)
    labels = tuple(f"j={j}" for j in range(5))
    diagonals = max(float((near.diagonal(d) - near.diagonal(d)[0]).abs().max()) for d in range(-4, 5))
    return Step(
        title="the score depends on i - j alone",
        why="Rotations are orthogonal and add up, so the two turns combine into one by the difference.",
        formula=("(R(i) q) . (R(j) k) = q . R(j - i) k",),
        values=(
            shown(
                "s_ij",
                near,
                "one q at i against one k at j",
                rows=tuple(f"i={i}" for i in range(5)),
                columns=labels,
            ),
            shown("spread along a diagonal", diagonals),
            shown("moved by 100", float((near - far).abs().max()), "largest change of a score"),
        ),
        note="Every diagonal of the table is one number: the same query and key at the same distance.",
    )
