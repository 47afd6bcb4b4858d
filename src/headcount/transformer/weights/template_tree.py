"""Put the fuel gauge into a template's syntax tree, where no template can name, shadow or remove it."""

from __future__ import annotations

from collections.abc import Sequence

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer


class Generation(Extension):
    """``{% generation %} ... {% endgeneration %}`` marks what a model wrote, for training; here it is its body."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own spelling

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the statements between the tags."""
        next(parser.stream)
        body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return body


class Gauge(NodeTransformer):
    """Calls of the environment's ``Meter`` wherever a template repeats, copies or makes something."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - Jinja's visitor names
        """Each turn of a loop costs a step and its body, each element that its ``if`` leaves out too."""
        size, tested = _size(node.body), _size([node.test] if node.test is not None else [])
        self.generic_visit(node)
        if node.test is not None:
            node.test = nodes.And(
                _gauge(node, "tested", [nodes.Const(tested)]), node.test, lineno=node.lineno
            )
        node.body.insert(0, _statement(node, size))
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        """So does each call of a macro."""
        return self._body(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:  # noqa: N802
        """And each ``caller()``."""
        return self._body(node)

    def visit_Block(self, node: nodes.Block) -> nodes.Node:  # noqa: N802
        """And each ``self.block()``."""
        return self._body(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        """``a ~ b`` is measured before it is joined."""
        self.generic_visit(node)
        return _gauge(node, "joined", node.nodes)

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        """Containers written out are measured: they may hold the same part twice."""
        self.generic_visit(node)
        return _gauge(node, "measured", [node])

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        """See ``visit_List``."""
        self.generic_visit(node)
        return _gauge(node, "measured", [node])

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        """See ``visit_List``; a tuple that is assigned to (``for key, value in``) stays as it is."""
        if node.ctx != "load":
            return node
        self.generic_visit(node)
        return _gauge(node, "measured", [node])

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        """Comparing walks both sides at most as far as the right one goes; ``in`` searches it."""
        self.generic_visit(node)
        if not isinstance(node.expr, nodes.Const):
            node.expr = _gauge(node, "hashed", [node.expr])
        for operand in node.ops:
            name = "searched" if operand.op in ("in", "notin") else "compared"
            operand.expr = _gauge(node, name, [operand.expr])
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        """``x[a:b]`` copies, ``x[y]`` looks up."""
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = _gauge(node, "copied", [node.node])
        elif not isinstance(node.arg, nodes.Const):
            node.arg = _gauge(node, "hashed", [node.arg])
        return node

    def _body(self, node: nodes.Macro | nodes.CallBlock | nodes.Block) -> nodes.Node:
        size = _size([node])
        self.generic_visit(node)
        node.body.insert(0, _statement(node, size))
        return node


def _size(parts: Sequence[nodes.Node]) -> int:
    return sum(1 + sum(1 for _ in part.find_all(nodes.Node)) for part in parts)


def _statement(node: nodes.Node, size: int) -> nodes.Node:
    return nodes.ExprStmt(_gauge(node, "step", [nodes.Const(size)]), lineno=node.lineno)


def _gauge(node: nodes.Node, name: str, arguments: list[nodes.Expr]) -> nodes.Expr:
    gauge = nodes.EnvironmentAttribute(name, lineno=node.lineno)
    return nodes.Call(gauge, arguments, [], None, None, lineno=node.lineno)
