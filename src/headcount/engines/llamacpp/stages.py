"""One GPU of a layer split: which layers it runs, what lies on it, how many slots it holds.

items      blocks 0 .. L-1 and the output as item L
first      L + 1 - n-gpu-layers: items before it stay with the CPU
GPU of item i   floor((i - first) x GPUs / items on GPUs)                    equal cards (src/llama-model.cpp)
room(n)    offered - context - weights - compute buffer(n) - caches(n)       n slots of the asked context
slots      the largest n with room(n) >= 0
"""

from __future__ import annotations

from itertools import pairwise

from headcount.engines.calibration import measured_terms
from headcount.engines.llamacpp import device
from headcount.engines.llamacpp.caches import cache_bytes
from headcount.engines.llamacpp.compute import compute_buffer
from headcount.engines.llamacpp.own_engine import tower_bytes
from headcount.engines.llamacpp.weights import placed_weights
from headcount.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.engines.base import Case
    from headcount.engines.llamacpp.builds import Build
    from headcount.engines.llamacpp.compute import ComputeBuffer
    from headcount.engines.llamacpp.options import Options

BEST, LEAST, MOST = "best", "least", "most"


class Stage(Record):
    """One GPU: the items it runs, ``total`` as CUDA reports it, ``reserved`` and weights on it.

    contexts  bytes of the CUDA context: expected, low, high; measured ones are all three
    spread    of ``total``, either way
    measured  terms that a calibration gave, with the calibration's file or origin
    """

    case: Case
    options: Options
    rules: Build
    start: int
    end: int
    total: int
    reserved: int
    weights: int
    contexts: tuple[int, int, int]
    spread: int
    measured: tuple[tuple[str, str], ...] = ()

    def slot_context(self, slots: int) -> int:
        """``-c`` for ``slots`` conversations: each gets its own cells, rounded up by the build."""
        return self.case.context * slots

    def compute(self, slots: int) -> ComputeBuffer:
        """The compute buffer of this GPU."""
        return compute_buffer(
            self.case.model,
            self.slot_context(slots),
            slots,
            options=self.options,
            rules=self.rules,
            gpus=self.case.layout.pp,
        )

    def cached(self, slots: int) -> int:
        """Bytes of the caches on this GPU."""
        if not self.options.kv_offload:
            return 0
        caches = cache_bytes(
            self.case.model, self.slot_context(slots), slots, options=self.options, rules=self.rules
        )
        return sum(cache.held(self.start, self.end) for cache in caches)

    def budget(self, slots: int, bound: str = BEST) -> int:
        """What ``slots`` slots leave for the caches, at the best estimate or at an end of the interval."""
        buffer = self.compute(slots)
        expected, least, most = self.contexts
        room = self.total - self.reserved - self.weights
        if bound == LEAST:
            return room - self.spread - most - buffer.high
        if bound == MOST:
            return room + self.spread - least - buffer.low
        return room - expected - buffer.expected

    def fits(self, slots: int, bound: str = BEST) -> bool:
        """Whether the caches of ``slots`` slots fit."""
        return self.cached(slots) <= self.budget(slots, bound)


def case_stages(case: Case, options: Options, rules: Build, *, engine: str, version: str) -> list[Stage]:
    """The GPUs of ``case``, first layers first; a calibration's device total, context and weights are taken as measured.

    Its compute buffer is not: that changes with slots and context.
    """
    placed = placed_weights(case.model, case.settings.weights)
    names = ["non_torch_bytes", "weight_bytes", *([] if case.settings.memory_bytes else ["device_bytes"])]
    terms = measured_terms(case, names, engine, version)
    found = {name: value for name, (value, _) in terms.items()}
    total = case.settings.memory_bytes or found.get("device_bytes")
    spread = 0 if total else device.device_spread(case.accelerator, case.settings)
    total = total or device.device_bytes(case.accelerator, case.settings)
    context, loaded = found.get("non_torch_bytes"), found.get("weight_bytes")
    reserved = device.reserved_bytes(total, case.settings, options)
    # They are computed before the first layer on a GPU.
    towers = tower_bytes(case.model, rules)
    splits = split_items(len(case.model.layers), case.layout.pp, options.gpu_layers)
    first = splits[0][0]
    return [
        Stage(
            case=case,
            options=options,
            rules=rules,
            start=start,
            end=end,
            total=total,
            reserved=reserved,
            weights=placed.held(start, end) + (towers if start == first else 0) if loaded is None else loaded,
            contexts=device.CONTEXTS if context is None else (context, context, context),
            spread=spread,
            measured=tuple((name, where) for name, (_, where) in terms.items()),
        )
        for start, end in splits
    ]


def split_items(layers: int, gpus: int, gpu_layers: int | None) -> list[tuple[int, int]]:
    """``(first item, end)`` of every GPU; the output is item ``layers``."""
    items = layers + 1
    on_gpus = items if gpu_layers is None else min(gpu_layers, items)
    first = items - on_gpus
    # Item i goes to GPU floor((i - first) x gpus / on_gpus): a GPU starts at the first i that reaches it.
    starts = [first - (-gpu * on_gpus // gpus) for gpu in range(gpus + 1)]
    return list(pairwise(starts))


def most_slots(stages: list[Stage], limit: int, bound: str) -> int:
    """The largest count up to ``limit`` that every stage holds; need grows with the count, so it is bisected."""

    def holds(slots: int) -> bool:
        return all(stage.fits(slots, bound) for stage in stages)

    if not holds(1):
        return 0
    low, high = 1, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
