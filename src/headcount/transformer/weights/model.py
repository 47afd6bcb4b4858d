"""A path -> a network that holds its weights: the description is read, the network laid out on no memory, then filled."""

from __future__ import annotations

import os
import re
from typing import Any, NamedTuple

import torch

from headcount.spec.huggingface.encoder_only import read_encoder
from headcount.spec.model import ModelSpec
from headcount.spec.reader import read_model
from headcount.transformer.families.registry import build_network, family_of
from headcount.transformer.weights.gguf_file import GgufSource
from headcount.transformer.weights.gguf_names import gguf_names
from headcount.transformer.weights.gguf_settings import with_rotary
from headcount.transformer.weights.letters import letters_of
from headcount.transformer.weights.load import load_network
from headcount.transformer.weights.mxfp4 import open_mxfp4
from headcount.transformer.weights.names import read_names
from headcount.transformer.weights.onnx_file import holds_onnx
from headcount.transformer.weights.source import check_inside, open_weights


class LoadedModel(NamedTuple):
    """A model that runs: its description, its network, the file or directory it came from."""

    spec: ModelSpec
    network: Any
    path: str


def load_model(path: str, *, dtype: torch.dtype | None = None, device: str = "cpu") -> LoadedModel:
    """Read a directory (``config.json`` and ``*.safetensors``), one of its files, a ``*.gguf``, or a T5's ``*.onnx`` pair.

    ``dtype`` None keeps the type the checkpoint stores (float32 for packed types).

    Raises
    ------
    ModelFileError: damaged, or tensors missing, left over or mis-shaped, by name.
    UnsupportedModelError: a model type whose network is not built here.
    """
    if holds_onnx(path):
        # Its description is read from the graphs; it needs this module's LoadedModel.
        from headcount.transformer.weights.onnx_t5 import load_onnx_t5

        return load_onnx_t5(path, dtype=torch.float32 if dtype is None else dtype, device=device)
    source = open_mxfp4(open_weights(path))
    folder = path if os.path.isdir(path) else os.path.dirname(path) or os.curdir
    check_inside([os.path.join(folder, "config.json")], folder)
    spec = (None if isinstance(source, GgufSource) else read_encoder(folder)) or read_model(path)
    if isinstance(source, GgufSource):
        rows = gguf_names(source.architecture)
        spec, named = with_rotary(spec, source)
        ignored = [re.escape(name) for name in named]
    else:
        family = family_of(spec)
        rows, ignored = read_names(family.NAMES), list(getattr(family, "IGNORED", ()))
    network = build_network(spec)
    load_network(
        network,
        source,
        rows,
        lambda layer: letters_of(spec, layer),
        dtype=dtype,
        device=device,
        ignored=ignored,
    )
    return LoadedModel(spec, network, path)
