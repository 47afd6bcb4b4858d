"""Qwen 2 and 2.5 (biased query, key and value), Qwen 3 (every query and key normed): Llama otherwise.

Layers from ``max_window_layers`` on slide when ``use_sliding_window``.
Source: Yang et al. 2024 (Qwen2), 2025 (Qwen3).
"""

from __future__ import annotations

from headcount.spec.model import ModelSpec
from headcount.transformer.families import llama
from headcount.transformer.families.decoder import Decoder
from headcount.transformer.families.settings import Settings
from headcount.transformer.families.style import build_decoder

MODEL_TYPES = ("qwen2", "qwen3")
NAMES = f"""{llama.NAMES}
layers.{{i}}.mixer.query_norm.weight      model.layers.{{i}}.self_attn.q_norm.weight
layers.{{i}}.mixer.key_norm.weight        model.layers.{{i}}.self_attn.k_norm.weight
"""


def build(spec: ModelSpec) -> Decoder:
    """The network, parameters not yet loaded."""
    style = llama.style(spec)
    if spec.family == "qwen2":
        return build_decoder(spec, style.replace(qkv_bias=True, output_bias=False, ffn_bias=False))
    bias = Settings(spec).flag("attention_bias")
    return build_decoder(spec, style.replace(qkv_bias=bias, output_bias=bias, ffn_bias=False, qk_norm="head"))
