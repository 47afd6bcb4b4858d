"""Which module counts the towers of which outer ``model_type``. Only the module that is needed is imported.

A tower that is not here is not counted, and a note says so by name.
"""

from __future__ import annotations

from importlib import import_module

from headcount.errors import UnsupportedModelError
from headcount.spec.huggingface.towers.defaults import Defaults
from headcount.spec.huggingface.towers.parts import UNCOUNTED_TOWER, Wrapper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headcount.spec.model import ModelSpec, TowerSpec

MODULES: dict[str, tuple[str, ...]] = {
    "clip": (
        "aya_vision", "cohere2_vision", "deepseek_vl", "gemma3", "idefics2", "idefics3", "lfm2_vl", "lighton_ocr", "llava",
        "llava_next", "llava_next_video", "llava_onevision", "mistral3", "paligemma", "phi3_v", "shieldgemma2", "smolvlm",
        "vipllava",
    ),
    "qwen": ("qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe"),
    "speech": ("qwen2_5_omni_thinker", "qwen2_audio", "qwen3_asr", "qwen3_omni_moe_thinker", "voxtral"),
    "gemma": ("gemma3n", "gemma4"),
    "glm": ("glm46v", "glm4v", "glm4v_moe"),
    "intern": ("internvl", "internvl_chat", "ovis2"),
    "llama": ("llama4", "mllama"),
    "moonvit": ("kimi_k25", "kimi_vl"),
}  # fmt: skip
# A model that also speaks: engines serve the part that thinks.
THINKERS = {"qwen2_5_omni": "qwen2_5_omni_thinker", "qwen3_omni_moe": "qwen3_omni_moe_thinker"}


def supported_wrappers() -> list[str]:
    """All outer types whose towers can be counted, sorted."""
    return sorted(model_type for types in MODULES.values() for model_type in types)


def read_towers(
    config: dict[str, Any], model_type: str, *, text: dict[str, Any], spec: ModelSpec
) -> tuple[tuple[TowerSpec, ...], tuple[str, ...]]:
    """Return the towers of a multimodal ``config`` around the language model ``spec``, and notes on what is not counted.

    ``text`` is the language model's config. Raises ModelFileError for a value that makes no sense.
    """
    notes: tuple[str, ...] = ()
    if model_type in THINKERS:
        inner = config.get("thinker_config")
        config = inner if isinstance(inner, dict) else config
        notes = (f"of {model_type!r} the thinker is counted; what turns its answer into speech is not",)
        model_type = THINKERS[model_type]
    module = next((name for name, types in MODULES.items() if model_type in types), None)
    if module is None:
        return (), (left_out(model_type), *notes)
    builders = import_module("headcount.spec.huggingface.towers." + module).BUILDERS
    wrapper = Wrapper(config, model_type, text=text, hidden=spec.hidden_size, defaults=Defaults())
    try:
        towers: tuple[TowerSpec, ...] = builders[model_type](wrapper)
    except UnsupportedModelError as error:
        # The language model is known: it is counted, and what is missing is said.
        return (), (f"{error}; {left_out(model_type)}", *notes)
    return towers, (*wrapper.notes, *notes)


def left_out(model_type: str) -> str:
    """The note on a model whose encoders are not known."""
    return f"of {model_type!r} the language model is counted: its vision or audio {UNCOUNTED_TOWER}"
