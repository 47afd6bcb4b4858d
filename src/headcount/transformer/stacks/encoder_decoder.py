"""The encoder-decoder of the paper: read a source with all tokens in view, write a target from left to right.

    C = Encoder(source)                 self-attention under the source's padding mask
    logits = Decoder(target, C) E^T     causal self-attention, cross-attention to C under the same padding mask

The target enters shifted right: position t sees target tokens before t and predicts token t. The target needs no
padding mask: padding stands at its end, where the causal mask hides it, and its own predictions are not counted.
Source and target share the embedding table E, which is also the output projection.

Source: Vaswani et al. 2017, 3.1 to 3.5.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import Module

from headcount.transformer.attention.masks import Causal, Everything, Mask, Padding
from headcount.transformer.attention.memory import Seen
from headcount.transformer.blocks.block import DecoderBlock, EncoderBlock
from headcount.transformer.ops import recording
from headcount.transformer.stacks.cached import BatchMemory
from headcount.transformer.stacks.config import EncoderDecoderConfig
from headcount.transformer.stacks.parts import Column, Inputs


class EncoderDecoder(Module):
    """Source and target ids to logits of the target."""

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        self.config = config
        shape = config.block()
        self.inputs = Inputs(config)
        self.encoder = Column(config, lambda: EncoderBlock(shape))
        self.decoder = Column(config, lambda: DecoderBlock(shape))

    def encode(
        self, source_BS: Int[Tensor, "B S"], keep_BS: Bool[Tensor, "B S"] | None = None
    ) -> Float[Tensor, "B S D"]:
        """The source as the decoder sees it; ``keep_BS`` is False on padding."""
        mask = _padding(keep_BS)
        with recording.scope("encoder"):
            return self.encoder.climb(self.inputs(source_BS), lambda block, x: block(x, mask=mask))

    def decode(
        self,
        target_BT: Int[Tensor, "B T"],
        encoded_BSD: Float[Tensor, "B S D"],
        keep_BS: Bool[Tensor, "B S"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """The last layer's vectors of a target that begins with the start token."""
        mask, encoded_mask = Causal(), _padding(keep_BS)
        with recording.scope("decoder"):
            return self.decoder.climb(
                self.inputs(target_BT),
                lambda block, x: block(x, encoded_BSD, mask=mask, encoded_mask=encoded_mask),
            )

    def forward(
        self,
        source_BS: Int[Tensor, "B S"],
        target_BT: Int[Tensor, "B T"],
        keep_BS: Bool[Tensor, "B S"] | None = None,
    ) -> Float[Tensor, "B T V"]:
        """Logits of the token that follows each target position."""
        decoded = self.decode(target_BT, self.encode(source_BS, keep_BS), keep_BS)
        logits: Tensor = self.inputs.embedding.logits(decoded)
        return logits

    @torch.no_grad()
    def generate(
        self,
        source_BS: Int[Tensor, "B S"],
        keep_BS: Bool[Tensor, "B S"] | None = None,
        *,
        start: int,
        end: int,
        limit: int,
        cached: bool = True,
    ) -> Int[Tensor, "B T"]:
        """Greedy answers, at most ``limit`` tokens, without the start token; past its end a row is filled with ``end``.

        The source is encoded once, its keys and values are projected once per block, and each step decodes one token
        against what its blocks kept. ``cached`` False decodes the whole prefix anew for every token.
        """
        training = self.training
        self.eval()
        encoded = self.encode(source_BS, keep_BS)
        steps = CachedDecoder(self, encoded, keep_BS) if cached else None
        target_BT = torch.full((len(source_BS), 1), start, device=source_BS.device)
        ended_B = torch.zeros(len(source_BS), dtype=torch.bool, device=source_BS.device)
        while target_BT.shape[1] <= limit and not bool(ended_B.all()):
            if steps is None:
                last_BD = self.decode(target_BT, encoded, keep_BS)[:, -1]
            else:
                last_BD = steps.decode(target_BT[:, -1:])[:, -1]
            next_B = self.inputs.embedding.logits(last_BD).argmax(-1).masked_fill(ended_B, end)
            target_BT = torch.cat((target_BT, next_B[:, None]), 1)
            ended_B |= next_B == end
        self.train(training)
        return target_BT[:, 1:]


class CachedDecoder:
    """The decoder of ``model`` over one batch of sources: ``decode`` takes the next tokens only, in evaluation mode.

    The keys and values of the source are projected here, once; those of the target are kept as they come.
    """

    def __init__(
        self,
        model: EncoderDecoder,
        encoded_BSD: Float[Tensor, "B S D"],
        keep_BS: Bool[Tensor, "B S"] | None = None,
    ) -> None:
        self.model = model
        self.mask = _padding(keep_BS)
        self.length = 0
        self.blocks: dict[Module, tuple[BatchMemory, tuple[Tensor, Tensor]]] = {}
        for block in model.decoder.blocks:
            assert isinstance(block, DecoderBlock)
            memory = BatchMemory(block.attention.shape, encoded_BSD)
            self.blocks[block] = (memory, block.cross_attention.keys_values(encoded_BSD))

    def decode(self, target_BT: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        """The last layer's vectors of the next T tokens of every target."""
        inputs = self.model.inputs(target_BT, start=self.length)
        rows = slice(0, target_BT.shape[1])

        def run(block: Module, x_BTD: Tensor) -> Tensor:
            memory, source = self.blocks[block]
            assert isinstance(block, DecoderBlock)
            return block.step(x_BTD, memory, Seen(rows, *source, 0, 0), encoded_mask=self.mask)

        with recording.scope("decoder"):
            decoded = self.model.decoder.climb(inputs, run)
        self.length += target_BT.shape[1]
        return decoded


def _padding(keep_BS: Tensor | None) -> Mask:
    return Everything() if keep_BS is None else Padding(keep_BS=keep_BS)
