"""The chapters of docs/derivations: their examples run, each operation has one, and no number in the prose is typed by hand."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import headcount.transformer
from headcount.transformer.ops.operation import Operation

CHAPTERS = Path(__file__).parents[2] / "docs" / "derivations"
NAMES = sorted(path.stem for path in CHAPTERS.glob("*.md") if path.stem != "README")
# Rooms of the transformer whose operations each need a chapter.
ROOMS = ("ops", "attention")
FENCE = re.compile(r"^```")
NUMBER = re.compile(r"(?<![\w.])(\d+\.\d+)(?:e([+-]?\d+))?(?![\w.]*\w)")


def split(name: str) -> tuple[str, str]:
    """Return (prose, examples) of a chapter, each with the other's lines blank, so that line numbers stay true."""
    prose, examples = [], []
    language = None
    for line in (CHAPTERS / f"{name}.md").read_text().splitlines():
        if FENCE.match(line):
            language = line.removeprefix("```").strip() or "text" if language is None else None
            prose.append("")
            examples.append("")
        else:
            prose.append(line if language is None else "")
            examples.append(line if language == "python" else "")
    assert language is None, f"{name}.md: a code fence is not closed"
    return "\n".join(prose), "\n".join(examples)


def parsed(name: str) -> doctest.DocTest:
    path = str(CHAPTERS / f"{name}.md")
    return doctest.DocTestParser().get_doctest(split(name)[1], {}, f"{name}.md", path, 0)


def magnitudes(text: str) -> list[tuple[str, float, float]]:
    """Every decimal number of a text: as printed, its size, and half a unit of its last printed digit."""
    found = []
    for match in NUMBER.finditer(text):
        digits, exponent = match.group(1), int(match.group(2) or 0)
        half_unit = 0.5 * 10.0 ** (exponent - len(digits.partition(".")[2]))
        found.append((match.group(0), float(digits) * 10.0**exponent, half_unit))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_examples_run(name: str) -> None:
    examples = parsed(name)
    assert len(examples.examples) >= 3, f"{name}.md shows no check"
    report: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF).run(examples, out=report.append)
    assert result.failed == 0, "".join(report)


@pytest.mark.parametrize("name", NAMES)
def test_every_number_in_the_prose_was_computed(name: str) -> None:
    outputs = magnitudes("\n".join(example.want for example in parsed(name).examples))
    for shown, size, half_unit in magnitudes(split(name)[0]):
        # The output may carry more digits than the prose; it must round to what the prose prints.
        assert any(
            abs(size - other) <= half_unit * (1 + 1e-9) and unit <= half_unit for _, other, unit in outputs
        ), f"{name}.md says {shown}, which no example of the chapter prints"


def test_every_operation_has_a_chapter() -> None:
    missing = []
    for room in ROOMS:
        package = importlib.import_module(f"{headcount.transformer.__name__}.{room}")
        for module in pkgutil.iter_modules(package.__path__):
            members = vars(importlib.import_module(f"{package.__name__}.{module.name}"))
            # Its own operations, not those it imports: an operation's backward lives in the module that made it.
            own = [
                member
                for member in members.values()
                if isinstance(member, Operation)
                and member.backward.__module__ == f"{package.__name__}.{module.name}"
            ]
            if own and module.name not in NAMES:
                missing.append(f"{room}/{module.name}")
    assert missing == []


def test_the_index_lists_every_chapter_once() -> None:
    index = (CHAPTERS / "README.md").read_text()
    linked = re.findall(r"\]\(([a-z_]+)\.md\)", index)
    assert sorted(linked) == NAMES


def test_the_number_check_sees_a_wrong_digit() -> None:
    assert [size for _, size, _ in magnitudes("0.1192 and 2.5e-16, not v1.2.3 or 10 or 88.72.")] == [
        0.1192,
        2.5e-16,
        88.72,
    ]
    (_, size, half_unit), (_, wrong, _) = magnitudes("0.1192 0.1193")
    assert abs(size - 0.11920292) <= half_unit < abs(wrong - 0.11920292)
