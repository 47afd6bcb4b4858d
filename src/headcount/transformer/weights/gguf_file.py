"""Memory-mapped GGUF: plain tensors as views, quantised ones opened a few rows at a time.

    value = d q            (Q8_0: one half-precision d for 32 values)          other types: gguf.quants

``blocks(name)`` gives the packed bytes themselves, for code that computes on them. The vocabulary arrays that the header
reader only counts are read here (``array``), each length checked against the file first.
"""

from __future__ import annotations

import mmap
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from headcount.errors import ModelFileError
from headcount.spec.checkpoint import TensorInfo, shown
from headcount.spec.gguf_header import DEFAULT_ALIGNMENT, read_gguf
from headcount.spec.gguf_values import (
    ARRAY,
    BOOL,
    NUMBER_TYPES,
    TEXT,
    ArrayInfo,
    Cursor,
    TextInfo,
    read_value,
)
from headcount.transformer.weights.source import (
    TensorSource,
    check_inside,
    check_model_files,
    map_file,
    mapped_tensor,
)
from headcount.units import round_up

PLAIN = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float64,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
}
# Rows of quantised blocks are opened in groups of this many values: the float32 copy of a group stays in the cache.
_GROUP = 1 << 18
# The largest published vocabulary has 262,144 tokens and 514,906 merges.
_ARRAY_LIMIT = 1 << 22


class _Place(NamedTuple):
    """Where a tensor's bytes are."""

    info: TensorInfo
    mapped: mmap.mmap
    offset: int


class _Array(NamedTuple):
    """Where a long metadata array begins: its element type, count and first byte."""

    type_id: int
    entries: int
    position: int


class GgufSource(TensorSource):
    """The tensors of a GGUF model (``TensorSource``), its metadata and vocabulary."""

    def __init__(self, path: str) -> None:
        """Read and check the header of every part, map every part. Raises ModelFileError."""
        self.path = path
        check_model_files(path, ".gguf")
        checkpoint = read_gguf(path)
        check_inside(checkpoint.files, path)
        self._metadata = checkpoint.metadata
        self._file = checkpoint.files[0]
        self._arrays: dict[str, _Array] = {}
        infos = {tensor.name: tensor for tensor in checkpoint.tensors}
        self._places: dict[str, _Place] = {}
        for number, file in enumerate(checkpoint.files):
            self._place(file, infos, keep_arrays=number == 0)
        if set(self._places) != set(infos):
            raise ModelFileError(f"{shown(path, limit=200)} changed while it was read")

    def _place(self, file: str, infos: dict[str, TensorInfo], *, keep_arrays: bool) -> None:
        """Walk a header that has been checked once more, for what the check does not keep: where things lie."""
        mapped = map_file(file)
        alignment, found = DEFAULT_ALIGNMENT, {}
        with open(file, "rb") as handle:
            cursor = Cursor(handle, len(mapped), file)
            cursor.take(8, "start")
            tensors, keys = cursor.u64("tensors"), cursor.u64("keys")
            for _ in range(keys):
                key = cursor.name_text("key", 2**16)
                type_id, position = cursor.u32("type"), cursor.position
                value = read_value(cursor, type_id, key)
                if key == "general.alignment":
                    alignment = value
                if type_id == ARRAY and keep_arrays:
                    element, count = (
                        np.frombuffer(mapped, "<u4", 1, position),
                        np.frombuffer(mapped, "<u8", 1, position + 4),
                    )
                    self._arrays[key] = _Array(int(element[0]), int(count[0]), position + 12)
            for _ in range(tensors):
                name = cursor.name_text("tensor", 255)
                cursor.take(8 * cursor.u32("dimensions") + 4, "extents")
                found[name] = cursor.u64("offset")
            data = round_up(cursor.position, alignment)
        for name, offset in found.items():
            if name not in infos or data + offset + infos[name].nbytes > len(mapped):
                raise ModelFileError(f"{shown(file, limit=200)} changed while it was read")
            self._places[name] = _Place(infos[name], mapped, data + offset)

    @property
    def metadata(self) -> dict[str, Any]:
        """Key/value pairs; long arrays and texts are ``ArrayInfo`` and ``TextInfo`` (see ``array``)."""
        return self._metadata

    @property
    def architecture(self) -> str:
        """``general.architecture``: ``llama``, ``gemma3``, ..."""
        name = self._metadata.get("general.architecture")
        if not isinstance(name, str):
            raise ModelFileError(f"{shown(self.path, limit=200)} states no general.architecture")
        return name

    def array(self, key: str) -> list[Any] | None:
        """A metadata array whole (texts, numbers or truth values); None when there is no such key.

        Raises
        ------
        ModelFileError: it is no array, longer than 4,194,304 entries, or holds text that is not UTF-8.
        """
        if key not in self._metadata:
            return None
        value = self._metadata[key]
        if not isinstance(value, ArrayInfo | tuple):
            raise ModelFileError(f"{shown(self.path, limit=200)}: {shown(key)} is no array")
        place = self._arrays[key]
        if place.entries > _ARRAY_LIMIT:
            raise ModelFileError(
                f"{shown(key)} has {place.entries:,} entries; at most {_ARRAY_LIMIT:,} are read"
            )
        if place.type_id == TEXT:
            return self._texts(key, place)
        if place.type_id not in NUMBER_TYPES:
            raise ModelFileError(f"{shown(key)} is an array of arrays")
        code = NUMBER_TYPES[place.type_id][1]
        values: list[Any] = np.frombuffer(self._first(), "<" + code, place.entries, place.position).tolist()
        return [value == 1 for value in values] if place.type_id == BOOL else values

    def _texts(self, key: str, place: _Array) -> list[str]:
        mapped, at, found = self._first(), place.position, []
        for _ in range(place.entries):
            length = int.from_bytes(mapped[at : at + 8], "little")
            found.append(mapped[at + 8 : at + 8 + length])
            at += 8 + length
            if at > len(mapped):
                raise ModelFileError(f"{shown(key)} reaches beyond the file")
        try:
            return [text.decode("utf-8") for text in found]
        except UnicodeDecodeError:
            raise ModelFileError(f"{shown(key)} holds an entry that is not UTF-8 text") from None

    def text(self, key: str) -> str | None:
        """A metadata text; None when there is no such key. ModelFileError when it is no text or too long to be honest."""
        value = self._metadata.get(key)
        if value is None or isinstance(value, str):
            return value
        what = (
            f"a text of {value.nbytes:,} bytes; at most 65,536 are read"
            if isinstance(value, TextInfo)
            else "no text"
        )
        raise ModelFileError(f"{shown(self.path, limit=200)}: {shown(key)} is {what}")

    def _first(self) -> mmap.mmap:
        if self._places:
            return next(iter(self._places.values())).mapped
        return map_file(self._file)

    def names(self) -> list[str]:
        """See ``TensorSource.names``."""
        return list(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        """See ``TensorSource.shape``."""
        return self._at(name).info.shape

    def dtype(self, name: str) -> str:
        """See ``TensorSource.dtype``."""
        return self._at(name).info.dtype

    def blocks(self, name: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The packed bytes of a tensor as a view of the file, shape (..., bytes of one row)."""
        info, mapped, offset = self._at(name)
        raw = np.frombuffer(mapped, np.uint8, info.nbytes, offset)
        return raw.reshape(*info.shape[:-1], -1) if info.shape and info.nbytes else raw

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """See ``TensorSource.tensor``. Blocks are opened in groups of rows, so no second copy of the tensor ever exists."""
        info, mapped, offset = self._at(name)
        if info.dtype in PLAIN:
            found = mapped_tensor(mapped, offset, info.shape, PLAIN[info.dtype])
            return found if dtype is None else found.to(dtype)
        result = torch.empty(info.shape, dtype=dtype or torch.float32)
        if info.nbytes:
            _open_blocks(self.blocks(name), info, result.view(-1, info.shape[-1]))
        return result

    def _at(self, name: str) -> _Place:
        if name not in self._places:
            raise ModelFileError(f"{shown(self.path, limit=200)} holds no tensor {shown(name)}")
        return self._places[name]


def _open_blocks(blocks: np.ndarray[Any, np.dtype[np.uint8]], info: TensorInfo, rows: Tensor) -> None:
    """Write the values of quantised ``blocks`` into ``rows``."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    packed = blocks.reshape(len(rows), -1)
    step = max(_GROUP // rows.shape[1], 1)
    try:
        kind = GGMLQuantizationType[info.dtype]
        for first in range(0, len(rows), step):
            values = dequantize(packed[first : first + step], kind)
            rows[first : first + step] = torch.from_numpy(values)
    except (KeyError, NotImplementedError):
        raise ModelFileError(
            f"tensor {shown(info.name)}: {info.dtype} cannot be turned into numbers here"
        ) from None
