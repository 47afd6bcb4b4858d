"""A line at the foot of the terminal that stays while text streams above it.

The terminal is told to scroll all rows but the last (DECSTBM); the line is written there and the cursor put back. Off when
the output is no terminal, so that a pipe or a file gets the text alone.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self, TextIO


class StatusLine:
    """A context manager; ``show`` replaces the line."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.rows = self.columns = 0
        if stream.isatty() and os.environ.get("TERM", "dumb") != "dumb":
            try:
                size = os.get_terminal_size(stream.fileno())
            except (OSError, ValueError):
                return
            if size.lines >= 4:
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

    def show(self, text: str) -> None:
        """Write ``text``, cut to the width."""
        if self.rows:
            shown = text[: self.columns - 1]
            self.stream.write(f"\x1b7\x1b[{self.rows};1H\x1b[2K\x1b[7m{shown}\x1b[0m\x1b8")
            self.stream.flush()
