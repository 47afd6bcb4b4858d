"""The only home of 1e9 and 2**30: sizes, rates and money as text, and text as sizes.

GB is 10**9 bytes, GiB is 2**30 bytes; they differ by 7.4 % and are never mixed. FLOPs are a count (2 per
multiply-add), FLOP/s a rate, MACs half the FLOPs.
"""

from __future__ import annotations

from headcount.errors import UsageError

KIB = 2**10
MIB = 2**20
GIB = 2**30
TIB = 2**40
KB = 10**3
MB = 10**6
GB = 10**9
TB = 10**12
PB = 10**15

_SIZES = {
    "": 1,
    "b": 1,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": TIB,
    "kb": KB,
    "mb": MB,
    "gb": GB,
    "tb": TB,
}
_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}


def ceil_div(numerator: int, denominator: int) -> int:
    """Return the smallest integer not below numerator / denominator."""
    return -(-numerator // denominator)


def round_up(value: int, multiple: int) -> int:
    """Return the smallest multiple of ``multiple`` that is not below ``value``."""
    return ceil_div(value, multiple) * multiple


def gib(count: float) -> str:
    """Format bytes as GiB: ``gib(2**30) == "1.00 GiB"``."""
    return f"{count / GIB:,.2f} GiB"


def gb(count: float) -> str:
    """Format bytes as decimal GB: ``gb(10**9) == "1.00 GB"``."""
    return f"{count / GB:,.2f} GB"


def human_bytes(count: float) -> str:
    """Format bytes in the largest binary unit that keeps at least one digit before the point."""
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(count) >= unit:
            return f"{count / unit:,.2f} {name}"
    return f"{count:,.0f} B"


def human_count(count: float) -> str:
    """Format a count with a decimal prefix: ``human_count(6_738_415_616) == "6.74 B"`` (billion)."""
    for unit, name in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k")):
        if abs(count) >= unit:
            return f"{count / unit:,.2f} {name}"
    return f"{count:,.0f}"


def _split_number(text: str) -> tuple[float, str]:
    stripped = text.strip()
    if not stripped.isascii():
        raise ValueError("digits of other scripts")
    if "," in stripped:
        stripped = _without_thousands(stripped)
    end = len(stripped)
    while end and not (stripped[end - 1].isdigit() or stripped[end - 1] == "."):
        end -= 1
    number, suffix = stripped[:end], stripped[end:].strip().lower()
    return float(number), suffix


def _without_thousands(text: str) -> str:
    """``1,234,567.8`` -> ``1234567.8``; a comma anywhere else (``79,2``) is a decimal comma: ValueError."""
    head, *groups = text.split(",")
    whole = [*groups[:-1], groups[-1][:3]]
    rest = groups[-1][3:4]
    if not (head.isdigit() and len(head) <= 3 and head[0] != "0") or rest.isdigit() or rest == "_":
        raise ValueError("comma that does not part thousands")
    if not all(len(group) == 3 and group.isdigit() for group in whole):
        raise ValueError("comma that does not part thousands")
    return head + "".join(groups)


def _finite_number(text: str, suffixes: dict[str, int], *, what: str, example: str) -> float:
    """Parse ``text`` as a number with one of ``suffixes``; anything else is a UsageError with an example."""
    try:
        number, suffix = _split_number(text)
        factor = suffixes[suffix]
    except (ValueError, KeyError, OverflowError):
        raise UsageError(f"{what} {text[:60]!r} is not a number like {example}") from None
    value = number * factor
    if value != value or value in (float("inf"), float("-inf")):
        raise UsageError(f"{what} {text[:60]!r} is not a finite number; write it like {example}")
    return value


def parse_bytes(text: str, *, what: str, maximum: int = PB) -> int:
    """Read a size such as ``80GB``, ``79.2GiB``, ``24564MiB`` or a plain byte count; positive, at most 1 PB."""
    value = _finite_number(text, _SIZES, what=what, example="80GB, 79.2GiB, 24564MiB")
    if 1 <= value < MIB and text.strip()[-1:].isdigit():
        # ``--memory 80`` means gigabytes to everyone but a computer.
        raise UsageError(f"{what} {text[:60]!r} has no unit; write it like 80GB, 79.2GiB, 24564MiB")
    if not 1 <= value <= maximum:
        raise UsageError(f"{what} must be positive and at most {maximum / TB:,.0f} TB; given {text[:60]!r}")
    return round(value)


def parse_count(text: str, *, what: str, minimum: int = 1, maximum: int = 10**15) -> int:
    """Read a whole count such as ``200``, ``7e9``, ``7b``, ``128k`` (k, m, b, t are decimal)."""
    value = _finite_number(text, _COUNTS, what=what, example="200, 4096, 7e9, 128k")
    if value != int(value):
        raise UsageError(f"{what} must be a whole number; given {text[:60]!r}")
    if not minimum <= value <= maximum:
        raise UsageError(f"{what} must be {minimum:,} to {maximum:,}; given {text[:60]!r}")
    return int(value)


def parse_fraction(text: str, *, what: str, low: float = 0.0, high: float = 1.0) -> float:
    """Read a fraction such as ``0.9`` or ``90%`` within ``low <= value <= high``."""
    bare = text.strip()
    percent = bare.endswith("%")
    value = _finite_number(bare[:-1] if percent else bare, {"": 1}, what=what, example="0.9 or 90%")
    value = value / 100 if percent else value
    if not low <= value <= high:
        raise UsageError(f"{what} must be {low:g} to {high:g}; given {text[:60]!r}")
    return value


def parse_price(text: str, *, what: str) -> float:
    """Read a price in USD per hour such as ``1.39`` or ``$2``: 0.0001 to 1,000,000."""
    # ``1,390`` is 1.39 to half of the world: no comma is read in a price.
    bare = text.strip().removeprefix("$").replace(",", "comma")
    value = _finite_number(bare, {"": 1}, what=what, example="1.39")
    if not 1e-4 <= value <= 1e6:
        raise UsageError(f"{what} must be 0.0001 to 1,000,000 USD an hour; given {text[:60]!r}")
    return value
