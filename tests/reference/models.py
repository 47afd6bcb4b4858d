"""The reference side: which transformers class stands for a model type, its parameters, and a tiny running copy.

Everything heavy is imported inside the functions, so that collecting the default tests needs no torch.
"""

from __future__ import annotations

import importlib
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Supported types that transformers 5.24.0 has no class for: their code lives in the model repositories.
NO_REFERENCE_CLASS = {
    "baichuan": "remote code only (baichuan-inc)",
    "chatglm": "remote code only (THUDM, zai-org); the later glm and glm4 types have a class",
    "internlm2": "remote code only (internlm)",
    "qwen": "remote code only (Qwen 1)",
}

# Types that another type's class builds: Kimi K2 is DeepSeek-V3 under its own name.
CONFIG_OF = {"kimi_k2": "deepseek_v3"}

# The class, where AutoModelForCausalLM would take another (an encoder-decoder's decoder alone) or knows none.
CLASS = {
    "bart": "bart.BartForConditionalGeneration",
    "marian": "marian.MarianMTModel",
    "mbart": "mbart.MBartForConditionalGeneration",
    "mistral4": "mistral4.Mistral4ForCausalLM",
    "mllama_text_model": "mllama.MllamaForCausalLM",
    "mt5": "mt5.MT5ForConditionalGeneration",
    "pegasus": "pegasus.PegasusForConditionalGeneration",
    "t5": "t5.T5ForConditionalGeneration",
    "umt5": "umt5.UMT5ForConditionalGeneration",
    "whisper": "whisper.WhisperForConditionalGeneration",
}

# The text half of a multimodal model has no head of its own: the wrapper adds V x D, unless tied.
HEADLESS = {
    "glm4v_moe_text": "glm4v_moe.Glm4vMoeTextModel",
    "glm4v_text": "glm4v.Glm4vTextModel",
    "qwen2_5_omni_text": "qwen2_5_omni.Qwen2_5OmniThinkerTextModel",
    "qwen2_5_vl_text": "qwen2_5_vl.Qwen2_5_VLTextModel",
    "qwen2_vl_text": "qwen2_vl.Qwen2VLTextModel",
    "qwen3_omni_moe_text": "qwen3_omni_moe.Qwen3OmniMoeThinkerTextModel",
    "qwen3_vl_moe_text": "qwen3_vl_moe.Qwen3VLMoeTextModel",
    "qwen3_vl_text": "qwen3_vl.Qwen3VLTextModel",
}

ENCODER_DECODERS = ("bart", "marian", "mbart", "mt5", "pegasus", "t5", "umt5", "whisper")


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the reference's own warnings out of a suite in which warnings are errors."""
    import transformers

    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers.logging.set_verbosity(level)


def config_class(model_type: str) -> Any:
    from transformers import CONFIG_MAPPING

    return CONFIG_MAPPING[CONFIG_OF.get(model_type, model_type)]


def reference_config(model_type: str, keys: dict[str, Any]) -> Any:
    """The class's config object; ``keys`` without ``model_type``."""
    with quiet():
        return config_class(model_type)(**json.loads(json.dumps(keys)))


def spelled_out(model_type: str, config: Any) -> dict[str, Any]:
    """Every key of the config object, as a config.json that leaves nothing out would hold them."""
    full = json.loads(json.dumps(config.to_dict(), default=str))
    return {**full, "model_type": model_type}


def is_tied(config: Any) -> bool:
    """Whether the head shares the embedding; a text config that says nothing leaves it untied."""
    return bool(getattr(config, "tie_word_embeddings", False))


def build(model_type: str, config: Any) -> Any:
    """Instantiate the reference class (under a ``torch.device`` of the caller's choice)."""
    from transformers import AutoModelForCausalLM

    path = CLASS.get(model_type) or HEADLESS.get(model_type)
    if path is None:
        return AutoModelForCausalLM.from_config(config)
    package, name = path.split(".")
    module = importlib.import_module(f"transformers.models.{package}.modeling_{package}")
    return getattr(module, name)(config)


def reference_parameters(model_type: str, config: Any) -> int:
    """Sum of ``p.numel()`` over unique parameters of the class built without storage."""
    import torch

    with quiet(), torch.device("meta"):
        model = build(model_type, config)
    unique = {id(parameter): parameter for parameter in model.parameters()}
    count = sum(parameter.numel() for parameter in unique.values())
    if model_type in HEADLESS and not is_tied(config):
        count += config.vocab_size * config.hidden_size
    return count - unused_expert_weights(model_type, config)


def unused_expert_weights(model_type: str, config: Any) -> int:
    """LongCat-Flash's class allocates gate and up for each expert that only returns its input.

    No checkpoint holds them, so they are taken off the reference's count: layers x zero experts x 2 D F.
    """
    if model_type != "longcat_flash":
        return 0
    one = 2 * config.hidden_size * config.expert_ffn_hidden_size
    return int(config.num_layers * config.zero_expert_num * one)
