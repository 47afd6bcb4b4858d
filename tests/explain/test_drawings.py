"""The pages: 80 columns, no control signs, HTML that stands alone and is well formed, formulas that parse."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest

from headcount.explain.asked import Asked
from headcount.explain.derivation import Derivation
from headcount.explain.topics import TOPICS, derive
from headcount.report.console import Page
from headcount.report.derivation_formula import inline, mathml
from headcount.report.derivation_html import derivation_page
from headcount.report.derivation_numbers import matrix_cells, number_text
from headcount.report.derivation_text import side_by_side, write_derivation

VOID = {"meta", "link", "br", "img", "input", "hr"}
WHAT_IFS = {
    "plain": Asked(),
    "causal": Asked(causal=True),
    "unscaled": Asked(scale="none"),
    "cell": Asked(example="upi", cells=("x[1,1]=4", "W_O[0,1]=-0.25")),
    "huge": Asked(example="upi", cells=("x[1,1]=1e6",), causal=True),
}
CASES = [(name, "plain") for name in TOPICS] + [
    (name, case) for name in ("attention", "backward") for case in WHAT_IFS if case != "plain"
]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(case))
def found(request: pytest.FixtureRequest) -> Derivation:
    return derive(request.param[0], WHAT_IFS[request.param[1]])


def text_of(found: Derivation, *, colour: bool = False) -> str:
    page = Page(colour=colour)
    write_derivation(page, found)
    return page.text()


def test_text(found: Derivation) -> None:
    lines = text_of(found).splitlines()
    assert max(map(len, lines)) <= 80, max(lines, key=len)
    assert all(line.isprintable() for line in lines)
    assert lines == [line.rstrip() for line in lines]
    text = " ".join(" ".join(lines).split())
    for step in found.steps:
        assert " ".join(step.title[1:].split()) in text


def test_colour_adds_nothing_but_style(found: Derivation) -> None:
    coloured = text_of(found, colour=True)
    assert re.sub(r"\x1b\[\d+m", "", coloured) == text_of(found)


class Checker(HTMLParser):
    """Tags close in order; ids are unique; what labels something exists; nothing is loaded from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.labels: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("id"):
            self.ids.append(str(given["id"]))
        self.labels += str(given.get("aria-labelledby") or "").split()
        self.links += [str(given[key]) for key in ("href", "src", "xlink:href") if given.get(key)]
        assert tag != "script"
        assert not any(name.startswith("on") for name in given)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, (tag, self.open[-3:])
        self.open.pop()


def test_html(found: Derivation) -> None:
    page = derivation_page(found)
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert checker.open == []
    assert len(checker.ids) == len(set(checker.ids))
    assert set(checker.labels) <= set(checker.ids)
    assert all(link.startswith("#") and link[1:] in checker.ids for link in checker.links)
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/)", page)
    assert 'lang="en"' in page and 'name="viewport"' in page
    assert "prefers-color-scheme:dark" in page and "prefers-reduced-motion" in page
    # Every picture has its twin in text.
    assert page.count("<svg") == page.count("The same graph as text")
    if found.settings:
        assert ">changed</span>" in page and ">unchanged</span>" in page


def test_every_formula_is_well_formed(found: Derivation) -> None:
    for step in found.steps:
        for line in step.formula:
            root = ElementTree.fromstring(mathml(line).replace("&#160;", " "))
            assert root.attrib["alttext"] == line.replace('"', "")
            letters = "".join(root.itertext())
            assert not re.search(r"[_^]", letters), (line, letters)


@pytest.mark.parametrize(
    ("formula", "parts"),
    [
        ("W_Q", "<msub><mi>W</mi><mi>Q</mi></msub>"),
        ("K^T", '<msup><mi>K</mi><mi mathvariant="normal">T</mi></msup>'),
        ("x_i^2", "<msubsup><mi>x</mi><mi>i</mi><mn>2</mn></msubsup>"),
        ("sqrt(d_k)", "<msqrt><mrow><msub><mi>d</mi><mi>k</mi></msub></mrow></msqrt>"),
        ("a < b & c", "<mo>&lt;</mo>"),
        ("dS'", "<mi>d</mi><mi>S</mi><mo>′</mo>"),
    ],
)
def test_mathml(formula: str, parts: str) -> None:
    assert parts in mathml(formula)


def test_inline() -> None:
    assert inline("d_k of W_Q^T, `a_b`, scaled_dot_product, n^2 & <b>") == (
        "d<sub>k</sub> of W<sub>Q</sub>ᵀ, <code>a_b</code>, scaled_dot_product, n<sup>2</sup> &amp; &lt;b&gt;"
    )


def test_numbers() -> None:
    assert number_text(2.0) == "2" and number_text(0.66976) == "0.6698" and number_text(-0.0) == "0"
    assert number_text(524288) == "524,288" and number_text(1.3e-14) == "1.300e-14"
    assert number_text(float("nan")) == "nan" and number_text(float("-inf")) == "-inf"
    assert matrix_cells(((1.0, 0.5), (1e-17, -10.0))) == [["  1.0000", "  0.5000"], ["      ~0", "-10.0000"]]
    assert matrix_cells(((1.0, -2.0),)) == [[" 1", "-2"]]


def test_blocks_wrap_at_the_edge() -> None:
    lines = side_by_side([["aaaa", "b"], ["cccc"], ["dddd"]], 12)
    assert lines == ["aaaa   cccc", "b", "", "dddd"]
