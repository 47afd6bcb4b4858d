"""Tests of the running transformer: all are marked ``transformer``, and the shapes in public signatures are checked."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# The first call of an operation pays for imports and kernels; a time limit would measure that.
settings.register_profile("transformer", deadline=None)
settings.load_profile("transformer")
HERE = Path(__file__).parent
if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["*"]
else:
    from jaxtyping import install_import_hook

    # Only under test: at run time a shape annotation costs nothing.
    install_import_hook("headcount.transformer", "beartype.beartype")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.transformer)


@pytest.fixture
def plain_signatures() -> Iterator[None]:
    """Turn the shape checks of the test hook off, so that an operation's own error is what a user would meet."""
    from jaxtyping import config

    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)
