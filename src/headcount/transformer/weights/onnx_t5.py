"""A T5 exported to ONNX as ``encoder.onnx`` and ``decoder.onnx``: its description read from the graphs, its weights loaded.

No config lies beside such files. Widths are shapes; the activation is the graph's own operator; the epsilon is a constant of
the graph; the head's scaling is what stands between last norm and head. The reach of the relative positions (128) and the
ids of start (0) and end (1) are T5's in every release.
"""

from __future__ import annotations

import os
import re
import struct
from typing import Any

import torch

from headcount.errors import ModelFileError, UnsupportedModelError
from headcount.spec.checkpoint import shown
from headcount.spec.huggingface.config import spec_from_config
from headcount.transformer.families import t5
from headcount.transformer.weights.load import load_network
from headcount.transformer.weights.model import LoadedModel
from headcount.transformer.weights.names import read_names
from headcount.transformer.weights.onnx_file import OnnxGraph, OnnxSource

_BIAS = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
_ACTIVATIONS = {"Tanh": "gelu_new", "Erf": "gelu", "Sigmoid": "silu", "Relu": "relu"}


def load_onnx_t5(path: str, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> LoadedModel:
    """Load a directory with ``encoder.onnx`` and ``decoder.onnx``; quantised weights become numbers of ``dtype``.

    Activations stay as they are: a runtime that quantises them as it runs (DynamicQuantizeLinear) rounds where this does not.
    That shows: of eight requests to an int8 Flan-T5-small, onnxruntime 1.32 (CPU, 2026-11-30) gave the tokens of this network
    for two as the graphs are shipped, and for all eight once they no longer quantised activations (graph optimisations off).
    Raises ModelFileError and UnsupportedModelError.
    """
    source = OnnxSource(path)
    config = t5_config(source)
    spec = spec_from_config(config, name=os.path.basename(os.path.abspath(path)), source=path)
    with torch.device("meta"):
        network = t5.build(spec)
    load_network(network, source, read_names(t5.NAMES), {}, dtype=dtype, device=device, ignored=t5.IGNORED)
    own = "encoder.embed_tokens.weight"
    if own in source.names() and not torch.equal(source.tensor(own), source.tensor("shared.weight")):
        raise ModelFileError(
            f"{shown(path, limit=200)}: encoder and decoder hold different token tables; a T5 has one"
        )
    return LoadedModel(spec, network.eval(), path)


def t5_config(source: OnnxSource) -> dict[str, Any]:
    """The config that the graphs amount to."""
    names = set(source.names())
    lacking = [
        name for name in ("shared.weight", f"encoder.{_BIAS}", f"decoder.{_BIAS}") if name not in names
    ]
    if lacking or "decoder.onnx" not in source.graphs:
        raise ModelFileError(
            f"{shown(source.path, limit=200)} is no exported T5: {', '.join(lacking) or 'no decoder.onnx'} is missing"
        )
    vocabulary, width = source.shape("shared.weight")
    buckets, heads = source.shape(f"decoder.{_BIAS}")
    inner = source.shape("decoder.block.0.layer.0.SelfAttention.q.weight")[0]
    feed_forward = "decoder.block.0.layer.2.DenseReluDense."
    gated = feed_forward + "wi_0.weight" in names
    if inner % heads:
        raise ModelFileError(
            f"{shown(source.path, limit=200)}: {inner} query columns do not divide into {heads} heads"
        )
    graph = source.graphs["decoder.onnx"]
    untied = "lm_head.weight" in names
    activation = _activation(graph)
    return {
        "model_type": "t5",
        "vocab_size": vocabulary,
        "d_model": width,
        "d_kv": inner // heads,
        "d_ff": source.shape(feed_forward + ("wi_0.weight" if gated else "wi.weight"))[0],
        "num_heads": heads,
        "num_layers": _layers(names, "encoder"),
        "num_decoder_layers": _layers(names, "decoder"),
        "relative_attention_num_buckets": buckets,
        "relative_attention_max_distance": 128,
        "layer_norm_epsilon": _epsilon(graph),
        "feed_forward_proj": f"gated-{activation}" if gated else activation,
        "tie_word_embeddings": not untied,
        "scale_decoder_outputs": _scales(graph),
        "decoder_start_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 0,
    }


def _layers(names: set[str], stack: str) -> int:
    numbers = {
        int(found[1]) for name in names if (found := re.match(rf"{stack}\.block\.(\d{{1,4}})\.", name))
    }
    if numbers != set(range(len(numbers))):
        raise ModelFileError(f"ONNX: the blocks of the {stack} are not numbered from 0 without a gap")
    return len(numbers)


def _activation(graph: OnnxGraph) -> str:
    """What the feed-forward of the first block computes between its matrices."""
    inside = {node.op_type for node in graph.nodes if "/block.0/layer.2/DenseReluDense/act" in node.name}
    found = [word for operator, word in _ACTIVATIONS.items() if operator in inside]
    if len(found) != 1:
        raise UnsupportedModelError(
            f"ONNX: the activation of {', '.join(sorted(inside)) or 'no operator'} is not known"
        )
    return found[0]


def _epsilon(graph: OnnxGraph) -> float:
    """The constant that the last norm adds to its mean square."""
    for node in graph.nodes:
        if node.op_type == "Add" and node.name.endswith("/final_layer_norm/Add"):
            for value in node.input:
                maker = graph.maker.get(value)
                if maker is not None and maker.op_type == "Constant":
                    raw = maker.attribute[0].t.raw_data
                    if len(raw) == 4:
                        return float(f"{struct.unpack('<f', raw)[0]:.6g}")
    raise UnsupportedModelError("ONNX: the epsilon of the last norm is not a constant of the graph")


def _scales(graph: OnnxGraph) -> bool:
    """Whether anything stands between the last norm and the head: T5's 1 / sqrt(D)."""
    for node in graph.nodes:
        if node.name.endswith(("lm_head/MatMul", "lm_head/MatMul_quant")):
            value = node.input[0]
            made = graph.maker.get(value)
            if made is not None and made.op_type == "DynamicQuantizeLinear":
                value = made.input[0]
            made = graph.maker.get(value)
            return made is None or "/final_layer_norm/" not in made.name
    raise UnsupportedModelError("ONNX: the graph has no output head")
