"""Observation -> the engine, the case and what had to be assumed: the bridge from what was said to what is predicted.

Only what the observation states is used. What it leaves out takes the engine's own default, and is named in
``Asked.assumed``; what no rule can fill (a model without a shape, an unknown engine) is a ``NotReproducibleError``.
"""

from __future__ import annotations

import re

from headcount.engines import ENGINES, Case, Layout, Settings, engine
from headcount.engines.arguments import read_arguments
from headcount.engines.base import Engine
from headcount.engines.llamacpp.mixes import mix_name
from headcount.engines.vllm.rules import LAST_WITH_BLOCK_TOKENS, release_on, rules_for
from headcount.errors import HeadcountError, UnknownNameError
from headcount.hardware import Accelerator, accelerator
from headcount.record import Record
from headcount.units import GB, GIB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.spec.model import ModelSpec
    from headcount.verify.observation import Observation

# Written by people and by engines: the format of ours that stores the same bytes.
_KV_NAMES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "f16": "fp16",
    "f32": "fp32",
    "float32": "fp32",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "fp8_inc": "fp8",
    "fp8_ds_mla": "fp8",
    "nvfp4_ds_mla": "nvfp4",
}
# Words of a weight format in a log or a model's name -> ours, first match wins.
_WEIGHT_WORDS = (
    ("nvfp4", "nvfp4"),
    ("mxfp4", "mxfp4"),
    ("w8a8", "int8"),
    ("int8", "int8"),
    ("fp8", "fp8"),
    ("awq", "awq"),
    ("gptq", "gptq"),
    ("w4a16", "gptq"),
    ("int4", "gptq"),
    ("4-bit", "nf4"),
    ("4bit", "nf4"),
    ("bnb", "nf4"),
    ("fp4", "nvfp4"),
)
# Engines under another name, with the arguments that make them so.
_ENGINES: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "transformers (continuous batching)": ("transformers", (("cache", "paged"),)),
}
# The engine's own name of the tokens of a page.
_PAGE_ARGUMENT = {"vllm": "block-size", "tensorrt-llm": "tokens-per-block", "transformers": "page-size"}
# Types of keys and values that differ, as llama.cpp's own lines and people write them: K q8_0, V q4_0; q8_0/q4_0.
_TWO_TYPES = re.compile(r"(?:k[ =:]+)?(\w+)\s*[,/;]\s*(?:v[ =:]+)?(\w+)")
_PLAIN_WORDS = ("bfloat16", "float16", "bf16", "fp16", "auto")
# Days on which SGLang's sampled releases were published.
_SGLANG = (
    ("2026-10-30", "0.5.23"),
    ("2026-09-18", "0.5.20"),
    ("2026-07-10", "0.5.15"),
    ("2026-05-07", "0.5.11"),
    ("2026-04-05", "0.5.10"),
    ("2026-01-01", "0.5.7"),
    ("2025-12-11", "0.5.6"),
    ("2025-10-24", "0.5.4"),
    ("2025-10-06", "0.5.3"),
)
# TensorRT-LLM 1.0, whose PyTorch backend is the default.
_TRT_PYTORCH = "2025-09"
# Engines of slots, whose cache is as large as the context that is asked for; layers are split over their devices.
SLOT_ENGINES = ("llama.cpp", "ollama")
# A server's note that its slots may all take from one cache (llama-server's kv-unified), which it does not say.
SLOTS_MAY_SHARE = "whether slots share one cache is not said"
_DEFAULT_CONTEXT = 4096
_UNKNOWN_GB = 80


# How the note begins where several GPUs are said, and not how they share the model.
UNSHARED = "TP not said"


class NotReproducibleError(HeadcountError):
    """Why an observation cannot be predicted: one clause."""


class Asked(Record):
    """The question an observation poses.

    assumed         what it did not say, and what was taken in its place
    kv_known        the KV dtype was said, so that bytes per token are no guess
    card_known      the card's memory is known
    card_named      the card is one of the list
    weights_known   the packing of the weights is in the config (or they are not packed)
    """

    engine: Engine
    case: Case
    assumed: tuple[str, ...]
    kv_known: bool
    card_known: bool
    card_named: bool
    weights_known: bool


def ask(observation: Observation, model: ModelSpec) -> Asked:
    """Build the case of ``observation``.

    Raises NotReproducibleError (or another HeadcountError) when its engine, release, card or formats have no rules.
    """
    assumed: list[str] = []
    name, own = _ENGINES.get(observation.engine, (observation.engine, ()))
    if name not in ENGINES:
        raise NotReproducibleError(f"engine {observation.engine} is not modelled")
    found = engine(name, _version(observation, name, assumed))
    arguments = _known_arguments(found, (*own, *observation.arguments), assumed)
    observation = observation.replace(arguments=arguments)
    settings, weights_known = _settings(observation, model, assumed)
    card, known = _card(observation, assumed)
    layout = _layout(observation, assumed)
    context = observation.max_model_len
    if context is None:
        context = min(model.max_positions or _DEFAULT_CONTEXT, 2**20)
        assumed.append(f"max_model_len {context:,}: the model's own")
    case = Case(model=model, accelerator=card, layout=layout, context=context, settings=settings)
    reason = found.refusal(model, layout)
    if reason:
        assumed.append(f"the engine's rules refuse what was run here: {reason}")
    return Asked(
        engine=found,
        case=case,
        assumed=tuple(assumed),
        kv_known=observation.kv_cache_dtype is not None or "cache-type-k" in dict(settings.arguments),
        card_known=known,
        card_named=bool(card.sources),
        weights_known=weights_known,
    )


def _known_arguments(
    found: Engine, given: tuple[tuple[str, str], ...], assumed: list[str]
) -> tuple[tuple[str, str], ...]:
    """The arguments of a log that the engine has a rule for; the others are named and left out."""
    kept, unknown = [], []
    for name, value in given:
        try:
            read_arguments([(name, value)], found.arguments, engine=found.name)
        except HeadcountError:
            unknown.append(f"{name}={value:.40}")
            continue
        kept.append((name, value))
    if unknown:
        assumed.append(
            f"of the log's arguments these have no rule here and are left out: {', '.join(unknown)}"
        )
    return tuple(kept)


def _version(observation: Observation, name: str, assumed: list[str]) -> str | None:
    """The release whose rules are used; None for the engine's newest."""
    if name == "vllm":
        return _vllm_version(observation, assumed)
    if name in SLOT_ENGINES and observation.date and observation.engine_version is None:
        # Builds come out daily: the day of the log stands for one. Half of a year whose month is not said has passed.
        day = observation.date if len(observation.date) > 4 else observation.date + "-07"
        assumed.append(f"{name} of {day}")
        return day
    if name == "sglang" and observation.date and observation.engine_version is None:
        day = observation.date + "~"
        found = next((release for since, release in _SGLANG if since <= day), None)
        if found is None:
            found = _SGLANG[-1][1]
            assumed.append(
                f"SGLang {found}: the oldest release with rules; the start is of {observation.date}"
            )
        else:
            assumed.append(f"SGLang {found}: the newest release with rules on {observation.date}")
        return found
    if (
        name == "tensorrt-llm"
        and observation.engine_version is None
        and (observation.date or "9") < _TRT_PYTORCH
    ):
        raise NotReproducibleError(
            f"TensorRT-LLM of {observation.date} ran compiled engines, which are not modelled"
        )
    if observation.engine_version is None:
        assumed.append(f"{name}: the newest release with rules")
        return None
    try:
        engine(name, observation.engine_version)
    except HeadcountError as error:
        assumed.append(f"{name}: the newest release with rules ({error})")
        return None
    return observation.engine_version


def _vllm_version(observation: Observation, assumed: list[str]) -> str:
    """The stated release; else the newest one published by the day of the log, as far as its figures agree."""
    stated = re.match(r"v?(\d+\.\d+(\.\d+(\.post\d+)?)?)", observation.engine_version or "")
    if stated:
        return stated[1]
    version = release_on(observation.date or "9999")
    if observation.date is None and observation.release_hint is not None:
        version = observation.release_hint
        assumed.append(
            f"vLLM {version}: the newest release that words its log so (--engine-version says another)"
        )
        return version
    tokens, requests = observation.kv_cache_tokens, observation.max_concurrency
    length = observation.max_concurrency_tokens or observation.max_model_len
    if tokens and requests and length and rules_for(version).tokens_from_concurrency:
        # Before 0.20.1 the printed tokens of a model with several groups are no multiple of the concurrency.
        printed = requests * length
        if abs(tokens - printed) > 0.01 * printed + 0.01 * length:
            version = LAST_WITH_BLOCK_TOKENS
    hint = "" if observation.date else " (--engine-version says another)"
    assumed.append(f"vLLM {version}: the newest release on {observation.date or 'a day not given'}{hint}")
    return version


def _layout(observation: Observation, assumed: list[str]) -> Layout:
    tp = observation.tensor_parallel
    if tp is None:
        if observation.engine in SLOT_ENGINES:
            # Their figures are sums over devices, whichever layers lie where.
            return Layout()
        tp = observation.gpu_count or 1
        known = f"{UNSHARED}: {tp} GPUs share every layer" if tp > 1 else "TP 1"
        assumed.append(known)
    return Layout(tp=tp, pp=observation.pipeline_parallel or 1, dp=observation.data_parallel or 1)


def _settings(observation: Observation, model: ModelSpec, assumed: list[str]) -> tuple[Settings, bool]:
    """The settings, and whether the packing of the weights is known from the config."""
    arguments = dict(observation.arguments)
    said = (observation.kv_cache_dtype or "auto").strip().lower()
    two = _TWO_TYPES.fullmatch(said) if observation.engine == "llama.cpp" else None
    kv = two[1] if two is not None else said.split(" ")[0]
    kv = _KV_NAMES.get(kv, kv)
    if two is not None and two[1] != two[2]:
        # Values in blocks are read by flash attention only, so that it was on.
        flash = {"flash-attn": "on"} if two[2].startswith(("q", "iq")) else {}
        kv, arguments = "auto", {"cache-type-k": two[1], "cache-type-v": two[2]} | flash | arguments
    if observation.kv_cache_dtype is None:
        assumed.append("KV dtype: the default")
    page = _PAGE_ARGUMENT.get(_ENGINES.get(observation.engine, (observation.engine, ()))[0])
    if observation.block_size is not None and page is not None:
        arguments.setdefault(page, str(observation.block_size))
    weights, known = _weights(observation, model, assumed)
    memory = observation.gpu_total_memory_gib
    settings = Settings(
        weights=weights,
        kv=kv,
        utilization=observation.gpu_memory_utilization,
        memory_bytes=None if memory is None else round(memory * GIB),
        max_num_batched_tokens=observation.max_num_batched_tokens,
        max_num_seqs=observation.max_num_seqs,
        arguments=tuple(arguments.items()),
    )
    return settings, known


def _weights(observation: Observation, model: ModelSpec, assumed: list[str]) -> tuple[str, bool]:
    """``(format, whether the config says it)``: the config's own, else what the log or the model's name says."""
    said = f"{observation.weight_dtype_or_quant or ''} {observation.model or ''}".lower()
    if observation.engine in SLOT_ENGINES:
        return _gguf(observation, assumed)
    if "gguf" in said:
        assumed.append("16-bit weights: the mix of the GGUF file was not said")
        return "auto", False
    if model.quantization is not None and model.quantization.notes:
        assumed.append(f"the packing: {model.quantization.notes[0]}")
        return "auto", False
    if model.quantization is not None or model.checkpoint is not None:
        return "auto", True
    # A quantised variant often has its base model's config beside it: then its packing is in no config.
    if (observation.weight_dtype_or_quant or "").strip().lower() in _PLAIN_WORDS:
        return "auto", True
    for word, name in _WEIGHT_WORDS:
        if word in said:
            assumed.append(
                f"every linear weight in {name}: {word!r} is said, and the config does not say which are packed"
            )
            return name, False
    return "auto", True


def _gguf(observation: Observation, assumed: list[str]) -> tuple[str, bool]:
    """The GGUF mix that was said; a config alone does not say it."""
    said = (observation.weight_dtype_or_quant or "").strip().lower().split(" ")[0]
    try:
        return mix_name(said), True
    except HeadcountError:
        assumed.append(
            "the mix of the GGUF file was not said: its weights are not compared (--weights q4_k_m)"
        )
        return "auto", False


def _card(observation: Observation, assumed: list[str]) -> tuple[Accelerator, bool]:
    """The card by its name in the log; else one that has only the memory that was printed."""
    text = (observation.gpu or "").strip()
    for name in _card_names(text):
        try:
            return accelerator(name), True
        except UnknownNameError:
            continue
    sold = re.search(r"\b(\d{1,4})\s?GB\b", text)
    memory = observation.gpu_total_memory_gib or (int(sold[1]) * GB / GIB if sold else None)
    said = (
        "only its memory is used"
        if memory
        else f"one of {_UNKNOWN_GB} GB is taken for what depends on its size"
    )
    assumed.append(f"card {text or 'not said'}: {said}")
    return (
        Accelerator(
            name=text.lower() or "a card",
            aliases=(),
            vendor=_vendor(text),
            datasheet_gb=_UNKNOWN_GB if memory is None else round(memory * GIB / GB) or 1,
            reported_mib=None if memory is None else round(memory * 1024),
            reported_source="the log",
            bandwidth_gb_s=0.0,
            dense_tflops={},
            link="",
            link_gb_s_per_direction=None,
            compute_capability=None,
            tdp_w=None,
            unified_memory=False,
            modelled=True,
            sources=(),
            as_of="",
            verified=False,
        ),
        observation.gpu_total_memory_gib is not None,
    )


_VENDORS = (
    ("cpu", ("cpu",)),
    ("amd", ("mi2", "mi3", "gfx", "radeon", "amd", "instinct")),
    ("google", ("tpu",)),
    ("huawei", ("ascend",)),
    ("intel", ("gaudi", "arc", "intel")),
    ("apple", ("apple",)),
)


def _vendor(text: str) -> str:
    low = text.lower()
    return next((name for name, words in _VENDORS if any(word in low for word in words)), "nvidia")


def _card_names(text: str) -> list[str]:
    """``RTX 3090 24GB`` -> the text itself, then with what stands in brackets and a memory size left out."""
    bare = re.sub(r"\(.*?\)", " ", text)
    sized = re.sub(r"[-\s]*\b\d+\s*(gb|gib|g)\b", " ", bare, flags=re.IGNORECASE)
    names = [text, bare, sized]
    words = bare.replace(",", " ").split()
    # NVIDIA A100-SXM4-80GB, NVIDIA GeForce RTX 3090, ...: the longest tail, then the longest head, that is a name.
    names += [" ".join(words[start:]) for start in range(1, len(words))]
    names += [" ".join(words[:end]) for end in range(len(words) - 1, 0, -1)]
    return [name.strip() for name in names if name.strip()]
