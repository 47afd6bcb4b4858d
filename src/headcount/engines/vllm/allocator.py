"""What PyTorch's caching allocator counts for the weights of one rank: "Model loading took" is its figure, not the tensors'.

    n        = size rounded up to 512 B
    segment  = 2 MiB for n <= 1 MiB, 20 MiB for n < 10 MiB, else n rounded up to 2 MiB
    a tensor takes the smallest free block that holds it, else a new segment; what is left of the block is split off if it is
    512 B or more (n <= 1 MiB), more than 1 MiB otherwise, and counts as the tensor's own if it is not

So a matrix of 135.6 MiB counts as 136. Source: c10/cuda/CUDACachingAllocator.cpp (kSmallSize, kMinLargeAlloc, should_split).
Checked on printed figures of some twenty models in 16 and 8 bits (0.6 to 0.27), TP 1 to 8: 30.7098 GiB of Qwen2.5-32B with
TP 2 are 30.5223 of tensors and tables and 0.1875 of this.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from headcount.cost.weights import packing_of, shard_of, tensor_bytes
from headcount.spec.weight import EMBEDDING, EXPERT
from headcount.units import KIB, MIB, ceil_div, round_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headcount.cost.weights import WeightFormat
    from headcount.spec.model import ModelSpec
    from headcount.spec.weight import Weight

_UNIT = KIB // 2
_SMALL, _LARGE = MIB, 10 * MIB
_PACKED_BITS = 8
# Matrices that vLLM keeps as one, by the last word of their names; the first one's place is the merged one's.
_MERGED = {
    name: names[0]
    for names in (
        ("q_proj", "k_proj", "v_proj"),
        ("q", "k", "v"),
        ("gate_proj", "up_proj"),
        ("w1", "w3"),
        ("in_proj_qkv", "in_proj_z"),
        ("in_proj_b", "in_proj_a"),
    )
    for name in names
}


def unused_bytes(sizes: Iterable[int]) -> int:
    """Bytes that the allocator counts beyond ``sizes``, tensors made in this order and never freed [B]."""
    small: list[int] = []
    large: list[int] = []
    unused = 0
    for size in sizes:
        needed = max(_UNIT, round_up(size, _UNIT))
        is_small = needed <= _SMALL
        pool = small if is_small else large
        place = bisect_left(pool, needed)
        if place < len(pool):
            block = pool.pop(place)
        elif is_small:
            block = 2 * MIB
        else:
            block = 20 * MIB if needed < _LARGE else round_up(needed, 2 * MIB)
        rest = block - needed
        if rest >= (_UNIT if is_small else _SMALL + 1):
            insort(pool, rest)
            block = needed
        unused += block - size
    return unused


def rank_sizes(
    model: ModelSpec, fmt: WeightFormat, tp: int, start: int, end: int, *, vocab_multiple: int
) -> list[int] | None:
    """Bytes of the tensors that one rank makes for layers ``start`` to ``end``, in order, merged as vLLM merges them.

    Scales are tensors beside their matrices. None with weights of less than 8 bits, whose kernels make their own anew
    while loading.
    """
    per_layer = fmt.own and model.quantization is not None and model.quantization.depends_on_layer
    known: dict[object, list[int] | None] = {}

    def merged(weights: Sequence[Weight], layer: int) -> list[int] | None:
        # All experts of a layer are one tensor for each of their merged matrices.
        found: dict[str, int] = {}
        for weight in weights:
            packing = packing_of(model, weight, layer, fmt)
            if packing is not None and packing.bits != _PACKED_BITS:
                return None
            words = weight.name.split(".")
            place = -2 if words[-1] == "bias" and len(words) > 1 else -1
            words[place] = _MERGED.get(words[place], words[place])
            name, whole = ".".join(words), tensor_bytes(model, weight, layer, fmt, tp, vocab_multiple)
            if packing is not None:
                numbers = shard_of(weight, tp, vocab_multiple).parameters
                packed = min(whole, ceil_div(numbers, tp) if weight.shard == EXPERT else numbers)
                found[f"{name} scales"] = found.get(f"{name} scales", 0) + whole - packed
                whole = packed
            found[name] = found.get(name, 0) + whole
        return [size for size in found.values() if size]

    sizes: list[int] = []
    if start == 0:
        for tower in model.towers:
            for weight in tower.weights:
                each = shard_of(weight.replace(copies=1), tp, 1).parameters * fmt.dtype_bytes
                sizes += [each] * weight.copies
        sizes += merged([weight for weight in model.outside if weight.part == EMBEDDING], 0) or []
    for index in range(start, end):
        layer = model.layers[index]
        key: object = index if per_layer else id(layer)
        if key not in known:
            known[key] = merged(layer.weights, index)
        found = known[key]
        if found is None:
            return None
        sizes += found
    if end == len(model.layers):
        sizes += merged([weight for weight in model.outside if weight.part != EMBEDDING], 0) or []
    return sizes
