"""The arithmetic of one llama.cpp GPU as terms: where its memory goes, then how a slot's caches come about."""

from __future__ import annotations

from headcount.engines.llamacpp import device
from headcount.engines.llamacpp.caches import SLIDING, STATE, cache_bytes, layer_rows, stream_cells
from headcount.engines.llamacpp.own_engine import kept_per_slot, tower_bytes
from headcount.engines.llamacpp.stages import split_items
from headcount.engines.llamacpp.weights import placed_weights
from headcount.ledger import Ledger, Term
from headcount.units import MIB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.engines.base import GpuBudget
    from headcount.engines.llamacpp.caches import Cache
    from headcount.engines.llamacpp.compute import ComputeBuffer
    from headcount.engines.llamacpp.stages import Stage


def stage_ledger(stage: Stage, budget: GpuBudget, slots: int) -> Ledger:
    """All terms of the GPU that binds, for the planned number of slots."""
    planned = max(1, slots)
    caches = cache_bytes(
        stage.case.model, stage.slot_context(planned), planned, options=stage.options, rules=stage.rules
    )
    cells = tuple(term for cache in caches for term in _cache_terms(stage, cache, planned))
    return Ledger(
        name=f"one GPU, layers {stage.start} to {stage.end - 1}",
        terms=(
            *_memory_terms(stage, budget),
            *_reserve_terms(stage, budget, planned),
            *cells,
            _slot_term(stage, budget, slots, planned),
        ),
    )


def _as_measured(stage: Stage, name: str, term: Term) -> Term:
    """``term``, with the calibration as its source where that gave its value."""
    source = dict(stage.measured).get(name)
    return term if source is None else term.replace(formula="measured", numbers="", source=source)


def _memory_terms(stage: Stage, budget: GpuBudget) -> tuple[Term, ...]:
    case, options = stage.case, stage.options
    share = case.settings.utilization
    if share is None and case.settings.reserve is not None:
        share = 1 - case.settings.reserve
    total = Term(
        name="device memory, as CUDA reports it",
        symbol="M",
        value=budget.memory,
        unit="B",
        formula="driver's total - what CUDA keeps" if case.settings.memory_bytes is None else "--memory",
        numbers="" if case.settings.memory_bytes else _total_numbers(stage),
        source=f"{case.accelerator.name}: {case.accelerator.driver_bytes_source}",
    )
    return (
        _as_measured(stage, "device_bytes", total),
        Term(
            name="left free",
            symbol="R",
            value=budget.reserved,
            unit="B",
            formula="--fit-target" if share is None else "M - M x the fraction asked for",
            numbers=f"{options.fit_target // MIB:,} MiB"
            if share is None
            else f"{budget.memory:,} - {budget.memory:,} x {share:g}",
            source="llama.cpp common/fit.cpp: 1024 MiB on every device",
        ),
        *_weight_terms(stage, budget),
    )


def _total_numbers(stage: Stage) -> str:
    driver = stage.case.accelerator.driver_bytes
    return f"{driver:,} - {driver - stage.total:,}"


def _weight_terms(stage: Stage, budget: GpuBudget) -> tuple[Term, ...]:
    """The file, what of it stays in the host's memory, and what this GPU holds."""
    case = stage.case
    placed = placed_weights(case.model, case.settings.weights)
    layers = len(case.model.layers)
    first = split_items(layers, case.layout.pp, stage.options.gpu_layers)[0][0]
    behind = placed.held(0, first)
    everywhere = placed.held(0, layers + 1)
    # Beside the file's bytes: a tied table once more, rows and tensors padded in the buffers.
    more = everywhere + placed.host - placed.file_bytes
    towers = tower_bytes(case.model, stage.rules)
    words = f"{placed.host:,} of {placed.file_bytes:,} in the file"
    here = Term(
        name="weights on this GPU",
        symbol="W",
        value=budget.weights,
        unit="B",
        formula="sum of tensors, each in whole 128 bytes",
        numbers=f"items {stage.start} to {stage.end - 1} of {layers} blocks and the output",
        source="GGUF header" if case.model.checkpoint is not None else "GGUF types by name",
    )
    if case.layout.pp == 1 and not first:
        tied = " and the table as output matrix" if case.model.tied_embeddings else ""
        here = here.replace(
            formula=f"file - W_h + padding{tied}" + (" + towers" if towers else ""),
            numbers=f"{placed.file_bytes:,} - {placed.host:,} + {more:,}"
            + (f" + {towers:,}" if towers else ""),
        )
    return (
        Term(
            name="weights in the host's memory: the token embedding"
            + (f" and {first} blocks" if first else ""),
            symbol="W_h",
            value=placed.host + behind,
            unit="B",
            formula="tensors read with the tokens" + (", blocks not on a GPU" if first else ""),
            numbers=words + (f", + {behind:,}" if first else ""),
            source="llama.cpp src/llama-arch.cpp: the input layer stays with the CPU",
        ),
        _as_measured(stage, "weight_bytes", here),
    )


def _reserve_terms(stage: Stage, budget: GpuBudget, slots: int) -> tuple[Term, ...]:
    buffer = stage.compute(slots)
    expected, least, most = stage.contexts
    context = Term(
        name="CUDA context and kernels",
        symbol="X",
        value=expected,
        unit="B",
        formula="what other starts show as unaccounted",
        numbers=f"within {least:,} to {most:,}",
        source=device.CONTEXT_SOURCE,
    )
    return (
        _as_measured(stage, "non_torch_bytes", context),
        Term(
            name="compute buffer",
            symbol="G",
            value=buffer.expected,
            unit="B",
            formula="max(masks + largest temporaries, logits)",
            numbers=f"{buffer.binding} binds, masks {buffer.masks:,}{_pool_words(buffer)}; {buffer.low:,} to {buffer.high:,}",
            source=f"{stage.rules.source}: graph reserve, predicted",
        ),
        Term(
            name="cache budget",
            symbol="C",
            value=budget.kv_budget,
            unit="B",
            formula="M - R - W - X - G",
            numbers=f"{budget.memory:,} - {budget.reserved:,} - {budget.weights:,} - {expected:,} - "
            f"{buffer.expected:,}",
        ),
    )


def _pool_words(buffer: ComputeBuffer) -> str:
    beside = buffer.expected - buffer.printed
    return f", f16 copies in CUDA's pool {beside:,}" if beside else ""


def _cell_words(stage: Stage, cache: Cache, slots: int) -> tuple[str, str]:
    """How the cells of a stream come about, in symbols and in numbers."""
    options, rules = stage.options, stage.rules
    multiple = rules.cell_multiple if options.flash else rules.cell_multiple_plain
    n_ctx = stage.slot_context(slots)
    if cache.name != SLIDING or options.swa_full:
        if cache.streams == 1:
            return "rup(n_ctx, multiple)", f"rup({n_ctx:,}, {multiple})"
        return "rup(n_ctx / slots, multiple)", f"rup({n_ctx:,} / {slots:,}, {multiple})"
    cells, _ = stream_cells(n_ctx, slots, options, rules)
    window = max(row.window for row in layer_rows(stage.case.model, rules))
    small = multiple if rules.sliding_multiple is None else rules.sliding_multiple
    sequences = slots if cache.streams == 1 else 1
    if rules.own:
        kept = kept_per_slot(stage.case.model.family, window, slots, rules)
        if cache.cells == cells:
            return "as the full cache", f"{cells:,}"
        return (
            "rup(slots x kept + batch, multiple)",
            f"rup({slots:,} x {kept:,} + {options.ubatch:,}, {multiple})",
        )
    return (
        "rup(min(n, window x slots of the stream + ubatch), multiple)",
        f"rup(min({cells:,}, {window:,} x {sequences:,} + {options.ubatch:,}), {small})",
    )


def _cache_terms(stage: Stage, cache: Cache, slots: int) -> tuple[Term, ...]:
    options = stage.options
    if cache.name == STATE:
        return (
            Term(
                name=f"{cache.name}, {cache.layers} layers",
                symbol="S",
                value=cache.total_bytes,
                unit="B",
                formula="states x 4 x (conv + state), summed over layers",
                numbers=f"{cache.key_bytes:,} + {cache.value_bytes:,}, {cache.cells} states in {slots} slots",
                source="ollama kvcache/recurrent.go: f32, checkpoints beside each slot's"
                if stage.rules.own
                else "llama.cpp llama-memory-recurrent.cpp: f32",
            ),
        )
    formula, numbers = _cell_words(stage, cache, slots)
    n = "n_s" if cache.name == SLIDING else "n"
    return (
        Term(
            name=f"{cache.name}: cells of a stream",
            symbol=n,
            value=cache.cells,
            unit="cells",
            formula=formula,
            numbers=f"{numbers}; {cache.streams} stream{'s' if cache.streams > 1 else ''}",
            source=stage.rules.source,
        ),
        Term(
            name=f"{cache.name}, {cache.layers} layers",
            symbol="K+V",
            value=cache.total_bytes,
            unit="B",
            formula=f"{n} x streams x (row K + row V), summed over layers",
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
