"""Write src/headcount/spec/huggingface/defaults.json from an installed transformers.

For every supported ``model_type``: the class defaults of the keys that decide sizes, and the class's attribute map.
A default that the class *computes* from another key (``head_dim = hidden_size // num_attention_heads``) must not
be taken when the config changes that other key, so each candidate is tested: the class is built again with one
driving key changed, and every key that moves with it is left out (the builders state those rules themselves).

Run: python scripts/huggingface_defaults.py KEYS.json   (KEYS.json: {"model_type": ["key", ...]})
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import transformers
from transformers import CONFIG_MAPPING

TARGET = Path(__file__).parent.parent / "src/headcount/spec/huggingface/defaults.json"
DRIVERS = (
    "hidden_size", "num_attention_heads", "num_hidden_layers", "d_model", "n_embd", "n_head", "n_layer", "num_heads",
    "num_layers", "intermediate_size", "qk_nope_head_dim", "qk_rope_head_dim", "head_dim", "encoder_layers", "expand",
    "mamba_expand",
)  # fmt: skip


def as_plain(config: object) -> dict[str, object]:
    """Return the config's values, nested configs as dictionaries."""
    return json.loads(config.to_json_string(use_diff=False))  # type: ignore[attr-defined]


def derived_keys(cls: type, base: dict[str, object]) -> set[str]:
    """Return the keys whose default moves when one driving key is doubled."""
    moved: set[str] = set()
    for driver in DRIVERS:
        value = base.get(driver)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            continue
        try:
            changed = as_plain(cls(**{driver: value * 2}))
        except Exception:
            continue
        moved |= {key for key, old in base.items() if key != driver and changed.get(key, old) != old}
    return moved


def main() -> None:
    """Build every class, drop computed keys, write one JSON object."""
    warnings.simplefilter("ignore")
    wanted: dict[str, list[str]] = json.loads(Path(sys.argv[1]).read_text())
    out: dict[str, object] = {}
    for model_type, keys in sorted(wanted.items()):
        if model_type not in CONFIG_MAPPING:
            print("no class:", model_type)
            continue
        cls = CONFIG_MAPPING[model_type]
        base = as_plain(cls())
        computed = derived_keys(cls, base)
        defaults = {key: base[key] for key in keys if key in base and key not in computed}
        lost = sorted(key for key in keys if key in computed)
        print(f"{model_type}: {len(defaults)} defaults; computed: {', '.join(lost)}")
        out[model_type] = {
            "defaults": defaults,
            "attribute_map": dict(getattr(cls, "attribute_map", {}) or {}),
        }
    document = {
        "source": f"class defaults of transformers {transformers.__version__} (Apache-2.0), facts only",
        "model_types": out,
    }
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(json.dumps(document, separators=(",", ":"), sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
