"""``Style``: the switches in which the Llama-like decoders differ, and the network they make.

The geometry (widths, heads, windows, experts) comes from the ``ModelSpec``; a family file states the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.nn import Module, ModuleDict

from headcount.errors import UnsupportedModelError
from headcount.record import Record
from headcount.spec.attention import ChunkedAttention, FullAttention, HeadedAttention, SlidingWindow
from headcount.spec.model import LayerSpec, ModelSpec
from headcount.transformer.attention.masks import Causal, Chunked, Mask
from headcount.transformer.attention.masks import SlidingWindow as WindowMask
from headcount.transformer.attention.memory import Bias
from headcount.transformer.attention.multi_head import Heads
from headcount.transformer.blocks.placement import norm_names
from headcount.transformer.families.decoder import Decoder, DecoderShape
from headcount.transformer.families.layer import Layer
from headcount.transformer.families.rotary import RotaryShape
from headcount.transformer.families.self_attention import SelfAttention
from headcount.transformer.families.settings import Settings
from headcount.transformer.layers import NormShape, make_feed_forward

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_pytorch": "gelu",
    "relu": "relu",
}
_GATED = {"silu": "swiglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh", "relu": "reglu"}


class Style(Record):
    """One family's switches.

    rotaries    name -> rotary positions; ``turn`` names the one of layer i (None: the layer does not turn)
    scale       of the scores; None is 1 / sqrt(H)
    feed_forward   makes the feed-forward of a layer (mixtures); None: gated or plain, by ``LayerSpec``
    placement   where the norms stand (``blocks.placement``)
    branch      multiplies what each sub-layer adds
    """

    norm: NormShape
    activation: str = "silu"
    qkv_bias: bool = False
    output_bias: bool = False
    ffn_bias: bool = False
    placement: str = "pre"
    rotaries: tuple[tuple[str, RotaryShape], ...] = ()
    turn: Callable[[int], str | None] = lambda i: None
    rotary_layout: str = "half"
    scale: float | None = None
    soft_cap: float | None = None
    clip: float | None = None
    qk_norm: bool | str = False
    qk_norm_shape: NormShape | None = None
    sinks: bool = False
    bias: Bias | None = None
    branch: float = 1.0
    feed_forward: Callable[[LayerSpec, int], Module] | None = None
    mixer: Callable[[LayerSpec, int], Module] | None = None


def activation_of(settings: Settings, *names: str, default: str) -> str:
    """The activation's name in ``layers``; UnsupportedModelError for one that is not known."""
    stated = settings.text(*names, default=default)
    if stated not in ACTIVATIONS:
        raise UnsupportedModelError(
            f"activation {stated[:40]!r} is not known; known: {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[stated]


def heads_of(spec: ModelSpec) -> HeadedAttention:
    """The heads of the first layer, for families whose layers all have the same."""
    mixer = spec.layers[0].mixers[0]
    if not isinstance(mixer, HeadedAttention):
        raise UnsupportedModelError(f"layer 0 of {spec.family!r} mixes by {mixer.kind}, not by heads")
    return mixer


def head_width(spec: ModelSpec) -> int:
    """H."""
    return heads_of(spec).head_dim


def mask_of(mixer: HeadedAttention) -> Mask:
    """Who sees whom in a decoder's self-attention of this kind."""
    if isinstance(mixer, SlidingWindow):
        return WindowMask(window=mixer.window)
    if isinstance(mixer, ChunkedAttention):
        return Chunked(chunk=mixer.chunk)
    if isinstance(mixer, FullAttention):
        return Causal()
    raise UnsupportedModelError(f"the transformer does not run {mixer.kind} attention here")


def kernel_of(style: Style) -> str:
    """PyTorch's fused kernel where it can follow the family, else our tiled one; a sink or a cap it cannot."""
    return "naive" if style.sinks or style.soft_cap is not None else "fused"


def attention(spec: ModelSpec, style: Style, layer: LayerSpec, index: int) -> SelfAttention:
    """The self-attention of one layer."""
    mixer = layer.mixers[0]
    if not isinstance(mixer, HeadedAttention):
        raise UnsupportedModelError(f"layer {index} of {spec.family!r} mixes by {mixer.kind}, not by heads")
    shape = Heads(
        width=spec.hidden_size,
        heads=mixer.num_attention_heads,
        kv_heads=mixer.num_key_value_heads,
        head_width=mixer.head_dim,
        value_width=mixer.v_head_dim,
        bias=style.qkv_bias,
        output_bias=style.output_bias,
        qk_norm=style.qk_norm,
        norm=style.qk_norm_shape or style.norm,
        clip=style.clip,
        sinks=style.sinks,
        soft_cap=style.soft_cap,
        scale=style.scale,
        rotary_layout=style.rotary_layout,
        kernel=kernel_of(style),
    )
    return SelfAttention(shape, mask=mask_of(mixer), turn=style.turn(index), bias=style.bias)


def dense_feed_forward(spec: ModelSpec, style: Style, layer: LayerSpec) -> Module:
    """Two matrices or three, by the spec's count."""
    ffn = layer.feed_forward
    if ffn is None or ffn.experts:
        raise UnsupportedModelError(f"a layer of {spec.family!r} has no dense feed-forward")
    name = _GATED[style.activation] if ffn.matrices == 3 else style.activation
    return make_feed_forward(name, spec.hidden_size, ffn.width, bias=style.ffn_bias)


def build_layer(spec: ModelSpec, style: Style, layer: LayerSpec, index: int) -> Layer:
    """One layer in this style."""
    mixer = style.mixer(layer, index) if style.mixer else attention(spec, style, layer, index)
    feed_forward = (
        style.feed_forward(layer, index) if style.feed_forward else dense_feed_forward(spec, style, layer)
    )
    names = norm_names(style.placement, ("mixer", "feed_forward"))
    norms = ModuleDict({name: style.norm.make(spec.hidden_size) for name in names})
    return Layer(mixer, feed_forward, norms, placement=style.placement, branch=style.branch)


def build_decoder(spec: ModelSpec, style: Style, **outside: Any) -> Decoder:
    """The network; ``outside`` holds further fields of ``DecoderShape``."""
    shape = DecoderShape(
        vocabulary=spec.vocab_size,
        width=spec.hidden_size,
        norm=style.norm,
        tied=spec.tied_embeddings,
        rotaries=style.rotaries,
        **outside,
    )
    return Decoder(shape, [build_layer(spec, style, layer, i) for i, layer in enumerate(spec.layers)])
