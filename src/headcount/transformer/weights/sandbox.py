"""Run a chat template from a stranger's file: Jinja's immutable sandbox with a fuel gauge.

Jinja's sandbox closes the way to Python's internals. It does not bound time and memory: nested loops, doubled strings and
lists, huge paddings and powers all pass it. Here every loop turn, call, filter result, concatenation and container costs
fuel in proportion to its size, and what could grow at one stroke is measured before it is made:

    fuel = 2^25     a character costs 1, an element, a loop turn or a call 64: half a million steps, 32 MiB of text

A value is measured as it would be printed, shared parts counted each time, so lists that hold themselves twice, again and
again, run dry as well. Filters and text methods are those on the lists below: templates of published models use no others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, Undefined, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

FUEL = 1 << 25
STEP = 64
_INTEGER_BITS = 4096
_RANGE = 1 << 16
_FILTERS = (
    "abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "groupby", "indent",
    "int", "items", "join", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace",
    "reverse", "round", "safe", "select", "selectattr", "slice", "sort", "string", "sum", "title", "trim", "unique", "upper",
)  # fmt: skip
_TEXT_METHODS = frozenset((
    "capitalize", "casefold", "count", "endswith", "find", "format", "index", "isalnum", "isalpha", "isdecimal", "isdigit",
    "islower", "isnumeric", "isspace", "istitle", "isupper", "join", "lower", "lstrip", "partition", "removeprefix",
    "removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith",
    "strip", "swapcase", "title", "upper",
))  # fmt: skip
_COMPARING = (
    "==",
    "eq",
    "equalto",
    "!=",
    "ne",
    ">",
    "gt",
    "greaterthan",
    "ge",
    ">=",
    "<",
    "lt",
    "lessthan",
    "<=",
    "le",
    "in",
)
_CONSTANT_TIME = ("count", "d", "default", "length", "first", "safe", "abs", "round", "int", "float")
_PLAIN = (str, int, float, list, tuple, dict, Undefined, type(None), Namespace)
_WIDE = re.compile(r"\d{4}|\*|\{[^}]*\{")


class OutOfFuelError(TemplateError):
    """A template asked for more time or memory than any honest one does."""


class RaisedByTemplateError(TemplateError):
    """The template's own ``raise_exception(message)``: it refuses these messages."""


class _Generation(Extension):
    """``{% generation %} ... {% endgeneration %}`` marks what a model wrote, for training; here it is its body."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own spelling

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the statements between the tags."""
        next(parser.stream)
        body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return body


class _Gauge(NodeTransformer):
    """Put the fuel gauge into a template's syntax tree, where no template can name, shadow or remove it."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - Jinja's visitor names
        """Each turn of a loop costs a step, each element that its ``if`` leaves out too."""
        self.generic_visit(node)
        if node.test is not None:
            node.test = nodes.And(self._expression(node, "tested", []), node.test, lineno=node.lineno)
        node.body.insert(0, self._call(node, "step"))
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        """So does each call of a macro."""
        self.generic_visit(node)
        node.body.insert(0, self._call(node, "step"))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        """``a ~ b`` is measured before it is joined."""
        self.generic_visit(node)
        return self._expression(node, "joined", node.nodes)

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        """Containers written out are measured: they may hold the same part twice."""
        self.generic_visit(node)
        return self._expression(node, "measured", [node])

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        """See ``visit_List``."""
        self.generic_visit(node)
        return self._expression(node, "measured", [node])

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        """See ``visit_List``; a tuple that is assigned to (``for key, value in``) stays as it is."""
        if node.ctx != "load":
            return node
        self.generic_visit(node)
        return self._expression(node, "measured", [node])

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        """Comparing walks both sides, ``in`` the right one."""
        self.generic_visit(node)
        for operand in node.ops:
            operand.expr = self._expression(node, "compared", [operand.expr])
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        """``x[a:b]`` copies."""
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = self._expression(node, "walked", [node.node])
        return node

    def _call(self, node: nodes.Node, name: str) -> nodes.Node:
        return nodes.ExprStmt(self._expression(node, name, []), lineno=node.lineno)

    def _expression(self, node: nodes.Node, name: str, arguments: list[nodes.Expr]) -> nodes.Expr:
        gauge = nodes.EnvironmentAttribute(name, lineno=node.lineno)
        return nodes.Call(gauge, arguments, [], None, None, lineno=node.lineno)


class _PlainNamespace(Namespace):
    """``namespace(...)`` without names that begin with an underscore."""

    def __init__(*arguments: Any, **values: Any) -> None:
        for name in {**(dict(arguments[1]) if len(arguments) > 1 else {}), **values}:
            _check_name(name)
        Namespace.__init__(*arguments, **values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if not isinstance(name, str) or name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}")


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment chat templates run in; ``fuel`` is set anew for every rendering."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(self) -> None:
        """Build it as published templates expect: block lines trimmed, ``break`` and ``continue``, ``tojson`` in plain JSON."""
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            autoescape=False,
            extensions=[loopcontrols, _Generation],
            finalize=self.printed,
        )
        self.fuel = FUEL
        self.now: datetime | None = None
        self.concat = self.joined_pieces  # type: ignore[method-assign]
        self.filters = {name: self._metered(name, FILTERS[name]) for name in _FILTERS}
        self.filters["tojson"] = self._to_json
        tests: dict[str, Any] = {name: TESTS[name] for name in TESTS}
        self.tests = {
            name: self._metered_test(tests[name]) if name in _COMPARING else tests[name] for name in tests
        }
        self.globals = {
            "dict": dict,
            "namespace": _PlainNamespace,
            "range": self._range,
            "raise_exception": _raise,
            "strftime_now": self._strftime,
        }

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Gauge().visit(super()._parse(source, name, filename))
        tree.set_environment(self)
        return tree

    def step(self) -> None:
        """Spend one step."""
        self.spend(STEP)

    def spend(self, cost: int) -> None:
        """Spend fuel; OutOfFuelError when there is none."""
        self.fuel -= cost
        if self.fuel < 0:
            raise OutOfFuelError("it takes more time or memory than any honest template")

    def measured(self, value: Any) -> Any:
        """Charge for a value by its printed size and return it; objects other than plain data cost one step."""
        waiting = [value]
        while waiting:
            one = waiting.pop()
            if isinstance(one, str):
                self.spend(len(one) + 1)
                continue
            self.spend(STEP)
            if isinstance(one, dict):
                waiting += one.keys()
                waiting += one.values()
            elif isinstance(one, list | tuple | set | frozenset):
                waiting += one
            elif isinstance(one, Namespace):
                self.spend(STEP)
            elif isinstance(one, int) and one.bit_length() > _INTEGER_BITS:
                raise OutOfFuelError("it computes with numbers of more than 4,096 bits")
        return value

    def tested(self) -> bool:
        """Spend one step; true."""
        self.step()
        return True

    def walked(self, value: Any) -> Any:
        """Charge for going once through a value, which is far cheaper than making or printing it; return it."""
        if isinstance(value, str):
            self.spend(8 + (len(value) >> 4))
        elif isinstance(value, list | tuple | dict | range):
            self.spend(8 + 8 * len(value))
        return value

    def compared(self, value: Any) -> Any:
        """Charge for comparing with a value, parts within parts included; return it."""
        return self.walked(value) if isinstance(value, str | range) else self.measured(value)

    def joined(self, *values: Any) -> str:
        """The text of ``a ~ b ~ c``."""
        return "".join([str(self.printed(value)) for value in values])

    def joined_pieces(self, pieces: Any) -> str:
        """Join what a block or macro printed: Jinja calls this for every captured output."""
        found = []
        for piece in pieces:
            self.spend(len(piece) + 1)
            found.append(piece)
        return "".join(found)

    def printed(self, value: Any) -> Any:
        """Called on every printed value: charge for it before it becomes text."""
        if not isinstance(value, str | int | float | Undefined | list | tuple | dict) and value is not None:
            raise SecurityError(f"a {type(value).__name__} cannot be printed")
        return self.measured(value)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Refuse what would grow beyond the fuel before it is computed."""
        if operator == "*":
            for one, other in ((left, right), (right, left)):
                if isinstance(one, str | list | tuple) and isinstance(other, int):
                    self.spend(max(other, 0) * (len(one) + 1))
        elif operator == "**" and not (abs(left) < 1 << 64 and abs(right) <= 64):
            raise OutOfFuelError("it raises numbers to large powers")
        elif operator == "%" and isinstance(left, str) and _WIDE.search(left):
            raise SecurityError("its text formats ask for wide fields")
        return self.measured(super().call_binop(context, operator, left, right))

    def call(self, context: Any, target: Any, /, *arguments: Any, **options: Any) -> Any:
        """Call something from a template: it costs a step, and its result is measured."""
        self.step()
        # Jinja wraps ``format``, its guard against attributes; what it wraps knows the text.
        owner = getattr(getattr(target, "__wrapped__", target), "__self__", None)
        if isinstance(owner, str):
            self.walked(owner)
            self._check_text_call(owner, target.__name__, arguments)
        result = super().call(context, target, *arguments, **options)
        return result if owner is self else self.measured(result)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Jinja's rule, and of text only the methods that cannot grow it, or whose growth is foreseen."""
        if isinstance(obj, str) and attr not in _TEXT_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def _check_text_call(self, text: str, method: str, arguments: tuple[Any, ...]) -> None:
        if method == "replace" and len(arguments) >= 2 and all(isinstance(one, str) for one in arguments[:2]):
            self._foresee_replace(text, *arguments[:2])
        elif method == "join" and arguments and isinstance(arguments[0], list | tuple):
            self.spend(len(text) * len(arguments[0]))
        elif method in ("format", "format_map") and _WIDE.search(text):
            raise SecurityError("its text formats ask for wide fields")

    def _foresee_replace(self, text: str, old: str, new: str) -> None:
        self.spend(len(text) + (text.count(old) if old else len(text) + 1) * len(new))

    def _metered(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter whose input, growth and result are charged for, marks for Jinja (``pass_environment``) kept."""
        marked = getattr(function, "jinja_pass_arg", None) is not None

        def metered(*arguments: Any, **options: Any) -> Any:
            self.step()
            value, *others = arguments[1:] if marked else arguments
            if not isinstance(value, _PLAIN):
                value = self.measured(list(value))
            if name not in _CONSTANT_TIME:
                self.walked(value)
            if name == "replace" and len(others) >= 2:
                self._foresee_replace(str(self.printed(value)), str(others[0]), str(others[1]))
            elif name == "join":
                value = self.measured(list(value))
                self.spend(len(str(others[0] if others else options.get("d", ""))) * len(value))
            elif name == "indent":
                width = others[0] if others else options.get("width", 4)
                self.spend(
                    (len(width) if isinstance(width, str) else abs(int(width))) * (str(value).count("\n") + 1)
                )
            elif name == "slice":
                self.spend(STEP * abs(int(others[0] if others else options.get("slices", 1))))
            elif name in ("string", "e", "escape", "title", "sort", "unique", "sum"):
                value = self.measured(list(value) if name in ("sort", "unique", "sum") else value)
            rest = (arguments[0], value, *others) if marked else (value, *others)
            return self.measured(function(*rest, **options))

        for mark in ("jinja_pass_arg", "jinja_async_variant"):
            if hasattr(function, mark):
                setattr(metered, mark, getattr(function, mark))
        return metered

    def _metered_test(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def metered(value: Any, *arguments: Any) -> Any:
            for argument in arguments:
                self.compared(argument)
            return function(value, *arguments)

        return metered

    def _range(self, *arguments: int) -> range:
        found = range(*arguments)
        if len(found) > _RANGE:
            raise OutOfFuelError(f"it counts to {len(found):,}")
        return found

    def _to_json(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """Plain JSON, as templates expect it: no HTML escapes."""
        self.measured(value)
        if indent is not None and not 0 <= int(indent) <= 16:
            raise SecurityError("tojson indents by at most 16")
        if isinstance(value, Undefined):
            raise TemplateError("tojson of something undefined")
        text = json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )
        self.spend(len(text))
        return text

    def _strftime(self, pattern: str) -> str:
        """The date, in a format of plain letters: widths would let one letter make gigabytes."""
        if len(pattern) > 256 or re.search(r"%[^A-Za-z%-]|%-[^A-Za-z]", pattern):
            raise SecurityError("strftime_now takes short formats of single letters")
        return (self.now or datetime.now()).strftime(pattern)


def _raise(message: object) -> None:
    raise RaisedByTemplateError(str(message)[:400])
