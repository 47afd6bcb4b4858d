"""vLLM's start-up lines, 0.4 to 0.33, V0 and V1.

Wordings: vllm/worker/worker.py and vllm/executor (V0), vllm/v1/worker/gpu_worker.py, vllm/v1/core/kv_cache_utils.py,
vllm/utils/mem_utils.py (V1, read in 0.32.0), and the public threads in tests/verify/data/logs. A rule that needs telling:

* "peak activation" of "Actual usage is ..." contains the CUDA graph estimate where that is charged (0.21 on); the
  profile's own "torch peak memory increase" does not, and is preferred.
* "consumed memory (weights + non-torch)" (0.30 on) is one figure for two terms: neither is guessed from it.
* ``# GPU blocks`` and ``GPU KV cache size`` are the engine's, so after the minimum over ranks; "Available KV cache memory"
  is each rank's own, of which the smallest counts.
"""

from __future__ import annotations

import re

from headcount.verify.logs.dumps import named, number, read_dump, whole
from headcount.verify.logs.patterns import END, NUMBER, SIZE, WHOLE, Pattern
from headcount.verify.logs.ranks import lane_of
from headcount.verify.logs.reader import Reader
from headcount.verify.logs.vllm_refusals import FIGURES, PATTERNS, REFUSED, SAID, explain_refusal
from headcount.verify.logs.vllm_releases import WORDS, newest_release, releases_of
from headcount.verify.observation import Observation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.verify.logs.lines import Line
    from headcount.verify.logs.start import Start

_TABLE = (
    # the memory terms
    Pattern("oading", rf"(?:Loading model weights|Model loading) took {SIZE}", "weights_gib"),
    Pattern("model weights take", rf"model weights take {SIZE}", "profile_weights_gib"),
    Pattern("weights memory:", rf"weights memory: {SIZE}", "profile_weights_gib"),
    Pattern("Actual usage", rf"Actual usage(?: is|:) {SIZE} for weights?\b", "profile_weights_gib"),
    Pattern("activation peak memory", rf"PyTorch activation peak memory takes {SIZE}", "peak_activation_gib"),
    Pattern("torch peak memory increase", rf"torch peak memory increase: {SIZE}", "peak_activation_gib"),
    Pattern("peak_torch_memory=", rf"peak_torch_memory={SIZE}", "peak_torch_gib"),
    Pattern("for peak activation", rf"{SIZE} for peak activation", "usage_activation_gib"),
    Pattern("non_torch_memory", rf"non_torch_memory(?: takes |=){SIZE}", "non_torch_gib"),
    Pattern("non-torch forward increase", rf"non-torch forward increase memory: {SIZE}", "non_torch_gib"),
    Pattern("for non-torch memory", rf"{SIZE} for non-torch memory", "non_torch_gib"),
    Pattern(
        "Graph capturing", rf"Graph capturing finished in \d{{1,9}} secs?, took {SIZE}", "cuda_graphs_gib"
    ),
    Pattern("raph memory", rf"{SIZE} for (?:CUDA|NPU|XPU) ?[Gg]raph memory\b", "usage_graphs_gib"),
    Pattern(
        "graph pool memory",
        rf"CUDA graph pool memory: {SIZE} \(actual\), {SIZE} \(estimated\)",
        "usage_graphs_gib",
        "estimated_graphs_gib",
    ),
    Pattern("Estimated CUDA graph", rf"Estimated CUDA graph memory: {SIZE}", "estimated_graphs_gib"),
    # the budget
    Pattern("total_gpu_memory", rf"total_gpu_memory(?: \(|=){SIZE}", "gpu_total_memory_gib"),
    Pattern("gpu_memory_utilization", rf"x gpu_memory_utilization \({NUMBER}\)", "gpu_memory_utilization"),
    Pattern(
        "kv_cache_size=",
        rf"kv_cache_size={SIZE} gpu_memory_utilization={NUMBER}{END}",
        "kv_memory_gib",
        "gpu_memory_utilization",
    ),
    Pattern(
        "Free memory on device",
        rf"Free memory on device (?:\S{{1,20}} )?\({NUMBER}/{SIZE}\)",
        "",
        "gpu_total_memory_gib",
    ),
    Pattern(
        "emory utilization",
        rf"esired (?:GPU|CPU) memory utilization (?:is )?\({NUMBER}, {SIZE}\)",
        "gpu_memory_utilization",
        "",
    ),
    Pattern(
        "equested memory:", rf"Requested memory: {NUMBER} \(util\), {SIZE}", "gpu_memory_utilization", ""
    ),
    Pattern("current --gpu", rf"The current --gpu-memory-utilization={NUMBER} is", "gpu_memory_utilization"),
    # what is left for the cache
    Pattern("Available KV cache memory", rf"Available KV cache memory: {SIZE}", "kv_memory_gib"),
    Pattern("reserved for KV Cache is", rf"memory reserved for KV Cache is {SIZE}", "kv_memory_gib"),
    Pattern(
        "as specified by kv_cache_memory_bytes",
        rf"reserved {SIZE} memory for KV Cache as specified",
        "kv_memory_gib",
    ),
    Pattern(
        "for KV cache on node",
        rf"(?:Auto|Explicitly) set \({NUMBER}/{NUMBER}\) GiB for KV cache on node",
        "node_kv",
        "node_total",
    ),
    Pattern("urrent ", rf"Current (?:kv|KV) cache memory(?: in use is|:) {SIZE}", "used_kv_memory_gib"),
    # what it holds
    Pattern("blocks: ", rf"# (?!CPU)(?:[A-Za-z]{{2,8}}) blocks: {WHOLE}{END}", "num_gpu_blocks"),
    # "Overriding num_gpu_blocks=0 ..." is a worker's small pool for sizing CUDA graphs, not the engine's.
    Pattern(
        "num_gpu_blocks_override",
        rf"Overriding num_gpu_blocks=[1-9]\d{{0,17}} with num_gpu_blocks_override={WHOLE}{END}",
        "num_gpu_blocks",
    ),
    Pattern(
        "KV cache size:", rf"\b(?:[A-Z]{{2,4}})(?: \+ host)? KV cache size: {WHOLE} tokens", "kv_cache_tokens"
    ),
    Pattern(
        "Maximum concurrency for",
        rf"Maximum concurrency for {WHOLE} tokens per request: {NUMBER}x",
        "max_concurrency_tokens",
        "max_concurrency",
    ),
    # refusals
    *PATTERNS,
    Pattern(
        "estimated maximum model length",
        rf"the estimated maximum model length is {WHOLE}{END}",
        "estimated_max_len",
    ),
    # settings
    Pattern("LLM engine (v", r"LLM engine \(v([\w.+-]{1,60})\)", "engine_version"),
    Pattern("server version", r"vLLM (?:API )?server version ([\w.+-]{1,60}?)(?=[,\s])", "engine_version"),
    Pattern("  version ", r"█\s{1,8}version ([\w.+-]{1,60})\s", "engine_version"),
    Pattern(
        "max_num_batched_tokens=",
        rf"Chunked prefill is enabled with max_num_batched_tokens={WHOLE}{END}",
        "max_num_batched_tokens",
    ),
    # a command line above the log
    Pattern("tensor-parallel-size", rf"--tensor-parallel-size[= ]{WHOLE}{END}", "asked_tensor_parallel"),
    Pattern(
        "pipeline-parallel-size", rf"--pipeline-parallel-size[= ]{WHOLE}{END}", "asked_pipeline_parallel"
    ),
    Pattern(
        "in world size",
        rf"rank \d{{1,6}} in world size {WHOLE} is assigned as (DP rank \d[^\n]{{0,80}}?TP rank \d{{1,6}}){END}",
        "whole_world",
        "place",
    ),
    Pattern(
        "attention block size to", rf"Setting attention block size to {WHOLE} tokens", "hybrid_block_size"
    ),
)
# Arguments that change memory, by vLLM's own names; others (hosts, keys, paths) are not kept.
_ARGUMENTS = frozenset(
    (
        "async_scheduling",
        "block_size",
        "cpu_offload_gb",
        "decode_context_parallel_size",
        "enable_chunked_prefill",
        "enable_expert_parallel",
        "enable_lora",
        "enable_prefix_caching",
        "enforce_eager",
        "kv_cache_memory_bytes",
        "language_model_only",
        "limit_mm_per_prompt",
        "mamba_block_size",
        "mamba_cache_dtype",
        "mamba_cache_mode",
        "mamba_ssm_cache_dtype",
        "max_cpu_loras",
        "max_lora_rank",
        "max_loras",
        "max_seq_len_to_capture",
        "num_gpu_blocks_override",
        "num_speculative_tokens",
        "prefill_context_parallel_size",
        "skip_mm_profiling",
        "speculative_config",
        "swap_space",
    )
)
# Names in the dumps -> our own.
_SETTINGS = {
    "model": "model",
    "model_tag": "model",
    "max_model_len": "max_model_len",
    "max_seq_len": "max_model_len",
    "tensor_parallel_size": "tensor_parallel",
    "pipeline_parallel_size": "pipeline_parallel",
    "data_parallel_size": "data_parallel",
    "quantization": "quantization",
    "dtype": "dtype",
    "kv_cache_dtype": "kv_cache_dtype",
    "block_size": "block_size",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "max_num_seqs": "max_num_seqs",
}


class VllmReader(Reader):
    """Reads vLLM."""

    engine = "vllm"
    patterns = tuple(_TABLE)
    openings = (
        "LLM engine (v",
        "non-default args:",
        "args: Namespace(",
        "API server version",
        "an LLM engine with config",
    )
    capacity = ("kv_memory_gib", "num_gpu_blocks", "kv_cache_tokens", *FIGURES)
    leading = ("weights_gib",)
    identity = ("engine_version", "run_model", "hybrid_block_size")
    evidence = (
        "weights_gib",
        "profile_weights_gib",
        "peak_activation_gib",
        "usage_activation_gib",
        "node_kv",
        "used_kv_memory_gib",
        "max_concurrency",
        "estimated_max_len",
        *capacity,
    )

    @classmethod
    def words(cls) -> tuple[str, ...]:
        """The table's, those of refusals, and those that tell the release."""
        return (*super().words(), *(word for word, _ in SAID), *WORDS)

    def read(self, line: Line) -> None:
        """Requests are logged with their prompts, which may quote anything: those lines are passed over."""
        if "Received request" not in line.text and "Added request" not in line.text:
            super().read(line)

    def look(self, text: str, rank: str) -> None:
        """Argument dumps and refusals."""
        for word, opener in (
            ("non-default args:", "{"),
            ("args: Namespace(", "("),
            ("with config:", "config:"),
        ):
            at = text.find(word)
            if at >= 0:
                begin = text.find(opener, at)
                if begin >= 0:
                    dump = read_dump(text[begin + len(opener) :])
                    self._settings(dump, self.current(lane_of(text)), asked=opener != "config:")
                    if opener == "{" and "}" in text[begin:]:
                        self.current(lane_of(text)).add("all_shown", "yes", "")
        start = self.current(lane_of(text))
        for word, name in SAID:
            if word in text:
                start.add(name, "yes", "")
        for first, last in releases_of(text):
            start.add("spoken", f"{first} {last}", f"{first} {last}")

    def _settings(self, dump: dict[str, str], start: Start, *, asked: bool) -> None:
        for name, value in dump.items():
            mine = _SETTINGS.get(name)
            if mine and named(value):
                # What the engine says it runs with outranks what was asked for.
                start.add(("asked_" if asked else "run_") + mine, value, "")
            if name in _ARGUMENTS and asked and named(value):
                start.set_argument(
                    name.replace("_", "-"), {"True": "true", "False": "false"}.get(value, value)[:300]
                )
            elif name == "enforce_eager" and value == "True":
                start.set_argument("enforce-eager", "true")
            elif name == "speculative_config" and named(value):
                start.note(f"speculative decoding: {value[:120]}")
                _speculation(start, value)
            elif name == "device_config" and value == "cpu":
                start.add("device", "CPU", "")

    def observe(self, start: Start) -> Observation:
        """The engine's own figures: the smallest cache, the heaviest rank's weights."""
        for name, what in (
            ("weights_gib", "weights"),
            ("kv_memory_gib", "cache memory"),
            ("num_gpu_blocks", "blocks"),
        ):
            start.differ(name, what)
        reason = explain_refusal(start)
        if reason:
            start.note(REFUSED + reason)
        elif start.has("out_of_memory"):
            start.note("out of memory during the start")
        tensor, pipeline = _world(start)
        weights = None if start.several("weights_gib", "weights") else start.greatest("weights_gib")
        length = (
            _count(start, "refused_len")
            or _setting(start, "max_model_len")
            or start.count("max_concurrency_tokens")
        )
        return Observation(
            engine=self.engine,
            engine_version=start.text("engine_version"),
            release_hint=_release_hint(start),
            date=start.date,
            model=_words(start, "model"),
            gpu=start.text("device"),
            gpu_total_memory_gib=start.least("gpu_total_memory_gib") or number(start.text("node_total")),
            tensor_parallel=_setting(start, "tensor_parallel") or tensor,
            pipeline_parallel=_setting(start, "pipeline_parallel") or pipeline,
            data_parallel=_setting(start, "data_parallel"),
            weight_dtype_or_quant=_words(start, "quantization") or _plain_dtype(_words(start, "dtype")),
            kv_cache_dtype=_words(start, "kv_cache_dtype"),
            block_size=_count(start, "hybrid_block_size") or _setting(start, "block_size"),
            gpu_memory_utilization=start.least("gpu_memory_utilization")
            or number(_words(start, "gpu_memory_utilization")),
            max_model_len=length,
            max_num_batched_tokens=start.count("max_num_batched_tokens")
            or _setting(start, "max_num_batched_tokens"),
            max_num_seqs=_setting(start, "max_num_seqs"),
            weights_gib=start.greatest("profile_weights_gib") if weights is None else weights,
            peak_activation_gib=_activation(start),
            non_torch_gib=start.greatest("non_torch_gib"),
            cuda_graphs_gib=_first(start.greatest("cuda_graphs_gib"), start.greatest("usage_graphs_gib")),
            kv_cache_memory_gib=_cache_memory(start),
            num_gpu_blocks=start.count("num_gpu_blocks"),
            kv_cache_tokens=_first_count(start.count("kv_cache_tokens"), _count(start, "refused_tokens")),
            max_concurrency=start.least("max_concurrency"),
            max_concurrency_tokens=start.count("max_concurrency_tokens"),
            estimated_max_len=start.count("estimated_max_len"),
            kv_needed_gib=start.greatest("kv_needed_gib"),
            arguments=start.arguments,
            arguments_shown=start.has("all_shown"),
        )


# SpeculativeConfig(method='mtp', model='...', num_spec_tokens=3)   {'method': 'qwen3_next_mtp', 'num_speculative_tokens': 3}
_METHOD = re.compile(r"method['\"]?[=:] ?['\"](\w{1,30})['\"]")
_DRAFTS = re.compile(r"num_spec(?:ulative)?_tokens['\"]?[=:] ?(\d{1,3})\b")


def _speculation(start: Start, config: str) -> None:
    """The drafter and its tokens, as the engine's arguments name them."""
    method, drafts = _METHOD.search(config), _DRAFTS.search(config)
    if method is None or drafts is None:
        return
    name = "mtp" if method[1].endswith("mtp") else method[1]
    start.set_argument("speculative-method", name)
    start.set_argument("num-speculative-tokens", drafts[1])


_PLACE = re.compile(r"(DP|PP|PCP|TP) rank (\d{1,6})")


def _world(start: Start) -> tuple[int | None, int | None]:
    """Tensor- and pipeline-parallel size, where the ranks that were shown make up the whole world."""
    highest = {"DP": 0, "PP": 0, "PCP": 0, "TP": 0}
    for rank in start.ranks("place"):
        for place in start.values("place", rank):
            for name, number_of in _PLACE.findall(str(place)):
                highest[name] = max(highest[name], int(number_of))
    tensor, pipeline = highest["TP"] + 1, highest["PP"] + 1
    if start.count("whole_world") != tensor * pipeline * (highest["DP"] + 1) * (highest["PCP"] + 1):
        return None, None
    return tensor, pipeline


def _release_hint(start: Start) -> str | None:
    if start.has("engine_version"):
        return None
    spans = [(first, last) for first, last in (span.split(" ") for span in start.ranks("spoken"))]
    found = newest_release(spans)
    if spans and found is None:
        start.note(
            "its lines are worded as by no one release of vLLM: a fork, a plug-in or several logs in one"
        )
    return found


def _first(*figures: float | None) -> float | None:
    return next((figure for figure in figures if figure is not None), None)


def _first_count(*figures: int | None) -> int | None:
    return next((figure for figure in figures if figure is not None), None)


def _count(start: Start, name: str) -> int | None:
    return whole((start.text(name) or "").replace(",", ""))


def _words(start: Start, name: str) -> str | None:
    return named(start.text(f"run_{name}")) or named(start.text(f"asked_{name}"))


def _setting(start: Start, name: str) -> int | None:
    return whole(_words(start, name))


def _plain_dtype(dtype: str | None) -> str | None:
    return dtype.removeprefix("torch.") if dtype else None


def _activation(start: Start) -> float | None:
    """The peak of the profile run without CUDA graphs; None where the log prints only their sum."""
    profiled = start.greatest("peak_activation_gib")
    if profiled is not None:
        return profiled
    # 0.6.4 prints the peak with the weights in it.
    torch, weights = start.greatest("peak_torch_gib"), start.greatest("weights_gib")
    if torch is not None and weights is not None:
        return max(0.0, round(torch - weights, 4))
    used, graphs = start.greatest("usage_activation_gib"), start.greatest("estimated_graphs_gib")
    if used is None or graphs is None:
        return used
    start.note(
        f"peak activation {used:g} GiB as printed may hold the CUDA graph estimate {graphs:g} GiB: not read"
    )
    return None


def _cache_memory(start: Start) -> float | None:
    """What the pool is cut from: the poorest rank's; a refusal repeats it."""
    node = number(start.text("node_kv"))
    return _first(
        start.least("kv_memory_gib"),
        node,
        start.least("used_kv_memory_gib"),
        start.least("refused_memory_gib"),
    )
