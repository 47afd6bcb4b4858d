"""``ColumnStyle``: the switches in which encoders and encoder-decoders differ, and the layers they make.

The geometry (widths, heads) comes from the ``LayerSpec``; a family file states the rest.
"""

from __future__ import annotations

from torch.nn import ModuleDict

from headcount.errors import UnsupportedModelError
from headcount.record import Record
from headcount.spec.attention import CrossAttention as CrossSpec
from headcount.spec.attention import FullAttention, HeadedAttention
from headcount.spec.model import LayerSpec
from headcount.transformer.attention.masks import Causal, Everything
from headcount.transformer.attention.multi_head import Heads
from headcount.transformer.blocks.placement import norm_names
from headcount.transformer.families.encoder_decoder import CrossAttention
from headcount.transformer.families.layer import Layer
from headcount.transformer.families.self_attention import SelfAttention
from headcount.transformer.families.told_positions import RelativeBias
from headcount.transformer.layers import NormShape, make_feed_forward


class ColumnStyle(Record):
    """One family's switches: which norm and where, the feed-forward's name in ``layers``, biases, the scores' scale."""

    norm: NormShape
    feed_forward: str
    placement: str = "post"
    bias: bool = True
    scale: float | None = None


def column_layer(
    width: int, style: ColumnStyle, layer: LayerSpec, *, causal: bool, bias: RelativeBias | None = None
) -> Layer:
    """One layer: self-attention, cross-attention where its spec has one, feed-forward."""
    sublayers = ["mixer", "feed_forward"]
    cross = None
    if len(layer.mixers) == 2:
        sublayers.insert(1, "cross")
        cross = CrossAttention(_heads(width, style, layer, 1, CrossSpec))
    mask = Causal() if causal else Everything()
    mixer = SelfAttention(_heads(width, style, layer, 0, FullAttention), mask=mask, bias=bias)
    ffn = layer.feed_forward
    if ffn is None or ffn.experts:
        raise UnsupportedModelError("a layer without a dense feed-forward is not run here")
    feed_forward = make_feed_forward(style.feed_forward, width, ffn.width, bias=style.bias)
    norms = ModuleDict({name: style.norm.make(width) for name in norm_names(style.placement, sublayers)})
    return Layer(mixer, feed_forward, norms, placement=style.placement, cross=cross)


def _heads(
    width: int, style: ColumnStyle, layer: LayerSpec, number: int, kind: type[HeadedAttention]
) -> Heads:
    mixer = layer.mixers[number]
    if not isinstance(mixer, kind):
        raise UnsupportedModelError(f"the transformer does not run {mixer.kind} attention here")
    return Heads(
        width=width,
        heads=mixer.num_attention_heads,
        kv_heads=mixer.num_key_value_heads,
        head_width=mixer.head_dim,
        value_width=mixer.v_head_dim,
        bias=style.bias,
        scale=style.scale,
        kernel="fused",
    )
