"""The ``vllm serve`` line that makes a plan true: every figure the plan rests on is a flag, none is left to a default.

    --max-model-len           the conversation's length, so that no request is longer than planned
    --max-num-seqs            the plan's limit, never below its conversations; start-up sizes the sampler by it
    --max-num-batched-tokens  the plan's limit; start-up sizes the activations by it
    --gpu-memory-utilization  the fraction in force, which changed between releases

Replicas are servers of their own, never ``--data-parallel-size``: ranks of one server wait for each other in
mixture models, and a lost rank takes the others with it; the plan counts copies that fail alone.

Flags and methods as in the released packages 0.8.5, 0.10.2, 0.11.2, 0.14.1, 0.17.1, 0.19.1, 0.25.1, 0.29.0
and 0.33.0 (vllm/engine/arg_utils.py, config/cache.py, config/quantization.py); what is between two samples is taken
to follow the older one. Cache formats: ``formats.KV_SINCE``.
"""

from __future__ import annotations

import json

from headcount.cost.weights import PLAIN_BYTES, weight_format
from headcount.engines.arguments import plain, read_arguments
from headcount.engines.base import Launch
from headcount.engines.versions import release
from headcount.engines.vllm.formats import KV_SINCE, SPARSE_NVFP4_SINCE
from headcount.engines.vllm.options import VLLM_ARGUMENTS, batch_limits, indexed_mixers, utilization
from headcount.errors import UsageError
from headcount.spec.kv_format import kv_format

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.engines.base import Case
    from headcount.engines.vllm.engine import Vllm
    from headcount.engines.vllm.rules import EngineRules

PORT = 8000
# Docker Hub; the ROCm name exists since 0.14.0.
_IMAGES = {"nvidia": ("vllm/vllm-openai", "0.0"), "amd": ("vllm/vllm-openai-rocm", "0.14.0")}
# What ``--quantization`` packs while it loads a 16-bit checkpoint, and the release from which, and up to which, the
# name means that. ``fp8`` without an fp8 checkpoint is an error in 0.33.0; bitsandbytes is gone from 0.29.0 on.
# int8 and nvfp4 are packed on load in mixtures' experts only, which is not what a plan counts.
_PACKED_ON_LOAD = (
    ("fp8", "fp8_per_tensor", "0.25.1", ""),
    ("fp8", "fp8", "0.8.5", "0.25.1"),
    ("fp8_block", "fp8_per_block", "0.25.1", ""),
    ("mxfp4", "mxfp4", "0.29.0", ""),
    ("nf4", "bitsandbytes", "0.8.5", "0.29.0"),
)
_DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
_LAST_WITH_GGUF = "0.19.1"
# vllm/scripts.py
_SERVE_SINCE = (0, 5, 2)
# Drafters that are part of the model, or are none: the others are a checkpoint of their own, which no plan names.
_DRAFTERS = ("mtp", "ngram")


def vllm_launch(engine: Vllm, case: Case, rules: EngineRules, *, model: str, concurrency: int) -> Launch:
    """Return the command line that serves ``case`` as planned, ``model`` being what vLLM is told to load.

    ``rules``: those that hold on the case's card; ``concurrency``: conversations the plan puts on the replica.

    Raises UsageError for a name that the command line would take for an option, for more conversations than the plan's
    ``max_num_seqs``, and for what the release cannot be told: a KV format or a drafter it has no name for.
    """
    if release(engine.version) < _SERVE_SINCE:
        raise UsageError(
            f"vLLM {engine.version} has no command vllm serve; 0.5.2 is the first release with it"
        )
    _check_model(model, engine.version)
    given = read_arguments(case.settings.arguments, VLLM_ARGUMENTS, engine="vllm")
    longest = int(given["max-model-len"] or case.context)
    tokens, seqs = batch_limits(case, rules, longest)
    if concurrency > seqs:
        raise UsageError(
            f"vLLM runs {seqs:,} sequences at a time here (max_num_seqs), the plan holds {concurrency:,}: --max-seqs"
        )
    argv = ["vllm", "serve", model, "--tensor-parallel-size", str(case.layout.tp)]
    if case.layout.pp > 1:
        argv += ["--pipeline-parallel-size", str(case.layout.pp)]
    argv += ["--max-model-len", str(longest)]
    # Six digits: the engine's own arithmetic keeps no more, and 1 - 0.1 is then 0.9.
    argv += ["--gpu-memory-utilization", f"{round(utilization(case.settings, rules), 6):g}"]
    argv += ["--kv-cache-dtype", _kv_flag(engine, case)]
    argv += ["--max-num-seqs", str(seqs), "--max-num-batched-tokens", str(tokens)]
    argv += _weight_flags(engine, case)
    argv += _own_arguments(case, given)
    long = case.model.max_positions and longest > case.model.max_positions
    repository, since = _IMAGES.get(case.accelerator.vendor, ("", "0.0"))
    known = repository and release(engine.version) >= release(since)
    return Launch(
        argv=tuple(argv),
        image=f"{repository}:v{engine.version}" if known else "",
        port=PORT,
        environment=(("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1"),) if long else (),
    )


def _check_model(model: str, version: str) -> None:
    if not model or not model.isprintable():
        raise UsageError(f"model name {model[:80]!r} is empty or holds a control character")
    if model.startswith("-"):
        raise UsageError(
            f"model name {model[:80]!r} would be read as an option; write a path as ./{model[:80]}"
        )
    if model.lower().endswith(".gguf") and release(version) > release(_LAST_WITH_GGUF):
        raise UsageError(
            f"vLLM {version} loads no GGUF file ({_LAST_WITH_GGUF} is the last known to): give the model's repository"
        )


def _kv_flag(engine: Vllm, case: Case) -> str:
    """``auto`` where that is what the plan counts; a 16-bit cache is the model's own type, whichever was asked."""
    settings = case.settings
    if settings.kv == "auto":
        if weight_format(case.model, settings.weights).dtype_bytes == PLAIN_BYTES["fp32"]:
            raise UsageError(
                "--weights fp32: vLLM then keeps its cache in 32 bits, the plan counts 16; give --kv, or 16-bit weights"
            )
        return "auto"
    asked = kv_format(settings.kv).name
    if asked in ("fp16", "bf16"):
        own = engine.kv_format_name(case.model, settings.replace(kv="auto"))
        if own in ("fp16", "bf16") and settings.weights.strip().lower() not in ("fp32", "float32"):
            return "auto"
    since, name = KV_SINCE.get(asked), asked
    if since is None:
        raise UsageError(f"vLLM has no --kv-cache-dtype for {asked}; known: {', '.join(KV_SINCE)}")
    if asked == "nvfp4" and indexed_mixers(case.model):
        since, name = SPARSE_NVFP4_SINCE, "nvfp4_ds_mla"
    if release(engine.version) < release(since):
        raise UsageError(f"vLLM {engine.version} has no --kv-cache-dtype {asked}; known from {since} on")
    typed = settings.kv.strip().lower()
    # The two 8-bit types take the same bytes: keep the one that was asked for.
    return typed if typed in ("fp8_e4m3", "fp8_e5m2") else _DTYPES.get(asked, name)


def _weight_flags(engine: Vllm, case: Case) -> list[str]:
    """``--dtype`` or ``--quantization`` for another format than stored, where vLLM can make it; else nothing.

    Nothing: the plan holds for a checkpoint of that format, which needs no flag.
    """
    asked = weight_format(case.model, case.settings.weights)
    if asked.own or case.model.quantization is not None:
        return []
    if asked.packing is None:
        return ["--dtype", _DTYPES[asked.name]]
    now = release(engine.version)
    for name, flag, first, before in _PACKED_ON_LOAD:
        if name == asked.name and release(first) <= now and (not before or now < release(before)):
            return ["--quantization", flag]
    return []


def _own_arguments(case: Case, given: dict[str, int | float | bool | str | None]) -> list[str]:
    """The engine's own arguments as flags: ``enforce-eager`` is ``--enforce-eager``, false is ``--no-enforce-eager``."""
    kinds = {argument.name: argument.kind for argument in VLLM_ARGUMENTS}
    flags: list[str] = []
    for typed, _ in case.settings.arguments:
        name = plain(typed)
        value = given[name]
        if name in ("max-model-len", "speculative-method", "num-speculative-tokens"):
            continue
        if kinds[name] != "flag":
            flags += [f"--{name}", str(value)]
        elif value:
            flags.append(f"--{name}")
        elif not name.startswith("no-"):
            flags.append(f"--no-{name}")
    method = given["speculative-method"]
    if method in (None, "none"):
        return flags
    if method not in _DRAFTERS:
        raise UsageError(
            f"{method} drafts with a checkpoint of its own, which the plan does not name; no line is written"
        )
    drafts = {"method": method, "num_speculative_tokens": given["num-speculative-tokens"]}
    return [*flags, "--speculative-config", json.dumps(drafts)]
