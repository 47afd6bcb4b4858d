"""Memory-mapped safetensors: one file, a set ``-k-of-n``, or an index and its shards.

A tensor starts where the one before it ends (the header reader has checked that they cover the data without a hole), so
offsets are running sums of sizes after the header.
"""

from __future__ import annotations

import mmap
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headcount.errors import ModelFileError
from headcount.spec.checkpoint import TensorInfo, shown
from headcount.spec.safetensors_header import header_bytes, parse_header, read_safetensors
from headcount.transformer.weights.source import TensorSource, check_inside, map_file, mapped_tensor

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
