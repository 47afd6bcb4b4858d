"""The network of encoder-only families: every token sees every token; one vector per token, and one per sequence.

x_0 = norm(E[ids] + E_type[types] + positions)        y = layer_L(... layer_1(x_0))
pooled = tanh(W_p y_first + b_p)                      where the class has a pooler (BERT, RoBERTa)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headcount.errors import UsageError
from headcount.record import Record
from headcount.transformer.attention.masks import Padding
from headcount.transformer.families.layer import Layer
from headcount.transformer.families.stack import Stack, StackShape, places
from headcount.transformer.families.step import Step
from headcount.transformer.layers import Embedding, Linear
from headcount.transformer.ops.arithmetic import add


class EncoderShape(Record):
    """What an encoder has besides its column: token types (0: none), a pooler.

    ``skips_padding``: positions count real tokens only, wherever padding stands (RoBERTa).
    """

    vocabulary: int
    stack: StackShape
    token_types: int = 0
    pooler: bool = False
    skips_padding: bool = False


class Encoder(Stack):
    """Token ids to vectors."""

    def __init__(self, shape: EncoderShape, layers: Sequence[Layer]) -> None:
        super().__init__(shape.stack, layers)
        self.shape = shape
        width = shape.stack.width
        self.embedding = Embedding(shape.vocabulary, width)
        self.token_types = Embedding(shape.token_types, width) if shape.token_types else None
        self.pooler = Linear(width, width) if shape.pooler else None

    def forward(
        self,
        ids_BT: Int[Tensor, "B T"],
        *,
        keep_BT: Bool[Tensor, "B T"] | None = None,
        types_BT: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """One vector per token; ``keep_BT`` is False on padding, ``types_BT`` (0 when None) tells sentence pairs apart."""
        x: Tensor = self.embedding(ids_BT)
        if self.token_types is not None:
            types = torch.zeros_like(ids_BT) if types_BT is None else types_BT
            x = add(x, self.token_types(types))
        elif types_BT is not None:
            raise UsageError("this encoder has no token types")
        positions = places(ids_BT)
        if self.shape.skips_padding and keep_BT is not None:
            positions = (keep_BT.long().cumsum(1) - 1).clamp(min=0)
        padding = None if keep_BT is None else Padding(keep_BS=keep_BT)
        return self.climb(self.enter(x, positions), Step(turns={}, padding=padding))

    def pooled(self, x_BTD: Float[Tensor, "B T D"]) -> Float[Tensor, "B D"]:
        """The pooler's vector of each sequence, from its first token; UsageError without a pooler."""
        if self.pooler is None:
            raise UsageError("this encoder has no pooler; pool its vectors (families.sentences)")
        return torch.tanh(self.pooler(x_BTD[:, 0]))
