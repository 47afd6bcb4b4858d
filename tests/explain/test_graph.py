"""The graph is the tape: its nodes, its letters, its folding, and its two drawings."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable

import pytest
import torch

from headcount.errors import UnknownNameError
from headcount.explain.assembled import WORDS, run_block
from headcount.explain.examples import IDENTITY, UPI, WhatIf
from headcount.explain.graph import INPUT, PARAMETER, RESULT, Graph, rewritten
from headcount.explain.worked import work
from headcount.report.graph_svg import CHARACTER, WIDTH, graph_svg
from headcount.report.graph_text import graph_lines

SVG = "{http://www.w3.org/2000/svg}"


def test_identity_nodes_are_exactly_the_eight_of_the_chapter() -> None:
    graph = work(IDENTITY).graph
    assert sorted(value.name for value in graph.values) == sorted(["Q", "K", "V", "S", "S'", "A", "O", "L"])
    by_name = {value.name: value for value in graph.values}
    assert by_name["L"].values == 10.0 and by_name["L"].kind == RESULT
    assert by_name["Q"].kind == INPUT
    ds = 0.6255943861804416
    assert by_name["Q"].gradient == (pytest.approx((-ds, ds), abs=1e-12), pytest.approx((-ds, ds), abs=1e-12))
    assert by_name["K"].gradient[0] == pytest.approx((-ds, -ds), abs=1e-12)
    assert by_name["A"].gradient == ((3.0, 7.0), (3.0, 7.0))
    assert [op.formula for op in graph.operations] == [
        "S = Q K^T",
        "S' = 0.7071 S",
        "A = exp(S' - max S') / sum exp(S' - max S')",
        "O = A V",
        "L = sum O",
    ]
    assert graph.operations[0].gradient == "dQ = dS K, dK = dS^T Q"
    assert graph.operations[3].gradient == "dA = dO V^T, dV = A^T dO"


def test_every_value_stands_after_what_it_is_made_of() -> None:
    for graph in (work(UPI, WhatIf(causal=True)).graph, *(run_block(kind).graph for kind in WORDS)):
        place = {value.key: index for index, value in enumerate(graph.values)}
        for op in graph.operations:
            assert max(place[key] for key in op.inputs) < min(place[key] for key in op.outputs)


@pytest.mark.parametrize(
    ("formula", "gradient", "inputs", "output", "wanted"),
    [
        ("Y = A B", "dA = dY B^T, dB = A^T dY", ["A", "V"], "O", ("O = A V", "dA = dO V^T, dV = A^T dO")),
        ("y = c x", "dx = c dy", ["S"], "S'", ("S' = c S", "dS = c dS'")),
        ("y = a + b", "da = dy, db = dy", ["x", "O"], "y", ("y = x + O", "dx = dy, dO = dy")),
        ("s = s where allowed, else -inf", "ds = ds where allowed, else 0", ["Z"], "S'",
         ("S' = Z where allowed, else -inf", "dZ = dS' where allowed, else 0")),
        ("y = [x_1, ..., x_m]", "dx_i = slice i of dy", ["O", "O2"], "C",
         ("C = [O, O2]", "dO = slice 1 of dC, dO2 = slice 2 of dC")),
        # An optional operand that is absent: the operation's own letters stay.
        ("y = x W^T + b", "dx = dy W, dW = dy^T x, db = sum dy", ["x", "W_Q"], "q",
         ("y = x W^T + b", "dx = dy W, dW = dy^T x, db = sum dy")),
    ],
)  # fmt: skip
def test_letters(
    formula: str, gradient: str, inputs: list[str], output: str, wanted: tuple[str, str]
) -> None:
    assert rewritten(formula, gradient, inputs, output) == wanted


def test_gradients_on_the_graph_are_those_of_the_parameters() -> None:
    run = run_block("encoder")
    by_name = {value.name: value for value in run.graph.values}
    assert sum(value.kind == PARAMETER for value in run.graph.values) == len(list(run.block.parameters()))
    weight = run.block.attention.query.weight
    assert weight.grad is not None
    torch.testing.assert_close(torch.tensor(by_name["W_Q"].gradient, dtype=torch.float64), weight.grad)
    # Softmax does not see a constant added to all scores of a row: the key bias has no gradient.
    assert by_name["b_K"].gradient_norm < 1e-14


def test_decoder_has_three_sub_layers_and_folds_into_them() -> None:
    graph = run_block("decoder").graph
    assert graph.scopes() == ("attention", "cross_attention", "feed_forward")
    folded = graph.collapsed("*1")
    assert [op.name for op in folded.operations[:3]] == ["attention", "cross_attention", "feed_forward"]
    assert sum(op.count for op in folded.operations) == len(graph.operations)
    reads = [folded.value(key).name for key in folded.operations[1].inputs]
    assert "M" in reads and not any(name.startswith("W_") for name in reads)
    one = graph.collapsed("feed_forward")
    assert {op.name for op in one.operations} >= {"feed_forward", "scores", "softmax"}
    with pytest.raises(UnknownNameError, match="scope"):
        graph.collapsed("atention")


GRAPHS: dict[str, Callable[[], Graph]] = {
    "identity": lambda: work(IDENTITY).graph,
    "upi": lambda: work(UPI).graph,
    "upi causal": lambda: work(UPI, WhatIf(causal=True)).graph,
    **{kind: lambda kind=kind: run_block(kind).graph for kind in WORDS},  # type: ignore[misc]
    "folded": lambda: run_block("decoder").graph.collapsed("*1"),
}


@pytest.mark.parametrize("name", list(GRAPHS))
def test_svg(name: str) -> None:
    graph = GRAPHS[name]()
    root = ElementTree.fromstring(graph_svg(graph, title="a < b"))
    _, _, width, height = (float(part) for part in root.attrib["viewBox"].split())
    assert width == WIDTH <= 360
    title, description = root.find(SVG + "title"), root.find(SVG + "desc")
    assert title is not None and title.text == "a < b"
    assert description is not None and description.text
    for value in graph.values:
        assert value.name in description.text
    ids = {title.attrib["id"], description.attrib["id"]}
    assert set(root.attrib["aria-labelledby"].split()) == ids
    words = [element.text for element in root.iter(SVG + "text")]
    assert words.count("value ↓") >= len(graph.values) + 1
    assert words.count("gradient ↑") == sum(v.gradient_norm is not None for v in graph.values) + 1
    for element in root.iter(SVG + "text"):
        assert element.text is not None
        assert float(element.attrib["x"]) + len(element.text) * CHARACTER <= WIDTH + 1, element.text
        assert 0 < float(element.attrib["y"]) < height
    rails = [element.attrib for element in root.iter(SVG + "path")]
    assert all(re.fullmatch(r"(rail )?(down|up)", attributes["class"]) for attributes in rails)


@pytest.mark.parametrize("name", list(GRAPHS))
def test_text_drawing(name: str) -> None:
    graph = GRAPHS[name]()
    lines = graph_lines(graph)
    assert max(len(line) for line in lines) <= 80
    text = "\n".join(lines)
    for value in graph.values:
        assert re.search(rf"o[ |]*  {re.escape(value.name)}  ", text + "  "), value.name
    assert text.count(" v ") >= len(graph.operations)
