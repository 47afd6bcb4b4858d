"""What one engine start said: figures by name and rank, bounded however long the log is."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from headcount.verify.logs.patterns import Figure

_MOST_RANKS = 1024
_MOST_VALUES = 32
_MOST_NOTES = 20


class Start:
    """One start while it is being read; ``drafts_for`` is the start whose drafter this is."""

    def __init__(self, lane: str = "") -> None:
        self.lane = lane
        self.drafts_for: Start | None = None
        self.date: str | None = None
        self.openers: set[str] = set()
        self.notes: list[str] = []
        self._figures: dict[str, dict[str, list[Figure]]] = {}
        self._arguments: dict[str, str] = {}

    def add(self, name: str, value: Figure, rank: str, *, each: bool = False) -> None:
        """Keep ``value``; the same value twice from one rank is one value, unless ``each`` says that every one counts.

        Beyond 32 the last is replaced.
        """
        by_rank = self._figures.setdefault(name, {})
        if rank not in by_rank and len(by_rank) >= _MOST_RANKS:
            self.note(f"more than {_MOST_RANKS:,} ranks: the further ones are not read")
            return
        values = by_rank.setdefault(rank, [])
        if value in values and not each:
            values.remove(value)
        elif len(values) >= _MOST_VALUES:
            values.pop()
        values.append(value)

    def forget(self, names: Iterable[str]) -> None:
        """Drop figures that a later line replaces."""
        for name in names:
            self._figures.pop(name, None)

    def inherit(self, other: Start, names: Iterable[str]) -> None:
        """Take over figures of ``other``."""
        for name in names:
            if name in other._figures:
                self._figures[name] = {rank: list(values) for rank, values in other._figures[name].items()}

    def note(self, text: str) -> None:
        """Keep a remark once, at most 20 of them."""
        if text not in self.notes and len(self.notes) < _MOST_NOTES:
            self.notes.append(text)

    def set_argument(self, name: str, value: str) -> None:
        """An argument of the engine by its own name; the last one said holds."""
        self._arguments[name] = value

    @property
    def arguments(self) -> tuple[tuple[str, str], ...]:
        """In the order they were first seen."""
        return tuple(self._arguments.items())

    def has(self, *names: str) -> bool:
        """Whether any of ``names`` was said."""
        return any(name in self._figures for name in names)

    def said_by(self, name: str, rank: str) -> bool:
        """Whether ``rank`` said ``name``."""
        return rank in self._figures.get(name, {})

    def ranks(self, name: str) -> tuple[str, ...]:
        """Who said ``name``."""
        return tuple(self._figures.get(name, {}))

    def values(self, name: str, rank: str) -> list[Figure]:
        """All that ``rank`` said, in order."""
        return self._figures.get(name, {}).get(rank, [])

    def text(self, name: str) -> str | None:
        """The last thing said, as text."""
        found = [values[-1] for values in self._figures.get(name, {}).values()]
        return str(found[-1]) if found else None

    def latest(self, name: str) -> list[float]:
        """The last figure of every rank."""
        return [
            value
            for values in self._figures.get(name, {}).values()
            if isinstance(value := values[-1], int | float)
        ]

    def least(self, name: str) -> float | None:
        """The smallest of the ranks' last figures: engines size their caches by the poorest rank."""
        return min(self.latest(name), default=None)

    def greatest(self, name: str) -> float | None:
        """The largest of the ranks' last figures."""
        return max(self.latest(name), default=None)

    def count(self, name: str) -> int | None:
        """The smallest as an int."""
        least = self.least(name)
        return None if least is None else int(least)

    def differ(self, name: str, what: str) -> None:
        """Note the spread where ranks said different figures."""
        found = self.latest(name)
        if len(set(found)) > 1:
            self.note(f"{what} differs between {len(found)} ranks: {min(found):g} to {max(found):g}")

    def several(self, name: str, what: str) -> bool:
        """Note, and tell, where one rank said two different figures."""
        for rank, values in self._figures.get(name, {}).items():
            if len(values) > 1:
                shown = ", ".join(
                    f"{value:g}" if isinstance(value, int | float) else value for value in values[:4]
                )
                self.note(f"{rank or 'one process'} printed {what} {len(values)} times: {shown}")
                return True
        return False
