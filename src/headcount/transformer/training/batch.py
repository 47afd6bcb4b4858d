"""What the loop is fed: a task hands out numbered batches, so that a batch depends on its number and on nothing else.

Resuming at step s therefore needs no state of the data, and r processes can each take their rows of the same batch.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor

IGNORED = -100


class Batch(NamedTuple):
    """The model's arguments (rows first), and the token that should follow at each position (``IGNORED``: none)."""

    arguments: tuple[Tensor, ...]
    targets_BT: Tensor

    def rows(self, chosen: slice) -> Batch:
        """A batch of some of the rows."""
        return Batch(tuple(argument[chosen] for argument in self.arguments), self.targets_BT[chosen])

    def counted(self) -> int:
        """Positions that have a target."""
        return int((self.targets_BT != IGNORED).sum())


@runtime_checkable
class Task(Protocol):
    """Something to learn."""

    @property
    def name(self) -> str:
        """For reports and checkpoints."""

    @property
    def vocabulary(self) -> int:
        """Token ids are below this."""

    def batch(self, rows: int, number: int) -> Batch:
        """Batch ``number`` of the task; the same number gives the same batch."""

    def describe(self) -> dict[str, Any]:
        """What the batches follow from, for a checkpoint: another description is another task."""
