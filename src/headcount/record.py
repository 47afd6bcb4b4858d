"""Frozen, keyword-only records: the dataclass habit without the dataclass start-up cost.

``import dataclasses`` pulls in ``inspect`` and compiles one ``__init__`` per class. Measured on 2026-11-30 (CPython
3.11, 2 cores, medians of 25 cold starts): bare interpreter 10.6 ms, with ``dataclasses`` 27.2 ms, before a single
class is decorated. A whole ``fit --json`` may cost four bare interpreters (docs/decisions/0001-start-up.md).

    class Point(Record):
        x: int
        y: int = 0

    Point(x=1)              # keyword-only; a missing or unknown field raises TypeError
    Point(x=1).replace(y=2) # a changed copy; assignment raises AttributeError
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar, Self, dataclass_transform
else:

    def dataclass_transform(**_: object) -> object:
        """Stand in for ``typing.dataclass_transform``, which only a type checker reads."""
        return lambda cls: cls


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Record:
    """Base of every value type: fields are the class annotations, in order, base classes first."""

    _fields: ClassVar[tuple[str, ...]] = ()
    _defaults: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        """Collect the annotated fields and their defaults once per class."""
        own = {name: hint for name, hint in cls.__annotations__.items() if "ClassVar" not in str(hint)}
        inherited = [name for name in cls._fields if name not in own]
        cls._fields = (*inherited, *own)
        cls._defaults = {
            **cls._defaults,
            **{name: cls.__dict__[name] for name in own if name in cls.__dict__},
        }

    def __init__(self, **values: Any) -> None:
        cls = type(self)
        state = self.__dict__
        state.update(cls._defaults)
        state.update(values)
        if len(state) != len(cls._fields) or any(name not in cls._fields for name in values):
            unknown = [name for name in values if name not in cls._fields]
            missing = [name for name in cls._fields if name not in state]
            raise TypeError(f"{cls.__name__}: unknown fields {unknown}, missing fields {missing}")
        self._check()

    def _check(self) -> None:
        """Raise when the values contradict each other; a subclass overrides it."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen; use replace({name}=...)")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return False
        return all(self.__dict__[name] == other.__dict__[name] for name in self._fields)

    def __hash__(self) -> int:
        return hash((type(self).__name__, *(self.__dict__[name] for name in self._fields)))

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={self.__dict__[name]!r}" for name in self._fields)
        return f"{type(self).__name__}({inside})"

    def replace(self, **changes: Any) -> Self:
        """Return a copy with ``changes`` applied; unknown names raise TypeError."""
        # Not ``as_dict``: a subclass may give that another meaning (a ledger's JSON tree).
        own = {name: self.__dict__[name] for name in self._fields}
        return type(self)(**{**own, **changes})

    def as_dict(self) -> dict[str, Any]:
        """Return the fields in order as a new dictionary (values are not copied)."""
        return {name: self.__dict__[name] for name in self._fields}
