"""Tests of the experiments: all are marked ``transformer``, and none is collected where PyTorch is missing."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

HERE = Path(__file__).parent
if importlib.util.find_spec("torch") is None or importlib.util.find_spec("jaxtyping") is None:
    collect_ignore_glob = ["*"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.transformer)
