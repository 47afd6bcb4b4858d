"""Whether a module is named by a list of a ``quantization_config``: paths, ``re:`` patterns, ``*`` wildcards.

A list is read once and asked thousands of times (every weight of every layer), and it comes from a file: plain
paths are looked up in a set, and patterns that could backtrack without end are refused by name.
"""

from __future__ import annotations

from headcount.errors import ModelFileError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re

# Published lists hold some hundred patterns; every one is tried on every module.
MAX_PATTERNS = 2048
MAX_PATTERN_LENGTH = 500
# A match takes at most about n^4 / 24 steps over the n < 60 signs of a module path.
MAX_REPEATS = 4

_read: dict[int, tuple[tuple[str, ...], NameList]] = {}


class NameList:
    """The entries of one list, sorted by how they are compared."""

    def __init__(self, entries: tuple[str, ...]) -> None:
        patterns = [entry for entry in entries if entry.startswith("re:") or "*" in entry or "?" in entry]
        if len(patterns) > MAX_PATTERNS:
            raise ModelFileError(
                f"quantization_config: {len(patterns):,} patterns in one list; at most {MAX_PATTERNS:,} are read"
            )
        self.regexes = [_regex(entry) for entry in patterns if entry.startswith("re:")]
        self.wildcards = _wildcards([entry for entry in patterns if not entry.startswith("re:")])
        self.paths = {entry.removesuffix(".") for entry in entries}.difference(patterns)

    def names(self, spellings: list[str], runs: set[str]) -> bool:
        """Whether a module with these spellings of its path, and these runs of its parts, is in the list."""
        if not self.paths.isdisjoint(runs):
            return True
        if any(regex.match(spelling) for regex in self.regexes for spelling in spellings):
            return True
        return self.wildcards is not None and any(self.wildcards.match(run) for run in runs)


def _regex(entry: str) -> re.Pattern[str]:
    """Compile one ``re:`` pattern; broken ones and those with repeated groups or many repeats are refused."""
    import re

    text = entry[3:]
    bare = re.sub(r"\\.|\[[^\]]*\]", "x", text)
    repeats = len(re.findall(r"[*+{]", bare))
    if len(text) > MAX_PATTERN_LENGTH or repeats > MAX_REPEATS or re.search(r"\)[*+{]", bare):
        raise ModelFileError(
            f"quantization_config: pattern {entry[:60]!r} may never end; at most {MAX_REPEATS} repeats, none of a "
            f"group, and {MAX_PATTERN_LENGTH} signs are allowed"
        )
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError):
        raise ModelFileError(f"quantization_config: {entry[:60]!r} is not a regular expression") from None


def _wildcards(entries: list[str]) -> re.Pattern[str] | None:
    """One pattern for all wildcard entries."""
    if not entries:
        return None
    import re
    from fnmatch import translate

    long = next((entry for entry in entries if len(entry) > MAX_PATTERN_LENGTH), None)
    if long is not None:
        raise ModelFileError(
            f"quantization_config: pattern {long[:60]!r} has {len(long):,} signs; "
            f"at most {MAX_PATTERN_LENGTH} are read"
        )
    return re.compile("|".join(translate(entry) for entry in entries))


def matches(name: str, entries: tuple[str, ...], *, tower: bool = False) -> bool:
    """Whether a module ``name`` is named by an ignore list; ``tower``: it belongs to a vision or audio encoder.

    An entry is a module path or a run of its parts (``lm_head``, ``mlp.gate``, ``model.layers.0``), a ``re:``
    pattern matched from the start, or a wildcard pattern. Multimodal checkpoints put ``language_model`` into the
    path; both spellings are tried, and those that files of other ages give an encoder's modules.
    Raises ModelFileError for a pattern that cannot be read or may never end.
    """
    if not entries:
        return False
    # Keyed by identity: hashing a list of thousands of names would cost more than the look-up. The list is kept
    # with its reading, so its identity is not used again.
    if id(entries) not in _read:
        _read[id(entries)] = (entries, NameList(entries))
    spellings = _tower_spellings(name) if tower else [name]
    if not tower and name.startswith("model."):
        spellings += [name.replace("model.", "model.language_model.", 1), "language_model." + name, name[6:]]
    runs: set[str] = set()
    for spelling in spellings:
        parts = spelling.split(".")
        runs.update(".".join(parts[i:j]) for i in range(len(parts)) for j in range(i + 1, len(parts) + 1))
    return _read[id(entries)][1].names(spellings, runs)


def _tower_spellings(name: str) -> list[str]:
    """A tower's module as transformers 5 names it, as 4 did (``vision_tower.vision_model``), and below ``model.``."""
    root, _, rest = name.partition(".")
    older = [f"{root}.vision_model.{rest}"] if root == "vision_tower" else []
    spellings = [name, *older]
    return [*spellings, *("model." + s for s in spellings), *("thinker." + s for s in spellings)]
