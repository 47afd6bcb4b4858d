"""The computational graph as data: values and the operations between them, read off a tape of what really ran.

    graph = graph_of(tape)              after ``loss.backward()``
    graph = graph.collapsed("head 2")   one box for everything inside that scope

A value keeps its numbers when it is small; a large one keeps its shape and its norm ||x|| = sqrt(sum x^2) only. The
formula of an operation is written with the letters of the values it met: ``Y = A B`` becomes ``O = A V``.
"""

from __future__ import annotations

import math
import re

from headcount.errors import UnknownNameError
from headcount.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from headcount.transformer.ops.recording import Node, Tape

# Entries a node shows in full: two tokens by four features, or a 4 x 4 matrix of scores.
SMALL = 16
TALL = 8
INPUT, PARAMETER, INNER, RESULT = "input", "parameter", "inner", "result"


class GraphValue(Record):
    """A tensor of the graph.

    key             ``v0``, ``v1``, ... in the order of first appearance
    values          nested tuples when it is small, else None
    gradient        the same for its gradient; None when it is large or has none
    norm            ||value||; ``gradient_norm`` ||gradient||, None when no gradient reached it
    kind            input (no operation made it), parameter (a module's), inner, result (no operation reads it)
    """

    key: str
    name: str
    shape: tuple[int, ...]
    kind: str
    norm: float
    gradient_norm: float | None
    values: Any = None
    gradient: Any = None


class GraphOperation(Record):
    """What turned ``inputs`` into ``outputs``; ``count`` operations are hidden in it when a scope was collapsed."""

    name: str
    formula: str
    gradient: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    scope: tuple[str, ...] = ()
    count: int = 1


class Graph(Record):
    """Values in an order in which each stands after everything it is computed from, and the operations."""

    values: tuple[GraphValue, ...]
    operations: tuple[GraphOperation, ...]

    def value(self, key: str) -> GraphValue:
        """The value with that key."""
        return next(value for value in self.values if value.key == key)

    def maker(self, key: str) -> GraphOperation | None:
        """The operation that computed it, None for an input."""
        return next((op for op in self.operations if key in op.outputs), None)

    def readers(self, key: str) -> tuple[GraphOperation, ...]:
        """The operations that read it."""
        return tuple(op for op in self.operations if key in op.inputs)

    def scopes(self) -> tuple[str, ...]:
        """Every scope that can be collapsed, as ``encoder/block 1/attention``."""
        found: dict[str, None] = {}
        for op in self.operations:
            for depth in range(1, len(op.scope) + 1):
                found["/".join(op.scope[:depth])] = None
        return tuple(found)

    def collapsed(self, *scopes: str) -> Graph:
        """One operation in place of all operations inside each scope.

        A scope is named by its whole path, by its last part, or by ``*`` and a depth (``*2``): every scope that deep.
        Raises UnknownNameError for a scope that is not in the graph.
        """
        graph = self
        for asked in scopes:
            known = graph.scopes()
            if re.fullmatch(r"\*\d+", asked):
                chosen = [scope for scope in known if scope.count("/") + 1 == int(asked[1:])]
            else:
                chosen = [scope for scope in known if scope == asked or scope.endswith("/" + asked)]
            if not chosen:
                depths = max((scope.count("/") + 1 for scope in known), default=0)
                stars = [f"*{depth}" for depth in range(1, depths + 1)]
                raise UnknownNameError(
                    what="scope of this graph",
                    given=asked,
                    allowed=[*known, *stars],
                    hint=f"{', '.join(stars)}: all scopes of that depth"
                    if stars
                    else "this graph has no scopes",
                )
            for scope in chosen:
                graph = _collapse(graph, tuple(scope.split("/")))
        return graph

    def as_document(self) -> dict[str, object]:
        """Plain dictionaries for JSON."""
        from headcount.explain.derivation import json_safe

        return {
            "values": [json_safe(value.as_dict()) for value in self.values],
            "operations": [json_safe(op.as_dict()) for op in self.operations],
        }


def _collapse(graph: Graph, scope: tuple[str, ...]) -> Graph:
    inside = [op for op in graph.operations if op.scope[: len(scope)] == scope]
    if len(inside) < 2:
        return graph
    made = [key for op in inside for key in op.outputs]
    read_outside = {key for op in graph.operations if op not in inside for key in op.inputs}
    kept = tuple(key for key in made if key in read_outside or graph.value(key).kind == RESULT)
    inputs = tuple(dict.fromkeys(key for op in inside for key in op.inputs if key not in made))
    # Parameters that only this scope reads are its own affair: the box holds them.
    own = {key for key in inputs if graph.value(key).kind == PARAMETER and key not in read_outside}
    box = GraphOperation(
        name=scope[-1],
        formula=f"{len(inside)} operations",
        gradient="their gradients in reverse order",
        inputs=tuple(key for key in inputs if key not in own),
        outputs=kept,
        scope=scope[:-1],
        count=sum(op.count for op in inside),
    )
    hidden = (set(made) - set(kept)) | own
    operations: list[GraphOperation] = []
    # The box stands where the last of its operations stood: everything it reads exists by then.
    for op in graph.operations:
        if op not in inside:
            operations.append(op)
        elif op is inside[-1]:
            operations.append(box)
    automatic = {key: op.name for op in inside for key in op.outputs}
    values = tuple(
        _of_scope(value, automatic.get(value.key, ""), scope)
        for value in graph.values
        if value.key not in hidden
    )
    return _ordered(values, operations)


def _of_scope(value: GraphValue, stem: str, scope: tuple[str, ...]) -> GraphValue:
    """``layer_norm_2`` of a folded box says whose it is: ``layer_norm_2 (cross-attention)``; a letter stays."""
    if not stem or not re.fullmatch(rf"{re.escape(stem)}(_\d+)?", value.name):
        return value
    return value.replace(name=f"{value.name} ({scope[-1].replace('_', '-')})")


def graph_of(tape: Tape) -> Graph:
    """Read a tape: gradients are there once backward has passed."""
    keys: dict[int, str] = {}
    for node in tape.nodes:
        for number in (*node.inputs, *node.outputs):
            keys.setdefault(number, f"v{len(keys)}")
    made = {number for node in tape.nodes for number in node.outputs}
    read = {number for node in tape.nodes for number in node.inputs}
    names = _names(tape, list(keys), made)
    values = []
    for number, key in keys.items():
        kind = _kind(tape.values[number].tensor, made=number in made, read=number in read)
        values.append(_graph_value(tape.values[number], key, names[number], kind))
    operations = [_graph_operation(node, keys, names) for node in tape.nodes]
    used = {key for op in operations for key in op.outputs if _is_used(op, key, operations, values)}
    trimmed = [value for value in values if value.kind != RESULT or value.key in used]
    return _ordered(trimmed, operations)


def _kind(tensor: Any, *, made: bool, read: bool) -> str:
    if made:
        return INNER if read else RESULT
    # ``torch.nn.Parameter`` by its name: this module does not import PyTorch.
    return PARAMETER if type(tensor).__name__ == "Parameter" else INPUT


def _is_used(
    op: GraphOperation, key: str, operations: Sequence[GraphOperation], values: Sequence[GraphValue]
) -> bool:
    """Second outputs that nothing reads (a log-sum-exp) are left out; an operation's only output stays."""
    if any(key in other.inputs for other in operations):
        return True
    return key == op.outputs[0]


def _names(tape: Tape, numbers: list[int], made: set[int]) -> dict[int, str]:
    """The names the code gave; a nameless value is called after the operation that made it."""
    makers = {number: node.operation.name for node in tape.nodes for number in node.outputs}
    count: dict[str, int] = {}
    names = {}
    for number in numbers:
        name = tape.values[number].name
        if not name:
            stem = makers.get(number, "input")
            count[stem] = count.get(stem, 0) + 1
            name = stem if count[stem] == 1 else f"{stem}_{count[stem]}"
        names[number] = name
    return names


def _graph_value(value: Any, key: str, name: str, kind: str) -> GraphValue:
    from headcount.explain.derivation import nested

    tensor, gradient = value.tensor.detach(), value.gradient
    shape = tuple(tensor.shape)
    while len(shape) > 2 and shape[0] == 1:
        shape = shape[1:]
    small = tensor.numel() <= SMALL and len(shape) <= 2 and (len(shape) < 2 or shape[0] <= TALL)
    return GraphValue(
        key=key,
        name=name,
        shape=shape,
        kind=kind,
        norm=_norm(tensor),
        gradient_norm=None if gradient is None else _norm(gradient),
        values=nested(tensor) if small else None,
        gradient=nested(gradient) if small and gradient is not None else None,
    )


def _norm(tensor: Any) -> float:
    return math.sqrt(float(tensor.double().square().sum()))


def _graph_operation(node: Node, keys: dict[int, str], names: dict[int, str]) -> GraphOperation:
    formula, gradient = rewritten(
        node.operation.formula,
        node.operation.gradient,
        [names[number] for number in node.inputs],
        names[node.outputs[0]],
    )
    return GraphOperation(
        name=node.operation.name,
        formula=formula,
        gradient=gradient,
        inputs=tuple(keys[number] for number in node.inputs),
        outputs=tuple(keys[number] for number in node.outputs),
        scope=tuple(node.scope),
    )


_WORD = re.compile(r"[A-Za-z]\w*(?:'|_\d+)*")


def rewritten(formula: str, gradient: str, inputs: Sequence[str], output: str) -> tuple[str, str]:
    """Put the values' own letters into an operation's formula and gradient.

    The formal letters are read off the equations: the left side of ``Y = A B`` is the output, the left sides of
    ``dA = ..., dB = ...`` are the inputs in order. Where letters and values do not match one to one (a name of several
    words, an optional operand), the operation's own letters stay.
    """
    if "[x_1, ..., x_m]" in formula + gradient:
        return _joined(formula, gradient, inputs, output)
    formal_out = formula.split("=")[0].strip()
    formal_in: list[str] = [part[1:] for part in re.findall(r"(?:^|[,;] )(d[A-Za-z]\w*'?) =", gradient)]
    formals = [*formal_in, formal_out]
    actual = [*inputs, output]
    plain = all(_WORD.fullmatch(word) for word in [*formals, *actual])
    if len(formals) != len(actual) or not plain:
        return formula, gradient
    if formals == [formal_out] * 2:
        # One letter for what comes in and what goes out (a mask): the left side is what is made.
        return _one_letter(formula, formal_out, output, inputs[0]), _one_letter(
            gradient, "d" + formal_out, "d" + inputs[0], "d" + output
        )
    if len(set(formals)) != len(formals):
        return formula, gradient
    letters: dict[str, str] = dict(zip(formals, actual, strict=True))

    def put(match: re.Match[str]) -> str:
        word = match.group()
        if word in letters:
            return letters[word]
        if word[0] == "d" and word[1:] in letters:
            return "d" + letters[word[1:]]
        return word

    return _WORD.sub(put, formula), _WORD.sub(put, gradient)


def _one_letter(equation: str, letter: str, left: str, right: str) -> str:
    made, _, rest = equation.partition("=")
    word = re.compile(rf"\b{letter}\b")
    return word.sub(lambda _: left, made) + "=" + word.sub(lambda _: right, rest)


def _joined(formula: str, gradient: str, inputs: Sequence[str], output: str) -> tuple[str, str]:
    """Concatenation and its inverse, with their operands listed when they are few."""
    if len(inputs) < 2 or len(inputs) > 4:
        return formula, gradient
    return f"{output} = [{', '.join(inputs)}]", ", ".join(
        f"d{letter} = slice {number} of d{output}" for number, letter in enumerate(inputs, 1)
    )


def with_constant(graph: Graph, factor: float) -> Graph:
    """The constant c of every scaling as its number (an operation's options are not on the tape)."""

    def put(text: str) -> str:
        return re.sub(r"\bc\b", f"{factor:.4g}", text)

    operations = tuple(
        op.replace(formula=put(op.formula), gradient=put(op.gradient)) if op.name == "scale" else op
        for op in graph.operations
    )
    return graph.replace(operations=operations)


def _ordered(values: Sequence[GraphValue], operations: Sequence[GraphOperation]) -> Graph:
    """Inputs just before the first operation that reads them, results of an operation right after it."""
    by_key = {value.key: value for value in values}
    order: dict[str, None] = {}
    for op in operations:
        for key in (*op.inputs, *op.outputs):
            if key in by_key:
                order[key] = None
    shown = tuple(
        op.replace(
            inputs=tuple(key for key in op.inputs if key in by_key),
            outputs=tuple(key for key in op.outputs if key in by_key),
        )
        for op in operations
    )
    return Graph(values=tuple(by_key[key] for key in order), operations=shown)
