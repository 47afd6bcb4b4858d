"""A ledger as lines of text: every term as formula, numbers, value, source."""

from __future__ import annotations

import textwrap

from headcount.ledger import Ledger
from headcount.units import gb, gib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.ledger import Term


def value_text(value: float, unit: str) -> str:
    """A value with its unit; bytes also as GiB and GB once they are large."""
    shown = f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
    if unit == "B" and abs(value) >= 10**8:
        return f"{shown} B = {gib(value)} = {gb(value)}"
    return f"{shown} {unit}".rstrip()


def term_lines(term: Term, indent: int, width: int = 80) -> list[str]:
    """One term: name, then ``symbol = formula``, ``= numbers``, ``= value``, source."""
    pad = " " * indent
    lines = [f"{pad}{term.name}"]
    body = [f"{term.symbol} = {term.formula}"] if term.formula else []
    lead = " " * len(term.symbol)
    if term.numbers:
        body.append(f"{lead} = {term.numbers}")
    body.append(f"{lead if body else term.symbol} = {value_text(term.value, term.unit)}")
    if term.source:
        body.append(f"{lead}   source: {term.source}")
    inner = pad + "    "
    for text in body:
        lines += (
            textwrap.wrap(
                text,
                width,
                initial_indent=inner,
                subsequent_indent=inner + lead + "     ",
                break_on_hyphens=False,
                drop_whitespace=True,
                expand_tabs=False,
            )
            if len(inner + text) > width
            else [inner + text]
        )
    return lines


def ledger_lines(ledger: Ledger, width: int = 80) -> list[str]:
    """The whole tree in reading order."""
    lines: list[str] = []
    for depth, node in ledger.walk():
        if isinstance(node, Ledger):
            if lines:
                lines.append("")
            lines.append("  " * depth + node.name.upper())
        else:
            lines += term_lines(node, 2 * depth, width)
    return lines
