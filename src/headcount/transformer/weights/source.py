"""The door to weight files: ``open_weights(path)`` gives a ``TensorSource``, memory-mapped, tensors read when asked for.

Files come from strangers. Headers are checked by ``headcount.spec`` before anything is believed; only regular files inside
the model's directory are opened; a pickle (``*.bin``, ``*.pt``) is refused by name, because reading one runs its code.
"""

from __future__ import annotations

import json
import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headcount.errors import ModelFileError
from headcount.spec.checkpoint import all_parts, file_size, list_directory, read_start, shown
from headcount.units import MIB, human_bytes

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
# What names a model's weights: a tokenizer and a description lie beside such a file.
WEIGHT_FILES = (".safetensors", ".safetensors.index.json", ".onnx", *PICKLES)
# The largest published tokenizer.json takes 33 MiB, the largest index 10 MiB.
JSON_LIMIT = 128 * MIB


class TensorSource(ABC):
    """The tensors of one model on disk.

    ``tensor`` gives views of the mapped file where it can: they cost no memory until read, may be written to without
    changing the file, and hold the map open. The file must not be cut while it is mapped.
    """

    path: str

    @abstractmethod
    def names(self) -> list[str]:
        """All tensor names, in file order."""

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """Extents, outermost first; ModelFileError when there is no such tensor."""

    @abstractmethod
    def dtype(self, name: str) -> str:
        """The stored type as the format spells it: ``BF16``, ``F32``, ``Q4_K``."""

    @abstractmethod
    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor as ``dtype``; None is the stored type (float32 for quantised blocks).

        Raises
        ------
        ModelFileError: there is no such tensor, or its stored type cannot be turned into numbers here.
        """

    @property
    def metadata(self) -> dict[str, Any]:
        """Key/value pairs of the header."""
        return {}


def open_weights(path: str) -> TensorSource:
    """Open a model: a ``*.safetensors`` file, a ``*.safetensors.index.json``, a ``*.gguf`` file, or a directory with one.

    Raises
    ------
    ModelFileError: nothing readable there, or it is damaged, lying, too large, or reaches outside its directory.
    """
    # Formats import this module for the base class.
    from headcount.transformer.weights.gguf_file import GgufSource
    from headcount.transformer.weights.safetensors_file import SafetensorsSource

    if os.path.isdir(path):
        names = list_directory(path)
        if any(name.endswith((".safetensors", ".safetensors.index.json")) for name in names):
            return SafetensorsSource(path)
        if any(name.endswith(".gguf") for name in names):
            return GgufSource(path)
        _refuse_pickles(names)
        raise ModelFileError(f"{shown(path, limit=200)} holds no weights: no *.safetensors and no *.gguf")
    _refuse_pickles([os.path.basename(path)])
    if path.endswith(".gguf"):
        return GgufSource(path)
    if path.endswith((".safetensors", ".safetensors.index.json")):
        return SafetensorsSource(path)
    raise ModelFileError(
        f"{shown(path, limit=200)} is no weight file: *.safetensors, *.safetensors.index.json or *.gguf"
    )


def _refuse_pickles(names: Sequence[str]) -> None:
    found = [name for name in names if name.endswith(PICKLES)]
    if found:
        raise ModelFileError(
            f"{shown(found[0])} is a pickle: reading it would run whatever code it holds; convert it to safetensors"
        )


def check_inside(files: Sequence[str], named: str) -> None:
    """Refuse files that lie, symbolic links followed, outside the directory that ``named`` names.

    ``named`` itself (the path a user gave) may be a link. One layout of links is allowed: the Hugging Face cache, whose
    ``models--*/snapshots/<revision>/`` holds links into ``models--*/blobs/``.
    """
    given = os.path.isdir(named)
    folder = os.path.realpath(named if given else os.path.dirname(named) or os.curdir)
    allowed = [folder]
    snapshots = os.path.dirname(folder)
    repository = os.path.dirname(snapshots)
    if os.path.basename(snapshots) == "snapshots" and os.path.basename(repository).startswith("models--"):
        allowed.append(os.path.join(repository, "blobs"))
    for file in files:
        real = os.path.realpath(file)
        if not (any(_within(real, root) for root in allowed) or (not given and file == named)):
            raise ModelFileError(
                f"{shown(os.path.basename(file))} is a link out of the model's directory; what lies outside is not read"
            )


def check_model_files(path: str, suffix: str, more: str = "") -> None:
    """``check_inside`` for every file that a reader of ``path`` may open, before it opens one.

    In a directory that is each file that ends with ``suffix`` or ``more``; beside a part ``-k-of-n`` the whole set.
    """
    if os.path.isdir(path):
        ends = (suffix, more) if more else (suffix,)
        check_inside([os.path.join(path, name) for name in list_directory(path) if name.endswith(ends)], path)
    else:
        check_inside([path], path)
        check_inside(all_parts(path, suffix), path)


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def map_file(path: str) -> mmap.mmap:
    """Map a whole file, copy on write: a tensor over it may be written to and the file stays as it is."""
    if file_size(path) == 0:
        raise ModelFileError(f"{shown(path, limit=200)} is empty")
    try:
        with open(path, "rb") as handle:
            return mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:
        raise ModelFileError(f"cannot map {shown(path, limit=200)}: {error}") from None


def mapped_tensor(mapped: mmap.mmap, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor over mapped bytes; a copy only where they are not aligned to the size of an element."""
    count = 1
    for extent in shape:
        count *= extent
    if not count:
        return torch.empty(shape, dtype=dtype)
    width = dtype.itemsize
    if offset % width:
        raw = torch.frombuffer(mapped, dtype=torch.uint8, count=count * width, offset=offset)
        return raw.clone().view(dtype).reshape(shape)
    return torch.frombuffer(mapped, dtype=dtype, count=count, offset=offset).reshape(shape)


def read_json(folder: str, name: str) -> dict[str, Any] | None:
    """Read a JSON object beside the weights; None when there is no such file.

    Raises
    ------
    ModelFileError: the file is not a JSON object, too large, or a link out of the directory.
    """
    text = read_text(folder, name)
    if text is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{shown(name)} is not JSON: {shown(str(error))}") from None
    if not isinstance(value, dict):
        raise ModelFileError(f"{shown(name)} is not a JSON object")
    return value


def read_text(folder: str, name: str) -> str | None:
    """Read a text file beside the weights; None when there is none."""
    path = os.path.join(folder, name)
    if not os.path.lexists(path):
        return None
    check_inside([path], folder)
    length = file_size(path)
    if length > JSON_LIMIT:
        raise ModelFileError(
            f"{shown(name)} has {human_bytes(length)}; at most {human_bytes(JSON_LIMIT)} are read"
        )
    try:
        return read_start(path, length).decode("utf-8")
    except UnicodeDecodeError:
        raise ModelFileError(f"{shown(name)} is not UTF-8 text") from None
