"""Attention without its score matrix: online softmax by tiles, and the backward that recomputes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headcount.explain.arithmetic import number, short
from headcount.explain.asked import Asked
from headcount.explain.derivation import Derivation, Step, Symbol, Table, shown
from headcount.transformer.attention.attend import attend
from headcount.transformer.attention.masks import Causal
from headcount.transformer.attention.rule import Rule
from headcount.transformer.attention.tiled import TILE_KEYS, TILE_ROWS
from headcount.units import human_bytes

KEYS, TILE, WIDTH = 6, 2, 2


def derive(asked: Asked) -> Derivation:
    """One row by hand, then the kernel on many."""
    stream = torch.Generator().manual_seed(asked.seed)
    q = torch.randn(WIDTH, generator=stream, dtype=torch.float64) * 2
    k = torch.randn(KEYS, WIDTH, generator=stream, dtype=torch.float64) * 2
    v = torch.randn(KEYS, WIDTH, generator=stream, dtype=torch.float64)
    return Derivation(
        topic="tiled",
        title="Attention by tiles (online softmax)",
        summary=f"One query, {KEYS} keys in tiles of {TILE}, float64 (seed {asked.seed}); then the real kernel "
        f"against the one "
        "that stores scores.",
        symbols=(
            Symbol(symbol="r", meaning="reference of the row: here the largest score seen so far"),
            Symbol(symbol="l", meaning="sum of exp(s_j - r) seen so far"),
            Symbol(symbol="o", meaning="sum of exp(s_j - r) v_j seen so far", shape="d_v"),
            Symbol(
                symbol="lse",
                meaning="r + log l at the end; the kernel saves the pair (r, l), two numbers per row, because it rounds "
                "better than lse",
            ),
        ),
        steps=(_row(q, k, v), _kernel(asked.seed), _memory(), _backward(asked.seed)),
        sources=("Milakov and Gimelshein 2018; Rabe and Staats 2021; Dao et al. 2022 (FlashAttention)",),
    )


def running_sums(scores: Tensor, v: Tensor, tile: int) -> list[tuple[float, float, Tensor]]:
    """``(m, l, o)`` after every tile."""
    m, total, out = -math.inf, 0.0, torch.zeros(v.shape[1], dtype=v.dtype)
    states = []
    for first in range(0, len(scores), tile):
        part = scores[first : first + tile]
        highest = max(m, number(part.max()))
        shrink = math.exp(m - highest)
        e = torch.exp(part - highest)
        m, total, out = highest, total * shrink + number(e.sum()), out * shrink + e @ v[first : first + tile]
        states.append((m, total, out))
    return states


def _row(q: Tensor, k: Tensor, v: Tensor) -> Step:
    scores = k @ q / math.sqrt(WIDTH)
    states = running_sums(scores, v, TILE)
    rows = [
        (f"keys {TILE * i} to {TILE * i + TILE - 1}", m, total, *(number(x) for x in out))
        for i, (m, total, out) in enumerate(states)
    ]
    m, total, out = states[-1]
    whole = attend(q[None, None, None], k[None, None], v[None, None])[0, 0, 0]
    return Step(
        title="one row, tile by tile",
        why="A later tile may hold a larger maximum. Then everything summed so far is too large by one common "
        "factor, and is "
        "multiplied by it: exact, because exp(s - r') = exp(s - r) exp(r - r').",
        formula=(
            "r' = max(r, max_j s_j)",
            "l' = l exp(r - r') + sum_j exp(s_j - r')",
            "o' = o exp(r - r') + sum_j exp(s_j - r') v_j",
            "O = o / l",
        ),
        arithmetic=(
            f"O = [{', '.join(short(number(x)) for x in out)}] / {short(total)} = "
            f"[{', '.join(short(number(x) / total) for x in out)}], lse = {short(m + math.log(total))}",
        ),
        values=(
            shown("s", scores, "scores"),
            shown("v", v, "values"),
            shown("O", out / total, "tiled"),
            shown("O_naive", whole, "all at once"),
            shown("difference", number((out / total - whole).abs().max())),
        ),
        tables=(
            Table(title="state after each tile", header=("tile", "r", "l", "o_1", "o_2"), rows=tuple(rows)),
        ),
    )


def _operands(seed: int, n: int) -> list[Tensor]:
    stream = torch.Generator().manual_seed(seed)
    return [
        torch.randn(1, 2, n, 16, generator=stream, dtype=torch.float64).requires_grad_() for _ in range(3)
    ]


def _kernel(seed: int) -> Step:
    n = 700
    operands = _operands(seed, n)
    upstream = torch.randn(
        1, 2, n, 16, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64
    )
    found = {}
    for kernel in ("naive", "tiled"):
        out = attend(*operands, rule=Rule(mask=Causal()), kernel=kernel)
        found[kernel] = [out, *torch.autograd.grad(out, operands, upstream)]
    rows = tuple(
        (name, number((a - b).abs().max()))
        for name, a, b in zip(("O", "dQ", "dK", "dV"), found["naive"], found["tiled"], strict=True)
    )
    return Step(
        title=f"the kernel on {n} tokens, two heads, causal",
        why=f"Tiles of {TILE_ROWS} x {TILE_KEYS}; tiles that the mask forbids are skipped. Against the kernel "
        f"that stores all scores:",
        tables=(Table(title="largest difference", header=("", "difference"), rows=rows),),
    )


def _memory() -> Step:
    tile = human_bytes(TILE_ROWS * TILE_KEYS * 4)
    rows = [(n, human_bytes(n * n * 4), tile, human_bytes(2 * n * 4)) for n in (1024, 16384, 131072)]
    return Step(
        title="memory: n^2 becomes n",
        why="Scores of one head in float32, were they stored, against one tile and (r, l), two numbers per row.",
        tables=(
            Table(
                title="", header=("n", "scores stored", "one tile", "(r, l) of all rows"), rows=tuple(rows)
            ),
        ),
        chapters="call attention quadratic 'in both compute and memory'. Compute, yes: every pair is still "
        "visited. Memory is "
        "quadratic only for a kernel that stores the scores.",
    )


def _backward(seed: int) -> Step:
    n = 5
    q, k, v = (t[:, :1] for t in _operands(seed, n))
    out = attend(q, k, v)
    d_out = torch.ones_like(out)
    s = (q @ k.mT / math.sqrt(16))[0, 0]
    lse = torch.logsumexp(s, -1)
    a = torch.exp(s - lse[:, None])
    d_a = (d_out @ v.mT)[0, 0]
    long = (a * d_a).sum(-1)
    short_form = (d_out * out)[0, 0].sum(-1)
    return Step(
        title="backward from O, r and l alone",
        why="The weights are recomputed tile by tile from (r, l). The row dot that softmax's gradient needs is, "
        "after exchanging "
        "two sums, a dot product of two vectors that are at hand.",
        formula=(
            "A = exp(S' - r) / l = exp(S' - lse)",
            "D_i = sum_j A_ij dA_ij = sum_j A_ij (dO_i . V_j) = dO_i . O_i",
            "dS' = A * (dO V^T - D)",
        ),
        values=(
            shown("D", long, "over all keys"),
            shown("dO . O", short_form, "over the head's width"),
            shown("difference", number((long - short_form).abs().max())),
        ),
    )
