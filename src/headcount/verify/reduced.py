"""A model cut down until it runs on this machine: fewer layers first, then a smaller vocabulary, then narrower.

A window that the run would not fill is cut to half its tokens, whatever the machine: an unfilled window proves nothing.

What is cut keeps its kind: the first layers of every kind stay, heads keep their width, groups their ratio. The reduced model
is read by the same reader and counted by the same rules, so an error in a rule shows in it as in the whole one.
"""

from __future__ import annotations

from typing import Any

from headcount.errors import HeadcountError, UnsupportedModelError
from headcount.record import Record
from headcount.spec.huggingface.config import spec_from_config
from headcount.spec.model import ModelSpec

_LAYERS = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "num_decoder_layers",
    "encoder_layers",
    "decoder_layers",
)
_WINDOWS = ("sliding_window", "attention_chunk_size")
_VOCABULARY = ("vocab_size", "padded_vocab_size")
_WIDTHS = (
    "hidden_size", "n_embd", "d_model", "intermediate_size", "n_inner", "ffn_dim", "d_ff", "ffn_hidden_size",
    "moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size", "word_embed_proj_dim",
    "encoder_ffn_dim", "decoder_ffn_dim", "num_attention_heads", "n_head", "n_heads", "num_heads", "num_key_value_heads",
    "num_kv_heads", "encoder_attention_heads", "decoder_attention_heads", "num_experts", "num_local_experts",
    "n_routed_experts", "q_lora_rank", "kv_lora_rank", "mamba_n_heads", "mamba_num_heads",
)  # fmt: skip
SMALL_VOCABULARY = 1024


class Reduced(Record):
    """The model that runs, and in words what was cut (empty: nothing)."""

    spec: ModelSpec
    cuts: tuple[str, ...]


def reduce(spec: ModelSpec, *, most_bytes: int, bytes_per_parameter: int, tokens: int) -> Reduced:
    """Cut ``spec`` until its weights fit into ``most_bytes``.

    Raises UnsupportedModelError when the config knows no smaller model that does.
    """
    config: dict[str, Any] = dict(spec.config)
    cuts = _set(config, _WINDOWS, lambda value: max(tokens // 2, 1) if value >= tokens else value)
    filled = _read(spec, config) if cuts else spec
    if filled is not None and filled.parameters * bytes_per_parameter <= most_bytes:
        return Reduced(spec=filled, cuts=tuple(cuts))
    kept = _layers_of_every_kind(spec)
    cuts += _set(config, _LAYERS, lambda value: min(value, kept))
    small = _read(spec, config)
    if small is not None and small.parameters * bytes_per_parameter > most_bytes:
        cuts += _set(config, _VOCABULARY, lambda value: min(value, SMALL_VOCABULARY))
        small = _read(spec, config)
    for factor in (2, 4, 8, 16, 32):
        if small is not None and small.parameters * bytes_per_parameter <= most_bytes:
            return Reduced(spec=small, cuts=tuple(cuts))
        narrow = dict(config)
        _keep_head_width(spec, narrow)
        more = _set(
            narrow, _WIDTHS, lambda value, f=factor: value // f if value % f == 0 and value > f else value
        )
        small = _read(spec, narrow)
        if small is not None and small.parameters * bytes_per_parameter <= most_bytes:
            return Reduced(spec=small, cuts=(*cuts, *more))
    raise UnsupportedModelError(
        f"{spec.name}: {spec.parameters:,} parameters, and its config gives no smaller model of the same kind"
    )


def _layers_of_every_kind(spec: ModelSpec) -> int:
    """How many first layers hold one of every kind there is, at least two."""
    seen: set[int] = set()
    kinds = len(spec.layer_runs())
    for count, layer in enumerate(spec.layers, 1):
        seen.add(id(layer))
        if len(seen) == kinds:
            return max(count, min(2, len(spec.layers)))
    return len(spec.layers)


def _keep_head_width(spec: ModelSpec, config: dict[str, Any]) -> None:
    width = getattr(spec.layers[0].mixers[0], "head_dim", None)
    if width and any(config.get(key) for key in ("hidden_size",)) and "head_dim" not in config:
        config["head_dim"] = width


def _set(config: dict[str, Any], names: tuple[str, ...], change: Any) -> list[str]:
    """Change the stated keys; say what was changed."""
    words = []
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and change(value) != value:
            config[name] = change(value)
            words.append(f"{name} {value:,} -> {config[name]:,}")
    return words


def _read(spec: ModelSpec, config: dict[str, Any]) -> ModelSpec | None:
    """The spec of a changed config; None when the change contradicts something in it."""
    unpacked = {key: value for key, value in config.items() if key != "quantization_config"}
    try:
        return spec_from_config(unpacked, name=spec.name, source=spec.source)
    except HeadcountError:
        return None
