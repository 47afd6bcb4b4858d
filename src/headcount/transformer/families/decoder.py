"""The network of every decoder family: embeddings, layers, last norm, output projection; with or without a cache.

    x_0 = c E[ids] (+ learned positions) (then a norm)          c: an embedding multiplier, 1 in most families
    x_L = layer_L(... layer_1(x_0))
    logits = cap(m norm(x_L) W_head^T)                          m: a logit multiplier; the cap of Gemma 2

Without a cache the call is a batch ``(B, T)``. With one it is a row ``(1, T)``: the new tokens of all conversations of the
call, one after another; nothing is padded, and each conversation's keys and values stay its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import Module, ModuleList, Parameter

from headcount.errors import OperandError
from headcount.record import Record
from headcount.transformer.attention.attend import use_kernel
from headcount.transformer.attention.masks import Padding
from headcount.transformer.families.layer import Layer
from headcount.transformer.families.rotary import RotaryShape
from headcount.transformer.families.step import Step
from headcount.transformer.layers import Embedding, Linear, NormShape
from headcount.transformer.ops import recording
from headcount.transformer.ops.arithmetic import add, scale
from headcount.transformer.ops.soft_cap import soft_cap

if TYPE_CHECKING:
    from headcount.transformer.kv_cache.call import Call


class DecoderShape(Record):
    """What stands outside the layers. ``head_bias`` with a tied head is a parameter of its own (``head_bias``).

    positions          rows of a table of learned positions (0: none); its row for position p is p + position_offset
    embedding_norm     a norm behind the embeddings (BLOOM)
    embedding_width    width of the table where it is not D (OPT-350m): projected in and out
    final_norm         None: the stream leaves as it is (post-norm families)
    rotaries           name -> rotary positions; layers name the one they turn by
    """

    vocabulary: int
    width: int
    norm: NormShape
    tied: bool
    embedding_width: int | None = None
    embedding_factor: float = 1.0
    positions: int = 0
    position_offset: int = 0
    embedding_norm: NormShape | None = None
    final_norm: bool = True
    head_bias: bool = False
    logit_factor: float = 1.0
    logit_cap: float | None = None
    rotaries: tuple[tuple[str, RotaryShape], ...] = ()


class Decoder(Module):
    """Token ids to logits of the next token."""

    def __init__(self, shape: DecoderShape, layers: Sequence[Layer]) -> None:
        super().__init__()
        self.shape = shape
        narrow = shape.embedding_width or shape.width
        self.embedding = Embedding(shape.vocabulary, narrow)
        self.positions = Embedding(shape.positions, shape.width) if shape.positions else None
        self.embedding_norm = None if shape.embedding_norm is None else shape.embedding_norm.make(shape.width)
        projected = narrow != shape.width
        self.project_in = Linear(narrow, shape.width, bias=False) if projected else None
        self.project_out = Linear(shape.width, narrow, bias=False) if projected else None
        self.layers = ModuleList(layers)
        self.norm = shape.norm.make(shape.width) if shape.final_norm else None
        self.head = None if shape.tied else Linear(narrow, shape.vocabulary, bias=shape.head_bias)
        alone = shape.tied and shape.head_bias
        self.head_bias = Parameter(torch.zeros(shape.vocabulary)) if alone else None

    def forward(
        self,
        ids_BT: Int[Tensor, "B T"],
        *,
        call: Call | None = None,
        keep_BT: Bool[Tensor, "B T"] | None = None,
        positions_BT: Int[Tensor, "B T"] | None = None,
        rows: Int[Tensor, " R"] | None = None,
    ) -> Float[Tensor, "B R V"]:
        """Logits after every position, or only after those in ``rows`` (a prompt needs its last)."""
        x_BTD = self.hidden(ids_BT, call=call, keep_BT=keep_BT, positions_BT=positions_BT)
        return self.logits(x_BTD if rows is None else x_BTD[:, rows])

    def hidden(
        self,
        ids_BT: Int[Tensor, "B T"],
        *,
        call: Call | None = None,
        keep_BT: Bool[Tensor, "B T"] | None = None,
        positions_BT: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """The stream after the last norm.

        ``call`` holds the conversations whose caches this call extends (B = 1); ``keep_BT`` is False on the padding of
        a batch without a cache; ``positions_BT`` replaces 0 ... T - 1.
        """
        positions = self._positions(ids_BT, call, positions_BT)
        x_BTD = self._embed(ids_BT, positions)
        step = Step(
            turns={
                name: rotary.turns(
                    positions,
                    x_BTD.dtype,
                    counts=None if call is None else call.counts,
                    ends=None if call is None else call.ends,
                )
                for name, rotary in self.shape.rotaries
            },
            padding=None if keep_BT is None else Padding(keep_BS=keep_BT),
        )
        for number, layer in enumerate(self.layers):
            with recording.scope(f"layer {number}"):
                memories = () if call is None else call.memories(number)
                x_BTD = layer(x_BTD, step._replace(memories=memories))
        return x_BTD if self.norm is None else self.norm(x_BTD)

    def logits(self, x_BTD: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]:
        """Scores of every token of the vocabulary for these vectors."""
        narrow = x_BTD if self.project_out is None else self.project_out(x_BTD)
        z: Tensor = self.embedding.logits(narrow) if self.head is None else self.head(narrow)
        if self.head_bias is not None:
            z = add(z, self.head_bias.expand_as(z))
        if self.shape.logit_factor != 1.0:
            z = scale(z, self.shape.logit_factor)
        return z if self.shape.logit_cap is None else soft_cap(z, self.shape.logit_cap)

    def use_kernel(self, name: str) -> None:
        """Let every attention run this kernel (``attention.attend``)."""
        use_kernel(self, name)

    def _positions(self, ids_BT: Tensor, call: Any, positions_BT: Tensor | None) -> Tensor:
        """(T), shared by the batch, or (B, T)."""
        T = ids_BT.shape[1]
        if call is None:
            return torch.arange(T, device=ids_BT.device) if positions_BT is None else positions_BT
        positions_T: Tensor = call.positions(ids_BT.device)
        if ids_BT.shape[0] != 1 or len(positions_T) != T:
            raise OperandError(
                f"decoder: a call over caches takes one row of {len(positions_T)} tokens; given {tuple(ids_BT.shape)}"
            )
        return positions_T

    def _embed(self, ids_BT: Tensor, positions: Tensor) -> Tensor:
        x: Tensor = self.embedding(ids_BT)
        if self.shape.embedding_factor != 1.0:
            x = scale(x, self.shape.embedding_factor)
        if self.project_in is not None:
            x = self.project_in(x)
        if self.positions is not None:
            told = self.positions(positions + self.shape.position_offset)
            x = add(x, told.expand_as(x))
        return x if self.embedding_norm is None else self.embedding_norm(x)
