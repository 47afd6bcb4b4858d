"""A model described on the command line: ``layers=32,hidden=4096,heads=32,kv_heads=8,ffn=14336,vocab=128256``.

It becomes a Llama-like decoder. ``ffn`` and ``vocab`` may be left out when only the cache matters; then the weights
are not known, and ``fit`` and ``book`` ask for ``--params``.
"""

from __future__ import annotations

from headcount.errors import UnknownNameError, UsageError
from headcount.units import parse_count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headcount.spec.model import ModelSpec

_KEYS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "ffn": "intermediate_size",
    "vocab": "vocab_size",
    "window": "sliding_window",
    "experts": "num_local_experts",
    "top_k": "num_experts_per_tok",
    "context": "max_position_embeddings",
}
_FLAGS = {"tied": "tie_word_embeddings"}
_EXAMPLE = "layers=32,hidden=4096,heads=32,kv_heads=8,head_dim=128,ffn=11008,vocab=32000"


def is_inline(text: str) -> bool:
    """Whether ``text`` reads as ``key=value,...``."""
    return "=" in text and "/" not in text.split("=", 1)[0]


def parse_inline(text: str) -> dict[str, int]:
    """Read ``key=value,...`` into whole numbers; unknown and repeated keys are refused."""
    values: dict[str, int] = {}
    for piece in text.split(","):
        key, equals, value = piece.strip().partition("=")
        key = key.strip().lower()
        if not equals or not key:
            raise UsageError(f"inline model: {piece[:40]!r} is not key=value; write it like {_EXAMPLE}")
        if key not in _KEYS and key not in _FLAGS:
            raise UnknownNameError(what="inline key", given=key, allowed=[*_KEYS, *_FLAGS])
        if key in values:
            raise UsageError(f"inline model: {key} is given twice")
        if key in _FLAGS:
            if value.lower() not in ("true", "false", "1", "0"):
                raise UsageError(f"inline model: {key} must be true or false; given {value[:20]!r}")
            values[key] = int(value.lower() in ("true", "1"))
        else:
            values[key] = parse_count(value, what=f"inline {key}", maximum=2**31 if key != "layers" else 4096)
    return values


def inline_config(text: str) -> tuple[dict[str, Any], bool]:
    """Return a Hugging Face style config, and whether ffn and vocab are both known."""
    values = parse_inline(text)
    if "layers" not in values:
        raise UsageError(f"inline model lacks layers; write it like {_EXAMPLE}")
    head_dim, hidden = values.get("head_dim"), values.get("hidden")
    # kv_heads alone says what is cached only beside head_dim: hidden / kv_heads is not a head's width.
    heads = values.get("heads") or (values.get("kv_heads") if head_dim is not None else None)
    if heads is None or (head_dim is None and hidden is None):
        raise UsageError(
            "inline model needs heads and hidden (or head_dim), or kv_heads and head_dim; "
            f"write it like {_EXAMPLE}"
        )
    if hidden is None and head_dim is not None:
        hidden = heads * head_dim
    known = all(key in values for key in ("ffn", "vocab", "hidden", "heads"))
    config: dict[str, Any] = {_KEYS[key]: value for key, value in values.items() if key in _KEYS}
    config |= {_FLAGS[key]: bool(value) for key, value in values.items() if key in _FLAGS}
    config |= {"hidden_size": hidden, "num_attention_heads": heads, "torch_dtype": "float16"}
    config.setdefault("intermediate_size", 4 * int(hidden or 0))
    config.setdefault("vocab_size", 1)
    config["max_position_embeddings"] = values.get("context")
    if ("experts" in values) != ("top_k" in values):
        raise UsageError("inline model: experts and top_k (experts one token visits) go together")
    if "experts" in values:
        config["model_type"] = "mixtral"
    else:
        config["model_type"] = "mistral" if "window" in values else "llama"
    config.setdefault("num_key_value_heads", heads)
    return config, known


def read_inline(text: str, overrides: dict[str, int] | None = None) -> ModelSpec:
    """Build the ModelSpec of an inline description."""
    from headcount.spec.huggingface.config import spec_from_config

    config, known = inline_config(text)
    spec = spec_from_config(config, name=text, source="inline description", overrides=overrides)
    # The class default of max positions means nothing for a described model.
    return spec.replace(max_positions=config["max_position_embeddings"] or 0, parameters_known=known)
