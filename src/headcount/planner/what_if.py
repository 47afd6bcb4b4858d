"""What would change the booking: the same question with one thing changed, answered by the same search."""

from __future__ import annotations

from contextlib import suppress

from headcount.cost.cache import growing_attention
from headcount.errors import HeadcountError, LayoutError, UsageError
from headcount.planner.book import Demand, cheapest
from headcount.planner.plan import Deployment
from headcount.spec.attention import HeadedAttention

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.spec.model import ModelSpec


def what_ifs(
    deployment: Deployment, demand: Demand, *, model_text: str
) -> tuple[tuple[str, int | None, str], ...]:
    """Return ``(change, GPUs or None when nothing fits, note)`` for the changes that apply to this model."""
    settings, quality = deployment.settings, "measure the quality"
    changes: list[tuple[str, Deployment | None, Demand, str]] = []
    smaller_kv = _accepted(deployment, "kv", ("fp8", "q8_0"))
    if settings.kv in ("auto", "fp16", "bf16", "fp32") and smaller_kv:
        changed = deployment.replace(settings=settings.replace(kv=smaller_kv))
        changes.append((f"--kv {smaller_kv}", changed, demand, quality))
    model = deployment.model
    smaller = _accepted(deployment, "weights", ("fp8", "q8_0"))
    if settings.weights == "auto" and model.quantization is None and model.checkpoint is None and smaller:
        changed = deployment.replace(settings=settings.replace(weights=smaller))
        changes.append((f"--weights {smaller}", changed, demand, quality))
    fewer = _fewer_heads(model)
    if fewer is not None:
        changes.append((f"--kv-heads {fewer}", *_with_heads(deployment, demand, model_text, fewer)))
    doubled = 2 * demand.context
    if not model.max_positions or doubled <= model.max_positions:
        changes.append((f"--context {doubled}", deployment, demand.replace(context=doubled), ""))
    rows = []
    for change, other, asked, note in changes:
        # Blocks of a format need not divide the heads, and a length that was fixed otherwise may rule a longer one out.
        with suppress(UsageError):
            rows.append((change, None if other is None else _gpus(other, asked), note))
    return tuple(rows)


def _accepted(deployment: Deployment, field: str, formats: tuple[str, ...]) -> str | None:
    """The first of ``formats`` that this engine has for the cache or the weights of this model."""
    engine, model = deployment.engine, deployment.model
    name_of = engine.kv_format_name if field == "kv" else engine.weights_name
    for name in formats:
        try:
            name_of(model, deployment.settings.replace(**{field: name}))
        except HeadcountError:
            continue
        return name
    return None


def _fewer_heads(model: ModelSpec) -> int | None:
    """Eight key/value heads for a model that has more, when its query heads allow; None otherwise."""
    attention = growing_attention(model)
    if not isinstance(attention, HeadedAttention) or attention.num_key_value_heads <= 8:
        return None
    return 8 if attention.num_attention_heads % 8 == 0 else None


def _with_heads(
    deployment: Deployment, demand: Demand, model_text: str, heads: int
) -> tuple[Deployment | None, Demand, str]:
    from headcount.spec.reader import read_model

    try:
        other = read_model(model_text, kv_heads=heads, nominal_parameters=deployment.model.nominal_parameters)
    except UsageError:
        return None, demand, "does not apply to this model"
    return deployment.replace(model=other), demand, "another model, other quality"


def _gpus(deployment: Deployment, demand: Demand) -> int | None:
    try:
        return cheapest(deployment, demand).best.gpus
    except LayoutError:
        return None
