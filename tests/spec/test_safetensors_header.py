"""The safetensors reader on files put together byte by byte; every expected number is written by hand."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from headcount.errors import ModelFileError
from headcount.spec.checkpoint import Checkpoint, TensorInfo
from headcount.spec.safetensors_header import DTYPE_BITS, header_bytes, parse_header, read_safetensors


def safetensors(header: object, data: int = 0) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + b"\0" * data


def entry(dtype: Any, shape: Any, begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def read(folder: Path, raw: bytes, name: str = "model.safetensors") -> Checkpoint:
    path = folder / name
    path.write_bytes(raw)
    return read_safetensors(str(path))


def refused(folder: Path, raw: bytes) -> str:
    with pytest.raises(ModelFileError) as caught:
        read(folder, raw)
    return str(caught.value)


def test_a_small_file(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "b": entry("F32", [3], 24, 36),
        "a": entry("BF16", [4, 3], 0, 24),
    }
    checkpoint = read(tmp_path, safetensors(header, 36))
    assert checkpoint.file_format == "safetensors"
    assert checkpoint.tensors == (
        TensorInfo(name="a", dtype="BF16", shape=(4, 3), nbytes=24),
        TensorInfo(name="b", dtype="F32", shape=(3,), nbytes=12),
    )
    assert checkpoint.metadata == {"format": "pt"}
    assert checkpoint.total_bytes == 36
    assert checkpoint.bytes_by_dtype() == {"BF16": 24, "F32": 12}
    assert checkpoint.files == (str(tmp_path / "model.safetensors"),)
    assert [tensor.elements for tensor in checkpoint.tensors] == [12, 3]


# Bytes of eight values, from the names: the number in a type's name is its width in bits.
BYTES_OF_EIGHT = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    **dict.fromkeys(
        ("BOOL", "U8", "I8", "F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2", "F8_E5M2FNUZ", "F8_E8M0"),
        8,
    ),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}


@pytest.mark.parametrize("dtype", sorted(BYTES_OF_EIGHT))
def test_bytes_of_every_type(tmp_path: Path, dtype: str) -> None:
    nbytes = BYTES_OF_EIGHT[dtype]
    assert read(tmp_path, safetensors({"t": entry(dtype, [2, 4], 0, nbytes)}, nbytes)).total_bytes == nbytes


def test_the_table_has_no_other_types() -> None:
    assert set(DTYPE_BITS) == set(BYTES_OF_EIGHT)


def test_scalars_and_empty_tensors(tmp_path: Path) -> None:
    header = {
        "empty": entry("F32", [0, 7], 2, 2),
        "scalar": entry("F16", [], 0, 2),
        "next": entry("U8", [1], 2, 3),
    }
    checkpoint = read(tmp_path, safetensors(header, 3))
    assert {tensor.name: (tensor.shape, tensor.nbytes) for tensor in checkpoint.tensors} == {
        "scalar": ((), 2),
        "empty": ((0, 7), 0),
        "next": ((1,), 1),
    }


def test_a_file_without_tensors(tmp_path: Path) -> None:
    assert read(tmp_path, safetensors({})).tensors == ()
    assert read(tmp_path, safetensors(b"{}      ")).tensors == ()  # padded to a multiple of eight


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "0 bytes: too short"),
        (b"\0" * 7, "7 bytes: too short"),
        (b"\0" * 8, "does not begin with"),
        (struct.pack("<Q", 2**63) + b"{}", "beyond the 100 MB"),
        (struct.pack("<Q", 100_000_001) + b"{}", "beyond the 100 MB"),
        (struct.pack("<Q", 100_000_000) + b"{}", "99,999,998 more than the file has"),
        (struct.pack("<Q", 3) + b"{}", "truncated: its header needs 3 bytes, 1 more than the file has"),
        (b"PK\x03\x04\x14\x00\x00\x08" + b"\0" * 99, "is it a safetensors file?"),
        (safetensors(b" {}"), "does not begin with"),
        (safetensors(b"[]"), "does not begin with"),
        (safetensors(b"{"), "is not JSON"),
        (safetensors(b"{}x"), "is not JSON"),
        (safetensors(b'{"a": \xff}'), "is not JSON"),
        (safetensors('{"a": 1}'.encode("utf-16")), "does not begin with"),
        (safetensors(b'{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}"), "is not JSON"),
        (safetensors(b'{"a":' + b"1" * 5000 + b"}"), "is not JSON"),
        (safetensors({"a": 1}), "'a' lacks dtype, shape or data_offsets"),
        (safetensors({"a": {"dtype": "F32", "shape": [1]}}, 4), "'a' lacks dtype, shape or data_offsets"),
        (safetensors({"a": {}, "b": {}, "c": {}}), "lacks dtype, shape or data_offsets"),
        (safetensors({"__metadata__": {"a": 1}}), "text to text"),
        (safetensors({"__metadata__": ["a"]}), "text to text"),
        (safetensors({"__metadata__": entry("F32", [1], 0, 4)}, 4), "text to text"),
        (
            safetensors(b'{"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]},"a":1}', 1),
            "'a' is listed twice",
        ),
        (
            safetensors(b'{"a":{"dtype":"U8","dtype":"U8","shape":[],"data_offsets":[0,1]}}', 1),
            "listed twice",
        ),
        (safetensors(b'{"\\ud800":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}', 1), "not valid text"),
        (safetensors({"a": entry("F33", [1], 0, 4)}, 4), "unknown dtype 'F33'"),
        (safetensors({"a": entry(["F32"], [1], 0, 4)}, 4), "unknown dtype"),
        (safetensors({"a": entry("F32", [1.0], 0, 4)}, 4), "shape of whole numbers"),
        (safetensors({"a": entry("F32", [True], 0, 4)}, 4), "shape of whole numbers"),
        (safetensors({"a": entry("F32", [-1, -1], 0, 4)}, 4), "shape of whole numbers"),
        (safetensors({"a": entry("F32", 1, 0, 4)}, 4), "shape of whole numbers"),
        (safetensors({"a": entry("F32", "1", 0, 4)}, 4), "shape of whole numbers"),
        (safetensors({"a": entry("F32", [2**63], 0, 4)}, 4), "shape of whole numbers"),
        (safetensors({"a": entry("F32", [2**62] * 2000, 0, 4)}, 4), "data_offsets span 4"),
        (safetensors({"a": entry("F32", [1], 0.0, 4)}, 4), "two whole data_offsets"),
        (safetensors({"a": entry("F32", [1], False, 4)}, 4), "two whole data_offsets"),
        (safetensors({"a": entry("F32", [1], -4, 0)}, 4), "two whole data_offsets"),
        (
            safetensors({"a": {**entry("F32", [1], 0, 4), "data_offsets": [0, 4, 8]}}, 8),
            "two whole data_offsets",
        ),
        (safetensors({"a": {**entry("F32", [1], 0, 4), "data_offsets": None}}, 8), "two whole data_offsets"),
        (safetensors({"a": entry("F32", [0], 4, 0)}, 4), "ends before it begins"),
        (safetensors({"a": entry("F32", [2], 0, 4)}, 4), "takes 8 bytes, its data_offsets span 4"),
        (safetensors({"a": entry("F4", [3], 0, 2)}, 2), "takes 1.5 bytes, its data_offsets span 2"),
        (
            safetensors({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 2, 6)}, 6),
            "'b' overlaps the tensor",
        ),
        (safetensors({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 0, 4)}, 4), "overlaps the tensor"),
        (
            safetensors({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 6, 10)}, 10),
            "a hole before it of 2 bytes",
        ),
        (safetensors({"a": entry("U8", [4], 1, 5)}, 5), "a hole before it of 1 bytes"),
        (
            safetensors({"a": entry("U8", [9], 0, 9)}, 4),
            "its tensors need 9 bytes of data, 5 bytes are missing",
        ),
        (safetensors({"a": entry("U8", [4], 0, 4)}, 9), "5 bytes after the last tensor belong to none"),
    ],
)
def test_lies_are_refused(tmp_path: Path, raw: bytes, message: str) -> None:
    assert message in refused(tmp_path, raw)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    whole = safetensors({"a": entry("F32", [2, 2], 0, 16), "b": entry("U8", [3], 16, 19)}, 19)
    for end in range(len(whole)):
        assert refused(tmp_path, whole[:end])
    assert read(tmp_path, whole).total_bytes == 19


def test_dense_headers_are_refused_before_they_are_parsed(tmp_path: Path) -> None:
    numbers = b'{"a":[' + b"1," * 2_000_000 + b"1]}"
    assert "more than 131,072 tensors" in refused(tmp_path, safetensors(numbers))


def test_messages_escape_what_the_file_says(tmp_path: Path) -> None:
    message = refused(tmp_path, safetensors({"a\x1b[31m\n": entry("F33", [1], 0, 4)}, 4))
    assert "\x1b" not in message
    assert r"'a\x1b[31m\n'" in message


def test_a_header_fetched_by_range() -> None:
    whole = safetensors({"a": entry("F32", [2], 0, 8)}, 8)
    end = header_bytes(whole[:8], len(whole), "hub.safetensors")
    assert end == len(whole) - 8
    assert parse_header(whole[:end], len(whole), "hub.safetensors").total_bytes == 8
    assert parse_header(whole, len(whole), "hub.safetensors").total_bytes == 8
    with pytest.raises(ModelFileError, match="the header needs"):
        parse_header(whole[: end - 1], len(whole), "hub.safetensors")


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="No such file"):
        read_safetensors(str(tmp_path / "absent.safetensors"))
    with pytest.raises(ModelFileError, match="cannot read"):
        read_safetensors("nul\0.safetensors")
    with pytest.raises(ModelFileError, match="not a regular file"):
        read_safetensors(os.devnull)


# Several files


def shard(name: str, nbytes: int = 4) -> bytes:
    return safetensors({name: entry("U8", [nbytes], 0, nbytes)}, nbytes)


def write_shards(folder: Path, tensors: list[str]) -> list[str]:
    names = [f"model-{i + 1:05d}-of-{len(tensors):05d}.safetensors" for i in range(len(tensors))]
    for name, tensor in zip(names, tensors, strict=True):
        (folder / name).write_bytes(shard(tensor))
    return names


def write_index(folder: Path, index: object) -> str:
    path = folder / "model.safetensors.index.json"
    path.write_text(index if isinstance(index, str) else json.dumps(index), encoding="utf-8")
    return str(path)


def test_an_index_or_its_folder(tmp_path: Path) -> None:
    first, second = write_shards(tmp_path, ["a", "b"])
    path = write_index(tmp_path, {"metadata": {"total_size": 8}, "weight_map": {"a": first, "b": second}})
    for given in (path, str(tmp_path)):
        checkpoint = read_safetensors(given)
        assert [tensor.name for tensor in checkpoint.tensors] == ["a", "b"]
        assert checkpoint.total_bytes == 8
        assert checkpoint.metadata == {"total_size": 8}
        assert checkpoint.files == (str(tmp_path / first), str(tmp_path / second))
        assert checkpoint.path == given


def test_the_index_is_preferred(tmp_path: Path) -> None:
    (tmp_path / "consolidated.safetensors").write_bytes(shard("other", 99))
    first, second = write_shards(tmp_path, ["a", "b"])
    write_index(tmp_path, {"weight_map": {"a": first, "b": second}})
    assert read_safetensors(str(tmp_path)).total_bytes == 8


def test_shards_without_an_index(tmp_path: Path) -> None:
    names = write_shards(tmp_path, ["a", "b", "c"])
    for given in (str(tmp_path), str(tmp_path / names[1])):  # one part stands for the set
        assert [tensor.name for tensor in read_safetensors(given).tensors] == ["a", "b", "c"]
    (tmp_path / names[2]).unlink()
    for given in (str(tmp_path), str(tmp_path / names[0])):
        with pytest.raises(ModelFileError, match=r"1 of 3 parts are missing: 'model-00003-of-00003"):
            read_safetensors(given)


def test_shard_numbers_of_two_widths(tmp_path: Path) -> None:
    # DeepSeek-V3 writes five digits before and six after.
    for i in (1, 2):
        (tmp_path / f"model-0000{i}-of-000002.safetensors").write_bytes(shard(f"t{i}"))
    assert read_safetensors(str(tmp_path)).total_bytes == 8


def test_folders(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"holds no \*\.safetensors"):
        read_safetensors(str(tmp_path))
    (tmp_path / "one.safetensors").write_bytes(shard("a"))
    assert read_safetensors(str(tmp_path)).total_bytes == 4
    (tmp_path / "two.safetensors").write_bytes(shard("b"))
    with pytest.raises(ModelFileError, match="several models"):
        read_safetensors(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(shard("c", 7))
    assert read_safetensors(str(tmp_path)).total_bytes == 7


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    write_shards(tmp_path, ["a", "a"])
    with pytest.raises(ModelFileError, match="'a' is stored twice"):
        read_safetensors(str(tmp_path))


ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("", "does not begin with"),
        ("[]", "does not begin with"),
        ("{}", "no weight_map"),
        ({"weight_map": {}}, "no weight_map"),
        ({"weight_map": [ONE]}, "no weight_map"),
        ({"weight_map": {"a": ONE}, "metadata": 1}, "metadata must be an object"),
        ({"weight_map": {"a": 1}}, "not a .safetensors file"),
        ({"weight_map": {"a": ONE, "b": "absent.safetensors"}}, "1 of 2 shards are missing"),
        ({"weight_map": {"a": ONE}, "metadata": {}}, None),
        ({"weight_map": {"a": ONE, "b": ONE}}, "lists tensors that no shard holds: 'b'"),
        ({"weight_map": {"a": TWO, "b": ONE}}, "does not place there: 'b'"),
        ({"weight_map": {"b": TWO, "c": TWO}}, "lists tensors that no shard holds: 'c'"),
        ('{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}', "'a' is listed twice"),
    ],
)
def test_index_and_shards_must_agree(tmp_path: Path, index: object, message: str | None) -> None:
    write_shards(tmp_path, ["a", "b"])
    path = write_index(tmp_path, index)
    if message is None:
        assert read_safetensors(path).total_bytes == 4
        return
    with pytest.raises(ModelFileError) as caught:
        read_safetensors(path)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "shard_name",
    [
        "../secret.safetensors",
        "/etc/secret.safetensors",
        "a/../../secret.safetensors",
        "..\\secret.safetensors",
        "C:\\secret.safetensors",
        "./model.safetensors",
        "a//b.safetensors",
        "nul\0.safetensors",
        "model.bin",
        "",
    ],
)
def test_an_index_may_not_leave_its_folder(tmp_path: Path, shard_name: str) -> None:
    (tmp_path / "secret.safetensors").write_bytes(shard("a"))
    folder = tmp_path / "model"
    folder.mkdir()
    with pytest.raises(ModelFileError, match="may not leave the directory"):
        read_safetensors(write_index(folder, {"weight_map": {"a": shard_name}}))


@pytest.mark.reference
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8", "bool", "complex64"])
def test_files_of_the_library(tmp_path: Path, dtype: str) -> None:
    numpy = pytest.importorskip("numpy")
    library = pytest.importorskip("safetensors.numpy")
    arrays = {"a": numpy.zeros((3, 5), dtype), "b.c": numpy.zeros((), dtype), "d": numpy.zeros((0, 2), dtype)}
    path = str(tmp_path / "model.safetensors")
    library.save_file(arrays, path, metadata={"format": "np"})
    checkpoint = read_safetensors(path)
    assert {tensor.name: (tensor.shape, tensor.nbytes) for tensor in checkpoint.tensors} == {
        name: (array.shape, array.nbytes) for name, array in arrays.items()
    }
    assert checkpoint.metadata == {"format": "np"}


@pytest.mark.reference
@pytest.mark.parametrize("dtype", sorted(BYTES_OF_EIGHT))
def test_the_library_accepts_the_same_sizes(dtype: str) -> None:
    library = pytest.importorskip("safetensors")
    nbytes = BYTES_OF_EIGHT[dtype]
    assert library.deserialize(safetensors({"t": entry(dtype, [8], 0, nbytes)}, nbytes))[0][1]["shape"] == [8]
    with pytest.raises(library.SafetensorError):
        library.deserialize(safetensors({"t": entry(dtype, [8], 0, nbytes + 1)}, nbytes + 1))
