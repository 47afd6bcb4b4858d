"""SGLang's own arguments that change memory, and what a case resolves to before pools are sized: ``Setup``."""

from __future__ import annotations

from headcount.engines.arguments import Argument, read_arguments
from headcount.engines.sglang import backends
from headcount.engines.sglang.fraction import (
    Capacity,
    Request,
    capacity,
    default_fraction,
    is_multimodal,
    longest_captured_prefill,
    multimodal_factor,
    reserved_mib,
)
from headcount.errors import LayoutError, UsageError
from headcount.record import Record
from headcount.spec.attention import LatentAttention
from headcount.spec.kv_format import kv_format
from headcount.units import MIB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headcount.engines.base import Case
    from headcount.engines.sglang.rules import SglangRules
    from headcount.hardware import Accelerator
    from headcount.spec.kv_format import KvFormat
    from headcount.spec.model import ModelSpec

STATE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# SGLANG_AITER_HONOR_EXPLICIT_MEM_FRACTION, in the spelling of an argument. Logs set it: what they print is in force.
HONOR_FRACTION = "aiter-honor-explicit-mem-fraction"
SGLANG_ARGUMENTS = (
    Argument(name="chunked-prefill-size", kind="count", help="tokens of one prefill step"),
    Argument(name="page-size", kind="count", help="tokens of a page"),
    Argument(
        name="attention-backend", kind="choice", choices=backends.BACKENDS, help="kernels; some fix the page"
    ),
    Argument(
        name="dsa-decode-backend",
        kind="choice",
        choices=backends.SPARSE_BACKENDS,
        help="kernels of sparse latent attention; they decide how fp8 rows are laid out",
    ),
    Argument(
        name="swa-full-tokens-ratio", kind="fraction", help="tokens of the sliding pool per token of the full"
    ),
    Argument(name="mamba-full-memory-ratio", kind="fraction", help="bytes of states per byte of tokens"),
    Argument(
        name="mamba-ssm-dtype", kind="choice", choices=tuple(STATE_BYTES), help="type of recurrent states"
    ),
    Argument(name="max-mamba-cache-size", kind="count", help="states in the pool, for all attention groups"),
    Argument(
        name="mamba-radix-cache-strategy",
        kind="choice",
        choices=("auto", "no_buffer", "extra_buffer", "extra_buffer_lazy"),
        default="auto",
        help="how states of common prompts are kept",
    ),
    Argument(name="max-total-tokens", kind="count", help="at most so many tokens in the pool"),
    Argument(name="max-running-requests", kind="count", help="at most so many requests at a time"),
    Argument(name="disable-radix-cache", kind="flag", default=False, help="no reuse of common prompts"),
    Argument(name="disable-overlap-schedule", kind="flag", default=False, help="one batch in flight"),
    Argument(name="attn-dp-size", kind="count", default=1, help="attention groups, each with its own pool"),
    Argument(
        name="enable-dp-attention", kind="flag", default=False, help="as many attention groups as ranks"
    ),
    Argument(name="cuda-graph-max-bs", kind="count", help="largest decode batch captured as a graph"),
    Argument(name="disable-cuda-graph", kind="flag", default=False, help="no CUDA graphs"),
    Argument(name="disable-prefill-cuda-graph", kind="flag", default=False, help="no graphs of prefill"),
    Argument(name="language-model-only", kind="flag", default=False, help="no vision or audio tower"),
    Argument(
        name=HONOR_FRACTION,
        kind="flag",
        default=False,
        help="a stated fraction is in force as it is, past 8,192 tokens with aiter too (an environment variable)",
    ),
)
DEFAULT_WINDOW_RATIO = 0.8
DEFAULT_STATE_RATIO = 0.9


class Setup(Record):
    """What one case means to one release.

    context             tokens of the longest request
    kv, page            format and page of the cache; ``scaled_rows``: fp8 rows of sparse latent attention with scales
    fraction            mem_fraction_static in force; ``fraction_words``: how it came about, in symbols and in numbers
    long_context        what aiter multiplied the fraction by; 1 otherwise
    chunk               tokens of one prefill step of one attention group
    attention_tp        ranks that share the heads; ``groups``: attention groups of a replica, each with its own pool;
                        ``stages``: of the pipeline
    window_ratio, state_ratio   how bytes are shared between the pools
    state_bytes         bytes of a recurrent state's numbers when they were given, else None
    states_per_request  slots a running request may need; ``states``: slots when they were given
    max_tokens, max_requests    of one group, when they were given
    radix, overlap      reuse of common prompts; two batches in flight
    tower               the vision or audio tower is loaded
    rotary_dtype_bytes  of a number in the tables of cosines and sines
    """

    rules: SglangRules
    context: int
    kv: KvFormat
    page: int
    backend: str
    scaled_rows: bool
    fraction: float
    fraction_words: tuple[str, str]
    long_context: float
    chunk: int
    attention_tp: int
    groups: int
    stages: int
    window_ratio: float
    state_ratio: float
    state_bytes: int | None
    states_per_request: int
    states: int | None
    max_tokens: int | None
    max_requests: int | None
    radix: bool
    overlap: bool
    tower: bool
    rotary_dtype_bytes: int


def resolve(case: Case, rules: SglangRules, kv_name: str) -> Setup:
    """Read the arguments of ``case`` and fill in the defaults, in SGLang's order.

    Raises UsageError for values that contradict each other, LayoutError for attention groups that do not divide.
    """
    given = read_arguments(case.settings.arguments, SGLANG_ARGUMENTS, engine="sglang")
    model, card = case.model, case.accelerator
    groups = _groups(case, given)
    requests = _first(case.settings.max_num_seqs, given["max-running-requests"], "max-running-requests")
    card_mib = total_bytes(card, case.settings.memory_bytes) // MIB
    found = capacity(card_mib, case.layout.tp)
    chunk = _first(
        case.settings.max_num_batched_tokens, given["chunked-prefill-size"], "chunked-prefill-size"
    )
    chunk = chunk or found.chunk
    kv = kv_format(backends.kv_in_force(model, card, kv_name, case.settings.kv))
    backend, page = backends.attention(
        model,
        card,
        tp=case.layout.tp,
        backend=_text(given["attention-backend"]),
        page=_count(given["page-size"]),
    )
    overlap = not given["disable-overlap-schedule"] and case.layout.pp == 1
    radix = not given["disable-radix-cache"]
    share, words = _fraction(case, given, found, chunk=chunk, groups=groups, requests=requests)
    stands = bool(given[HONOR_FRACTION]) and _states_fraction(case) and rules.factor_in_arguments
    factor = 1.0
    if backend == "aiter" and case.context > backends.LONG_CONTEXT and not stands:
        factor = backends.LONG_CONTEXT_FACTOR
        share, words = _for_long_context(share, words)
    return Setup(
        rules=rules,
        context=case.context,
        kv=kv,
        page=page,
        backend=backend,
        scaled_rows=backends.scaled_rows(model, card, kv, rules, asked=_text(given["dsa-decode-backend"])),
        fraction=share,
        fraction_words=words,
        long_context=factor,
        chunk=max(1, chunk // groups),
        attention_tp=case.layout.tp // groups,
        groups=groups,
        stages=case.layout.pp,
        window_ratio=_window_ratio(model, rules, given),
        state_ratio=_ratio(given["mamba-full-memory-ratio"], DEFAULT_STATE_RATIO),
        state_bytes=STATE_BYTES[str(given["mamba-ssm-dtype"])] if given["mamba-ssm-dtype"] else None,
        states_per_request=_states_per_request(model, rules, given, overlap=overlap, radix=radix),
        states=_per_group(_count(given["max-mamba-cache-size"]), groups),
        max_tokens=_count(given["max-total-tokens"]),
        max_requests=_per_group(requests, groups),
        radix=radix,
        overlap=overlap,
        tower=not given["language-model-only"],
        rotary_dtype_bytes=rules.amd_rotary_bytes if card.vendor == "amd" else 4,
    )


def total_bytes(card: Accelerator, asked: int | None) -> int:
    """The card's total as the driver reports it, or what was said with ``--memory``."""
    return asked or card.driver_bytes


def _groups(case: Case, given: dict[str, Any]) -> int:
    groups = int(given["attn-dp-size"])
    if given["enable-dp-attention"] and groups == 1:
        groups = case.layout.tp
    if case.layout.tp % groups:
        raise LayoutError(f"attn-dp-size {groups} does not divide TP {case.layout.tp}")
    return groups


def _first(option: int | None, argument: Any, name: str) -> int | None:
    """The general option or the engine's own argument; both only when they agree."""
    if option is not None and argument is not None and option != argument:
        raise UsageError(f"{name} is given twice: {option:,} and {argument:,}")
    return option if option is not None else argument


def _count(value: Any) -> int | None:
    return None if value is None else int(value)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _per_group(value: int | None, groups: int) -> int | None:
    return None if value is None else max(1, value // groups)


def _ratio(value: Any, default: float) -> float:
    ratio = default if value is None else float(value)
    if ratio <= 0:
        raise UsageError("swa-full-tokens-ratio and mamba-full-memory-ratio are above 0")
    return ratio


def _window_ratio(model: ModelSpec, rules: SglangRules, given: dict[str, Any]) -> float:
    if not rules.window_ratio_applies and model.family.startswith("mimo_v2"):
        return 1.0
    return _ratio(given["swa-full-tokens-ratio"], DEFAULT_WINDOW_RATIO)


def _fraction(
    case: Case, given: dict[str, Any], found: Capacity, *, chunk: int, groups: int, requests: int | None
) -> tuple[float, tuple[str, str]]:
    """``mem_fraction_static``: as asked, else the default of the table; and how, in symbols and in numbers."""
    settings, layout, card = case.settings, case.layout, case.accelerator
    formula = numbers = ""
    if settings.utilization is not None:
        fraction = settings.utilization
    elif settings.reserve is not None:
        fraction = 1 - settings.reserve
    else:
        nvidia = card.vendor == "nvidia"
        prefill = longest_captured_prefill(case.model, chunk, nvidia=nvidia, pp=layout.pp)
        batch = _count(given["cuda-graph-max-bs"]) or min(found.graph_batch, requests or found.graph_batch)
        if given["disable-cuda-graph"]:
            prefill = batch = 0
        asked = Request(
            chunk=chunk,
            graph_batch=batch,
            prefill=0 if given["disable-prefill-cuda-graph"] else prefill,
            gpus=layout.tp * layout.pp,
            groups=groups,
            latent=has_latent(case.model),
        )
        mib = total_bytes(card, settings.memory_bytes) // MIB
        fraction = default_fraction(mib, asked)
        formula = "(MiB - reserved MiB) / MiB, rounded to 0.001"
        numbers = f"({mib:,} - {reserved_mib(mib, asked):,g}) / {mib:,} -> {fraction:g}"
        factor = 1.0 if given["language-model-only"] else multimodal_factor(case.model)
        if factor != 1:
            fraction *= factor
            formula, numbers = f"{formula}, then x the multimodal factor", f"{numbers} x {factor:.6g}"
    if formula and fraction <= 0:
        raise LayoutError(f"the card is smaller than what SGLang keeps free of the fraction: {numbers}")
    if not 0 < fraction < 1:
        raise UsageError(f"mem-fraction-static must lie between 0 and 1; it is {fraction:.3f}")
    return fraction, (formula or "as asked", numbers)


def _for_long_context(fraction: float, words: tuple[str, str]) -> tuple[float, tuple[str, str]]:
    """The fraction that is left when aiter's kernels serve long contexts, a stated one too (attention_hook.py)."""
    factor = backends.LONG_CONTEXT_FACTOR
    formula = f"{words[0]}, then x {factor:g} past {backends.LONG_CONTEXT:,} tokens with aiter"
    return fraction * factor, (formula, f"{words[1] or format(fraction, 'g')} x {factor:g}")


def _states_fraction(case: Case) -> bool:
    return case.settings.utilization is not None or case.settings.reserve is not None


def _states_per_request(
    model: ModelSpec, rules: SglangRules, given: dict[str, Any], *, overlap: bool, radix: bool
) -> int:
    """Slots a running request may hold: 1 without reuse of prompts, else 3 and what tracks its newest states."""
    if not radix:
        return 1
    strategy = str(given["mamba-radix-cache-strategy"])
    if strategy == "auto":
        tracked = rules.extra_buffer and overlap and model.family in backends.TRACKED_STATES
        strategy = "extra_buffer" if tracked else "no_buffer"
    extra = {"no_buffer": 0, "extra_buffer": 2 if overlap else 1, "extra_buffer_lazy": 1}
    return 3 + extra[strategy]


def has_latent(model: ModelSpec) -> bool:
    """Whether the model is served by SGLang's latent-attention path."""
    return any(isinstance(m, LatentAttention) for layer, _ in model.layer_runs() for m in layer.mixers)


def loads_tower(model: ModelSpec, setup: Setup) -> bool:
    """Whether images or sound are served: their buffers are kept from the cache."""
    return setup.tower and is_multimodal(model)
