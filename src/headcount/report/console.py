"""A page of console text, at most 80 columns, readable without colour: styles only repeat what the signs say."""

from __future__ import annotations

import re
import textwrap

from headcount.errors import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH = 80
# The only control sequences a page holds are its own styles; what a log or a server says may not reach the terminal.
_OWN = re.compile("(\x1b\\[(?:[0-2]|3[1-6])m)")
_STYLES = {"bold": "1", "dim": "2", "blue": "34", "green": "32", "yellow": "33", "red": "31", "cyan": "36"}


class Page:
    """Lines of text; ``colour`` adds ANSI styles, never meaning."""

    def __init__(self, *, colour: bool = False, width: int = WIDTH) -> None:
        self.colour = colour
        self.width = width
        self._lines: list[str] = []

    def styled(self, text: str, style: str) -> str:
        """``text`` in ``style`` when colour is on."""
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self.colour and text else text

    def line(self, text: str = "", style: str = "") -> None:
        """One line as it is."""
        self._lines.append(self.styled(text, style) if style else text)

    def blank(self) -> None:
        """An empty line, never two in a row."""
        if self._lines and self._lines[-1]:
            self._lines.append("")

    def pair(self, left: str, right: str) -> None:
        """A title line: ``left`` bold, ``right`` flush right when both fit, else below."""
        gap = self.width - len(left) - len(right)
        if gap >= 2:
            self.line(self.styled(left, "bold") + " " * gap + self.styled(right, "dim"))
        else:
            self.line(self.styled(left, "bold"))
            self.wrapped(right, indent=2)

    def wrapped(self, text: str, *, indent: int = 0, hanging: int | None = None, label: str = "") -> None:
        """``text`` wrapped; ``label`` opens the first line, later lines start at ``hanging`` (or ``indent``)."""
        start = " " * indent + label
        rest = " " * (hanging if hanging is not None else indent)
        start = start.ljust(len(rest)) if label else start
        self._lines += textwrap.wrap(
            text, self.width, initial_indent=start, subsequent_indent=rest, break_on_hyphens=False
        ) or [start.rstrip()]

    def items(self, texts: list[str], *, indent: int = 0) -> None:
        """Short texts side by side, three blanks apart, none of them broken over two lines."""
        line = ""
        for text in texts:
            if line and indent + len(line) + 3 + len(text) > self.width:
                self._lines.append(" " * indent + line)
                line = ""
            line += ("   " if line else "") + text
        self._lines.append(" " * indent + line)

    def table(
        self, header: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, right: set[int] | None = None
    ) -> None:
        """Aligned columns; the columns in ``right`` are numbers. The last column is cut at the page's edge."""
        flush_right = right or set()
        widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
        for number, row in enumerate([header, *rows]):
            cells = [
                cell.rjust(w) if i in flush_right else cell.ljust(w)
                for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            ]
            text = "  ".join(cells).rstrip()
            if len(text) > self.width:
                text = text[: self.width - 3].rstrip() + "..."
            self.line(self.styled(text, "bold") if number == 0 else text)

    def text(self) -> str:
        """The page with a final newline."""
        return "\n".join(self._clean(line) for line in self._lines).rstrip("\n") + "\n"

    def _clean(self, line: str) -> str:
        if line.isprintable():
            return line
        parts = _OWN.split(line) if self.colour else [line]
        return "".join(part if self.colour and _OWN.fullmatch(part) else printable(part) for part in parts)


def bar(parts: list[tuple[str, float]], width: int) -> str:
    """A bar of ``width`` signs: each part ``(sign, share)`` gets its share, at least one sign when it is not nothing.

    Rounding is settled on the largest part, so the bar is always ``width`` long.
    """
    total = sum(share for _, share in parts) or 1.0
    cells = [max(1, round(width * share / total)) if share > 0 else 0 for _, share in parts]
    if cells:
        widest = max(range(len(cells)), key=lambda i: cells[i])
        cells[widest] += width - sum(cells)
    return "".join(sign * count for (sign, _), count in zip(parts, cells, strict=True))
