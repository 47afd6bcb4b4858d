"""``fit``: how many conversations of a length fit on these GPUs; or the longest context for a number of users.

total = replicas x conversations of one replica
Conversations are whole and live on one replica; every replica has its own copy of the weights.
"""

from __future__ import annotations

from headcount.cost.model_ledger import model_ledger
from headcount.engines.base import Layout
from headcount.errors import LayoutError, UsageError
from headcount.ledger import Ledger, Term
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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.engines.base import Replica

# The longest context ``fit --users`` searches when a model states none.
CONTEXT_LIMIT = 2**24
# Deeper pipelines are tried only where they use every card: so many layouts would take long.
_MOST_STAGES = 16


class Trial(Record):
    """One layout that was asked for: its replica, or why it is refused."""

    layout: Layout
    replica: Replica | None
    refused: str

    @property
    def conversations(self) -> int | None:
        """What all replicas hold; None when refused."""
        return None if self.replica is None else self.layout.dp * self.replica.conversations


def fit(
    deployment: Deployment,
    *,
    gpus: int | None,
    context: int,
    allow_long: bool = False,
    users: int | None = None,
) -> Plan:
    """Return the plan for ``gpus`` cards (or the layout that was fixed) at ``context`` tokens.

    A verdict that flips within the engine's stated uncertainty (whether one conversation, or ``users`` of them, fit) is
    said to be too close to call.

    Raises LayoutError when every layout is refused, UsageError when the fixed layout does not use ``gpus``.
    """
    require_parameters(deployment.model)
    warnings = check_context(deployment.model, context, allow_long=allow_long)
    best, tried = best_layout(deployment, gpus=gpus, context=context)
    layout, replica = best.layout, best.replica
    assert replica is not None
    if gpus is not None and layout.gpus < gpus:
        idle = gpus - layout.gpus
        stay = "stays" if idle == 1 else "stay"
        warnings += (f"{idle} of the {gpus} GPUs {stay} idle: {layout.words()} does not divide them",)
    if not replica.conversations:
        warnings += (f"nothing fits: {replica.binding}",)
    # Where stages were tried and none was chosen, none holds more.
    staged = any(trial.layout.pp > 1 for trial in tried)
    piped = () if staged else _better_piped(deployment, gpus, context, best)
    warnings += too_close(layout.dp * replica.low, layout.dp * replica.high, users)
    others = tuple(
        Alternative(layout=other.layout, conversations=other.conversations, refused=other.refused)
        for other in tried
        if other.layout != layout
    )
    return Plan(
        question="fit",
        deployment=deployment,
        layout=layout,
        context=context,
        replica=replica,
        conversations=layout.dp * replica.conversations,
        low=layout.dp * replica.low,
        high=layout.dp * replica.high,
        users=users,
        alternatives=(*others, *piped),
        warnings=(
            *calibration_words(deployment, layout, context),
            *warnings,
            *replica.warnings,
            *standing_warnings(deployment),
        ),
        ledger=total_ledger(deployment, context, layout, replica),
    )


def _better_piped(
    deployment: Deployment, gpus: int | None, context: int, best: Trial
) -> tuple[Alternative, ...]:
    """The layout with pipeline stages that holds most, where that is more than the one without: told, not chosen."""
    if not _may_pipeline(deployment, gpus):
        return ()
    trials = _trials(deployment, pipeline_layouts(deployment, gpus or 1), context)
    most = max(
        trials,
        key=lambda trial: (trial.conversations or 0, -trial.layout.gpus, -trial.layout.pp),
        default=None,
    )
    if most is None or (most.conversations or 0) <= (best.conversations or 0):
        return ()
    return (
        Alternative(
            layout=most.layout,
            conversations=most.conversations,
            refused=f"pipeline stages are taken when asked for: --tp {most.layout.tp} --pp {most.layout.pp}",
            note=PIPELINE_COST,
        ),
    )


def too_close(low: int, high: int, users: int | None) -> tuple[str, ...]:
    """A warning when ``low`` conversations give another verdict than ``high`` of them."""
    wanted = 1 if users is None else users
    if (low >= wanted) == (high >= wanted):
        return ()
    verdict = "whether anything fits" if users is None else f"whether {users:,} fit"
    return (f"too close to call {verdict}: {low:,} to {high:,} conversations within the stated uncertainty",)


def best_layout(deployment: Deployment, *, gpus: int | None, context: int) -> tuple[Trial, list[Trial]]:
    """Return the layout that holds most (ties: fewest stages, then the smallest T), and everything that was tried.

    Raises LayoutError when every layout is refused.
    """
    tried = _trials(deployment, candidate_layouts(deployment, gpus), context)
    # Stages are an engine's own way, or the way out where widths hold nothing for sure.
    sure = any(trial.replica is not None and trial.replica.low for trial in tried)
    if (deployment.engine.splits_layers or not sure) and _may_pipeline(deployment, gpus):
        tried += _trials(deployment, pipeline_layouts(deployment, gpus or 1), context)
    feasible = [trial for trial in tried if trial.replica is not None]
    if not feasible:
        reasons = "; ".join(f"{trial.layout.words()}: {trial.refused}" for trial in tried[:4])
        raise LayoutError(
            f"no layout of {gpus or tried[0].layout.gpus} x {deployment.accelerator.name} is possible: {reasons}"
        )
    best = max(feasible, key=lambda trial: (trial.conversations or 0, -trial.layout.pp, -trial.layout.tp))
    return best, tried


def _trials(deployment: Deployment, layouts: list[Layout], context: int) -> list[Trial]:
    found = ((layout, *deployment.attempt(layout, context)) for layout in layouts)
    return [Trial(layout=layout, replica=replica, refused=reason) for layout, replica, reason in found]


def total_ledger(deployment: Deployment, context: int, layout: Layout, replica: Replica) -> Ledger:
    """The sum over replicas, the GPU that binds, and the model's own terms."""
    total = Term(
        name="conversations together",
        symbol="N_total",
        value=layout.dp * replica.conversations,
        unit="conversations",
        formula="replicas x conversations per replica",
        numbers=f"{layout.dp} x {replica.conversations:,}",
    )
    model, settings = deployment.model, deployment.settings
    own = model_ledger(
        model,
        context,
        deployment.kv,
        weight_name=deployment.engine.weights_name(model, settings),
        total=deployment.engine.stored_bytes(model, settings),
    )
    return Ledger(name="conversations", terms=(total,), parts=(replica.ledger, own))


def candidate_layouts(deployment: Deployment, gpus: int | None) -> list[Layout]:
    """The layouts of at most ``gpus`` cards without pipeline stages, or the one that was fixed."""
    fixed = (deployment.tp, deployment.pp, deployment.dp)
    if any(value is not None for value in fixed):
        return [fixed_layout(deployment, gpus)]
    count = gpus or 1
    # A width that does not divide the count leaves GPUs idle, and may still hold more.
    return [Layout(tp=tp, dp=count // tp) for tp in range(1, min(count, deployment.gpus_per_node) + 1)]


def fixed_layout(deployment: Deployment, gpus: int | None) -> Layout:
    """Complete the fixed sizes: replicas follow from the GPU count when they are not given."""
    tp, pp = deployment.tp or 1, deployment.pp or 1
    if deployment.dp is not None or gpus is None:
        layout = Layout(tp=tp, pp=pp, dp=deployment.dp or 1)
        if gpus is not None and layout.gpus != gpus:
            raise UsageError(
                f"--tp {tp} x --pp {pp} x --dp {layout.dp} is {layout.gpus} GPUs; --gpus says {gpus}"
            )
        return layout
    if gpus % (tp * pp):
        raise UsageError(
            f"--gpus {gpus} does not divide into replicas of --tp {tp} x --pp {pp} = {tp * pp} GPUs"
        )
    return Layout(tp=tp, pp=pp, dp=gpus // (tp * pp))


def _may_pipeline(deployment: Deployment, gpus: int | None) -> bool:
    """Pipeline stages are tried when nothing within a node fits and no size was fixed."""
    return (gpus or 1) > 1 and deployment.tp is None and deployment.pp is None and deployment.dp is None


def pipeline_layouts(deployment: Deployment, gpus: int) -> list[Layout]:
    """Layouts of at most ``gpus`` cards with two or more stages; of very many stages, those that leave no card idle."""
    return [
        Layout(tp=tp, pp=pp, dp=gpus // (pp * tp))
        for pp in range(2, min(gpus, len(deployment.model.layers)) + 1)
        for tp in range(1, min(gpus // pp, deployment.gpus_per_node) + 1)
        if pp <= _MOST_STAGES or gpus % (pp * tp) == 0
    ]


def largest_context(
    deployment: Deployment, *, gpus: int | None, users: int, allow_long: bool = False
) -> Plan:
    """Return the plan at the longest context that still holds ``users`` conversations.

    Halved from the longest until everyone fits, then bisected: there capacity does not grow with the context. Raises
    LayoutError when not even one token each fits.
    """
    limit = deployment.model.max_positions or CONTEXT_LIMIT
    if allow_long:
        limit = CONTEXT_LIMIT

    def holds(context: int) -> bool:
        return (best_layout(deployment, gpus=gpus, context=context)[0].conversations or 0) >= users

    require_parameters(deployment.model)
    # From above: at a few tokens each an engine's own limits bind, its batches being no longer than the requests.
    low = limit
    while low and not holds(low):
        low //= 2
    if not low:
        raise LayoutError(
            f"not even 1 token each fits for {users:,} users on {gpus or 1} x {deployment.accelerator.name}"
        )
    high = min(limit, 2 * low + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    plan = fit(deployment, gpus=gpus, context=low, allow_long=allow_long)
    known = deployment.model.max_positions == limit
    words = (
        f"the model's {limit:,} positions are the limit" if known else f"the search stops at {limit:,} tokens"
    )
    note = (words + ", not the memory",) if low == limit else ()
    return plan.replace(users=users, warnings=(*note, *plan.warnings))
