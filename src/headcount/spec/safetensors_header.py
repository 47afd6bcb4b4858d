"""Read safetensors headers: every tensor's name, type, shape and bytes, without touching the weights.

    file = u64 n (little endian) | n bytes of JSON | data
    JSON = {"name": {"dtype": "BF16", "shape": [4096, 4096], "data_offsets": [begin, end]}, ...}
    end - begin = prod(shape) x bits(dtype) / 8, and the tensors cover the data from 0 to the end of the file

Format: https://github.com/huggingface/safetensors (README, "Format"); type widths as in its 0.8.0 release.
A sharded model is ``*.safetensors.index.json`` (``weight_map``: tensor -> shard file) and its shards.
"""

from __future__ import annotations

import json
import os

from headcount.errors import ModelFileError
from headcount.spec.checkpoint import (
    Checkpoint,
    TensorInfo,
    all_parts,
    file_size,
    list_directory,
    name_some,
    read_start,
    shown,
)
from headcount.units import GIB, MB, MIB, human_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
DTYPE_BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F8_E4M3": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2": 8,
    "F8_E5M2FNUZ": 8,
    "F8_E8M0": 8,
    "U8": 8,
    "I8": 8,
    "U16": 16,
    "I16": 16,
    "F16": 16,
    "BF16": 16,
    "U32": 32,
    "I32": 32,
    "F32": 32,
    "U64": 64,
    "I64": 64,
    "F64": 64,
    "C64": 64,
}
_PREFIX_BYTES = 8
_FORMAT_HEADER_LIMIT = 100 * MB  # the format's own limit
# Our limits, far above any published shard (a few MiB), so that reading a hostile header stays cheap.
_HEADER_LIMIT = 16 * MIB
_TENSOR_LIMIT = 2**17
_INDEX_LIMIT = 128 * MIB
_INDEX_TENSOR_LIMIT = 2**20
_SHARD_LIMIT = 2**14
_SIZE_LIMIT = 2**63


def read_safetensors(path: str) -> Checkpoint:
    """Read the header of every file of a safetensors model.

    ``path`` is a ``*.safetensors`` file (one part ``-k-of-n`` stands for the whole set), a
    ``*.safetensors.index.json``, or a directory that holds either (the index is preferred). Raises
    ModelFileError, naming the file, when anything is missing, damaged, truncated or contradicts itself.
    """
    if os.path.isdir(path):
        chosen = _choose(path)
        return read_safetensors(chosen).replace(path=path)
    if path.endswith(".json"):
        return _read_indexed(path)
    parts = all_parts(path, SUFFIX)
    shards = [_read_file(part) for part in parts]
    return shards[0] if len(shards) == 1 else _joined(path, shards)


def header_bytes(prefix: bytes, file_bytes: int, path: str) -> int:
    """Return how many leading bytes of the file hold length and header: ``8 + n``.

    ``prefix`` holds at least the first 8 bytes. Raises ModelFileError when n is beyond the file or any
    honest header.
    """
    name = os.path.basename(path)
    if file_bytes < _PREFIX_BYTES or len(prefix) < _PREFIX_BYTES:
        raise ModelFileError(f"{shown(name)} has {file_bytes:,} bytes: too short for a safetensors header")
    length = int.from_bytes(prefix[:_PREFIX_BYTES], "little")
    if length > _FORMAT_HEADER_LIMIT:
        raise ModelFileError(
            f"{shown(name)}: header length {length:,} is beyond the 100 MB a safetensors header may have; "
            "is it a safetensors file?"
        )
    if length > file_bytes - _PREFIX_BYTES:
        raise ModelFileError(
            f"{shown(name)} is truncated: its header needs {length:,} bytes, "
            f"{length + _PREFIX_BYTES - file_bytes:,} more than the file has"
        )
    if length > _HEADER_LIMIT:
        raise ModelFileError(
            f"{shown(name)}: header of {human_bytes(length)}; at most {human_bytes(_HEADER_LIMIT)} are read"
        )
    return _PREFIX_BYTES + length


def parse_header(raw: bytes, file_bytes: int, path: str) -> Checkpoint:
    """Parse the leading bytes of one safetensors file of ``file_bytes`` bytes.

    ``raw`` holds at least ``header_bytes(...)`` bytes (a range request is enough); ``path`` names the file in
    errors. Raises ModelFileError when a check of the format fails.
    """
    name = os.path.basename(path)
    end = header_bytes(raw, file_bytes, path)
    if len(raw) < end:
        raise ModelFileError(f"{shown(name)}: {len(raw):,} bytes given, the header needs {end:,}")
    entries = _load_json(raw[_PREFIX_BYTES:end], name, tensor_limit=_TENSOR_LIMIT, object_limit=2)
    metadata = _text_values(entries.pop("__metadata__", {}), name)
    spans = sorted((_entry(key, value, name) for key, value in entries.items()), key=lambda item: item[:2])
    _check_cover([(begin, stop, tensor.name) for begin, stop, tensor in spans], file_bytes - end, name)
    return Checkpoint(
        path=path,
        file_format="safetensors",
        tensors=tuple(tensor for _, _, tensor in spans),
        metadata=metadata,
        files=(path,),
    )


class _Entry(tuple[object, object, object]):
    """``(dtype, shape, data_offsets)`` of one tensor, unchecked; a third of the memory of the dict it was."""

    __slots__ = ()


def _load_json(raw: bytes, name: str, *, tensor_limit: int, object_limit: int) -> dict[str, Any]:
    """Parse a header or index object; duplicates, depth and size are bounded before objects are built."""
    if raw[:1] != b"{":
        raise ModelFileError(f"{shown(name)}: the header does not begin with '{{'")
    # A tensor takes about six commas and three brackets; anything denser is not a list of tensors.
    if raw.count(b",") + raw.count(b"[") + raw.count(b"{") > 12 * tensor_limit:
        raise ModelFileError(f"{shown(name)}: the header lists more than {tensor_limit:,} tensors")
    others = 0

    def pairs(items: list[tuple[str, Any]]) -> object:
        nonlocal others
        found = dict(items)
        if len(found) != len(items):
            keys = sorted(key for key, _ in items)
            twice = next(key for i, key in enumerate(keys) if key == keys[i + 1])
            raise ModelFileError(f"{shown(name)}: {shown(twice)} is listed twice")
        if "dtype" in found and "shape" in found and "data_offsets" in found:
            return _Entry((found["dtype"], found["shape"], found["data_offsets"]))
        others += 1
        if others > object_limit:
            raise ModelFileError(f"{shown(name)}: an entry lacks dtype, shape or data_offsets")
        return found

    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=pairs)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{shown(name)}: the header is not JSON: {shown(str(error))}") from None
    if not isinstance(value, dict):
        raise ModelFileError(f"{shown(name)}: the header is not an object of tensors")
    return value


def _text_values(metadata: object, name: str) -> dict[str, Any]:
    """Check ``__metadata__``: text keys with text values."""
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ModelFileError(f"{shown(name)}: __metadata__ must map text to text")
    return metadata


def _whole(value: object) -> bool:
    return type(value) is int and 0 <= value < _SIZE_LIMIT


def _fault(name: str, tensor: str, problem: str) -> ModelFileError:
    return ModelFileError(f"{shown(name)}: tensor {shown(tensor)} {problem}")


def _entry(key: str, value: object, name: str) -> tuple[int, int, TensorInfo]:
    """Check one tensor on its own; return ``(begin, end, tensor)``."""
    if not isinstance(value, _Entry):
        raise _fault(name, key, "lacks dtype, shape or data_offsets")
    if not key.isascii() and key.encode("utf-8", "replace").decode() != key:
        raise _fault(name, key, "has a name that is not valid text")
    dtype, shape, offsets = value
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise _fault(name, key, f"has unknown dtype {shown(dtype)}; known: {', '.join(DTYPE_BITS)}")
    if not isinstance(shape, list) or not all(map(_whole, shape)):
        raise _fault(name, key, f"needs a shape of whole numbers from 0; given {shown(shape)}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_whole, offsets)):
        raise _fault(name, key, f"needs two whole data_offsets; given {shown(offsets)}")
    begin, stop = offsets
    if stop < begin:
        raise _fault(name, key, f"ends before it begins: data_offsets {begin:,} to {stop:,}")
    size_bits = _elements(shape) * DTYPE_BITS[dtype]
    if size_bits != 8 * (stop - begin):
        needed = f"{size_bits / 8:,.1f}" if size_bits % 8 else f"{size_bits // 8:,}"
        raise _fault(
            name,
            key,
            f"of {dtype} {shown(shape)} takes {needed} bytes, its data_offsets span {stop - begin:,}",
        )
    return begin, stop, TensorInfo(name=key, dtype=dtype, shape=tuple(shape), nbytes=stop - begin)


def _elements(shape: list[int]) -> int:
    """Product of extents, cut off beyond any file: a hostile shape must not grow numbers without end."""
    if 0 in shape:
        return 0
    count = 1
    for extent in shape:
        count *= extent
        if count >= _SIZE_LIMIT:
            return _SIZE_LIMIT
    return count


def _check_cover(spans: list[tuple[int, int, str]], data_bytes: int, name: str) -> None:
    """Check that the sorted spans cover ``0..data_bytes``: no overlap, hole, remainder or missing end."""
    at = 0
    for begin, stop, tensor in spans:
        if begin != at:
            what = "overlaps the tensor before it by" if begin < at else "leaves a hole before it of"
            raise ModelFileError(f"{shown(name)}: tensor {shown(tensor)} {what} {abs(begin - at):,} bytes")
        at = stop
    if at > data_bytes:
        raise ModelFileError(
            f"{shown(name)} is truncated: its tensors need {at:,} bytes of data, "
            f"{at - data_bytes:,} bytes are missing"
        )
    if at < data_bytes:
        raise ModelFileError(f"{shown(name)}: {data_bytes - at:,} bytes after the last tensor belong to none")


def _read_file(path: str) -> Checkpoint:
    """Read the header of one file."""
    size = file_size(path)
    end = header_bytes(read_start(path, _PREFIX_BYTES), size, path)
    return parse_header(read_start(path, end), size, path)


def _joined(path: str, shards: list[Checkpoint], metadata: dict[str, Any] | None = None) -> Checkpoint:
    """One checkpoint of several shards; a tensor in two of them is refused."""
    owner: dict[str, str] = {}
    for shard in shards:
        for tensor in shard.tensors:
            if tensor.name in owner:
                raise ModelFileError(
                    f"tensor {shown(tensor.name)} is stored twice: in {shown(owner[tensor.name])} and "
                    f"{shown(os.path.basename(shard.path))}"
                )
            owner[tensor.name] = os.path.basename(shard.path)
    return Checkpoint(
        path=path,
        file_format="safetensors",
        tensors=tuple(tensor for shard in shards for tensor in shard.tensors),
        metadata={**shards[0].metadata, **(metadata or {})},
        files=tuple(shard.path for shard in shards),
    )


def parse_index(raw: bytes, path: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Parse a ``*.safetensors.index.json``: return ``(weight_map, metadata)``.

    Raises ModelFileError when it is not one, or when a shard's path leaves the directory of the index.
    """
    name = os.path.basename(path)
    index = _load_json(raw.lstrip(), name, tensor_limit=_INDEX_TENSOR_LIMIT, object_limit=16)
    weight_map, metadata = index.get("weight_map"), index.get("metadata", {})
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFileError(f"{shown(name)} has no weight_map")
    if not isinstance(metadata, dict):
        raise ModelFileError(f"{shown(name)}: metadata must be an object")
    for shard in {value if isinstance(value, str) else None for value in weight_map.values()}:
        if shard is None or not _stays_inside(shard):
            raise ModelFileError(
                f"{shown(name)}: {shown(shard)} is not a .safetensors file beside the index; "
                "a shard may not leave the directory"
            )
    return weight_map, metadata


def _stays_inside(shard: str) -> bool:
    if not shard.endswith(SUFFIX) or not shard.isprintable():
        return False
    steps = shard.replace("\\", "/").split("/")
    return ":" not in shard and not any(step in ("", ".", "..") for step in steps)


def _read_indexed(path: str) -> Checkpoint:
    """Read every shard that an index names and compare what they hold with what the index says."""
    name = os.path.basename(path)
    size = file_size(path)
    if size > _INDEX_LIMIT:
        raise ModelFileError(f"{shown(name)} has {size / GIB:,.2f} GiB; an index has at most 0.125")
    weight_map, metadata = parse_index(read_start(path, size), path)
    shard_names = list(dict.fromkeys(weight_map.values()))
    if len(shard_names) > _SHARD_LIMIT:
        raise ModelFileError(
            f"{shown(name)} names {len(shard_names):,} shards; at most {_SHARD_LIMIT:,} are read"
        )
    folder = os.path.dirname(path)
    missing = [shard for shard in shard_names if not os.path.exists(os.path.join(folder, shard))]
    if missing:
        raise ModelFileError(f"{len(missing)} of {len(shard_names)} shards are missing: {name_some(missing)}")
    shards = [_read_file(os.path.join(folder, shard)) for shard in shard_names]
    for shard_name, shard in zip(shard_names, shards, strict=True):
        extra = [tensor.name for tensor in shard.tensors if weight_map.get(tensor.name) != shard_name]
        if extra:
            raise ModelFileError(
                f"{shown(shard_name)} holds tensors the index does not place there: {name_some(extra)}"
            )
    joined = _joined(path, shards, {key: metadata[key] for key in ("total_size",) if key in metadata})
    absent = sorted(set(weight_map) - {tensor.name for tensor in joined.tensors})
    if absent:
        raise ModelFileError(f"{shown(name)} lists tensors that no shard holds: {name_some(absent)}")
    return joined


def _choose(folder: str) -> str:
    """Pick the model in a directory: the index, else ``model.safetensors``, else the only file or set."""
    names = list_directory(folder)
    for suffix in (INDEX_SUFFIX, SUFFIX):
        found = [name for name in names if name.endswith(suffix)]
        if "model" + suffix in found:
            return os.path.join(folder, "model" + suffix)
        heads = {all_parts(os.path.join(folder, name), SUFFIX)[0] for name in found}
        if len(heads) == 1:
            return heads.pop()
        if heads:
            raise ModelFileError(
                f"{shown(folder, limit=200)} holds several models: {name_some(found)}; name the file"
            )
    raise ModelFileError(f"{shown(folder, limit=200)} holds no *{SUFFIX} file and no *{INDEX_SUFFIX}")
