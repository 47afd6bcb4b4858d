"""Argument dumps: ``ServerArgs(a=1, b='x')``, ``{'a': 1, 'b': 'x'}`` and ``config: a='x', b=1, ...``."""

from __future__ import annotations

_OPEN, _CLOSE = "([{<", ")]}>"
_MOST_PAIRS = 2000


def read_dump(text: str) -> dict[str, str]:
    """The top-level ``key: value`` or ``key=value`` pairs of a Python repr, values as text, quotes taken off strings.

    One pass over the text. A pair that the text cuts off is left out: what closes a value (a comma or the closing
    bracket) must be there.
    """
    pairs: dict[str, str] = {}
    depth, quote, begin, middle = 0, "", 0, -1
    position, end = 0, len(text)
    while position < end and len(pairs) < _MOST_PAIRS:
        sign = text[position]
        if quote:
            if sign == "\\":
                position += 1
            elif sign == quote:
                quote = ""
        elif sign in "'\"":
            quote = sign
        elif sign in _OPEN:
            depth += 1
        elif sign in _CLOSE:
            depth -= 1
            if depth < 0:
                break
        elif depth == 0 and sign in "=:" and middle < 0:
            middle = position
        elif depth == 0 and sign in ",\n":
            _keep(pairs, text, begin, middle, position)
            begin, middle = position + 1, -1
            if sign == "\n":
                return pairs
        position += 1
    if position < end:
        _keep(pairs, text, begin, middle, position)
    return pairs


def _keep(pairs: dict[str, str], text: str, begin: int, middle: int, end: int) -> None:
    if middle >= 0:
        key = text[begin:middle].strip().strip("'\"")
        if 0 < len(key) <= 80:
            pairs.setdefault(key, _unquoted(text[middle + 1 : end].strip()))


def _unquoted(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value


def whole(value: str | None) -> int | None:
    """An int, None for anything else (``None``, ``auto``)."""
    if value is not None and value.isascii() and value.isdigit() and len(value) <= 18:
        return int(value)
    return None


def number(value: str | None) -> float | None:
    """A plain decimal number, None for anything else."""
    if value is None or len(value) > 30 or not value.replace(".", "", 1).isdigit() or not value.isascii():
        return None
    return float(value)


def named(value: str | None) -> str | None:
    """A name, None for ``None`` and the empty text."""
    return value if value and value != "None" and len(value) <= 500 else None
