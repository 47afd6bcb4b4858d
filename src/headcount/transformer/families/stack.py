"""A column of layers with what stands before and behind it: positions and a norm on the way in, a norm on the way out.

    x_0 = norm_in(c E[ids] + positions)       x_L = layer_L(... layer_1(x_0))       y = norm_out(x_L)

An encoder is one such column over a source, the decoder of an encoder-decoder another over a target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, ModuleList

from headcount.errors import UnknownNameError
from headcount.record import Record
from headcount.transformer.attention.attend import use_kernel
from headcount.transformer.families.layer import Layer
from headcount.transformer.families.step import Step
from headcount.transformer.families.told_positions import LearnedPositions, Sinusoids
from headcount.transformer.layers import NormShape
from headcount.transformer.ops import recording
from headcount.transformer.ops.arithmetic import add, scale


class StackShape(Record):
    """What stands around the layers.

    factor           multiplies the embeddings
    positions        ``learned``, ``sinusoidal`` or ``none``, with as many ``rows``; row p + offset is position p's
    embedding_norm   a norm behind embeddings and positions (BERT, BART); ``final_norm`` one behind the last layer
    """

    width: int
    norm: NormShape
    factor: float = 1.0
    positions: str = "none"
    rows: int = 0
    offset: int = 0
    embedding_norm: bool = False
    final_norm: bool = False


class Stack(Module):
    """Embedded tokens to vectors."""

    def __init__(self, shape: StackShape, layers: Sequence[Layer]) -> None:
        super().__init__()
        self.outline = shape
        self.positions = _positions(shape)
        self.embedding_norm = shape.norm.make(shape.width) if shape.embedding_norm else None
        self.layers = ModuleList(layers)
        self.norm = shape.norm.make(shape.width) if shape.final_norm else None

    def enter(self, embedded_BTD: Tensor, positions: Tensor) -> Tensor:
        """Embeddings, of one kind or already added up, to the stream's first vectors; positions (T) or (B, T)."""
        x = embedded_BTD
        if self.outline.factor != 1.0:
            x = scale(x, self.outline.factor)
        if self.positions is not None:
            x = add(x, self.positions.at(positions, x).expand_as(x))
        return x if self.embedding_norm is None else self.embedding_norm(x)

    def climb(
        self, x_BTD: Tensor, step: Step, memories: Callable[[int], Sequence[Any]] | None = None
    ) -> Tensor:
        """Every layer, then the last norm; ``memories`` gives those of a layer by its number."""
        for number, layer in enumerate(self.layers):
            with recording.scope(f"layer {number}"):
                kept = () if memories is None else memories(number)
                x_BTD = layer(x_BTD, step._replace(memories=kept))
        return x_BTD if self.norm is None else self.norm(x_BTD)

    def use_kernel(self, name: str) -> None:
        """Let every attention, of this column and of those inside it, run this kernel (``attention.attend``)."""
        use_kernel(self, name)


def places(ids_BT: Tensor) -> Tensor:
    """0 ... T - 1."""
    return torch.arange(ids_BT.shape[1], device=ids_BT.device)


def _positions(shape: StackShape) -> LearnedPositions | Sinusoids | None:
    if shape.positions == "learned":
        return LearnedPositions(shape.rows, shape.width, offset=shape.offset)
    if shape.positions == "sinusoidal":
        return Sinusoids(shape.rows, shape.width)
    if shape.positions == "none":
        return None
    raise UnknownNameError(
        what="kind of positions", given=shape.positions, allowed=["learned", "sinusoidal", "none"]
    )
