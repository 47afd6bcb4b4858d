"""What a chat template may spend, and what values weigh: by printed size, shared parts counted each time.

    fuel = 2^25     a character costs 1, an element of a container 32, a loop turn or a call 64 and its body 2 a node

That is half a million steps, or 32 MiB of text, about a second. What a stroke can make is weighed before it is made.
"""

from __future__ import annotations

from typing import Any

from jinja2 import TemplateError, Undefined
from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace

FUEL = 1 << 25
STEP = 64
ELEMENT = 32
_NODE = 2
# Python hashes an integer modulo 2^61 - 1: longer ones could be made to collide in a dictionary, each with each.
COMPUTED_BITS = 60
_INTEGER_BITS = 4096
# A letter that cannot be printed becomes at most ``\Uxxxxxxxx`` inside a container, any other at most a backslash and itself.
_ESCAPED, _QUOTED = 10, 2
_VIEWS: tuple[type[Any], ...] = (type({}.keys()), type({}.values()), type({}.items()))
_HOLDERS: Any = (list, tuple, set, frozenset, *_VIEWS)
_WALKED: Any = (list, tuple, dict, range, *_VIEWS)


class OutOfFuelError(TemplateError):
    """A template asked for more time or memory than any honest one does."""


class Meter:
    """Fuel and the ways to spend it; ``fuel`` is set anew for every rendering."""

    fuel: int = FUEL

    def spend(self, cost: int) -> None:
        """Spend fuel; OutOfFuelError when there is none."""
        self.fuel -= cost
        if self.fuel < 0:
            raise OutOfFuelError("it takes more time or memory than any honest template")

    def step(self, body: int = 0) -> None:
        """Spend one step, and what going through a body of so many syntax nodes takes."""
        self.spend(STEP + _NODE * body)

    def tested(self, body: int) -> bool:
        """``step``; true."""
        self.step(body)
        return True

    def weigh(self, value: Any, *, printed: bool = False) -> int:
        """Charge for a value with all its parts and return the charge; ``printed`` counts what escapes would make of it."""
        if isinstance(value, str):
            self.spend(len(value) + 1)
            return len(value) + 1
        before = self.fuel
        self.spend(STEP)
        waiting = [value]
        while waiting:
            one = waiting.pop()
            if isinstance(one, str):
                growth = 1 if not printed else _QUOTED if one.isprintable() else _ESCAPED
                self.spend(len(one) * growth + 1)
            elif isinstance(one, dict):
                self.spend(STEP + 2 * ELEMENT * len(one))
                waiting += one.keys()
                waiting += one.values()
            elif isinstance(one, _HOLDERS):
                self.spend(STEP + ELEMENT * len(one))
                waiting += one
            elif isinstance(one, int):
                self._weigh_integer(one)
        return before - self.fuel

    def _weigh_integer(self, value: int) -> None:
        bits = value.bit_length()
        if bits > _INTEGER_BITS:
            raise OutOfFuelError("it computes with numbers of more than 4,096 bits")
        if bits > 64:
            self.spend(bits)

    def measured(self, value: Any) -> Any:
        """``weigh`` a value and return it."""
        self.weigh(value)
        return value

    def printed(self, value: Any) -> Any:
        """Called on every printed value: charge for it before it becomes text. Objects have no text."""
        self.weigh_text(value)
        return value

    def weigh_text(self, value: Any) -> int:
        """Charge for the text of a value and return the charge, at least its length."""
        if not isinstance(value, str | int | float | Undefined | list | tuple | dict) and value is not None:
            raise SecurityError(f"a {type(value).__name__} cannot be printed")
        return self.weigh(value, printed=True)

    def walked(self, value: Any) -> Any:
        """Charge for going once through a value, which is far cheaper than making or printing it; return it."""
        if isinstance(value, str):
            self.spend(8 + (len(value) >> 4))
        elif isinstance(value, _WALKED):
            self.spend(8 + 8 * len(value))
        return value

    def copied(self, value: Any) -> Any:
        """Charge for a copy of a text or list, parts not copied; return it."""
        self.spend(len(value) + 8 if isinstance(value, str) else 8)
        return value if isinstance(value, str) else self.walked(value)

    def compared(self, value: Any) -> Any:
        """Charge for comparing with a value, parts within parts included; return it."""
        return self.walked(value) if isinstance(value, str | range) else self.measured(value)

    def searched(self, value: Any) -> Any:
        """Charge for ``in`` a value: a search in text may look at each character several times."""
        if isinstance(value, str):
            self.spend(8 + 2 * len(value))
            return value
        return self.compared(value)

    def hashed(self, value: Any) -> Any:
        """Charge for looking a value up: tuples are hashed part by part, every time."""
        return self.measured(value) if isinstance(value, tuple) else value

    def joined(self, *values: Any) -> str:
        """The text of ``a ~ b ~ c``."""
        return "".join([str(self.printed(value)) for value in values])

    def joined_pieces(self, pieces: Any) -> str:
        """Join what a block or macro printed: Jinja calls this for every captured output."""
        found = []
        for piece in pieces:
            self.spend(len(piece) + 16)
            found.append(piece)
        return "".join(found)

    def elements(self, value: Any) -> list[Any]:
        """The elements of anything that can be gone through, charged for."""
        if isinstance(value, str | range | dict):
            self.spend(ELEMENT * len(value))
        found = list(value)
        self.weigh(found)
        return found


def plain_name(name: object) -> None:
    """Refuse a namespace's name that begins with an underscore."""
    if not isinstance(name, str) or name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {str(name)[:80]!r}")


class PlainNamespace(Namespace):
    """``namespace(...)`` without names that begin with an underscore."""

    def __init__(*arguments: Any, **values: Any) -> None:
        for name in {**(dict(arguments[1]) if len(arguments) > 1 else {}), **values}:
            plain_name(name)
        Namespace.__init__(*arguments, **values)

    def __setitem__(self, name: str, value: Any) -> None:
        plain_name(name)
        super().__setitem__(name, value)
