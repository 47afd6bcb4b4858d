"""``headcount engines``: every argument that an engine takes is listed, within a terminal's width."""

from __future__ import annotations

import json

import pytest

from headcount.cli.main import dispatch
from headcount.engines import ENGINES, engine
from headcount.errors import UnknownNameError


def test_every_argument_is_listed_in_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["engines"]) == 0
    page = capsys.readouterr().out
    assert max(len(line) for line in page.splitlines()) <= 80
    for name in ENGINES:
        block = page[page.index(f"{name} ") :]
        for argument in engine(name).arguments:
            assert f"\n  {argument.name}" in block
            for choice in argument.choices:
                assert choice in block


def test_one_engine_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["engines", "tensorrt-llm", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["engines"]
    assert found["name"] == "tensorrt-llm"
    assert {argument["name"] for argument in found["arguments"]} >= {"tokens-per-block", "max-tokens"}


def test_an_unknown_engine_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="vllm"):
        dispatch(["engines", "vlm"])
