"""Translate a GGUF header into a Hugging Face style config, so that one set of builders serves both formats.

    general.architecture -> model_type        <architecture>.block_count -> num_hidden_layers        ...

The other direction of llama.cpp's converters (``conversion/*.py``, 2026-11). An architecture that is not
listed is refused by name, as is a file whose tensors do not fit its architecture.
"""

from __future__ import annotations

from importlib import import_module

from headcount.errors import UnsupportedModelError, nearest
from headcount.spec.checkpoint import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headcount.spec.checkpoint import Checkpoint

# Only the module that is needed is imported.
MODULES: dict[str, tuple[str, ...]] = {
    "gguf_dense": (
        "apertus", "arcee", "baichuan", "cohere2", "command-r", "ernie4_5", "exaone", "exaone4", "gemma",
        "gemma2", "gemma3", "glm4", "granite", "hunyuan-dense", "internlm2", "llama", "minicpm", "mistral3",
        "nemotron", "olmo", "olmo2", "phi3", "qwen2", "qwen2vl", "qwen3", "qwen3vl", "seed_oss", "smollm3",
        "starcoder2",
    ),
    "gguf_classic": (
        "bloom", "chatglm", "falcon", "gpt2", "gptneox", "mpt", "phi2", "stablelm", "starcoder",
    ),
    "gguf_mixture": (
        "deepseek", "deepseek2", "deepseek32", "ernie4_5-moe", "glm4moe", "gpt-oss", "granitemoe",
        "hunyuan-moe", "llama4", "olmoe", "phimoe", "qwen2moe", "qwen3moe", "qwen3vlmoe",
    ),
    "gguf_recurrent": (
        "falcon-h1", "granitehybrid", "jamba", "lfm2", "lfm2moe", "mamba", "mamba2", "nemotron_h",
        "nemotron_h_moe", "qwen35", "qwen35moe", "qwen3next",
    ),
    "gguf_per_layer": ("gemma3n", "gemma4"),
    "gguf_encoder_decoder": ("t5",),
}  # fmt: skip


def supported_architectures() -> list[str]:
    """All values of ``general.architecture`` that can be translated, sorted."""
    return sorted(name for names in MODULES.values() for name in names)


def gguf_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return a Hugging Face style config (``model_type``, ``num_hidden_layers``, ...) of a GGUF checkpoint.

    Raises UnsupportedModelError for an architecture or variant that is not known, naming it, and
    ModelFileError when a needed key or tensor is missing or contradicts another.
    """
    from headcount.spec.gguf_facts import Facts, architecture_of

    name = architecture_of(checkpoint)
    kind = checkpoint.metadata.get("general.type", "model")
    if kind != "model":
        raise UnsupportedModelError(f"GGUF file holds {shown(kind)} (general.type), not a model")
    module = next((module for module, names in MODULES.items() if name in names), None)
    if module is None:
        close = nearest(name, supported_architectures())
        hint = "nearest: " + ", ".join(close) if close else f"known: {', '.join(supported_architectures())}"
        raise UnsupportedModelError(f"GGUF architecture {shown(name)} is not supported; {hint}")
    translate = import_module("headcount.spec." + module).translate
    if module == "gguf_encoder_decoder":
        config: dict[str, Any] = translate(checkpoint)
        return config
    facts = Facts(checkpoint)
    config = translate(facts)
    # Gemma 4's full layers have wider heads, its cache-sharing layers may have a wider feed-forward.
    facts.refuse_unexplained(varied=("attn_", "ffn_") if name == "gemma4" else ())
    return config


def stored_parameters(checkpoint: Checkpoint, config: dict[str, Any]) -> int:
    """Count the numbers a GGUF file stores that are parameters of the model in ``config``.

    Left out: rotary tables, scales, drafting layers, the router's correction (a buffer, except in ERNIE), Gemma 4's
    output scale (a buffer), a head that the class ties, projections stored in a second form or never used. Where the result is
    not the parameter count of the model built from ``config``, file and config disagree.
    """
    from headcount.spec.gguf_facts import LEARNED_SCALES, Facts, is_parameter

    names = {tensor.name for tensor in checkpoint.tensors}
    buffers = {"layer_output_scale.weight"}
    if config["model_type"] != "ernie4_5_moe":
        buffers.add("exp_probs_b.bias")
    if any(name.endswith(".attn_kv_b.weight") for name in names):
        buffers |= {"attn_k_b.weight", "attn_v_b.weight"}
    if config["model_type"] != "gemma4_text":
        buffers.update(LEARNED_SCALES)
    if config.get("tie_word_embeddings"):
        buffers.add("output.weight")
    layers = None if config["model_type"] in ("t5", "umt5") else Facts(checkpoint).layer_count
    # Apertus' activation learns two numbers per layer, which the file keeps as metadata.
    elsewhere = 2 * config["num_hidden_layers"] if config["model_type"] == "apertus" else 0
    sharing = config.get("num_kv_shared_layers", 0)
    own = layers - sharing if layers is not None and sharing else None
    stored = (tensor for tensor in checkpoint.tensors if is_parameter(tensor.name, buffers, layers, own))
    return elsewhere + sum(tensor.elements for tensor in stored)
