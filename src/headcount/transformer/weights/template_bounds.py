"""What each filter and text method can cost at most, charged before it runs; arguments count however they are passed.

Methods and filters that are not listed do not exist for a template: padding (``center``, ``ljust``, ``zfill``),
``expandtabs``, ``encode``, ``to_bytes``. Templates of published models use none of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from string import Formatter
from typing import Any

from jinja2 import Undefined
from jinja2.exceptions import SecurityError
from markupsafe import Markup

from headcount.transformer.weights.template_fuel import ELEMENT, STEP, Meter

Given = Mapping[str, Any]
_LONGEST_WIDTH = 999
# Beyond its width a number takes 310 digits (1e308 with %f) or as many as it has bits, which ``weigh`` counts.
_FIELD = 400
_PRECISION = 32
_DIGITS = 4096
# ``&`` becomes ``&amp;``; case conversion makes at most three letters of one, and room for three of each first.
_ESCAPE, _CASE = 6, 4
_BLANKS = "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
_BREAKS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_SPECIFICATION = re.compile(r"(?:\([^()]*\))?[#0\- +]*(?P<width>\d*)(?:\.(?P<precision>\d*))?[hlL]?[A-Za-z]")


def charge_filter(meter: Meter, name: str, value: Any, given: Given) -> Any:
    """Charge for ``value|name(given)`` and return ``value``, gone through where only a list can be measured."""
    for argument in given.values():
        meter.weigh(argument)
    if name in _ON_ELEMENTS and not isinstance(value, Undefined):
        if isinstance(value, str) and name in ("first", "last", "reverse"):
            return meter.measured(value)
        found = value if isinstance(value, list | tuple | dict) else meter.elements(value)
        _ON_ELEMENTS[name](meter, found, given)
        return found
    if name in _ON_TEXT:
        meter.weigh_text(value)
        _ON_TEXT[name](meter, value if isinstance(value, str) else str(value), given)
    elif name == "round":
        _whole_number("round", given.get("precision", 0), _PRECISION)
    elif name in ("int", "float") and isinstance(value, str) and len(value) > _DIGITS:
        raise SecurityError(f"{name} reads a number of more than {_DIGITS:,} digits")
    return value


def charge_method(
    meter: Meter, text: str, method: str, arguments: tuple[Any, ...], options: Given
) -> tuple[Any, ...]:
    """Charge for ``text.method(arguments)`` and return the arguments, a join's gone through into a list."""
    meter.weigh(text)
    if method == "join" and arguments:
        arguments = (meter.elements(arguments[0]), *arguments[1:])
        meter.spend(len(text) * len(arguments[0]))
    growth = _ESCAPE if isinstance(text, Markup) else 1
    spent = sum(meter.weigh(one) for one in (*arguments, *options.values()))
    meter.spend((growth - 1) * (spent + len(text)))
    if method in ("format", "format_map"):
        charge_format(meter, text, (*arguments, *options.values()))
    elif method in _METHODS:
        given = dict(zip(_METHOD_NAMES.get(method, ("needle",)), arguments, strict=False))
        _METHODS[method](meter, text, {**given, **options})
    return arguments


def charge_format(meter: Meter, text: str, values: Sequence[Any]) -> None:
    """Charge for ``text.format(...)``: every field may print all the values, and is at most 999 wide."""
    size = meter.weigh(list(values), printed=True) * (_ESCAPE if isinstance(text, Markup) else 1)
    for _, field, specification, _ in Formatter().parse(str(text)):
        if field is None:
            continue
        if "{" in (specification or ""):
            raise SecurityError("its text formats take widths from values")
        meter.spend(_FIELD + size + sum(map(_width, re.findall(r"\d+", specification or ""))))


def charge_percent(meter: Meter, text: str, value: Any) -> None:
    """Charge for ``text % value``, like ``charge_format``."""
    meter.weigh(text)
    size = meter.weigh([value], printed=True) * (_ESCAPE if isinstance(text, Markup) else 1)
    pieces = str(text).split("%", maxsplit=1 << 12)
    if len(pieces) > 1 << 12:
        raise SecurityError("its text formats have more than 4,096 fields")
    after = iter(pieces[1:])
    for piece in after:
        if not piece:  # ``%%``: what follows is text
            next(after, None)
            continue
        found = _SPECIFICATION.match(piece)
        if found is None:
            raise SecurityError(f"its text formats hold {'%' + piece[:20]!r}")
        meter.spend(_FIELD + size + _width(found["width"]) + _width(found["precision"] or ""))


def charge_json(meter: Meter, value: Any, *, indent: int | None, between: int, ascii_only: bool) -> None:
    """Charge for a value as JSON: escapes, ``between`` characters of separators, and blanks by depth."""
    meter.step()
    blanks = 0 if indent is None else indent + 2
    waiting = [(value, 1)]
    while waiting:
        one, depth = waiting.pop()
        if isinstance(one, str):
            plain = one.isprintable() and (one.isascii() or not ascii_only)
            meter.spend(len(one) * (2 if plain else 12) + 2)
        elif isinstance(one, list | tuple | dict):
            width = 2 if isinstance(one, dict) else 1
            meter.spend(STEP + len(one) * (width * ELEMENT + between + blanks * (depth + 1)))
            waiting += [(part, depth + 1) for part in one]
            if isinstance(one, dict):
                waiting += [(part, depth + 1) for part in one.values()]
        else:
            meter.weigh(one)


def _width(digits: str) -> int:
    if len(digits) > 3:
        raise SecurityError(f"its text formats ask for fields wider than {_LONGEST_WIDTH}")
    return int(digits or 0)


def _whole_number(what: str, value: Any, limit: int) -> int:
    if not isinstance(value, int) or abs(value) > limit:
        raise SecurityError(f"{what} takes whole numbers up to {limit:,}")
    return int(value)


def _cost(factor: int) -> Callable[[Meter, str, Given], None]:
    return lambda meter, text, given: meter.spend(factor * len(text))


def _replace(meter: Meter, text: str, given: Given) -> None:
    old, new = given.get("old"), given.get("new")
    size = meter.weigh_text(new)
    found = (
        len(text) + 1 if old == "" else text.count(old if isinstance(old, str) else str(meter.printed(old)))
    )
    count = given.get("count")
    if isinstance(count, int) and count >= 0:
        found = min(found, count)
    meter.spend(len(text) + found * size)


def _indent(meter: Meter, text: str, given: Given) -> None:
    width = given.get("width", 4)
    size = len(width) if isinstance(width, str) else abs(_whole_number("indent", width, 1 << 16))
    lines = 1 + sum(map(text.count, _BREAKS))
    meter.spend(lines * (2 * ELEMENT + size))


def _strip(meter: Meter, text: str, given: Given) -> None:
    letters = given.get("chars")
    meter.spend(len(text) * len(letters) >> 4 if isinstance(letters, str) else 0)


def _find(meter: Meter, text: str, given: Given) -> None:
    meter.spend(len(text))


def _find_last(meter: Meter, text: str, given: Given) -> None:
    """From the end Python compares naively: every place with the whole needle."""
    needle = given.get("needle", given.get("sep"))
    meter.spend(len(text) * len(needle) >> 3 if isinstance(needle, str) else 0)


def _split(meter: Meter, text: str, given: Given) -> None:
    separator, most = given.get("sep"), given.get("maxsplit", -1)
    if isinstance(separator, str) and separator:
        pieces = text.count(separator)
        _find(meter, text, given)
        _find_last(meter, text, given)
    else:
        meter.spend(2 * len(text))
        pieces = sum(map(text.count, _BLANKS))
    if isinstance(most, int) and most >= 0:
        pieces = min(pieces, most)
    meter.spend(ELEMENT * 2 * (pieces + 1))


def _split_lines(meter: Meter, text: str, given: Given) -> None:
    meter.spend(ELEMENT * 2 * (1 + sum(map(text.count, _BREAKS))))


def _nothing(meter: Meter, values: Any, given: Given) -> None:
    """The step is enough."""


def _walk(meter: Meter, values: Any, given: Given) -> None:
    meter.walked(values)


def _each(meter: Meter, values: Any, given: Given) -> None:
    """A step for every element, more for an ``attribute`` with many parts."""
    attribute = given.get("attribute", given.get("kwargs", ""))  # ``selectattr(name, ...)``
    parts = 1 + (len(attribute) >> 3 if isinstance(attribute, str) else 0)
    meter.spend(STEP * len(values) * parts)


def _ordered(meter: Meter, values: Any, given: Given) -> None:
    """Sorting compares, and ignores case by making a copy of every text."""
    _each(meter, values, given)
    meter.spend(_CASE * meter.weigh(values))


def _join(meter: Meter, values: Any, given: Given) -> None:
    _each(meter, values, given)
    meter.weigh(values, printed=True)
    meter.spend(meter.weigh_text(given.get("d", "")) * len(values))


def _sum(meter: Meter, values: Any, given: Given) -> None:
    """Lists are added one by one: each sum copies all before it."""
    _each(meter, values, given)
    if not isinstance(given.get("start", 0), int | float):
        meter.spend(len(values) * (meter.weigh(values) // ELEMENT))


def _slice(meter: Meter, values: Any, given: Given) -> None:
    meter.walked(values)
    meter.spend(2 * STEP * abs(_whole_number("slice", given.get("slices", 1), 1 << 16)))


_ON_TEXT: dict[str, Callable[[Meter, str, Given], None]] = {
    **dict.fromkeys(("upper", "lower", "capitalize"), _cost(_CASE)),
    **dict.fromkeys(("e", "escape"), _cost(_ESCAPE)),
    # It cuts the text into words and separators, a list of them.
    "title": _cost(STEP),
    "replace": _replace,
    "indent": _indent,
    "trim": _strip,
    "string": _cost(0),
}
_ON_ELEMENTS: dict[str, Callable[[Meter, Any, Given], None]] = {
    **dict.fromkeys(("map", "select", "reject", "selectattr", "rejectattr"), _each),
    **dict.fromkeys(("reverse", "list", "items"), _walk),
    **dict.fromkeys(("first", "last"), _nothing),
    **dict.fromkeys(("sort", "unique", "min", "max", "groupby", "dictsort"), _ordered),
    "join": _join,
    "sum": _sum,
    "slice": _slice,
}  # fmt: skip
_METHODS: dict[str, Callable[[Meter, str, Given], None]] = {
    **dict.fromkeys(("upper", "lower", "capitalize", "title", "swapcase", "casefold"), _cost(_CASE)),
    **dict.fromkeys(("count", "find", "index", "partition"), _find),
    **dict.fromkeys(("rfind", "rindex", "rpartition"), _find_last),
    **dict.fromkeys(("strip", "lstrip", "rstrip"), _strip),
    **dict.fromkeys(("split", "rsplit"), _split),
    "splitlines": _split_lines,
    "replace": _replace,
}
_METHOD_NAMES = {
    "replace": ("old", "new", "count"),
    **dict.fromkeys(("split", "rsplit"), ("sep", "maxsplit")),
    **dict.fromkeys(("strip", "lstrip", "rstrip"), ("chars",)),
}
