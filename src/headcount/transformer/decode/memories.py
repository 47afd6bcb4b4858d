"""The caches of a step, as the program reads them: per layer and conversation where keys and values lie, and which row is new.

Checked once for every run of memory that a cache lives in; between two moves of its rows only the row counts on.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headcount.errors import OperandError, UsageError
from headcount.transformer.decode import instructions as at
from headcount.transformer.kv_cache.contiguous import ContiguousCache
from headcount.transformer.kv_cache.conversation import Conversation

KINDS = {torch.float32: at.MEMORY_FP32, torch.bfloat16: at.MEMORY_BF16}


class Place:
    """One cache, and the numbers that say where its rows lie."""

    def __init__(self, cache: ContiguousCache, layer: int, shape: tuple[int, ...]) -> None:
        self.cache, self.layer, self.shape = cache, layer, shape
        self.lies: weakref.ref[Tensor] | None = None
        self.capacity = 0
        self.numbers = [0] * at.MEMORY_NUMBERS

    def open(self) -> bool:
        """Make room for one row; whether the rows lie where they did at the last step."""
        rows = self.cache.rows
        if self.lies is not None and self.lies() is rows.tensors[0] and rows.end < self.capacity:
            self.numbers[at.STORED // 8] = rows.end
            self.numbers[at.FIRST // 8] = self.cache.length - rows.end
            return True
        row = self.cache.open_rows(1)
        keys, values = self.cache.storage
        shape = (keys.shape[0], keys.shape[2], values.shape[2])
        if shape != self.shape or keys.dtype not in KINDS or values.dtype != keys.dtype:
            raise OperandError(
                f"decode program: layer {self.layer} has K, H, W = {self.shape}, in fp32 or bf16; the cache keeps {shape} "
                f"in {str(keys.dtype).removeprefix('torch.')}"
            )
        if keys.dtype == torch.bfloat16 and (shape[1] % 2 or shape[2] % 2):
            raise OperandError(f"decode program: rows of odd width {shape[1:]} in a bf16 cache; use fp32")
        size = keys.element_size()
        self.numbers[:7] = [
            keys.data_ptr(), values.data_ptr(), keys.stride(0) * size, values.stride(0) * size, row,
            self.cache.length - row, KINDS[keys.dtype],
        ]  # fmt: skip
        self.lies, self.capacity = weakref.ref(keys), self.cache.capacity
        return False


class Layers:
    """The places of one conversation, layer by layer."""

    def __init__(self, places: list[Place]) -> None:
        self.places = places


class Memories:
    """One table of places, one row per layer and conversation."""

    def __init__(self, rows: Sequence[dict[int, Any]]) -> None:
        # Heads and widths of each layer, which a cache must have too.
        places = (at.KV_HEADS, at.HEAD_WIDTH, at.VALUE_WIDTH)
        self._shapes = [
            tuple(row[place] for place in places) for row in rows if row[at.OPERATION] == at.ATTEND
        ]
        self._known: weakref.WeakKeyDictionary[Conversation, Layers] = weakref.WeakKeyDictionary()
        self._open: list[Layers] = []
        # Whose rows the table shows, slot by slot; held weakly, or the last conversation's memory would stay.
        self._shown: list[weakref.ref[Layers]] = []

    def grow(self, count: int) -> None:
        """Room for ``count`` conversations."""
        self._table: NDArray[np.int64] = np.zeros((len(self._shapes), count, at.MEMORY_NUMBERS), np.int64)
        self._shown = []

    def places(self) -> dict[int, int]:
        """The header's places."""
        return {at.MEMORIES: self._table.ctypes.data, at.MEMORY_LAYER_BYTES: self._table.strides[0]}

    def open(self, conversations: Sequence[Conversation]) -> list[int]:
        """Make room for one token in every cache; return the position of each conversation's new token."""
        opened, positions = [], []
        for conversation in conversations:
            layers = self._known.get(conversation)
            if layers is None:
                layers = self._known[conversation] = self._checked(conversation)
            opened.append(layers)
            positions.append(layers.places[0].cache.length)
        for number, layers in enumerate(opened):
            moved = sum(not place.open() for place in layers.places)
            if not moved and len(self._shown) > number and self._shown[number]() is layers:
                for column in (at.STORED // 8, at.FIRST // 8):
                    self._table[:, number, column] = [place.numbers[column] for place in layers.places]
            else:
                self._table[:, number] = [place.numbers for place in layers.places]
        self._open, self._shown = opened, [weakref.ref(layers) for layers in opened]
        return positions

    def close(self) -> None:
        """Count the new token in every cache."""
        for layers in self._open:
            for place in layers.places:
                place.cache.advance(1)
        self._open = []

    def _checked(self, conversation: Conversation) -> Layers:
        if len(conversation.caches) != len(self._shapes):
            raise OperandError(
                f"decode program: a conversation of {len(conversation.caches)} layers; the program has {len(self._shapes)}"
            )
        places = []
        for layer, (mixers, shape) in enumerate(zip(conversation.caches, self._shapes, strict=True)):
            cache = mixers[0] if len(mixers) == 1 else None
            if not isinstance(cache, ContiguousCache):
                raise UsageError(
                    f"decode program: layer {layer} keeps {', '.join(m.kind for m in mixers) or 'nothing'}; "
                    "contiguous and rolling caches of fp32 or bf16 can be read"
                )
            places.append(Place(cache, layer, shape))
        return Layers(places)
