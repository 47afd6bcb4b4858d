"""Layouts that transformers runs: one GPU, or tensor parallelism where its plan divides whole heads.

Model types whose ``base_model_tp_plan`` in 5.24.0 divides q, k, v, o, gate, up and down, and nothing else. Others have a
plan of their own shape (fused projections, experts) or none, and what a rank then caches was not compared.
"""

from __future__ import annotations

from headcount.cost.cache import mixer_runs
from headcount.spec.attention import HeadedAttention

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.engines.base import Layout
    from headcount.spec.model import ModelSpec

# fmt: off
DIVIDED = frozenset((
    "cohere", "cohere2", "cwm", "ernie4_5", "exaone", "exaone4", "gemma", "gemma2", "gemma3_text",
    "granite", "helium", "internlm3", "llama", "ministral", "ministral3", "mistral", "olmo", "olmo2",
    "olmo3", "qwen2", "qwen2_5_omni_text", "qwen2_5_vl_text", "qwen2_vl_text", "qwen3", "seed_oss",
    "smollm3", "vaultgemma",
))
# fmt: on


def layout_refusal(model: ModelSpec, layout: Layout) -> str | None:
    """Why the layout is not modelled, None where it is."""
    if model.encoder is not None:
        return "an encoder's working memory in transformers is not modelled"
    if layout.pp > 1:
        return "transformers places layers on devices without a pipeline; that is not modelled"
    if layout.tp == 1:
        return None
    if model.family not in DIVIDED:
        return f"what transformers' tensor-parallel plan does to the cache of {model.family} is not known"
    for mixer, _ in mixer_runs(model):
        if not isinstance(mixer, HeadedAttention):
            continue
        if mixer.num_attention_heads % layout.tp:
            return f"{mixer.num_attention_heads} query heads do not divide by {layout.tp}"
        if mixer.num_key_value_heads % layout.tp:
            return f"{mixer.num_key_value_heads} key/value heads do not divide by {layout.tp}"
    return None
