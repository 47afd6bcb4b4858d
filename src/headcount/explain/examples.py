"""The built-in worked examples, and changing one cell of their inputs.

    upi        two tokens, "UPI" and "down", two heads, W_O the identity; causal or not
    identity   Q = K = I, V = [[1, 2], [3, 4]]: every later product can be checked by hand

Cells are counted from 0, rows first, as in NumPy: ``x[1,1]`` is the second number of the second token. A row may also
be named by its token: ``x[down,1]``.
"""

from __future__ import annotations

import math
import re

from headcount.errors import UnknownNameError, UsageError, nearest
from headcount.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    Matrix = tuple[tuple[float, ...], ...]

LIMIT = 1e6


class HeadNames(Record):
    """The names of one head's operands; ``suffix`` is appended to the letters of what it computes (S2, A2)."""

    scope: str
    projections: tuple[str, str, str] | None
    suffix: str = ""

    def letter(self, plain: str) -> str:
        """``A`` -> ``A2``, ``S'`` -> ``S2'``."""
        return plain[:-1] + self.suffix + "'" if plain.endswith("'") else plain + self.suffix


class Example(Record):
    """Inputs of attention by name.

    tokens      labels of the rows
    matrices    name -> rows of numbers, in the order they are shown
    heads       one entry per head; projections None: Q, K, V are inputs themselves
    """

    name: str
    title: str
    tokens: tuple[str, ...]
    matrices: dict[str, Matrix]
    heads: tuple[HeadNames, ...]

    @property
    def projected(self) -> bool:
        """Whether Q, K, V are computed from x."""
        return self.heads[0].projections is not None

    def shapes_text(self) -> str:
        """``x (2 x 4), W_Q (4 x 2), ...``."""
        return ", ".join(f"{name} ({len(m)} x {len(m[0])})" for name, m in self.matrices.items())


def _floats(rows: Sequence[Sequence[float]]) -> Matrix:
    return tuple(tuple(float(cell) for cell in row) for row in rows)


UPI = Example(
    name="upi",
    title='two tokens, "UPI" and "down", two heads of width 2',
    tokens=("UPI", "down"),
    matrices={
        "x": _floats([[1, 1, 1, 0], [0, 2, 1, 1]]),
        "W_Q": _floats([[1, 0], [0, 1], [1, 0], [0, 1]]),
        "W_K": _floats([[1, 0], [0, 1], [0, 1], [1, 0]]),
        "W_V": _floats([[1, 1], [0, 1], [1, 0], [0, 0]]),
        "W_Q2": _floats([[1, 0], [1, 0], [1, 1], [0, 0]]),
        "W_K2": _floats([[1, 3], [0, 0], [0, 0], [1, 1]]),
        "W_V2": _floats([[1, 2], [0, 0], [0, 0], [3, 1]]),
        "W_O": _floats([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]),
    },
    heads=(
        HeadNames(scope="head 1", projections=("W_Q", "W_K", "W_V")),
        HeadNames(scope="head 2", projections=("W_Q2", "W_K2", "W_V2"), suffix="2"),
    ),
)
IDENTITY = Example(
    name="identity",
    title="two tokens, Q = K = the identity, V = [[1, 2], [3, 4]]",
    tokens=("0", "1"),
    matrices={
        "Q": _floats([[1, 0], [0, 1]]),
        "K": _floats([[1, 0], [0, 1]]),
        "V": _floats([[1, 2], [3, 4]]),
    },
    heads=(HeadNames(scope="head 1", projections=None),),
)
EXAMPLES = {example.name: example for example in (UPI, IDENTITY)}
SCALES = ("sqrt", "none", "dk")


class WhatIf(Record):
    """What is changed on an example: cells, the causal mask, the scale (``sqrt`` 1/sqrt(d_k), ``none``, ``dk`` 1/d_k)."""

    cells: tuple[tuple[str, int, int, float], ...] = ()
    causal: bool = False
    scale: str = "sqrt"

    @property
    def is_plain(self) -> bool:
        """Nothing is changed."""
        return not self.cells and not self.causal and self.scale == "sqrt"

    def words(self, example: Example) -> tuple[str, ...]:
        """One line per change."""
        lines = []
        for name, row, column, number in self.cells:
            before = example.matrices[name][row][column]
            where = f"{name}[{row},{column}]"
            token = f" ({example.tokens[row]})" if name in ("x", "Q", "K", "V") and example.projected else ""
            lines.append(f"{where}{token}: {before:g} -> {number:g}")
        if self.causal:
            lines.append("causal mask on: a token sees itself and the tokens before it")
        if self.scale != "sqrt":
            lines.append({"none": "scores not scaled", "dk": "scores scaled by 1/d_k"}[self.scale])
        return tuple(lines)


def find_example(name: str) -> Example:
    """The example of that name; UnknownNameError lists them."""
    if name not in EXAMPLES:
        raise UnknownNameError(what="example", given=name, allowed=EXAMPLES)
    return EXAMPLES[name]


_CELL = re.compile(r"\s*([A-Za-z]\w*'?)\s*\[\s*([^\],]+?)\s*,\s*([^\],]+?)\s*\]\s*=\s*(\S+)\s*")


def read_cell(text: str, example: Example) -> tuple[str, int, int, float]:
    """Read ``x[1,1]=4``.

    Raises
    ------
    UsageError: not of this form, a cell outside its matrix, a number that is not finite or beyond a million.
    UnknownNameError: no such input in this example; the message gives the inputs with their shapes.
    """
    match = _CELL.fullmatch(text)
    if match is None:
        raise UsageError(
            f"--set {text[:60]!r} is not NAME[row,column]=NUMBER, such as {_sample(example)}; "
            f"example {example.name} has {example.shapes_text()}"
        )
    name, row_text, column_text, number_text = match.groups()
    if name not in example.matrices:
        raise UnknownNameError(
            what=f"input of example {example.name}",
            given=name,
            allowed=example.matrices,
            hint=_why_no_input(name, example) + f"inputs: {example.shapes_text()}",
        )
    matrix = example.matrices[name]
    rows = example.tokens if len(matrix) == len(example.tokens) and name in ("x", "Q", "K", "V") else ()
    row = _index(row_text, len(matrix), rows)
    column = _index(column_text, len(matrix[0]), ())
    if row is None and rows and not re.fullmatch(r"[-+]?\d+", row_text) and not row_text.isdigit():
        labels = list(rows)
        close = nearest(row_text, labels)
        raise UsageError(
            f"--set {text[:60]!r}: {name} has no row {row_text[:30]!r}; "
            + (f"nearest: {', '.join(close)}; " if close else "")
            + f"rows: {', '.join(labels)}, or 0 to {len(labels) - 1}"
        )
    if row is None or column is None:
        raise UsageError(
            f"--set {text[:60]!r}: {name} has {len(matrix)} rows and {len(matrix[0])} columns, counted from 0; "
            f"the last cell is {name}[{len(matrix) - 1},{len(matrix[0]) - 1}]"
        )
    return name, row, column, _number(number_text, text)


def apply(example: Example, what_if: WhatIf) -> Example:
    """The example with its cells changed; a later change of the same cell wins."""
    matrices = dict(example.matrices)
    for name, row, column, number in what_if.cells:
        rows = [list(values) for values in matrices[name]]
        rows[row][column] = number
        matrices[name] = _floats(rows)
    return example.replace(matrices=matrices)


def _sample(example: Example) -> str:
    return '"x[1,1]=4"' if "x" in example.matrices else '"Q[0,1]=2"'


def _why_no_input(name: str, example: Example) -> str:
    others = [other.name for other in EXAMPLES.values() if name in other.matrices]
    computed = {"Q", "K", "V", "Q2", "K2", "V2"} if example.projected else {"x"}
    if example.projected and name in computed:
        return f"{name} is computed from x and W_{name}; "
    if name.rstrip("2'") in {"S", "A", "O", "C", "Y", "L"}:
        return f"{name} is computed; "
    if others:
        return f"example {others[0]} has it (--example {others[0]}); "
    return ""


def _index(text: str, size: int, labels: Sequence[str]) -> int | None:
    if text in labels and not text.isdigit():
        return labels.index(text)
    if not (text.isascii() and text.isdigit()) or len(text) > 6 or int(text) >= size:
        return None
    return int(text)


def _number(text: str, given: str) -> float:
    try:
        number = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        number = math.nan
    if not abs(number) <= LIMIT:
        raise UsageError(f"--set {given[:60]!r}: {text[:30]!r} is not a number from -1,000,000 to 1,000,000")
    return number
