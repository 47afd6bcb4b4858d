"""Results as plain dictionaries with fixed names: the interface that scripts read."""

from __future__ import annotations

from headcount.cost.cache import conversation_bytes, token_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.engines.base import GpuBudget, Layout
    from headcount.planner.plan import Alternative, Plan


def layout_document(layout: Layout) -> dict[str, int]:
    """``{"tp", "pp", "dp"}``."""
    return {"tp": layout.tp, "pp": layout.pp, "dp": layout.dp}


def budget_document(budget: GpuBudget) -> dict[str, object]:
    """One GPU's memory in bytes."""
    return {
        "memory_bytes": budget.memory,
        "reserved_bytes": budget.reserved,
        "weight_bytes": budget.weights,
        "overhead_bytes": dict(budget.overhead),
        "kv_budget_bytes": budget.kv_budget,
    }


def _alternative(other: Alternative) -> dict[str, object]:
    row: dict[str, object] = {
        "layout": layout_document(other.layout),
        "gpus": other.layout.gpus,
        "conversations": other.conversations,
        "refused": other.refused or None,
    }
    if other.usd_per_hour is not None:
        row["usd_per_hour"] = round(other.usd_per_hour, 4)
    if other.note:
        row["note"] = other.note
    return row


def plan_document(plan: Plan) -> dict[str, object]:
    """The JSON object of ``fit`` and ``book``. ``memory_bytes``, ``reserved_bytes`` and ``kv_budget_bytes`` are of one
    GPU (the one that binds); ``weight_bytes`` is the whole model, ``per_gpu`` holds that GPU's own share.
    """
    deployment, model, budget = plan.deployment, plan.deployment.model, plan.replica.budget
    kv = deployment.kv
    document: dict[str, object] = {
        "question": plan.question,
        "model": {"name": model.name, "family": model.family, "source": model.source},
        "deployment": {
            "engine": deployment.engine.name,
            "engine_version": deployment.engine.version,
            "gpu": deployment.accelerator.name,
            "gpus": plan.layout.gpus,
            "layout": layout_document(plan.layout),
            "context": plan.context,
            "weights": deployment.engine.weights_name(model, deployment.settings),
            "kv": kv.name,
        },
        "kv_bytes_per_token": token_bytes(model, kv),
        "kv_bytes_per_conversation": conversation_bytes(model, plan.context, kv),
        "weight_bytes": deployment.engine.stored_bytes(model, deployment.settings),
        "parameters": model.nominal_parameters or model.parameters,
        "memory_bytes": budget.memory,
        "reserved_bytes": budget.reserved,
        "kv_budget_bytes": budget.kv_budget,
        "per_gpu": {
            **budget_document(budget),
            "kv_bytes_per_conversation": plan.replica.kv_bytes_per_conversation_per_gpu,
        },
        "conversations": plan.conversations,
        "conversations_low": plan.low,
        "conversations_high": plan.high,
        "conversations_per_replica": plan.replica.conversations,
        "binding": plan.replica.binding,
    }
    if plan.users is not None:
        document["users"] = plan.users
    if plan.question == "book":
        document |= _book_part(plan)
    document["alternatives"] = [_alternative(other) for other in plan.alternatives]
    if plan.usd_per_gpu_hour is not None:
        document["usd_per_hour"] = round(plan.usd_per_gpu_hour * plan.layout.gpus, 4)
        document["price_source"] = plan.price_source
    document["warnings"] = list(plan.warnings)
    document["ledger"] = plan.ledger.as_dict()
    return document


def _book_part(plan: Plan) -> dict[str, object]:
    bound = plan.lower_bound or (0, 0)
    return {
        "gpus": plan.layout.gpus,
        "replicas": plan.layout.dp,
        "spare_replicas": plan.spare_replicas,
        "layout": layout_document(plan.layout),
        "nodes": plan.nodes,
        "lower_bound": {"total_bytes": bound[0], "gpus": bound[1]},
        "smaller": [{"gpus": gpus, "refused": reason} for gpus, reason in plan.smaller],
        "what_ifs": [{"change": change, "gpus": gpus, "note": note} for change, gpus, note in plan.what_ifs],
    }
