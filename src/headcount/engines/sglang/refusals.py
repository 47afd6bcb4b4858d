"""What SGLang refuses: model types that it has no cache for, heads and widths that do not divide."""

from __future__ import annotations

from headcount.engines.base import head_refusal, width_refusal
from headcount.spec.attention import StateSpace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.engines.base import Layout
    from headcount.spec.model import ModelSpec

VOCAB_MULTIPLE = 64
# No encoder-decoder text model has a class in srt/models of 0.5.23 (Whisper has one).
ABSENT = ("t5", "mt5", "umt5", "marian", "pegasus", "bart", "mbart")
# Types with recurrent states that 0.5.23 has a pool for (srt/configs/hybrid_arch.py). The fallback to transformers'
# own code cannot serve any other: it replaces attention, not recurrent layers.
STATES = (
    "falcon_h1",
    "falcon_mamba",
    "granitemoehybrid",
    "kimi_linear",
    "lfm2",
    "lfm2_moe",
    "mamba",
    "mamba2",
    "nemotron_h",
    "qwen3_5_moe_text",
    "qwen3_5_text",
    "qwen3_next",
)
# Types without a class of their own in srt/models of 0.5.23: they run on transformers' code.
FALLBACK = (
    "bloom",
    "falcon",
    "gpt_neo",
    "gpt_neox",
    "mpt",
    "nemotron",
    "seed_oss",
    "smollm3",
)


def sglang_refusal(model: ModelSpec, layout: Layout) -> str | None:
    """Why SGLang cannot run ``layout``: type, stages, heads, vocabulary, widths."""
    if model.family in ABSENT:
        return f"SGLang does not serve model type {model.family}"
    if model.family not in STATES and any(
        isinstance(m, StateSpace) for layer, _ in model.layer_runs() for m in layer.mixers
    ):
        return f"SGLang has no state pool for model type {model.family}"
    mixers = [mixer for layer, _ in model.layer_runs() for mixer in layer.mixers]
    if mixers and all(isinstance(mixer, StateSpace) for mixer in mixers):
        return "how SGLang sizes its pools for a model without attention is not known"
    if layout.pp > len(model.layers):
        return f"{len(model.layers)} layers cannot make {layout.pp} stages"
    return head_refusal(model, layout.tp) or width_refusal(model, layout.tp, vocab_multiple=VOCAB_MULTIPLE)
