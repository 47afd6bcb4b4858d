"""The catalogue: one JSON file per model, its real config with a source; ``index.json`` maps every alias to a file.

``scripts/catalogue_index.py`` writes the index; a test fails when it is stale.
"""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FOLDER = os.path.join(os.path.dirname(__file__), "catalogue")


def _load(name: str) -> dict[str, Any]:
    with open(os.path.join(FOLDER, name), "rb") as file:
        data: dict[str, Any] = json.load(file)
    return data


def entry(name: str) -> dict[str, Any] | None:
    """Return the catalogue entry called ``name`` (file name or alias, case does not matter); None when unknown."""
    key = name.strip().lower()
    # A plain name is its own file: the index need not be read.
    if key and key != "index" and all(ch.isalnum() or ch in "-._" for ch in key):
        try:
            return _load(key + ".json")
        except OSError:
            pass
    stem = _load("index.json")["aliases"].get(key)
    return _load(stem + ".json") if stem else None


def index() -> list[dict[str, Any]]:
    """Return one summary per model: name, aliases, parameters, family, KV bytes per token, source."""
    models: list[dict[str, Any]] = _load("index.json")["models"]
    return models


def names() -> list[str]:
    """Every name and alias, names first."""
    data = _load("index.json")
    return list(dict.fromkeys([model["name"] for model in data["models"]] + list(data["aliases"])))
