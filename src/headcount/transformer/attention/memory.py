"""What attention asks of a cache, and of positions that are told as a bias. Who answers is not its business.

memory.extend(k, v) -> Seen, Seen, ...     one per conversation of the call: its rows of the new tokens, and all keys
                                           and values those queries may look at, the new ones last
bias.between(queries, keys, like) -> (1, N, T, S)      added to the scaled scores; positions are absolute
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor


class Seen(NamedTuple):
    """One conversation's share of a call.

    rows     its new tokens within the call
    keys     (1, K, S, H); ``values`` (1, K, S, W)
    start    absolute position of its first new token; ``first``: of keys[:, :, 0]
    """

    rows: slice
    keys: Tensor
    values: Tensor
    start: int
    first: int


@runtime_checkable
class Memory(Protocol):
    """Keys and values kept between calls, for one attention layer and the conversations of one call."""

    def extend(self, k_BKTH: Tensor, v_BKTW: Tensor) -> Sequence[Seen]:
        """Append the new tokens (B = 1, all conversations one after another); return what each may look at."""


@runtime_checkable
class Bias(Protocol):
    """Positions told as a number per query, key and head."""

    def between(self, queries: range, keys: range, like: Tensor) -> Tensor:
        """``(1, N, T, S)`` in the dtype and on the device of ``like``."""


def concat_queries(parts: Iterable[Tensor]) -> Tensor:
    """The conversations' outputs (1, N, T_i, W), one after another again."""
    outs = list(parts)
    return outs[0] if len(outs) == 1 else torch.cat(outs, 2)
