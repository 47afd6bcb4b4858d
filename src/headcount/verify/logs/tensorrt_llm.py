"""TensorRT-LLM's start-up lines: the C++ runtime (engines built beforehand) and the PyTorch backend.

Wordings: cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp, tensorrt_llm/_torch/pyexecutor/_util.py and docs/source/
reference/memory.md. The PyTorch backend allocates a small cache, profiles, and allocates the real one: every figure of the
cache is the last one of its rank. The fraction is of the memory that is free once the weights are loaded.
"""

from __future__ import annotations

from headcount.verify.logs.patterns import END, NUMBER, SIZE, WHOLE, Pattern
from headcount.verify.logs.reader import Reader
from headcount.verify.observation import Observation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.verify.logs.start import Start

_TABLE = (
    Pattern("Loaded engine size", rf"Loaded engine size: {SIZE}", "weights_gib"),
    Pattern(
        "after loading model weights (inside",
        rf"after loading model weights \(inside torch\) in memory usage profiling: {SIZE}",
        "weights_gib",
    ),
    Pattern(
        "for execution context memory",
        rf"Allocated {SIZE} for execution context memory",
        "peak_activation_gib",
    ),
    Pattern(
        "during inference (inside torch)",
        rf"allocated during inference \(inside torch\) in memory usage profiling: {SIZE}",
        "peak_activation_gib",
    ),
    Pattern(
        "outside torch (",
        rf"used outside torch \([^)\n]{{1,60}}\) in memory usage profiling: {SIZE}",
        "non_torch_gib",
    ),
    Pattern(
        "max tokens in paged kv cache",
        rf"in paged kv cache: total: {SIZE}, available: {SIZE}",
        "gpu_total_memory_gib",
        "free_gib",
    ),
    Pattern(
        "available KV cache memory when",
        rf"available KV cache memory when calculating max tokens: {SIZE}",
        "budget_gib",
    ),
    Pattern("fraction is set", rf"fraction is set {NUMBER}{END}", "gpu_memory_utilization"),
    Pattern("kv size", rf", kv size (?:per token )?is {WHOLE}{END}", "whole_token_bytes"),
    Pattern("device total memory", rf"device total memory {SIZE}", "gpu_total_memory_gib"),
    Pattern(
        "free_gpu_memory_fraction",
        rf"free_gpu_memory_fraction(?:=|['\"]?: )['\"]?{NUMBER}['\"]?{END}",
        "gpu_memory_utilization",
    ),
    Pattern(
        "kv_cache_free_gpu_mem_fraction",
        rf"kv_cache_free_gpu_mem_fraction['\"]?[=:] ?['\"]?{NUMBER}['\"]?{END}",
        "gpu_memory_utilization",
    ),
    Pattern(
        "KV cache primary pool",
        rf"Number of blocks in (?:self )?KV cache primary pool: {WHOLE}{END}",
        "num_gpu_blocks",
    ),
    Pattern(
        "rimary",
        rf"(?:blocksInPrimaryPool|primaryBlocks|primary blocks) ?[=:] ?{WHOLE}{END}",
        "num_gpu_blocks",
    ),
    Pattern("window size=", rf"\[window size={WHOLE}\]", "whole_window"),
    Pattern("max sequence length=", rf"max sequence length={WHOLE}{END}", "max_model_len"),
    Pattern("okens per block", rf"(?:Number of tokens|tokens) per block ?[:=] ?{WHOLE}{END}", "block_size"),
    Pattern(
        "for max tokens",
        rf"Allocated {SIZE} for max tokens (?:in paged KV cache )?\({WHOLE}\)",
        "kv_gib",
        "kv_cache_tokens",
    ),
    Pattern("tokens in paged KV cache", rf"Using {WHOLE} tokens in paged KV cache", "kv_cache_tokens"),
    Pattern("okens in paged KV cache:", rf"Max tokens in paged KV cache: {WHOLE}{END}", "kv_cache_tokens"),
    Pattern("maxNumSequences", rf"maxNumSequences: {WHOLE}{END}", "max_num_seqs"),
    Pattern("maxSequenceLen", rf"TRTGptModel maxSequenceLen: {WHOLE}{END}", "max_model_len"),
    Pattern("maxNumTokens", rf"TRTGptModel maxNumTokens: {WHOLE}{END}", "max_num_batched_tokens"),
    Pattern(
        "max_num_requests=",
        rf"max_seq_len={WHOLE}, max_num_requests={WHOLE}, max_num_tokens={WHOLE}{END}",
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
    ),
    Pattern("Engine version", r"Engine version ([\w.+-]{1,40}) found in the config", "engine_version"),
    Pattern("TensorRT-LLM version", r"TensorRT-LLM version: ([\w.+-]{1,40})\s", "engine_version"),
    Pattern("TensorRT LLM version", r"TensorRT LLM version: ([\w.+-]{1,40})\s", "engine_version"),
    Pattern(
        "tensor_parallel_size", rf"['\"]?\btensor_parallel_size['\"]?(?:=|: ){WHOLE}{END}", "tensor_parallel"
    ),
    Pattern(
        "pipeline_parallel_size",
        rf"['\"]?\bpipeline_parallel_size['\"]?(?:=|: ){WHOLE}{END}",
        "pipeline_parallel",
    ),
)


class TensorRtLlmReader(Reader):
    """Reads TensorRT-LLM."""

    engine = "tensorrt-llm"
    patterns = tuple(_TABLE)
    openings = ("Engine version", "TensorRT-LLM version", "TensorRT LLM version")
    capacity = ("num_gpu_blocks", "kv_cache_tokens", "kv_gib")
    identity = ("engine_version", "weights_gib", "peak_activation_gib")
    evidence = ("kv_gib", "num_gpu_blocks", "kv_cache_tokens", "budget_gib", "free_gib")

    def observe(self, start: Start) -> Observation:
        """The last allocation of the poorest rank."""
        for name, what in (
            ("kv_gib", "cache memory"),
            ("kv_cache_tokens", "tokens"),
            ("weights_gib", "weights"),
        ):
            start.differ(name, what)
        blocks = start.count("num_gpu_blocks")
        # One window is printed for each allocation, the profile's and the real one; more are windows side by side.
        if any(
            len(start.values("whole_window", rank)) > max(1, len(start.values("kv_gib", rank)))
            for rank in start.ranks("whole_window")
        ):
            start.note("several attention windows, each with blocks of its own: blocks not read")
            blocks = None
        free, cache = start.least("free_gib"), start.least("kv_gib")
        if free is not None:
            start.note(f"{free:g} GiB were free when the cache was sized")
        per_token = start.count("whole_token_bytes")
        return Observation(
            engine=self.engine,
            engine_version=start.text("engine_version"),
            date=start.date,
            gpu_total_memory_gib=start.least("gpu_total_memory_gib"),
            tensor_parallel=start.count("tensor_parallel"),
            pipeline_parallel=start.count("pipeline_parallel"),
            block_size=start.count("block_size"),
            gpu_memory_utilization=start.least("gpu_memory_utilization"),
            max_model_len=start.count("max_model_len"),
            max_num_batched_tokens=start.count("max_num_batched_tokens"),
            max_num_seqs=start.count("max_num_seqs"),
            weights_gib=start.greatest("weights_gib"),
            peak_activation_gib=start.greatest("peak_activation_gib"),
            non_torch_gib=start.greatest("non_torch_gib"),
            kv_cache_memory_gib=start.least("budget_gib") if cache is None else cache,
            num_gpu_blocks=blocks,
            kv_cache_tokens=start.count("kv_cache_tokens"),
            bytes_per_token=float(per_token) if per_token else None,
        )
