"""Write src/headcount/spec/catalogue/index.json: every alias -> file, and one summary line per model.

Run: python scripts/catalogue_index.py          (a test fails when the index is stale)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from headcount.cost.cache import token_bytes
from headcount.spec import catalogue
from headcount.spec.huggingface.config import spec_from_config
from headcount.spec.kv_format import kv_format

FOLDER = Path(catalogue.FOLDER)


def document() -> str:
    """The index as text, in a fixed order."""
    aliases: dict[str, str] = {}
    models = []
    for path in sorted(FOLDER.glob("*.json")):
        if path.name == "index.json":
            continue
        entry = json.loads(path.read_text())
        spec = spec_from_config(entry["config"], name=entry["name"], source=entry["source"])
        for alias in entry["aliases"]:
            aliases[alias.lower()] = path.stem
        models.append(
            {
                "name": entry["name"],
                "aliases": entry["aliases"],
                "family": spec.family,
                "parameters": spec.parameters,
                "kv_bytes_per_token": token_bytes(spec, kv_format("bf16")),
                "max_positions": spec.max_positions,
                "source": entry["source"],
            }
        )
    return (
        json.dumps({"aliases": dict(sorted(aliases.items())), "models": models}, indent=0, ensure_ascii=False)
        + "\n"
    )


if __name__ == "__main__":
    text = document()
    target = FOLDER / "index.json"
    if "--check" in sys.argv:
        sys.exit(0 if target.read_text() == text else "index.json is stale: run scripts/catalogue_index.py")
    target.write_text(text)
