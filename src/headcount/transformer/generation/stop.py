"""Stop strings in a stream: text is given out as it comes, but never a part of what may become a stop string.

With stop string "END" the pieces "the E", "N", "emy" come out as "the ", "", "ENemy"; "the E", "ND" ends after "the ".

The stop string that is complete first ends the text, and of several complete at the same character the longest: what is
shown does not depend on how the text was cut into pieces.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Feed pieces of text; what comes back may be shown. ``found`` is set once a stop string has appeared."""

    def __init__(self, strings: Sequence[str]) -> None:
        self.strings = [text for text in strings if text]
        self.held = ""
        self.found: str | None = None

    def feed(self, piece: str) -> str:
        """The text that is now certain to stand before any stop string."""
        if self.found is not None:
            return ""
        self.held += piece
        places = [(self.held.find(text), text) for text in self.strings if text in self.held]
        if places:
            _, place, self.found = min((place + len(text), place, text) for place, text in places)
            shown, self.held = self.held[:place], ""
            return shown
        keep = max((self._begun(text) for text in self.strings), default=0)
        shown, self.held = self.held[: len(self.held) - keep], self.held[len(self.held) - keep :]
        return shown

    def finish(self) -> str:
        """The stream has ended: what was held back was no stop string."""
        shown, self.held = self.held, ""
        return shown

    def _begun(self, text: str) -> int:
        """How many characters at the end of what is held could begin ``text``."""
        for size in range(min(len(text) - 1, len(self.held)), 0, -1):
            if self.held.endswith(text[:size]):
                return size
        return 0
