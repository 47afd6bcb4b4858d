"""Engines whose logs are told apart and not read. Add a row, or better, a reader."""

from __future__ import annotations

# Name, and words of its start-up lines that no engine read here prints.
OTHERS = (
    (
        "Text Generation Inference (TGI)",
        ("text_generation_launcher", "text_generation_router", "Setting max batch total tokens to"),
    ),
    (
        "LMDeploy",
        ("lmdeploy - ", "[TM][INFO]", "[TM][WARNING]", "`session_len` truncated", "turbomind_engine"),
    ),
    (
        "Aphrodite",
        (
            "Initializing Aphrodite Engine",
            "Initializing the Aphrodite Engine",
            "aphrodite.endpoints",
            "Aphrodite to use",
        ),
    ),
    ("MLC LLM", ("mlc_llm", "Estimated KVCacheConfig")),
    ("ExLlama / TabbyAPI", ("exllamav2", "exllamav3", "TabbyAPI")),
    ("vllm.rs / xinfer", ("max usable kvcache tokens", "KVCache Allocation:")),
    ("Transformers continuous batching", ("PagedAttentionMemoryHandler", "PagedAttentionCache")),
)
# A fork of vLLM prints vLLM's wordings with other rules behind them: its lines are not taken for vLLM's.
FORKS = ("Aphrodite",)
