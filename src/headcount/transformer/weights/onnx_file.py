"""ONNX graphs as a source of weights: their initialisers are read and, where quantised, turned back into numbers.

Nothing is executed and no external data is opened. Which scale and zero point belong to a quantised initialiser is said by
the nodes that use it, and only by them:

    MatMulInteger(a, q, a0, q0) -> Cast -> Mul(., Mul(sa, s))      w = (q - q0) s, one s, or one per output
    DequantizeLinear(Gather(q, ids) ..., s, q0)                    w = (q - q0) s

Exporters fold the transpose of a linear weight into it and rename it (``onnx::MatMul_1979``); the node that multiplies by
it still says where it stands (``/decoder/block.0/layer.0/SelfAttention/q/MatMul_quant``). Such a weight is given PyTorch's
name and shape again: ``decoder.block.0.layer.0.SelfAttention.q.weight``, (outputs, inputs). The first word of the names is
dropped where all names of a file share it (a wrapper's attribute); a file ``encoder.onnx`` has its names under ``encoder``.

Source: the ONNX operator specification (DequantizeLinear, MatMulInteger), opset 18.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headcount.errors import ModelFileError
from headcount.spec.checkpoint import file_size, list_directory, shown
from headcount.transformer.weights.source import TensorSource, check_inside
from headcount.units import GIB, human_bytes

# A protobuf message cannot be larger; weights beyond that lie in external files, which are not opened.
FILE_LIMIT = 2 * GIB
_NODE_LIMIT = 200_000
_TRACED = 8
_QUANTISED = "_quantized"
# Operators that pass the numbers of their first input on.
_MOVES = ("Gather", "Transpose", "Unsqueeze", "Squeeze", "Reshape", "Identity")


class _Stored(NamedTuple):
    """One weight: its initialiser, how it is turned back into numbers (None: it holds them), whether it lies transposed."""

    name: str
    tensor: Any
    affine: tuple[Any, Any] | None
    axis: int
    transposed: bool


class OnnxSource(TensorSource):
    """The weights of one ``*.onnx`` file, or of all in a directory (``TensorSource``).

    Raises ModelFileError: damaged, too large, external data, or a quantised weight whose scale the graph does not say.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        files = [path]
        if os.path.isdir(path):
            files = [os.path.join(path, name) for name in list_directory(path) if name.endswith(".onnx")]
        if not files:
            raise ModelFileError(f"{shown(path, limit=200)} holds no *.onnx")
        check_inside(files, path)
        self._weights: dict[str, _Stored] = {}
        self.graphs: dict[str, OnnxGraph] = {}
        for file in files:
            graph = OnnxGraph(file)
            self.graphs[os.path.basename(file)] = graph
            for name, stored in graph.weights().items():
                if name in self._weights:
                    raise ModelFileError(f"{shown(path, limit=200)}: two graphs hold a weight {shown(name)}")
                self._weights[name] = stored

    def names(self) -> list[str]:
        """See ``TensorSource.names``."""
        return list(self._weights)

    def shape(self, name: str) -> tuple[int, ...]:
        """See ``TensorSource.shape``."""
        stored = self._at(name)
        shape = tuple(int(extent) for extent in stored.tensor.dims)
        return shape[::-1] if stored.transposed else shape

    def dtype(self, name: str) -> str:
        """``F32``, ``F16``, ...; ``INT8_AFFINE`` for a weight that is turned back into numbers."""
        stored = self._at(name)
        return "INT8_AFFINE" if stored.affine else _NUMBERS[stored.tensor.data_type]

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """See ``TensorSource.tensor``: dequantised in float32, rounded once."""
        stored = self._at(name)
        value = _read(stored.tensor)
        if stored.affine:
            scale, zero = (_along(value, part, stored.axis) for part in stored.affine)
            value = (value.float() - zero) * scale
        value = value.t() if stored.transposed else value
        return value.contiguous() if dtype is None else value.to(dtype).contiguous()

    def _at(self, name: str) -> _Stored:
        if name not in self._weights:
            raise ModelFileError(f"{shown(self.path, limit=200)} holds no tensor {shown(name)}")
        return self._weights[name]


class OnnxGraph:
    """One graph, indexed: initialisers by name, nodes by what they make and by what they take."""

    def __init__(self, path: str) -> None:
        self.path = path
        graph = _parse(path)
        self.initialisers = {tensor.name: tensor for tensor in graph.initializer}
        self.nodes = list(graph.node)
        self.maker = {output: node for node in self.nodes for output in node.output}
        self.users: dict[str, list[Any]] = {}
        for node in self.nodes:
            for value in node.input:
                self.users.setdefault(value, []).append(node)
        for tensor in graph.initializer:
            if tensor.data_location == 1 or tensor.external_data:
                raise ModelFileError(
                    f"{shown(path, limit=200)}: {shown(tensor.name)} lies in another file, which is not opened"
                )

    def weights(self) -> dict[str, _Stored]:
        """Every weight by the name its module has in PyTorch."""
        found: dict[str, _Stored] = {}
        for node in self.nodes:
            for stored in self._of(node):
                if stored.name in found and found[stored.name].tensor.name != stored.tensor.name:
                    raise self._wrong(stored.name, "is two different weights")
                found[stored.name] = stored
        return {self._rooted(name, list(found)): stored for name, stored in found.items()}

    def _of(self, node: Any) -> list[_Stored]:
        """The weights that a node uses."""
        if (
            node.op_type in ("MatMul", "MatMulInteger")
            and len(node.input) > 1
            and node.input[1] in self.initialisers
        ):
            tensor = self.initialisers[node.input[1]]
            affine = self._scale_of_product(node) if node.op_type == "MatMulInteger" else None
            if len(tensor.dims) != 2:
                raise self._wrong(tensor.name, f"multiplies and has {len(tensor.dims)} dimensions")
            if affine is None and tensor.data_type not in _NUMBERS:
                raise self._wrong(tensor.name, "is multiplied by and holds no numbers")
            return [_Stored(_module(node.name) + ".weight", tensor, affine, 1, True)]
        if node.op_type == "DequantizeLinear":
            tensor = self._origin(node.input[0])
            if tensor is not None:
                name = tensor.name.removesuffix(_QUANTISED)
                return [_Stored(name, tensor, self._affine(tensor.name, node.input), _axis(node), False)]
        named = (self.initialisers[value] for value in node.input if value in self.initialisers)
        return [
            _Stored(tensor.name, tensor, None, 0, False)
            for tensor in named
            if tensor.data_type in _NUMBERS
            and tensor.dims
            and "::" not in tensor.name
            and tensor.name.endswith((".weight", ".bias"))
        ]

    def _origin(self, value: str) -> Any:
        """The initialiser whose entries ``value`` holds, moved about; None when it was computed."""
        for _ in range(_TRACED):
            if value in self.initialisers:
                return self.initialisers[value]
            node = self.maker.get(value)
            if node is None or node.op_type not in _MOVES:
                return None
            value = node.input[0]
        return None

    def _scale_of_product(self, node: Any) -> tuple[Any, Any]:
        """Scale and zero point of a product's weight: Cast, then Mul by (scale of the inputs x scale of the weight)."""
        for cast in self.users.get(node.output[0], []):
            for product in self.users.get(cast.output[0], []) if cast.op_type == "Cast" else []:
                for value in product.input if product.op_type == "Mul" else []:
                    scales = self.maker.get(value)
                    stored = (
                        [v for v in scales.input if v in self.initialisers]
                        if scales is not None and scales.op_type == "Mul"
                        else []
                    )
                    if len(stored) == 1:
                        return self._affine(node.input[1], [node.input[1], stored[0], *node.input[3:4]])
        raise self._wrong(node.input[1], "is quantised, and the graph does not say its scale")

    def _affine(self, name: str, inputs: Sequence[str]) -> tuple[Any, Any]:
        """Scale and zero point initialisers; both must be stored, not computed."""
        absent = [value for value in inputs[1:3] if value not in self.initialisers]
        if len(inputs) < 3 or absent:
            raise self._wrong(name, "is quantised, and its scale or zero point is not stored")
        return self.initialisers[inputs[1]], self.initialisers[inputs[2]]

    def _rooted(self, name: str, names: list[str]) -> str:
        """Without a wrapper's word; under ``encoder`` in a file of that name."""
        root = name.partition(".")[0] + "."
        bare = name.removeprefix(root) if all(other.startswith(root) for other in names) else name
        under = os.path.basename(self.path) == "encoder.onnx" and not bare.startswith("encoder.")
        return f"encoder.{bare}" if under else bare

    def _wrong(self, name: str, what: str) -> ModelFileError:
        return ModelFileError(f"{shown(self.path, limit=200)}: {shown(name)} {what}")


def holds_onnx(path: str) -> bool:
    """Whether a directory holds ONNX graphs and no other weights."""
    if not os.path.isdir(path):
        return False
    names = list_directory(path)
    return any(n.endswith(".onnx") for n in names) and not any(
        n.endswith((".safetensors", ".gguf")) for n in names
    )


def _parse(path: str) -> Any:
    """The graph of a file, checked for size before and for nodes after; never executed."""
    try:
        import onnx
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    except ImportError:
        raise ModelFileError(
            f"{shown(path, limit=200)}: reading ONNX needs the onnx package (pip install onnx)"
        ) from None
    length = file_size(path)
    if length > FILE_LIMIT:
        raise ModelFileError(
            f"{shown(path, limit=200)} has {human_bytes(length)}; at most {human_bytes(FILE_LIMIT)} are read"
        )
    try:
        with open(path, "rb") as file:
            model = onnx.ModelProto.FromString(file.read(FILE_LIMIT))
    except (OSError, DecodeError, ValueError) as error:
        raise ModelFileError(f"{shown(path, limit=200)} is not ONNX: {shown(str(error))}") from None
    if not model.graph.node or len(model.graph.node) > _NODE_LIMIT:
        raise ModelFileError(
            f"{shown(path, limit=200)}: {len(model.graph.node):,} nodes; 1 to {_NODE_LIMIT:,} are read"
        )
    return model.graph


# Data types of ONNX that hold numbers as they are, and those that quantised weights are stored in.
_NUMBERS = {1: "F32", 10: "F16", 11: "F64", 16: "BF16"}
_TYPES = {
    1: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    10: torch.float16,
    11: torch.float64,
    16: torch.bfloat16,
}


def _read(tensor: Any) -> Tensor:
    """The entries of an initialiser; ModelFileError unless its bytes are exactly those its shape needs."""
    if tensor.data_type not in _TYPES:
        raise ModelFileError(
            f"ONNX tensor {shown(tensor.name)} is of type {tensor.data_type}, which is not read"
        )
    dtype, count = _TYPES[tensor.data_type], 1
    for extent in tensor.dims:
        if extent < 0:
            raise ModelFileError(f"ONNX tensor {shown(tensor.name)} has an extent below 0")
        count *= extent
    if tensor.raw_data or not count:
        if len(tensor.raw_data) != count * dtype.itemsize:
            raise ModelFileError(
                f"ONNX tensor {shown(tensor.name)}: {len(tensor.raw_data):,} bytes for {count:,} entries of {dtype.itemsize}"
            )
        flat = (
            torch.frombuffer(bytearray(tensor.raw_data), dtype=dtype)
            if count
            else torch.empty(0, dtype=dtype)
        )
    else:
        listed = {1: tensor.float_data, 11: tensor.double_data}.get(tensor.data_type, tensor.int32_data)
        if len(listed) != count or tensor.data_type in (10, 16):
            raise ModelFileError(
                f"ONNX tensor {shown(tensor.name)}: {len(listed):,} listed values for {count:,} entries"
            )
        flat = torch.tensor(list(listed), dtype=dtype)
    return flat.reshape([int(extent) for extent in tensor.dims])


def _along(value: Tensor, part: Any, axis: int) -> Tensor:
    """A scale or zero point laid along ``axis`` of ``value``; one number serves all."""
    numbers = _read(part).float()
    if numbers.numel() == 1:
        return numbers.reshape(())
    if numbers.dim() != 1 or not -value.dim() <= axis < value.dim() or len(numbers) != value.shape[axis]:
        raise ModelFileError(
            f"ONNX: {shown(part.name)} of shape {tuple(numbers.shape)} does not fit a weight {tuple(value.shape)}"
        )
    shape = [1] * value.dim()
    shape[axis] = -1
    return numbers.reshape(shape)


def _axis(node: Any) -> int:
    """Attribute ``axis`` of DequantizeLinear; 1 unless stated."""
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == "axis"), 1)


def _module(node: str) -> str:
    """``/decoder/block.0/q/MatMul_quant`` -> ``decoder.block.0.q``."""
    return ".".join(node.strip("/").split("/")[:-1])
