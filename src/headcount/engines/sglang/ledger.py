"""The arithmetic of one SGLang GPU as terms: where its memory goes, then what the pools hold."""

from __future__ import annotations

from headcount.engines.sglang import fraction, memory, pools
from headcount.engines.sglang.memory import StageMemory
from headcount.engines.sglang.options import Setup
from headcount.engines.sglang.pools import Pools, StagePool
from headcount.ledger import Ledger, Term
from headcount.record import Record
from headcount.units import round_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.engines.base import Case


# What a calibration calls a term -> its symbol here.
_MEASURED = {"device_bytes": "M", "non_torch_bytes": "X", "weight_bytes": "W"}


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
            numbers=_count_numbers(setup, found),
            source=pools.SOURCE,
        ),
    )
    return Ledger(name=f"one GPU, layers {start} to {end - 1}", terms=terms)


def _memory_terms(case: Case, setup: Setup, found: Binding) -> tuple[Term, ...]:
    stage = found.memory
    formula, numbers = setup.fraction_words
    buffers = f" - {stage.tower_buffers:,}" if stage.tower_buffers else ""
    terms = (
        Term(
            name="card memory, as the driver reports it",
            symbol="M",
            value=stage.total,
            unit="B",
            formula="--memory" if case.settings.memory_bytes else "the driver's total",
            source=f"{case.accelerator.name}: {case.accelerator.driver_bytes_source}",
        ),
        Term(
            name="taken before the weights: driver, context, communication",
            symbol="X",
            value=stage.taken.expected,
            unit="B",
            formula="as other starts show",
            numbers=f"within {stage.taken.low:,} to {stage.taken.high:,}",
            source=memory.SOURCE,
        ),
        Term(
            name="mem_fraction_static",
            symbol="q",
            value=setup.fraction,
            unit="",
            formula=formula,
            numbers=numbers,
            source=fraction.SOURCE,
        ),
        Term(
            name="weights on this GPU",
            symbol="W",
            value=stage.weights.total,
            unit="B",
            formula="sum over tensors of this rank's share, tables, allocator's rounding, absorbed copies",
            numbers=f"{stage.weights.words()}; T = {case.layout.tp}, layers {stage.cut[0]} to {stage.cut[1] - 1}",
            source="vocabulary padded to 64; key/value heads max(1, K // T); PyTorch's segments of 2, 20 and 2 n MiB",
        ),
        Term(
            name="cache",
            symbol="C",
            value=stage.best,
            unit="B",
            formula="(M - X) q - W" + (" - 0.1 GiB for images or sound" if stage.tower_buffers else ""),
            numbers=f"({stage.total:,} - {stage.taken.expected:,}) x {setup.fraction:.6g} - "
            f"{stage.weights.total:,}{buffers}; within {stage.least:,} to {stage.most:,}",
            source="sglang 0.5.23, srt/mem_cache/kv_cache_configurator.py",
        ),
    )
    measured = {_MEASURED[name]: where for name, where in stage.measured}
    return tuple(
        term.replace(formula="measured", numbers="", source=measured[term.symbol])
        if term.symbol in measured
        else term
        for term in terms
    )


def _state_terms(setup: Setup, found: Binding) -> tuple[Term, ...]:
    each, room = found.pool.state, found.memory.best
    if not each:
        return ()
    ratio = setup.state_ratio
    spare = each if setup.rules.padding_slot else 0
    if setup.states is not None:
        formula, numbers = "max-mamba-cache-size", ""
    elif not setup.radix and setup.max_requests is not None:
        formula, numbers = "max_running_requests, without reuse of prompts", ""
    else:
        formula = "floor((C m / (1 + m) - e) / e)" if spare else "floor(C m / (1 + m) / e)"
        numbers = f"floor(({room:,} x {ratio:g} / {1 + ratio:g} - {spare:,}) / {each:,})"
        if setup.stages > 1:
            numbers += ", with C of the fullest stage and e of the stage with most states"
    return (
        Term(
            name="one state slot",
            symbol="e",
            value=each,
            unit="B",
            formula="sum over layers of convolution and state",
            numbers=f"layers {found.memory.cut[0]} to {found.memory.cut[1] - 1}, T = {setup.attention_tp}",
            source=pools.SOURCE,
        ),
        Term(
            name=f"state slots, {setup.states_per_request} for each request",
            symbol="S",
            value=found.pools.slots,
            unit="slots",
            formula=formula,
            numbers=numbers,
            source="sglang 0.5.23, srt/mem_cache/kv_cache_configurator.py",
        ),
    )


def _token_terms(setup: Setup, found: Binding) -> tuple[Term, ...]:
    pool = found.pool
    formula, numbers = _token_words(setup, found)
    terms = [
        Term(
            name="one token in the full pool",
            symbol="f",
            value=pool.full,
            unit="B",
            formula="sum over layers of h (d_k + d_v) p",
            numbers=f"layers {found.memory.cut[0]} to {found.memory.cut[1] - 1}, {setup.kv.name}, "
            f"T = {setup.attention_tp}",
            source=pools.SOURCE,
        ),
        Term(
            name="tokens of the full pool",
            symbol="N",
            value=found.pools.tokens,
            unit="tokens",
            formula=formula,
            numbers=numbers,
            source=pools.SOURCE,
        ),
    ]
    if pool.sliding:
        of_sliding = _sliding_words(setup, found)
        terms[1:1] = [
            Term(
                name="one token in the sliding pool",
                symbol="s",
                value=pool.sliding,
                unit="B",
                formula="the same over layers with windows",
                source=pools.SOURCE,
            )
        ]
        terms.append(
            Term(
                name="tokens of the sliding pool",
                symbol="N_s",
                value=found.pools.sliding_tokens,
                unit="tokens",
                formula=of_sliding[0],
                numbers=f"{of_sliding[1]}; pages of {setup.page}, window {pool.window:,}".removeprefix("; "),
                source=pools.SOURCE,
            )
        )
    return tuple(terms)


def _token_words(setup: Setup, found: Binding) -> tuple[str, str]:
    """How the tokens of the full pool come about, in symbols and in numbers."""
    pool = found.pool
    room, room_numbers = "C", f"{found.memory.best:,}"
    if pool.state:
        spare = " + 1" if setup.rules.padding_slot else ""
        room = f"(C - (S{spare}) e)"
        room_numbers = f"({room_numbers} - ({found.pools.slots:,}{spare}) x {pool.state:,})"
    token, token_numbers = "f", f"{pool.full:,}"
    if pool.sliding and pool.full and _is_capped(setup):
        room, room_numbers = (
            f"({room} - N_s s)",
            f"({room_numbers} - {found.pools.sliding_tokens:,} x {pool.sliding:,})",
        )
    elif pool.sliding and pool.full:
        token, token_numbers = (
            "(f + ratio s)",
            f"({pool.full:,} + {setup.window_ratio:g} x {pool.sliding:,})",
        )
    elif pool.sliding:
        token, token_numbers = "s", f"{pool.sliding:,}"
    formula = f"floor({room} / {token}), whole pages"
    numbers = f"floor({room_numbers} / {token_numbers}), pages of {setup.page}"
    if setup.max_tokens is not None:
        numbers += f", at most {setup.max_tokens:,}"
    return formula, numbers


def _is_capped(setup: Setup) -> bool:
    """Whether the sliding pool is sized by the stated number of requests, not by a ratio."""
    return not setup.radix and setup.max_requests is not None


def _sliding_words(setup: Setup, found: Binding) -> tuple[str, str]:
    """How the tokens of the sliding pool come about."""
    if not found.pool.full:
        return "N", ""
    if not _is_capped(setup):
        return "floor(ratio N), whole pages", f"floor({setup.window_ratio:g} x {found.pools.tokens:,})"
    live = pools.live_window(found.pool.window, setup)
    return (
        "requests x live window + prefills in flight, whole pages",
        f"{setup.max_requests:,} x {live:,} + {pools.in_flight(setup):,}",
    )


def _count_numbers(setup: Setup, found: Binding) -> str:
    """Every limit of one attention group, as a number of conversations."""
    made = found.pools
    each = round_up(setup.context, setup.page)
    limits = [f"{made.tokens:,} // {each:,}"]
    if made.sliding_tokens:
        limits.append(f"{pools.sliding_conversations(made.sliding_tokens, found.pool.window, each, setup):,}")
    if found.pool.state:
        limits.append(f"{made.slots:,} // {setup.states_per_request}")
    limits.append(f"{pools.most_requests(made, setup):,}")
    return f"min({', '.join(limits)}); least: {found.limit}"
