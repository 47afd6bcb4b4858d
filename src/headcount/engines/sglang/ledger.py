"""The arithmetic of one SGLang GPU as terms: where its memory goes, then what the pools hold."""

from __future__ import annotations

from headcount.engines.sglang import fraction, memory, pools
from headcount.engines.sglang.memory import StageMemory
from headcount.engines.sglang.options import Setup
from headcount.engines.sglang.pools import Pools, StagePool
from headcount.ledger import Ledger, Term
from headcount.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.engines.base import Case


class Binding(Record):
    """The GPU that binds: its memory and pools, and what one attention group holds."""

    memory: StageMemory
    pool: StagePool
    pools: Pools
    count: int
    limit: str


def replica_ledger(case: Case, setup: Setup, found: Binding) -> Ledger:
    """All terms of that GPU, in the order they are computed."""
    start, end = found.memory.cut
    terms = (
        *_memory_terms(case, setup, found),
        *_state_terms(setup, found),
        *_token_terms(setup, found),
        Term(
            name="conversations of one attention group" if setup.groups > 1 else "conversations per replica",
            symbol="N_conv",
            value=found.count,
            unit="conversations",
            formula="least of the pools and max_running_requests",
            numbers=found.limit,
            source=pools.SOURCE,
        ),
    )
    return Ledger(name=f"one GPU, layers {start} to {end - 1}", terms=terms)


def _memory_terms(case: Case, setup: Setup, found: Binding) -> tuple[Term, ...]:
    stage = found.memory
    asked = case.settings.utilization is not None or case.settings.reserve is not None
    return (
        Term(
            name="card memory, as the driver reports it",
            symbol="M",
            value=stage.total,
            unit="B",
            formula="--memory" if case.settings.memory_bytes else "",
            source=f"{case.accelerator.name}: {case.accelerator.driver_bytes_source}",
        ),
        Term(
            name="taken before the weights: driver, context, communication",
            symbol="X",
            value=stage.taken.expected,
            unit="B",
            numbers=f"within {stage.taken.low:,} to {stage.taken.high:,}",
            source=memory.SOURCE,
        ),
        Term(
            name="mem_fraction_static",
            symbol="q",
            value=setup.fraction,
            unit="",
            formula="as asked" if asked else "(MiB - reserved MiB) / MiB, rounded to 0.001",
            source=fraction.SOURCE,
        ),
        Term(
            name="weights on this GPU",
            symbol="W",
            value=stage.weights + stage.absorbed,
            unit="B",
            formula="sum over tensors of this rank's share",
            numbers=f"T = {case.layout.tp}, layers {stage.cut[0]} to {stage.cut[1] - 1}",
            source="vocabulary padded to 64; key/value heads max(1, K // T); absorbed copies of latent attention",
        ),
        Term(
            name="cache",
            symbol="C",
            value=stage.best,
            unit="B",
            formula="(M - X) q - W" + (" - 0.1 GiB for images or sound" if stage.tower_buffers else ""),
            numbers=f"({stage.total:,} - {stage.taken.expected:,}) x {setup.fraction:.4g} - "
            f"{stage.weights + stage.absorbed:,}; within {stage.least:,} to {stage.most:,}",
            source="sglang 0.5.23, srt/mem_cache/kv_cache_configurator.py",
        ),
    )


def _state_terms(setup: Setup, found: Binding) -> tuple[Term, ...]:
    if not found.pool.state:
        return ()
    return (
        Term(name="one state slot", symbol="e", value=found.pool.state, unit="B", source=pools.SOURCE),
        Term(
            name="state slots",
            symbol="S",
            value=found.pools.slots,
            unit="slots",
            formula="floor((C q / (1 + q) - e) / e)" if setup.states is None else "max-mamba-cache-size",
            numbers=f"q = {setup.state_ratio:g}, {setup.states_per_request} slots a request",
            source="sglang 0.5.23, srt/mem_cache/kv_cache_configurator.py",
        ),
    )


def _token_terms(setup: Setup, found: Binding) -> tuple[Term, ...]:
    pool = found.pool
    terms = [
        Term(
            name="one token in the full pool",
            symbol="f",
            value=pool.full,
            unit="B",
            formula="sum over layers of h (d_k + d_v) p",
            numbers=f"{setup.kv.name}, T = {setup.attention_tp}",
            source=pools.SOURCE,
        ),
        Term(
            name="tokens of the full pool",
            symbol="N",
            value=found.pools.tokens,
            unit="tokens",
            formula="floor(C / (f + ratio s)), whole pages" if pool.sliding else "floor(C / f), whole pages",
            numbers=f"pages of {setup.page}",
            source=pools.SOURCE,
        ),
    ]
    if pool.sliding:
        terms[1:1] = [
            Term(
                name="one token in the sliding pool",
                symbol="s",
                value=pool.sliding,
                unit="B",
                source=pools.SOURCE,
            )
        ]
        terms.append(
            Term(
                name="tokens of the sliding pool",
                symbol="N_s",
                value=found.pools.sliding_tokens,
                unit="tokens",
                formula="floor(ratio N), whole pages",
                numbers=f"ratio {setup.window_ratio:g}, window {pool.window:,}",
                source=pools.SOURCE,
            )
        )
    return tuple(terms)
