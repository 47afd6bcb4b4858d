"""What one token leaves behind in one layer: its keys and its values, each with a codec.

``Entry`` joins the two, so that a place stores one list of parts and never asks which is which.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from headcount.transformer.kv_cache.codec import Part, RowCodec


class Geometry(NamedTuple):
    """What makes two caches alike: entries of one geometry may share a pool of pages."""

    kind: str
    heads: int
    key_width: int
    value_width: int
    format: str


class Entry(ABC):
    """Base: the sizes that ``extend`` is checked against, and the parts of keys and values together."""

    heads: int
    key_width: int
    value_width: int
    parts: tuple[Part, ...]
    geometry: Geometry

    @property
    def nbytes(self) -> int:
        """Bytes of one token: the spec's ``Mixer.entry_bytes``."""
        return sum(part.nbytes for part in self.parts)

    @abstractmethod
    def encode(self, keys_KTH: Tensor, values_KTW: Tensor) -> tuple[Tensor, ...]:
        """Return one tensor (lanes, T, width) per part."""

    @abstractmethod
    def decode(self, parts: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return keys (K, T, H) and values (K, T, W)."""


class HeadedEntry(Entry):
    """K heads with keys of width H and values of width W, one codec each."""

    def __init__(self, keys: RowCodec, values: RowCodec, *, format: str) -> None:
        self.keys, self.values = keys, values
        self.heads, self.key_width, self.value_width = keys.heads, keys.width, values.width
        self.parts = keys.parts + values.parts
        self._cut = len(keys.parts)
        self.geometry = Geometry("headed", keys.heads, keys.width, values.width, format)

    def encode(self, keys_KTH: Tensor, values_KTW: Tensor) -> tuple[Tensor, ...]:
        """Parts of the keys, then of the values."""
        return self.keys.encode(keys_KTH) + self.values.encode(values_KTW)

    def decode(self, parts: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Each codec its own parts."""
        return self.keys.decode(parts[: self._cut], dtype), self.values.decode(parts[self._cut :], dtype)
