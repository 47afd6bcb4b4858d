"""What explains a gap: the one setting that was not said, with which the engine's rules reproduce the printed figures.

Only settings that the observation left open are tried, one at a time, then up to four together, the likelier first.
A setting that reproduces a figure is a reason to name, never a prediction.
"""

from __future__ import annotations

from itertools import combinations

from headcount.engines import engine
from headcount.engines.vllm.options import mtp_layers
from headcount.errors import HeadcountError
from headcount.record import Record
from headcount.spec.attention import CompressedLatent, LatentAttention, SlidingWindow, StateSpace
from headcount.units import GIB
from headcount.verify.case_of import Asked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.engines.base import Case
    from headcount.verify.observation import Observation

# Prints carry two decimals of GiB, so that the blocks of a small pool are known to some tenths of a percent.
_MATCH = 0.003
# No model has as many; hundreds of hypotheses over thousands of layers would take minutes.
_MOST_LAYERS = 512
# Releases whose rules differ from their neighbours', tried when the log does not name its own.
_VERSIONS = {
    "vllm": tuple(
        (version, f"vLLM {version}'s rules")
        for version in ("0.19.0", "0.20.1", "0.24.0", "0.26.0", "0.29.0", "0.11.2")
    ),
    "sglang": tuple(
        (version, f"SGLang {version}'s rules") for version in ("0.5.3", "0.5.4", "0.5.7", "0.5.15", "0.5.23")
    ),
    "llama.cpp": (("2024-01", "a build of 2024"),),
}


class Change(Record):
    """One setting that may have been other than assumed: ``group`` names what it settles, so that pairs make sense."""

    words: str
    group: str
    kv: str = ""
    arguments: tuple[tuple[str, str], ...] = ()
    batched_tokens: int = 0
    tp: int = 0
    version: str = ""

    def apply(self, case: Case) -> Case:
        """The case with this setting."""
        settings = case.settings
        arguments = tuple((dict(settings.arguments) | dict(self.arguments)).items())
        settings = settings.replace(
            kv=self.kv or settings.kv,
            arguments=arguments,
            max_num_batched_tokens=self.batched_tokens or settings.max_num_batched_tokens,
        )
        layout = case.layout.replace(tp=self.tp) if self.tp else case.layout
        return case.replace(settings=settings, layout=layout)


def explain_gap(observation: Observation, asked: Asked, quantity: str) -> str:
    """Words for what reproduces ``quantity`` from the printed cache memory; "" when nothing does."""
    memory = observation.kv_cache_memory_gib
    figure = {
        "tokens": observation.kv_cache_tokens,
        "blocks": observation.num_gpu_blocks,
        "concurrency": observation.max_concurrency,
    }.get(quantity)
    if not memory or not figure or len(asked.case.model.layers) > _MOST_LAYERS:
        return ""
    changes = _changes(observation, asked)
    several = (some for size in (1, 2, 3, 4) for some in combinations(changes, size))
    for combination in several:
        if len({change.group for change in combination}) < len(combination):
            continue
        case = asked.case
        for change in combination:
            case = change.apply(case)
        versions = [change.version for change in combination if change.version]
        try:
            rules = engine(asked.engine.name, versions[0]) if versions else asked.engine
            pool = rules.pool(case, round(memory * GIB))
            tokens = rules.printed_tokens(case, round(memory * GIB))
        except HeadcountError:
            continue
        found = {"tokens": tokens, "blocks": pool.blocks, "concurrency": pool.concurrency}[quantity]
        if found and abs(found - figure) <= _MATCH * figure:
            return "reproduced with " + " and ".join(change.words for change in combination)
    return ""


def unsaid(observation: Observation, asked: Asked) -> str:
    """The settings that decide this model's pool in vLLM and that the observation does not say; "" when all are said."""
    if asked.engine.name != "vllm":
        return ""
    mixers: set[type] = {type(m) for layer, _ in asked.case.model.layer_runs() for m in layer.mixers}
    missing = []
    if observation.max_num_batched_tokens is None and not mixers.isdisjoint(
        (SlidingWindow, CompressedLatent)
    ):
        missing.append("max_num_batched_tokens")
    if not mixers.isdisjoint(
        (StateSpace, SlidingWindow, CompressedLatent)
    ) and "speculative-method" not in dict(observation.arguments):
        missing.append("the drafter")
    if StateSpace in mixers and "enable-prefix-caching" not in dict(observation.arguments):
        missing.append("prefix caching")
    return ", ".join(missing)


def _changes(observation: Observation, asked: Asked) -> list[Change]:
    mixers: set[type] = {type(m) for layer, _ in asked.case.model.layer_runs() for m in layer.mixers}
    changes = []
    if observation.kv_cache_dtype is None:
        changes += [
            Change(words=f"{name} KV", group="kv", kv=name) for name in ("fp8", "bf16", "fp16", "fp32")
        ]
    if observation.tensor_parallel is None:
        changes += [Change(words=f"TP {tp}", group="tp", tp=tp) for tp in (2, 4, 8)]
    if asked.engine.name == "vllm":
        for count in (1, 2, 3, 4, 5, 8):
            method = "mtp" if mtp_layers(asked.case.model) else "eagle"
            drafter = (("speculative-method", method), ("num-speculative-tokens", str(count)))
            changes.append(Change(words=f"{method} with {count} tokens", group="drafter", arguments=drafter))
        if StateSpace in mixers:
            changes += [
                Change(
                    words=f"prefix caching {word}",
                    group="caching",
                    arguments=(("enable-prefix-caching", flag),),
                )
                for word, flag in (("on", "true"), ("off", "false"))
            ]
        if observation.max_num_batched_tokens is None and not mixers.isdisjoint(
            (SlidingWindow, CompressedLatent)
        ):
            changes += [
                Change(words=f"max_num_batched_tokens {count:,}", group="batch", batched_tokens=count)
                for count in (2048, 4096, 8192, 16384)
            ]
        if SlidingWindow in mixers:
            off = (("disable-hybrid-kv-cache-manager", "true"),)
            changes.append(Change(words="the hybrid manager off", group="manager", arguments=off))
    if asked.engine.name in ("llama.cpp", "ollama"):
        if SlidingWindow in mixers:
            changes.append(
                Change(words="windows kept whole (swa-full)", group="swa", arguments=(("swa-full", "true"),))
            )
        if LatentAttention in mixers:
            words = "a GGUF file from before the latent cache"
            changes.append(Change(words=words, group="version", version="2025-03"))
    changes += [
        Change(words=words, group="version", version=version)
        for version, words in _VERSIONS.get(asked.engine.name, ())
        if version != asked.engine.version and observation.engine_version is None
    ]
    return changes
