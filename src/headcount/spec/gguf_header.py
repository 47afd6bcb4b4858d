"""Read GGUF headers: metadata and every tensor's name, type, shape and bytes, without touching the weights.

    file = "GGUF" | u32 version | u64 tensors | u64 keys | keys | tensor infos | padding | data
    key  = text name, u32 type, value        info = text name, u32 d, d u64 extents, u32 type, u64 offset
    data starts at the next multiple of general.alignment (32 when absent); so does every tensor within it

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; bounds as llama.cpp checks them (2026-11).
Extents are stored innermost first; ``TensorInfo.shape`` turns them round. A split model is files named
``-00001-of-0000n.gguf``.
"""

from __future__ import annotations

import os

from headcount.errors import ModelFileError
from headcount.record import Record
from headcount.spec.checkpoint import (
    Checkpoint,
    TensorInfo,
    all_parts,
    file_size,
    list_directory,
    name_some,
    part_number,
    shown,
)
from headcount.spec.gguf_types import GGML_TYPES, REMOVED_GGML_TYPES
from headcount.spec.gguf_values import Cursor, read_value
from headcount.units import round_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SUFFIX = ".gguf"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
# Far above any published file: 512 layers of 40 tensors; names have at most 63 bytes in ggml.
TENSOR_LIMIT = 2**16
KEY_LIMIT = 2**16
NAME_LIMIT = 255
KEY_NAME_LIMIT = 2**16 - 1  # the format's own limit
_LARGEST = 2**63 - 1
_SPLIT_COUNT, _SPLIT_NUMBER, _SPLIT_TENSORS = "split.count", "split.no", "split.tensors.count"


class _Placed(Record):
    """A tensor and the offset the header gives it, from the start of the data."""

    tensor: TensorInfo
    offset: int


def read_gguf(path: str) -> Checkpoint:
    """Read the header of a GGUF model: every part of a split one.

    ``path`` is a ``*.gguf`` file, any part of a split model, or a directory that holds one model. Metadata
    comes from the first part; long arrays in it are ``ArrayInfo``, long texts ``TextInfo``. Raises
    ModelFileError, naming the file, when anything is missing, damaged, truncated or contradicts itself.
    """
    first = _choose(path) if os.path.isdir(path) else path
    parts = all_parts(first, SUFFIX)
    checkpoints = [_read_file(part) for part in parts]
    for number, checkpoint in enumerate(checkpoints):
        _check_split(checkpoint, number, len(parts))
    tensors = tuple(tensor for checkpoint in checkpoints for tensor in checkpoint.tensors)
    _refuse_repeats(tensors)
    metadata = checkpoints[0].metadata
    announced = metadata.get(_SPLIT_TENSORS, len(tensors))
    if len(parts) > 1 and announced != len(tensors):
        raise ModelFileError(
            f"{shown(os.path.basename(parts[0]))} announces {shown(announced)} tensors in all parts; "
            f"they hold {len(tensors):,}"
        )
    return Checkpoint(path=path, file_format="gguf", tensors=tensors, metadata=metadata, files=tuple(parts))


def _read_file(path: str) -> Checkpoint:
    """Read the header of one file."""
    size = file_size(path)
    try:
        with open(path, "rb") as handle:
            cursor = Cursor(handle, size, os.path.basename(path))
            tensor_count, key_count = _read_start(cursor)
            metadata = _read_metadata(cursor, key_count)
            alignment = _alignment(cursor, metadata)
            placed = [_read_tensor(cursor, alignment) for _ in range(tensor_count)]
    except OSError as error:
        raise ModelFileError(f"cannot read {shown(path, limit=200)}: {error.strerror}") from None
    data_begin = round_up(cursor.position, alignment)
    _check_placement(placed, alignment, size - data_begin, cursor.name)
    return Checkpoint(
        path=path,
        file_format="gguf",
        tensors=tuple(item.tensor for item in placed),
        metadata=metadata,
        files=(path,),
    )


def _read_start(cursor: Cursor) -> tuple[int, int]:
    """Check magic and version; return the counts of tensors and keys."""
    magic = cursor.take(4, "magic")
    if magic != b"GGUF":
        raise ModelFileError(f"{shown(cursor.name)} is not a GGUF file: it begins with {shown(magic)}")
    version = cursor.u32("version")
    if version and version & 0xFFFF == 0:
        raise ModelFileError(
            f"{shown(cursor.name)} is a big-endian GGUF file; only little-endian ones are read"
        )
    if version not in VERSIONS:
        raise ModelFileError(f"{shown(cursor.name)} has GGUF version {version}; versions 2 and 3 are read")
    tensor_count, key_count = cursor.u64("tensor count"), cursor.u64("key count")
    # The smallest info is a one-letter name without extents, the smallest key a one-letter name and a byte.
    for what, count, limit, least in (
        ("tensors", tensor_count, TENSOR_LIMIT, 25),
        ("metadata keys", key_count, KEY_LIMIT, 14),
    ):
        if count > limit:
            raise cursor.fault(f"{count:,} {what}; at most {limit:,} are read")
        cursor.require(count * least, f"{count:,} {what}")
    return tensor_count, key_count


def _read_metadata(cursor: Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(count):
        key = cursor.name_text("key", KEY_NAME_LIMIT)
        if key in metadata:
            raise cursor.fault(f"key {shown(key)} is listed twice")
        metadata[key] = read_value(cursor, cursor.u32(f"type of {shown(key)}"), key)
    return metadata


def _alignment(cursor: Cursor, metadata: dict[str, Any]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 1 <= alignment < 2**32 or alignment & (alignment - 1):
        raise cursor.fault(f"general.alignment must be a power of two; given {shown(alignment)}")
    return alignment


def _read_tensor(cursor: Cursor, alignment: int) -> _Placed:
    """Read one tensor info and work out its bytes."""
    name = cursor.name_text("tensor name", NAME_LIMIT)
    cursor.keep(400)
    dimensions = cursor.u32(f"tensor {shown(name)}")
    if dimensions > MAX_DIMENSIONS:
        raise cursor.fault(f"tensor {shown(name)} has {dimensions:,} dimensions; at most {MAX_DIMENSIONS}")
    extents = [cursor.u64(f"tensor {shown(name)}") for _ in range(dimensions)]
    type_id, offset = cursor.u32(f"tensor {shown(name)}"), cursor.u64(f"tensor {shown(name)}")
    if type_id not in GGML_TYPES:
        removed = REMOVED_GGML_TYPES.get(type_id)
        why = f"{removed}, which llama.cpp no longer reads" if removed else f"unknown type {type_id}"
        raise cursor.fault(f"tensor {shown(name)} has {why}")
    dtype, block, block_bytes = GGML_TYPES[type_id]
    row = extents[0] if extents else 1
    if row % block:
        raise cursor.fault(
            f"tensor {shown(name)}: {dtype} stores blocks of {block}; a row of {row:,} is not a multiple"
        )
    elements = 1
    for extent in extents:
        elements *= extent
    if max(extents, default=1) > _LARGEST or elements > _LARGEST:
        raise cursor.fault(f"tensor {shown(name)} of {shown(extents)} is larger than any file")
    if offset % alignment:
        raise cursor.fault(f"tensor {shown(name)}: offset {offset:,} is not a multiple of {alignment}")
    shape = tuple(reversed(extents))
    nbytes = elements // block * block_bytes
    return _Placed(tensor=TensorInfo(name=name, dtype=dtype, shape=shape, nbytes=nbytes), offset=offset)


def _check_placement(placed: list[_Placed], alignment: int, data_bytes: int, name: str) -> None:
    """Check that tensors do not overlap, leave only padding between them, and end inside the file."""
    at = 0
    for item in sorted(placed, key=lambda one: (one.offset, one.tensor.nbytes)):
        gap = item.offset - at
        if not 0 <= gap < alignment:
            what = "overlaps the tensor before it by" if gap < 0 else "leaves a hole before it of"
            raise ModelFileError(f"{shown(name)}: tensor {shown(item.tensor.name)} {what} {abs(gap):,} bytes")
        at = item.offset + item.tensor.nbytes
    if placed and at > data_bytes:
        raise ModelFileError(
            f"{shown(name)} is truncated: its tensors need {at:,} bytes of data, "
            f"{at - data_bytes:,} bytes are missing"
        )


def _refuse_repeats(tensors: tuple[TensorInfo, ...]) -> None:
    seen: set[str] = set()
    for tensor in tensors:
        if tensor.name in seen:
            raise ModelFileError(f"tensor {shown(tensor.name)} is listed twice")
        seen.add(tensor.name)


def _check_split(checkpoint: Checkpoint, number: int, count: int) -> None:
    """Compare what a part says of itself with its file name."""
    name = os.path.basename(checkpoint.path)
    stated = checkpoint.metadata.get(_SPLIT_COUNT, 1 if count == 1 else None)
    if stated != count and not (stated == 0 and count == 1):
        hint = "; a part must keep its name -k-of-n" if part_number(name, SUFFIX) is None else ""
        raise ModelFileError(f"{shown(name)} has {_SPLIT_COUNT} {shown(stated)}, expected {count}{hint}")
    if count > 1 and checkpoint.metadata.get(_SPLIT_NUMBER) != number:
        given = shown(checkpoint.metadata.get(_SPLIT_NUMBER))
        raise ModelFileError(f"{shown(name)} has {_SPLIT_NUMBER} {given}, expected {number}")


def _choose(folder: str) -> str:
    """Pick the only model in a directory; projectors of vision models (``mmproj-*``) are not models."""
    names = [name for name in list_directory(folder) if name.endswith(SUFFIX)]
    names = [name for name in names if "mmproj" not in name.lower()]
    heads = {all_parts(os.path.join(folder, name), SUFFIX)[0] for name in names}
    if len(heads) == 1:
        return heads.pop()
    if heads:
        raise ModelFileError(
            f"{shown(folder, limit=200)} holds several models: {name_some(names)}; name the file"
        )
    raise ModelFileError(f"{shown(folder, limit=200)} holds no *{SUFFIX} file")
