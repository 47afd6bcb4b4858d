"""Real models that come as packages of the package index; a test that needs one is skipped where it is not installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest


def installed(name: str) -> Path:
    """The folder of an installed package, whose code is not run."""
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"the package {name} (a real model) is not installed")
    return Path(next(iter(found.submodule_search_locations)))
