"""Zamba2: Mamba-2 everywhere, and a few transformer blocks whose weights several layers share.

    stored once      B shared blocks, call c uses block c mod B: attention over 2 D (the layer's input beside
                     the embeddings), feed-forward, two norms
    stored per call  adapters of rank r on gate and up (and on q, k, v when the config asks), one D x D linear
    kept per call    keys and values: every call sees other inputs, so every hybrid layer has its own cache

Source: arXiv 2411.15242 and the Zamba2 class of transformers 5.24.0.
"""

from __future__ import annotations

from headcount.errors import ModelFileError
from headcount.record import Record
from headcount.spec.huggingface.keys import Keys
from headcount.spec.huggingface.parts import HeadShape, gqa, layer_kinds, mixer, model_from, repeat_layers
from headcount.spec.huggingface.recurrent_parts import (
    Mamba2Shape,
    mamba2_state,
    mamba2_weights,
    state_dtype_bytes,
    whole_heads,
)
from headcount.spec.model import FeedForward, LayerSpec, ModelSpec
from headcount.spec.weight import (
    ATTENTION,
    COLUMN,
    FEED_FORWARD,
    OTHER,
    REPLICATED,
    ROW,
    Weight,
    matrix,
    norm,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.spec.attention import Mixer

_LAYER = "model.layers.{i}."
_SHARED = _LAYER + "shared_transformer."
_KINDS = {"linear_attention": "linear", "mamba": "linear", "hybrid": "hybrid"}


class _Widths(Record):
    """D, F, the adapters' rank r, and the attention's heads, whose input is 2 D wide."""

    hidden: int
    ffn: int
    rank: int
    heads: HeadShape


def zamba2(keys: Keys) -> ModelSpec:
    """Build Zamba2; see the module."""
    widths = _widths(keys)
    kinds = _kinds(keys)
    calls = kinds.count("hybrid")
    blocks = keys.integer("num_mem_blocks")
    ffn = FeedForward(width=widths.ffn, matrices=3)
    # Which call each hybrid layer makes; the layers of the first ``blocks`` calls store the weights.
    call_of: dict[int, int] = {}
    for i, kind in enumerate(kinds):
        if kind == "hybrid":
            call_of[i] = len(call_of)

    def make(i: int) -> LayerSpec:
        if kinds[i] == "linear":
            state, weights = _mamba(keys, _LAYER)
            return LayerSpec(mixers=(state,), feed_forward=None, weights=weights)
        state, weights = _mamba(keys, _LAYER + "mamba_decoder.")
        linear = matrix(_LAYER + "linear", OTHER, (widths.hidden, widths.hidden), REPLICATED)
        stored: tuple[Weight, ...] = ()
        if call_of[i] < blocks:
            times = len(range(call_of[i], calls, blocks))
            # A token passes through the one stored copy ``times`` times.
            stored = tuple(weight.replace(active=times) for weight in _shared_block(keys, widths))
        return LayerSpec(
            mixers=(mixer(widths.heads, "full"), state),
            feed_forward=ffn,
            weights=(*stored, *_adapters(keys, widths), *linear, *weights),
        )

    signature = [
        (kind, call_of[i] if call_of.get(i, blocks) < blocks else -1) for i, kind in enumerate(kinds)
    ]
    return model_from(
        keys, repeat_layers(signature, make), final_norm=norm("model.final_layernorm", widths.hidden)
    )


def _kinds(keys: Keys) -> list[str]:
    """``layers_block_type``; a list that contradicts ``num_hidden_layers`` is refused."""
    listed = keys.sequence("layers_block_type") or []
    kinds = layer_kinds(
        keys, len(listed), attr="layers_block_type", names=_KINDS, fallback=lambda i: "linear"
    )
    count = keys.layer_count()
    if len(kinds) != count:
        raise ModelFileError(
            f"config key layers_block_type lists {len(kinds)} layers; num_hidden_layers is {count}"
        )
    return kinds


def _widths(keys: Keys) -> _Widths:
    hidden = keys.integer("hidden_size")
    q = keys.integer("num_attention_heads")
    d = keys.optional_integer("attention_head_dim") or keys.divided("2 x hidden_size", 2 * hidden, q)
    inputs = keys.integer("attention_hidden_size", default=2 * hidden)
    return _Widths(
        hidden=hidden,
        ffn=keys.integer("intermediate_size", default=4 * hidden),
        rank=keys.integer("adapter_rank"),
        heads=HeadShape(hidden=inputs, q=q, kv=keys.key_value_heads(q), d=d, dv=d),
    )


def _mamba(keys: Keys, path: str) -> tuple[Mixer, tuple[Weight, ...]]:
    hidden = keys.integer("hidden_size")
    shape = Mamba2Shape(
        hidden=hidden,
        inner=keys.integer("mamba_expand") * hidden,
        heads=keys.integer("n_mamba_heads"),
        groups=keys.integer("mamba_ngroups"),
        state=keys.integer("mamba_d_state"),
        kernel=keys.integer("mamba_d_conv"),
    )
    shape = whole_heads(keys, "mamba_headdim", shape)
    weights = mamba2_weights(shape, path + "mamba.", bias=keys.flag("add_bias_linear"), conv_bias=True)
    return mamba2_state(shape, state_dtype_bytes(keys)), (*norm(path + "input_layernorm", hidden), *weights)


def _shared_block(keys: Keys, widths: _Widths) -> tuple[Weight, ...]:
    """Attention from 2 D back to D, gate and up stored as one, down, and the two norms."""
    hidden, ffn, heads = widths.hidden, widths.ffn, widths.heads
    bias = keys.flag("add_bias_linear")
    path = _SHARED + "feed_forward."
    *inputs, output = gqa(heads, path=_SHARED + "self_attn.")
    return (
        *norm(_SHARED + "input_layernorm", heads.hidden),
        *inputs,
        output.replace(shape=(hidden, heads.q * heads.d)),
        *norm(_SHARED + "pre_ff_layernorm", hidden),
        *matrix(path + "gate_up_proj", FEED_FORWARD, (2 * ffn, hidden), COLUMN, bias=bias),
        *matrix(path + "down_proj", FEED_FORWARD, (hidden, ffn), ROW, bias=bias),
    )


def _adapters(keys: Keys, widths: _Widths) -> tuple[Weight, ...]:
    """The low-rank adapters of one call."""
    targets = [(_SHARED + "feed_forward.gate_up_proj", FEED_FORWARD, widths.hidden, 2 * widths.ffn)]
    if keys.flag("use_shared_attention_adapter"):
        width = widths.heads.hidden
        targets += [(f"{_SHARED}self_attn.linear_{x}", ATTENTION, width, width) for x in "qkv"]
    return tuple(
        weight
        for name, part, inputs, outputs in targets
        for weight in (
            *matrix(name + "_adapter_list.*.0", part, (widths.rank, inputs), REPLICATED),
            *matrix(name + "_adapter_list.*.1", part, (outputs, widths.rank), COLUMN),
        )
    )
