"""Shared fixtures: run the command line in this process and read its JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from headcount.cli.main import dispatch


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Callable[[str], dict[str, Any]]:
    """``ask("fit mistral-7b --gpu ...")`` -> the JSON object; arguments are split at blanks."""

    def run(command: str) -> dict[str, Any]:
        assert dispatch([*command.split(), "--json"]) == 0
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        return document

    return run
