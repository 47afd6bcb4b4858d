"""``Derivation``: a line of reasoning as data. Every step holds its equation and the numbers that were just computed.

    Derivation
      symbols      what each letter means, its shape
      steps        title, why, formula, arithmetic, values, tables, note, what the chapters say that is not so

Numbers are nested tuples of float or int: a scalar, a vector (one level), a matrix (two). Nothing here needs PyTorch,
and nothing here prints: ``report/derivation_text.py`` and ``report/derivation_html.py`` do.
"""

from __future__ import annotations

import math

from headcount.explain.graph import Graph
from headcount.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    Number = int | float
    Numbers = Number | tuple[Number, ...] | tuple[tuple[Number, ...], ...]


CHAPTERS = "The chapters: the two teaching texts this began from, docs/chapters.md"


class Symbol(Record):
    """A letter of the formulas: what it means and, where it has one, its shape or value here."""

    symbol: str
    meaning: str
    shape: str = ""


class Quantity(Record):
    """A named scalar, vector or matrix.

    name, words     the letter, and what it is
    values          the numbers
    rows, columns   labels of a matrix; empty when it has none
    unit            of a scalar
    before          the numbers without the what-ifs; None when nothing was changed by the caller
    """

    name: str
    values: Numbers
    words: str = ""
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    unit: str = ""
    before: Numbers | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """``()`` for a scalar, ``(n,)`` for a vector, ``(rows, columns)`` for a matrix."""
        return shape_of(self.values)

    @property
    def changed(self) -> bool | None:
        """Whether the what-ifs changed it; None when there are none."""
        return None if self.before is None else not same(self.before, self.values)


class Table(Record):
    """Rows of cells (text, int, float or None) under a header; a number is formatted by whoever draws it."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    note: str = ""


class Step(Record):
    """One step.

    formula      equations in the notation of ``report/derivation_formula.py``, one per line
    arithmetic   the equation with numbers put in, for one entry or all
    note         what to notice, or where the step's assumption ends
    chapters     what the chapters say here that is wrong, or leave out
    """

    title: str
    why: str = ""
    formula: tuple[str, ...] = ()
    arithmetic: tuple[str, ...] = ()
    values: tuple[Quantity, ...] = ()
    tables: tuple[Table, ...] = ()
    note: str = ""
    chapters: str = ""
    graph: Graph | None = None


class Derivation(Record):
    """A topic from its symbols to its result.

    settings   the what-ifs that were asked for, in words
    see        where to read on: chapters of docs/derivations, experiments
    """

    topic: str
    title: str
    summary: str
    steps: tuple[Step, ...]
    symbols: tuple[Symbol, ...] = ()
    settings: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    see: str = ""

    @property
    def quotes_chapters(self) -> bool:
        """Whether any step says what the chapters say."""
        return any(step.chapters for step in self.steps)

    def quantities(self) -> Iterator[Quantity]:
        """Every named number, in reading order."""
        for step in self.steps:
            yield from step.values

    def find(self, name: str) -> Quantity:
        """The first quantity of that name; KeyError when there is none."""
        for quantity in self.quantities():
            if quantity.name == name:
                return quantity
        raise KeyError(name)

    def changes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """``(names that changed, names that did not)``, each once; both empty without what-ifs."""
        seen: dict[str, bool] = {}
        for quantity in self.quantities():
            if quantity.changed is not None:
                seen[quantity.name] = seen.get(quantity.name, False) or quantity.changed
        return tuple(n for n, c in seen.items() if c), tuple(n for n, c in seen.items() if not c)

    def as_document(self) -> dict[str, object]:
        """The JSON object of ``explain``: NaN and infinities as text, since JSON has no sign for them."""
        changed, unchanged = self.changes()
        document: dict[str, object] = {
            "question": "explain",
            "topic": self.topic,
            "title": self.title,
            "summary": self.summary,
            "symbols": [symbol.as_dict() for symbol in self.symbols],
            "settings": list(self.settings),
            "steps": [_step_document(step) for step in self.steps],
            "sources": list(self.sources),
            "see": self.see,
        }
        if self.quotes_chapters:
            document["chapters"] = CHAPTERS
        if self.settings:
            document |= {"changed": list(changed), "unchanged": list(unchanged)}
        return document


def _step_document(step: Step) -> dict[str, object]:
    document: dict[str, object] = {"title": step.title, "why": step.why}
    document |= {"formula": list(step.formula), "arithmetic": list(step.arithmetic)}
    values = []
    for quantity in step.values:
        entry: dict[str, object] = {"name": quantity.name, "shape": list(quantity.shape)}
        entry["values"] = json_safe(quantity.values)
        for field in ("words", "unit", "rows", "columns"):
            if getattr(quantity, field):
                entry[field] = json_safe(getattr(quantity, field))
        if quantity.before is not None:
            entry |= {"before": json_safe(quantity.before), "changed": quantity.changed}
        values.append(entry)
    document["values"] = values
    document["tables"] = [json_safe(table.as_dict()) for table in step.tables]
    document |= {"note": step.note, "chapters": step.chapters}
    if step.graph is not None:
        document["graph"] = step.graph.as_document()
    return document


def shown(name: str, tensor: Any, words: str = "", **labels: Any) -> Quantity:
    """A tensor (or a plain number) as a quantity; ``rows``, ``columns``, ``unit``, ``before`` pass through."""
    values = nested(tensor.detach()) if hasattr(tensor, "detach") else tensor
    return Quantity(name=name, values=values, words=words, **labels)


def json_safe(value: Any) -> Any:
    """Tuples as lists, NaN and infinities as ``"nan"``, ``"inf"``, ``"-inf"``."""
    if isinstance(value, tuple | list):
        return [json_safe(item) for item in value]
    if isinstance(value, dict):
        return {key: json_safe(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def same(before: Any, now: Any) -> bool:
    """Equal up to the last bits of float64: another order of additions is not a change."""
    if isinstance(before, tuple):
        return len(before) == len(now) and all(same(a, b) for a, b in zip(before, now, strict=True))
    if before == now or (before != before and now != now):
        return True
    return math.isclose(before, now, rel_tol=1e-13, abs_tol=1e-13)


def shape_of(values: Any) -> tuple[int, ...]:
    """The shape of nested tuples."""
    shape: list[int] = []
    while isinstance(values, tuple):
        shape.append(len(values))
        if not values:
            break
        values = values[0]
    return tuple(shape)


def nested(tensor: Any) -> Any:
    """A tensor's numbers as nested tuples, leading dimensions of size one dropped (down to a matrix)."""
    while tensor.dim() > 2 and tensor.shape[0] == 1:
        tensor = tensor[0]

    def freeze(values: Any) -> Any:
        return tuple(freeze(item) for item in values) if isinstance(values, list) else values

    return freeze(tensor.tolist())
