"""What the readers of all engines share: where a start begins, and how lines become figures."""

from __future__ import annotations

from headcount.verify.logs.ranks import date_of, lane_of, rank_of, replica_of
from headcount.verify.logs.start import Start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from headcount.verify.logs.lines import Line
    from headcount.verify.logs.patterns import Figure, Pattern
    from headcount.verify.observation import Observation

_MOST_STARTS = 200


class Reader:
    """Reads one engine's lines.

    engine     its name in observations
    patterns   the table: one entry per wording
    openings   words of lines that open a start
    capacity   figures that only a finished start has said
    leading    figures that come early: said again by the same rank after a capacity, they open the next start
    carried    figures that a start opened by a leading figure has from the one before (the same loaded model)
    identity   figures that tell the engine where there is no evidence
    evidence   figures without which a start is no observation
    """

    engine = ""
    patterns: tuple[Pattern, ...] = ()
    openings: tuple[str, ...] = ()
    capacity: tuple[str, ...] = ()
    leading: tuple[str, ...] = ()
    carried: tuple[str, ...] = ()
    identity: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.starts: list[Start] = []
        self.ranks: set[str] = set()
        self.overflow = False
        self._current: dict[str, Start] = {}

    @classmethod
    def words(cls) -> tuple[str, ...]:
        """Every word that makes a line worth looking at."""
        return (*cls.openings, *(pattern.word for pattern in cls.patterns))

    def read(self, line: Line) -> None:
        """Take one line."""
        text = line.text + "\n" if line.whole else line.text
        rank = rank_of(text)
        self.turn(text, rank)
        for pattern in self.patterns:
            for figures in pattern.find(text):
                start = self._start_of([name for name, _ in figures], text, rank)
                start.date = start.date or date_of(text)
                self.take(start, figures, rank)
                if rank and len(self.ranks) < 1024:
                    self.ranks.add(rank)
        self.look(text, rank)

    def turn(self, text: str, rank: str) -> None:
        """Open a new start where the line is the first of one."""
        if any(word in text for word in self.openings):
            self._open(lane_of(text), rank)

    def take(self, start: Start, figures: Sequence[tuple[str, Figure]], rank: str) -> None:
        """Keep the figures of one match; an engine's reader overrides it where they belong together."""
        for name, value in figures:
            start.add(name, value, rank)

    def look(self, text: str, rank: str) -> None:
        """Read what a table cannot say; an engine's reader overrides it."""

    def observe(self, start: Start) -> Observation:
        """Turn a start into an observation; every engine's reader writes its own."""
        raise NotImplementedError

    def observations(self) -> list[tuple[Start, Observation]]:
        """Every start that said something about memory, in order."""
        return [(start, self.observe(start)) for start in self.starts if start.has(*self.evidence)]

    def current(self, lane: str = "") -> Start:
        """The start that lines of ``lane`` belong to."""
        start = self._current.get(lane)
        if start is None:
            start = self._new(lane)
        return start

    def _new(self, lane: str) -> Start:
        start = Start(lane)
        self._current[lane] = start
        if len(self.starts) < _MOST_STARTS:
            self.starts.append(start)
        else:
            self.overflow = True
        return start

    def _open(self, lane: str, rank: str) -> None:
        start = self.current(lane)
        replica = replica_of(rank)
        # Data-parallel engine processes open one after another: those are one start, whatever the first has said by then.
        same = replica and start.openers and replica not in start.openers and "" not in start.openers
        if start.has(*self.capacity) and not same:
            start = self._new(lane)
        if replica or not start.openers:
            start.openers.add(replica)

    def _start_of(self, names: Sequence[str], text: str, rank: str) -> Start:
        start = self.current(lane_of(text))
        again = any(name in self.leading and start.said_by(name, rank) for name in names)
        if not (again and start.has(*self.capacity)):
            return start
        following = self._new(start.lane)
        following.inherit(start, self.carried)
        return following
