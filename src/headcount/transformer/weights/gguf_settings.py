"""Rotary positions as a GGUF file states them, in the spelling of a Hugging Face config.

    rope.dimension_count < H                 partial_rotary_factor
    rope.scaling.type linear, yarn           rope_scaling of that type; linear where a factor stands without a type
    rope.scale_linear                        the factor's older name
    rope_freqs.weight                        each pair of rotary dimensions turns slower by its factor (Llama 3.1): said as
                                             longrope with the same factors for short and long
    rope_factors_short/long.weight           longrope (Phi-3)

The scale of Gemma's scores, 1 / sqrt(query_pre_attn_scalar), is in no GGUF key either: it is the head width, but D / N in
the 27B models (46 layers of Gemma 2, 62 of Gemma 3), as llama.cpp decides it too.

No count depends on these, so the planner's reader leaves them out; a network that left them out would be silently wrong.
"""

from __future__ import annotations

import math
from typing import Any

from headcount.errors import ModelFileError, UnsupportedModelError
from headcount.spec.attention import HeadedAttention
from headcount.spec.checkpoint import shown
from headcount.spec.model import ModelSpec
from headcount.transformer.weights.gguf_file import GgufSource

# Architecture -> layers of the one size whose scores are scaled by D / N.
_WIDER = {"gemma2": 46, "gemma3": 62}
FREQUENCIES, SHORT, LONG = "rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"


def with_rotary(spec: ModelSpec, source: GgufSource) -> tuple[ModelSpec, tuple[str, ...]]:
    """``(spec, names)``: the spec with a config that states the file's rotary positions, and the tensors that said so.

    Raises
    ------
    UnsupportedModelError: a scaling that has no such spelling.    ModelFileError: values that make no sense.
    """
    found: dict[str, Any] = {}
    mixers = [mixer for layer in spec.layers for mixer in layer.mixers if isinstance(mixer, HeadedAttention)]
    width = _value(source, "rope.dimension_count")
    if mixers and width is not None and 0 < width < mixers[0].head_dim:
        found["partial_rotary_factor"] = width / mixers[0].head_dim
    if mixers and source.architecture in _WIDER:
        widest = len(spec.layers) == _WIDER[source.architecture]
        heads, own = mixers[0].num_attention_heads, mixers[0].head_dim
        found["query_pre_attn_scalar"] = spec.hidden_size / heads if widest else own
    present = set(source.names())
    if FREQUENCIES in present:
        factors = source.tensor(FREQUENCIES).tolist()
        used: tuple[str, ...] = (FREQUENCIES,)
        found["rope_scaling"] = _longrope(factors, factors, {"attention_factor": 1.0, "factor": 1.0})
    elif SHORT in present and LONG in present:
        used = (SHORT, LONG)
        stated = {
            "attention_factor": _value(source, "rope.scaling.attn_factor"),
            "original_max_position_embeddings": _value(source, "rope.scaling.original_context_length"),
        }
        extra = {key: value for key, value in stated.items() if value is not None}
        found["rope_scaling"] = _longrope(source.tensor(SHORT).tolist(), source.tensor(LONG).tolist(), extra)
    else:
        used = ()
        scaling = _scaling(source)
        if scaling:
            found["rope_scaling"] = scaling
    return (spec.replace(config={**spec.config, **found}) if found else spec), used


def _longrope(short: list[float], long: list[float], extra: dict[str, Any]) -> dict[str, Any]:
    if not all(factor > 0 for factor in (*short, *long)):
        raise ModelFileError("rotary factors must be positive")
    return {"rope_type": "longrope", "short_factor": short, "long_factor": long, **extra}


def _scaling(source: GgufSource) -> dict[str, Any]:
    factor = _value(source, "rope.scaling.factor") or _value(source, "rope.scale_linear")
    # As llama.cpp reads it: linear by default, and no factor (or 0) is 1.
    kind = source.metadata.get(f"{source.architecture}.rope.scaling.type", "linear" if factor else "none")
    if kind == "none":
        return {}
    if kind not in ("linear", "yarn"):
        raise UnsupportedModelError(
            f"rotary scaling {shown(kind)} of a GGUF file is not supported; known: linear, yarn"
        )
    if factor is None or factor <= 0:
        raise ModelFileError(f"{shown(source.path)}: rotary scaling {shown(kind)} without a positive factor")
    scaling: dict[str, Any] = {"rope_type": kind, "factor": factor}
    trained = _value(source, "rope.scaling.original_context_length")
    if trained is not None:
        scaling["original_max_position_embeddings"] = trained
    if kind == "yarn":
        _add_yarn(source, scaling, factor)
    return scaling


def _add_yarn(source: GgufSource, scaling: dict[str, Any], factor: float) -> None:
    """The corrections of YaRN, by llama.cpp's keys: its attention factor multiplies the rule's own 0.1 ln f + 1."""
    extension = _value(source, "rope.scaling.yarn_ext_factor")
    if extension not in (None, 1):
        raise UnsupportedModelError(
            f"rope.scaling.yarn_ext_factor {shown(extension)} is not supported; known: 1"
        )
    for name in ("beta_fast", "beta_slow"):
        value = _value(source, f"rope.scaling.yarn_{name}")
        if value is not None:
            scaling[name] = value
    times = [_value(source, f"rope.scaling.{name}") for name in ("attn_factor", "yarn_attn_factor")]
    stated = [value for value in times if value is not None]
    if stated:
        scaling["attention_factor"] = math.prod(stated) * (
            0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
        )


def _value(source: GgufSource, key: str) -> Any:
    """A number of the architecture; None when it is not stated."""
    value = source.metadata.get(f"{source.architecture}.{key}")
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e15
    ):
        raise ModelFileError(f"{shown(source.path)}: {key} {shown(value)} is not a number")
    return value
