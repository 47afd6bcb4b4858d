"""One error family. A message says what was given, what is allowed and the nearest match, in one line.

HeadcountError              base; the command line prints it after "headcount: " and exits 2
|-- UsageError              an option or value of the command is wrong
|-- UnknownNameError        a model, GPU, engine or dtype name that is not in its list
|-- ModelFileError          a model file that is missing, damaged, lying or too large
|-- UnsupportedModelError   a model type or layer kind that headcount does not know: refused by name
|-- LayoutError             a parallel layout that the engine refuses
|-- OperandError            tensors whose shapes, dtypes or devices an operation of the transformer cannot take
|-- CacheFullError          the KV budget has no room
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class HeadcountError(Exception):
    """Base of every error that a caller can mend; ``str(error)`` is one line."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(" ".join(message.split())))


def printable(text: str) -> str:
    """Escape what a terminal would obey or refuse: a path or a config may hold control signs or broken UTF-8."""
    if text.isprintable():
        return text
    return "".join(ch if ch.isprintable() else ascii(ch)[1:-1] for ch in text)


class UsageError(HeadcountError):
    """A value or option of the question is wrong."""


class UnknownNameError(HeadcountError):
    """A name that is not in its list; the message carries the nearest names."""

    def __init__(self, *, what: str, given: str, allowed: Iterable[str], hint: str = "") -> None:
        names = list(allowed)
        close = nearest(given, names)
        if close:
            advice = "nearest: " + ", ".join(close)
        elif len(names) <= 12:
            advice = "allowed: " + ", ".join(names)
        else:
            advice = f"none of the {len(names)} known names is close"
        shown = given if len(given) <= 80 else given[:77] + "..."
        super().__init__(f"unknown {what} {shown!r}; {advice}{'; ' + hint if hint else ''}")
        self.given = given
        self.nearest = close


class ModelFileError(HeadcountError):
    """A model file is missing, damaged, contradicts itself, or is larger than any honest header."""


class UnsupportedModelError(HeadcountError):
    """A model type or layer kind that is not known; a plausible wrong number would be worse."""


class LayoutError(HeadcountError):
    """A tensor, pipeline or data parallel layout that cannot be served."""


class OperandError(HeadcountError):
    """An operation's tensors do not match; the message names the operation, the shapes by letter and what was expected."""


class CacheFullError(HeadcountError):
    """The KV budget has no room; nothing was stored, and every conversation is as it was."""


def nearest(given: str, allowed: Iterable[str], *, count: int = 3) -> list[str]:
    """Return up to ``count`` allowed names that resemble ``given`` (case and separators do not matter)."""
    import difflib

    def plain(name: str) -> str:
        return "".join(ch for ch in name.lower() if ch.isalnum())

    target = plain(given[:200])
    by_plain: dict[str, str] = {}
    for name in allowed:
        by_plain.setdefault(plain(name), name)
    inside = [name for key, name in by_plain.items() if target and (target in key or (key and key in target))]
    inside.sort(key=lambda name: abs(len(name) - len(given)))
    close = [by_plain[key] for key in difflib.get_close_matches(target, list(by_plain), n=count, cutoff=0.6)]
    return list(dict.fromkeys([*close, *inside]))[:count]
