"""A tape of the operations that really ran: what the computational graph is drawn from.

    with record() as tape:
        out = attend(q, k, v, kernel="composed")
        out.sum().backward()
    tape.nodes          every operation in order, with its inputs, outputs and scope
    tape.values[...]    each tensor with its name and, after backward, its gradient

Values are told apart by identity, so a value must pass from one operation to the next untouched: reshapes and
residual sums that belong on the graph are operations too (``rearrange.py``, ``arithmetic.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from headcount.transformer.ops.operation import Operation


class Value:
    """A tensor on the tape: its name, and its gradient once backward has passed (None before, and for constants)."""

    def __init__(self, tensor: Tensor, name: str) -> None:
        self.tensor = tensor
        self.name = name
        self.gradient: Tensor | None = None
        if tensor.requires_grad:
            # The hook sees the gradient after all consumers have added theirs.
            tensor.register_hook(self._keep)  # type: ignore[no-untyped-call]

    def _keep(self, gradient: Tensor) -> None:
        self.gradient = gradient.detach().clone()


class Node:
    """One operation that ran: ``inputs`` and ``outputs`` are keys of ``Tape.values``; ``scope`` names its module."""

    def __init__(
        self, operation: Operation, inputs: list[int], outputs: list[int], scope: tuple[str, ...]
    ) -> None:
        self.operation = operation
        self.inputs = inputs
        self.outputs = outputs
        self.scope = scope


class Tape:
    """Operations in the order they ran, and the values between them."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.values: dict[int, Value] = {}
        self._scope: list[str] = []

    def add(self, operation: Operation, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        """Append one operation; called by ``Operation`` itself."""
        keys = [self._key(tensor, "") for tensor in inputs if tensor is not None]
        self.nodes.append(
            Node(operation, keys, [self._key(tensor, "") for tensor in outputs], tuple(self._scope))
        )

    def name(self, tensor: Tensor, name: str) -> None:
        """Give a value the letter a reader knows it by (Q, S, A, ...)."""
        self.values[self._key(tensor, name)].name = name

    def _key(self, tensor: Tensor, name: str) -> int:
        # The Value holds the tensor, so its id cannot be given to another one while the tape lives.
        key = id(tensor)
        if key not in self.values:
            self.values[key] = Value(tensor, name)
        return key


_tape: ContextVar[Tape | None] = ContextVar("tape", default=None)


def active() -> Tape | None:
    """The tape that is recording, if any."""
    return _tape.get()


@contextmanager
def record() -> Iterator[Tape]:
    """Record every operation inside the block."""
    tape = Tape()
    token = _tape.set(tape)
    try:
        yield tape
    finally:
        _tape.reset(token)


@contextmanager
def scope(name: str) -> Iterator[None]:
    """Operations inside belong to ``name`` (a sub-layer, a head): a graph may show them as one box."""
    tape = _tape.get()
    if tape is None:
        yield
        return
    tape._scope.append(name)
    try:
        yield
    finally:
        tape._scope.pop()


def name(tensor: Tensor, letter: str) -> Tensor:
    """Name a value on the active tape and return it; does nothing when nothing records."""
    tape = _tape.get()
    if tape is not None:
        tape.name(tensor, letter)
    return tensor
