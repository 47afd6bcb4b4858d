"""The decoder-only stack: one column of blocks under a causal mask, each position predicting the next token.

    logits = LN(Block_L(... Block_1(E[ids] + positions))) E^T

Sources: Radford et al. 2019 (pre-norm, learned positions); rotary positions as in Llama.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import Module

from headcount.transformer.attention.masks import Causal, Mask
from headcount.transformer.attention.multi_head import MultiHeadAttention
from headcount.transformer.blocks.block import EncoderBlock
from headcount.transformer.layers import FeedForward, GatedFeedForward
from headcount.transformer.stacks.config import DecoderOnlyConfig
from headcount.transformer.stacks.parts import Column, Inputs


class DecoderOnly(Module):
    """Token ids to logits of the next token."""

    def __init__(self, config: DecoderOnlyConfig) -> None:
        super().__init__()
        self.config = config
        shape = config.block()
        self.inputs = Inputs(config)
        self.decoder = Column(config, lambda: EncoderBlock(shape))
        with torch.no_grad():
            # 2 L branches add to the stream; smaller last matrices keep its variance from growing with depth (GPT-2).
            for module in self.decoder.modules():
                if isinstance(module, MultiHeadAttention):
                    module.output.weight.div_(math.sqrt(2 * config.layers))
                elif isinstance(module, FeedForward | GatedFeedForward):
                    module.down.weight.div_(math.sqrt(2 * config.layers))

    def forward(self, ids_BT: Int[Tensor, "B T"], *, mask: Mask | None = None) -> Float[Tensor, "B T V"]:
        """Logits of the token after each position; ``mask`` None is causal (packed or prefix masks may replace it)."""
        rule = Causal() if mask is None else mask
        x_BTD = self.inputs(ids_BT)
        turns = self.inputs.turns(x_BTD)
        decoded = self.decoder.climb(x_BTD, lambda block, x: block(x, mask=rule, turns=turns))
        logits: Tensor = self.inputs.embedding.logits(decoded)
        return logits

    @torch.no_grad()
    def sample(
        self, prompt_T: Int[Tensor, " T"], tokens: int, *, window: int, generator: torch.Generator
    ) -> Int[Tensor, " U"]:
        """The prompt and ``tokens`` more, drawn from the model's distribution; each sees the last ``window`` tokens."""
        training = self.training
        self.eval()
        ids_T = prompt_T
        for _ in range(tokens):
            logits_V = self(ids_T[None, -window:])[0, -1]
            drawn = torch.multinomial(torch.softmax(logits_V.double(), -1), 1, generator=generator)
            ids_T = torch.cat((ids_T, drawn))
        self.train(training)
        return ids_T
