"""Run a chat template from a stranger's file: Jinja's immutable sandbox with a fuel gauge.

Jinja's sandbox closes the way to Python's internals. It does not bound time and memory: nested loops, doubled strings and
lists, huge paddings and powers all pass it. Here every loop turn, call, filter, concatenation and container costs fuel in
proportion to its size (``template_fuel.py``), wherever the syntax tree holds one (``template_tree.py``), and what could grow
at one stroke is bounded before it is made (``template_bounds.py``).

Attributes, filters and methods are those on the lists below: templates of published models use no others.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, Undefined, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import loopcontrols
from jinja2.filters import FILTERS, _GroupTuple
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS
from jinja2.utils import Namespace
from markupsafe import Markup

from headcount.transformer.weights.template_bounds import (
    charge_filter,
    charge_json,
    charge_method,
    charge_percent,
)
from headcount.transformer.weights.template_fuel import (
    COMPUTED_BITS,
    ELEMENT,
    FUEL,
    Meter,
    OutOfFuelError,
    PlainNamespace,
)
from headcount.transformer.weights.template_tree import Gauge, Generation

_RANGE = 1 << 16
_SEPARATOR = 16
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
_LOOP = frozenset((
    "changed", "cycle", "depth", "depth0", "first", "index", "index0", "last", "length", "nextitem", "previtem", "revindex",
    "revindex0",
))  # fmt: skip
# All a template may see of a value; of other types (numbers, tuples, ranges, functions, macros) nothing.
_ATTRIBUTES: tuple[tuple[type, frozenset[str]], ...] = (
    (str, _TEXT_METHODS),
    (dict, frozenset(("get", "items", "keys", "values"))),
    (list, frozenset(("count", "index"))),
    (_GroupTuple, frozenset(("grouper", "list"))),
    (LoopContext, _LOOP),
)
_COMPARED = ("==", "eq", "equalto", "!=", "ne", ">", "gt", "greaterthan", "ge", ">=", "<", "lt",
             "lessthan", "<=", "le")  # fmt: skip
_OPERANDS = (str, int, float, list, tuple, Undefined, type(None))


class RaisedByTemplateError(TemplateError):
    """The template's own ``raise_exception(message)``: it refuses these messages."""


class Sandbox(Meter, ImmutableSandboxedEnvironment):
    """The environment chat templates run in; ``fuel`` is set anew for every rendering."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(self) -> None:
        """Build it as published templates expect: block lines trimmed, ``break`` and ``continue``, ``tojson`` in plain JSON."""
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            autoescape=False,
            extensions=[loopcontrols, Generation],
            finalize=self.printed,
        )
        self.fuel = FUEL
        self.now: datetime | None = None
        self.concat = self.joined_pieces  # type: ignore[method-assign]
        self.filters = {name: self._metered(name, FILTERS[name]) for name in _FILTERS}
        self.filters["tojson"] = self._to_json
        tests: dict[str, Any] = {name: TESTS[name] for name in TESTS}
        self.tests = {name: self._metered_test(name, tests[name]) for name in tests}
        self.globals = {
            "dict": self._dict,
            "namespace": PlainNamespace,
            "range": self._range,
            "raise_exception": self._raise,
            "strftime_now": self._strftime,
        }

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = Gauge().visit(super()._parse(source, name, filename))
        tree.set_environment(self)
        return tree

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Refuse what would grow beyond the fuel before it is computed."""
        for one in (left, right):
            if not isinstance(one, _OPERANDS) and not (operator == "%" and isinstance(one, dict)):
                raise SecurityError(f"a {type(one).__name__} is no operand of {operator}")
        if operator == "*":
            for one, other in ((left, right), (right, left)):
                if isinstance(one, str | list | tuple) and isinstance(other, int):
                    width = 1 if isinstance(one, str) else ELEMENT
                    self.spend(max(other, 0) * (width * len(one) + 1))
        elif operator == "**" and not (abs(left) < 1 << 64 and abs(right) <= 64):
            raise OutOfFuelError("it raises numbers to large powers")
        elif operator == "%" and isinstance(left, str):
            charge_percent(self, left, right)
        elif isinstance(left, Markup) or isinstance(right, Markup):
            self.spend(6 * sum(len(one) for one in (left, right) if isinstance(one, str)))
        return self._computed(super().call_binop(context, operator, left, right))

    def _computed(self, value: Any) -> Any:
        if isinstance(value, int) and value.bit_length() > COMPUTED_BITS:
            raise OutOfFuelError(f"it computes with numbers of more than {COMPUTED_BITS} bits")
        return self.measured(value)

    def call(self, context: Any, target: Any, /, *arguments: Any, **options: Any) -> Any:
        """Call something from a template: it costs a step, and its arguments and result are measured."""
        self.step(4 * (len(arguments) + len(options)))
        # Jinja wraps ``format``, its guard against attributes; what it wraps knows the text.
        owner = getattr(getattr(target, "__wrapped__", target), "__self__", None)
        if isinstance(owner, str):
            arguments = charge_method(self, owner, target.__name__, arguments, options)
        elif owner is not self:
            for one in (*arguments, *options.values()):
                self.walked(one)
            if isinstance(owner, list | LoopContext):
                self.weigh([owner if isinstance(owner, list) else None, *arguments])
        result = super().call(context, target, *arguments, **options)
        return result if owner is self else self.measured(result)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Jinja's rule, and only what is listed: methods that cannot grow a value, or whose growth is foreseen."""
        if not super().is_safe_attribute(obj, attr, value):
            return False
        if isinstance(obj, Namespace):
            return True
        return any(isinstance(obj, kind) and attr in names for kind, names in _ATTRIBUTES)

    def _metered(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter that is charged for before it runs and whose result is, marks for Jinja (``pass_environment``) kept."""
        marked = getattr(function, "jinja_pass_arg", None) is not None
        kinds = inspect.signature(function).parameters.values()
        names = [one.name for one in kinds if one.kind is not inspect.Parameter.VAR_POSITIONAL]
        # A filter may be marked by its asynchronous double alone: then its signature begins with the value.
        names = names[1 + (names[0] in ("context", "eval_ctx", "environment")) :]

        def metered(*arguments: Any, **options: Any) -> Any:
            self.step()
            value, *others = arguments[1:] if marked else arguments
            for one in others[len(names) :]:
                self.weigh(one)
            value = charge_filter(self, name, value, dict(zip(names, others, strict=False)) | options)
            rest = (arguments[0], value, *others) if marked else (value, *others)
            result = function(*rest, **options)
            return self._computed(result) if name in ("int", "sum", "round") else self.measured(result)

        return _with_marks(function, metered)

    def _metered_test(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A test that is charged for what it walks through; most look at a type only."""
        charge: Callable[[Any], Any] = self.hashed
        if name in _COMPARED:
            charge = self.compared
        elif name == "in":
            charge = self.searched
        elif name in ("lower", "upper"):
            charge = self.printed

        def metered(*arguments: Any, **options: Any) -> Any:
            for one in (*arguments, *options.values()):
                charge(one)
            return function(*arguments, **options)

        return _with_marks(function, metered)

    def _range(self, *arguments: int) -> range:
        found = range(*arguments)
        if len(found) > _RANGE:
            raise OutOfFuelError(f"it counts to {len(found):,}")
        return found

    def _dict(self, pairs: Mapping[Any, Any] | Iterable[Any] = (), /, **more: Any) -> dict[Any, Any]:
        """``dict(...)``: keys are texts and numbers."""
        found = (
            pairs if isinstance(pairs, dict) else [tuple(self.elements(one)) for one in self.elements(pairs)]
        )
        self.weigh((found, more))
        for key in found if isinstance(found, dict) else [pair[0] for pair in found if pair]:
            if not isinstance(key, str | int | float) and key is not None:
                raise SecurityError(f"a {type(key).__name__} is no key of a dictionary")
        return self.measured(dict(found, **more))  # type: ignore[no-any-return]

    def _to_json(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """Plain JSON, as templates expect it: no HTML escapes."""
        if indent is not None and not (isinstance(indent, int) and 0 <= indent <= _SEPARATOR):
            raise SecurityError(f"tojson indents by whole numbers up to {_SEPARATOR}")
        marks = (", ", ": ") if separators is None else separators
        if (
            not isinstance(marks, list | tuple)
            or len(marks) != 2
            or not all(isinstance(one, str) and len(one) <= _SEPARATOR for one in marks)
        ):
            raise SecurityError(f"tojson takes two separators of at most {_SEPARATOR} characters")
        if isinstance(value, Undefined):
            raise TemplateError("tojson of something undefined")
        charge_json(self, value, indent=indent, between=sum(map(len, marks)), ascii_only=bool(ensure_ascii))
        text = json.dumps(
            value,
            ensure_ascii=bool(ensure_ascii),
            indent=indent,
            separators=separators,
            sort_keys=bool(sort_keys),
        )
        self.spend(len(text))
        return text

    def _strftime(self, pattern: str) -> str:
        """The date, in a format of plain letters: widths would let one letter make gigabytes."""
        if len(pattern) > 256 or re.search(r"%[^A-Za-z%-]|%-[^A-Za-z]", pattern):
            raise SecurityError("strftime_now takes short formats of single letters")
        self.spend(16 * len(pattern))
        return (self.now or datetime.now()).strftime(pattern)

    def _raise(self, message: object) -> None:
        raise RaisedByTemplateError(str(self.printed(message))[:400])


def _with_marks(function: Callable[..., Any], metered: Callable[..., Any]) -> Callable[..., Any]:
    for mark in ("jinja_pass_arg", "jinja_async_variant"):
        if hasattr(function, mark):
            setattr(metered, mark, getattr(function, mark))
    return metered
