"""A computational graph as text: one column of values, rails at the left carry them to the operations that read them.

o Q  2 x 2  input            a value, its numbers, its gradient
| o K  2 x 2  input
+-+  v S = Q K^T             v the operation, downwards
: :  ^ dQ = dS K, ...        ^ its gradient, upwards
o S  2 x 2
"""

from __future__ import annotations

import textwrap

from headcount.report.derivation_numbers import NOISE, NOISE_WORDS, matrix_cells, number_text, shape_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.explain.graph import Graph, GraphOperation, GraphValue


def graph_lines(graph: Graph, width: int = 80) -> list[str]:
    """The drawing, a line on how to read it first."""
    lines = ["   v  value, flows down        ^  gradient, flows up        | : rails", ""]
    rails = _Rails(graph)
    for value in graph.values:
        maker = graph.maker(value.key)
        if maker is not None and value.key == maker.outputs[0]:
            lines += _operation(maker, rails, width)
            rails.leave(maker)
        rails.enter(value)
        lines += _value(value, rails, width)
    if any(NOISE in line for line in lines):
        lines.insert(1, f"   {NOISE_WORDS}")
    return [line.rstrip() for line in lines]


class _Rails:
    """Which column carries which value; a column is free again after the last reader."""

    def __init__(self, graph: Graph) -> None:
        self.columns: list[str | None] = []
        self.left = {value.key: len(graph.readers(value.key)) for value in graph.values}

    def enter(self, value: GraphValue) -> None:
        """Give the value the first free column."""
        for index, key in enumerate(self.columns):
            if key is None:
                self.columns[index] = value.key
                return
        self.columns.append(value.key)

    def leave(self, operation: GraphOperation) -> None:
        """Count one reading of every input; free the columns of values that nobody reads any more."""
        for key in dict.fromkeys(operation.inputs):
            self.left[key] -= 1
            if self.left[key] == 0:
                self.columns[self.columns.index(key)] = None
        while self.columns and self.columns[-1] is None:
            self.columns.pop()

    def plain(self, mark: str = "", at: str = "") -> str:
        """``| | o``: every live rail, ``mark`` at one of them."""
        signs = [" " if key is None else mark if mark and key == at else "|" for key in self.columns]
        return " ".join(signs)

    def joined(self, keys: tuple[str, ...], sign: str, bar: str) -> str:
        """Rails of ``keys`` meet in one horizontal bar that runs to the text."""
        first = min(self.columns.index(key) for key in keys)
        out = ""
        for index, key in enumerate(self.columns):
            mark = sign if key in keys else "|" if key is not None else (bar if index > first else " ")
            out += mark + (bar if index >= first else " ")
        return out


def _operation(operation: GraphOperation, rails: _Rails, width: int) -> list[str]:
    down = "   " + rails.joined(operation.inputs, "+", "-")
    up = "   " + rails.joined(operation.inputs, ":", " ")
    scope = f"   [{'/'.join(operation.scope)}]" if operation.scope else ""
    count = f" ({operation.count} operations in one box)" if operation.count > 1 else ""
    formula = operation.name if operation.count > 1 else operation.formula
    lines = _hang(down + " v ", formula + count + scope, up, width)
    if operation.count == 1:
        lines += _hang(up + " ^ ", operation.gradient, up, width)
    return lines


def _hang(lead: str, text: str, gutter: str, width: int) -> list[str]:
    parts = textwrap.wrap(text, max(20, width - len(lead)), break_on_hyphens=False) or [""]
    rest = gutter.replace("+", "|").replace("-", " ") + " " * (len(lead) - len(gutter))
    return [lead + parts[0], *(rest + part for part in parts[1:])]


def _value(value: GraphValue, rails: _Rails, width: int) -> list[str]:
    head = "   " + rails.plain("o", value.key) + "  "
    gutter = "   " + rails.plain() + "  "
    kind = "" if value.kind == "inner" else value.kind
    title = "  ".join(part for part in (value.name, shape_text(value.shape), kind) if part)
    room = width - len(gutter)
    if value.values is None or max(len("  ".join(row)) for row in _cells(value)) > room:
        norm = f"||value|| {number_text(value.norm)} v"
        grad = "" if value.gradient_norm is None else f"   ||gradient|| {number_text(value.gradient_norm)} ^"
        return _hang(head, f"{title}   {norm}{grad}", gutter, width)
    return [head + title, *(gutter + line for line in _numbers(value, room))]


def _cells(value: GraphValue) -> list[list[str]]:
    return [
        *matrix_cells(value.values),
        *(matrix_cells(value.gradient) if value.gradient is not None else []),
    ]


def _numbers(value: GraphValue, room: int) -> list[str]:
    """Value and gradient side by side, each under its word and arrow; below each other where they do not fit."""
    left = ["  ".join(row) for row in matrix_cells(value.values)]
    if value.gradient is None:
        return ["value v", *left]
    right = ["  ".join(row) for row in matrix_cells(value.gradient)]
    width = max(len("value v"), *(len(row) for row in left))
    if width + 5 + max(len("gradient ^"), *(len(row) for row in right)) > room:
        return ["value v", *left, "gradient ^", *right]
    pairs = zip(["value v", *left], ["gradient ^", *right], strict=True)
    return [f"{a.ljust(width)}     {b}" for a, b in pairs]
