"""The class defaults of encoders (``defaults.json``): a config may leave out every key that equals its default."""

from __future__ import annotations

import json
import os

from headcount.spec.huggingface.keys import Keys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Defaults:
    """The table of ``defaults.json``, read once per multimodal model."""

    def __init__(self) -> None:
        with open(os.path.join(os.path.dirname(__file__), "defaults.json"), "rb") as file:
            self._table: dict[str, Any] = json.load(file)

    def wrapper(self, model_type: str) -> dict[str, Any]:
        """Defaults of a wrapper's own keys; empty for remote code, whose builders state them."""
        found: dict[str, Any] = self._table["wrappers"].get(model_type, {})
        return found

    def encoder_type(self, model_type: str, name: str) -> str:
        """The encoder type that wrapper ``model_type`` takes when its object ``name`` names none."""
        return str(self._table["types"].get(model_type, {}).get(name, ""))

    def keys(self, encoder_type: str, config: dict[str, Any]) -> Keys:
        """An encoder's keys with the defaults of its class; none for remote code."""
        known = self._table["configs"].get(encoder_type, {"defaults": {}, "attribute_map": {}})
        return Keys(
            config,
            model_type=encoder_type,
            defaults=known["defaults"],
            attribute_map=known["attribute_map"],
        )
