"""The catalogue files themselves: complete, unambiguous, sourced, equal to published totals."""

from __future__ import annotations

import datetime
import json
import os
import re
from typing import Any

import pytest

import headcount.spec

FOLDER = os.path.join(os.path.dirname(headcount.spec.__file__), "catalogue")
FIELDS = {
    "name",
    "aliases",
    "source",
    "as_of",
    "published_parameters",
    "published_source",
    "transformers_parameters",
    "transformers_version",
    "config",
}
OPTIONAL_FIELDS = {"transformers_language_parameters"}


def _load(stem: str) -> dict[str, Any]:
    with open(os.path.join(FOLDER, stem + ".json"), encoding="utf-8") as file:
        entry: dict[str, Any] = json.load(file)
    return entry


STEMS = sorted(name[:-5] for name in os.listdir(FOLDER) if name.endswith(".json") and name != "index.json")
ENTRIES = {stem: _load(stem) for stem in STEMS}
SPELLINGS = {word.lower() for entry in ENTRIES.values() for word in [entry["name"], *entry["aliases"]]}

# Sizes and generations that a reader of any serving text will type.
_CLASSIC_NAMES = (
    "gpt2 gpt2-medium gpt2-large gpt2-xl gpt-2 opt-125m opt-1.3b opt-6.7b opt-13b opt-30b opt-66b "
    "bloom-560m bloom-7b1 bloom-176b gpt-j-6b gpt-neox-20b pythia-6.9b mpt-7b mpt-30b falcon-7b "
    "falcon-40b falcon-180b falcon3-7b falcon-mamba-7b falcon-h1-7b llama-7b llama-13b llama-30b "
    "llama-65b llama-2-7b llama-2-13b llama-2-70b llama-3-8b llama-3-70b llama-3.1-8b llama-3.1-70b "
    "llama-3.1-405b llama-3.2-1b llama-3.2-3b llama-3.2-11b-vision llama-3.3-70b llama-4-scout "
    "llama-4-maverick codellama-7b codellama-34b tinyllama-1.1b mistral-7b mistral-7b-v0.1 "
    "mistral-7b-instruct-v0.2 mistral-7b-v0.3 mistral-nemo-12b mistral-small-22b mistral-small-24b "
    "mistral-small-3.1-24b mistral-small-3.2-24b mistral-large-123b ministral-8b ministral-3-8b "
    "mixtral-8x7b mixtral-8x22b codestral-22b devstral qwen-7b qwen1.5-7b qwen1.5-14b qwen1.5-72b "
    "qwen1.5-moe-a2.7b qwen2-7b qwen2-72b qwen2.5-0.5b qwen2.5-1.5b qwen2.5-3b qwen2.5-7b qwen2.5-14b "
    "qwen2.5-32b qwen2.5-72b qwen2.5-vl-7b qwen2.5-vl-72b qwq-32b qwen3-0.6b qwen3-1.7b qwen3-4b qwen3-8b "
    "qwen3-14b qwen3-32b qwen3-30b-a3b qwen3-235b-a22b qwen3-coder-480b qwen3-next-80b qwen3-vl-8b "
    "qwen3.5-9b qwen3.6-27b qwen3.6-35b-a3b gemma-2b gemma-7b gemma-2-2b gemma-2-9b gemma-2-27b "
    "gemma-3-270m gemma-3-1b gemma-3-4b gemma-3-12b gemma-3-27b gemma-3n-e2b gemma-3n-e4b gemma-4-31b "
    "gemma-4-26b-a4b phi-1.5 phi-2 phi-3-mini-4k phi-3-mini-128k phi-3-medium-4k phi-3.5-moe phi-4 "
    "phi-4-mini deepseek-v2 deepseek-v2-lite deepseek-v3 deepseek-r1 deepseek-r1-distill-qwen-32b "
    "deepseek-r1-distill-llama-70b deepseek-v3.2-exp deepseek-v4-flash deepseek-v4-pro "
    "deepseek-coder-6.7b gpt-oss-20b gpt-oss-120b glm-4-9b glm-4.5 glm-4.5-air glm-4.6 glm-4.7-flash "
    "glm-5.2 kimi-k2 kimi-linear-48b moonlight-16b minimax-text-01 minimax-m2 granite-3.1-2b "
    "granite-3.1-8b granite-4.0-h-small nemotron-h-8b nemotron-h-47b nemotron-h-56b nemotron-nano-9b-v2 "
    "minitron-8b nemotron-3-super-120b-a12b jamba-v0.1 jamba-1.5-mini mamba-130m mamba-2.8b "
    "codestral-mamba zamba2-7b bamba-9b recurrentgemma-2b recurrentgemma-9b lfm2-1.2b command-r "
    "command-r-plus command-r7b command-a aya-23-8b dbrx yi-6b yi-34b internlm2-7b internlm2.5-7b "
    "internlm3-8b baichuan2-7b chatglm3-6b olmo-7b olmo-2-7b olmo-3-7b olmoe-1b-7b stablelm-2-1.6b "
    "stablelm-3b starcoder starcoder2-3b starcoder2-7b starcoder2-15b smollm2-135m smollm2-360m "
    "smollm2-1.7b smollm3-3b exaone-3.5-7.8b exaone-4.0-32b seed-oss-36b ernie-4.5-21b-a3b hunyuan-a13b "
    "t5-small t5-base t5-large t5-3b t5-11b flan-t5-xl flan-t5-xxl mt5-base bart-base bart-large "
    "bart-large-cnn mbart-large-50 opus-mt-en-de pegasus-large whisper-tiny whisper-base whisper-small "
    "whisper-medium whisper-large-v3 whisper-turbo llava-1.5-7b "
)
CLASSICS = _CLASSIC_NAMES.split()

# Totals that papers, model cards and checkpoint indexes print, typed a second time, apart from the files.
PUBLISHED = {
    "gpt2": 124_439_808,
    "bloom-176b": 176_247_271_424,
    "gpt-neox-20b": 20_554_567_680,
    "pythia-12b": 11_846_072_320,
    "falcon-7b": 6_921_720_704,
    "llama-2-7b": 6_738_415_616,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "gemma-2-9b": 9_241_705_984,
    "qwen2.5-7b": 7_615_616_512,
    "phi-3-mini-4k": 3_821_079_552,
    "smollm2-135m": 134_515_008,
    "gpt-oss-120b": 116_829_156_672,
    "deepseek-v3": 671_026_419_200,
}


def _glm_4_5_extra(width: int, experts: int, expert_width: int, mixture_layers: int, qk_norm: bool) -> int:
    """Multi-token prediction layer of GLM-4.5 plus the router biases of the main mixture layers."""
    heads_width, kv_width, vocabulary = 96 * 128, 8 * 128, 151_552
    attention = 2 * width * heads_width + heads_width + 2 * (width * kv_width + kv_width)
    mixture = (experts + 1) * 3 * width * expert_width + experts * width + experts
    norms = 5 * width + (2 * 128 if qk_norm else 0)
    return attention + mixture + norms + 2 * width**2 + 2 * vocabulary * width + mixture_layers * experts


# published total minus transformers count, to the unit: what the class leaves out or keeps as a buffer
EXCEPTIONS = {
    # one correction bias per routed expert in each of the 58 mixture layers
    "deepseek-v3": 58 * 256,
    "deepseek-r1": 58 * 256,
    "glm-4.5": _glm_4_5_extra(5120, 160, 1536, 89, True),
    "glm-4.5-air": _glm_4_5_extra(4096, 128, 1408, 45, False),
    # prediction layer: gated attention, 512 + 1 experts, routers, projection of 2 x 2048, five norms
    "qwen3-next-80b-a3b": (
        2048 * (2 * 4096 + 2 * 512 + 4096)
        + 2 * 256
        + 513 * 3 * 2048 * 512
        + 2048 * (512 + 1)
        + 2 * 2048**2
        + 5 * 2048
    ),
}


def test_there_are_at_least_100_models() -> None:
    assert len(ENTRIES) >= 100


@pytest.mark.parametrize("stem", STEMS)
def test_fields_are_complete(stem: str) -> None:
    entry = ENTRIES[stem]
    assert set(entry) - OPTIONAL_FIELDS == FIELDS
    assert entry["name"] == stem == stem.lower()
    assert re.fullmatch(r"[a-z0-9][a-z0-9.-]*", stem)
    assert entry["source"].startswith(("published ", "known: "))
    assert datetime.date.fromisoformat(entry["as_of"]) <= datetime.date(2100, 1, 1)
    assert all(alias == alias.strip() and alias for alias in entry["aliases"])


@pytest.mark.parametrize("stem", STEMS)
def test_counts_come_with_their_origin(stem: str) -> None:
    entry = ENTRIES[stem]
    for key in ("published_parameters", "transformers_parameters"):
        assert entry[key] is None or (type(entry[key]) is int and entry[key] > 0)
    assert (entry["published_parameters"] is None) == (entry["published_source"] is None)
    counted = (
        entry["transformers_parameters"] is not None
        or entry.get("transformers_language_parameters") is not None
    )
    assert counted == (entry["transformers_version"] is not None)


@pytest.mark.parametrize("stem", STEMS)
def test_config_is_a_usable_published_config(stem: str) -> None:
    config = ENTRIES[stem]["config"]
    assert isinstance(config["model_type"], str)
    assert config["architectures"] and isinstance(config["architectures"], list)

    def keys(value: Any) -> list[str]:
        if isinstance(value, dict):
            return [*value, *(key for inner in value.values() for key in keys(inner))]
        return [key for inner in value for key in keys(inner)] if isinstance(value, list) else []

    assert not [key for key in keys(config) if key.startswith("_") or key.endswith("token_id")]


def test_names_and_aliases_are_unique_whatever_the_case() -> None:
    words = [word.lower() for entry in ENTRIES.values() for word in [entry["name"], *entry["aliases"]]]
    assert sorted(words) == sorted(set(words))


@pytest.mark.parametrize("name", CLASSICS)
def test_classic_is_present(name: str) -> None:
    assert name in SPELLINGS


@pytest.mark.parametrize("stem", STEMS)
def test_published_total_is_what_the_reference_class_allocates(stem: str) -> None:
    entry = ENTRIES[stem]
    published, counted = entry["published_parameters"], entry["transformers_parameters"]
    if published is not None and counted is not None:
        assert published - counted == EXCEPTIONS.get(stem, 0)
    else:
        assert stem not in EXCEPTIONS


@pytest.mark.parametrize("stem", sorted(PUBLISHED))
def test_known_total(stem: str) -> None:
    assert ENTRIES[stem]["published_parameters"] == PUBLISHED[stem]


@pytest.mark.parametrize("stem", STEMS)
def test_per_layer_lists_cover_every_layer(stem: str) -> None:
    config = ENTRIES[stem]["config"]
    for part in [config, config.get("text_config", {})]:
        layers = part.get("num_hidden_layers")
        for key in ("layer_types", "layers_block_type", "mlp_layer_types", "hybrid_layer_pattern"):
            if isinstance(part.get(key), list):
                assert len(part[key]) == layers, key
        if "hybrid_override_pattern" in part:
            assert len(part["hybrid_override_pattern"]) == layers


def test_plain_mistral_7b_is_the_first_release() -> None:
    """Mistral 7B paper, table 1: dim 4096, 32 layers, 32 heads, 8 KV heads, window 4096, vocabulary 32000."""
    config = ENTRIES["mistral-7b"]["config"]
    assert config["num_hidden_layers"] == 32
    assert config["num_key_value_heads"] == 8
    assert config["vocab_size"] == 32_000
    assert config["sliding_window"] == 4096  # 4096 tokens are seen whole
    assert ENTRIES["mistral-7b-instruct-v0.2"]["config"]["sliding_window"] is None
    assert ENTRIES["mistral-7b-v0.3"]["config"]["vocab_size"] == 32_768


def test_legacy_spellings_are_kept() -> None:
    assert ENTRIES["falcon-7b"]["config"]["multi_query"] is True
    assert "num_kv_heads" not in ENTRIES["falcon-7b"]["config"]
    assert ENTRIES["gpt2"]["config"]["n_embd"] == 768
    assert "attn_config" in ENTRIES["mpt-7b"]["config"]
    assert ENTRIES["bloom-176b"]["config"]["n_embed"] == 14_336
    assert ENTRIES["chatglm3-6b"]["config"]["multi_query_group_num"] == 2
    assert "num_attention_heads" not in ENTRIES["gemma-3-4b"]["config"]["text_config"]
    assert "modules_to_not_convert" in ENTRIES["gpt-oss-120b"]["config"]["quantization_config"]
