"""What a stack is built from: one frozen record per kind, the defaults being those of the kind's first model."""

from __future__ import annotations

from headcount.errors import UnknownNameError, UsageError
from headcount.record import Record
from headcount.transformer.attention.multi_head import Heads
from headcount.transformer.blocks.block import BlockShape
from headcount.transformer.layers import positive

POSITIONS = ("none", "sinusoidal", "learned", "rotary")


class StackConfig(Record):
    """Sizes and choices common to all stacks.

    ``vocabulary`` V, ``width`` D, ``layers`` L (of each half of an encoder-decoder), ``heads`` N, ``kv_heads`` K (None:
    N), ``feed_forward`` F; names as in ``BlockShape`` and ``POSITIONS``; ``max_length`` bounds learned positions only.
    """

    vocabulary: int
    width: int = 512
    layers: int = 6
    heads: int = 8
    kv_heads: int | None = None
    feed_forward: int = 2048
    activation: str = "relu"
    norm: str = "post"
    norm_kind: str = "layer_norm"
    positions: str = "sinusoidal"
    max_length: int = 1024
    dropout: float = 0.1
    kernel: str = "naive"

    def _check(self) -> None:
        positive("stack", vocabulary=self.vocabulary, layers=self.layers, max_length=self.max_length)
        if self.positions not in POSITIONS:
            raise UnknownNameError(what="kind of positions", given=self.positions, allowed=POSITIONS)
        heads = self.block().attention
        if self.positions == "sinusoidal" and self.width % 2:
            raise UsageError(f"sinusoidal positions need an even width; given {self.width}")
        if self.positions == "rotary" and heads.H % 2:
            raise UsageError(
                f"rotary positions need an even head width; {self.width} / {self.heads} = {heads.H}"
            )

    def block(self) -> BlockShape:
        """The shape of every block; its checks run here."""
        return BlockShape(
            attention=Heads(width=self.width, heads=self.heads, kv_heads=self.kv_heads, kernel=self.kernel),
            feed_forward=self.feed_forward,
            activation=self.activation,
            norm=self.norm,
            norm_kind=self.norm_kind,
            dropout=self.dropout,
        )


class EncoderDecoderConfig(StackConfig):
    """Vaswani et al. 2017, base: 6 + 6 blocks, 512 wide, 8 heads, norms after the sum, sinusoids."""

    def _check(self) -> None:
        super()._check()
        if self.positions == "rotary":
            raise UsageError(
                "an encoder-decoder here takes positions none, sinusoidal or learned; given rotary"
            )


class DecoderOnlyConfig(StackConfig):
    """GPT-2, small (Radford et al. 2019): 12 blocks, 768 wide, norms before the sub-layers, learned positions."""

    width: int = 768
    layers: int = 12
    heads: int = 12
    feed_forward: int = 3072
    activation: str = "gelu_tanh"
    norm: str = "pre"
    positions: str = "learned"


class EncoderOnlyConfig(StackConfig):
    """BERT, base (Devlin et al. 2019): 12 blocks, 768 wide, norms after the sum, learned positions."""

    width: int = 768
    layers: int = 12
    heads: int = 12
    feed_forward: int = 3072
    activation: str = "gelu"
    positions: str = "learned"
    max_length: int = 512
