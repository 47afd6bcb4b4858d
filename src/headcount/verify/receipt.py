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
from headcount.verify.case_of import SLOT_ENGINES, SLOTS_MAY_SHARE, Asked, ask
from headcount.verify.comparison import compare
from headcount.verify.explanation import explain_gap, unsaid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.engines.base import Case
    from headcount.spec.model import ModelSpec
    from headcount.verify.observation import Comparison, Observation

# Differences that need no words [GiB].
_SMALL_GIB = 0.05
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
    dashed = _dashed(name)
    for text in dict.fromkeys((name, name.rsplit("/", 1)[-1], dashed, dashed.partition("-")[2])):
        found = catalogue.entry(text)
        if found is not None:
            return read_model(text)
    if _HUB_ID.fullmatch(name) and cached_snapshot(name) is not None:
        return read_model(name)
    raise UsageError(
        f"the log's model {name[:80]!r} is not in the catalogue or the local cache; say which with --model NAME"
    )


def _dashed(name: str) -> str:
    """A GGUF's ``Smollm2 135M 8k ...`` or ``Gemma 3 270m`` as a catalogue name: words up to the size, with dashes.

    A maker's name may stand before it (``Meta Llama 3.1 8B Instruct``).
    """
    words = re.split(r"[\s_-]+", name.lower().removesuffix(".gguf"))
    for count, word in enumerate(words, start=1):
        if word[:1].isdigit() and word[-1:] in ("b", "m"):
            return "-".join(words[:count])
    return "-".join(words)


def make_receipt(
    observation: Observation,
    model: ModelSpec,
    *,
    weights: str | None = None,
    context: int | None = None,
    origin: str = "",
    notes: tuple[str, ...] = (),
    explain: bool = True,
) -> Receipt:
    """Predict everything that ``observation`` reports, and what the server holds at ``context`` tokens.

    ``weights`` names the format of the weights where the log does not say it; ``explain``: look for what explains a gap,
    which may take seconds.
    """
    asked = ask(observation, model)
    if weights is not None:
        settings = asked.case.settings.replace(weights=weights)
        kept = tuple(words for words in asked.assumed if "weight" not in words)
        asked = asked.replace(case=asked.case.replace(settings=settings), weights_known=True, assumed=kept)
    lines = compare(observation, asked)
    length = context or _longest(observation, asked)
    held = _held(observation, asked, length)
    return Receipt(
        observation=observation,
        asked=asked,
        lines=lines,
        calibration=calibrate(observation, asked, origin),
        context=length,
        held=held[0],
        held_low=held[1],
        held_high=held[2],
        holds_why=held[3],
        explains=_explain(observation, asked, lines) if explain else "",
        notes=(*notes, *_other_model(observation, model), *asked.assumed),
    )


def _longest(observation: Observation, asked: Asked) -> int:
    """The longest conversation the server takes: of one slot, where its context is divided."""
    if asked.engine.name not in SLOT_ENGINES:
        return asked.case.context
    cells = _cells(observation, asked)
    return cells if _unified(observation) else max(1, cells // (observation.max_num_seqs or 1))


def _cells(observation: Observation, asked: Asked) -> int:
    """All tokens of a server of slots: as printed, as asked, else as many as its cache has bytes for."""
    stated = observation.kv_cache_tokens or observation.max_model_len
    if stated or not observation.kv_cache_memory_gib:
        return stated or asked.case.context
    return asked.engine.printed_tokens(asked.case, round(observation.kv_cache_memory_gib * GIB))


def _other_model(observation: Observation, model: ModelSpec) -> tuple[str, ...]:
    """A word when the log names a model that is not the one that was asked for."""
    name = (observation.model or "").rstrip("/").rsplit("/", 1)[-1]
    if not name or _same_name(name, model.name):
        return ()
    return (f"the log names {observation.model:.60}; {model.name} is compared",)


def _same_name(logged: str, ours: str) -> bool:
    """Names agree when all of ours is in the logged one, signs and case aside: Qwen2.5-7B-Instruct is qwen2.5-7b."""

    def plain(text: str) -> str:
        return "".join(ch for ch in text.lower() if ch.isalnum())

    return plain(ours.rsplit("/", 1)[-1]) in plain(logged) or plain(logged) in plain(ours)


def calibrate(observation: Observation, asked: Asked, origin: str) -> Calibration:
    """The measured terms of ``observation``, ready to be saved or used."""
    # A server of slots prints all tensors, the host's among them, and a plan takes one GPU's.
    left_out = "weight_bytes" if asked.engine.name in SLOT_ENGINES else ""
    measured = {
        name: round(getattr(observation, field) * GIB)
        for name, field in _GIB_TERMS
        if name != left_out and getattr(observation, field) is not None and getattr(observation, field) >= 0
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
        utilization=_utilization(observation, asked),
        context=observation.max_model_len,
        weights=asked.case.settings.weights,
        kv=asked.case.settings.kv,
        max_num_batched_tokens=observation.max_num_batched_tokens,
        max_num_seqs=observation.max_num_seqs,
        arguments=tuple(
            pair for pair in asked.case.settings.arguments if pair[0] in asked.engine.calibrated_arguments
        ),
        **measured,
    )


def _utilization(observation: Observation, asked: Asked) -> float | None:
    """As said; the release's default where the log shows every other argument; else None."""
    said = observation.gpu_memory_utilization
    return (
        asked.engine.default_utilization(asked.case) if said is None and observation.arguments_shown else said
    )


def _unified(observation: Observation) -> bool:
    return dict(observation.arguments).get("kv-unified", "false") in ("true", "on", "1")


def _held(
    observation: Observation, asked: Asked, context: int
) -> tuple[int | None, int | None, int | None, str]:
    """``(conversations, low, high, what they rest on)``: by the printed capacity, else predicted."""
    refused = next((part for part in observation.notes.split("; ") if part.startswith("start refused")), "")
    if refused:
        return 0, 0, 0, refused
    longest = _longest(observation, asked)
    if context > longest:
        return None, None, None, f"the server takes requests of at most {longest:,} tokens"
    case = asked.case.replace(context=context)
    memory = observation.kv_cache_memory_gib
    try:
        if asked.engine.name in SLOT_ENGINES:
            return _slots_held(observation, asked, context)
        found = asked.engine.holds(
            case if asked.engine.name != "vllm" else _with_longest(case, longest),
            tokens=observation.kv_cache_tokens,
            blocks=observation.num_gpu_blocks,
            cache_bytes=None if memory is None else round(memory * GIB),
        )
        # Engines side by side (data parallelism) each have a cache of their own, and print it.
        copies = case.layout.dp if asked.engine.name == "vllm" else 1
        each = f" of each of {copies} engines" if copies > 1 else ""
        if found is not None:
            held = copies * found
            return held, held, held, f"the reported capacity{each}"
        replica = asked.engine.replica(case)
    except HeadcountError as error:
        return None, None, None, str(error)
    best, least, most = (copies * count for count in (replica.conversations, replica.low, replica.high))
    return best, least, most, f"prediction{each}: the log prints no capacity"


def _with_longest(case: Case, longest: int) -> Case:
    """The same server: its longest request stays, the conversation is shorter."""
    arguments = dict(case.settings.arguments) | {"max-model-len": str(longest)}
    return case.replace(settings=case.settings.replace(arguments=tuple(arguments.items())))


def _slots_held(
    observation: Observation, asked: Asked, context: int
) -> tuple[int | None, int | None, int | None, str]:
    """A server of slots: as many as it was given, or as its common cells hold."""
    cells = _cells(observation, asked)
    slots = observation.max_num_seqs or 1
    found = min(slots, cells // context)
    words = f"its {slots} slot{'s' if slots > 1 else ''} and {cells:,} cells"
    if SLOTS_MAY_SHARE in observation.notes and slots > 1:
        # What the server calls the context of a slot is then all there is.
        shared = min(slots, cells // slots // context)
        return found, shared, found, f"{words} ({cells // slots:,} if its slots share one cache)"
    return found, found, found, words


def _explain(observation: Observation, asked: Asked, lines: tuple[Comparison, ...]) -> str:
    """Name the setting that explains a pool, else the card that cannot be, else the term that is furthest off."""
    memory = observation.kv_cache_memory_gib
    allowed = 0.005 + (_rounding(memory) if memory else 0.0)
    for line in lines:
        if line.check == "tokens_from_kv_memory" and abs(line.relative_error or 0) > allowed:
            found = explain_gap(observation, asked, line.quantity)
            if found:
                return f"{line.quantity}: {found}"
            missing = unsaid(observation, asked)
            left = f"; the log does not say {missing}" if missing else ""
            return (
                f"{line.quantity}: no setting that the log leaves open reproduces it{left}: is it this model?"
            )
    said = (observation.weights_gib or 0) + (memory or 0)
    card = (
        asked.engine.usable_bytes(asked.case.accelerator, asked.case.settings.replace(utilization=1.0)) / GIB
    )
    if asked.card_known and said > card and asked.engine.name not in SLOT_ENGINES:
        what = "weights and cache" if observation.weights_gib else "the cache"
        return f"{what} took {said:.2f} GiB and {asked.case.accelerator.name} has {card:.2f}: another card?"
    return _worst_term(lines)


def _rounding(printed: float) -> float:
    """Half a unit of the last printed decimal, relative to the figure."""
    decimals = len(f"{printed!r}".partition(".")[2])
    return 0.5 * 10.0**-decimals / printed


def _worst_term(lines: tuple[Comparison, ...]) -> str:
    """The term that is furthest off, of those that could have moved the cache the way it moved: more taken, less left."""
    whole = next((line for line in lines if line.check == "end_to_end" and line.unit == "GiB"), None)
    moved = (whole.difference or 0.0) if whole is not None else 0.0
    gap = abs(moved)
    terms = [
        line
        for line in lines
        if line.unit == "GiB" and line.check in ("term", "weights") and not line.reason
        if gap < _SMALL_GIB or (line.difference or 0.0) * moved < 0
    ]
    worst = max(terms, key=lambda line: abs(line.difference or 0.0), default=None)
    if worst is None or abs(worst.difference or 0.0) < _SMALL_GIB:
        return (
            ""
            if gap < _SMALL_GIB
            else f"{gap:.2f} GiB of the cache's gap are in terms that the log does not print"
        )
    side = "more" if (worst.difference or 0.0) < 0 else "less"
    words = f"{worst.quantity} took {abs(worst.difference or 0.0):.2f} GiB {side} than predicted"
    return words if gap < _SMALL_GIB else f"{words}, of a gap of {gap:.2f} GiB"
