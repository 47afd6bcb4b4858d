"""Every tower: its parameters equal the reference class's own, built without allocating weights, modality by modality.

Each multimodal class is built from small random configs (every size and flag of the encoder drawn) and from its encoder's class
defaults, around a language model of two narrow layers.
"""

from __future__ import annotations

import copy
import random
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from headcount.spec.huggingface.config import spec_from_config
from headcount.spec.huggingface.towers.defaults import Defaults
from headcount.spec.huggingface.towers.gemma import MOBILENET_V5_300M
from headcount.spec.huggingface.towers.registry import supported_wrappers
from headcount.spec.model import ModelSpec

pytestmark = pytest.mark.reference

# Their code lies in model repositories; see test_towers.py for the published totals they reproduce.
REMOTE = {"internvl_chat", "kimi_vl", "phi3_v"}
# Needs timm; its audio half is compared below.
PARTIAL = {"gemma3n"}
WRAPPERS = [name for name in supported_wrappers() if name not in REMOTE | PARTIAL]
SEEDS = range(5)

PLAIN_TEXT = {
    "hidden_size": 96,
    "intermediate_size": 112,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 160,
    "head_dim": 24,
}
# Keys of text configs that the plain ones do not cover.
TEXT = {
    "kimi_k25": {
        **{k: v for k, v in PLAIN_TEXT.items() if k != "head_dim"},
        "num_key_value_heads": 4,
        "kv_lora_rank": 16,
        "q_lora_rank": 24,
        "n_routed_experts": 8,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    },
    "llama4": {**PLAIN_TEXT, "intermediate_size_mlp": 128, "num_local_experts": 2},
    "mllama": {
        **{k: v for k, v in PLAIN_TEXT.items() if k != "head_dim"},
        "cross_attention_layers": [1],
        "pad_token_id": 0,
    },
    "gemma4": {
        **PLAIN_TEXT,
        "global_head_dim": 32,
        "hidden_size_per_layer_input": 8,
        "num_kv_shared_layers": 0,
    },
    "lfm2_vl": {**PLAIN_TEXT, "layer_types": ["conv", "full_attention"]},
}
HEADS = (
    "num_attention_heads",
    "num_heads",
    "attention_heads",
    "encoder_attention_heads",
    "conf_num_attention_heads",
)
WIDTHS = ("hidden_size", "embed_dim", "d_model")
FIXED = {
    "num_channels",
    "in_channels",
    "num_key_value_heads",
    "multi_modal_projector_bias",
    "vocab_size",
    "mlp_ratio",
}


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


def drawn(defaults: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """Small values for the size keys of an encoder; flags at random; a width that its heads divide."""
    heads = draw.choice([1, 2, 4])
    patch, side = draw.choice([2, 3, 4]), draw.randint(2, 5)
    out: dict[str, Any] = {}
    for key, value in defaults.items():
        if key in FIXED or key.startswith(("sscp", "subsampling")):
            continue
        if key in HEADS:
            out[key] = heads
        elif key in WIDTHS:
            out[key] = 4 * heads * draw.randint(2, 6)
        elif key in ("patch_size", "image_size"):
            size = patch if key == "patch_size" else patch * side
            out[key] = [size, size] if isinstance(value, list) else size
        elif key == "deepstack_visual_indexes":
            out[key] = list(range(draw.randint(1, 3)))
        elif key == "norm_type":
            out[key] = draw.choice(["layer_norm", "rms_norm"])
        elif isinstance(value, bool):
            out[key] = draw.random() < 0.5
        elif key == "merge_kernel_size":
            out[key] = [draw.randint(1, 3)] * 2
        elif isinstance(value, int):
            small = key.endswith("layers") or key == "depth"
            out[key] = draw.randint(1, 3) if small else value if value < 6 else 4 * draw.randint(3, 9)
    return out


def consistent(wrapper: str, config: dict[str, Any]) -> dict[str, Any]:
    """Keys that a class takes as given once another is set."""
    vision, audio = config.get("vision_config"), config.get("audio_config")
    if vision and wrapper == "llama4" and "hidden_size" in vision:
        # Pixel shuffle by two on either side puts four patches together.
        vision["projector_input_dim"] = vision["projector_output_dim"]
    if vision and wrapper == "gemma4":
        vision.pop("num_key_value_heads", None)
        vision["num_key_value_heads"] = vision.get("num_attention_heads", 12)
    if vision and wrapper == "lfm2_vl":
        vision.pop("image_size", None)
    if vision and wrapper == "kimi_k25" and "hidden_size" in vision:
        config["projection_hidden_size"] = vision["hidden_size"]
        vision["pos_emb_width"] = vision["pos_emb_height"]
    if audio and wrapper == "gemma4":
        audio["subsampling_conv_channels"] = [8, 4]
    if vision and wrapper == "ovis2" and "vocab_size" not in vision:
        vision["vocab_size"] = 40
    return config


def configs(wrapper: str) -> list[dict[str, Any]]:
    """The encoder's defaults, then random ones."""
    table = Defaults()
    found = []
    for seed in (None, *SEEDS):
        draw = random.Random(f"{wrapper} {seed}")
        config: dict[str, Any] = {"model_type": wrapper}
        text = dict(TEXT.get(wrapper, PLAIN_TEXT))
        config["text_config"] = text
        for name in ("vision_config", "audio_config"):
            kind = table.encoder_type(wrapper, name)
            if not kind:
                continue
            config[name] = {} if seed is None else drawn(table.keys(kind, {}).defaults, draw)
            if wrapper in ("llava", "mistral3", "gemma3") and seed is not None and seed % 2:
                kind = draw.choice(["clip_vision_model", "siglip_vision_model", "pixtral"])
                config[name] = {"model_type": kind, **drawn(table.keys(kind, {}).defaults, draw)}
        if seed is not None:
            for key, value in table.wrapper(wrapper).items():
                if isinstance(value, bool):
                    config[key] = draw.random() < 0.5
            if wrapper in ("llava", "vipllava", "mistral3") and seed % 2:
                config["vision_feature_layer"] = [-1] * draw.randint(1, 3)
            if wrapper == "ovis2":
                config["hidden_size"] = text["hidden_size"]
            if wrapper == "idefics2":
                config["perceiver_config"] = {
                    "hidden_size": text["hidden_size"],
                    "resampler_n_latents": draw.randint(2, 9),
                    "resampler_depth": draw.randint(1, 3),
                    "resampler_n_heads": 4,
                    "num_key_value_heads": 2,
                    "resampler_head_dim": 8,
                }
        found.append(consistent(wrapper, config))
    return found


def reference_class(wrapper: str) -> Any:
    import transformers
    from transformers.models.auto import modeling_auto

    for table in ("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES"):
        name = getattr(modeling_auto, table, {}).get(wrapper)
        if name:
            return getattr(transformers, name if isinstance(name, str) else name[0])
    return getattr(
        transformers,
        {
            "qwen2_5_omni_thinker": "Qwen2_5OmniThinkerForConditionalGeneration",
            "qwen3_omni_moe_thinker": "Qwen3OmniMoeThinkerForConditionalGeneration",
            "qwen2_audio": "Qwen2AudioForConditionalGeneration",
            "voxtral": "VoxtralForConditionalGeneration",
            "qwen3_asr": "Qwen3ASRForConditionalGeneration",
            "shieldgemma2": "ShieldGemma2ForImageClassification",
        }[wrapper],
    )


def reference(wrapper: str, config: dict[str, Any]) -> tuple[Any, dict[str, int]]:
    """The class's config and its parameters: ``text``, ``vision`` and ``audio``, projectors with their encoder."""
    import torch
    from transformers import CONFIG_MAPPING

    plain = {key: value for key, value in copy.deepcopy(config).items() if key != "model_type"}
    with quiet(), torch.device("meta"):
        settings = CONFIG_MAPPING[wrapper](**plain)
        model = reference_class(wrapper)(settings)
    counts = {"text": 0, "vision": 0, "audio": 0}
    for name, parameter in model.named_parameters():
        if re.search(r"(^|\.)(language_model|text_model|lm_head)\.", name):
            side = "text"
        elif "audio" in name or wrapper in ("qwen2_audio", "voxtral", "qwen3_asr"):
            side = "audio"
        else:
            side = "vision"
        counts[side] += parameter.numel()
    return settings, counts


def towers(spec: ModelSpec) -> dict[str, int]:
    counts = {"vision": 0, "audio": 0}
    for tower in spec.towers:
        counts[tower.kind] += tower.parameters
    return counts


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_towers_equal_the_reference(wrapper: str) -> None:
    for config in configs(wrapper):
        settings, expected = reference(wrapper, config)
        # Text types that the class fills in are taken from it, so that both read one language model.
        text = {**settings.get_text_config().to_dict(), "model_type": settings.get_text_config().model_type}
        spec = spec_from_config({**config, "text_config": text}, name=wrapper, source="test")
        assert towers(spec) == {"vision": expected["vision"], "audio": expected["audio"]}, config


def test_gemma3n_audio_and_embedders() -> None:
    import torch
    from transformers import CONFIG_MAPPING
    from transformers.models.gemma3n.modeling_gemma3n import Gemma3nAudioEncoder, Gemma3nMultimodalEmbedder

    draws: list[dict[str, Any]] = [
        {},
        {
            "hidden_size": 64,
            "conf_num_attention_heads": 4,
            "conf_num_hidden_layers": 3,
            "input_feat_size": 80,
        },
        {"hidden_size": 48, "conf_num_attention_heads": 2, "conf_conv_kernel_size": 7, "vocab_size": 32},
        {"sscp_conv_channel_size": [16, 8], "sscp_conv_kernel_size": [[3, 3], [5, 5]], "hidden_size": 32},
    ]
    for audio in draws:
        with quiet(), torch.device("meta"):
            settings = CONFIG_MAPPING["gemma3n"](audio_config=audio, text_config={"hidden_size": 512})
            modules = (
                Gemma3nAudioEncoder(settings.audio_config),
                Gemma3nMultimodalEmbedder(settings.audio_config, settings.text_config),
            )
            image = Gemma3nMultimodalEmbedder(settings.vision_config, settings.text_config)
        expected = sum(p.numel() for module in modules for p in module.parameters())
        config = {
            "model_type": "gemma3n",
            "text_config": {"hidden_size": 512},
            "audio_config": audio,
            "vision_config": {},
        }
        found = towers(spec_from_config(config, name="x", source="test"))
        assert found["audio"] == expected, audio
        assert found["vision"] == MOBILENET_V5_300M + sum(p.numel() for p in image.parameters())


def test_defaults_are_those_of_the_classes() -> None:
    import json

    from transformers import CONFIG_MAPPING

    table = Defaults()
    with quiet():
        for wrapper in [*WRAPPERS, *PARTIAL]:
            settings = CONFIG_MAPPING[wrapper]()
            for name in ("vision_config", "audio_config"):
                inner = getattr(settings, name, None)
                if inner is None:
                    continue
                assert table.encoder_type(wrapper, name) == inner.model_type
                values = json.loads(type(inner)().to_json_string(use_diff=False))
                for key, value in table.keys(inner.model_type, {}).defaults.items():
                    assert values[key] == value, (wrapper, key)
            own = json.loads(settings.to_json_string(use_diff=False))
            for key, value in table.wrapper(wrapper).items():
                assert own[key] == value, (wrapper, key)
