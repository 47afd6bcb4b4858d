"""A line at the foot of the terminal that stays while text streams above it.

The terminal is told to scroll all rows but the last (DECSTBM); the line is written there and the cursor put back. Off when
the output is no terminal, so that a pipe or a file gets the text alone.

A terminal whose cursor stands behind the last column has a line break pending, which saving and restoring the cursor
forgets: the next sign would overwrite the last one. So the column is followed (``passed``), and nothing is shown there.
"""

from __future__ import annotations

import os
import time
import unicodedata

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self, TextIO

# A person reads no faster; every update moves the cursor twice.
LEAST_SECONDS = 0.1


class StatusLine:
    """A context manager; ``passed`` is told of the text that was written, ``show`` replaces the line."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.rows = self.columns = self.column = 0
        self._last = 0.0
        if stream.isatty() and os.environ.get("TERM", "dumb") != "dumb":
            try:
                size = os.get_terminal_size(stream.fileno())
            except (OSError, ValueError):
                return
            if size.lines >= 4 and size.columns >= 20:
                self.rows, self.columns = size.lines, size.columns

    def __enter__(self) -> Self:
        if self.rows:
            # One row of room below the cursor first, or the last line of text would lie under the status.
            self.stream.write(f"\n\x1b[1A\x1b7\x1b[1;{self.rows - 1}r\x1b8")
            self.stream.flush()
        return self

    def __exit__(self, *_: object) -> None:
        if self.rows:
            self.stream.write(f"\x1b7\x1b[r\x1b[{self.rows};1H\x1b[2K\x1b8")
            self.stream.flush()

    def passed(self, text: str) -> None:
        """Follow the column over ``text`` (wide signs take two, combining ones none)."""
        for sign in text if self.rows else "":
            if sign == "\n":
                self.column = 0
                continue
            width = 8 - self.column % 8 if sign == "\t" else _width(sign)
            if self.column + width > self.columns:
                self.column = 0
            self.column += width

    def show(self, text: str, *, now: bool = False) -> None:
        """Write ``text``, cut to the width; at most ten times a second unless ``now``."""
        clock = time.monotonic()
        if not self.rows or self.column >= self.columns or (not now and clock - self._last < LEAST_SECONDS):
            return
        self._last = clock
        shown = text[: self.columns - 1]
        self.stream.write(f"\x1b7\x1b[{self.rows};1H\x1b[2K\x1b[7m{shown}\x1b[0m\x1b8")
        self.stream.flush()


def _width(sign: str) -> int:
    if unicodedata.combining(sign) or unicodedata.category(sign) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(sign) in ("W", "F") else 1
