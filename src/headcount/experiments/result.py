"""What an experiment returns: a claim, tables of numbers with their spread, and a verdict computed from them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median

from headcount.record import Record

HOLDS = "holds"
LIMIT = "holds with a limit"
FAILS = "does not hold"
OPEN = "not decided"
VERDICTS = (HOLDS, LIMIT, FAILS, OPEN)


class Spread(Record):
    """One quantity over the repeats: middle, lowest, highest. None where a repeat never got there (steps to a goal)."""

    median: float | None
    low: float | None
    high: float | None
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread:
        """Summarise; None counts as larger than every number, so a median of None says that most never arrived."""
        ordered = sorted(math.inf if value is None else float(value) for value in values)
        if not ordered:
            raise ValueError("a spread needs at least one value")
        found = (median(ordered), ordered[0], ordered[-1])
        middle, low, high = (value if math.isfinite(value) else None for value in found)
        return cls(median=middle, low=low, high=high, count=len(ordered))

    def over(self, divisor: float) -> Spread:
        """Each number divided by a constant."""
        parts = {name: getattr(self, name) for name in ("median", "low", "high")}
        return self.replace(**{key: None if part is None else part / divisor for key, part in parts.items()})


Cell = int | float | str | bool | None | Spread


class Column(Record):
    """``name`` is the key in JSON, ``header`` the words on the page, ``form`` the format of its numbers.

    ``spread`` shows lowest and highest beside the median; JSON always carries all three.
    """

    name: str
    header: str
    form: str = ".4g"
    spread: bool = False


class Table(Record):
    """Rows under columns; ``note`` says what a reader must know to read them."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    def _check(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"table {self.title!r}: a row has not one cell per column")

    def column(self, name: str) -> tuple[Cell, ...]:
        """The cells under one column, by its JSON key."""
        place = [column.name for column in self.columns].index(name)
        return tuple(row[place] for row in self.rows)

    def row(self, **keys: Cell) -> dict[str, Cell]:
        """The first row whose cells equal ``keys``, as a dictionary; KeyError when there is none."""
        for row in self.as_rows():
            if all(row[name] == value for name, value in keys.items()):
                return row
        raise KeyError(f"table {self.title!r} has no row with {keys}")

    def as_rows(self) -> list[dict[str, Cell]]:
        """Rows as dictionaries by JSON key."""
        return [{c.name: cell for c, cell in zip(self.columns, row, strict=True)} for row in self.rows]

    def number(self, name: str, **keys: Cell) -> float:
        """The median (or the plain number) of one cell."""
        cell = self.row(**keys)[name]
        value = cell.median if isinstance(cell, Spread) else cell
        if isinstance(value, bool | str) or value is None:
            raise TypeError(f"table {self.title!r}: {name} of {keys} is no number")
        return value


class Result(Record):
    """An experiment's answer.

    ``claim`` is the chapters' statement in our words, ``settings`` every option as it ran, ``verdict`` one of
    ``VERDICTS`` and ``reason`` the sentence that supports it, both computed from the tables. ``timed`` says that the
    tables hold seconds of this machine: they are not reproducible by the seed.
    """

    name: str
    claim: str
    seed: int
    repeats: int
    settings: dict[str, object]
    tables: tuple[Table, ...]
    verdict: str
    reason: str
    notes: tuple[str, ...] = ()
    timed: bool = False

    def _check(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"verdict {self.verdict!r} is none of {VERDICTS}")

    def table(self, number: int = 0) -> Table:
        """A table by its place."""
        return self.tables[number]

    def as_document(self) -> dict[str, object]:
        """The JSON object: no NaN and no infinity in it, a spread as ``{"median", "low", "high"}``."""
        return {
            "experiment": self.name,
            "claim": self.claim,
            "seed": self.seed,
            "repeats": self.repeats,
            "timed": self.timed,
            "settings": {name: _plain(value) for name, value in self.settings.items()},
            "tables": [
                {
                    "title": table.title,
                    "rows": [{name: _plain(cell) for name, cell in row.items()} for row in table.as_rows()],
                    "note": table.note,
                }
                for table in self.tables
            ],
            "notes": list(self.notes),
            "verdict": self.verdict,
            "reason": self.reason,
        }


def _plain(value: object) -> object:
    if isinstance(value, Spread):
        return {name: _plain(getattr(value, name)) for name in ("median", "low", "high")}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
