"""Hostile files: whatever the bytes, a reader returns or raises HeadcountError, soon and in bounded memory."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headcount.errors import HeadcountError
from headcount.spec.checkpoint import Checkpoint, TensorInfo
from headcount.spec.gguf_architectures import gguf_config, supported_architectures
from headcount.spec.gguf_header import read_gguf
from headcount.spec.safetensors_header import parse_header, parse_index, read_safetensors

pytestmark = pytest.mark.slow
MEMORY_LIMIT = 200 * 2**20
FUZZ = settings(max_examples=5000, deadline=None, suppress_health_check=list(HealthCheck))


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def small_gguf() -> bytes:
    """A valid Llama of one layer, 8 wide, with 4 tokens: every part of the format is in it."""
    numbers = {
        b"llama.block_count": 1,
        b"llama.context_length": 16,
        b"llama.embedding_length": 8,
        b"llama.attention.head_count": 2,
        b"general.alignment": 32,
    }
    pairs = [text(b"general.architecture") + struct.pack("<I", 8) + text(b"llama")]
    pairs += [text(key) + struct.pack("<II", 4, value) for key, value in numbers.items()]
    pairs += [
        text(b"llama.attention.head_count_kv") + struct.pack("<IIQi", 9, 5, 1, 2),
        text(b"tokenizer.ggml.tokens")
        + struct.pack("<IIQ", 9, 8, 4)
        + b"".join(map(text, (b"a", b"b", b"c", b""))),
        text(b"nested") + struct.pack("<IIQIQ", 9, 9, 1, 7, 1) + b"\x01",
        text(b"double") + struct.pack("<Id", 12, 0.5),
    ]
    shapes = {b"token_embd.weight": (8, 4), b"output_norm.weight": (8,)}
    for name in (b"attn_norm", b"ffn_norm"):
        shapes[b"blk.0." + name + b".weight"] = (8,)
    for name in (b"attn_q", b"attn_k", b"attn_v", b"attn_output", b"ffn_gate", b"ffn_up", b"ffn_down"):
        shapes[b"blk.0." + name + b".weight"] = (8, 8)
    infos, offset = [], 0
    for key, extents in shapes.items():
        count = len(extents)
        infos.append(text(key) + struct.pack(f"<I{count}QIQ", count, *extents, 0, offset))
        size = 4
        for extent in extents:
            size *= extent
        offset += -(-size // 32) * 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(pairs)) + b"".join(pairs) + b"".join(infos)
    return head + b"\0" * (-len(head) % 32 + offset)


def small_safetensors() -> bytes:
    header = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "BF16", "shape": [4, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "F4", "shape": [2], "data_offsets": [24, 25]},
        "c": {"dtype": "F64", "shape": [], "data_offsets": [25, 33]},
    }
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + b"\0" * 33


GGUF, SAFETENSORS = small_gguf(), small_safetensors()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "file"


def survives_gguf(path: Path, raw: bytes) -> bool:
    """Read, and translate when it can be read; True when both worked."""
    target = path.with_suffix(".gguf")
    target.write_bytes(raw)
    try:
        gguf_config(read_gguf(str(target)))
    except HeadcountError as error:
        assert "\n" not in str(error)
        return False
    return True


def survives_safetensors(raw: bytes) -> bool:
    try:
        parse_header(raw, len(raw), "fuzz.safetensors")
    except HeadcountError as error:
        assert "\n" not in str(error)
        return False
    return True


def test_the_seeds_are_valid(file: Path) -> None:
    assert survives_gguf(file, GGUF)
    assert survives_safetensors(SAFETENSORS)


def test_every_truncation(file: Path) -> None:
    assert not any(survives_gguf(file, GGUF[:end]) for end in range(len(GGUF)))
    assert not any(survives_safetensors(SAFETENSORS[:end]) for end in range(len(SAFETENSORS)))


@pytest.mark.parametrize("value", [0, 1, 0x7F, 0x80, 0xFF])
def test_every_byte_replaced(file: Path, value: int) -> None:
    for seed, survives in ((GGUF, lambda raw: survives_gguf(file, raw)), (SAFETENSORS, survives_safetensors)):
        for at in range(len(seed)):
            survives(seed[:at] + bytes([value]) + seed[at + 1 :])


@pytest.mark.parametrize("number", [0, 2**31, 2**32 - 1, 2**60, 2**63 - 1, 2**63, 2**64 - 1])
def test_every_eight_bytes_replaced_by_a_length(file: Path, number: int) -> None:
    for at in range(len(GGUF) - 8):
        survives_gguf(file, GGUF[:at] + struct.pack("<Q", number) + GGUF[at + 8 :])
    for at in range(len(SAFETENSORS) - 8):
        survives_safetensors(SAFETENSORS[:at] + struct.pack("<Q", number) + SAFETENSORS[at + 8 :])


@FUZZ
@given(raw=st.binary(max_size=300))
def test_random_bytes(file: Path, raw: bytes) -> None:
    survives_gguf(file, raw)
    survives_gguf(file, b"GGUF\x03\0\0\0" + raw)
    survives_safetensors(raw)
    survives_safetensors(struct.pack("<Q", len(raw)) + raw)


EDITS = st.lists(
    st.tuples(st.integers(0, 10**6), st.integers(0, 12), st.binary(max_size=12)), min_size=1, max_size=6
)


def edited(seed: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    """Replace some bytes, at places taken modulo the length, by others (shorter, longer or none)."""
    for place, count, new in edits:
        at = place % (len(seed) + 1)
        seed = seed[:at] + new + seed[at + count :]
    return seed


@FUZZ
@given(edits=EDITS)
def test_mutated_gguf(file: Path, edits: list[tuple[int, int, bytes]]) -> None:
    survives_gguf(file, edited(GGUF, edits))


@FUZZ
@given(edits=EDITS)
def test_mutated_safetensors(edits: list[tuple[int, int, bytes]]) -> None:
    raw = edited(SAFETENSORS, edits)
    survives_safetensors(raw)
    body = raw[8:]
    survives_safetensors(struct.pack("<Q", min(len(body), 200)) + body)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["F32", "U8"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["dtype", "shape", "data_offsets", "__metadata__", "weight_map", "metadata", "a"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@FUZZ
@given(value=st.dictionaries(st.text(max_size=4) | st.just("weight_map"), JSON, max_size=4))
def test_any_json_object(value: dict[str, Any]) -> None:
    raw = json.dumps(value).encode()
    survives_safetensors(struct.pack("<Q", len(raw)) + raw + b"\0" * 16)
    try:
        parse_index(raw, "model.safetensors.index.json")
    except HeadcountError as error:
        assert "\n" not in str(error)


SCALARS = st.integers(-2, 70) | st.integers() | st.floats() | st.booleans() | st.text(max_size=5) | st.none()
KEYS = [
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.shared_kv_layers",
    "attention.kv_lora_rank",
    "attention.q_lora_rank",
    "attention.key_length_swa",
    "expert_count",
    "expert_used_count",
    "leading_dense_block_count",
    "nextn_predict_layers",
    "rope.dimension_count",
    "rope.freq_base",
    "ssm.conv_kernel",
    "ssm.inner_size",
    "ssm.state_size",
    "ssm.time_step_rank",
    "ssm.group_count",
    "ssm.dt_b_c_rms",
    "shortconv.l_cache",
    "altup.num_inputs",
    "embedding_length_per_layer_input",
    "decoder_block_count",
]
NAMES = [
    "attn_norm",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_output",
    "attn_qkv",
    "attn_q_norm",
    "attn_k_norm",
    "attn_kv_a_mqa",
    "attn_kv_b",
    "ffn_norm",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
    "ffn_gate_inp",
    "ffn_gate_exps",
    "ffn_up_exps",
    "ffn_down_exps",
    "ffn_down_shexp",
    "ssm_in",
    "ssm_out",
    "ssm_conv1d",
    "ssm_norm",
    "shortconv.conv",
    "laurel_l",
    "post_attention_norm",
    "ffn_down.0",
]
TENSOR_NAMES = st.sampled_from(
    ["token_embd.weight", "output.weight", "position_embd.weight", "blk.0", "dec.x"]
) | (
    st.tuples(st.integers(0, 3), st.sampled_from(NAMES), st.sampled_from(["weight", "bias"])).map(
        lambda parts: f"blk.{parts[0]}.{parts[1]}.{parts[2]}"
    )
)


@FUZZ
@given(
    architecture=st.sampled_from([*supported_architectures(), "clip", ""]),
    values=st.dictionaries(st.sampled_from(KEYS), SCALARS | st.lists(SCALARS, max_size=5).map(tuple)),
    shapes=st.dictionaries(
        TENSOR_NAMES, st.lists(st.integers(0, 2**40) | st.sampled_from([8, 16]), max_size=4)
    ),
)
def test_any_metadata_and_tensors(
    architecture: str, values: dict[str, Any], shapes: dict[str, list[int]]
) -> None:
    values = {
        "block_count": 1,
        "context_length": 16,
        "embedding_length": 8,
        "attention.head_count": 2,
        **values,
    }
    shapes = {"token_embd.weight": [4, 8], "blk.0.attn_norm.weight": [8], **shapes}
    checkpoint = Checkpoint(
        path="fuzz.gguf",
        file_format="gguf",
        tensors=tuple(
            TensorInfo(name=name, dtype="F32", shape=tuple(shape), nbytes=4) for name, shape in shapes.items()
        ),
        metadata={
            "general.architecture": architecture,
            **{f"{architecture}.{key}": value for key, value in values.items()},
        },
        files=("fuzz.gguf",),
    )
    try:
        gguf_config(checkpoint)
    except HeadcountError as error:
        assert "\n" not in str(error)


# Memory: files of up to 1 GB (sparse: only the header takes room), read with 200 MB of address space.


def gguf_file(keys: bytes, infos: bytes, key_count: int, tensor_count: int) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensor_count, key_count) + keys + infos


def many(count: int, make: Callable[[int], bytes]) -> bytes:
    return b"".join(make(i) for i in range(count))


def tensor_list(count: int) -> bytes:
    entries = (
        f'"{i:070d}":{{"dtype":"U8","shape":[1,1,1],"data_offsets":[{i},{i + 1}]}}' for i in range(count)
    )
    return ("{" + ",".join(entries) + "}").encode()


def safetensors_file(header: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header


FILL = 16 * 2**20 - 100
HOSTILE: dict[str, Callable[[], bytes]] = {
    "a billion empty texts.gguf": lambda: gguf_file(text(b"k") + struct.pack("<IIQ", 9, 8, 2**26), b"", 1, 0),
    "a text of 900 MB.gguf": lambda: gguf_file(text(b"k") + struct.pack("<IQ", 8, 900 * 2**20), b"", 1, 0),
    "numbers of 512 MB.gguf": lambda: gguf_file(text(b"k") + struct.pack("<IIQ", 9, 10, 2**26), b"", 1, 0),
    "nested arrays.gguf": lambda: gguf_file(text(b"k") + struct.pack("<IIQ", 9, 9, 2**23), b"", 1, 0),
    "kept numbers.gguf": lambda: gguf_file(
        many(2000, lambda i: text(b"k%d" % i) + struct.pack("<IIQ", 9, 10, 4096) + b"\xff" * 8 * 4096),
        b"",
        2000,
        0,
    ),
    "kept texts.gguf": lambda: gguf_file(
        many(
            1500,
            lambda i: text(b"k%d" % i) + struct.pack("<I", 8) + text("\U0001f600".encode() + b"a" * 65_532),
        ),
        b"",
        1500,
        0,
    ),
    "long keys.gguf": lambda: gguf_file(
        many(1500, lambda i: text(b"%d" % i + b"x" * 65_000) + struct.pack("<IB", 0, 1)), b"", 1500, 0
    ),
    "65536 tensors.gguf": lambda: gguf_file(
        b"", many(2**16, lambda i: text(b"%0255d" % i) + struct.pack("<IQIQ", 1, 8, 0, 32 * i)), 0, 2**16
    ),
    "one text.safetensors": lambda: safetensors_file(b'{"a":"' + b"x" * FILL + b'"}'),
    "wide text.safetensors": lambda: safetensors_file(
        b'{"__metadata__":{"a":"' + "\U0001f600".encode() + b"x" * (FILL - 50) + b'"}}'
    ),
    "numbers.safetensors": lambda: safetensors_file(b'{"a":[' + b"123456789," * 1_500_000 + b"1]}"),
    "lists.safetensors": lambda: safetensors_file(b'{"a":[' + b"[]," * 500_000 + b"[]]}"),
    "objects.safetensors": lambda: safetensors_file(
        b"{" + b",".join(b'"%d":{}' % i for i in range(500_000)) + b"}"
    ),
    "deep.safetensors": lambda: safetensors_file(b'{"a":' + b"[" * 1_000_000),
    "120000 tensors.safetensors": lambda: safetensors_file(tensor_list(120_000)),
}
READ = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
from headcount.errors import HeadcountError
from headcount.spec.gguf_header import read_gguf
from headcount.spec.safetensors_header import read_safetensors
try:
    (read_gguf if sys.argv[2].endswith(".gguf") else read_safetensors)(sys.argv[2])
except HeadcountError:
    print("refused")
else:
    print("read")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS bounds memory on Linux only")
@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_memory_stays_below_200_mb(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(HOSTILE[name]())
    if name.endswith(".gguf"):
        os.truncate(path, 2**30)
    done = subprocess.run(
        [sys.executable, "-c", READ, str(MEMORY_LIMIT), str(path)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stderr == ""
    assert done.stdout.strip() in ("refused", "read")


def test_a_reader_is_not_fooled_by_names(tmp_path: Path) -> None:
    """The wrong kind of file under either name is refused."""
    for name, raw, reader in (
        ("m.gguf", SAFETENSORS, read_gguf),
        ("m.safetensors", GGUF, read_safetensors),
    ):
        (tmp_path / name).write_bytes(raw)
        with pytest.raises(HeadcountError):
            reader(str(tmp_path / name))
