"""Who may attend to whom: masks as rules over positions, never as stored T x S matrices.

    everything      encoder, cross-attention
    causal          key <= query
    sliding window  query - window < key <= query           (the query itself counts)
    chunked         causal, and in the query's own chunk of c tokens
    prefix          key < prefix, or causal                 (bidirectional prompt)
    padding         key is a real token of its sequence
    packed          key and query belong to one packed sequence

``Causal() & Padding(keep_BS=...)`` allows what both allow. A mask answers two questions: which pairs of a block of
positions are allowed (``allowed``), and whether a whole block is (``coverage``), so that a tiled kernel can skip
empty blocks and leave full ones unmasked.

Positions are absolute: query i of a call stands at ``query_start + i``, key j at j.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headcount.errors import OperandError, UnknownNameError, UsageError
from headcount.record import Record
from headcount.transformer.ops.operands import plain

ALL, SOME, NONE = "all", "some", "none"


class Mask(Record):
    """Base of all masks. Allowed pairs are True."""

    def allowed(self, query_T: Tensor, key_S: Tensor) -> Tensor:
        """``(1, T, S)`` or ``(B, T, S)`` booleans for these absolute positions."""
        raise NotImplementedError

    def coverage(self, queries: range, keys: range) -> str:
        """``all``, ``none`` or ``some`` of the block ``queries x keys`` is allowed; both ranges hold a position.

        This version looks at every pair; masks of positions alone answer in constant time.
        """
        allowed = self.allowed(torch.arange(queries.start, queries.stop), torch.arange(keys.start, keys.stop))
        return ALL if bool(allowed.all()) else SOME if bool(allowed.any()) else NONE

    def check(self, batch: int, query_end: int, keys: int) -> None:
        """Raise OperandError when the mask was made for other sizes; position masks fit any."""

    def versions(self) -> tuple[int, ...]:
        """PyTorch's change counters of the tensors inside: a backward that asks again must find them as they were."""
        return ()

    def __and__(self, other: Mask) -> Mask:
        """Allow what both allow."""
        if not isinstance(other, Mask):
            raise UsageError(f"a mask combines with a mask; given {other!r}")
        return Both(left=self, right=other)


class Everything(Mask):
    """No mask: every query sees every key."""

    def allowed(self, query_T: Tensor, key_S: Tensor) -> Tensor:
        """All True."""
        return torch.ones(1, len(query_T), len(key_S), dtype=torch.bool, device=query_T.device)

    def coverage(self, queries: range, keys: range) -> str:
        """Always all."""
        return ALL


class Causal(Mask):
    """key <= query: a decoder must not see what it is to predict."""

    def allowed(self, query_T: Tensor, key_S: Tensor) -> Tensor:
        """Lower triangle in absolute positions."""
        return (key_S[None, :] <= query_T[:, None])[None]

    def coverage(self, queries: range, keys: range) -> str:
        """Last key against first query, first key against last query."""
        if keys[-1] <= queries[0]:
            return ALL
        return SOME if keys[0] <= queries[-1] else NONE


class SlidingWindow(Mask):
    """query - window < key <= query: the query and the ``window - 1`` tokens before it."""

    window: int

    def _check(self) -> None:
        _whole("sliding window: window", self.window, 1)

    def allowed(self, query_T: Tensor, key_S: Tensor) -> Tensor:
        """A diagonal band of width ``window``."""
        distance = query_T[:, None] - key_S[None, :]
        return ((distance >= 0) & (distance < self.window))[None]

    def coverage(self, queries: range, keys: range) -> str:
        """The distances query - key of a block form one interval."""
        low, high = queries[0] - keys[-1], queries[-1] - keys[0]
        if low >= 0 and high < self.window:
            return ALL
        return SOME if high >= 0 and low < self.window else NONE


class Chunked(Mask):
    """Causal inside the query's own chunk: floor(key / chunk) = floor(query / chunk) and key <= query."""

    chunk: int

    def _check(self) -> None:
        _whole("chunked mask: chunk", self.chunk, 1)

    def allowed(self, query_T: Tensor, key_S: Tensor) -> Tensor:
        """A block diagonal of lower triangles."""
        same = query_T[:, None] // self.chunk == key_S[None, :] // self.chunk
        return (same & (key_S[None, :] <= query_T[:, None]))[None]


class Prefix(Mask):
    """key < length, or causal: the first ``length`` tokens see each other both ways (prefix language models)."""

    length: int

    def _check(self) -> None:
        _whole("prefix mask: length", self.length, 0)

    def allowed(self, query_T: Tensor, key_S: Tensor) -> Tensor:
        """The causal triangle with its first ``length`` columns filled."""
        return ((key_S[None, :] <= query_T[:, None]) | (key_S[None, :] < self.length))[None]

    def coverage(self, queries: range, keys: range) -> str:
        """As causal, but keys of the prefix are open to all."""
        if keys[-1] < self.length:
            return ALL
        inside = Causal().coverage(queries, keys)
        return SOME if inside == NONE and keys[0] < self.length else inside


class Padding(Mask):
    """Only keys with ``keep_BS`` True exist; the rest fill a batch of unequal lengths."""

    keep_BS: Tensor

    def _check(self) -> None:
        if self.keep_BS.dtype != torch.bool or self.keep_BS.dim() != 2:
            raise OperandError(
                f"padding mask: keep_BS must be booleans of shape (B, S); given {tuple(self.keep_BS.shape)} "
                f"of {plain(self.keep_BS.dtype)}"
            )

    @classmethod
    def of_lengths(cls, lengths_B: Tensor, keys: int) -> Padding:
        """Sequences padded on the right to ``keys`` tokens."""
        return cls(keep_BS=torch.arange(keys, device=lengths_B.device)[None, :] < lengths_B[:, None])

    def versions(self) -> tuple[int, ...]:
        """Of ``keep_BS``."""
        return (self.keep_BS._version,)

    def allowed(self, query_T: Tensor, key_S: Tensor) -> Tensor:
        """The same keys for every query of a sequence."""
        return self.keep_BS[:, key_S][:, None, :].expand(-1, len(query_T), -1)

    def coverage(self, queries: range, keys: range) -> str:
        """Queries do not matter."""
        keep = self.keep_BS[:, keys.start : keys.stop]
        return ALL if bool(keep.all()) else SOME if bool(keep.any()) else NONE

    def check(self, batch: int, query_end: int, keys: int) -> None:
        """One row per sequence, one column per key."""
        if self.keep_BS.shape[0] not in (1, batch) or self.keep_BS.shape[1] != keys:
            raise OperandError(
                f"padding mask: keep_BS has shape {tuple(self.keep_BS.shape)}, expected (B={batch}, S={keys})"
            )


class Packed(Mask):
    """Several sequences in one row: key and query must carry the same number in ``segment_BS``."""

    segment_BS: Tensor

    def _check(self) -> None:
        if self.segment_BS.is_floating_point() or self.segment_BS.dim() != 2:
            raise OperandError(
                "packed mask: segment_BS must be whole numbers of shape (B, S); "
                f"given {tuple(self.segment_BS.shape)} of {plain(self.segment_BS.dtype)}"
            )

    @classmethod
    def of_lengths(cls, lengths: list[int]) -> Packed:
        """One row that holds sequences of these lengths, one after another."""
        if not lengths or min(lengths) < 0:
            raise UsageError(
                f"packed mask: lengths must be one or more numbers of 0 or more; given {lengths}"
            )
        numbers = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
        return cls(segment_BS=numbers[None])

    def versions(self) -> tuple[int, ...]:
        """Of ``segment_BS``."""
        return (self.segment_BS._version,)

    def allowed(self, query_T: Tensor, key_S: Tensor) -> Tensor:
        """A block diagonal, one block per sequence."""
        return self.segment_BS[:, query_T][:, :, None] == self.segment_BS[:, key_S][:, None, :]

    def check(self, batch: int, query_end: int, keys: int) -> None:
        """One number for every position, of queries and of keys."""
        rows, columns = self.segment_BS.shape
        if rows not in (1, batch) or columns != keys or query_end > keys:
            raise OperandError(
                f"packed mask: segment_BS has shape {(rows, columns)}, expected (B={batch}, S={keys}) "
                f"with every query position inside S (the last is {query_end - 1})"
            )


class Both(Mask):
    """What ``left`` and ``right`` both allow."""

    left: Mask
    right: Mask

    def versions(self) -> tuple[int, ...]:
        """Of both."""
        return self.left.versions() + self.right.versions()

    def allowed(self, query_T: Tensor, key_S: Tensor) -> Tensor:
        """Logical and."""
        return self.left.allowed(query_T, key_S) & self.right.allowed(query_T, key_S)

    def coverage(self, queries: range, keys: range) -> str:
        """None if either allows none; all if both allow all. ``some`` may still hold no allowed pair."""
        found = {self.left.coverage(queries, keys), self.right.coverage(queries, keys)}
        return NONE if NONE in found else SOME if SOME in found else ALL

    def check(self, batch: int, query_end: int, keys: int) -> None:
        """Both must fit."""
        self.left.check(batch, query_end, keys)
        self.right.check(batch, query_end, keys)


def simplest(mask: Mask, query_start: int, queries: int, keys: int) -> Mask:
    """The plainest mask that allows the same pairs: a decode step sees everything, a window not yet full is causal.

    Kernels are fastest under the plainest masks.
    """
    if isinstance(mask, Everything) or not queries or not keys:
        return mask
    if mask.coverage(range(query_start, query_start + queries), range(keys)) == ALL:
        return Everything()
    return Causal() if isinstance(mask, SlidingWindow) and mask.window >= keys else mask


MASKS: dict[str, type[Mask]] = {
    "everything": Everything,
    "causal": Causal,
    "sliding_window": SlidingWindow,
    "chunked": Chunked,
    "prefix": Prefix,
    "padding": Padding,
    "packed": Packed,
}


def mask(name: str, **parameters: Any) -> Mask:
    """A mask by its name: ``mask("sliding_window", window=4096)``; UnknownNameError lists the names."""
    if name not in MASKS:
        raise UnknownNameError(what="mask", given=name, allowed=MASKS)
    kind = MASKS[name]
    if set(parameters) != set(kind._fields):
        raise UsageError(
            f"mask {name!r} takes {', '.join(kind._fields) or 'no parameter'}; "
            f"given {', '.join(parameters) or 'none'}"
        )
    return kind(**parameters)


def _whole(what: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UsageError(f"{what} must be a whole number, {least} or more; given {value}")
