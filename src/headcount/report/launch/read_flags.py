"""A server's command line as the plan's own words: model, layout, context and settings, by the engine's flag names.

Flags are read by their published names and nothing is assumed: what is not given stays None, which means the engine's
default. A flag with no meaning to a plan (a port, an address) is passed over; every other one becomes an argument of
the engine by its own name, as ``--engine-arg`` would give it.
"""

from __future__ import annotations

from headcount.engines.base import Settings
from headcount.errors import UsageError
from headcount.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


class Flags(Record):
    """What one command line says; ``context``: tokens of one request, also where a server is told the sum of its slots."""

    engine: str
    model: str
    tp: int
    pp: int
    context: int
    settings: Settings


class Dialect(Record):
    """One engine's flags.

    names    flag -> our word: model, tp, pp, context, utilization, kv, kv-value, seqs, tokens, weights, dtype, drafts
    passed   flags without a meaning to a plan
    weights  the engine's name of a weight format -> ours
    kv       the engine's name of a KV format -> ours, where it is not the same or an alias
    """

    names: dict[str, str]
    passed: tuple[str, ...]
    weights: dict[str, str]
    kv: dict[str, str]


_PLAIN = {
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float": "fp32",
    "auto": "auto",
}
_VLLM = Dialect(
    names={
        "--tensor-parallel-size": "tp",
        "-tp": "tp",
        "--pipeline-parallel-size": "pp",
        "-pp": "pp",
        "--max-model-len": "context",
        "--gpu-memory-utilization": "utilization",
        "--kv-cache-dtype": "kv",
        "--max-num-seqs": "seqs",
        "--max-num-batched-tokens": "tokens",
        "--quantization": "weights",
        "-q": "weights",
        "--dtype": "dtype",
        "--speculative-config": "drafts",
    },
    passed=("--host", "--port", "--served-model-name", "--distributed-executor-backend"),
    weights={
        "fp8_per_tensor": "fp8",
        "fp8": "fp8",
        "fp8_per_block": "fp8_block",
        "mxfp4": "mxfp4",
        "bitsandbytes": "nf4",
    },
    kv={},
)
_SGLANG = Dialect(
    names={
        "--model-path": "model",
        "--model": "model",
        "--tp-size": "tp",
        "--tensor-parallel-size": "tp",
        "--tp": "tp",
        "--pp-size": "pp",
        "--pipeline-parallel-size": "pp",
        "--context-length": "context",
        "--mem-fraction-static": "utilization",
        "--kv-cache-dtype": "kv",
        "--max-running-requests": "seqs",
        "--chunked-prefill-size": "tokens",
        "--quantization": "weights",
        "--dtype": "dtype",
    },
    passed=("--host", "--port", "--enable-metrics", "--served-model-name"),
    weights={"fp8": "fp8"},
    kv={},
)
_LLAMA_SERVER = Dialect(
    names={
        "-m": "model",
        "--model": "model",
        "-hf": "model",
        "--hf-repo": "model",
        "-c": "context",
        "--ctx-size": "context",
        "-np": "seqs",
        "--parallel": "seqs",
        "-ub": "tokens",
        "--ubatch-size": "tokens",
        "-ctk": "kv",
        "--cache-type-k": "kv",
        "-ctv": "kv-value",
        "--cache-type-v": "kv-value",
    },
    passed=("--host", "--port", "--metrics", "--alias", "-a", "-sm", "--split-mode"),
    weights={},
    kv={"f32": "fp32", "f16": "fp16"},
)
_TENSORRT_LLM = Dialect(
    names={
        "--tp_size": "tp",
        "--pp_size": "pp",
        "--max_seq_len": "context",
        "--max_batch_size": "seqs",
        "--max_num_tokens": "tokens",
        "--kv_cache_free_gpu_memory_fraction": "utilization",
        "--kv-cache-dtype": "kv",
    },
    passed=("--host", "--port", "--backend", "--extra_llm_api_options"),
    weights={},
    kv={},
)
_DIALECTS = {
    "vllm": _VLLM,
    "sglang": _SGLANG,
    "llama.cpp": _LLAMA_SERVER,
    "tensorrt-llm": _TENSORRT_LLM,
}
# llama-server's short names of arguments that an engine has by their long ones.
_LONG = {
    "-ngl": "n-gpu-layers",
    "-b": "batch-size",
    "-fa": "flash-attn",
    "-kvu": "kv-unified",
    "-nkvo": "no-kv-offload",
}
# llama-server: more layers than any model has.
ALL_LAYERS = ("-ngl", "999")
# Negated by name: ``async-scheduling`` is no argument of the engine, its opposite is.
_NEGATIVE_NAMES = ("no-async-scheduling", "no-kv-offload")


def options_of(words: Sequence[str]) -> list[tuple[str, str | None]]:
    """``["--a", "1", "--b", "--c=2"]`` -> ``[("--a", "1"), ("--b", None), ("--c", "2")]``.

    Raises UsageError for a word that belongs to no option.
    """
    found: list[tuple[str, str | None]] = []
    for word in words:
        if word.startswith("-") and len(word) > 1 and not word[1].isdigit():
            name, equals, value = word.partition("=")
            found.append((name, value if equals else None))
        elif found and found[-1][1] is None:
            found[-1] = (found[-1][0], word)
        else:
            raise UsageError(f"{word[:80]!r} belongs to no option of the command line")
    return found


def read_flags(argv: Sequence[str]) -> Flags:
    """Read a server's command line, program first.

    Raises UsageError for a program that is no known server, a line without a model or a context, or a bad value.
    """
    engine, options = _program(list(argv))
    return read_options(engine, options)


def _program(argv: list[str]) -> tuple[str, list[tuple[str, str | None]]]:
    if argv[:2] == ["vllm", "serve"] and len(argv) > 2:
        return "vllm", [("model", argv[2]), *options_of(argv[3:])]
    if argv[:1] and argv[0].startswith("python") and argv[1:3] == ["-m", "sglang.launch_server"]:
        return "sglang", options_of(argv[3:])
    if argv[:2] == ["sglang", "serve"]:
        return "sglang", options_of(argv[2:])
    if argv[:1] == ["llama-server"]:
        return "llama.cpp", options_of(argv[1:])
    if argv[:2] == ["sh", "-c"] and len(argv) == 3:
        return _with_written_file(argv[2])
    if argv[:2] == ["trtllm-serve", "serve"] and len(argv) > 2:
        return "tensorrt-llm", [("model", argv[2]), *options_of(argv[3:])]
    raise UsageError(
        f"{' '.join(argv[:3])[:80]!r} starts no server that is read back; known: vllm serve, sglang, llama-server, "
        "trtllm-serve, ollama serve"
    )


def _with_written_file(script: str) -> tuple[str, list[tuple[str, str | None]]]:
    """``printf %s JSON > FILE && exec trtllm-serve ... --extra_llm_api_options FILE``: the file's entries as options."""
    import json
    import shlex

    words = shlex.split(script)
    if words[:2] != ["printf", "%s"] or "exec" not in words:
        raise UsageError(f"{script[:80]!r} starts no server that is read back")
    try:
        written = json.loads(words[2])
        cache = dict(written.get("kv_cache_config", {}))
    except (ValueError, TypeError, AttributeError):
        raise UsageError(f"{words[2][:80]!r} is no options file of trtllm-serve") from None
    engine, options = _program(words[words.index("exec") + 1 :])
    if "dtype" in cache:
        options.append(("--kv-cache-dtype", str(cache["dtype"])))
    for name in ("tokens_per_block", "max_tokens"):
        if name in cache:
            options.append((f"--{name.replace('_', '-')}", str(cache[name])))
    if "max_attention_window" in cache:
        # The list is one window a layer: the model's own.
        options.append(("--max-attention-window", "model"))
    if written.get("enable_attention_dp"):
        options.append(("--enable-attention-dp", None))
    return engine, options


def read_variables(variables: dict[str, str]) -> Flags:
    """What ``ollama serve`` is told by its variables; its model is none of them, and ``Flags.model`` is "".

    Raises UsageError when the context or the number of requests is missing.
    """
    from headcount.units import parse_count

    counts = {}
    for name in ("OLLAMA_CONTEXT_LENGTH", "OLLAMA_NUM_PARALLEL"):
        if name not in variables:
            raise UsageError(f"the variables of ollama serve do not name {name}")
        counts[name] = parse_count(variables[name], what=name)
    arguments = []
    if variables.get("OLLAMA_FLASH_ATTENTION") == "0":
        arguments.append(("flash-attention", "false"))
    if variables.get("OLLAMA_NEW_ENGINE") == "1":
        arguments.append(("ollama-engine", "true"))
    if "OLLAMA_GPU_OVERHEAD" in variables:
        arguments.append(("gpu-overhead", variables["OLLAMA_GPU_OVERHEAD"] + "B"))
    kv = variables.get("OLLAMA_KV_CACHE_TYPE", "auto")
    return Flags(
        engine="ollama",
        model="",
        tp=1,
        pp=1,
        context=counts["OLLAMA_CONTEXT_LENGTH"],
        settings=Settings(
            kv=_LLAMA_SERVER.kv.get(kv, kv),
            max_num_seqs=counts["OLLAMA_NUM_PARALLEL"],
            arguments=tuple(arguments),
        ),
    )


def read_options(engine: str, options: Sequence[tuple[str, str | None]]) -> Flags:
    """Sort an engine's options into the plan's words; see the module."""
    dialect = _DIALECTS[engine]
    words: dict[str, str] = {}
    arguments: list[tuple[str, str]] = []
    for name, value in options:
        word = "model" if name == "model" else dialect.names.get(name)
        if word is not None:
            if value is None:
                raise UsageError(f"{name} has no value")
            words[word] = value
        elif (name, value) == ALL_LAYERS:
            continue
        elif name not in dialect.passed:
            arguments.append(_argument(name, value))
    for needed in ("model", "context"):
        if needed not in words:
            raise UsageError(f"the {engine} line names no {needed}")
    arguments += _drafts(words)
    if "kv-value" in words and words["kv-value"] != words.get("kv", "f16"):
        arguments.append(("cache-type-v", words["kv-value"]))
    seqs = _count(words, "seqs")
    context = _count(words, "context") or 0
    if engine == "llama.cpp":
        # One context is cut into slots.
        context //= seqs or 1
    return Flags(
        engine=engine,
        model=words["model"],
        tp=_count(words, "tp") or 1,
        pp=_count(words, "pp") or 1,
        context=context,
        settings=Settings(
            weights=_weights(dialect, words),
            kv=dialect.kv.get(words.get("kv", "auto"), words.get("kv", "auto")),
            utilization=_fraction(words),
            max_num_batched_tokens=_count(words, "tokens"),
            max_num_seqs=seqs,
            arguments=tuple(arguments),
        ),
    )


def _argument(name: str, value: str | None) -> tuple[str, str]:
    bare = _LONG.get(name, name.lstrip("-"))
    if value is None and bare.startswith("no-") and bare not in _NEGATIVE_NAMES:
        return bare.removeprefix("no-"), "false"
    return bare, value or ""


def _drafts(words: dict[str, str]) -> list[tuple[str, str]]:
    import json

    if "drafts" not in words:
        return []
    try:
        drafts = json.loads(words["drafts"])
        return [
            ("speculative-method", str(drafts["method"])),
            ("num-speculative-tokens", str(drafts["num_speculative_tokens"])),
        ]
    except (ValueError, KeyError, TypeError):
        raise UsageError(
            f"speculative config {words['drafts'][:80]!r} names no method and number of tokens"
        ) from None


def _weights(dialect: Dialect, words: dict[str, str]) -> str:
    packed = words.get("weights")
    if packed is not None:
        if packed not in dialect.weights:
            raise UsageError(
                f"quantization {packed[:40]!r} is not one that is packed on load: read the checkpoint instead"
            )
        return dialect.weights[packed]
    dtype = words.get("dtype", "auto")
    if dtype not in _PLAIN:
        raise UsageError(f"dtype {dtype[:40]!r} is not known; known: {', '.join(_PLAIN)}")
    return _PLAIN[dtype]


def _count(words: dict[str, str], word: str) -> int | None:
    from headcount.units import parse_count

    return None if word not in words else parse_count(words[word], what=word)


def _fraction(words: dict[str, str]) -> float | None:
    from headcount.units import parse_fraction

    return None if "utilization" not in words else parse_fraction(words["utilization"], what="utilization")
