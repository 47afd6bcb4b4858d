"""What would change the booking: the same question with one thing changed, answered by the same search."""

from __future__ import annotations

from contextlib import suppress

from headcount.cost.cache import growing_attention
from headcount.engines.base import Settings
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
    rows = []
    settings = deployment.settings
    smaller_kv = _accepted(deployment, "kv", ("fp8", "q8_0"))
    if settings.kv in ("auto", "fp16", "bf16", "fp32") and smaller_kv:
        changed = settings.replace(kv=smaller_kv)
        # Blocks of a format need not divide this model's heads.
        with suppress(UsageError):
            rows.append(
                _settings_row(deployment, demand, changed, f"--kv {smaller_kv}", "measure the quality")
            )
    if (
        settings.weights == "auto"
        and deployment.model.quantization is None
        and deployment.model.checkpoint is None
    ):
        smaller = _accepted(deployment, "weights", ("fp8", "q8_0"))
        if smaller:
            changed = settings.replace(weights=smaller)
            with suppress(UsageError):
                rows.append(
                    _settings_row(deployment, demand, changed, f"--weights {smaller}", "measure the quality")
                )
    fewer = _fewer_heads(deployment.model)
    if fewer is not None:
        rows.append(_heads_row(deployment, demand, model_text, fewer))
    doubled = 2 * demand.context
    if not deployment.model.max_positions or doubled <= deployment.model.max_positions:
        # A length that was fixed otherwise (max-model-len, max_num_batched_tokens) may rule the longer one out.
        with suppress(UsageError):
            rows.append((f"--context {doubled}", _gpus(deployment, demand.replace(context=doubled)), ""))
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


def _settings_row(
    deployment: Deployment, demand: Demand, settings: Settings, change: str, note: str
) -> tuple[str, int | None, str]:
    return change, _gpus(deployment.replace(settings=settings), demand), note


def _fewer_heads(model: ModelSpec) -> int | None:
    """Eight key/value heads for a model that has more, when its query heads allow; None otherwise."""
    attention = growing_attention(model)
    if not isinstance(attention, HeadedAttention) or attention.num_key_value_heads <= 8:
        return None
    return 8 if attention.num_attention_heads % 8 == 0 else None


def _heads_row(
    deployment: Deployment, demand: Demand, model_text: str, heads: int
) -> tuple[str, int | None, str]:
    from headcount.spec.reader import read_model

    try:
        other = read_model(model_text, kv_heads=heads, nominal_parameters=deployment.model.nominal_parameters)
    except UsageError:
        return f"--kv-heads {heads}", None, "does not apply to this model"
    return (
        f"--kv-heads {heads}",
        _gpus(deployment.replace(model=other), demand),
        "another model, other quality",
    )


def _gpus(deployment: Deployment, demand: Demand) -> int | None:
    try:
        return cheapest(deployment, demand).best.gpus
    except LayoutError:
        return None
