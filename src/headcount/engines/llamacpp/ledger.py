"""The arithmetic of one llama.cpp GPU as terms: where its memory goes, then how a slot's caches come about."""

from __future__ import annotations

from headcount.engines.llamacpp import device
from headcount.engines.llamacpp.caches import STATE, cache_bytes
from headcount.ledger import Ledger, Term

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.engines.base import GpuBudget
    from headcount.engines.llamacpp.caches import Cache
    from headcount.engines.llamacpp.stages import Stage


def stage_ledger(stage: Stage, budget: GpuBudget, slots: int) -> Ledger:
    """All terms of the GPU that binds, for the planned number of slots."""
    planned = max(1, slots)
    caches = cache_bytes(
        stage.case.model, stage.slot_context(planned), planned, options=stage.options, rules=stage.rules
    )
    cells = tuple(term for cache in caches for term in _cache_terms(stage, cache))
    return Ledger(
        name=f"one GPU, layers {stage.start} to {stage.end - 1}",
        terms=(
            *_memory_terms(stage, budget),
            *_reserve_terms(stage, budget, planned),
            *cells,
            _slot_term(stage, budget, slots, planned),
        ),
    )


def _memory_terms(stage: Stage, budget: GpuBudget) -> tuple[Term, ...]:
    case = stage.case
    asked = case.settings.utilization is not None or case.settings.reserve is not None
    return (
        Term(
            name="device memory, as CUDA reports it",
            symbol="M",
            value=budget.memory,
            unit="B",
            formula="driver's total - what CUDA keeps" if case.settings.memory_bytes is None else "--memory",
            source=f"{case.accelerator.name}: {case.accelerator.driver_bytes_source}",
        ),
        Term(
            name="left free",
            symbol="R",
            value=budget.reserved,
            unit="B",
            formula="the fraction asked for" if asked else "--fit-target",
            source="llama.cpp common/fit.cpp: 1024 MiB on every device",
        ),
        Term(
            name="weights on this GPU",
            symbol="W",
            value=budget.weights,
            unit="B",
            formula="sum of tensors, each in whole 128 bytes",
            numbers=f"items {stage.start} to {stage.end - 1} of {len(case.model.layers)} blocks and the output",
            source="GGUF header" if case.model.checkpoint is not None else "GGUF types by name",
        ),
    )


def _reserve_terms(stage: Stage, budget: GpuBudget, slots: int) -> tuple[Term, ...]:
    buffer = stage.compute(slots)
    return (
        Term(
            name="CUDA context and kernels",
            symbol="X",
            value=stage.contexts[0],
            unit="B",
            formula="measured",
            source=device.CONTEXT_SOURCE,
        ),
        Term(
            name="compute buffer",
            symbol="G",
            value=buffer.expected,
            unit="B",
            formula="max(masks + largest temporaries, logits)",
            numbers=f"{buffer.binding} binds, masks {buffer.masks:,}; {buffer.low:,} to {buffer.high:,}",
            source=f"llama.cpp {stage.rules.name}: graph reserve, predicted",
        ),
        Term(
            name="cache budget",
            symbol="C",
            value=budget.kv_budget,
            unit="B",
            formula="M - R - W - X - G",
            numbers=f"{budget.memory:,} - {budget.reserved:,} - {budget.weights:,} - {stage.contexts[0]:,} - "
            f"{buffer.expected:,}",
        ),
    )


def _cache_terms(stage: Stage, cache: Cache) -> tuple[Term, ...]:
    options = stage.options
    if cache.name == STATE:
        return (
            Term(
                name=f"{cache.name}, {cache.layers} layers",
                symbol="S",
                value=cache.total_bytes,
                unit="B",
                formula="slots x 4 x (conv + state), summed over layers",
                numbers=f"{cache.key_bytes:,} + {cache.value_bytes:,}, {cache.cells} slots",
                source="llama.cpp llama-memory-recurrent.cpp: f32",
            ),
        )
    return (
        Term(
            name=f"{cache.name}: cells of a stream",
            symbol="n",
            value=cache.cells,
            unit="cells",
            formula="rup(n_ctx / slots, multiple)" if cache.streams > 1 else "rup(n_ctx, multiple)",
            numbers=f"-c {stage.slot_context(max(1, cache.streams)):,}, {cache.streams} streams",
            source=f"llama.cpp {stage.rules.name}",
        ),
        Term(
            name=f"{cache.name}, {cache.layers} layers",
            symbol="K+V",
            value=cache.total_bytes,
            unit="B",
            formula="n x streams x (row K + row V), summed over layers",
            numbers=f"{cache.key_bytes:,} ({options.key.name}) + {cache.value_bytes:,} ({options.value.name})",
        ),
    )


def _slot_term(stage: Stage, budget: GpuBudget, slots: int, planned: int) -> Term:
    return Term(
        name="conversations per replica",
        symbol="N_conv",
        value=slots,
        unit="conversations",
        formula="largest n: caches(n) + G(n) fit",
        numbers=f"caches of {planned} slots take {stage.cached(planned):,} of {budget.kv_budget:,} on this GPU",
    )
