"""Memory-mapped safetensors: one file, a set ``-k-of-n``, or an index and its shards.

A tensor starts where the one before it ends (the header reader has checked that they cover the data without a hole), so
offsets are running sums of sizes after the header.
"""

from __future__ import annotations

import mmap
import os
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headcount.errors import ModelFileError
from headcount.spec.checkpoint import TensorInfo, file_size, list_directory, read_start, shown
from headcount.spec.safetensors_header import (
    INDEX_SUFFIX,
    SUFFIX,
    header_bytes,
    parse_header,
    parse_index,
    read_safetensors,
)
from headcount.transformer.weights.source import (
    JSON_LIMIT,
    TensorSource,
    check_inside,
    check_model_files,
    map_file,
    mapped_tensor,
)

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}


class _Place(NamedTuple):
    """Where a tensor's bytes are."""

    info: TensorInfo
    mapped: mmap.mmap
    offset: int


class SafetensorsSource(TensorSource):
    """The tensors of a safetensors model (``TensorSource``)."""

    def __init__(self, path: str) -> None:
        """Read and check every header, map every file. Raises ModelFileError."""
        self.path = path
        check_model_files(path, SUFFIX, INDEX_SUFFIX)
        for index in _indexes(path):
            _check_shards(index, path)
        checkpoint = read_safetensors(path)
        check_inside(checkpoint.files, path)
        self._metadata = checkpoint.metadata
        self._places: dict[str, _Place] = {}
        for file in checkpoint.files:
            self._place(file)
        if set(self._places) != {tensor.name for tensor in checkpoint.tensors}:
            raise ModelFileError(f"{shown(path, limit=200)} changed while it was read")

    def _place(self, file: str) -> None:
        mapped = map_file(file)
        length = len(mapped)
        at = header_bytes(mapped[:8], length, file)
        for info in parse_header(mapped[:at], length, file).tensors:
            self._places[info.name] = _Place(info, mapped, at)
            at += info.nbytes

    @property
    def metadata(self) -> dict[str, Any]:
        """See ``TensorSource.metadata``."""
        return self._metadata

    def names(self) -> list[str]:
        """See ``TensorSource.names``."""
        return list(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        """See ``TensorSource.shape``."""
        return self._at(name).info.shape

    def dtype(self, name: str) -> str:
        """See ``TensorSource.dtype``."""
        return self._at(name).info.dtype

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """See ``TensorSource.tensor``."""
        info, mapped, offset = self._at(name)
        if info.dtype not in DTYPES:
            raise ModelFileError(f"tensor {shown(name)}: {info.dtype} cannot be turned into numbers here")
        found = mapped_tensor(mapped, offset, info.shape, DTYPES[info.dtype])
        return found if dtype is None else found.to(dtype)

    def _at(self, name: str) -> _Place:
        if name not in self._places:
            raise ModelFileError(f"{shown(self.path, limit=200)} holds no tensor {shown(name)}")
        return self._places[name]


def _indexes(path: str) -> list[str]:
    """The indexes that a reader of ``path`` may open."""
    if os.path.isdir(path):
        return [os.path.join(path, name) for name in list_directory(path) if name.endswith(INDEX_SUFFIX)]
    return [path] if path.endswith(INDEX_SUFFIX) else []


def _check_shards(index: str, path: str) -> None:
    """Refuse an index whose shards are links out of the directory, before any of them is opened."""
    size = file_size(index)
    if size > JSON_LIMIT:  # refused, with its size, by the header reader
        return
    weight_map, _ = parse_index(read_start(index, size), index)
    folder = os.path.dirname(index)
    check_inside([os.path.join(folder, shard) for shard in dict.fromkeys(weight_map.values())], path)
