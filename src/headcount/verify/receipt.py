"""A start beside its prediction: what ``verify`` prints. Terms, the gap's explanation, and what the server really holds.

observation -> model (named, or as the log says it) -> ask -> compare -> Receipt
conversations = the engine's rules at the asked length, with the measured terms in place of the predicted ones
"""

from __future__ import annotations

import re

from headcount.engines.calibration import Calibration
from headcount.errors import HeadcountError, UsageError
from headcount.record import Record
from headcount.units import GIB
from headcount.verify.case_of import Asked, ask
from headcount.verify.comparison import compare
from headcount.verify.explanation import explain_gap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.spec.model import ModelSpec
    from headcount.verify.observation import Comparison, Observation

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_GIB_TERMS = (
    ("device_bytes", "gpu_total_memory_gib"),
    ("weight_bytes", "weights_gib"),
    ("activation_bytes", "peak_activation_gib"),
    ("non_torch_bytes", "non_torch_gib"),
    ("graph_bytes", "cuda_graphs_gib"),
    ("cache_bytes", "kv_cache_memory_gib"),
)


class Receipt(Record):
    """One start, predicted beside reported.

    held, held_low, held_high   conversations of ``context`` tokens that the server really holds; None where neither the
                                log nor the rules can say
    explains                    the term or setting that explains the largest gap; "" when there is none
    """

    observation: Observation
    asked: Asked
    lines: tuple[Comparison, ...]
    calibration: Calibration
    context: int
    held: int | None
    held_low: int | None
    held_high: int | None
    holds_why: str
    explains: str
    notes: tuple[str, ...] = ()


def find_model(observation: Observation, named: str | None) -> ModelSpec:
    """The model: as asked, else by the name in the log, in the catalogue or the local Hugging Face cache.

    A name in a log is no order: no path is opened and no network asked for it. Raises UsageError when it is not known.
    """
    from headcount.spec import catalogue
    from headcount.spec.reader import cached_snapshot, read_model

    if named is not None:
        return read_model(named)
    if observation.model is None:
        raise UsageError("the log does not name the model; say which with --model NAME")
    name = observation.model.strip().rstrip("/")
    for text in dict.fromkeys((name, name.rsplit("/", 1)[-1])):
        found = catalogue.entry(text)
        if found is not None:
            return read_model(text)
    if _HUB_ID.fullmatch(name) and cached_snapshot(name) is not None:
        return read_model(name)
    raise UsageError(
        f"the log's model {name[:80]!r} is not in the catalogue or the local cache; say which with --model NAME"
    )


def make_receipt(
    observation: Observation,
    model: ModelSpec,
    *,
    context: int | None = None,
    origin: str = "",
    notes: tuple[str, ...] = (),
) -> Receipt:
    """Predict everything that ``observation`` reports, and what the server holds at ``context`` tokens."""
    asked = ask(observation, model)
    lines = compare(observation, asked)
    calibration = calibrate(observation, asked, origin)
    length = context or asked.case.context
    held = _held(asked, calibration, length)
    return Receipt(
        observation=observation,
        asked=asked,
        lines=lines,
        calibration=calibration,
        context=length,
        held=held[0],
        held_low=held[1],
        held_high=held[2],
        holds_why=held[3],
        explains=_explain(observation, asked, lines),
        notes=(*notes, *asked.assumed),
    )


def calibrate(observation: Observation, asked: Asked, origin: str) -> Calibration:
    """The measured terms of ``observation``, ready to be saved or used."""
    measured = {
        name: round(getattr(observation, field) * GIB)
        for name, field in _GIB_TERMS
        if getattr(observation, field) is not None and getattr(observation, field) >= 0
    }
    layout = asked.case.layout
    return Calibration(
        engine=asked.engine.name,
        engine_version=asked.engine.version,
        model=asked.case.model.name,
        gpu=asked.case.accelerator.name,
        tp=layout.tp,
        pp=layout.pp,
        origin=origin or observation.source_url or observation.id or "a log",
        utilization=observation.gpu_memory_utilization,
        context=observation.max_model_len,
        **measured,
    )


def _held(
    asked: Asked, calibration: Calibration, context: int
) -> tuple[int | None, int | None, int | None, str]:
    """``(conversations, low, high, what they rest on)``."""
    case = asked.case
    if context > case.context:
        return None, None, None, f"the server takes requests of at most {case.context:,} tokens"
    settings = case.settings.replace(calibration=calibration)
    if calibration.cache_bytes is not None and calibration.utilization is None:
        # A cache that was printed is what the server has, whatever share of the card was asked for.
        share = asked.engine.default_utilization(case)
        settings = settings.replace(calibration=calibration.replace(utilization=share))
    try:
        replica = asked.engine.replica(case.replace(settings=settings, context=context))
    except HeadcountError as error:
        return None, None, None, str(error)
    why = (
        "the reported cache"
        if calibration.cache_bytes is not None
        else "predicted: the log does not say the cache"
    )
    return replica.conversations, replica.low, replica.high, why


def _explain(observation: Observation, asked: Asked, lines: tuple[Comparison, ...]) -> str:
    """Name the setting that explains a pool, else the term that is furthest off."""
    for line in lines:
        if line.check == "tokens_from_kv_memory" and abs(line.relative_error or 0) > 0.005:
            found = explain_gap(observation, asked, line.quantity)
            return f"{line.quantity}: {found}" if found else ""
    terms = [
        line for line in lines if line.unit == "GiB" and line.check in ("term", "weights") and line.difference
    ]
    if not terms:
        return ""
    worst = max(terms, key=lambda line: abs(line.difference or 0))
    if abs(worst.difference or 0) < 0.05:
        return ""
    side = "more" if (worst.difference or 0) < 0 else "less"
    return f"{worst.quantity} took {abs(worst.difference or 0):.2f} GiB {side} than predicted"
