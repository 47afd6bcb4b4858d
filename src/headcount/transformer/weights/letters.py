"""The sizes that letters of a name table stand for, layer by layer, from the ``ModelSpec``.

N query heads, K key/value heads, G = N / K, H key width, W value width, D model width, F feed-forward width, E experts,
V vocabulary; latent attention: H the part of a key without rotary positions, R the rotary part, r the latent.
"""

from __future__ import annotations

from headcount.spec.attention import HeadedAttention, LatentAttention
from headcount.spec.model import LayerSpec, ModelSpec


def letters_of(spec: ModelSpec, layer: str = "") -> dict[str, int]:
    """The letters of one layer (its index as a text); of tensors outside the layers those that are no layer's own."""
    sizes = {"D": spec.hidden_size, "V": spec.vocab_size, "L": spec.num_hidden_layers}
    if layer and int(layer) < len(spec.layers):
        sizes.update(_of_layer(spec.layers[int(layer)]))
    return sizes


def _of_layer(layer: LayerSpec) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for mixer in layer.mixers[:1]:
        if isinstance(mixer, HeadedAttention):
            heads, kv_heads = mixer.num_attention_heads, mixer.num_key_value_heads
            sizes.update(N=heads, K=kv_heads, G=heads // kv_heads, H=mixer.head_dim, W=mixer.v_head_dim)
        elif isinstance(mixer, LatentAttention):
            sizes.update(N=mixer.num_attention_heads, H=mixer.qk_nope_head_dim, W=mixer.v_head_dim)
            sizes.update(R=mixer.qk_rope_head_dim, r=mixer.kv_lora_rank)
    if layer.feed_forward is not None:
        sizes.update(F=layer.feed_forward.width, E=layer.feed_forward.experts)
    return sizes
