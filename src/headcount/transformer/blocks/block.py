"""The two blocks of the transformer, wired by the placement of their norms (``placement.py``).

    EncoderBlock    self-attention, feed-forward                       under a causal mask: the block of a decoder-only model
    DecoderBlock    masked self-attention, cross-attention, feed-forward

Shapes: x (B, T, D) -> (B, T, D); the encoder's output, which cross-attention reads, (B, S, C).
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor
from torch.nn import Module, ModuleDict

from headcount.errors import UnknownNameError, UsageError
from headcount.record import Record
from headcount.transformer.attention.masks import Causal, Mask
from headcount.transformer.attention.memory import Memory, Seen
from headcount.transformer.attention.multi_head import Heads, MultiHeadAttention
from headcount.transformer.blocks.placement import PLACEMENTS, Sublayer, make_norms
from headcount.transformer.layers import FEED_FORWARDS, NORMS, Dropout, make_feed_forward, positive


class BlockShape(Record):
    """One block: its attention, the feed-forward's inner width F and activation, its norms, and dropout.

    ``norm`` places the norms (post, pre, parallel), ``norm_kind`` is layer_norm or rms_norm, ``activation`` a name of
    ``layers.FEED_FORWARDS`` (relu as published; swiglu and the like have a third matrix).
    """

    attention: Heads
    feed_forward: int
    activation: str = "relu"
    norm: str = "post"
    norm_kind: str = "layer_norm"
    dropout: float = 0.0

    def _check(self) -> None:
        positive("block", feed_forward=self.feed_forward)
        for what, given, allowed in (
            ("placement of the norms", self.norm, PLACEMENTS),
            ("norm", self.norm_kind, NORMS),
            ("feed-forward", self.activation, FEED_FORWARDS),
        ):
            if given not in allowed:
                raise UnknownNameError(what=what, given=given, allowed=allowed)
        if not 0 <= self.dropout < 1:
            raise UsageError(f"dropout must be 0 or more and below 1; given {self.dropout}")


class EncoderBlock(Module):
    """Self-attention and feed-forward, each with norm, dropout and residual sum."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(shape.attention)
        self.feed_forward = _feed_forward(shape)
        self.norms = _norms(shape, ("attention", "feed_forward"))
        self.dropout = Dropout(shape.dropout)
        self.wire = PLACEMENTS[shape.norm]

    def forward(
        self,
        x_BTD: Float[Tensor, "B T D"],
        *,
        mask: Mask | None = None,
        turns: tuple[Tensor, Tensor] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """``mask`` says which tokens see which; ``turns`` are rotary positions."""
        sublayers = (
            Sublayer("attention", lambda x: self.attention(x, mask=mask, turns=turns)),
            Sublayer("feed_forward", self.feed_forward),
        )
        return self.wire(x_BTD, sublayers, self.norms, self.dropout)


class DecoderBlock(Module):
    """Masked self-attention, attention to the encoder's output, feed-forward: three sub-layers.

    ``shape.attention.context_width`` is the encoder's width C where it differs from D.
    """

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(shape.attention.replace(context_width=None))
        self.cross_attention = MultiHeadAttention(shape.attention)
        self.feed_forward = _feed_forward(shape)
        self.norms = _norms(shape, ("attention", "cross_attention", "feed_forward"))
        self.dropout = Dropout(shape.dropout)
        self.wire = PLACEMENTS[shape.norm]

    def forward(
        self,
        x_BTD: Float[Tensor, "B T D"],
        encoded_BSC: Float[Tensor, "B S C"],
        *,
        mask: Mask | None = None,
        encoded_mask: Mask | None = None,
    ) -> Float[Tensor, "B T D"]:
        """``mask`` for the block's own tokens (causal), ``encoded_mask`` for the encoder's (padding)."""
        sublayers = (
            Sublayer("attention", lambda x: self.attention(x, mask=mask)),
            Sublayer("cross_attention", lambda x: self.cross_attention(x, encoded_BSC, mask=encoded_mask)),
            Sublayer("feed_forward", self.feed_forward),
        )
        return self.wire(x_BTD, sublayers, self.norms, self.dropout)

    def step(
        self, x_BTD: Float[Tensor, "B T D"], memory: Memory, source: Seen, *, encoded_mask: Mask
    ) -> Float[Tensor, "B T D"]:
        """The next T tokens: ``memory`` keeps their keys and values, ``source`` holds those of the encoder's output."""
        cross = self.cross_attention
        sublayers = (
            Sublayer("attention", lambda x: self.attention(x, mask=Causal(), memory=memory)),
            Sublayer("cross_attention", lambda x: cross.look_at(x, [source], mask=encoded_mask)),
            Sublayer("feed_forward", self.feed_forward),
        )
        return self.wire(x_BTD, sublayers, self.norms, self.dropout)


def _feed_forward(shape: BlockShape) -> Module:
    heads = shape.attention
    return make_feed_forward(shape.activation, heads.width, shape.feed_forward, bias=heads.bias)


def _norms(shape: BlockShape, sublayers: tuple[str, ...]) -> ModuleDict:
    return make_norms(shape.norm, shape.norm_kind, shape.attention.width, sublayers)
