"""Which rules a llama.cpp build follows: builds are numbered, changes are dated, so a number is turned into a date.

    b7000, 7000        a release by its number: dated by linear interpolation between known releases (within days)
    0c1e57098          the commit whose source was read and whose library is run in the tests (2026-10-01)
    2025-07-20         the newest build of that day

Merged changes of ggml-org/llama.cpp that move bytes, with the pull request that made them:

    2024-05-14  7257    cells padded to 256 only with flash attention, else to 32
    2025-04-15  12801   latent attention cached as a latent (GGUF files converted since)
    2025-05-20  13194   sliding layers get a cache of their own
    2025-07-16  14363   one stream of cells per slot, unless unified
    2025-08-30  15434   flash attention on wherever it is supported
    2025-09-12  15916   256 slots, before 64
    2025-10-28  16812   no padding of cells
    2025-11-06  17046   cells padded to 256, always
    2026-05-27  23764   the mask is f16 with flash attention; before, an f32 one and its f16 copy
    2026-06-01  23861   the server reserves one row of logits a slot; before, one a token of the batch
    2026-06-05  23907   CUDA's f16 copies of a quantised cache lie in the compute buffer (merged in the week before issue
                        24166 of that day); before, in a pool that grows as it runs
"""

from __future__ import annotations

from headcount.errors import UsageError
from headcount.record import Record

NEWEST_COMMIT = "0c1e57098"
NEWEST_DATE = "2026-10-01"
# (build, day) of known releases: release pages of ggml-org/llama.cpp; b3972, b4621 and b9401 as #10052, #11681 and
# #13194 name them beside their dates; b10091 and b10488 by the day on which ollama/ollama took them (LLAMA_CPP_VERSION).
_RELEASES = (
    (1500, "2023-11-09"),
    (3972, "2024-10-25"),
    (4621, "2025-02-03"),
    (5000, "2025-03-31"),
    (6000, "2025-07-27"),
    (7000, "2025-11-09"),
    (9401, "2026-05-29"),
    (10091, "2026-07-22"),
    (10488, "2026-08-18"),
)
_MOST_BUILD = 20_000


class Build(Record):
    """The rules of one build.

    cell_multiple      cells of a cache are rounded up to it; ``cell_multiple_plain`` without flash attention
    sliding_multiple   the same for sliding caches; None: as the other
    latent             latent attention is cached as a latent where the file has its tensors
    sliding            sliding layers have their own small cache
    streams            without ``kv-unified`` every slot has its own cells
    flash              flash attention unless told otherwise
    most_slots         sequences a context can have
    mask_bytes         bytes of a mask entry with flash attention
    slot_outputs       the server reserves logits for one token a slot, else for every token of a micro-batch
    copies_reserved    f16 copies of a quantised cache are part of the compute buffer
    own                Ollama's own engine, not llama.cpp, keeps the caches (``own_engine.py``), with
    kept_more          tokens that a window keeps beside its own when there are several slots, and
    checkpoints        recurrent states of a slot that are kept to go back to
    """

    name: str
    date: str
    cell_multiple: int = 256
    cell_multiple_plain: int = 256
    sliding_multiple: int | None = 256
    latent: bool = True
    sliding: bool = True
    streams: bool = True
    flash: bool = True
    most_slots: int = 256
    mask_bytes: int = 2
    slot_outputs: bool = True
    copies_reserved: bool = True
    own: bool = False
    kept_more: int = 0
    checkpoints: int = 0

    @property
    def source(self) -> str:
        """``llama.cpp b7000 (2025-11-09)``, ``llama.cpp of 2025-07-20``, ``Ollama's own engine, 0.9.6``."""
        if self.own:
            return f"Ollama's own engine, {self.name}"
        return (
            f"llama.cpp of {self.date}" if self.name == self.date else f"llama.cpp {self.name} ({self.date})"
        )


def build(version: str | None = None) -> Build:
    """Return the rules of ``version`` (see the module); None is the newest that is known.

    Raises UsageError for what is neither a build number, the known commit, nor a date.
    """
    text = (version or NEWEST_COMMIT).strip().lower()
    if NEWEST_COMMIT.startswith(text) and len(text) >= 7:
        return _rules(NEWEST_COMMIT, NEWEST_DATE)
    number = text.removeprefix("b")
    if number.isascii() and number.isdigit() and 0 < int(number) <= _MOST_BUILD:
        return _rules(f"b{int(number)}", _date_of(int(number)))
    if _is_date(text):
        return _rules(text, text)
    raise UsageError(
        f"llama.cpp version {version!r:.60} is not known; write a build like b7000, a day like 2026-05-30, or "
        f"{NEWEST_COMMIT}"
    )


def _rules(name: str, date: str) -> Build:
    """Undo, newest first, what was merged after ``date``."""
    rules = Build(name=name, date=date)
    day = date if len(date) == 10 else date + "-15"
    changes: tuple[tuple[str, dict[str, object]], ...] = (
        ("2026-06-05", {"copies_reserved": False}),
        ("2026-06-01", {"slot_outputs": False}),
        ("2026-05-27", {"mask_bytes": 6}),
        ("2025-11-06", {"cell_multiple": 1, "cell_multiple_plain": 1, "sliding_multiple": None}),
        ("2025-10-28", {"cell_multiple": 256, "cell_multiple_plain": 32}),
        ("2025-09-12", {"most_slots": 64}),
        ("2025-08-30", {"flash": False}),
        ("2025-07-16", {"streams": False}),
        ("2025-05-20", {"sliding": False}),
        ("2025-04-15", {"latent": False}),
        ("2024-05-14", {"cell_multiple_plain": 256}),
        ("2024-04-30", {"cell_multiple": 32, "cell_multiple_plain": 32}),
    )
    for since, before in changes:
        if day < since:
            rules = rules.replace(**before)
    return rules


def _is_date(text: str) -> bool:
    parts = text.split("-")
    if not 2 <= len(parts) <= 3 or not all(part.isascii() and part.isdigit() for part in parts):
        return False
    return len(parts[0]) == 4 and all(len(part) == 2 for part in parts[1:]) and 1 <= int(parts[1]) <= 12


def _date_of(number: int) -> str:
    """Interpolate between known releases; past the newest one, at the pace of the last interval."""
    from datetime import date, timedelta

    known = [(build_number, date.fromisoformat(day)) for build_number, day in _RELEASES]
    below = max((pair for pair in known[:-1] if pair[0] <= number), default=known[0])
    above = known[known.index(below) + 1]
    days = (number - below[0]) * (above[1] - below[1]).days / (above[0] - below[0])
    return min(date.fromisoformat(NEWEST_DATE), below[1] + timedelta(days=days)).isoformat()
