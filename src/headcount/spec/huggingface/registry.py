"""Which module builds which ``model_type``. Only the module that is needed is imported.

A type that is not here is refused by name: its layers may remember something that headcount cannot price.
"""

from __future__ import annotations

from importlib import import_module

from headcount.errors import UnsupportedModelError, nearest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headcount.spec.huggingface.keys import Keys
    from headcount.spec.model import ModelSpec

MODULES: dict[str, tuple[str, ...]] = {
    "dense": (
        "apertus", "arcee", "baichuan", "chatglm", "cohere", "cohere2", "cwm", "ernie4_5", "exaone", "exaone4", "gemma",
        "gemma2", "gemma3_text", "glm", "glm4", "glm4v_text", "granite", "helium", "hunyuan_v1_dense", "internlm2",
        "internlm3", "llama", "ministral", "ministral3", "mistral", "nemotron", "olmo", "olmo2", "olmo3", "phi3", "qwen",
        "qwen2", "qwen2_5_omni_text", "qwen2_5_vl_text", "qwen2_vl_text", "qwen3", "qwen3_vl_text", "seed_oss", "smollm3",
        "starcoder2", "vaultgemma",
    ),
    "classic": (
        "bloom", "codegen", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "mpt", "opt", "persimmon",
        "phi", "stablelm",
    ),
    "mixture": (
        "cohere2_moe", "dbrx", "dots1", "ernie4_5_moe", "exaone_moe", "glm4_moe", "glm4v_moe_text", "gpt_oss",
        "granitemoe", "granitemoeshared", "hunyuan_v1_moe", "llama4_text", "mimo_v2_flash", "minimax_m2", "mixtral",
        "olmoe", "phimoe", "qwen2_moe", "qwen3_moe", "qwen3_omni_moe_text", "qwen3_vl_moe_text", "solar_open",
    ),
    "latent": (
        "deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_v4", "glm4_moe_lite", "glm_moe_dsa", "kimi_k2",
        "longcat_flash", "mistral4", "youtu",
    ),
    "state_space": ("bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "mamba", "mamba2", "nemotron_h", "zamba2"),
    "linear": (
        "kimi_linear", "lfm2", "lfm2_moe", "minimax", "olmo_hybrid", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next",
        "recurrent_gemma",
    ),
    "per_layer": ("gemma3n_text", "gemma4_text", "gemma4_unified_text", "mllama_text_model"),
    "encoder_decoder": ("bart", "marian", "mbart", "mt5", "pegasus", "t5", "umt5", "whisper"),
}  # fmt: skip

# Encoder-only types keep nothing between requests: the transformer runs them (``encoder_only``), no planner counts them.
ENCODERS = ("bert", "distilbert", "roberta")

# Spellings that older files use for the same class.
RENAMED = {
    "RefinedWeb": "falcon",
    "RefinedWebModel": "falcon",
    "qwen2_5": "qwen2",
    "gptneox": "gpt_neox",
    "gpt-neox": "gpt_neox",
    "gpt-j": "gptj",
    "gemma3_causal": "gemma3_text",
    "deepseek": "deepseek_v2",
    "mistral_text": "mistral",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "llama4": "llama4_text",
    # Flat multimodal configs: the language model's keys are at the top.
    "phi3_v": "phi3",
}


def supported_types() -> list[str]:
    """All model types that can be built, sorted."""
    return sorted(model_type for types in MODULES.values() for model_type in types)


def builder(model_type: str) -> Callable[[Keys], ModelSpec]:
    """Return the function that turns a config of ``model_type`` into a ModelSpec.

    Raises UnsupportedModelError naming the type and the nearest supported ones.
    """
    for module, types in MODULES.items():
        if model_type in types:
            found: Callable[[Keys], ModelSpec] = import_module(
                "headcount.spec.huggingface." + module
            ).BUILDERS[model_type]
            return found
    if model_type in ENCODERS:
        raise UnsupportedModelError(
            f"model type {model_type!r} is an encoder: it keeps no cache, so there are no conversations to fit"
        )
    close = nearest(model_type, supported_types())
    raise UnsupportedModelError(
        f"model type {model_type[:60]!r} is not supported: its layer kinds and cache rules are not known"
        + (f"; nearest supported types: {', '.join(close)}" if close else "")
    )
