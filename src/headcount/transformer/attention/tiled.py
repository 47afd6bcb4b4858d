"""Attention by tiles: the scores of a tile live in cache for a moment, the T x S matrix never exists.

Forward. Keys come in tiles. For one row let r be a reference point, l = sum_j exp(s_j - r) and o = sum_j exp(s_j - r) v_j
over the tiles seen. A larger maximum m moves the reference: both l and o are multiplied by exp(r - m), which is exact
because exp(s - m) = exp(s - r) exp(r - m) for every term already in the sums. At the end O = o / l, and

    lse = r + log l = log sum_j exp(s_j)

is all that backward needs beside the operands: O(T) numbers instead of O(T S). It is kept as the pair (r, l), which rounds
better than their joint logarithm.

The reference moves only when a tile exceeds it by more than ``SLACK``: exp(SLACK) is far from overflow, so leaving it is
exact too. Often no later key can exceed it by much: |s_ij| <= scale |q_i| max_j |k_j| (Cauchy and Schwarz), and when that bound
is below r + ``ROOM`` for every row, later tiles need no maximum at all. A sink is one more term exp(sink - r) in l.

Backward. Every probability is recomputed as A = exp(S' - lse) = exp(S' - r) / l, tile by tile. With

    D_i = sum_j A_ij dA_ij = sum_j A_ij (dO_i . V_j) = dO_i . sum_j A_ij V_j = dO_i . O_i

the row dot of softmax's gradient needs no scores either, and per tile

    dV += A^T dO     dS' = A * (dO V^T - D)     dQ += scale dS' K     dK += scale dS'^T Q     dsink = -sum exp(sink - lse) D

Three row-wise steps are kept off the tile. A = E w with E = exp(S' - r) and w = 1 / l, one number per row, which is
multiplied into dO and D instead. A column -r beside Q against a column of ones beside K makes
[Q scale, -r] [K, 1]^T = S' - r, and [w dO, -w D] [V, 1]^T = w (dO V^T - D). Each tile costs five products, one exp and
one multiplication (no soft cap).

Exponents are kept in base 2 (S' log2 e, and so r): exp2 is what hardware computes, and here three times as fast as exp.
float16 and bfloat16 operands are computed in float32 tile by tile: errors are those of rounding the result.
Saved: Q, K, V, sinks, O, r, l. Sources: Milakov and Gimelshein 2018 (online softmax); Rabe and Staats 2021; Dao et al. 2022
(tiles, recomputation, D = dO.O); the folded columns and the kept reference are algebra on those.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from headcount.errors import OperandError
from headcount.transformer.attention.masks import ALL, NONE
from headcount.transformer.attention.rule import Rule
from headcount.transformer.ops.operation import BufferedOperation
from headcount.units import round_up

# Rows and keys of one tile, for one group of heads. Measured 2026-11-30, 2 cores with 1 MiB of level-2 cache each, float32,
# 8 heads of 64, n = 4,096: 512 x 512 took 590 ms forward and backward, 256 x 256 605, 256 x 512 671, 256 x 1,024 826,
# 128 x 512 700. Sums of 256 terms also round better than sums of 512 (gradients of V: 10 % less error).
TILE_ROWS = 256
TILE_KEYS = 256
# Tiles computed in one batched product: two keep both cores busy; more heads only when their tiles are small.
TILE_PAIRS = 2 * TILE_ROWS * TILE_KEYS
# Rows summed in one go for the gradients of K and V: their error falls by 12 % from 256 to 64, for 5 % of the time.
PIECE = 64
SLACK = 3.0
# 2**ROOM times a value, and a gradient over it, must stay inside float32 (2**-126 to 2**128) by a wide margin.
ROOM = 20.0
LOG2_E = 1 / math.log(2)


class Saved(NamedTuple):
    """Operands, result, and per row (B, N, T) the log-sum-exp as a pair: lse = reference ln 2 + ln total."""

    q: Tensor
    k: Tensor
    v: Tensor
    sinks: Tensor | None
    o: Tensor
    reference: Tensor
    total: Tensor
    rule: Rule
    versions: tuple[int, ...]


class _Streams:
    """The G query heads of each of the B K key heads, stacked as rows: one stream per key head."""

    def __init__(self, q: Tensor, k: Tensor, rule: Rule) -> None:
        self.B, self.N, self.T, self.H = q.shape
        self.K, self.S = k.shape[1:3]
        self.G = self.N // self.K if self.K else 0
        self.rule = rule
        self.scale = rule.resolved(self.H)
        self.dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        self.device = q.device
        self.step = max(1, min(self.T, TILE_ROWS // max(self.G, 1)))
        pairs = self.G * self.step * min(self.S, TILE_KEYS)
        self.count = max(1, TILE_PAIRS // max(pairs, 1))
        self.covered: dict[tuple[int, int], str] = {}

    def grouped(self, x_BNTX: Tensor) -> Tensor:
        """(B, N, T, X) -> (B K, G, T, X); a view of a contiguous tensor."""
        return x_BNTX.reshape(self.B * self.K, self.G, *x_BNTX.shape[2:])

    def chunks(self) -> Iterator[slice]:
        """Streams computed together."""
        for first in range(0, self.B * self.K, self.count):
            yield slice(first, min(first + self.count, self.B * self.K))

    def query_tiles(self) -> Iterator[slice]:
        """Slices of T."""
        for first in range(0, self.T, self.step):
            yield slice(first, min(first + self.step, self.T))

    def key_tiles(self) -> Iterator[slice]:
        """Slices of S."""
        for first in range(0, self.S, TILE_KEYS):
            yield slice(first, min(first + TILE_KEYS, self.S))

    def coverage(self, queries: slice, keys: slice) -> str:
        """Does the mask allow all, some or none of this tile? Asked once: the answer is that of every chunk of streams."""
        tile = queries.start, keys.start
        if tile not in self.covered:
            start = self.rule.query_start
            self.covered[tile] = self.rule.mask.coverage(
                range(start + queries.start, start + queries.stop), range(keys.start, keys.stop)
            )
        return self.covered[tile]

    def forbid(self, scores: Tensor, streams: slice, queries: slice, keys: slice) -> None:
        """Write -inf where the mask forbids; scores (streams, G t, s) in place."""
        start = self.rule.query_start
        allowed = self.rule.mask.allowed(
            torch.arange(start + queries.start, start + queries.stop, device=self.device),
            torch.arange(keys.start, keys.stop, device=self.device),
        )
        if allowed.shape[0] > 1:
            allowed = allowed[torch.arange(streams.start, streams.stop, device=self.device) // self.K]
        t, s = queries.stop - queries.start, keys.stop - keys.start
        scores.view(-1, self.G, t, s).masked_fill_(~allowed[:, None], -torch.inf)

    def sink_rows(self, sinks: Tensor, streams: slice, t: int) -> Tensor:
        """One sink per row of a chunk of streams: (streams, G t, 1)."""
        per_stream = sinks.to(self.dtype).view(self.K, self.G).repeat(self.B, 1)[streams]
        return per_stream[:, :, None].expand(-1, -1, t).reshape(len(per_stream), -1, 1)


def _with_column(x: Tensor, column: Tensor | float, dtype: torch.dtype, factor: float = 1.0) -> Tensor:
    """[factor x, column]: a copy in ``dtype`` one column wider, its rows aligned to 64 bytes (matrix products like that)."""
    width = x.shape[-1] + 1
    out = torch.empty(*x.shape[:-1], round_up(width, 16), dtype=dtype, device=x.device)[..., :width]
    # The product is taken in ``dtype``, not in the 16 bits that x may have.
    out[..., :-1].copy_(x)
    if factor != 1:
        out[..., :-1] *= factor
    out[..., -1] = column
    return out


def _longest(k: Tensor) -> Tensor:
    """max_j |k_j| per stream, (streams, 1, 1); 0 without keys."""
    return torch.nn.functional.pad(k.norm(dim=-1), (0, 1)).amax(-1)[:, None, None]


def forward(
    q_BNTH: Tensor, k_BKSH: Tensor, v_BKSW: Tensor, sinks_N: Tensor | None, *, rule: Rule
) -> tuple[Tensor, Saved]:
    """Return ``(o_BNTW, saved)``; scores never exceed one tile."""
    with torch.no_grad():
        streams = _Streams(q_BNTH, k_BKSH, rule)
        q, k, v = streams.grouped(q_BNTH), k_BKSH.flatten(0, 1), v_BKSW.flatten(0, 1)
        o_BNTW = torch.empty(*q_BNTH.shape[:3], v.shape[-1], dtype=q.dtype, device=q.device)
        reference_BNT = torch.empty(q_BNTH.shape[:3], dtype=streams.dtype, device=q.device)
        total_BNT = torch.empty_like(reference_BNT)
        results = [streams.grouped(x) for x in (o_BNTW, reference_BNT, total_BNT)]
        for some in streams.chunks():
            k_one = _with_column(k[some], 1.0, streams.dtype)
            v_some = v[some].to(streams.dtype)
            longest_key = _longest(k_one[..., :-1])
            for queries in streams.query_tiles():
                rows = _Rows(streams, q[some, :, queries], longest_key, v_some.shape[-1])
                for keys in streams.key_tiles():
                    coverage = streams.coverage(queries, keys)
                    if coverage == NONE:
                        continue
                    scores = rows.scores(k_one[:, keys])
                    if coverage != ALL:
                        streams.forbid(scores, some, queries, keys)
                    rows.absorb(scores, v_some[:, keys])
                if sinks_N is not None:
                    rows.absorb_sink(streams.sink_rows(sinks_N, some, queries.stop - queries.start))
                for whole, tile in zip(results, rows.finish(), strict=True):
                    whole[some, :, queries] = tile.view(whole[some, :, queries].shape)
    return o_BNTW, Saved(
        q_BNTH, k_BKSH, v_BKSW, sinks_N, o_BNTW, reference_BNT, total_BNT, rule, rule.mask.versions()
    )


class _Rows:
    """The running state of a tile of rows: reference r, l and o."""

    def __init__(self, streams: _Streams, q_tile: Tensor, longest_key: Tensor, width: int) -> None:
        self.soft_cap = streams.rule.soft_cap
        self.q = _with_column(q_tile, 0.0, streams.dtype, streams.scale * LOG2_E).flatten(1, 2)
        count, rows = self.q.shape[:2]
        # No score of a row can exceed this (a soft cap only shrinks scores).
        self.bound = self.q.norm(dim=-1, keepdim=True) * longest_key
        self.bounded = False
        self.reference = self.q.new_zeros(count, rows, 1)
        self.total = self.q.new_zeros(count, rows, 1)
        self.sums = self.q.new_zeros(count, rows, width)
        # Rows that have met no allowed key yet have no reference.
        self.fresh: Tensor | None = torch.ones(count, rows, 1, dtype=torch.bool, device=self.q.device)
        self.buffer = self.q.new_empty(0)

    def scores(self, k_tile: Tensor) -> Tensor:
        """S' - r for one tile of keys, in a buffer that the next tile reuses."""
        shape = (self.q.shape[0], self.q.shape[1], k_tile.shape[1])
        count = shape[0] * shape[1] * shape[2]
        if self.buffer.numel() < count:
            self.buffer = self.q.new_empty(count)
        out = self.buffer[:count].view(shape)
        if self.soft_cap is None:
            return torch.bmm(self.q, k_tile.transpose(1, 2), out=out)
        torch.bmm(self.q[..., :-1], k_tile[..., :-1].transpose(1, 2), out=out)
        cap = self.soft_cap * LOG2_E
        return out.div_(cap).tanh_().mul_(cap).sub_(self.reference)

    def absorb(self, scores: Tensor, v_tile: Tensor) -> None:
        """Add 2^scores and 2^scores V to the sums, moving the reference first where it must move."""
        if not self.bounded:
            highest = scores.amax(-1, keepdim=True)
            if self.fresh is not None or bool((highest > SLACK).any()):
                scores.sub_(self._move(highest))
            # NaN compares as False: such rows keep the careful path.
            self.bounded = self.fresh is None and bool((self.bound - self.reference < ROOM).all())
        # A pass of its own for l: a column of ones in V would give it too, but rounds worse (sums of 256 in a row).
        self.total += scores.exp2_().sum(-1, keepdim=True)
        self.sums.baddbmm_(scores, v_tile)

    def absorb_sink(self, sink: Tensor) -> None:
        """A key of logit ``sink`` whose value is zero: only l grows."""
        self._move(sink * LOG2_E - self.reference)
        self.total += torch.exp2(sink * LOG2_E - self.reference)

    def _move(self, highest: Tensor) -> Tensor:
        """Put the reference at the new maximum (never down, except where there was none); return the distance."""
        step = highest.clamp_min(0)
        shrink = torch.exp2(-step)
        if self.fresh is not None:
            nothing = highest == -torch.inf
            step = torch.where(self.fresh, highest.masked_fill(nothing, 0.0), step)
            # Nothing has been summed yet: 0 times 2^-step must stay 0 when step is far below zero.
            shrink = shrink.masked_fill(self.fresh, 1.0)
            still = self.fresh & nothing
            self.fresh = still if bool(still.any()) else None
        self.reference += step
        self.q[..., -1:] -= step
        self.total *= shrink
        self.sums *= shrink
        return step

    def finish(self) -> tuple[Tensor, Tensor, Tensor]:
        """``(O, r, l)``; a row without any key gives O = 0 and l = 0."""
        o = self.sums / self.total.masked_fill(self.total == 0, 1.0)
        return o, self.reference.squeeze(-1), self.total.squeeze(-1)


def backward(saved: Saved, d_o: Tensor) -> tuple[Tensor | None, ...]:
    """Return ``(dQ, dK, dV, dsinks)``, probabilities recomputed tile by tile from (r, l)."""
    q_BNTH, k_BKSH, v_BKSW, sinks_N, o_BNTW, reference_BNT, total_BNT, rule, versions = saved
    if rule.mask.versions() != versions:
        raise OperandError("attention: the mask was changed in place between forward and backward")
    streams = _Streams(q_BNTH, k_BKSH, rule)
    dtype = streams.dtype
    q, k, v = streams.grouped(q_BNTH), k_BKSH.flatten(0, 1), v_BKSW.flatten(0, 1)
    dot_BNT = (d_o.to(dtype) * o_BNTW).sum(-1)
    # A row without any key takes no part.
    w_BNT = (1 / total_BNT).masked_fill(total_BNT == 0, 0.0)
    rows = [streams.grouped(x) for x in (d_o, reference_BNT, w_BNT, dot_BNT)]
    d_q = torch.empty_like(q_BNTH, memory_format=torch.contiguous_format)
    d_k, d_v = torch.empty_like(k), torch.empty_like(v)
    d_q_streams = d_q.view(q.shape)
    for some in streams.chunks():
        operands, gradients = (q[some], k[some], v[some]), (d_q_streams[some], d_k[some], d_v[some])
        _backward_chunk(streams, some, operands, [x[some] for x in rows], gradients)
    d_sinks = None
    if sinks_N is not None:
        a_sink = torch.exp2(sinks_N.to(dtype)[None, :, None] * LOG2_E - reference_BNT) * w_BNT
        d_sinks = -(a_sink * dot_BNT).sum((0, 2)).to(sinks_N.dtype)
    return d_q, d_k.view(k_BKSH.shape), d_v.view(v_BKSW.shape), d_sinks


def _backward_chunk(
    streams: _Streams,
    some: slice,
    operands: tuple[Tensor, Tensor, Tensor],
    rows: list[Tensor],
    gradients: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Write dQ, dK, dV of one chunk of streams into ``gradients``; ``rows`` are dO, r, w and D."""
    (q, k, v), (d_out, reference, w, dot), (d_q, d_k, d_v) = operands, rows, gradients
    dtype, cap = streams.dtype, streams.rule.soft_cap
    tiles = []
    for queries in streams.query_tiles():
        q_tile = _with_column(q[:, :, queries], -reference[:, :, queries], dtype, streams.scale * LOG2_E)
        g_tile = _with_column(d_out[:, :, queries], -dot[:, :, queries], dtype)
        g_tile.mul_(w[:, :, queries, None])
        # Sums go into tiles of their own: a batched product is fast into contiguous memory only.
        d_q_tile = torch.zeros(
            len(k), q_tile.shape[1] * q_tile.shape[2], q.shape[-1], dtype=dtype, device=q.device
        )
        tiles.append((queries, q_tile.flatten(1, 2), g_tile.flatten(1, 2), d_q_tile))
    buffers = q.new_empty(2, len(k) * streams.G * streams.step * min(streams.S, TILE_KEYS), dtype=dtype)
    for keys in streams.key_tiles():
        k_tile, v_tile = _with_column(k[:, keys], 1.0, dtype), _with_column(v[:, keys], 1.0, dtype)
        d_k_tile, d_v_tile = (
            torch.zeros_like(x[..., :-1], memory_format=torch.contiguous_format) for x in (k_tile, v_tile)
        )
        for queries, q_tile, g_tile, d_q_tile in tiles:
            coverage = streams.coverage(queries, keys)
            if coverage == NONE:
                continue
            shape = (len(k), q_tile.shape[1], k_tile.shape[1])
            e, d_s = (buffers[index, : shape[0] * shape[1] * shape[2]].view(shape) for index in (0, 1))
            slope = _distances(e, q_tile, k_tile, cap)
            if coverage != ALL:
                streams.forbid(e, some, queries, keys)
            e.exp2_()
            _add_over_rows(d_v_tile, e, g_tile[..., :-1])
            torch.bmm(g_tile, v_tile.transpose(1, 2), out=d_s).mul_(e)
            if slope is not None:
                d_s.mul_(slope)
            d_q_tile.baddbmm_(d_s, k_tile[..., :-1], alpha=streams.scale)
            _add_over_rows(d_k_tile, d_s, q_tile[..., :-1])
        # The tile of Q carries log2 e, which is no part of the gradient.
        d_k[:, keys], d_v[:, keys] = d_k_tile.mul_(1 / LOG2_E), d_v_tile
    for queries, _, _, d_q_tile in tiles:
        d_q[:, :, queries] = d_q_tile.view(d_q[:, :, queries].shape)


def _add_over_rows(total: Tensor, tile: Tensor, x: Tensor) -> None:
    """total += tile^T x, the sum over rows in pieces of ``PIECE``: a library sums a product's terms one after another."""
    streams, rows = tile.shape[:2]
    if rows % PIECE or rows == PIECE:
        total.baddbmm_(tile.transpose(1, 2), x)
        return
    parts = torch.bmm(
        tile.view(-1, PIECE, tile.shape[2]).transpose(1, 2),
        x.reshape(-1, PIECE, x.shape[2]),
    )
    total += parts.view(streams, rows // PIECE, *parts.shape[1:]).sum(1)


def _distances(out: Tensor, q_tile: Tensor, k_tile: Tensor, cap: float | None) -> Tensor | None:
    """Write S' log2 e - r into ``out``; return the cap's slope 1 - tanh^2 when there is a cap."""
    if cap is None:
        torch.bmm(q_tile, k_tile.transpose(1, 2), out=out)
        return None
    torch.bmm(q_tile[..., :-1], k_tile[..., :-1].transpose(1, 2), out=out)
    tanh = out.div_(cap * LOG2_E).tanh_()
    slope = 1 - tanh.square()
    out.mul_(cap * LOG2_E).add_(q_tile[..., -1:])
    return slope


TILED = BufferedOperation(
    "tiled attention",
    forward=forward,
    backward=backward,
    formula="O = softmax(Q K^T / sqrt(d_k)) V, tile by tile, lse saved",
    gradient="A = exp(S' - lse), dS' = A * (dO V^T - dO.O)",
)
