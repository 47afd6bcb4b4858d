"""An equation with the numbers put in: ``S[UPI,down] = 2 x 1 + 1 x 3 = 5``, written from the tensors that were used."""

from __future__ import annotations

import math

from torch import Tensor


def number(value: Tensor | float) -> float:
    """A tensor of one entry, or a float, as a float."""
    return float(value.detach()) if isinstance(value, Tensor) else float(value)


def short(number: float, digits: int = 4) -> str:
    """Four decimals, none when the number is whole."""
    if not math.isfinite(number):
        return str(number)
    if number == int(number) and abs(number) < 1e9:
        return f"{int(number)}"
    return f"{number:.{digits}f}"


def dot(left: Tensor, right: Tensor) -> str:
    """``2 x 1 + 1 x 3``; a negative factor in brackets."""
    pairs = zip(left.tolist(), right.tolist(), strict=True)
    return " + ".join(f"{_factor(a)} x {_factor(b)}" for a, b in pairs)


def _factor(number: float) -> str:
    text = short(number)
    return f"({text})" if text.startswith("-") else text


def dot_line(name: str, left: Tensor, right: Tensor, result: float) -> str:
    """``name = 2 x 1 + 1 x 3 = 5``."""
    return f"{name} = {dot(left, right)} = {short(result)}"
