"""Where the model's tensors lie: the token embedding with the CPU, blocks and output matrix on the GPUs.

    layer i, output   on GPUs when n-gpu-layers reaches them, counted from the output (1) backwards
    tied embedding    once with the CPU, once more beside the last layers as the output matrix
    one GPU's bytes   sum over tensors of rup(bytes + padding of a quantised row to 512 elements, 128)

Read from the GGUF header where the model is such a file; else every tensor gets the type that the converter or the
quantisation gives it (``mixes.py``).
"""

from __future__ import annotations

from headcount.engines.llamacpp.mixes import (
    fit_type,
    layer_type,
    mix_facts,
    mix_name,
    outside_type,
    role,
    stays_f32,
    typed_bytes,
)
from headcount.record import Record
from headcount.spec.attention import LatentAttention
from headcount.spec.gguf_types import GGML_TYPES
from headcount.spec.weight import EMBEDDING, VOCAB
from headcount.units import ceil_div, round_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.engines.llamacpp.mixes import MixFacts
    from headcount.spec.checkpoint import TensorInfo
    from headcount.spec.model import ModelSpec
    from headcount.spec.weight import Weight

# Tensors read with the tokens (LLM_TENSOR_LAYER_INPUT of src/llama-arch.cpp): always the CPU's.
_INPUT = ("token_embd.", "position_embd.", "token_types.", "per_layer_token_embd.")
_ALIGNMENT, _ROW_PADDING = 128, 512
_BLOCKS = {name: (block, size) for name, block, size in GGML_TYPES.values()}


class PlacedWeights(Record):
    """Bytes by place: one entry per block, then the output (norm, matrix, a tied copy), then what stays with the CPU.

    file_bytes   bytes of all tensors once, as in the file
    """

    layers: tuple[int, ...]
    output: int
    host: int
    file_bytes: int

    def held(self, start: int, end: int) -> int:
        """Bytes of items ``start`` to ``end`` (exclusive), the output counted as the item after the last block."""
        count = len(self.layers)
        return sum(self.layers[start : min(end, count)]) + (self.output if end > count else 0)


def placed_weights(model: ModelSpec, name: str = "auto") -> PlacedWeights:
    """Place every tensor; ``name`` is ``auto`` or a GGUF quantisation.

    Raises UnknownNameError for a format that llama.cpp has not.
    """
    key = ("llamacpp weights", name)
    if key not in model.memo:
        checkpoint = model.checkpoint
        from_file = name == "auto" and checkpoint is not None and checkpoint.file_format == "gguf"
        if from_file and model.nominal_parameters is None:
            assert checkpoint is not None
            model.memo[key] = _from_tensors(checkpoint.tensors, len(model.layers))
        else:
            model.memo[key] = _computed(model, weight_mix(model, name))
    found: PlacedWeights = model.memo[key]
    return found


def weight_mix(model: ModelSpec, name: str) -> str:
    """``auto``: what the converter writes: MXFP4 experts as they are, all else in 16 bits."""
    if name != "auto":
        return mix_name(name)
    if model.quantization is not None and model.quantization.method == "mxfp4":
        return "mxfp4_moe"
    return "f16" if model.dtype == "fp16" else "bf16"


def _from_tensors(tensors: tuple[TensorInfo, ...], count: int) -> PlacedWeights:
    layers, output, host = [0] * count, 0, 0
    has_output = any(tensor.name == "output.weight" for tensor in tensors)
    for tensor in tensors:
        block, size = _BLOCKS[tensor.dtype]
        columns = tensor.shape[-1] if tensor.shape else 1
        held = buffer_bytes(tensor.nbytes, columns, block, size)
        if tensor.name.startswith("blk."):
            index = int(tensor.name.split(".")[1])
            # Blocks past the last are multi-token-prediction heads: loaded only for speculative decoding.
            if index < count:
                layers[index] += held
        elif tensor.name.startswith(_INPUT):
            host += tensor.nbytes
            if tensor.name == "token_embd.weight" and not has_output:
                output += held
        else:
            output += held
    total = sum(tensor.nbytes for tensor in tensors)
    return PlacedWeights(layers=tuple(layers), output=output, host=host, file_bytes=total)


def buffer_bytes(nbytes: int, columns: int, block: int, size: int) -> int:
    """One tensor in a CUDA buffer: a quantised row is padded to 512 elements once, the whole to 128 bytes."""
    short = -columns % _ROW_PADDING
    if block > 1 and short:
        nbytes += ceil_div(short, block) * size
    return round_up(nbytes, _ALIGNMENT)


def _computed(model: ModelSpec, mix: str) -> PlacedWeights:
    facts = mix_facts(model)
    layers: list[int] = []
    file_bytes = attention = 0
    for index, layer in enumerate(model.layers):
        held = 0
        for weight in layer.weights:
            stored, placed = _layer_weight(model, weight, mix, (index, attention), facts)
            file_bytes += stored
            held += placed
        layers.append(held)
        attention += any(role(weight, fused=facts.fused) == "attn_v" for weight in layer.weights)
    output = host = 0
    for weight in model.outside:
        kind = outside_type(
            mix, weight, tied=model.tied_embeddings, columns=weight.shape[-1], falcon=facts.falcon
        )
        stored, placed = _typed(weight, kind)
        file_bytes += stored
        if weight.part == EMBEDDING:
            host += stored
            is_table = len(weight.shape) == 2 and weight.shard == VOCAB
            output += placed if is_table and model.tied_embeddings else 0
        else:
            output += placed
    if model.nominal_parameters is None:
        return PlacedWeights(layers=tuple(layers), output=output, host=host, file_bytes=file_bytes)
    part, whole = model.nominal_parameters, model.parameters
    return PlacedWeights(
        layers=tuple(size * part // whole for size in layers),
        output=output * part // whole,
        host=host * part // whole,
        file_bytes=file_bytes * part // whole,
    )


def _layer_weight(
    model: ModelSpec, weight: Weight, mix: str, place: tuple[int, int], facts: MixFacts
) -> tuple[int, int]:
    """``(bytes in the file, bytes in a buffer)``; the latent's up-projection is two tensors, one of them transposed."""
    kind = layer_type(mix, weight, place[0], place[1], facts)
    latent = next(
        (mixer for mixer in model.layers[place[0]].mixers if isinstance(mixer, LatentAttention)), None
    )
    if latent is None or not weight.name.endswith("kv_b_proj"):
        return _typed(weight, kind)
    heads, rank = latent.num_attention_heads, latent.kv_lora_rank
    keys = weight.replace(shape=(heads * rank, latent.qk_nope_head_dim))
    values = weight.replace(shape=(heads * latent.v_head_dim, rank))
    parts = [_typed(part, kind) for part in (keys, values)]
    return sum(stored for stored, _ in parts), sum(placed for _, placed in parts)


def _typed(weight: Weight, kind: str) -> tuple[int, int]:
    if stays_f32(weight):
        return 4 * weight.parameters, round_up(4 * weight.parameters, _ALIGNMENT)
    kind = fit_type(kind, weight.shape[-1])
    stored = typed_bytes(weight.parameters, kind)
    return stored, buffer_bytes(stored, weight.shape[-1], *_BLOCKS[kind])
