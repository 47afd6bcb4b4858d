"""Sums, products and scalings: the arithmetic between the named operations, so that a tape stays connected.

    add      y = a + b             da = dy               db = dy
    scale    y = c x               dx = c dy             c is a constant, not learned
    product  Y = A B               dA = dY B^T           dB = A^T dY
    scores   S = Q K^T             dQ = dS K             dK = dS^T Q
    total    L = sum x             dx = dL 1             the scalar loss of a worked example

Product, by entries: Y_ij = sum_k A_ik B_kj, hence dL/dA_ik = sum_j dY_ij B_kj = (dY B^T)_ik and
dL/dB_kj = sum_i A_ik dY_ij = (A^T dY)_kj. The two matrices must be saved: each is the other's gradient factor.

Broadcasting. Where an operand is repeated over a dimension, every repetition contributes to the one gradient: the
gradient is summed over the dimensions that were added or stretched (``Tensor.sum_to_size``).

Shapes: add (*s), (*s) broadcastable; product (..., T, D), (..., D, S); scores (..., T, H), (..., S, H) -> (..., T, S).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from headcount.errors import OperandError
from headcount.transformer.ops.operands import bind
from headcount.transformer.ops.operation import Operation


class Shapes(NamedTuple):
    """What the backward of a sum reads: the shapes to sum a broadcast gradient back to."""

    a: torch.Size
    b: torch.Size


def forward_add(a: Tensor, b: Tensor) -> tuple[Tensor, Shapes]:
    """Return ``(a + b, saved)``."""
    bind("add", a=(a, "..."), b=(b, "..."))
    with _Broadcasting("add", a, b):
        return a + b, Shapes(a.shape, b.shape)


def backward_add(saved: Shapes, d_out: Tensor) -> tuple[Tensor, Tensor]:
    """Return dy twice: a sum hands its gradient on unchanged to both branches."""
    return d_out.sum_to_size(saved.a), d_out.sum_to_size(saved.b)


class Factor(NamedTuple):
    """What the backward of a scaling reads."""

    factor: float


def forward_scale(x: Tensor, *, factor: float) -> tuple[Tensor, Factor]:
    """Return ``(c x, saved)``."""
    return x * factor, Factor(factor)


def backward_scale(saved: Factor, d_out: Tensor) -> tuple[Tensor]:
    """Return c dy."""
    return (d_out * saved.factor,)


class Matrices(NamedTuple):
    """What the backward of a product reads: both operands."""

    a: Tensor
    b: Tensor
    transposed: bool


def forward_product(a: Tensor, b: Tensor, *, transpose_b: bool = False) -> tuple[Tensor, Matrices]:
    """Return ``(A B, saved)``, or A B^T with ``transpose_b``."""
    bind("product", a=(a, "... T D"), b=(b, "... S D" if transpose_b else "... D S"))
    with _Broadcasting("product", a, b):
        return a @ (b.mT if transpose_b else b), Matrices(a, b, transpose_b)


def backward_product(saved: Matrices, d_out: Tensor) -> tuple[Tensor, Tensor]:
    """Return dA = dY B^T and dB = A^T dY (transposed operand: dA = dY B, dB = dY^T A)."""
    a, b, transposed = saved
    d_a = (d_out @ (b if transposed else b.mT)).sum_to_size(a.shape)
    if b.dim() == 2:
        # One matrix for the whole batch: its gradient is one product over all rows, not a sum of many.
        a, d_out = a.reshape(-1, a.shape[-1]), d_out.reshape(-1, d_out.shape[-1])
    d_b = d_out.mT @ a if transposed else a.mT @ d_out
    return d_a, d_b.sum_to_size(b.shape)


class Shape(NamedTuple):
    """What the backward of a total reads."""

    x: torch.Size


def forward_total(x: Tensor) -> tuple[Tensor, Shape]:
    """Return ``(sum of all entries, saved)``."""
    return x.sum(), Shape(x.shape)


def backward_total(saved: Shape, d_out: Tensor) -> tuple[Tensor]:
    """Return dL in every entry."""
    return (d_out.expand(saved.x),)


ADD = Operation(
    "add", forward=forward_add, backward=backward_add, formula="y = a + b", gradient="da = dy, db = dy"
)
SCALE = Operation(
    "scale", forward=forward_scale, backward=backward_scale, formula="y = c x", gradient="dx = c dy"
)
PRODUCT = Operation(
    "product",
    forward=forward_product,
    backward=backward_product,
    formula="Y = A B",
    gradient="dA = dY B^T, dB = A^T dY",
)
SCORES = Operation(
    "scores",
    forward=forward_product,
    backward=backward_product,
    formula="S = Q K^T",
    gradient="dQ = dS K, dK = dS^T Q",
)
TOTAL = Operation(
    "total", forward=forward_total, backward=backward_total, formula="L = sum x", gradient="dx = dL 1"
)


def add(a: Float[Tensor, ...], b: Float[Tensor, ...]) -> Float[Tensor, ...]:
    """a + b, broadcast: the residual sum, or positions added to embeddings."""
    y: Tensor = ADD(a, b)
    return y


def scale(x: Float[Tensor, "*shape"], factor: float) -> Float[Tensor, "*shape"]:
    """c x with a constant c: 1/sqrt(H) on scores, sqrt(D) on embeddings, a residual multiplier."""
    y: Tensor = SCALE(x, factor=factor)
    return y


def product(a: Float[Tensor, "... T D"], b: Float[Tensor, "... D S"]) -> Float[Tensor, "... T S"]:
    """A B over the last two dimensions; the leading ones broadcast."""
    y: Tensor = PRODUCT(a, b)
    return y


def scores(q: Float[Tensor, "... T H"], k: Float[Tensor, "... S H"]) -> Float[Tensor, "... T S"]:
    """S_ij = q_i . k_j, every query against every key; the leading dimensions broadcast."""
    s: Tensor = SCORES(q, k, transpose_b=True)
    return s


def total(x: Float[Tensor, ...]) -> Float[Tensor, ""]:
    """The sum of all entries, as a scalar loss."""
    loss: Tensor = TOTAL(x)
    return loss


class _Broadcasting:
    """Name the operands when PyTorch finds that they do not broadcast; free of cost when they do."""

    def __init__(self, op: str, a: Tensor, b: Tensor) -> None:
        self.what = (op, a, b)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, RuntimeError):
            op, a, b = self.what
            raise OperandError(
                f"{op}: a {tuple(a.shape)} and b {tuple(b.shape)} do not broadcast; sizes must be equal or 1"
            ) from None
