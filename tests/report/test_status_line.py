"""The status line never costs a sign of the text: replayed on a terminal that, like most, wraps only at the next sign."""

from __future__ import annotations

import io
import os
import re

import pytest

from headcount.report import status_line
from headcount.report.status_line import StatusLine

ROWS, COLUMNS = 8, 20


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 1


class Screen:
    """Rows of a terminal with scroll region and saved cursor; the pending wrap is forgotten when the cursor is restored."""

    def __init__(self) -> None:
        self.lines = [[" "] * COLUMNS for _ in range(ROWS)]
        self.row = self.column = 0
        self.saved = (0, 0)
        self.bottom = ROWS - 1
        self.scrolled: list[str] = []

    def write(self, text: str) -> None:
        for part in re.findall(r"\x1b\[[\d;]*[A-Za-z]|\x1b[78]|.", text, re.S):
            if part == "\x1b7":
                self.saved = (self.row, min(self.column, COLUMNS - 1))
            elif part == "\x1b8":
                self.row, self.column = self.saved
            elif part.startswith("\x1b["):
                self.control(part[2:-1], part[-1])
            elif part == "\n":
                self.feed()
                self.column = 0
            else:
                if self.column == COLUMNS:
                    self.feed()
                    self.column = 0
                self.lines[self.row][self.column] = part
                self.column += 1

    def control(self, numbers: str, kind: str) -> None:
        if kind == "r":
            self.bottom = int(numbers.split(";")[1]) - 1 if numbers else ROWS - 1
        elif kind == "H":
            row, column = numbers.split(";")
            self.row, self.column = int(row) - 1, int(column) - 1
        elif kind == "A":
            self.row -= int(numbers)
        elif kind == "K":
            self.lines[self.row] = [" "] * COLUMNS

    def feed(self) -> None:
        if self.row == self.bottom:
            self.scrolled.append("".join(self.lines.pop(0)))
            self.lines.insert(self.bottom, [" "] * COLUMNS)
        else:
            self.row += 1


@pytest.mark.parametrize("piece", [1, 3, 7, 20])
def test_no_sign_is_lost(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((COLUMNS, ROWS)))
    monkeypatch.setattr(status_line, "LEAST_SECONDS", 0.0)
    text = "".join(chr(ord("a") + i % 26) for i in range(230))
    screen, stream = Screen(), Terminal()

    def drain() -> None:
        screen.write(stream.getvalue())
        stream.seek(0)
        stream.truncate()

    with StatusLine(stream) as line:
        drain()
        for start in range(0, len(text), piece):
            screen.write(text[start : start + piece])
            line.passed(text[start : start + piece])
            line.show("status")
            drain()
        assert "status" in "".join(screen.lines[-1])
    drain()
    shown = "".join([*screen.scrolled, *("".join(row) for row in screen.lines)]).replace(" ", "")
    assert shown == text


def test_off_without_a_terminal() -> None:
    stream = io.StringIO()
    with StatusLine(stream) as line:
        line.passed("text")
        line.show("status")
    assert stream.getvalue() == ""
