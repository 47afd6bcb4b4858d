"""ONNX graphs as sources: small graphs made with the onnx package, dequantised by its own evaluator; hostile files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from headcount.errors import ModelFileError, UnsupportedModelError
from headcount.transformer.weights import onnx_file
from headcount.transformer.weights.model import load_model
from headcount.transformer.weights.onnx_file import OnnxSource, holds_onnx
from headcount.transformer.weights.onnx_t5 import t5_config

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

RANDOM = numpy.random.default_rng(0)
CODES = RANDOM.integers(-128, 128, (6, 4)).astype(numpy.int8)
TABLE = RANDOM.integers(0, 256, (9, 6)).astype(numpy.uint8)
GAIN = RANDOM.standard_normal(6).astype(numpy.float32)


def graph(path: Path, *, per_column: bool = False, change: Callable[[Any], None] | None = None) -> Path:
    """ids -> table (uint8) -> times gain -> product with int8 codes, as dynamic quantisation writes it."""
    scale = numpy.array([0.5, 0.25, 2.0, 1.5] if per_column else 0.125, numpy.float32)
    zero = numpy.array([3, -5, 0, 7] if per_column else -4, numpy.int8)
    stored = {
        "wrap.shared.weight_quantized": TABLE,
        "wrap.shared.weight_scale": numpy.array(0.03, numpy.float32),
        "wrap.shared.weight_zero_point": numpy.array(128, numpy.uint8),
        "wrap.norm.weight": GAIN,
        "onnx::MatMul_7_quantized": CODES,
        "onnx::MatMul_7_scale": scale,
        "onnx::MatMul_7_zero_point": zero,
    }
    product, scales = "/wrap/block.0/q/MatMul", "/wrap/block.0/q/scales"
    nodes = [
        helper.make_node(
            "Gather", ["wrap.shared.weight_quantized", "ids"], ["rows"], name="/wrap/shared/Gather"
        ),
        helper.make_node(
            "DequantizeLinear", ["rows", "wrap.shared.weight_scale", "wrap.shared.weight_zero_point"], ["x"]
        ),
        helper.make_node("Mul", ["wrap.norm.weight", "x"], ["y"], name="/wrap/norm/Mul"),
        helper.make_node("DynamicQuantizeLinear", ["y"], ["y_q", "y_scale", "y_zero"]),
        helper.make_node(
            "MatMulInteger",
            ["y_q", "onnx::MatMul_7_quantized", "y_zero", "onnx::MatMul_7_zero_point"],
            ["z_q"],
            name=f"{product}_quant",
        ),
        helper.make_node("Cast", ["z_q"], ["z_f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["y_scale", "onnx::MatMul_7_scale"], ["s"], name=scales),
        helper.make_node("Mul", ["z_f", "s"], ["z"]),
    ]
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "small",
            [helper.make_tensor_value_info("ids", TensorProto.INT64, [None])],
            [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(value, name) for name, value in stored.items()],
        ),
        opset_imports=[helper.make_opsetid("", 19)],
    )
    if change is not None:
        change(model)
    path.write_bytes(model.SerializeToString())
    return path


def dequantised(codes: Any, scale: Any, zero: Any) -> Any:
    """By the onnx package's own DequantizeLinear, along the last axis."""
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.ops.op_dequantize_linear import DequantizeLinear_19  # noqa: F401 - the operator must exist

    names = ["q", "s", "z"]
    values = [
        numpy_helper.from_array(value, name) for name, value in zip(names, (codes, scale, zero), strict=True)
    ]
    node = helper.make_node("DequantizeLinear", names, ["w"], axis=1)
    out = [helper.make_tensor_value_info("w", TensorProto.FLOAT, None)]
    model = helper.make_model(
        helper.make_graph([node], "one", [], out, values), opset_imports=[helper.make_opsetid("", 19)]
    )
    return ReferenceEvaluator(model).run(None, {})[0]


@pytest.mark.parametrize("per_column", [False, True])
def test_names_and_numbers(per_column: bool, tmp_path: Path) -> None:
    source = OnnxSource(str(graph(tmp_path / "decoder.onnx", per_column=per_column)))
    assert set(source.names()) == {"shared.weight", "norm.weight", "block.0.q.weight"}
    assert source.shape("block.0.q.weight") == (4, 6)
    assert source.dtype("norm.weight") == "F32" and source.dtype("shared.weight") == "INT8_AFFINE"
    scale = numpy.array([0.5, 0.25, 2.0, 1.5] if per_column else 0.125, numpy.float32)
    zero = numpy.array([3, -5, 0, 7] if per_column else -4, numpy.int8)
    product = torch.tensor(dequantised(CODES, scale, zero)).t()
    table = dequantised(TABLE, numpy.array(0.03, numpy.float32), numpy.array(128, numpy.uint8))
    assert torch.equal(source.tensor("block.0.q.weight"), product)
    assert torch.equal(source.tensor("shared.weight"), torch.tensor(table))
    assert torch.equal(source.tensor("norm.weight"), torch.tensor(GAIN))
    assert torch.equal(source.tensor("norm.weight", torch.bfloat16), torch.tensor(GAIN).bfloat16())
    with pytest.raises(ModelFileError, match="no tensor"):
        source.tensor("wrap.norm.weight")


def test_an_encoder_stands_under_its_name(tmp_path: Path) -> None:
    graph(tmp_path / "encoder.onnx")
    graph(tmp_path / "decoder.onnx")
    assert holds_onnx(str(tmp_path))
    names = set(OnnxSource(str(tmp_path)).names())
    assert {"encoder.norm.weight", "norm.weight"} <= names


def drop(kind: str) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        kept = [node for node in model.graph.node if node.op_type != kind]
        del model.graph.node[:]
        model.graph.node.extend(kept)

    return change


def tensor(model: Any, name: str) -> Any:
    return next(item for item in model.graph.initializer if item.name == name)


def cut(model: Any) -> None:
    found = tensor(model, "onnx::MatMul_7_quantized")
    found.raw_data = found.raw_data[:-1]


def enlarge(model: Any) -> None:
    tensor(model, "onnx::MatMul_7_quantized").dims[0] = 2**50


def negative(model: Any) -> None:
    found = tensor(model, "onnx::MatMul_7_quantized")
    found.dims[0], found.dims[1] = -6, -4


def external(model: Any) -> None:
    found = tensor(model, "wrap.norm.weight")
    found.data_location = TensorProto.EXTERNAL
    entry = found.external_data.add()
    entry.key, entry.value = "location", "../../secret.bin"


def computed_scale(model: Any) -> None:
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear":
            node.input[1] = "ids"


def long_scale(model: Any) -> None:
    tensor(model, "onnx::MatMul_7_scale").CopyFrom(
        numpy_helper.from_array(numpy.ones(5, numpy.float32), "onnx::MatMul_7_scale")
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (drop("Cast"), "does not say its scale"),
        (cut, "23 bytes for 24 entries"),
        (enlarge, "bytes for"),
        (negative, "extent below 0"),
        (external, "lies in another file"),
        (computed_scale, "is not stored"),
        (long_scale, r"\(5,\) does not fit a weight \(6, 4\)"),
    ],
)
def test_hostile_graphs(change: Callable[[Any], None], words: str, tmp_path: Path) -> None:
    path = graph(tmp_path / "decoder.onnx", change=change)
    with pytest.raises(ModelFileError, match=words):
        source = OnnxSource(str(path))
        for name in source.names():
            source.tensor(name)


@pytest.mark.parametrize("raw", [b"", b"\x00" * 40, b"not onnx at all", bytes(range(256)) * 4])
def test_not_onnx(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "decoder.onnx").write_bytes(raw)
    with pytest.raises(ModelFileError):
        OnnxSource(str(tmp_path))


def test_truncated(tmp_path: Path) -> None:
    """Cut anywhere, a file is refused or holds whole tensors only; nothing else happens."""
    whole = graph(tmp_path / "decoder.onnx").read_bytes()
    for end in range(0, len(whole), 7):
        (tmp_path / "decoder.onnx").write_bytes(whole[:end])
        try:
            source = OnnxSource(str(tmp_path))
            for name in source.names():
                source.tensor(name)
        except ModelFileError:
            pass


def test_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = graph(tmp_path / "decoder.onnx")
    monkeypatch.setattr(onnx_file, "FILE_LIMIT", 100)
    with pytest.raises(ModelFileError, match="at most 100"):
        OnnxSource(str(path))
    monkeypatch.undo()
    monkeypatch.setattr(onnx_file, "_NODE_LIMIT", 3)
    with pytest.raises(ModelFileError, match="8 nodes"):
        OnnxSource(str(path))


def test_links_out_are_not_followed(tmp_path: Path) -> None:
    graph(tmp_path / "decoder.onnx")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "decoder.onnx").symlink_to(tmp_path / "decoder.onnx")
    with pytest.raises(ModelFileError, match="link out"):
        OnnxSource(str(tmp_path / "model"))


def test_another_model_is_refused(tmp_path: Path) -> None:
    graph(tmp_path / "encoder.onnx")
    graph(tmp_path / "decoder.onnx")
    with pytest.raises(ModelFileError, match="no exported T5"):
        t5_config(OnnxSource(str(tmp_path)))
    with pytest.raises((ModelFileError, UnsupportedModelError)):
        load_model(str(tmp_path))
