"""Why a vLLM start was refused, in the log's own figures.

Wordings: vllm/worker/worker.py (V0), vllm/v1/core/kv_cache_utils.py, vllm/v1/worker/{gpu_worker,utils}.py (0.4.1 to 0.33.0).
"""

from __future__ import annotations

from headcount.verify.logs.patterns import NUMBER, SIZE, WHOLE, Pattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.verify.logs.start import Start

REFUSED = "start refused: "
# Words of a line -> the figure that keeps it.
SAID = (
    ("No available memory for the cache blocks", "refused_empty"),
    ("CUDA out of memory", "out_of_memory"),
)
PATTERNS = (
    Pattern(
        "can be stored in KV cache", rf"tokens that can be stored in KV cache \({WHOLE}\)", "refused_tokens"
    ),
    Pattern("max seq len (", rf"max seq len \({WHOLE}\)", "refused_len"),
    Pattern(
        "KV cache is needed",
        rf"{SIZE} KV cache is needed, which is larger than the available KV cache memory \({SIZE}\)",
        "kv_needed_gib",
        "refused_memory_gib",
    ),
    Pattern("KV cache is needed", rf"{SIZE} KV cache is needed", "kv_needed_gib"),
    # Free memory on device [cuda:0 ](1.5/23.5 GiB) on startup is less than desired GPU memory utilization (0.9, 21.2 GiB)
    Pattern(
        "is less than desired GPU memory utilization",
        rf"\({NUMBER}/{NUMBER} GiB\) on startup is less than desired GPU memory utilization \({NUMBER}, {NUMBER} GiB\)",
        "refused_free",
        "refused_total",
        "refused_share",
        "refused_asked",
    ),
)
FIGURES = ("kv_needed_gib", "refused_tokens", "refused_empty", "refused_free")


def explain_refusal(start: Start) -> str | None:
    """One clause that names the reason; None where the start was not refused."""
    length = f"{start.text('refused_len')} tokens" if start.has("refused_len") else "max_model_len tokens"
    if start.has("refused_tokens"):
        return (
            f"one request of {length} is longer than the {start.text('refused_tokens')} that the cache holds"
        )
    if start.has("kv_needed_gib"):
        there = start.least("refused_memory_gib")
        available = "more than is available" if there is None else f"{there:g} GiB are available"
        reason = (
            f"one request of {length} needs {start.greatest('kv_needed_gib'):g} GiB of cache, {available}"
        )
        fits = start.count("estimated_max_len")
        return reason if fits is None else f"{reason}, {fits} tokens would fit"
    if start.has("refused_empty"):
        there = start.least("kv_memory_gib")
        left = "" if there is None else f": {there:g} GiB after weights and activations"
        return f"no memory was left for the cache{left}"
    if start.has("refused_free"):
        free, total, share, asked = (
            start.text(f"refused_{name}") for name in ("free", "total", "share", "asked")
        )
        return f"{free} of {total} GiB were free, utilization {share} asks for {asked} GiB"
    return None
