"""``compile_program``: a network's decode step as a program; ``Program.step``: one new token of each conversation.

    program = compile_program(network, weights="bf16")
    logits = program.step([17, 4], [alice, bob])           (2, V) float32; every cache is one token longer

Numbers: activations, sums, softmax and norms are float32. With bf16 weights, what meets a weight is rounded to bfloat16
where the processor multiplies pairs of them (as PyTorch's bfloat16 linear does), with int8 weights to int8 in blocks of 32.
A conversation's logits are the same bits whether it is decoded alone or with others.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headcount.errors import OperandError, UnknownNameError, UsageError
from headcount.transformer.decode import instructions as at
from headcount.transformer.decode.compose import Composer, compose
from headcount.transformer.decode.crew import Crew
from headcount.transformer.decode.kernel import actions, kernel
from headcount.transformer.decode.memories import Memories
from headcount.transformer.decode.tiles import FORMATS, vector_bytes
from headcount.transformer.decode.turns import Turns
from headcount.transformer.families.decoder import Decoder
from headcount.transformer.kv_cache.conversation import Conversation

# A vector's address place -> the place of the bytes from one conversation's to the next.
STRIDES = {at.TARGET: at.TARGET_BYTES, at.SOURCE: at.SOURCE_BYTES, at.HEADS_VECTOR: at.HEADS_BYTES}


def compile_program(network: Decoder, *, weights: str = "bf16", threads: int | None = None) -> Program:
    """Compile ``network`` for decoding with weights kept as ``fp32``, ``bf16`` or ``int8``.

    ``threads`` None: as many as PyTorch uses. The weights are copied; ``network`` may be used or dropped afterwards.

    Raises
    ------
    UnsupportedModelError: an operation that the program lacks, by name.
    UnknownNameError: another weight format.
    UsageError: fewer than one thread; a network that is not on the CPU.
    """
    count = torch.get_num_threads() if threads is None else threads
    if count < 1:
        raise UsageError(f"decode program: threads must be 1 or more; given {count}")
    places = {parameter.device.type for parameter in network.parameters()}
    if places != {"cpu"}:
        raise UsageError(
            f"decode program: the network lies on {', '.join(sorted(places))}; it runs on the CPU"
        )
    if weights not in FORMATS:
        raise UnknownNameError(what="weight format", given=weights, allowed=FORMATS)
    with torch.inference_mode():
        composer = compose(network, weights)
        found = actions(composer.form, {int(row[at.OPERATION]) for row in composer.rows})
        for row in composer.rows:
            row[at.ACTION] = found.get(int(row[at.OPERATION]), 0)
        return Program(composer, Crew(kernel(), count))


class Program:
    """A compiled network with its threads and buffers. One step runs at a time, whoever asks."""

    def __init__(self, composer: Composer, crew: Crew) -> None:
        self._composer, self._crew = composer, crew
        shape = composer.network.shape
        self.vocabulary, self.layers = shape.vocabulary, len(composer.network.layers)
        self._positions = shape.positions - shape.position_offset if shape.positions else 0
        self._turns = Turns([rotary for _, rotary in shape.rotaries])
        self._memories = Memories(composer.rows)
        self._capacity = 0
        self._lock = threading.Lock()
        # What the network was is packed now; holding it would keep its weights twice.
        del composer.network

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weights."""
        return self._composer.arena.nbytes

    @property
    def threads(self) -> int:
        """Threads that run a step, the caller's included."""
        return self._crew.threads

    def step(self, ids: Sequence[int], conversations: Sequence[Conversation]) -> Tensor:
        """Append token ``ids[m]`` to ``conversations[m]`` and return the logits of what follows, (B, V) float32.

        Raises
        ------
        OperandError: an id outside the vocabulary, a position past the last learned one, or a cache of another model.
        UsageError: no or unequally many conversations, one twice, or a cache that is not contiguous fp32 or bf16.
        """
        self._check(ids, conversations)
        with self._lock:
            if len(ids) > self._capacity:
                self._grow(len(ids))
            positions = self._memories.open(conversations)
            if self._positions and max(positions) >= self._positions:
                raise OperandError(
                    f"decode program: position {max(positions):,}, the table ends at {self._positions - 1:,}"
                )
            self._ids[: len(ids)] = ids
            self._at[: len(ids)] = positions
            self._turns.fill(positions)
            self._set(at.COUNT, len(ids))
            self._crew.step(self._barriers)
            self._memories.close()
            # Copied by NumPy: PyTorch would wake its own threads for it, which then watch for more work and take
            # processors from ours during the next step.
            return torch.from_numpy(self._logits[: len(ids), : self.vocabulary].copy())

    def _check(self, ids: Sequence[int], conversations: Sequence[Conversation]) -> None:
        if not ids or len(ids) != len(conversations):
            raise UsageError(
                f"decode program: one id per conversation; given {len(ids)} ids, {len(conversations)} conversations"
            )
        if len({id(conversation) for conversation in conversations}) != len(conversations):
            raise UsageError("decode program: a conversation stands twice in one step")
        for token in ids:
            if not 0 <= token < self.vocabulary:
                raise OperandError(
                    f"decode program: id {token} is outside of the vocabulary of {self.vocabulary:,}"
                )

    def _set(self, place: int, number: int) -> None:
        self._crew.header[place // 8] = number

    def _grow(self, count: int) -> None:
        """Buffers for ``count`` conversations, and the table that names their addresses."""
        c = self._composer
        self._capacity = count
        self._ids: NDArray[np.int64] = np.zeros(count, np.int64)
        self._at: NDArray[np.int64] = np.zeros(count, np.int64)
        vectors = {name: _rows(count, -(-width // 32) * 32 + 32) for name, width in c.vectors.items()}
        self._vectors, self._logits = vectors, vectors["logits"]
        self._table = _table(c.rows, vectors)
        self._barriers = sum(row[at.OPERATION] == at.BARRIER for row in c.rows)
        self._turns.grow(count)
        self._memories.grow(count)
        private = _private(c, count)
        self._private = np.zeros(private.pop(at.PRIVATE_BYTES) * self.threads // 8 + 8, np.int64)
        head = 64 + c.sum_bytes
        partials = count * c.heads_most * head
        self._partials = np.zeros(partials * self.threads // 8 + 8, np.int64)
        ready = c.heads_most * c.ready_bytes
        self._ready = np.zeros(ready * count // 8 + 8, np.int64)
        places = {
            at.PROGRAM: self._table.ctypes.data, at.LENGTH: len(c.rows), at.IDS: self._ids.ctypes.data,
            at.AT: self._at.ctypes.data, at.PRIVATE: _aligned(self._private),
            at.PRIVATE_BYTES: (self._private.nbytes - 64) // self.threads // 64 * 64,
            at.READY: _aligned(self._ready), at.READY_VECTOR_BYTES: ready,
            at.PARTIALS: _aligned(self._partials), at.PARTIAL_THREAD_BYTES: partials,
            at.PARTIAL_VECTOR_BYTES: c.heads_most * head, at.PARTIAL_HEAD_BYTES: head,
            **private, **self._turns.places(), **self._memories.places(),
        }  # fmt: skip
        for place, number in places.items():
            self._set(place, number)


def _rows(count: int, width: int) -> NDArray[np.float32]:
    """Zeros, every row at a multiple of 64 bytes (``width`` is one of 16)."""
    numbers: NDArray[np.float32] = np.zeros(count * width + 16, np.float32)
    skip = -int(numbers.ctypes.data) % 64 // 4
    return numbers[skip : skip + count * width].reshape(count, width)


def _aligned(numbers: NDArray[Any]) -> int:
    return -(-int(numbers.ctypes.data) // 64) * 64


def _table(rows: Sequence[dict[int, Any]], vectors: dict[str, NDArray[np.float32]]) -> NDArray[np.int64]:
    """Rows with every name replaced by an address, every fraction by its bits."""
    table = np.zeros((len(rows), at.ROW_BYTES // 8), np.int64)
    for number, row in enumerate(rows):
        for place, value in row.items():
            if isinstance(value, str):
                vector = vectors[value]
                table[number, STRIDES[place] // 8] = vector.strides[0]
                value = vector.ctypes.data
            table[number, place // 8] = at.bits_of(value) if isinstance(value, float) else value
    return table


def _private(c: Composer, count: int) -> dict[int, int]:
    """Where everything lies in one thread's own memory, in bytes, each at a multiple of 64."""
    places, end = {}, 0
    width = -(-c.inputs_widest // 64) * 64 + 64
    packed = -(-vector_bytes(c.form, width // 32) // 64) * 64
    sizes = {
        at.STREAM_AT: 4 * width * count, at.PLAIN_AT: 4 * width * count, at.PACKED_AT: packed * count,
        at.TILE_AT: 8 * 128, at.HEAD_AT: c.ready_bytes + 64,
        at.SCORES_AT: 4 * at.SCORE_BLOCK * c.group_largest, at.SUMS_AT: c.sum_bytes * c.group_largest,
        at.STATE_AT: 16 * c.group_largest + 64,
    }  # fmt: skip
    for place, size in sizes.items():
        places[place] = end
        end += -(-size // 64) * 64
    strides = {at.STREAM_BYTES: 4 * width, at.PLAIN_BYTES: 4 * width, at.PACKED_BYTES: packed}
    return {**places, **strides, at.PRIVATE_BYTES: end + 64}
