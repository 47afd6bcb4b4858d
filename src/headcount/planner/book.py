"""``book``: the fewest GPUs that hold a number of conversations, why each smaller count fails, and the pooled bound.

    replicas  = ceil(users / conversations of one replica)  (+ spare)
    GPUs      = min over T of T x replicas                  (ties: the smallest T)
    bound     = ceil((users x KV bytes + weights once) / usable bytes of a card)

The bound forgets that weights are copied to every replica and that a conversation is not divided: it is never what
one can book, but no layout needs less.
"""

from __future__ import annotations

from headcount.cost.cache import conversation_bytes
from headcount.engines.base import Layout, Replica
from headcount.errors import LayoutError
from headcount.ledger import Ledger, Term
from headcount.planner.fit import total_ledger
from headcount.planner.plan import (
    PIPELINE_COST,
    Alternative,
    Deployment,
    Plan,
    calibration_words,
    check_context,
    require_parameters,
    standing_warnings,
)
from headcount.record import Record
from headcount.units import ceil_div


class Demand(Record):
    """What must be held: ``users`` conversations of ``context`` tokens, with ``spare`` replicas to lose."""

    users: int
    context: int
    spare: int = 0
    allow_long: bool = False
    usd_per_gpu_hour: float | None = None
    price_source: str = ""


class Candidate(Record):
    """One replica shape that was tried: how many replicas it would take, or why not."""

    tp: int
    pp: int
    replica: Replica | None
    refused: str
    replicas: int | None

    @property
    def size(self) -> int:
        """GPUs of one replica."""
        return self.tp * self.pp

    @property
    def gpus(self) -> int | None:
        """GPUs of all replicas; None when the shape cannot serve."""
        return None if self.replicas is None else self.size * self.replicas


class Search(Record):
    """What a search found: the cheapest shape, and every shape that was tried."""

    best: Candidate
    flat: list[Candidate]
    piped: list[Candidate]


def cheapest(deployment: Deployment, demand: Demand) -> Search:
    """Find the shape with the fewest GPUs (ties: fewest stages, then the smallest T).

    Pipeline stages are tried when they are allowed, or when nothing within a node fits. Raises LayoutError when no
    layout within ``max_gpus`` holds the demand.
    """
    flat = [_candidate(deployment, demand, tp, pp) for tp, pp in _shapes(deployment, pipelines=False)]
    feasible = [shape for shape in flat if shape.gpus is not None]
    piped: list[Candidate] = []
    if deployment.allow_pp or deployment.engine.splits_layers or not feasible:
        piped = [_candidate(deployment, demand, tp, pp) for tp, pp in _shapes(deployment, pipelines=True)]
        feasible += [shape for shape in piped if shape.gpus is not None]
    if not feasible:
        raise LayoutError(_nothing_fits(deployment, demand, [*flat, *piped]))
    best = min(feasible, key=lambda shape: (shape.gpus or 0, shape.pp, shape.tp))
    return Search(best=best, flat=flat, piped=piped)


def book(deployment: Deployment, demand: Demand) -> Plan:
    """Return the cheapest feasible layout, its alternatives, and the reason each smaller count fails.

    Raises LayoutError when no layout within ``max_gpus`` holds the demand.
    """
    require_parameters(deployment.model)
    warnings = check_context(deployment.model, demand.context, allow_long=demand.allow_long)
    found = cheapest(deployment, demand)
    best, replica = found.best, found.best.replica
    assert replica is not None and best.replicas is not None and best.gpus is not None
    piped = found.piped
    if not piped:
        shapes = [pair for pair in _shapes(deployment, pipelines=True) if pair[0] * pair[1] < best.gpus]
        piped = [_candidate(deployment, demand, tp, pp) for tp, pp in shapes]
    layout = Layout(tp=best.tp, pp=best.pp, dp=best.replicas)
    bound = lower_bound(deployment, demand)
    eligible = [*found.flat, *found.piped]
    close = () if _fixed(deployment) else _too_close(demand, eligible, layout, replica)
    return Plan(
        question="book",
        deployment=deployment,
        layout=layout,
        context=demand.context,
        replica=replica,
        conversations=layout.dp * replica.conversations,
        low=layout.dp * replica.low,
        high=layout.dp * replica.high,
        users=demand.users,
        spare_replicas=demand.spare,
        usd_per_gpu_hour=demand.usd_per_gpu_hour,
        price_source=demand.price_source,
        lower_bound=(bound.total_bytes, bound.gpus),
        alternatives=_alternatives(demand, [*found.flat, *piped], best),
        smaller=_fewer_replicas(demand, best)
        if _fixed(deployment)
        else _why_not_fewer(demand, eligible, best.gpus),
        warnings=(
            *close,
            *calibration_words(deployment, layout, demand.context),
            *warnings,
            *replica.warnings,
            *standing_warnings(deployment),
        ),
        ledger=_ledger(deployment, demand, layout, replica, bound),
    )


def _fixed(deployment: Deployment) -> bool:
    return deployment.tp is not None or deployment.pp is not None or deployment.dp is not None


def _shapes(deployment: Deployment, *, pipelines: bool) -> list[tuple[int, int]]:
    """(T, P) pairs to try: T within a node; P = 1, or 2 and more when ``pipelines``."""
    widest = min(deployment.gpus_per_node, deployment.max_gpus)
    widths = [deployment.tp] if deployment.tp is not None else list(range(1, widest + 1))
    if deployment.pp is not None:
        depths = [deployment.pp] if (deployment.pp > 1) == pipelines else []
    elif pipelines:
        # Stages may leave the node: one activation vector per token crosses, not a share of every matrix.
        deepest = min(len(deployment.model.layers), max(deployment.gpus_per_node, 16))
        depths = list(range(2, deepest + 1)) if not (_fixed(deployment) and not deployment.allow_pp) else []
    else:
        depths = [1]
    return [(tp, pp) for pp in depths for tp in widths if tp * pp <= deployment.max_gpus]


def _candidate(deployment: Deployment, demand: Demand, tp: int, pp: int) -> Candidate:
    layout = Layout(tp=tp, pp=pp)
    replica, reason = deployment.attempt(layout, demand.context)
    if replica is None:
        return Candidate(tp=tp, pp=pp, replica=None, refused=reason, replicas=None)
    if not replica.conversations:
        return Candidate(tp=tp, pp=pp, replica=replica, refused=replica.binding, replicas=None)
    replicas = replicas_needed(replica.conversations, demand)
    if deployment.dp is not None:
        if deployment.dp < replicas:
            held = max(0, deployment.dp - demand.spare) * replica.conversations
            return Candidate(
                tp=tp,
                pp=pp,
                replica=replica,
                refused=f"--dp {deployment.dp} replicas, {demand.spare} of them spare, hold {held:,} of {demand.users:,}",
                replicas=None,
            )
        replicas = deployment.dp
    if replicas * tp * pp > deployment.max_gpus:
        reason = f"needs {replicas * tp * pp:,} GPUs, over the limit of {deployment.max_gpus:,} (--max-gpus)"
        return Candidate(tp=tp, pp=pp, replica=replica, refused=reason, replicas=None)
    return Candidate(tp=tp, pp=pp, replica=replica, refused="", replicas=replicas)


def replicas_needed(conversations: int, demand: Demand) -> int:
    """``ceil(users / conversations) + spare``."""
    return ceil_div(demand.users, conversations) + demand.spare


class Bound(Record):
    """Pooled arithmetic: ``users x conversation + weights`` over the usable bytes of a card."""

    conversation_bytes: int
    weight_bytes: int
    total_bytes: int
    usable_bytes: int

    @property
    def gpus(self) -> int:
        """``ceil(total / usable)``."""
        return ceil_div(self.total_bytes, self.usable_bytes)


def lower_bound(deployment: Deployment, demand: Demand) -> Bound:
    """Return the pooled bound of this demand."""
    each = conversation_bytes(deployment.model, demand.context, deployment.kv)
    weights = deployment.engine.stored_bytes(deployment.model, deployment.settings)
    return Bound(
        conversation_bytes=each,
        weight_bytes=weights,
        total_bytes=demand.users * each + weights,
        usable_bytes=deployment.engine.usable_bytes(deployment.accelerator, deployment.settings),
    )


def _why_not_fewer(demand: Demand, shapes: list[Candidate], gpus: int) -> tuple[tuple[int, str], ...]:
    """For each count below ``gpus``: what every way of cutting it into replicas holds, or why it is refused."""
    rows = []
    able = [shape for shape in shapes if _holds(shape)]
    flat = [shape for shape in shapes if shape.pp == 1]
    for count in range(gpus - 1, 0, -1):
        # What holds most, with whole replicas and some GPUs idle when they do not divide.
        best = max(
            (shape for shape in able if shape.size <= count),
            key=lambda s: (max(0, count // s.size - demand.spare) * _holds(s), -s.pp),
            default=None,
        )
        reasons = [] if best is None else [_held_words(demand, best, count)]
        # A refused width is a reason where nothing else uses all the cards.
        used = best is not None and best.size == count
        exact = [
            shape for shape in flat if shape.tp == count and shape is not best and (_holds(shape) or not used)
        ]
        reasons += [_shape_words(demand, shape) for shape in exact]
        if best is None and not exact:
            widest = max((shape for shape in shapes if shape.size <= count), key=lambda s: (s.size, -s.pp))
            reasons.append(_shape_words(demand, widest))
        rows.append((count, "; ".join(reasons)))
    return tuple(rows)


def _fewer_replicas(demand: Demand, best: Candidate) -> tuple[tuple[int, str], ...]:
    """With the shape fixed, fewer GPUs are fewer replicas: what they would hold."""
    assert best.replicas is not None
    size, rows = best.tp * best.pp, []
    for replicas in range(best.replicas - 1, 0, -1):
        held = max(0, replicas - demand.spare) * _holds(best)
        who = Layout(tp=best.tp, pp=best.pp).words() + (
            f" x {replicas} replicas hold" if replicas > 1 else " holds"
        )
        left = f" with {demand.spare} spare" if demand.spare else ""
        # More replicas than needed were asked for: those that still hold everyone are no failure.
        if held < demand.users:
            rows.append((size * replicas, f"{who} {held:,} of {demand.users:,}{left}"))
    return tuple(rows)


def _holds(shape: Candidate) -> int:
    return 0 if shape.replica is None else shape.replica.conversations


def _held_words(demand: Demand, shape: Candidate, count: int) -> str:
    """``TP 1 x 3 replicas hold 183 of 200``, with the idle GPUs when the replicas do not use them all."""
    replicas, idle = divmod(count, shape.size)
    held = max(0, replicas - demand.spare) * _holds(shape)
    who = Layout(tp=shape.tp, pp=shape.pp).words() + (
        f" x {replicas} replicas hold" if replicas > 1 else " holds"
    )
    left = f" with {demand.spare} spare" if demand.spare else ""
    unused = f" ({idle} GPU{'s' if idle > 1 else ''} idle)" if idle else ""
    return f"{who} {held:,} of {demand.users:,}{left}{unused}"


def _shape_words(demand: Demand, shape: Candidate) -> str:
    """One replica of this shape: what it holds, or why it is refused."""
    if not _holds(shape):
        return f"{Layout(tp=shape.tp, pp=shape.pp).words()} refused: {shape.refused}"
    return _held_words(demand, shape, shape.size)


def _alternatives(demand: Demand, shapes: list[Candidate], best: Candidate) -> tuple[Alternative, ...]:
    """Every other shape: its cheapest feasible count, or its refusal. Refused pipelines are left out: they are many."""
    found = []
    for shape in shapes:
        if shape is best or (shape.pp > 1 and shape.gpus is None):
            continue
        gpus = shape.gpus
        piped = shape.pp > 1 and best.pp == 1
        if piped and (gpus is None or best.gpus is None or gpus >= best.gpus):
            continue
        replicas = shape.replicas or 1
        held = None if shape.replica is None or shape.refused else replicas * shape.replica.conversations
        price = demand.usd_per_gpu_hour
        found.append(
            Alternative(
                layout=Layout(tp=shape.tp, pp=shape.pp, dp=replicas),
                conversations=held,
                refused=shape.refused or ("pipeline stages need --allow-pp" if piped else ""),
                usd_per_hour=None if price is None or gpus is None else gpus * price,
                note=PIPELINE_COST if shape.pp > 1 else "",
            )
        )
    found.sort(
        key=lambda other: (other.conversations is None, other.layout.gpus, other.layout.pp, other.layout.tp)
    )
    return tuple(found)


def _too_close(demand: Demand, shapes: list[Candidate], layout: Layout, replica: Replica) -> tuple[str, ...]:
    """Warn when the count would be another one at either end of the engine's stated uncertainty."""
    tried = [(shape.tp * shape.pp, shape.replica) for shape in shapes if shape.replica is not None]
    pessimistic = [size * replicas_needed(one.low, demand) for size, one in tried if one.low]
    optimistic = min(size * replicas_needed(one.high, demand) for size, one in tried if one.high)
    if pessimistic and min(pessimistic) == optimistic == layout.gpus:
        return ()
    worst = f"{min(pessimistic):,}" if pessimistic else "none that fits"
    return (
        f"too close to call: within the stated uncertainty the answer is {optimistic:,} to {worst} GPUs "
        f"({replica.low:,} to {replica.high:,} conversations per replica)",
    )


def _ledger(deployment: Deployment, demand: Demand, layout: Layout, replica: Replica, bound: Bound) -> Ledger:
    spare = f" + {demand.spare}" if demand.spare else ""
    terms = (
        Term(
            name="replicas",
            symbol="D",
            value=layout.dp,
            unit="replicas",
            formula="ceil(users / conversations per replica)" + (" + spare" if demand.spare else ""),
            numbers=f"ceil({demand.users:,} / {replica.conversations:,}){spare}",
        ),
        Term(
            name="GPUs",
            symbol="G",
            value=layout.gpus,
            unit="GPUs",
            formula="T x P x D",
            numbers=f"{layout.tp} x {layout.pp} x {layout.dp}",
        ),
        Term(
            name="pooled bytes",
            symbol="B_pool",
            value=bound.total_bytes,
            unit="B",
            formula="users x KV bytes + weights once",
            numbers=f"{demand.users:,} x {bound.conversation_bytes:,} + {bound.weight_bytes:,}",
            source="ideal bytes: no rounding, no replication",
        ),
        Term(
            name="pooled lower bound",
            symbol="G_min",
            value=bound.gpus,
            unit="GPUs",
            formula="ceil(B_pool / usable bytes of a card)",
            numbers=f"ceil({bound.total_bytes:,} / {bound.usable_bytes:,})",
        ),
    )
    return Ledger(
        name="GPUs to book", terms=terms, parts=(total_ledger(deployment, demand.context, layout, replica),)
    )


def _nothing_fits(deployment: Deployment, demand: Demand, shapes: list[Candidate]) -> str:
    if not shapes:
        wanted = (deployment.tp or 1) * (deployment.pp or 1)
        return f"one replica takes {wanted:,} GPUs, over the limit of {deployment.max_gpus:,} (--max-gpus)"
    usable = [shape for shape in shapes if shape.replica is not None]
    last = max(usable or shapes, key=lambda shape: shape.tp * shape.pp)
    return (
        f"no layout of at most {deployment.max_gpus:,} x {deployment.accelerator.name} holds {demand.users:,} "
        f"conversations of {demand.context:,} tokens; the widest tried, {Layout(tp=last.tp, pp=last.pp).words()}: "
        f"{last.refused}"
    )
