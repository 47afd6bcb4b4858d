"""What llama.cpp does not serve, by name: architectures its converter has not, caches that are not modelled, splits."""

from __future__ import annotations

from headcount.spec.attention import CompressedLatent, CrossAttention

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.engines.base import Layout
    from headcount.spec.model import ModelSpec

# Model types without a class in conversion/*.py of 0c1e57098.
ABSENT = (
    "codegen",
    "cwm",
    "gpt_neo",
    "gptj",
    "helium",
    "longcat_flash",
    "mllama_text_model",
    "olmo_hybrid",
    "opt",
    "persimmon",
    "recurrent_gemma",
    "vaultgemma",
    "zamba2",
)


def llamacpp_refusal(model: ModelSpec, layout: Layout) -> str | None:
    """Why llama.cpp cannot run ``layout``; None when it can."""
    if model.encoder is not None:
        return f"llama.cpp's server does not serve encoder-decoder models ({model.family})"
    if model.family in ABSENT:
        return f"llama.cpp does not have model type {model.family}"
    for layer, _ in model.layer_runs():
        for mixer in layer.mixers:
            if isinstance(mixer, CompressedLatent | CrossAttention):
                return f"llama.cpp's cache of {mixer.kind} attention ({model.family}) is not modelled"
    if layout.tp > 1:
        return "llama.cpp divides a model by layers (pipeline stages); its row and tensor splits are not modelled"
    if layout.pp > len(model.layers) + 1:
        return f"{len(model.layers)} layers and the output cannot make {layout.pp} stages"
    return None
