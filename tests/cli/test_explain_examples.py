"""``explain`` with PyTorch, through the command line."""

from __future__ import annotations

import importlib.util
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from headcount.cli.main import dispatch
from headcount.errors import HeadcountError

# Not importorskip: that would import PyTorch in every run that merely deselects these tests.
pytestmark = [
    pytest.mark.transformer,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs the transformer extra"),
]


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert dispatch(["explain", *words, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def value(document: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(v for step in document["steps"] for v in step["values"] if v["name"] == name)
    return found


def test_both_examples_in_both_topics(capsys: pytest.CaptureFixture[str]) -> None:
    for topic in ("attention", "backward"):
        for example in ("upi", "identity"):
            document = ask(capsys, topic, "--example", example)
            assert document["topic"] == topic and example in document["title"]
            assert sum(value(document, "A")["values"][0]) == pytest.approx(1, abs=1e-15)


def test_set_is_repeatable_and_says_what_it_reached(capsys: pytest.CaptureFixture[str]) -> None:
    document = ask(capsys, "attention", "--set", "x[1,1]=4", "--set", "W_O[0,1]=2")
    assert value(document, "A")["values"][0] == pytest.approx(
        [0.1070418014651704, 0.8929581985348296], abs=1e-12
    )
    assert value(document, "A")["before"][0] == pytest.approx(
        [0.3302384506733431, 0.6697615493266569], abs=1e-12
    )
    assert value(document, "W_Q")["changed"] is False and value(document, "W_O")["changed"] is True
    assert "V2" in document["unchanged"] and "Y" in document["changed"]


def test_causal_and_scale(capsys: pytest.CaptureFixture[str]) -> None:
    document = ask(capsys, "attention", "--causal")
    assert value(document, "A")["values"][0] == [1, 0] and value(document, "O")["values"][0] == [2, 2]
    assert value(document, "S'")["values"][0][1] == "-inf"
    table = next(t for s in document["steps"] for t in s["tables"] if "weights of the query" in t["title"])
    # The last query: its row of the second head is that of the unmasked example.
    assert table["title"].endswith("down")
    assert [row[2] for row in table["rows"]] == pytest.approx(
        [0.8044296825069569, 0.1955703174930431], abs=1e-12
    )
    none = ask(capsys, "attention", "--scale", "none")
    why = next(s["why"] for s in none["steps"] if s["title"].endswith("scale"))
    assert "Nothing is divided here" in why and "brings it back" not in why
    assert value(none, "S'")["values"] == [[4, 5], [7, 10]]


def test_text_shows_before_and_after(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["explain", "attention", "--set", "x[down,1]=4"]) == 0
    out = capsys.readouterr().out
    assert "down  1  3  ->  1  5" in out and "UPI   2  1  =" in out
    assert "x[1,1] (down): 2 -> 4" in out
    assert "\x1b" not in out


def test_digits(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["explain", "backward", "--digits", "10"]) == 0
    assert "-0.6255943862" in capsys.readouterr().out


@pytest.mark.parametrize(
    "example", ["identity", "upi", "encoder", "decoder", "pre-norm", "parallel", "gated"]
)
def test_graph_of_every_example(example: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture, page = tmp_path / "graph.svg", tmp_path / "graph.html"
    assert (
        dispatch(["explain", "graph", "--example", example, "--svg", str(picture), "--html", str(page)]) == 0
    )
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")
    assert "The same graph as text" in page.read_text(encoding="utf-8")
    assert capsys.readouterr().out == ""


def test_graph_folds(capsys: pytest.CaptureFixture[str]) -> None:
    whole = ask(capsys, "graph", "--example", "decoder")["steps"][0]["graph"]
    folded = ask(
        capsys, "graph", "--example", "decoder", "--collapse", "attention", "--collapse", "cross_attention"
    )
    assert len(folded["steps"][0]["graph"]["operations"]) < len(whole["operations"])
    names = {v["name"] for v in folded["steps"][0]["graph"]["values"]}
    assert {"layer_norm (attention)", "layer_norm_2 (cross-attention)"} <= names


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["attention", "--set", "x[5,1]=4"], "x has 2 rows and 4 columns, counted from 0"),
        (
            ["attention", "--set", "x[dwon,1]=4"],
            "x has no row 'dwon'; nearest: down; rows: UPI, down, or 0 to 1",
        ),
        (
            ["attention", "--svg", "a.svg"],
            "it takes --example, --set, --causal, --scale, --digits, --html, --json",
        ),
        (["graph", "--example", "decoder", "--collapse", "*7"], "*1: all scopes of that depth"),
        (["attention", "--set", "y[0,0]=4"], "unknown input of example upi 'y'"),
        (["backward", "--set", "x[0,0]=4"], "example upi has it"),
        (["attention", "--set", "x[0,0]=a"], "is not a number"),
        (["attention", "--example", "uip"], "unknown example 'uip'; nearest: upi"),
        (["attention", "--scale", "sqr"], "unknown scale 'sqr'; nearest: sqrt"),
        (["graph", "--example", "encoder", "--causal"], "is a real block"),
        (["graph", "--example", "encoders"], "nearest: encoder"),
        (["graph", "--example", "decoder", "--collapse", "head 7"], "unknown scope"),
        (["graph", "--svg", "/no/such/folder/a.svg"], "--svg '/no/such/folder/a.svg' cannot be written"),
    ],
)
def test_refused(words: list[str], said: str) -> None:
    with pytest.raises(HeadcountError) as caught:
        dispatch(["explain", *words])
    assert said in str(caught.value) and "\n" not in str(caught.value)
