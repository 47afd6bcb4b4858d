"""Which releases of vLLM print a line as it stands: a log without a release of its own is dated by its wording.

Read in the released sources (sdists on PyPI) of 0.4.1 to 0.33.0: of 48 releases, every entry names the first and the
last that print it on a GPU. ``OLDEST`` and ``NEWEST`` are the ends of that reading, not of the wording: add a release by
looking its messages up and moving ``NEWEST``. The files: vllm/worker/{worker,model_runner}.py, vllm/executor/*.py (V0);
vllm/v1/worker/{gpu_worker,gpu_model_runner}.py, vllm/v1/worker/gpu/model_runner.py, vllm/v1/core/kv_cache_utils.py,
vllm/v1/engine/{core,utils}.py, vllm/v1/executor/multiproc_executor.py, vllm/utils/mem_utils.py, vllm/logger.py.

    hint = the smallest of the last releases, where it is not before the largest of the first ones

Other platforms (files named xpu_, hpu_, tpu_, cpu_, ...) kept wordings longer: their lines say nothing here. Figures
tell too: sizes were printed with four decimals, then with two, then (0.14 on) without their last zeros.
"""

from __future__ import annotations

import re

from headcount.engines.versions import release

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

OLDEST, NEWEST = "0.4.1", "0.33.0"
_HEAD = 400
_TWO = r"\d{1,6}\.\d0"

# A plain piece of the line, the expression, first and last release.
_WORDINGS = (
    # weights
    ("oading model weights", r"Loading model weights took \d+\.\d{4} GB", OLDEST, "0.7.3"),
    ("odel loading took", r"Model loading took \d+\.\d{4} GB\b", "0.8.0", "0.8.2"),
    ("odel loading took", r"Model loading took \d+\.\d{4} GiB", "0.8.3", "0.13.0"),
    ("odel loading took", r"Model loading took \d+\.\d{4} GiB and", "0.8.3", "0.11.0"),
    ("odel loading took", r"Model loading took \d+\.\d{4} GiB memory", "0.11.1", "0.13.0"),
    # The second model runner (gpu/model_runner.py, tried out from 0.12) left "memory" out.
    ("odel loading took", r"Model loading took \d+\.\d{1,2} GiB and", "0.14.0", "0.27.1"),
    ("odel loading took", r"Model loading took \d+\.\d{1,2} GiB memory", "0.14.0", NEWEST),
    # the profile
    ("Memory profiling results:", r"Memory profiling results: total_gpu_memory=", "0.6.4", "0.6.4"),
    ("initial_memory_usage=", r"initial_memory_usage=\d", "0.6.4", "0.6.4"),
    ("kv_cache_size=", r"non_torch_memory=[\d.]+GiB kv_cache_size=", "0.6.4", "0.6.4"),
    ("current vLLM instance", r"the current vLLM instance can use total_gpu_memory", "0.6.5", "0.10.2"),
    ("total_gpu_memory (", r"total_gpu_memory \([\d.]+GiB\) x gpu_memory_utilization", "0.6.5", "0.10.2"),
    ("non_torch_memory takes", r"non_torch_memory takes", "0.6.5", "0.10.2"),
    ("memory reserved for KV Cache is", r"memory reserved for KV Cache is", "0.6.5", "0.10.2"),
    ("non-torch forward increase", r"non-torch forward increase memory: \d", "0.9.1", "0.26.0"),
    ("from mem_get_info", r"total consumed \(from mem_get_info\)", "0.27.0", NEWEST),
    ("for weight,", r"GiB for weight, ", "0.10.2", "0.26.0"),
    ("for consumed memory", r"GiB for consumed memory \(weights \+ non-torch\)", "0.27.0", NEWEST),
    ("equested memory:", r"Requested memory: [\d.]+ \(util\)", "0.10.1", NEWEST),
    # graphs
    ("raph capturing finished", r"Graph capturing finished in \d+ secs\.", OLDEST, "0.6.3"),
    ("raph capturing finished", r"Graph capturing finished in \d+ secs, took", "0.6.4", NEWEST),
    ("stimated CUDA graph memory", r"Estimated CUDA graph memory: \d", "0.18.0", NEWEST),
    ("CUDA graph pool memory", r"CUDA graph pool memory: \d", "0.18.0", NEWEST),
    (
        "CUDA graph memory profiling is",
        r"profiling is enabled \(VLLM_MEMORY_PROFILER_ESTIMATE",
        "0.18.0",
        "0.19.1",
    ),
    ("CUDA graph memory profiling is", r"profiling is enabled \(default since", "0.20.0", NEWEST),
    # the cache
    ("vailable KV cache memory:", r"Available KV cache memory: -?\d", "0.9.1", NEWEST),
    ("vailable KV cache memory:", rf"Available KV cache memory: -?{_TWO} GiB", "0.9.1", "0.13.0"),
    ("vailable KV cache memory:", r"Available KV cache memory: -?\d+\.\d GiB", "0.14.0", NEWEST),
    ("as specified by kv_cache_memory_bytes", r"reserved [\d.]+GiB memory for KV Cache", "0.10.2", "0.11.0"),
    ("as specified by kv_cache_memory_bytes", r"reserved [\d.]+ GiB memory for KV Cache", "0.11.1", NEWEST),
    ("# GPU blocks:", r"# GPU blocks: \d+, # CPU blocks:", OLDEST, "0.6.6"),
    ("# GPU blocks:", r"# GPU blocks: \d", OLDEST, "0.7.3"),
    ("# CUDA blocks:", r"# CUDA blocks: \d", "0.7.0", "0.7.2"),
    # The message stood in 0.11.0 too, where nothing calls it.
    ("# cuda blocks:", r"# cuda blocks: \d", "0.7.3", "0.10.2"),
    ("# rocm blocks:", r"# rocm blocks: \d", "0.7.3", "0.10.2"),
    ("KV cache size:", r"GPU KV cache size: [\d,]+ tokens", "0.8.0", NEWEST),
    ("KV cache size:", r"GPU KV cache size: [\d,]+ tokens(?=\s)", "0.8.0", "0.27.1"),
    ("tokens, Maximum concurrency", r"KV cache size: [\d,]+ tokens, Maximum", "0.28.0", NEWEST),
    ("Maximum concurrency for", r"Maximum concurrency for [\d,]+ tokens", "0.6.3", NEWEST),
    ("Maximum concurrency for", r"Maximum concurrency for \d{4,9} tokens", "0.6.3", "0.10.2"),
    ("Maximum concurrency for", r"Maximum concurrency for \d+,\d{3}", "0.8.0", NEWEST),
    # refusals
    ("can be stored in KV cache", r"tokens that can be stored in KV cache \(", OLDEST, "0.10.2"),
    ("KV cache is needed", r"\d GB KV cache is needed", "0.7.0", "0.8.2"),
    ("KV cache is needed", r"\d GiB KV cache is needed", "0.8.3", NEWEST),
    ("KV cache is needed", rf"\({_TWO} GiB KV cache is needed", "0.8.3", "0.13.0"),
    ("KV cache is needed", r"\(\d+\.\d GiB KV cache is needed", "0.14.0", NEWEST),
    ("KV cache is needed", r"the models's max seq len \(\d+\), ", "0.7.0", "0.21.0"),
    ("KV cache is needed", r"the model's max seq len \(\d+\), ", "0.22.0", NEWEST),
    ("estimated maximum model length", r"the estimated maximum model length is", "0.8.4", NEWEST),
)
# How lines begin, whatever they say.
_STAMP = r"(?:INFO|WARNING|ERROR|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d "
_BEGINNINGS = (
    (".py:", _STAMP + r"\w{1,60}\.py:\d+\] ", OLDEST, "0.7.3"),
    (".py:", _STAMP + r"\[[\w./]{1,120}\.py:\d+\] ", "0.8.0", NEWEST),
    ("(VllmWorkerProcess ", r"\(VllmWorkerProcess pid=", "0.4.2", "0.10.2"),
    ("(VllmWorker rank=", r"\(VllmWorker rank=\d+ pid=", "0.6.5", "0.10.0"),
    ("(VllmWorker TP", r"\(VllmWorker TP\d+ pid=", "0.10.1", "0.10.1"),
    ("(Worker", r"\(Worker(?:_[A-Z]+\d+)* pid=", "0.10.2", NEWEST),
    ("(EngineCore_", r"\(EngineCore_\d+ pid=", "0.8.3", "0.10.1"),
    ("(EngineCore_DP", r"\(EngineCore_DP\d+ pid=", "0.10.2", NEWEST),
    ("(EngineCore ", r"\(EngineCore pid=", "0.18.0", NEWEST),
    ("(APIServer ", r"\(APIServer pid=", "0.10.1", NEWEST),
)
_ELSEWHERE = re.compile(r"\b(?:xpu|hpu|tpu|cpu|neuron|openvino)_\w{1,40}\.py:")
_COMPILED = tuple((word, re.compile(regex), first, last) for word, regex, first, last in _WORDINGS)
_COMPILED_BEGINNINGS = tuple(
    (word, re.compile(regex), first, last) for word, regex, first, last in _BEGINNINGS
)
WORDS = tuple(dict.fromkeys(word for word, _, _, _ in _WORDINGS))


def releases_of(text: str) -> Iterator[tuple[str, str]]:
    """First and last release of every wording in the line ``text``."""
    head = text[:_HEAD]
    for word, regex, first, last in _COMPILED_BEGINNINGS:
        if word in head and regex.search(head):
            yield first, last
    if ".py:" in head and _ELSEWHERE.search(head):
        return
    for word, regex, first, last in _COMPILED:
        if word in text and regex.search(text):
            yield first, last


def newest_release(spans: Iterable[tuple[str, str]]) -> str | None:
    """The newest release inside every span; None for no span, and where no release prints them all (a fork, a plug-in)."""
    found = list(spans)
    if not found:
        return None
    since = max((first for first, _ in found), key=release)
    until = min((last for _, last in found), key=release)
    return until if release(until) >= release(since) else None
