"""A bar on the terminal while a load runs: conversations open of those asked, what the server says it runs, seconds."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self, TextIO

    from headcount.verify.servers.load import Progress

_WIDTH = 30


class LoadBar:
    """A context manager whose ``show`` redraws one line; silent when the stream is no terminal."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._drawn = False

    def __enter__(self) -> Self:
        return self

    def show(self, progress: Progress) -> None:
        """Draw where the load stands."""
        if self.stream.isatty():
            self.stream.write("\r" + bar_line(progress) + "\x1b[K")
            self.stream.flush()
            self._drawn = True

    def __exit__(self, *_: object) -> None:
        if self._drawn:
            self.stream.write("\r\x1b[K")
            self.stream.flush()


def bar_line(progress: Progress) -> str:
    """``[=====.....] 12 of 40 open, 12 running, 3 waiting, 62 % of the cache, 14 s``; at most 79 columns."""
    filled = round(_WIDTH * progress.open / max(progress.asked, 1))
    parts = [f"{progress.open} of {progress.asked} open"]
    usage = progress.usage
    if usage.running is not None:
        parts.append(f"{usage.running} running")
    if usage.waiting:
        parts.append(f"{usage.waiting} waiting")
    if usage.fraction is not None:
        parts.append(f"cache {usage.fraction:.0%}")
    parts.append(f"{progress.seconds:.0f} s")
    text = ", ".join(parts)
    bar = "[" + "=" * filled + "." * (_WIDTH - filled) + "] "
    return (bar + text)[:79] if len(bar + text) <= 79 else text[:79]
