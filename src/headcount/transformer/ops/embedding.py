"""Embedding: a row of a table per token id.

Forward:  y_t = W_{i_t}.  It is the product of a one-hot row with W, without the zeros.

Backward. W_v is read by every token whose id is v, and each reading contributes:

    dW_v = sum over t with i_t = v of dy_t          (scatter-add; rows that no token named stay zero)

Ids have no gradient. Saved: the ids and the table's height; not the table.

Tied use: the output projection of a tied model is ``linear`` with the same W; PyTorch's engine adds the two gradients.
The original multiplies the embedding by sqrt(D) (``arithmetic.scale``), because W, shared with the projection, starts
with variance 1/D.

Shapes: ids (...) integer, weight (V, D) -> (..., D). Source: Vaswani et al. 2017, 3.4; Press, Wolf 2017 (tying).
"""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from headcount.errors import OperandError
from headcount.transformer.ops.operands import bind, plain
from headcount.transformer.ops.operation import Operation


class Saved(NamedTuple):
    """What the backward reads: which row each token took, and how many rows there are."""

    ids: Tensor
    rows: int


def forward(ids: Tensor, weight: Tensor) -> tuple[Tensor, Saved]:
    """Return ``(W[ids], saved)``."""
    sizes = bind("embedding", weight=(weight, "V D"))
    if ids.is_floating_point() or ids.is_complex() or ids.dtype.itemsize < 4:
        raise OperandError(f"embedding: ids are {plain(ids.dtype)}; give int64 or int32")
    flat = ids.flatten()
    # A look at the ids would stall an accelerator, which reports a bad id by itself.
    if flat.numel() and flat.device.type == "cpu":
        low, high = (int(end) for end in flat.aminmax())
        if low < 0 or high >= sizes["V"]:
            raise OperandError(
                f"embedding: id {low if low < 0 else high} is outside the table of V = {sizes['V']} rows"
            )
    y = weight.index_select(0, flat).view(*ids.shape, sizes["D"])
    return y, Saved(ids, sizes["V"])


def backward(saved: Saved, d_y: Tensor) -> tuple[None, Tensor]:
    """Return no gradient for the ids and the scatter-add of dy into the table."""
    d_weight = d_y.new_zeros(saved.rows, d_y.shape[-1])
    return None, d_weight.index_add_(0, saved.ids.flatten(), d_y.reshape(-1, d_y.shape[-1]))


EMBEDDING = Operation(
    "embedding",
    whole_inputs=(0,),
    forward=forward,
    backward=backward,
    formula="y_t = W[i_t]",
    gradient="dW[v] = sum of dy_t over tokens t with id v",
)


def embedding(ids: Int[Tensor, "*batch"], weight: Float[Tensor, "V D"]) -> Float[Tensor, "*batch D"]:
    """The row of ``weight`` that each id names."""
    y: Tensor = EMBEDDING(ids, weight)
    return y
