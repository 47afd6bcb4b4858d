"""Write a reference model as a GGUF file the way llama.cpp's converter does (``convert_hf_to_gguf.py``, 2026-11).

Names come from the gguf library's own map; what the converter does to the numbers is written out here per architecture.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor

NAMES = {value: key for key, value in gguf.MODEL_ARCH_NAMES.items()}
Convert = Callable[[str, Tensor, Any], Tensor]


def as_is(name: str, x: Tensor, config: Any) -> Tensor:
    return x


def in_pairs(name: str, x: Tensor, config: Any) -> Tensor:
    """Llama: within each query and key head, rows j and j + H/2 become neighbours."""
    if "q_proj" in name or "k_proj" in name:
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        return x.reshape(heads, 2, -1, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)
    return x


def norms_plus_one(name: str, x: Tensor, config: Any) -> Tensor:
    return x + 1 if "norm" in name else x


def together(name: str, x: Tensor, config: Any) -> Tensor:
    """Falcon, BLOOM: all query heads, then all key heads, then all value heads."""
    if "query_key_value" not in name:
        return x
    heads = config.num_attention_heads
    new = getattr(config, "new_decoder_architecture", False)
    kv = config.num_kv_heads if new else 1 if getattr(config, "multi_query", False) else heads
    width = config.hidden_size // heads
    parts = x.reshape(kv, heads // kv + 2, width, *x.shape[1:])
    cut = [parts[:, :-2], parts[:, -2:-1], parts[:, -1:]]
    return torch.cat([part.reshape(-1, *x.shape[1:]) for part in cut])


def turned(name: str, x: Tensor, config: Any) -> Tensor:
    """GPT-2: (inputs, outputs) becomes (outputs, inputs)."""
    return x.t() if x.ndim == 2 and ".h." in name and "ln_" not in name else x


CONVERT: dict[str, Convert] = {
    "llama": in_pairs,
    "gemma": norms_plus_one,
    "gemma2": norms_plus_one,
    "gemma3": norms_plus_one,
    "falcon": together,
    "bloom": together,
    "gpt2": turned,
}


def write_gguf(path: Path, model: Any, arch: str, *, kind: str = "F32", **metadata: Any) -> None:
    """Write the weights of ``model`` and the keys its architecture needs; matrices as ``kind``."""
    config = model.config
    layers = config.num_hidden_layers
    writer = gguf.GGUFWriter(str(path), arch)
    writer.add_block_count(layers)
    writer.add_context_length(getattr(config, "max_position_embeddings", 64) or 64)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(getattr(config, "intermediate_size", None) or 4 * config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    for key, value in metadata.items():
        getattr(writer, "add_" + key)(value)
    names = gguf.get_tensor_name_map(NAMES[arch], layers)
    convert = CONVERT.get(arch, as_is)
    wanted = gguf.GGMLQuantizationType[kind]
    tied = config.tie_word_embeddings
    for name, tensor in model.state_dict().items():
        stem, _, suffix = name.rpartition(".")
        theirs = names.get_name(stem) or names.get_name(stem.removeprefix("transformer."))
        if (tied and stem == "lm_head") or suffix not in ("weight", "bias"):
            continue
        assert theirs, f"gguf has no name for {name}"
        data = convert(name, tensor.detach().float(), config).contiguous().numpy()
        quantised = wanted if data.ndim == 2 else gguf.GGMLQuantizationType.F32
        packed = gguf.quants.quantize(data, quantised)
        writer.add_tensor(f"{theirs}.{suffix}", packed, raw_dtype=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def small_file(
    path: Path, tensors: dict[str, np.ndarray[Any, Any]], metadata: dict[str, Any], arch: str = "llama"
) -> None:
    """A GGUF file of any tensors (float32) and metadata; keys end in their kind: ``_array``, ``_text``, ``_flag``, ``_id``."""
    writer = gguf.GGUFWriter(str(path), arch)
    for key, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_array(key, value)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
