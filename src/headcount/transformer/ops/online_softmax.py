"""Online softmax: a softmax-weighted mean of values, accumulated over blocks of keys in one pass.

A block of scores s_j with values v_j (rows) is summed up by three numbers per query:

    m = max_j s_j       l = sum_j exp(s_j - m)       o = sum_j exp(s_j - m) v_j

and softmax(s) V = o / l. Two blocks are merged without looking at their scores again. Let m = max(m_1, m_2):

    l = exp(m_1 - m) l_1 + exp(m_2 - m) l_2          o likewise

Why the rescaling works: exp(s_j - m_1) exp(m_1 - m) = exp(s_j - m), so every term of l_1 and o_1 now stands where it would
if m had been known from the start. Both exponents are <= 0, so nothing overflows; the larger block keeps factor 1.

(l, o) relative to m stand for the numbers L = l e^m and O = o e^m, and merging adds those. Addition is associative and
commutative, so blocks may be merged in any order or tree (exactly in real numbers, to rounding in floating point). The
neutral element is the empty state (-inf, 0, 0); a fully masked block gives that state too.

Backward, in blocks as well. With p_j = exp(s_j - m) / l computed again from the saved m and l,

    dv_j = p_j do        ds_j = p_j (do . v_j - do . o')          o' = o / l, the output

since sum_k p_k (do . v_k) = do . o': the softmax gradient's row sum is known before any block is read.

Saved: scores, values, output, m and l; no probability beyond one block. A query whose keys are all masked gets zeros and
zero gradients, as in ``softmax``; NaN and +inf give NaN. In ``attention/tiled.py`` not even the scores are stored.

Shapes: scores (..., T, S), values (..., S, W) -> (..., T, W); m, l (..., T, 1).
Source: Milakov, Gimelshein 2018; Rabe, Staats 2021; Dao et al. 2022 (FlashAttention).
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from headcount.errors import OperandError, UsageError
from headcount.transformer.ops.operands import bind
from headcount.transformer.ops.operation import Operation


class State(NamedTuple):
    """The running summary per query: maximum, sum of exponentials, weighted sum of values (not yet divided)."""

    m: Tensor
    l: Tensor  # noqa: E741  the letter of the literature
    o: Tensor


def empty(scores: Tensor, values: Tensor) -> State:
    """Return the state of no keys, (-inf, 0, 0): merging it changes nothing."""
    shape = scores.shape[:-1]
    m = scores.new_full((*shape, 1), -torch.inf)
    return State(m, torch.zeros_like(m), values.new_zeros((*shape, values.shape[-1])))


def summarize(scores: Tensor, values: Tensor) -> State:
    """Return the state of one block of keys (S >= 1)."""
    m = scores.detach().amax(-1, keepdim=True)
    e = torch.exp(scores - _finite(m))
    return State(m, e.sum(-1, keepdim=True), e @ values)


def merge(a: State, b: State) -> State:
    """Return the state of the keys of both."""
    m = torch.maximum(a.m, b.m)
    keep_a, keep_b = torch.exp(a.m - _finite(m)), torch.exp(b.m - _finite(m))
    return State(m, keep_a * a.l + keep_b * b.l, keep_a * a.o + keep_b * b.o)


def finish(state: State) -> Tensor:
    """Return o / l: softmax(s) V. A state without keys gives zeros."""
    return state.o / state.l.masked_fill(state.l == 0, 1.0)


def stream(scores: Tensor, values: Tensor, *, block: int) -> State:
    """Return the state of all keys, ``block`` of them at a time, from left to right."""
    blocks = (summarize(s, v) for s, v in _blocks(scores, values, block))
    return reduce(merge, blocks, empty(scores, values))


class Saved(NamedTuple):
    """What the backward reads."""

    scores: Tensor
    values: Tensor
    out: Tensor
    m: Tensor
    l: Tensor  # noqa: E741
    block: int


def forward(scores: Tensor, values: Tensor, *, block: int) -> tuple[Tensor, Saved]:
    """Return ``(softmax(scores) @ values, saved)``."""
    if block < 1:
        raise UsageError(f"online_softmax: block = {block} keys; give 1 or more")
    bind("online_softmax", scores=(scores, "... T S"), values=(values, "... S W"))
    if scores.shape[:-2] != values.shape[:-2]:
        raise OperandError(
            f"online_softmax: scores {tuple(scores.shape)} and values {tuple(values.shape)} differ in leading dimensions"
        )
    state = stream(scores, values, block=block)
    out = finish(state)
    return out, Saved(scores, values, out, state.m, state.l, block)


def backward(saved: Saved, d_out: Tensor) -> tuple[Tensor, Tensor]:
    """Return ds = p (do . v - do . o') and dv = p^T do, block by block."""
    d_scores, d_values = torch.empty_like(saved.scores), torch.empty_like(saved.values)
    known = (d_out * saved.out).sum(-1, keepdim=True)
    m, total = _finite(saved.m), saved.l.masked_fill(saved.l == 0, 1.0)
    here = 0
    for s, v in _blocks(saved.scores, saved.values, saved.block):
        p = torch.exp(s - m).div_(total)
        there = here + s.shape[-1]
        d_scores[..., here:there] = (d_out @ v.mT).sub_(known).mul_(p)
        d_values[..., here:there, :] = p.mT @ d_out
        here = there
    return d_scores, d_values


ONLINE_SOFTMAX = Operation(
    "online_softmax",
    forward=forward,
    backward=backward,
    formula="o = sum exp(s - m) v / sum exp(s - m), block by block",
    gradient="ds = p (do . v - do . o), dv = p^T do",
)


def online_softmax(
    scores: Float[Tensor, "*batch T S"], values: Float[Tensor, "*batch S W"], *, block: int = 128
) -> Float[Tensor, "*batch T W"]:
    """softmax(scores) @ values in one pass over blocks of keys (module docstring: states, merging, gradient)."""
    out: Tensor = ONLINE_SOFTMAX(scores, values, block=block)
    return out


def _finite(m: Tensor) -> Tensor:
    # exp(-inf - 0) is the wanted 0; exp(-inf - -inf) would be NaN.
    return m.masked_fill(m == -torch.inf, 0.0)


def _blocks(scores: Tensor, values: Tensor, block: int) -> list[tuple[Tensor, Tensor]]:
    starts = range(0, scores.shape[-1], block)
    return [(scores[..., at : at + block], values[..., at : at + block, :]) for at in starts]
