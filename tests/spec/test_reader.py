"""MODEL as a path, a cache entry, a catalogue name or a description. Files are put together byte by byte."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from headcount.cost.cache import token_bytes
from headcount.cost.weights import weight_bytes
from headcount.errors import (
    HeadcountError,
    ModelFileError,
    UnknownNameError,
    UnsupportedModelError,
    UsageError,
)
from headcount.spec.attention import FullAttention, SlidingWindow
from headcount.spec.kv_format import kv_format
from headcount.spec.reader import cached_snapshot, read_model

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 50,
    "max_position_embeddings": 512,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
# A layer: q and o 64 x 64, k and v 32 x 64, three of 64 x 96, two norms; embedding and head 50 x 64; final norm.
PARAMETERS = 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 96 + 2 * 64) + 2 * 50 * 64 + 64


def safetensors(tensors: dict[str, tuple[str, list[int], int]]) -> bytes:
    """A file of ``name -> (dtype, shape, bytes)``, its data zeros."""
    header: dict[str, Any] = {}
    begin = 0
    for name, (dtype, shape, count) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, begin + count]}
        begin += count
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + b"\0" * begin


FIRST = {"model.embed_tokens.weight": ("BF16", [50, 64], 6400)}
SECOND = {"model.norm.weight": ("F32", [64], 256), "lm_head.weight": ("F8_E4M3", [50, 64], 3200)}


def write_model(folder: Path, *, sharded: bool = True, config: dict[str, Any] | None = None) -> Path:
    """A directory as the hub lays it out: config.json and one or two safetensors files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG if config is None else config))
    if not sharded:
        (folder / "model.safetensors").write_bytes(safetensors({**FIRST, **SECOND}))
        return folder
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    for name, tensors in zip(names, (FIRST, SECOND), strict=True):
        (folder / name).write_bytes(safetensors(tensors))
    shard_of = {key: name for name, held in zip(names, (FIRST, SECOND), strict=True) for key in held}
    index = {"metadata": {"total_size": 9856}, "weight_map": shard_of}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Hugging Face cache that is the only one."""
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "hub"


def write_snapshot(hub: Path, repo: str, commit: str, *, ref: str | None = "main") -> Path:
    folder = hub / ("models--" + repo.replace("/", "--"))
    if ref is not None:
        (folder / "refs").mkdir(parents=True, exist_ok=True)
        (folder / "refs" / ref).write_text(commit)
    return write_model(folder / "snapshots" / commit)


# Directories and files -----------------------------------------------------------------------------


@pytest.mark.parametrize("sharded", [True, False])
def test_a_directory_gives_exact_bytes(tmp_path: Path, sharded: bool) -> None:
    folder = write_model(tmp_path / "tiny", sharded=sharded)
    model = read_model(str(folder))
    assert (model.name, model.family, model.dtype) == ("tiny", "llama", "bf16")
    assert model.parameters == PARAMETERS
    # 50 x 64 bf16, 64 fp32, 50 x 64 fp8: the files decide, whatever the config would make of it.
    assert weight_bytes(model) == 6400 + 256 + 3200
    assert weight_bytes(model, "bf16") == 2 * PARAMETERS
    assert model.checkpoint is not None
    assert model.checkpoint.bytes_by_dtype() == {"BF16": 6400, "F8_E4M3": 3200, "F32": 256}


@pytest.mark.parametrize(
    "file",
    ["model.safetensors.index.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
)
def test_one_file_of_a_set_stands_for_it(tmp_path: Path, file: str) -> None:
    assert weight_bytes(read_model(str(write_model(tmp_path) / file))) == 9856


def test_a_config_alone_is_computed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    for path in (tmp_path, tmp_path / "config.json"):
        model = read_model(str(path))
        assert model.checkpoint is None
        assert model.name == tmp_path.name
        assert weight_bytes(model) == 2 * PARAMETERS


def test_a_renamed_config_keeps_its_file_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(CONFIG))
    assert read_model(str(path)).name == "mine.json"


def test_a_directory_relative_to_here_and_to_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "tiny")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for text in ("tiny", "./tiny", " tiny ", "~/tiny"):
        assert weight_bytes(read_model(text)) == 9856


def test_what_ifs_on_a_directory(tmp_path: Path) -> None:
    folder = str(write_model(tmp_path))
    other = read_model(folder, kv_heads=4)
    assert other.checkpoint is None
    assert any("exact bytes are for the heads it holds" in note for note in other.notes)
    # Keys and values of 64 instead of 32 rows in two layers.
    assert weight_bytes(other) == 2 * (PARAMETERS + 2 * 2 * 32 * 64)
    assert token_bytes(other, kv_format("fp16")) == 2 * 2 * 4 * 16 * 2
    nominal = read_model(folder, nominal_parameters=2 * PARAMETERS)
    assert weight_bytes(nominal) == 4 * PARAMETERS


def test_safetensors_without_a_config(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors(FIRST))
    with pytest.raises(ModelFileError, match=r"1 tensors, 6,400 B, but no config\.json beside it"):
        read_model(str(path))


def test_a_set_with_a_missing_shard(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelFileError, match="model-00002-of-00002"):
        read_model(str(folder))


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([], "a directory without a model"),
        (["README.md", "tokenizer.json"], "a directory without a model"),
        (["a.gguf", "b.gguf"], "holds 2 GGUF models; name one: a.gguf, b.gguf"),
    ],
)
def test_directories_without_one_model(tmp_path: Path, files: list[str], words: str) -> None:
    for name in files:
        (tmp_path / name).write_text("")
    with pytest.raises(ModelFileError, match=words):
        read_model(str(tmp_path))


@pytest.mark.parametrize("text", ["no/such/config.json", "./nothing", "/nothing/at/all", "~/x.gguf"])
def test_paths_that_are_not_there(text: str) -> None:
    with pytest.raises(ModelFileError, match="no such file or directory"):
        read_model(text)


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(b"PK")
    with pytest.raises(ModelFileError, match=r"not a model file headcount reads: \*\.json"):
        read_model(str(path))


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"[1]", "must be a JSON object"),
        (b"{", "not valid JSON"),
        (b'{"hidden_size": NaN}', "NaN"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"{}", "neither model_type nor architectures"),
    ],
)
def test_broken_configs(tmp_path: Path, raw: bytes, words: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(raw)
    with pytest.raises(ModelFileError, match=words):
        read_model(str(path))


def test_an_unknown_type_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"'llama9'.*nearest supported types: llama"):
        read_model(str(write_model(tmp_path, config={**CONFIG, "model_type": "llama9"})))


# GGUF ----------------------------------------------------------------------------------------------


def gguf(width: int = 64, layers: int = 2) -> bytes:
    """A Llama of ``CONFIG``'s shape in Q8_0 (34 bytes for 32 values), norms in F32."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    def number(key: str, value: int) -> bytes:
        return text("llama." + key) + struct.pack("<II", 4, value)

    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (width, 50),
        "output.weight": (width, 50),
        "output_norm.weight": (width,),
    }
    for i in range(layers):
        rows = {"attn_q": 64, "attn_k": 32, "attn_v": 32, "attn_output": 64, "ffn_gate": 96, "ffn_up": 96}
        shapes |= {f"blk.{i}.{name}.weight": (width, out) for name, out in rows.items()}
        shapes |= {f"blk.{i}.ffn_down.weight": (96, width)}
        shapes |= {f"blk.{i}.{name}_norm.weight": (width,) for name in ("attn", "ffn")}
    infos, offset = b"", 0
    for name, shape in shapes.items():
        count = 4 * shape[0] if len(shape) == 1 else shape[0] * shape[1] // 32 * 34
        infos += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        infos += struct.pack("<IQ", 0 if len(shape) == 1 else 8, offset)
        offset += -(-count // 32) * 32
    keys = {
        "block_count": layers,
        "embedding_length": width,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "context_length": 512,
        "vocab_size": 50,
    }
    pairs = text("general.architecture") + struct.pack("<I", 8) + text("llama")
    pairs += b"".join(number(key, value) for key, value in keys.items())
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(keys) + 1) + pairs + infos
    return head + b"\0" * (-len(head) % 32) + b"\0" * offset


@pytest.mark.parametrize("whole_directory", [True, False])
def test_a_gguf_file(tmp_path: Path, whole_directory: bool) -> None:
    path = tmp_path / "tiny-q8_0.gguf"
    path.write_bytes(gguf())
    model = read_model(str(tmp_path if whole_directory else path))
    assert (model.name, model.family) == ("tiny-q8_0.gguf", "llama")
    assert model.parameters == PARAMETERS
    assert token_bytes(model, kv_format("fp16")) == 2 * 2 * 2 * 16 * 2
    norms = 5 * 64
    assert weight_bytes(model) == (PARAMETERS - norms) // 32 * 34 + norms * 4
    assert model.max_positions == 512


def test_a_gguf_file_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(gguf()[:300])
    with pytest.raises(ModelFileError):
        read_model(str(path))


# The local Hugging Face cache ----------------------------------------------------------------------


def test_the_cache_answers_for_an_id(hub: Path) -> None:
    write_snapshot(hub, "org/tiny", "a" * 40)
    model = read_model("org/tiny")
    assert model.name == "org/tiny"
    assert weight_bytes(model) == 9856


def test_refs_main_decides_between_snapshots(hub: Path) -> None:
    write_snapshot(hub, "org/tiny", "a" * 40)
    newest = write_snapshot(hub, "org/tiny", "b" * 40)
    assert cached_snapshot("org/tiny") == str(newest)
    (hub / "models--org--tiny" / "refs" / "main").write_text("a" * 40 + "\n")
    assert cached_snapshot("org/tiny") == str(newest.parent / ("a" * 40))


def test_a_snapshot_without_a_ref(hub: Path) -> None:
    only = write_snapshot(hub, "org/tiny", "c" * 40, ref=None)
    assert cached_snapshot("org/tiny") == str(only)


def test_a_ref_to_a_snapshot_that_is_gone(hub: Path) -> None:
    write_snapshot(hub, "org/tiny", "a" * 40)
    (hub / "models--org--tiny" / "refs" / "main").write_text("d" * 40)
    assert cached_snapshot("org/tiny") is None


@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"])
def test_where_the_cache_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    for name in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    below = {"HF_HUB_CACHE": "", "HF_HOME": "hub", "XDG_CACHE_HOME": "huggingface/hub"}
    folder = write_snapshot(tmp_path / below.get(variable, ".cache/huggingface/hub"), "org/tiny", "e" * 40)
    assert cached_snapshot("org/tiny") == str(folder)


@pytest.mark.parametrize("repo", ["tiny", "a/b/c", "../x", "org/.."])
def test_ids_that_are_not_looked_up(hub: Path, repo: str) -> None:
    assert cached_snapshot(repo) is None


def test_the_cache_comes_before_the_catalogue(hub: Path) -> None:
    assert read_model("meta-llama/Llama-2-7b-hf").parameters == 6_738_415_616
    write_snapshot(hub, "meta-llama/Llama-2-7b-hf", "f" * 40)
    assert read_model("meta-llama/Llama-2-7b-hf").parameters == PARAMETERS


# Names ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama-2-7b", "LLAMA-2-7B", " meta-llama/Llama-2-7b-hf "])
def test_catalogue_names(hub: Path, name: str) -> None:
    assert read_model(name).parameters == 6_738_415_616


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown model 'lama-2-7b'; nearest: llama-2-7b"):
        read_model("lama-2-7b")


@pytest.mark.parametrize("text", ["", "  ", "a\0b"])
def test_an_empty_name(text: str) -> None:
    with pytest.raises(UsageError, match="MODEL is empty"):
        read_model(text)


# Inline descriptions -------------------------------------------------------------------------------


def test_a_described_llama() -> None:
    model = read_model("layers=32,hidden=4096,heads=32,kv_heads=32,ffn=11008,vocab=32000,context=4k")
    assert model.parameters_known
    assert model.parameters == 6_738_415_616  # Llama-2-7B
    assert weight_bytes(model) == 13_476_831_232
    assert model.max_positions == 4000


def test_a_described_mixture() -> None:
    text = "layers=32,hidden=4096,heads=32,kv_heads=8,ffn=14336,vocab=32000,experts=8,top_k=2"
    assert read_model(text).parameters == 46_702_792_704  # Mixtral 8x7B


def test_a_described_window_and_tied_head() -> None:
    model = read_model("layers=2,hidden=64,heads=4,window=16,ffn=96,vocab=50,tied=true")
    (mixer,) = model.layers[0].mixers
    assert isinstance(mixer, SlidingWindow)
    assert mixer.window == 16
    assert model.tied_embeddings


@pytest.mark.parametrize(
    "text", ["layers=40,heads=32,kv_heads=4,head_dim=128", "layers=40,kv_heads=4,head_dim=128"]
)
def test_enough_for_the_cache_alone(text: str) -> None:
    model = read_model(text)
    assert not model.parameters_known
    assert token_bytes(model, kv_format("fp16")) == 2 * 40 * 4 * 128 * 2
    (mixer,) = model.layers[0].mixers
    assert isinstance(mixer, FullAttention)


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("hidden=4096,heads=32", UsageError, "lacks layers"),
        ("layers=32", UsageError, "needs heads"),
        ("layers=32,hidden=4096", UsageError, "needs heads"),
        ("layers=32,heads=32", UsageError, "needs heads and hidden"),
        ("layers=32,hiden=4096,heads=32", UnknownNameError, "nearest: hidden"),
        ("layers=32,layers=16,hidden=4096,heads=32", UsageError, "layers is given twice"),
        ("layers=32,hidden=4096,heads=32,", UsageError, "is not key=value"),
        ("layers=-1,hidden=4096,heads=32", UsageError, "must be 1 to 4,096"),
        ("layers=1e9,hidden=4096,heads=32", UsageError, "must be 1 to 4,096"),
        ("layers=2.5,hidden=4096,heads=32", UsageError, "whole number"),
        ("layers=inf,hidden=4096,heads=32", UsageError, "inline layers"),
        ("layers=32,hidden=4096,heads=32,tied=maybe", UsageError, "tied must be true or false"),
        ("layers=32,hidden=4096,heads=32,experts=8", UsageError, "experts and top_k"),
        ("layers=32,hidden=4096,heads=33", HeadcountError, "33"),
        ("layers=32,hidden=4096,heads=32,kv_heads=5", HeadcountError, "5"),
    ],
)
def test_bad_descriptions(text: str, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        read_model(text)
    assert "\n" not in str(caught.value)


def test_a_what_if_on_a_description() -> None:
    model = read_model("layers=32,hidden=4096,heads=32", kv_heads=8)
    assert token_bytes(model, kv_format("fp16")) == 131_072
