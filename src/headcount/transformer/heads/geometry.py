"""The ``ModelSpec`` of a model with fewer heads: every tensor with its new shape, every cache entry with its new width.

    W_Q  N H x D        W_K  K H x D        W_V  K H' x D        W_O  D x N H'

A layer that keeps N' of N query heads and K' of K key/value heads stores N' / N of W_Q and W_O, K' / K of W_K and W_V, and K' / K
of its cache. A layer that keeps none stores no attention (but the bias of W_O) and remembers nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from headcount.errors import UnsupportedModelError
from headcount.spec.attention import HeadedAttention
from headcount.spec.kv_format import kv_format
from headcount.spec.model import LayerSpec, ModelSpec
from headcount.spec.weight import ATTENTION, COLUMN, KV, ROW, Weight

# layer -> (query heads kept, key/value heads kept)
Kept = Mapping[int, tuple[int, int]]
_HEAD_NORM = re.compile(r"(^|[._])(q|k|query|key)_?(norm|layernorm|ln)(\.|$)")
_SINKS = re.compile(r"sink")


def with_heads(spec: ModelSpec, kept: Kept, *, note: str) -> ModelSpec:
    """``spec`` with these layers' heads; its file header and packing no longer describe it and are dropped.

    Raises UnsupportedModelError when a layer's tensors cannot be told apart as W_Q, W_K, W_V and W_O.
    """
    made: dict[tuple[int, int, int], LayerSpec] = {}
    layers = []
    for number, layer in enumerate(spec.layers):
        if number not in kept:
            layers.append(layer)
            continue
        # Equal layers stay one object, as ``ModelSpec`` promises.
        key = (id(layer), *kept[number])
        if key not in made:
            made[key] = _layer(spec, number, layer, *kept[number])
        layers.append(made[key])
    # The config describes the model before; its constants still hold, its head counts do not.
    return spec.replace(
        layers=tuple(layers),
        checkpoint=None,
        quantization=None,
        nominal_parameters=None,
        notes=(*spec.notes, note),
    )


def _layer(spec: ModelSpec, number: int, layer: LayerSpec, heads: int, kv_heads: int) -> LayerSpec:
    mixer = layer.mixers[0] if len(layer.mixers) == 1 else None
    if not isinstance(mixer, HeadedAttention):
        raise UnsupportedModelError(
            f"layer {number} of {spec.family!r} does not attend by heads alone; it keeps its heads"
        )
    N, K = mixer.num_attention_heads, mixer.num_key_value_heads
    weights = [_weight(weight, N, heads, K, kv_heads) for weight in layer.weights]
    changed = [weight for weight in layer.weights if weight.part == ATTENTION and weight.linear]
    if len(changed) != 4:
        names = ", ".join(weight.name for weight in changed)
        raise UnsupportedModelError(
            f"layer {number} of {spec.family!r} is not W_Q, W_K, W_V, W_O but {names}"
        )
    mixers = (mixer.replace(num_attention_heads=heads, num_key_value_heads=kv_heads),) if heads else ()
    return layer.replace(mixers=mixers, weights=tuple(weight for weight in weights if weight is not None))


def _weight(weight: Weight, N: int, heads: int, K: int, kv_heads: int) -> Weight | None:
    """The tensor that is left; None when nothing is."""
    if not heads and _HEAD_NORM.search(weight.name):
        return None
    if weight.part != ATTENTION:
        return weight
    rows, *rest = weight.shape
    if weight.shard == KV:
        return weight.replace(shape=(rows // K * kv_heads, *rest), heads=kv_heads) if kv_heads else None
    if weight.shard == COLUMN or _SINKS.search(weight.name):
        return weight.replace(shape=(rows // N * heads, *rest), heads=heads) if heads else None
    if weight.shard == ROW:
        return weight.replace(shape=(rows, rest[0] // N * heads)) if heads else None
    return weight


def cache_bytes_per_token(spec: ModelSpec, kv: str = "bf16") -> int:
    """Bytes one token adds to the caches of all layers, windows not yet full."""
    format = kv_format(kv)
    return sum(mixer.kv_bytes(1, format) for layer in spec.layers for mixer in layer.mixers)
