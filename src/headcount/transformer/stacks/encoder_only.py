"""The encoder-only stack: every token sees every token; vectors out, and logits of the tokens themselves (masked LM).

Without positions it is permutation-equivariant: permuting the tokens permutes the vectors, nothing else.
Source: Devlin et al. 2019.
"""

from __future__ import annotations

from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import Module

from headcount.transformer.attention.masks import Everything, Padding
from headcount.transformer.blocks.block import EncoderBlock
from headcount.transformer.stacks.config import EncoderOnlyConfig
from headcount.transformer.stacks.parts import Column, Inputs


class EncoderOnly(Module):
    """Token ids to one vector per token."""

    def __init__(self, config: EncoderOnlyConfig) -> None:
        super().__init__()
        self.config = config
        shape = config.block()
        self.inputs = Inputs(config)
        self.encoder = Column(config, lambda: EncoderBlock(shape))

    def forward(
        self, ids_BT: Int[Tensor, "B T"], keep_BT: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B T D"]:
        """The last layer's vectors; ``keep_BT`` is False on padding."""
        mask = Everything() if keep_BT is None else Padding(keep_BS=keep_BT)
        x_BTD = self.inputs(ids_BT)
        turns = self.inputs.turns(x_BTD)
        return self.encoder.climb(x_BTD, lambda block, x: block(x, mask=mask, turns=turns))

    def logits(self, x_BTD: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]:
        """One score per entry of the vocabulary, by the tied table."""
        logits: Tensor = self.inputs.embedding.logits(x_BTD)
        return logits
