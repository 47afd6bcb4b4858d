"""The arithmetic of one vLLM GPU as terms: where its memory goes, then how the cache is cut into pages."""

from __future__ import annotations

from headcount.engines.vllm import memory
from headcount.engines.vllm.pages import PagePlan
from headcount.engines.vllm.rules import EngineRules
from headcount.ledger import Ledger, Term
from headcount.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.engines.base import Case, GpuBudget
    from headcount.spec.kv_format import KvFormat


class Stage(Record):
    """One pipeline stage on one GPU: bytes for its cache at best, least and most.

    held        blocks one conversation holds; most_seqs: sequences the engine runs at a time
    """

    cut: tuple[int, int]
    plan: PagePlan
    weights: int
    absorbed: int
    overhead: memory.Overhead
    requested: int
    best: int
    least: int
    most: int
    held: int
    most_seqs: int


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
            *_reserve_terms(stage, where=where),
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
            value=stage.weights + stage.absorbed,
            unit="B",
            formula="sum over tensors of this rank's share",
            numbers=f"T = {case.layout.tp}, layers {stage.cut[0]} to {stage.cut[1] - 1}",
            source="vocabulary padded to 64; key/value heads max(1, K // T)",
        ),
    )


def _reserve_terms(stage: Stage, *, where: str) -> tuple[Term, ...]:
    extra = stage.overhead
    return (
        Term(
            name="activations at the profile run",
            symbol="A",
            value=extra.activation,
            unit="B",
            formula="max(forward + workspaces, sampler's copies) + tables",
            source=memory.ACTIVATION_SOURCE,
        ),
        Term(
            name="communication buffers and kernels",
            symbol="X",
            value=extra.non_torch,
            unit="B",
            source=memory.SOURCE,
        ),
        Term(
            name="CUDA graphs",
            symbol="U",
            value=extra.graphs,
            unit="B",
            formula="0.0205 GiB x layers x capture sizes / 51 + 0.06 GiB; 1.15 GiB for the layers with experts"
            if extra.graphs
            else "not charged by this version",
            source=memory.SOURCE if extra.graphs else where,
        ),
        Term(
            name="cache",
            symbol="C",
            value=stage.best,
            unit="B",
            formula="Q - W - A - X - U",
            numbers=f"within {stage.least:,} to {stage.most:,}",
        ),
    )


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
