"""A derivation as console text, 80 columns: equation, the same with numbers, matrices aligned side by side."""

from __future__ import annotations

import textwrap

from headcount.explain.derivation import CHAPTERS, same
from headcount.report.derivation_numbers import (
    NOISE,
    NOISE_WORDS,
    matrix_cells,
    number_text,
    rows_of,
    shape_text,
    state_text,
    table_cells,
)
from headcount.report.graph_text import graph_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.explain.derivation import Derivation, Quantity, Step, Table
    from headcount.report.console import Page

INDENT = 3
# Rows and columns a matrix shows before it is cut: 80 columns hold eight numbers of four decimals.
MOST = 8
ROOM = 76
# The narrowest column of words that is still read as one.
LEAST_WORDS = 16


def write_derivation(page: Page, found: Derivation, digits: int = 4) -> None:
    """Title, symbols, steps, what changed, sources."""
    page.line(page.styled(found.title, "bold"))
    page.wrapped(found.summary)
    if found.settings:
        page.blank()
        page.line("Changed by you", "bold")
        for words in found.settings:
            page.wrapped(words, indent=INDENT, hanging=INDENT + 2)
    _symbols(page, found)
    for number, step in enumerate(found.steps, 1):
        page.blank()
        _step(page, number, step, digits)
    _changes(page, found)
    if found.sources:
        page.blank()
        page.wrapped("; ".join(found.sources) + ".", label="Sources  ", hanging=9)
    for line in ([CHAPTERS] if found.quotes_chapters else []) + ([found.see] if found.see else []):
        page.blank()
        page.wrapped(line)


def _symbols(page: Page, found: Derivation) -> None:
    if not found.symbols:
        return
    page.blank()
    page.line("Symbols", "bold")
    width = min(max(len(symbol.symbol) for symbol in found.symbols), 16)
    for symbol in found.symbols:
        shape = f"  ({symbol.shape})" if symbol.shape else ""
        label = " " * INDENT + symbol.symbol.ljust(width) + "  "
        page.wrapped(symbol.meaning + shape, label=label, hanging=len(label))


def _step(page: Page, number: int, step: Step, digits: int) -> None:
    page.line(page.styled(f"{number}. {step.title[:1].upper()}{step.title[1:]}", "bold"))
    if step.why:
        page.wrapped(step.why, indent=INDENT)
    if step.formula:
        page.line()
        for line in step.formula:
            page.wrapped(line.replace('"', ""), indent=INDENT + 3, hanging=INDENT + 7)
    if step.arithmetic:
        page.line()
        for line in step.arithmetic:
            page.wrapped(line, indent=INDENT, hanging=INDENT + 4)
    if step.values:
        page.line()
        lines = side_by_side([quantity_block(value, digits) for value in step.values], page.width - INDENT)
        for line in lines:
            page.line((" " * INDENT + line).rstrip())
        if any(NOISE in line for line in lines):
            page.line(" " * INDENT + NOISE_WORDS)
    for table in step.tables:
        page.blank()
        _table(page, table, digits)
    if step.graph is not None:
        page.blank()
        for line in graph_lines(step.graph, page.width):
            page.line(line)
    for label, text, style in (("Note", step.note, "cyan"), ("The chapters", step.chapters, "yellow")):
        if text:
            page.blank()
            _remark(page, label, text, style)


def _remark(page: Page, label: str, text: str, style: str) -> None:
    before = len(page._lines)
    page.wrapped(text, label=" " * INDENT + label + "  ", hanging=INDENT + 6)
    page._lines[before] = page._lines[before].replace(label, page.styled(label, style), 1)


def _table(page: Page, table: Table, digits: int) -> None:
    if table.title:
        page.wrapped(table.title, indent=INDENT)
    rows, numeric = table_cells(table, digits)
    for line in table_lines([list(table.header), *rows], numeric - {0}, page.width - INDENT):
        page.line(" " * INDENT + line)
    if table.note:
        page.wrapped(table.note, indent=INDENT)


def table_lines(rows: list[list[str]], right: set[int], width: int) -> list[str]:
    """Aligned columns, a rule under the header; a last column of words is wrapped, never cut.

    A table that does not fit (large numbers) is turned: each row becomes a block of ``column  value`` lines.
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    room = width - sum(widths[:-1]) - 2 * (len(widths) - 1)
    least = widths[-1] if len(widths) - 1 in right else min(widths[-1], LEAST_WORDS)
    if room < least:
        return _turned_lines(rows, right, width)
    widths[-1] = min(widths[-1], room)
    lines = []
    for number, row in enumerate(rows):
        cells = [
            cell.rjust(size) if i in right else cell.ljust(size)
            for i, (cell, size) in enumerate(zip(row[:-1], widths, strict=False))
        ]
        lead = "  ".join([*cells, ""])
        last = row[-1].rjust(widths[-1]) if len(row) - 1 in right else row[-1]
        parts = (
            textwrap.wrap(last, widths[-1], break_on_hyphens=False, drop_whitespace=True)
            if len(last) > widths[-1]
            else [last]
        )
        lines.append((lead + parts[0]).rstrip())
        lines += [" " * len(lead) + part for part in parts[1:]]
        if number == 0:
            lines.append("  ".join("-" * size for size in widths))
    return lines


def _turned_lines(rows: list[list[str]], right: set[int], width: int) -> list[str]:
    header, *body = rows
    label = max(len(name) for name in header[1:])
    size = max((len(row[i]) for row in body for i in right), default=0)
    lines = []
    for row in body:
        lines.append(row[0])
        for i, (name, cell) in enumerate(zip(header[1:], row[1:], strict=True), 1):
            lead = f"  {name.ljust(label)}  "
            shown = cell.rjust(size) if i in right else cell
            lines += textwrap.wrap(
                lead + shown,
                width,
                subsequent_indent=" " * len(lead),
                break_on_hyphens=False,
                drop_whitespace=True,
            )
    return lines


def _changes(page: Page, found: Derivation) -> None:
    changed, unchanged = found.changes()
    if not found.settings:
        return
    page.blank()
    page.line("What the change reached", "bold")
    for label, names in (("changed", changed), ("unchanged", unchanged)):
        page.wrapped(", ".join(names) or "nothing", label=f"   {label:<10}  ", hanging=15)


def quantity_block(quantity: Quantity, digits: int = 4) -> list[str]:
    """The lines of one quantity: a title, column labels if any, rows; before and after where it changed."""
    state = state_text(quantity)
    words = ", ".join(part for part in (quantity.words, state) if part)
    if not quantity.shape:
        return _scalar(quantity, words, digits)
    title = f"{quantity.name}  ({shape_text(quantity.shape)})" + (f"  {words}" if words else "")
    if quantity.changed:
        return [title, *_changed_rows(quantity, digits)]
    body = _labelled(matrix_cells(_cut(quantity.values), digits), quantity)
    return [title, *body, *_cut_note(quantity)]


def _scalar(quantity: Quantity, words: str, digits: int) -> list[str]:
    text = f"{quantity.name} = "
    if quantity.changed:
        text += f"{number_text(quantity.before, digits)} -> "  # type: ignore[arg-type]
    text += f"{number_text(quantity.values, digits)} {quantity.unit}".rstrip()  # type: ignore[arg-type]
    if len(text) > ROOM or (words and len(text) + 3 + len(words) > ROOM):
        text_lines = textwrap.wrap(text, ROOM, subsequent_indent="  ", break_on_hyphens=False)
        return [*text_lines, *textwrap.wrap(words, ROOM, initial_indent="  ", subsequent_indent="  ")]
    return [text + (f"   {words}" if words else "")]


def _cut(values: object) -> tuple[tuple[float, ...], ...]:
    return tuple(row[:MOST] for row in rows_of(values)[:MOST])


def _cut_note(quantity: Quantity) -> list[str]:
    rows = rows_of(quantity.values)
    if len(rows) <= MOST and len(rows[0]) <= MOST:
        return []
    return [
        f"  ... the first {min(len(rows), MOST)} x {min(len(rows[0]), MOST)} of {shape_text(quantity.shape)}"
    ]


def _labelled(cells: list[list[str]], quantity: Quantity) -> list[str]:
    """Rows with their labels; columns that do not fit beside each other follow below."""
    labels = [label + "  " for label in quantity.rows[:MOST]] or [""] * len(cells)
    lead = max((len(label) for label in labels), default=0)
    heads = list(quantity.columns[:MOST])
    width = max(len(text) for text in [*heads, *(cell for row in cells for cell in row), ""])
    if heads:
        cells = [[cell.rjust(width) for cell in row] for row in cells]
    fitting = max(1, (ROOM - lead) // (width + 2))
    lines = []
    for first in range(0, len(cells[0]) if cells else 0, fitting):
        some = slice(first, first + fitting)
        if heads:
            lines.append("  " + " " * lead + "  ".join(column.rjust(width) for column in heads[some]))
        elif first and len(cells) > 1:
            lines.append(f"  columns from {first}:")
        for label, row in zip(labels, cells, strict=True):
            lines.append("  " + label.ljust(lead) + "  ".join(row[some]))
    return lines


def _changed_rows(quantity: Quantity, digits: int) -> list[str]:
    """``label  before  ->  after`` for a row that changed, ``label  before  =`` for one that did not."""
    before, now = matrix_cells(_cut(quantity.before), digits), matrix_cells(_cut(quantity.values), digits)
    labels = [label + "  " for label in quantity.rows[:MOST]] or [""] * len(now)
    lead = max((len(label) for label in labels), default=0)
    pairs = zip(labels, rows_of(quantity.before), rows_of(quantity.values), before, now, strict=False)
    lines = []
    for label, old, new, old_text, new_text in pairs:
        line = "  " + label.ljust(lead) + "  ".join(old_text)
        after = "  ".join(new_text)
        if same(old, new):
            lines.append(line + "  =")
        elif len(line) + len(after) + 6 <= ROOM:
            lines.append(f"{line}  ->  {after}")
        else:
            lines += [line, " " * max(0, lead - 2) + f"  -> {after}"]
    return lines


def side_by_side(blocks: list[list[str]], width: int) -> list[str]:
    """Blocks beside each other while they fit, three blanks apart, an empty line between rows of blocks."""
    lines: list[str] = []
    row: list[list[str]] = []

    def flush() -> None:
        if not row:
            return
        if lines:
            lines.append("")
        widths = [max(len(line) for line in block) for block in row]
        for index in range(max(len(block) for block in row)):
            parts = [
                (block[index] if index < len(block) else "").ljust(size)
                for block, size in zip(row, widths, strict=True)
            ]
            lines.append("   ".join(parts).rstrip())
        row.clear()

    for block in blocks:
        used = sum(max(len(line) for line in other) + 3 for other in row)
        if row and used + max(len(line) for line in block) > width:
            flush()
        row.append(block)
    flush()
    return lines
