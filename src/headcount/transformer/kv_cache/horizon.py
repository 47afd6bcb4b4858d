"""How far back the next token may look, and how many entries are therefore kept.

                       visible to token n + 1, of the n before it     kept after n tokens
    Everything         n                                              n
    Window of w        min(n, w - 1)                                  min(n, w)
    Chunks of c        n mod c                                        min(n, c)

A window counts the query itself, so token n + 1 sees w - 1 earlier ones. A chunk may be seen from its first token on; what
is kept is the last c entries, as ``ChunkedAttention.tokens_kept`` counts them (the most that one chunk can need).
"""

from __future__ import annotations

from headcount.record import Record
from headcount.transformer.layers import positive


class Horizon(Record):
    """Base of the rules: whole numbers in, whole numbers out."""

    @property
    def most(self) -> int | None:
        """The most entries that are ever kept; None when there is no limit."""
        return None

    def visible(self, length: int) -> int:
        """Entries, of ``length`` appended, that the next token may look at."""
        raise NotImplementedError

    def kept(self, length: int) -> int:
        """Entries that stay after ``length`` tokens: the spec's ``tokens_kept``."""
        raise NotImplementedError


class Everything(Horizon):
    """Full attention: every earlier token."""

    def visible(self, length: int) -> int:
        """All of them."""
        return length

    def kept(self, length: int) -> int:
        """All of them."""
        return length


class Window(Horizon):
    """Sliding window of ``window`` tokens, the query included."""

    window: int

    def _check(self) -> None:
        positive("sliding window", window=self.window)

    @property
    def most(self) -> int:
        """The window."""
        return self.window

    def visible(self, length: int) -> int:
        """``min(n, w - 1)``."""
        return min(length, self.window - 1)

    def kept(self, length: int) -> int:
        """``min(n, w)``."""
        return min(length, self.window)


class Chunks(Horizon):
    """Chunked attention: from the start of the query's own chunk of ``chunk`` tokens."""

    chunk: int

    def _check(self) -> None:
        positive("chunked attention", chunk=self.chunk)

    @property
    def most(self) -> int:
        """One chunk."""
        return self.chunk

    def visible(self, length: int) -> int:
        """``n mod c``."""
        return length % self.chunk

    def kept(self, length: int) -> int:
        """``min(n, c)``."""
        return min(length, self.chunk)
