"""Shared fixtures and the tiers: what runs the transformer is marked ``transformer`` and left out where PyTorch is missing."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from headcount.cli.main import dispatch

TRANSFORMER = [
    Path(__file__).parent / name for name in ("transformer", "explain", "experiments", "verify/test_prove.py")
]
# The first call of an operation pays for imports and kernels; a time limit would measure that.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
if importlib.util.find_spec("torch") is None:
    collect_ignore = [str(folder) for folder in TRANSFORMER]
else:
    from jaxtyping import install_import_hook

    # Before any module of the room is imported; only under test: at run time a shape annotation costs nothing.
    install_import_hook("headcount.transformer", "beartype.beartype")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(place in (item.path, *item.path.parents) for place in TRANSFORMER):
            item.add_marker(pytest.mark.transformer)


@pytest.fixture
def plain_signatures() -> Iterator[None]:
    """Turn the shape checks of the test hook off, so that an operation's own error is what a user would meet."""
    from jaxtyping import config

    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Callable[[str], dict[str, Any]]:
    """``ask("fit mistral-7b --gpu ...")`` -> the JSON object; arguments are split at blanks."""

    def run(command: str) -> dict[str, Any]:
        assert dispatch([*command.split(), "--json"]) == 0
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        return document

    return run
