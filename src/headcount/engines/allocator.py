"""PyTorch's caching allocator under a model's weights: what it counts for them, and what it takes from the device.

    n        = size rounded up to 512 B
    segment  = 2 MiB for n <= 1 MiB, 20 MiB for n < 10 MiB, else n rounded up to 2 MiB
    a tensor takes the smallest free block that holds it, else a new segment; what is left of the block is split off if it is
    512 B or more (n <= 1 MiB), more than 1 MiB otherwise, and counts as the tensor's own if it is not

So a matrix of 135.6 MiB counts as 136. vLLM prints what is counted, SGLang what the device lost: whole segments. Source:
c10/cuda/CUDACachingAllocator.cpp (kSmallSize, kSmallBuffer, kLargeBuffer, kMinLargeAlloc, kRoundLarge, should_split).
Checked on printed figures of some twenty models in 16 and 8 bits, TP 1 to 8: 30.7098 GiB of Qwen2.5-32B with TP 2 are 30.5223 of
tensors and tables and 0.1875 of this.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from headcount.cost.weights import packing_of, shard_of, tensor_bytes
from headcount.record import Record
from headcount.spec.weight import EXPERT, EXPERTS
from headcount.units import KIB, MIB, ceil_div, round_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headcount.cost.weights import WeightFormat
    from headcount.spec.model import ModelSpec
    from headcount.spec.weight import Weight

_UNIT = KIB // 2
_SMALL, _SMALL_SEGMENT = MIB, 2 * MIB
_OWN_SEGMENT, _LARGE_SEGMENT, _ROUND = 10 * MIB, 20 * MIB, 2 * MIB
# Packed numbers of one byte each; what is smaller is packed anew by the kernels, and its scales are not told apart.
_BYTE_BITS = 8
# Matrices that engines keep as one, by the last word of their names; the first one's place is the merged one's.
_MERGED = {
    name: names[0]
    for names in (
        ("q_proj", "k_proj", "v_proj"),
        ("q", "k", "v"),
        ("gate_proj", "up_proj"),
        ("w1", "w3"),
        ("q_a_proj", "kv_a_proj_with_mqa"),
        ("in_proj_qkv", "in_proj_z"),
        ("in_proj_b", "in_proj_a"),
    )
    for name in names
}


class Blocks(Record):
    """What tensors take [B]: ``counted`` in blocks of their own, ``reserved`` in whole segments."""

    counted: int
    reserved: int


def blocks_of(sizes: Iterable[int]) -> Blocks:
    """The blocks of tensors of ``sizes`` bytes, made in this order and never freed."""
    small: list[int] = []
    large: list[int] = []
    counted = reserved = 0
    for size in sizes:
        needed = max(_UNIT, round_up(size, _UNIT))
        is_small = needed <= _SMALL
        pool = small if is_small else large
        place = bisect_left(pool, needed)
        if place < len(pool):
            block = pool.pop(place)
        else:
            block = _segment(needed)
            reserved += block
        rest = block - needed
        if rest >= (_UNIT if is_small else _SMALL + 1):
            insort(pool, rest)
            block = needed
        counted += block
    return Blocks(counted=counted, reserved=reserved)


def _segment(needed: int) -> int:
    if needed <= _SMALL:
        return _SMALL_SEGMENT
    return _LARGE_SEGMENT if needed < _OWN_SEGMENT else round_up(needed, _ROUND)


def tensor_sizes(
    model: ModelSpec,
    weights: Iterable[Weight],
    layer: int,
    fmt: WeightFormat,
    ranks: Callable[[Weight], int],
    *,
    vocab_multiple: int,
) -> list[int]:
    """Bytes of the tensors of one rank for ``weights`` of layer ``layer``, merged as engines merge them.

    ``ranks``: how many share a weight. All experts of a layer are one tensor for each of their merged matrices; scales of
    8-bit weights are tensors beside their matrices.
    """
    found: dict[str, int] = {}
    copies: dict[str, int] = {}
    for weight in weights:
        tp = ranks(weight)
        words = weight.name.split(".")
        place = -2 if words[-1] == "bias" and len(words) > 1 else -1
        words[place] = _MERGED.get(words[place], words[place])
        name, whole = ".".join(words), tensor_bytes(model, weight, layer, fmt, tp, vocab_multiple)
        packing = packing_of(model, weight, layer, fmt)
        if packing is not None and packing.bits == _BYTE_BITS:
            numbers = shard_of(weight, tp, vocab_multiple).parameters
            packed = min(whole, ceil_div(numbers, tp) if weight.shard == EXPERT else numbers)
            found[f"{name} scales"] = found.get(f"{name} scales", 0) + whole - packed
            whole = packed
        found[name] = found.get(name, 0) + whole
        copies[name] = 1 if weight.part == EXPERTS else weight.copies
    sizes = []
    for name, size in found.items():
        count = copies.get(name, 1)
        sizes += [size // count] * count if size else []
    return sizes


def layer_sizes(
    model: ModelSpec,
    cut: tuple[int, int],
    fmt: WeightFormat,
    ranks: Callable[[Weight], int],
    *,
    vocab_multiple: int,
) -> list[int]:
    """``tensor_sizes`` of the decoder blocks ``cut[0]`` to ``cut[1]`` (exclusive), in order."""
    per_layer = fmt.own and model.quantization is not None and model.quantization.depends_on_layer
    known: dict[object, list[int]] = {}
    sizes = []
    for index in range(*cut):
        layer = model.layers[index]
        key: object = index if per_layer else id(layer)
        if key not in known:
            known[key] = tensor_sizes(model, layer.weights, index, fmt, ranks, vocab_multiple=vocab_multiple)
        sizes += known[key]
    return sizes
