"""A Hugging Face ``config.json`` -> ``ModelSpec``.

    file -> dictionary (bounded, no NaN) -> language model's part (``text_config`` ...) -> model_type
         -> class defaults -> builder of that type -> ModelSpec with dtype and quantisation

The class defaults matter: a config may leave out every key that equals its class's default.
"""

from __future__ import annotations

import json
import os

from headcount.errors import ModelFileError, UnsupportedModelError, UsageError
from headcount.spec.huggingface.keys import Keys
from headcount.spec.huggingface.registry import RENAMED, builder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headcount.spec.model import ModelSpec, TowerSpec

# The largest config.json in public use is below 1 MB; a bigger one is not a config.
MAX_CONFIG_BYTES = 8 * 2**20
# Objects, lists and keys cost up to a hundred bytes each; mixed-precision lists of every expert have some 10**5.
MAX_CONFIG_ENTRIES = 500_000
# thinker_config.text_config of an omni model is two deep.
MAX_WRAPPERS = 8
# The names of D and L in the supported classes, beside the aliases that a class itself declares.
_SIZES = (
    "hidden_size",
    "d_model",
    "n_embd",
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "decoder_layers",
)
# Multimodal types whose config keeps the language model's keys at the top and the encoder's in none.
_FLAT = ("phi3_v",)
_HERE = os.path.dirname(__file__)
_DTYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "bf16": "bf16",
    "fp16": "fp16",
    "fp32": "fp32",
}


def read_config_file(path: str) -> dict[str, Any]:
    """Read a JSON object from ``path``; ModelFileError when it is missing, too large, broken or holds NaN."""
    from headcount.spec.checkpoint import file_size, read_start

    # A pipe would block for ever and a device has no end: only regular files are opened.
    size = file_size(path)
    if size > MAX_CONFIG_BYTES:
        raise ModelFileError(f"{path}: {size:,} bytes is no config.json (at most {MAX_CONFIG_BYTES:,})")
    return parse_config(read_start(path, MAX_CONFIG_BYTES), path)


def parse_config(raw: bytes, path: str) -> dict[str, Any]:
    """Parse config bytes; deep nesting, NaN, Infinity and anything but an object are refused."""
    if sum(raw.count(sign) for sign in (b"{", b"[", b":")) > MAX_CONFIG_ENTRIES:
        raise ModelFileError(f"{path}: more than {MAX_CONFIG_ENTRIES:,} entries is no config.json")
    try:
        config = json.loads(raw, parse_constant=_refuse_constant)
    except RecursionError:
        raise ModelFileError(f"{path}: nested too deeply to be a config.json") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(config, dict):
        raise ModelFileError(f"{path}: a config.json must be a JSON object, not {type(config).__name__}")
    return config


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is not a number a config may hold")


def _data(name: str) -> dict[str, Any]:
    with open(os.path.join(_HERE, name), "rb") as file:
        data: dict[str, Any] = json.load(file)
    return data


def language_model(config: dict[str, Any], *, depth: int = 0) -> tuple[dict[str, Any], str, tuple[str, ...]]:
    """Return the language model's config, its model type, and the multimodal types around it, outermost first.

    A multimodal config nests it under ``text_config`` (or ``llm_config``, ``thinker_config.text_config``, ...); keys
    that older files keep at the top (dtype, quantisation, tie flag) are carried down.
    """
    if depth > MAX_WRAPPERS:
        raise ModelFileError(f"config: language models nested more than {MAX_WRAPPERS} deep")
    model_type = _model_type(config)
    wrapped = _nested(config, model_type)
    if wrapped is None:
        # Some older multimodal configs keep the language model's keys at the top, beside the encoders' objects.
        around = any(isinstance(config.get(key), dict) for key in ("vision_config", "audio_config"))
        around = around or model_type in _FLAT
        return config, RENAMED.get(model_type, model_type), (model_type,) if around else ()
    inner, default_type = wrapped
    inner_type = inner.get("model_type")
    found = inner_type if isinstance(inner_type, str) and inner_type else default_type
    carried: dict[str, Any] = {
        key: config[key]
        for key in ("quantization_config", "torch_dtype", "dtype", "tie_word_embeddings")
        if key in config and key not in inner
    }
    # Deeper nesting (an omni model's thinker) is unwrapped again.
    merged: dict[str, Any] = {**inner, **carried, "model_type": found}
    text, text_type, wrappers = language_model(merged, depth=depth + 1)
    return text, text_type, (model_type, *wrappers)


def _nested(config: dict[str, Any], model_type: str) -> tuple[dict[str, Any], str] | None:
    table = _data("wrappers.json")
    known = table["wrappers"].get(model_type)
    for path in [*([known[0]] if known else []), *table["order"]]:
        inner: Any = config
        for step in path.split("."):
            inner = inner.get(step) if isinstance(inner, dict) else None
            if inner is not None and not isinstance(inner, dict):
                raise ModelFileError(f"config key {step} must be an object; given {str(inner)[:40]!r}")
        if isinstance(inner, dict):
            default = known[1].removeprefix("auto:") if known else ""
            return inner, default
    return None


def _model_type(config: dict[str, Any]) -> str:
    model_type = config.get("model_type")
    if isinstance(model_type, str) and model_type:
        return model_type
    if model_type is not None and model_type != "":
        raise ModelFileError(f"config key model_type must be text; given {str(model_type)[:40]!r}")
    architectures = config.get("architectures")
    if isinstance(architectures, list) and architectures and isinstance(architectures[0], str):
        known = _data("architectures.json")["architectures"].get(architectures[0])
        if known:
            return str(known)
        raise UnsupportedModelError(
            f"architecture {architectures[0][:60]!r} is not supported, and no model_type is given"
        )
    raise ModelFileError("config has neither model_type nor architectures: not a transformer's config.json")


def spec_from_config(
    config: dict[str, Any], *, name: str, source: str, overrides: dict[str, int] | None = None
) -> ModelSpec:
    """Build the ModelSpec of a whole ``config.json``. ``overrides`` may hold ``kv_heads``.

    Raises UnsupportedModelError for an unknown type or layer kind, ModelFileError for a bad value, UsageError when
    a what-if does not apply to this model.
    """
    from headcount.spec.quantization import read_quantization

    text, model_type, wrappers = language_model(config)
    # Found by its architecture, the type is written where the rules of the type are looked up.
    text = text if text.get("model_type") else {**text, "model_type": model_type}
    build = builder(model_type)
    known = _data("defaults.json")["model_types"].get(model_type, {"defaults": {}, "attribute_map": {}})
    keys = Keys(
        text,
        model_type=model_type,
        defaults=known["defaults"],
        attribute_map=known["attribute_map"],
        overrides=overrides,
    )
    spec = build(keys)
    if not any(keys.stated(name) for name in _SIZES):
        keys.notes.append(
            f"the config states neither a width nor a number of layers: the class defaults of {model_type!r} are counted"
        )
    unused = set(keys.overrides) - keys.used_overrides
    if unused:
        raise UsageError(
            f"--kv-heads does not apply to model type {model_type!r}: it keeps no key/value heads to change"
        )
    towers, notes = _towers(config, wrappers, text, spec)
    quantization = read_quantization(text)
    packing_notes = quantization.notes if quantization is not None else ()
    return spec.replace(
        name=name,
        source=source,
        dtype=stored_dtype(text),
        quantization=quantization,
        towers=towers,
        notes=tuple(dict.fromkeys((*notes, *keys.notes, *packing_notes))),
        config=text,
    )


def _towers(
    config: dict[str, Any], wrappers: tuple[str, ...], text: dict[str, Any], spec: ModelSpec
) -> tuple[tuple[TowerSpec, ...], tuple[str, ...]]:
    """Return the encoders around the language model, and notes on those that are not known; none for a plain model."""
    if not wrappers:
        return (), ()
    from headcount.spec.huggingface.towers.registry import read_towers

    return read_towers(config, wrappers[0], text=text, spec=spec)


def stored_dtype(config: dict[str, Any]) -> str:
    """Return ``bf16``, ``fp16`` or ``fp32``: what the unquantised weights are stored in (bf16 when unstated)."""
    for key in ("dtype", "torch_dtype"):
        value = config.get(key)
        if value is None or value == "auto":
            continue
        if not isinstance(value, str) or value.removeprefix("torch.") not in _DTYPES:
            raise ModelFileError(
                f"config key {key} {str(value)[:40]!r} is not a dtype headcount knows: {', '.join(_DTYPES)}"
            )
        return _DTYPES[value.removeprefix("torch.")]
    return "bf16"
