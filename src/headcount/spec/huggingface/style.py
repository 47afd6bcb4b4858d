"""``Style``: the switches in which the many Llama-like decoders differ, and the block they build.

A block is  norms + grouped-query attention (+ biases, + query/key norm) + feed-forward.  What differs is which
biases exist, which norms, the head width rule, and which layers see a window. ``str`` switches name a config key,
``bool`` switches are fixed by the class.
"""

from __future__ import annotations

from headcount.record import Record
from headcount.spec.huggingface.keys import Keys
from headcount.spec.huggingface.parts import (
    PRE_NORMS,
    HeadShape,
    gated,
    gqa,
    head_shape,
    layer_kinds,
    mixer,
    model_from,
    norms,
    plain,
    qk_norm,
    repeat_layers,
    window_of,
)
from headcount.spec.model import FeedForward, LayerSpec, ModelSpec
from headcount.spec.weight import Weight, norm

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    # (keys, layer index) -> (shape, weights); a hashable description of the layer's feed-forward
    FeedForwardRule = Callable[[Keys, int], tuple[FeedForward, tuple[Weight, ...]]]
    WindowRule = Callable[[Keys, int], list[str]]


def all_full(keys: Keys, count: int) -> list[str]:
    """Every layer attends to everything; a ``layer_types`` list, when there is one, must agree or is honoured."""
    return layer_kinds(keys, count, fallback=lambda i: "full")


def all_sliding(keys: Keys, count: int) -> list[str]:
    """Every layer slides when the config has a window (Mistral, Phi-3, Mixtral, Starcoder2)."""
    kind = "sliding" if window_of(keys) else "full"
    return layer_kinds(keys, count, fallback=lambda i: kind)


def every(period: int, *, key: str | None = None, first: bool = False) -> WindowRule:
    """One full layer in every ``period`` (the last of each group, or the first), the others sliding.

    ``key`` names the config key that may change the period.
    """

    def rule(keys: Keys, count: int) -> list[str]:
        step = (keys.optional_integer(key) if key else None) or period
        shift = 0 if first else 1
        return layer_kinds(keys, count, fallback=lambda i: "full" if (i + shift) % step == 0 else "sliding")

    return rule


def after_max_window_layers(keys: Keys, count: int) -> list[str]:
    """Qwen 2 and 3: layers from ``max_window_layers`` on slide, and only when ``use_sliding_window``."""
    start = (
        keys.integer("max_window_layers", default=28, minimum=0) if keys.flag("use_sliding_window") else count
    )
    sliding = window_of(keys) > 0
    return layer_kinds(keys, count, fallback=lambda i: "sliding" if sliding and i >= start else "full")


class Style(Record):
    """Switches of one model type; see the module."""

    qkv_bias: str | bool = False
    o_bias: str | bool = False
    ffn_bias: str | bool = False
    matrices: int = 3
    qk_norm: str = "none"
    norm_names: tuple[str, ...] = PRE_NORMS
    norm_bias: bool = False
    head_dim: int | None = None
    ignores_head_dim: bool = False
    square_output: bool = False
    kinds: WindowRule = all_full
    head_bias: str | bool = False
    bias_default: bool = False
    layer_extra: Callable[[Keys, HeadShape], tuple[Weight, ...]] = lambda keys, shape: ()
    feed_forward: FeedForwardRule | None = None
    feed_forward_key: Callable[[Keys, int], object] = lambda keys, i: 0


def switch(keys: Keys, value: str | bool, *, default: bool = False) -> bool:
    """A fixed bool, or the config flag that the name stands for."""
    return value if isinstance(value, bool) else keys.flag(value, default=default)


def dense_feed_forward(keys: Keys, style: Style) -> tuple[FeedForward, tuple[Weight, ...]]:
    """The same dense feed-forward in every layer: ``intermediate_size`` wide, gated or plain."""
    hidden, width = keys.integer("hidden_size"), keys.integer("intermediate_size")
    bias = switch(keys, style.ffn_bias, default=style.bias_default)
    weights = gated(hidden, width, bias=bias) if style.matrices == 3 else plain(hidden, width, bias=bias)
    return FeedForward(width=width, matrices=style.matrices), weights


def style_shape(keys: Keys, style: Style) -> HeadShape:
    """Head geometry; some classes compute H = D / N and ignore a stated head_dim."""
    shape = head_shape(keys, head_dim=style.head_dim)
    if style.ignores_head_dim:
        width = keys.divided("hidden_size", shape.hidden, shape.q)
        shape = shape.replace(d=width, dv=width)
    return shape


def attention_weights(keys: Keys, style: Style, shape: HeadShape) -> tuple[Weight, ...]:
    """Projections, query/key norms and whatever else the class adds per layer."""
    qkv = switch(keys, style.qkv_bias, default=style.bias_default)
    out = switch(keys, style.o_bias, default=style.bias_default)
    projections = gqa(shape, qkv_bias=qkv, o_bias=out)
    if style.square_output:
        # Helium's output projection is D x D, whatever the heads' width.
        projections = tuple(
            weight.replace(shape=(shape.hidden, shape.hidden)) if weight.name.endswith("o_proj") else weight
            for weight in projections
        )
    return (
        *projections,
        *qk_norm(shape, style.qk_norm),
        *style.layer_extra(keys, shape),
    )


def build(keys: Keys, style: Style) -> ModelSpec:
    """Build a Llama-like decoder in this style."""
    shape = style_shape(keys, style)
    count = keys.layer_count()
    kinds = style.kinds(keys, count)
    window, chunk = window_of(keys), keys.optional_integer("attention_chunk_size") or 0
    if "sliding" in kinds and not window:
        kinds = ["full" if kind == "sliding" else kind for kind in kinds]

    def make(i: int) -> LayerSpec:
        ffn, ffn_weights = (
            style.feed_forward(keys, i) if style.feed_forward else dense_feed_forward(keys, style)
        )
        return LayerSpec(
            mixers=(mixer(shape, kinds[i], window=window, chunk=chunk),),
            feed_forward=ffn,
            weights=(
                *norms(shape.hidden, style.norm_names, bias=style.norm_bias),
                *attention_weights(keys, style, shape),
                *ffn_weights,
            ),
        )

    signature = [(kind, style.feed_forward_key(keys, i)) for i, kind in enumerate(kinds)]
    final = norm("model.norm", shape.hidden, bias=style.norm_bias) if style.norm_names else ()
    return model_from(
        keys,
        repeat_layers(signature, make),
        final_norm=final,
        head_bias=switch(keys, style.head_bias),
    )
