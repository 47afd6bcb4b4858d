"""GGUF sources against the gguf library: every quantised type, the vocabulary arrays, and files that lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headcount.errors import ModelFileError
from headcount.transformer.weights.gguf_file import GgufSource
from headcount.transformer.weights.source import open_weights

gguf = pytest.importorskip("gguf", reason="compares with the gguf library")
pytestmark = pytest.mark.reference
PACKED = [kind.name for kind in gguf.quants._type_traits if kind.name != "BF16"]


def quantised_file(path: Path, kind: str, rows: int = 5) -> np.ndarray[Any, Any]:
    """A file with one tensor of random blocks; return what the library makes of them."""
    type_id = gguf.GGMLQuantizationType[kind]
    block, nbytes = gguf.GGML_QUANT_SIZES[type_id]
    generator = np.random.default_rng(0)
    try:
        raw = gguf.quants.quantize(generator.standard_normal((rows, 2 * block)).astype(np.float32), type_id)
    except NotImplementedError:
        raw = generator.integers(0, 256, (rows, 2 * nbytes), dtype=np.uint8)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_tensor("x", raw, raw_dtype=type_id)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(raw, type_id)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", PACKED)
def test_every_type_is_opened_as_the_library_does(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = quantised_file(tmp_path / "x.gguf", kind)
    monkeypatch.setattr(
        "headcount.transformer.weights.gguf_file._GROUP", 2 * expected.shape[1]
    )  # several groups
    source = open_weights(str(tmp_path / "x.gguf"))
    assert isinstance(source, GgufSource)
    assert source.shape("x") == expected.shape and source.dtype("x") == kind
    np.testing.assert_array_equal(source.tensor("x").numpy(), expected)
    half = torch.from_numpy(expected).to(torch.bfloat16)
    torch.testing.assert_close(source.tensor("x", torch.bfloat16), half, rtol=0, atol=0, equal_nan=True)
    assert source.blocks("x").shape == (5, source.blocks("x").size // 5)
    assert source.blocks("x").base is not None, "a view of the file"


def test_plain_tensors_are_views(tmp_path: Path) -> None:
    from gguf_writer import small_file

    data = {"a": np.random.rand(3, 4).astype(np.float32), "b": np.random.rand(2, 8).astype(np.float16)}
    small_file(tmp_path / "x.gguf", data, {})
    source = GgufSource(str(tmp_path))
    assert source.names() == ["a", "b"] and source.architecture == "llama"
    assert torch.equal(source.tensor("a"), torch.from_numpy(data["a"]))
    assert torch.equal(source.tensor("b", torch.float32), torch.from_numpy(data["b"]).float())
    assert source.tensor("a").data_ptr() == source.tensor("a").data_ptr()


def test_arrays_and_texts(tmp_path: Path) -> None:
    from gguf_writer import small_file

    words = [f"token {i} é" for i in range(5000)]
    keys = {
        "t": words,
        "s": [0.5 * i for i in range(5000)],
        "f": [True, False],
        "n": [1, 2],
        "w": "text",
        "long": "x" * 70000,
    }
    small_file(tmp_path / "x.gguf", {"a": np.zeros(1, np.float32)}, keys)
    source = GgufSource(str(tmp_path / "x.gguf"))
    assert source.array("t") == words
    assert source.array("s") == keys["s"]
    assert source.array("f") == [True, False] and source.array("n") == [1, 2]
    assert source.array("absent") is None and source.text("absent") is None and source.text("w") == "text"
    for call in (lambda: source.array("w"), lambda: source.text("n"), lambda: source.text("long")):
        with pytest.raises(ModelFileError):
            call()


def whole() -> bytes:
    import tempfile

    from gguf_writer import small_file

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.gguf"
        keys = {"tokenizer.ggml.tokens": [str(i) for i in range(300)], "general.alignment": 32}
        small_file(path, {"a": np.ones((2, 3), np.float32), "b": np.ones(4, np.float32)}, keys)
        return path.read_bytes()


@settings(max_examples=200)
@given(data=st.data())
def test_a_cut_or_changed_file_gives_tensors_or_one_error(
    tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    if not hasattr(test_plain_tensors_are_views, "raw"):
        test_plain_tensors_are_views.raw = whole()  # type: ignore[attr-defined]
    raw: bytes = test_plain_tensors_are_views.raw  # type: ignore[attr-defined]
    path = tmp_path_factory.getbasetemp() / "fuzzed.gguf"
    at = data.draw(st.integers(0, len(raw) - 1))
    patch = data.draw(st.binary(max_size=8))
    changed = raw[:at] + patch + raw[at + len(patch) :] if patch else raw[:at]
    path.write_bytes(changed)
    try:
        source = GgufSource(str(path))
        for name in source.names():
            source.tensor(name)
        source.array("tokenizer.ggml.tokens")
    except ModelFileError as error:
        assert "\n" not in str(error)
    else:
        # Behind the last tensor's 16 bytes lie 16 of padding.
        assert patch or at >= len(raw) - 16, "a file that was cut must not load"
