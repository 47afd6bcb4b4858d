"""The console pages of ``experiment``: the list, and one result as claim, tables, verdict."""

from __future__ import annotations

import re

from headcount.experiments.result import Column, Spread
from headcount.report.console import Page

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.experiments.option import Experiment
    from headcount.experiments.result import Cell, Result, Table

_LABEL = 9
_NEVER = "never"


def write_experiments(page: Page, experiments: dict[str, Experiment]) -> None:
    """Write the list: name, question, and about how long the default run takes."""
    page.line("Experiments that could falsify the chapters' claims", "bold")
    page.blank()
    rows = [("  " + each.name, _about(each.seconds), each.question) for each in experiments.values()]
    page.table(("  name", "about", "question"), rows, right={1})
    page.blank()
    page.line("headcount experiment NAME [--quick] [--seed N] [--repeats N] [--json]")
    page.line("Options of each: headcount experiment --help     Results: docs/experiments.md", "dim")


def _about(seconds: int) -> str:
    return f"{seconds} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def write_result(page: Page, result: Result) -> None:
    """Write claim, settings, tables, notes and verdict."""
    page.pair(result.name, f"seed {result.seed}, {result.repeats} repeats")
    page.wrapped(result.claim, label="Claim", hanging=_LABEL)
    page.wrapped(_settings(result.settings), label="With", hanging=_LABEL)
    for table in result.tables:
        page.blank()
        _write_table(page, table)
    page.blank()
    if any(column.spread for table in result.tables for column in table.columns):
        page.wrapped("Numbers are medians over the repeats, with [lowest, highest].", indent=2)
    for note in result.notes:
        page.wrapped(note, indent=2)
    page.blank()
    page.wrapped(f"{result.verdict}: {result.reason}.", label="Verdict", hanging=_LABEL)


def _settings(settings: dict[str, object]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {_plain(value)}" for name, value in settings.items())


def _plain(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(_plain(each) for each in value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return number_text(value, "g") if isinstance(value, float) else str(value)


def _write_table(page: Page, table: Table) -> None:
    page.line(table.title, "bold")
    header = tuple(column.header for column in table.columns)
    rows = [
        tuple(cell_text(cell, column) for cell, column in zip(row, table.columns, strict=True))
        for row in table.rows
    ]
    numbers = {
        index for index in range(len(header)) if not any(isinstance(row[index], str) for row in table.rows)
    }
    page.table(("  " + header[0], *header[1:]), [("  " + row[0], *row[1:]) for row in rows], right=numbers)
    if table.note:
        page.wrapped(table.note, indent=2)


def cell_text(cell: Cell, column: Column) -> str:
    """A cell as shown: ``0.169 [0.167, 0.171]`` for a spread, ``never`` for a goal that was not reached."""
    if cell is None:
        return "-"
    if isinstance(cell, str):
        return cell
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if not isinstance(cell, Spread):
        return number_text(cell, column.form)
    middle, low, high = (
        _NEVER if part is None else number_text(part, column.form)
        for part in (cell.median, cell.low, cell.high)
    )
    if not column.spread or cell.count == 1 or low == high == middle:
        return middle
    return f"{middle} [{low}, {high}]"


def number_text(value: float, form: str) -> str:
    """Format a number.

    ``+-`` before the format is printed as it is; exponents lose their padding (``1.7e-5``), and a ``g`` format writes large
    numbers out (``1,230``).
    """
    sign, plain = ("+-", form[2:]) if form.startswith("+-") else ("", form)
    text = format(value, plain)
    if plain.endswith("g") and "e+" in text:
        text = f"{value:,.0f}"
    return sign + re.sub(r"e([+-])0*(?=\d)", r"e\1", text)
