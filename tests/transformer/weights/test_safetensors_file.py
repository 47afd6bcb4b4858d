"""Safetensors sources against the safetensors library, and files that lie, lead astray or would run code."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save, save_file

from headcount.errors import ModelFileError
from headcount.transformer.weights.safetensors_file import DTYPES, SafetensorsSource
from headcount.transformer.weights.source import open_weights, read_json

TENSORS = {
    "a.weight": torch.randn(3, 4),
    "b.weight": torch.randn(5, dtype=torch.float32).to(torch.bfloat16),
    "c": torch.tensor(2.5),
    "d": torch.zeros(0, 3),
    "e": torch.randint(-5, 5, (2, 2)),
    "f": torch.randn(7).to(torch.float16),
}


def write(folder: Path, **files: dict[str, torch.Tensor]) -> dict[str, str]:
    """Write shards and their index; return the weight map."""
    where = {}
    for name, tensors in files.items():
        save_file(tensors, folder / f"{name}.safetensors")
        where |= dict.fromkeys(tensors, f"{name}.safetensors")
    index(folder, where)
    return where


def index(folder: Path, where: dict[str, str]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


def test_every_tensor_is_what_the_library_wrote(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "model.safetensors", metadata={"format": "pt"})
    source = open_weights(str(tmp_path))
    assert sorted(source.names()) == sorted(TENSORS)
    assert source.metadata == {"format": "pt"}
    for name, tensor in TENSORS.items():
        assert source.shape(name) == tuple(tensor.shape)
        assert DTYPES[source.dtype(name)] == tensor.dtype
        assert torch.equal(source.tensor(name), tensor)
        assert torch.equal(source.tensor(name, torch.float64), tensor.double())


def test_tensors_are_views_that_leave_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file(TENSORS, path)
    before = path.read_bytes()
    source = SafetensorsSource(str(path))
    first, second = source.tensor("a.weight"), source.tensor("a.weight")
    assert first.data_ptr() == second.data_ptr()
    first.zero_()
    assert path.read_bytes() == before
    assert torch.equal(SafetensorsSource(str(path)).tensor("a.weight"), TENSORS["a.weight"])


def test_an_unaligned_tensor_is_copied(tmp_path: Path) -> None:
    """The format allows a header of any length; the library pads, other writers do not."""
    data = TENSORS["a.weight"]
    header = json.dumps({"x": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]}}).encode()
    header += b" " * (-len(header) % 8 + 1)
    path = tmp_path / "odd.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + data.numpy().tobytes())
    assert torch.equal(SafetensorsSource(str(path)).tensor("x"), data)


def test_shards_by_index_and_by_name(tmp_path: Path) -> None:
    first, second = {"a": torch.randn(2)}, {"b": torch.randn(3), "c": torch.randn(1)}
    where = write(tmp_path, **{"model-00001-of-00002": first, "model-00002-of-00002": second})
    for path in (
        tmp_path,
        tmp_path / "model.safetensors.index.json",
        tmp_path / "model-00002-of-00002.safetensors",
    ):
        source = open_weights(str(path))
        assert sorted(source.names()) == sorted(where)
        assert torch.equal(source.tensor("c"), second["c"])


def refused(path: Path, words: str) -> None:
    with pytest.raises(ModelFileError, match=words) as caught:
        open_weights(str(path))
    assert "\n" not in str(caught.value)


def test_pickles_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02")
    refused(tmp_path, "'pytorch_model.bin' is a pickle")
    refused(tmp_path / "pytorch_model.bin", "pickle")
    refused(tmp_path / "consolidated.00.pth", "pickle")
    refused(tmp_path / "model.onnx", "no weight file")
    refused(tmp_path / "nothing.safetensors", "cannot read")


@pytest.mark.parametrize(
    "shard", ["../secret.safetensors", "/etc/secret.safetensors", "a/../../secret.safetensors", "..\\x.safetensors",
              "C:x.safetensors", "model.safetensors.index.json", "passwd", 7]
)  # fmt: skip
def test_an_index_cannot_lead_out_of_its_directory(tmp_path: Path, shard: str) -> None:
    model = tmp_path / "model"
    model.mkdir()
    save_file({"a": torch.zeros(1)}, tmp_path / "secret.safetensors")
    index(model, {"a": shard})
    refused(model, "may not leave the directory")


def test_links_out_of_the_directory_are_not_followed(tmp_path: Path) -> None:
    model, outside = tmp_path / "model", tmp_path / "outside"
    model.mkdir(), outside.mkdir()
    save_file({"a": torch.zeros(1)}, outside / "x.safetensors")
    (outside / "config.json").write_text('{"secret": 1}')
    os.symlink(outside / "x.safetensors", model / "model.safetensors")
    os.symlink(outside / "config.json", model / "config.json")
    refused(model, "link out of the model's directory")
    with pytest.raises(ModelFileError, match="link out"):
        read_json(str(model), "config.json")
    # The path a user names is the user's choice.
    assert open_weights(str(model / "model.safetensors")).names() == ["a"]
    (model / "model.safetensors").unlink()
    os.symlink(outside, model / "sub")
    index(model, {"a": "sub/x.safetensors"})
    refused(model, "link out of the model's directory")


def test_links_out_are_refused_before_a_header_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, outside = tmp_path / "model", tmp_path / "outside"
    model.mkdir(), outside.mkdir()
    (outside / "x.safetensors").write_bytes(b"no header: reading it would be another error")
    monkeypatch.setattr("headcount.transformer.weights.safetensors_file.read_safetensors", None)
    os.symlink(outside / "x.safetensors", model / "model.safetensors")
    refused(model, "link out of the model's directory")
    (model / "model.safetensors").unlink()
    os.symlink(outside, model / "sub")
    index(model, {"a": "sub/x.safetensors"})
    refused(model, "link out of the model's directory")
    refused(model / "model.safetensors.index.json", "link out of the model's directory")


def test_the_caches_links_into_its_own_blobs_are_followed(tmp_path: Path) -> None:
    repository = tmp_path / "models--org--name"
    snapshot = repository / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    save_file({"a": torch.zeros(1)}, repository / "blobs" / "deadbeef")
    os.symlink("../../blobs/deadbeef", snapshot / "model.safetensors")
    assert open_weights(str(snapshot)).names() == ["a"]
    (snapshot / "model.safetensors").unlink()
    save_file({"a": torch.zeros(1)}, tmp_path / "elsewhere")
    os.symlink("../../../elsewhere", snapshot / "model.safetensors")
    refused(snapshot, "link out")


def test_circles_and_doubles(tmp_path: Path) -> None:
    os.symlink("b.safetensors", tmp_path / "a.safetensors")
    os.symlink("a.safetensors", tmp_path / "b.safetensors")
    index(tmp_path, {"x": "a.safetensors"})
    refused(tmp_path, "missing|symbolic links")
    (tmp_path / "a.safetensors").unlink(), (tmp_path / "b.safetensors").unlink()
    save_file({"x": torch.zeros(1), "y": torch.zeros(1)}, tmp_path / "a.safetensors")
    os.link(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    index(tmp_path, {"x": "a.safetensors", "y": "b.safetensors"})
    refused(tmp_path, "does not place there")
    (tmp_path / "d").mkdir()
    os.mkfifo(tmp_path / "d" / "model.safetensors")
    refused(tmp_path / "d", "not a regular file")


WHOLE = save({"a": torch.randn(3, 4), "b": torch.randn(2)})


@settings(max_examples=150)
@given(cut=st.integers(0, len(WHOLE) - 1), patch=st.binary(max_size=6), at=st.integers(0, len(WHOLE) - 1))
def test_a_cut_or_changed_file_gives_tensors_or_one_error(
    tmp_path_factory: pytest.TempPathFactory, cut: int, patch: bytes, at: int
) -> None:
    folder = tmp_path_factory.getbasetemp()
    path = folder / "fuzzed.safetensors"
    path.write_bytes(WHOLE[:cut])
    with pytest.raises(ModelFileError):
        SafetensorsSource(str(path))
    path.write_bytes(WHOLE[:at] + patch + WHOLE[at + len(patch) :])
    try:
        source = SafetensorsSource(str(path))
        assert sum(source.tensor(name).numel() for name in source.names()) <= len(WHOLE)
    except ModelFileError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"dtype": "NaN", "shape": [1], "data_offsets": [0, 4]}, "unknown dtype 'NaN'"),
        ({"dtype": "F32", "shape": [2**62], "data_offsets": [0, 4]}, "takes"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}, "takes 8 bytes"),
        ({"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}, "whole numbers"),
        ({"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}, "truncated"),
    ],
)
def test_lying_headers(tmp_path: Path, entry: object, words: str) -> None:
    header = json.dumps({"x": entry}).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    refused(path, words)


def test_six_bit_floats_are_no_numbers_here(tmp_path: Path) -> None:
    header = json.dumps({"x": {"dtype": "F4", "shape": [8], "data_offsets": [0, 4]}}).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    source = open_weights(str(path))
    with pytest.raises(ModelFileError, match="F4 cannot be turned into numbers"):
        source.tensor("x")
    with pytest.raises(ModelFileError, match="holds no tensor 'y'"):
        source.tensor("y")
