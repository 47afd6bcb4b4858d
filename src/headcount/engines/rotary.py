"""Numbers in the tables of cosines and sines that engines keep on every rank.

    table = positions x rotary width                 one for each rotary embedding that differs
    positions: max_position_embeddings; linear and dynamic scaling multiply them by the factor; yarn keeps original x
    factor; longrope keeps a short and a long table

Seen in logs: Llama-3.1-8B loads 14.9888 GiB in vLLM where its tensors are 14.957 and the table 0.031 (131,072 x 128 x 2 B).
Source: vLLM model_executor/layers/rotary_embedding.
"""

from __future__ import annotations

from headcount.spec.attention import (
    CompressedLatent,
    HeadedAttention,
    LatentAttention,
    SharedCache,
    SlidingWindow,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headcount.spec.attention import Mixer
    from headcount.spec.model import ModelSpec

# Families whose windowed layers rotate by another base than their full ones: two tables.
_TWO_BASES = ("gemma3_text", "gemma3", "gemma3n_text", "gemma4_text", "gemma4", "olmo3", "modernbert")
# Families without rotary embedding.
_NONE = ("gpt2", "opt", "bloom", "mpt", "t5", "whisper", "gpt_bigcode", "nemotron_h", "jamba", "kimi_linear")
# Families whose positions have several axes, where a config leaves its rope_parameters out; and those that rotate a quarter.
_SEVERAL_AXES = ("qwen2_vl", "qwen2_5_vl", "qwen2_5_omni", "qwen3_vl", "qwen3_omni", "qwen3_5")
_QUARTER = ("qwen3_5", "qwen3_next")
# Gemma 3 was trained at 32,768 positions and stretched by a factor of 8; abridged configs leave it out (Gemma 3 report).
_STRETCHED = {"gemma3_text": 8, "gemma3": 8}
_TRAINED_POSITIONS = 32768


def rotary_numbers(model: ModelSpec) -> int:
    """Numbers of all tables of one rank."""
    text = _text(model.config)
    unrotated = model.family in _NONE or text.get("position_embedding_type") == "nope"
    if unrotated or not model.max_positions:
        return 0
    stated = _stated(text)
    by_kind = any(isinstance(value, dict) for value in stated.values())
    split = by_kind or "rope_local_base_freq" in text or model.family in _TWO_BASES
    tables: dict[tuple[int, bool], int] = {}
    for layer, _ in model.layer_runs():
        for mixer in layer.mixers:
            # A layer that reads another's cache rotates its queries by that layer's table.
            width = 0 if isinstance(mixer, SharedCache) else _width(mixer, model.family, text, stated)
            local = split and isinstance(mixer, SlidingWindow)
            if isinstance(mixer, CompressedLatent):
                # Compressed layers rotate by a base of their own.
                local = not mixer.rate
            if width:
                tables[(width, local)] = _positions(model, text, stated, local=local)
    return sum(width * positions for (width, _), positions in tables.items())


def several_axes(model: ModelSpec) -> bool:
    """Whether a position is one of time, height and width (mrope)."""
    stated = _stated(_text(model.config))
    return "mrope_section" in stated or (not stated and model.family.startswith(_SEVERAL_AXES))


def _stated(text: dict[str, Any]) -> dict[str, Any]:
    stated = text.get("rope_parameters") or text.get("rope_scaling")
    return stated if isinstance(stated, dict) else {}


def _text(config: dict[str, Any]) -> dict[str, Any]:
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else config


def _width(mixer: Mixer, family: str, text: dict[str, Any], stated: dict[str, Any]) -> int:
    if isinstance(mixer, LatentAttention):
        return mixer.qk_rope_head_dim
    if isinstance(mixer, CompressedLatent):
        rotated = text.get("qk_rope_head_dim")
        return rotated if isinstance(rotated, int) else 0
    if not isinstance(mixer, HeadedAttention):
        return 0
    default = 0.25 if family.startswith(_QUARTER) else 1.0
    share = stated.get(
        "partial_rotary_factor", text.get("partial_rotary_factor", text.get("rotary_pct", default))
    )
    return (
        int(mixer.head_dim * share) if isinstance(share, int | float) and 0 < share <= 1 else mixer.head_dim
    )


def _positions(model: ModelSpec, text: dict[str, Any], stated: dict[str, Any], *, local: bool) -> int:
    own = stated.get("sliding_attention" if local else "full_attention", stated)
    own = own if isinstance(own, dict) else {}
    kind = str(own.get("rope_type") or own.get("type") or "default")
    factor = own.get("factor")
    if local and not isinstance(stated.get("sliding_attention"), dict):
        return model.max_positions
    if kind == "longrope":
        original = own.get("original_max_position_embeddings") or text.get("original_max_position_embeddings")
        return model.max_positions + (original if isinstance(original, int) else 0)
    if not stated and model.max_positions > _TRAINED_POSITIONS:
        factor, kind = _STRETCHED.get(model.family, 1), "linear"
    if not isinstance(factor, int | float) or factor <= 0:
        return model.max_positions
    if kind == "yarn":
        original = own.get("original_max_position_embeddings")
        return int(original * factor) if isinstance(original, int) else model.max_positions
    return int(model.max_positions * factor) if kind in ("linear", "dynamic") else model.max_positions
