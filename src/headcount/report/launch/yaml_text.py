"""YAML by PyYAML, with every text that any parser could take for something else in double quotes.

``no``, ``1e5``, ``0x10``, ``12:30`` are texts to one version of YAML and booleans, numbers or times to another, and
the readers differ (Kubernetes and Compose: Go's parser; Ray: PyYAML). Plain text is therefore kept to what all read
alike: a letter, or dashes or a slash and a letter, then letters, digits and ``. _ / @ = -``, and no word of the core schemas.
"""

from __future__ import annotations

import re

from headcount.errors import ModelFileError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PLAIN = re.compile(r"(/|-{0,2})[A-Za-z][A-Za-z0-9._/@=-]*(:[A-Za-z0-9._/@=-]+)*")
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf", "infinity"}


def _yaml() -> Any:
    try:
        import yaml  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        raise UsageError(
            "a YAML file needs PyYAML, which is not installed: pip install 'headcount[emit]'"
        ) from None
    return yaml


def write_yaml(documents: list[dict[str, object]]) -> str:
    """Return ``documents`` as YAML, keys in the given order, no aliases, no folded lines."""
    yaml = _yaml()

    def text(dumper: Any, value: str) -> Any:
        plain = _PLAIN.fullmatch(value) and value.lower().lstrip("-") not in _WORDS
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else '"')

    dumper: Any = type("Dumper", (yaml.SafeDumper,), {"ignore_aliases": lambda self, data: True})
    dumper.add_representer(str, text)
    options = {"sort_keys": False, "default_flow_style": False, "allow_unicode": True, "width": 10**6}
    parts = [yaml.dump(document, Dumper=dumper, **options) for document in documents]
    return "---\n".join(parts)


def read_yaml(text: str) -> list[dict[str, Any]]:
    """Return the documents of ``text``; ModelFileError when it is no YAML or no mapping."""
    yaml = _yaml()
    try:
        documents = [found for found in yaml.safe_load_all(text) if found is not None]
    except yaml.YAMLError as error:
        raise ModelFileError(f"not YAML: {error}") from None
    if not documents or not all(isinstance(found, dict) for found in documents):
        raise ModelFileError("the YAML holds no mapping")
    return documents
