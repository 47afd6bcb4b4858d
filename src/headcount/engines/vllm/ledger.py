"""The arithmetic of one vLLM GPU as terms: where its memory goes, then how the cache is cut into pages."""

from __future__ import annotations

from headcount.engines.vllm import memory
from headcount.engines.vllm.pages import PagePlan
from headcount.engines.vllm.rules import EngineRules
from headcount.engines.vllm.weights import StageWeights
from headcount.ledger import Ledger, Term
from headcount.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.engines.base import Case, GpuBudget
    from headcount.spec.kv_format import KvFormat


class Stage(Record):
    """One pipeline stage on one GPU: bytes for its cache at best, least and most.

    held        blocks one conversation holds; most_seqs: sequences the engine runs at a time
    given       what the cache is when it is not what is left over: ``measured``, or the argument that says it
    """

    cut: tuple[int, int]
    plan: PagePlan
    weights: StageWeights
    overhead: memory.Overhead
    requested: int
    best: int
    least: int
    most: int
    held: int
    most_seqs: int
    held_words: str = ""
    given: str = ""


def replica_ledger(
    case: Case,
    stage: Stage,
    budget: GpuBudget,
    *,
    rules: EngineRules,
    utilization: float,
    kv: KvFormat,
    count: int,
) -> Ledger:
    """All terms of the GPU that binds, in the order they are computed."""
    where = f"vLLM {rules.version}"
    return Ledger(
        name="one GPU",
        terms=(
            *_memory_terms(case, stage, budget, utilization=utilization, where=where),
            *_reserve_terms(case, stage, where=where),
            *_page_terms(case, stage, where=where, kv=kv, count=count),
        ),
    )


def _memory_terms(
    case: Case, stage: Stage, budget: GpuBudget, *, utilization: float, where: str
) -> tuple[Term, ...]:
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
            name="requested by the engine",
            symbol="Q",
            value=stage.requested,
            unit="B",
            formula="ceil(M x utilization)",
            numbers=f"ceil({budget.memory:,} x {utilization:g})",
            source=f"{where}: gpu_memory_utilization",
        ),
        Term(
            name="weights on this GPU",
            symbol="W",
            value=stage.weights.total,
            unit="B",
            formula="measured"
            if stage.weights.measured
            else f"tensors of rank T = {case.layout.tp}, layers {stage.cut[0]} to {stage.cut[1] - 1}, and what is kept beside",
            numbers="" if stage.weights.measured else stage.weights.words(),
            source=_measured_by(case)
            if stage.weights.measured
            else "vocabulary padded to 64; key/value heads max(1, K // T); vision and audio towers",
        ),
    )


def _measured_by(case: Case) -> str:
    found = case.settings.calibration
    return "" if found is None else f"{found.path or 'calibration'}: {found.origin}"


# Name, symbol, formula and source of the three reserves, in the order of ``Overhead.words``.
_RESERVES = (
    (
        "activations at the profile run",
        "A",
        "max(forward + workspaces, sampler's copies) + tables (+ towers, cuBLAS)",
        memory.ACTIVATION_SOURCE,
    ),
    ("communication buffers and kernels", "X", "", memory.SOURCE),
    ("CUDA graphs", "U", "largest set x capture sizes / 51 + 0.06 GiB", memory.SOURCE),
)


def _reserve_terms(case: Case, stage: Stage, *, where: str) -> tuple[Term, ...]:
    extra = stage.overhead
    terms = []
    for index, value in enumerate((extra.activation, extra.non_torch, extra.graphs)):
        name, symbol, formula, source = _RESERVES[index]
        if extra.measured[index]:
            formula, source = "measured", _measured_by(case)
        elif not value:
            formula, source = "not charged", where
        terms.append(
            Term(
                name=name,
                symbol=symbol,
                value=value,
                unit="B",
                formula=formula,
                numbers=extra.words[index],
                source=source,
            )
        )
    rest = stage.requested - stage.weights.total - extra.total
    given = stage.best != rest
    terms.append(
        Term(
            name="cache",
            symbol="C",
            value=stage.best,
            unit="B",
            formula=stage.given or "Q - W - A - X - U",
            numbers=f"Q - W - A - X - U would be {rest:,}"
            if given
            else f"within {stage.least:,} to {stage.most:,}",
            source=_measured_by(case) if stage.given == "measured" else "",
        )
    )
    return tuple(terms)


def _page_terms(case: Case, stage: Stage, *, where: str, kv: KvFormat, count: int) -> tuple[Term, ...]:
    plan = stage.plan
    blocks = max(0, stage.best) // plan.bytes_per_block
    return (
        Term(
            name="bytes of one block over the layers of the widest group",
            symbol="p",
            value=plan.bytes_per_block,
            unit="B",
            formula="max over groups of the sum of pages",
            numbers="; ".join(
                f"{g.layer_count} {g.kind} x {g.page_bytes:,} ({g.block_size} tokens)"
                for g in sorted(plan.groups, key=lambda g: -g.layer_count * g.page_bytes)[:3]
            )
            + (f"; {len(plan.groups) - 3} more groups" if len(plan.groups) > 3 else ""),
            source=f"{where}, {kv.name}",
        ),
        Term(name="blocks", symbol="P", value=blocks, unit="blocks", formula="floor(C / p)"),
        Term(
            name=f"blocks one conversation of {case.context:,} tokens holds",
            symbol="R",
            value=stage.held,
            unit="blocks",
            formula="sum over groups of ceil(tokens kept / block)",
            numbers=stage.held_words,
        ),
        Term(
            name="conversations per replica",
            symbol="N_conv",
            value=count,
            unit="conversations",
            formula="min(floor((P - 1) / R), max_num_seqs)",
            numbers=f"min(floor(({blocks:,} - 1) / {stage.held:,}), {stage.most_seqs:,})",
            source=f"{where}: one block is never given out",
        ),
    )
