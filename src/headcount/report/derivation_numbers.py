"""Numbers of a derivation as text: one count of decimals per matrix, whole numbers bare, tiny ones in powers of ten."""

from __future__ import annotations

import math
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from headcount.explain.derivation import Quantity, Table

DIGITS = 4
NOISE = "~0"
NOISE_WORDS = "~0: not exactly 0, but below 1e-12 (rounding)"
_NUMBER = re.compile(r"(x )?[-+]?[\d.,]+(e[-+]?\d+)?( (%|B|[KMGT]i?B|[kMBT]))?|-|nan|-?inf")


def number_text(value: float, digits: int = DIGITS, *, whole: bool | None = None) -> str:
    """``0.6698``, ``2``, ``1.3e-14``, ``524,288``, ``nan``; ``whole`` forces decimals on or off inside a matrix."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        value = 0.0
    if abs(value) >= 1e9 or 0 < abs(value) < 0.5 * 10.0**-digits:
        return f"{value:.{min(digits, 3)}e}"
    integral = value == int(value)
    if integral if whole is None else whole:
        return f"{int(value):,}" if abs(value) >= 10_000 else f"{int(value)}"
    return f"{value:,.{digits}f}" if abs(value) >= 10_000 else f"{value:.{digits}f}"


def is_noise(value: float) -> bool:
    """Not zero, but below 1e-12: next to numbers of ordinary size it is float64's rounding."""
    return 0 < abs(value) < 1e-12


def is_whole(values: Iterable[float]) -> bool:
    """Whether every finite number is an integer: then none needs decimals."""
    return all(not math.isfinite(value) or value == int(value) for value in values)


def rows_of(values: Any) -> tuple[tuple[float, ...], ...]:
    """A scalar, vector or matrix as rows."""
    if not isinstance(values, tuple):
        return ((values,),)
    if not values or not isinstance(values[0], tuple):
        return (values,)
    return values


def matrix_cells(values: Any, digits: int = DIGITS) -> list[list[str]]:
    """Cells of equal width, right-aligned, all with the same decimals; what rounding left of a zero is ``~0``."""
    rows = rows_of(values)
    whole = is_whole(cell for row in rows for cell in row if not is_noise(cell))
    texts = [
        [NOISE if is_noise(cell) else number_text(cell, digits, whole=whole) for cell in row] for row in rows
    ]
    width = max((len(text) for row in texts for text in row), default=0)
    return [[text.rjust(width) for text in row] for row in texts]


def shape_text(shape: tuple[int, ...]) -> str:
    """``2 x 4``; nothing for a scalar."""
    return " x ".join(f"{size}" for size in shape)


def table_cells(table: Table, digits: int = DIGITS) -> tuple[list[list[str]], set[int]]:
    """``(rows of text, columns that are numbers)``: decimals are settled column by column."""
    columns: list[list[str]] = []
    numeric: set[int] = set()
    for index in range(len(table.header)):
        column = [row[index] for row in table.rows]
        floats = [cell for cell in column if isinstance(cell, float)]
        whole = is_whole(floats)
        if column and all(
            cell is None or not isinstance(cell, str) or _NUMBER.fullmatch(cell) for cell in column
        ):
            numeric.add(index)
        columns.append([_cell_text(cell, digits, whole) for cell in column])
    return [list(row) for row in zip(*columns, strict=True)] if table.rows else [], numeric


def _cell_text(cell: object, digits: int, whole: bool) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, str):
        return cell
    if cell == 0:
        return "0"
    if isinstance(cell, float):
        return number_text(cell, digits, whole=whole)
    return number_text(cell, digits) if isinstance(cell, int) else str(cell)


def state_text(quantity: Quantity) -> str:
    """``changed``, ``unchanged``, or nothing when no what-if was asked."""
    return {None: "", True: "changed", False: "unchanged"}[quantity.changed]
