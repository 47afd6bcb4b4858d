"""The command line of the planned SGLang server, with every flag that the plan depends on."""

from __future__ import annotations

from headcount.engines.arguments import plain, read_arguments
from headcount.engines.base import Launch
from headcount.engines.sglang import backends
from headcount.engines.sglang.options import HONOR_FRACTION, SGLANG_ARGUMENTS, Setup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.engines.base import Case

PORT = 30000
_KV_NAMES = {"fp8": "fp8_e4m3", "bf16": "bf16", "nvfp4": "nvfp4"}
_DTYPES = {"fp16": "float16", "bf16": "bfloat16"}
# Written by the plan itself; the rest is passed on as it was given.
_WRITTEN = (
    "chunked-prefill-size",
    "page-size",
    "max-running-requests",
    "attn-dp-size",
    "enable-dp-attention",
    "cuda-graph-max-bs",
    HONOR_FRACTION,
)
# What makes a stated fraction stand for long contexts with aiter.
_HONOR = ("SGLANG_AITER_HONOR_EXPLICIT_MEM_FRACTION", "1")


def sglang_launch(case: Case, setup: Setup, *, model: str, concurrency: int, version: str) -> Launch:
    """``python -m sglang.launch_server`` with the model called ``model``, ``concurrency`` requests at a time."""
    layout = case.layout
    argv = ["python", "-m", "sglang.launch_server", "--model-path", model]
    argv += ["--host", "0.0.0.0", "--port", str(PORT), "--enable-metrics"]
    argv += ["--tp-size", str(layout.tp)]
    if layout.pp > 1:
        argv += ["--pp-size", str(layout.pp)]
    argv += _groups(case, setup)
    fraction, environment = _fraction(case, setup)
    argv += ["--context-length", str(case.context), "--mem-fraction-static", f"{fraction:.4g}"]
    if setup.kv.name in _KV_NAMES:
        asked = case.settings.kv.strip().lower()
        argv += ["--kv-cache-dtype", asked if asked == "fp8_e5m2" else _KV_NAMES[setup.kv.name]]
    argv += _weights(case)
    argv += ["--page-size", str(setup.page), "--chunked-prefill-size", str(setup.chunk * setup.groups)]
    # Without reuse of prompts a stated number of requests changes how the pools are cut: then only a planned one is said.
    if setup.radix or setup.max_requests is not None:
        argv += ["--max-running-requests", str(concurrency)]
    argv += _own(case)
    return Launch(argv=tuple(argv), image=f"lmsysorg/sglang:v{version}", port=PORT, environment=environment)


def _fraction(case: Case, setup: Setup) -> tuple[float, tuple[tuple[str, str], ...]]:
    """What ``--mem-fraction-static`` must say for ``setup.fraction`` to be in force, and the variable that this needs.

    SGLang takes aiter's long-context factor off a stated fraction too, unless the variable tells it not to.
    """
    long = setup.backend == "aiter" and case.context > backends.LONG_CONTEXT
    if not long:
        return setup.fraction, ()
    if setup.long_context == 1 and setup.rules.honours_fraction:
        return setup.fraction, (_HONOR,)
    return setup.fraction / backends.LONG_CONTEXT_FACTOR, ()


def _groups(case: Case, setup: Setup) -> list[str]:
    if setup.groups == 1:
        return ["--dp-size", str(case.layout.dp)] if case.layout.dp > 1 else []
    if setup.rules.attention_groups:
        return ["--attn-dp-size", str(setup.groups)]
    return ["--dp-size", str(setup.groups), "--enable-dp-attention"]


def _weights(case: Case) -> list[str]:
    asked = case.settings.weights.strip().lower()
    if asked in _DTYPES:
        return ["--dtype", _DTYPES[asked]]
    # Online quantisation of a 16-bit checkpoint; every other packing is the checkpoint's own.
    return ["--quantization", "fp8"] if asked == "fp8" else []


def _own(case: Case) -> list[str]:
    """The engine's own arguments as they were given."""
    values = read_arguments(case.settings.arguments, SGLANG_ARGUMENTS, engine="sglang")
    given = [name for name, _ in case.settings.arguments]
    argv: list[str] = []
    for name in dict.fromkeys(plain(name) for name in given):
        value = values[name]
        if name == "cuda-graph-max-bs":
            argv += ["--cuda-graph-max-bs-decode", str(value)]
        elif name in _WRITTEN or value is False:
            continue
        elif value is True:
            argv.append(f"--{name}")
        else:
            argv += [f"--{name}", str(value)]
    return argv
