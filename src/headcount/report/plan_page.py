"""The console page of ``fit`` and ``book``: the answer first, then the memory of one GPU, then why and what if."""

from __future__ import annotations

from headcount.cost.weights import stored_name
from headcount.report.console import Page, bar
from headcount.units import gb, gib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.planner.plan import Plan

_LABEL = 13
# What --emit calls the line of an engine's own server.
LAUNCHED_AS = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llama.cpp": "llama-server",
    "ollama": "ollama",
    "tensorrt-llm": "tensorrt-llm",
}
# Counts below the answer that are told apart; a booking of 100 GPUs does not list 99 failures.
_SMALLER_SHOWN = 3


def write_plan(page: Page, plan: Plan) -> None:
    """Write the page of one plan."""
    _title(page, plan)
    for warning in plan.warnings:
        if warning.startswith("too close to call"):
            page.wrapped(warning, indent=0, hanging=2)
    page.blank()
    _memory(page, plan)
    _capacity(page, plan)
    if plan.question == "book":
        page.blank()
        _why_not_fewer(page, plan)
    _alternatives(page, plan)
    if plan.what_ifs:
        page.blank()
        page.line("What would change it", "bold")
        for change, gpus, note in plan.what_ifs:
            answer = "nothing fits" if gpus is None else f"{gpus:,} GPU{'s' if gpus != 1 else ''}"
            page.line(f"  {change:<22}{answer:<14}{note}".rstrip())
    page.blank()
    launch = LAUNCHED_AS.get(plan.deployment.engine.name)
    launched = f"     Launch it: --emit {launch}" if launch and plan.conversations else ""
    page.line(f"Arithmetic: --explain{launched}     Data: --json", "dim")


def _title(page: Page, plan: Plan) -> None:
    deployment, layout = plan.deployment, plan.layout
    card = deployment.accelerator.name.upper()
    model = deployment.model
    weights = deployment.engine.weights_name(model, deployment.settings)
    if weights == "auto":
        weights = stored_name(model)
    replicas = f"{layout.dp:,} replica{'s' if layout.dp != 1 else ''}, {layout.words()}"
    engine = f"{deployment.engine.name} {deployment.engine.version}".replace("textbook 1", "textbook")
    how = f"{replicas}, {engine}, {weights} weights, {deployment.kv.name} KV"
    if plan.question == "book":
        page.pair(f"Book {layout.gpus:,} x {card}", how)
    elif plan.users is not None and plan.conversations >= plan.users:
        page.pair(f"{plan.context:,} tokens each for {plan.users:,} users on {layout.gpus:,} x {card}", how)
    else:
        page.pair(f"{plan.conversations:,} conversations on {layout.gpus:,} x {card}", how)
    nominal = (
        f"{model.nominal_parameters:,} (nominal)" if model.nominal_parameters else f"{model.parameters:,}"
    )
    towers = f" and {model.tower_parameters:,} of towers" if model.tower_parameters else ""
    page.line(f"{model.name[:60]}, {nominal} parameters{towers}", "dim")


def _memory(page: Page, plan: Plan) -> None:
    budget = plan.replica.budget
    used = min(
        plan.replica.conversations * plan.replica.kv_bytes_per_conversation_per_gpu, max(budget.kv_budget, 0)
    )
    overhead = sum(count for _, count in budget.overhead)
    free = max(budget.kv_budget - used, 0)
    parts = [
        ("#", "weights", budget.weights),
        ("+", "overhead", overhead),
        ("=", "cache", used),
        ("-", "free", free),
        (".", "reserved", budget.reserved),
    ]
    drawn = bar([(sign, float(count)) for sign, _, count in parts], page.width - _LABEL - 2)
    page.line(f"  {'each GPU':<{_LABEL - 2}}[{drawn}]")
    legend = [f"{sign} {name} {gib(count)}" for sign, name, count in parts if count > 0]
    page.items(legend, indent=_LABEL)
    shown = f"{gib(budget.memory)} ({gb(budget.memory)}) of memory"
    if plan.deployment.settings.memory_bytes is None:
        sold = f"sold as {plan.deployment.accelerator.datasheet_gb:g} GB"
        shown += f", {sold}"
    page.wrapped(shown, indent=_LABEL)
    if budget.kv_budget < 0:
        page.wrapped(f"{gib(-budget.kv_budget)} short: {plan.replica.binding}", indent=_LABEL)


def _capacity(page: Page, plan: Plan) -> None:
    replica = plan.replica
    interval = f"  ({replica.low:,} to {replica.high:,})" if replica.low != replica.high else ""
    page.line(
        f"  {'a replica':<{_LABEL - 2}}{replica.conversations:,} conversations of {plan.context:,} tokens{interval}"
    )
    if plan.layout.dp > 1 or plan.users is not None:
        text = f"{plan.conversations:,}"
        if plan.users is not None:
            text += f" for {plan.users:,} users, {_difference(plan.conversations - plan.users)}"
        if plan.spare_replicas:
            text += f" ({plan.spare_replicas} replica{'s' if plan.spare_replicas > 1 else ''} may fail)"
        page.line(f"  {'together':<{_LABEL - 2}}{text}")
    if plan.nodes > 1:
        page.line(f"  {'in':<{_LABEL - 2}}{plan.nodes:,} nodes of {plan.deployment.gpus_per_node} GPUs")
    page.wrapped(replica.binding, indent=2, hanging=_LABEL, label="binds")
    if plan.usd_per_gpu_hour is not None:
        total = plan.usd_per_gpu_hour * plan.layout.gpus
        page.wrapped(
            f"{total:,.2f} USD an hour ({plan.usd_per_gpu_hour:,.2f} each: {plan.price_source})",
            indent=2,
            hanging=_LABEL,
            label="costs",
        )


def _difference(spare: int) -> str:
    return f"{spare:,} over" if spare >= 0 else f"{-spare:,} short"


def _why_not_fewer(page: Page, plan: Plan) -> None:
    page.line("Why not fewer", "bold")
    for gpus, reason in plan.smaller[:_SMALLER_SHOWN]:
        label = f"{gpus:,} GPU{'s' if gpus != 1 else ''}"
        page.wrapped(reason, indent=2, hanging=_LABEL, label=label)
    left = len(plan.smaller) - _SMALLER_SHOWN
    if left > 0:
        page.line(f"  {'fewer':<{_LABEL - 2}}{left:,} smaller counts fail as well: --json lists each")
    if plan.lower_bound:
        total, gpus = plan.lower_bound
        page.wrapped(
            f"The pooled bound is {gpus:,}: {gib(total)} ({gb(total)}) of cache and one copy of the weights. It "
            "forgets that weights are copied to every replica and that a conversation is not divided.",
            indent=2,
        )


def _alternatives(page: Page, plan: Plan) -> None:
    pipelines = [other for other in plan.alternatives if other.layout.pp > 1 and other.conversations]
    if not pipelines or plan.layout.pp > 1:
        return
    best = min(pipelines, key=lambda other: other.layout.gpus)
    asked = f"--gpus {best.layout.gpus} --tp {best.layout.tp} --pp {best.layout.pp}"
    how = "--allow-pp" if plan.question == "book" else asked
    price = "" if best.usd_per_hour is None else f", {best.usd_per_hour:,.2f} USD an hour"
    page.wrapped(
        f"With pipeline stages {best.layout.gpus:,} GPUs would hold {best.conversations:,} "
        f"({best.layout.words()}{price}; {how}): {best.note}.",
        indent=2,
    )
