"""What the tensors of a rank take on the device: "mem usage" of "Load weight end", a difference of free memory.

    mem usage = tensors + rotary tables + what the segments of PyTorch's allocator hold beyond them (engines/allocator.py)

SGLang reads the driver's free memory before and after loading, so that whole segments count. Projections that it merges
into one module are one tensor.

Seen in logs: Qwen3-14B at TP 4 prints 7.08 GiB where its tensors are 6.878, its table 0.020 and the rounding 0.179.
Source: sglang 0.5.23, srt/model_executor/model_runner.py (load_model), srt/layers/rotary_embedding/base.py.
"""

from __future__ import annotations

from headcount.engines.allocator import blocks_of, layer_sizes, tensor_sizes
from headcount.engines.rotary import rotary_numbers
from headcount.engines.sglang.refusals import FALLBACK, VOCAB_MULTIPLE
from headcount.spec.attention import LatentAttention
from headcount.spec.weight import ATTENTION, EMBEDDING, STATE_SPACE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headcount.cost.weights import WeightFormat
    from headcount.engines.sglang.options import Setup
    from headcount.spec.model import LayerSpec, ModelSpec
    from headcount.spec.weight import Weight

# What attention groups divide, where there are several.
_ATTENTION_PARTS = (ATTENTION, STATE_SPACE, EMBEDDING)
# Types whose attention does not rotate, or rotates by angles that are computed in every pass.
_NO_TABLE = ("gemma3_text", "kimi_linear", "nemotron_h", *FALLBACK)


def table_bytes(model: ModelSpec, setup: Setup) -> int:
    """Tables of cosines and sines on every rank: vLLM's code, but kept in ``setup.rotary_dtype_bytes``."""
    return 0 if model.family in _NO_TABLE else rotary_numbers(model) * setup.rotary_dtype_bytes


def rounding_bytes(
    model: ModelSpec, cut: tuple[int, int], fmt: WeightFormat, setup: Setup, *, tp: int
) -> int:
    """What the allocator's segments hold beyond the tensors and tables of layers ``cut[0]`` to ``cut[1]`` (exclusive)."""
    key = ("sglang_rounding", cut, fmt, tp, setup.attention_tp, setup.tower, setup.rotary_dtype_bytes)
    if key not in model.memo:
        sizes = _sizes(model, cut, fmt, setup, tp=tp)
        model.memo[key] = blocks_of(sizes).reserved - sum(sizes)
    found: int = model.memo[key]
    return found


def _sizes(model: ModelSpec, cut: tuple[int, int], fmt: WeightFormat, setup: Setup, *, tp: int) -> list[int]:
    """Bytes of one rank's tensors, in the order in which the modules are made; absorbed copies come last."""
    start, end = cut

    def ranks(weight: Weight) -> int:
        return setup.attention_tp if weight.part in _ATTENTION_PARTS else tp

    def sizes_of(weights: Iterable[Weight], ranks: Callable[[Weight], int] = ranks) -> list[int]:
        return tensor_sizes(model, weights, 0, fmt, ranks, vocab_multiple=VOCAB_MULTIPLE)

    sizes = []
    if start == 0:
        if setup.tower:
            towers = (weight for tower in model.towers for weight in tower.weights)
            sizes += sizes_of(towers, lambda _: setup.attention_tp)
        sizes += sizes_of(weight for weight in model.outside if weight.part == EMBEDDING)
    sizes.append(table_bytes(model, setup))
    sizes += layer_sizes(model, cut, fmt, ranks, vocab_multiple=VOCAB_MULTIPLE)
    if end == len(model.layers):
        sizes += sizes_of(weight for weight in model.outside if weight.part != EMBEDDING)
    for layer in model.layers[start:end]:
        sizes += _absorbed(layer, setup.attention_tp)
    return [size for size in sizes if size]


def absorbed_bytes(model: ModelSpec, start: int, end: int, tp: int) -> int:
    """Copies W_UK and W_UV of latent attention in 16 bits: ``N / T r (d_nope + d_v) 2`` a layer."""
    return sum(sum(_absorbed(layer, tp)) for layer in model.layers[start:end])


def _absorbed(layer: LayerSpec, tp: int) -> list[int]:
    return [
        mixer.num_attention_heads // tp * mixer.kv_lora_rank * width * 2
        for mixer in layer.mixers
        if isinstance(mixer, LatentAttention)
        for width in (mixer.qk_nope_head_dim, mixer.v_head_dim)
    ]
