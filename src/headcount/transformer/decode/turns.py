"""Cos and sin of the positions of a step, where the program reads them: per rotary and conversation R/2 cosines, R/2 sines.

Computed once per position, by the same function as the network's own (``RotaryShape.turns``), and kept; rules that ask
for the length at hand are computed anew at every step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from headcount.transformer.decode import instructions as at
from headcount.transformer.families.rotary import RotaryShape

POSITIONS_AT_ONCE = 1024


class Turns:
    """The rotaries of a network, by number."""

    def __init__(self, rotaries: Sequence[RotaryShape]) -> None:
        self.rotaries = list(rotaries)
        self.widest = max((rotary.width for rotary in rotaries), default=0)
        self._known: list[NDArray[np.float32]] = [
            np.zeros((0, 2, rotary.width // 2), np.float32) for rotary in rotaries
        ]

    def grow(self, count: int) -> None:
        """Room for ``count`` conversations."""
        # Whole vectors are read: the sines of the widest rotary end 16 numbers before the next.
        self._half = -(-max(self.widest // 2, 1) // 16) * 16
        self._step: NDArray[np.float32] = np.zeros(
            (max(len(self.rotaries), 1), count, 2, self._half), np.float32
        )

    def places(self) -> dict[int, int]:
        """The header's places."""
        size = 4 * 2 * self._half
        return {
            at.TURNS: self._step.ctypes.data,
            at.TURN_BYTES: size * self._step.shape[1],
            at.TURN_VECTOR_BYTES: size,
        }

    def fill(self, positions: Sequence[int]) -> None:
        """Set the rows of these positions."""
        for number, rotary in enumerate(self.rotaries):
            half = rotary.width // 2
            if rotary.by_length:
                self._step[number, : len(positions), :, :half] = _turns(rotary, torch.tensor(positions))
                continue
            known = self._known[number]
            if max(positions) >= len(known):
                whole = -(-(max(positions) + 1) // POSITIONS_AT_ONCE) * POSITIONS_AT_ONCE
                known = self._known[number] = _turns(rotary, torch.arange(whole))
            self._step[number, : len(positions), :, :half] = known[list(positions)]


def _turns(rotary: RotaryShape, positions: torch.Tensor) -> NDArray[np.float32]:
    """(T, 2, R/2): cosines, sines, each position that of the newest token of its own conversation."""
    counts = [1] * len(positions) if rotary.by_length else None
    made: NDArray[np.float32] = torch.stack(rotary.turns(positions, torch.float32, counts=counts), 1).numpy()
    return made
