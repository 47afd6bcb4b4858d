"""Hostile model files and numbers: each is refused by name, at once, in little memory; none becomes another model."""

from __future__ import annotations

import json
import os
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from headcount.cost.weights import weight_bytes
from headcount.errors import HeadcountError, ModelFileError, UsageError
from headcount.ledger import Ledger, Term
from headcount.spec import catalogue
from headcount.spec.huggingface.config import language_model, parse_config, spec_from_config
from headcount.spec.huggingface.keys import divisors
from headcount.spec.inline import read_inline
from headcount.spec.module_names import matches
from headcount.spec.quantization import read_quantization
from headcount.spec.reader import read_model
from headcount.units import parse_bytes, parse_count, parse_fraction, parse_price

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
    "vocab_size": 32000,
}


def built(config: dict[str, Any], **changes: Any) -> Any:
    return spec_from_config({**config, **changes}, name="x", source="test")


def published(name: str) -> dict[str, Any]:
    found = catalogue.entry(name)
    assert found is not None
    config: dict[str, Any] = found["config"]
    return config


# Numbers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["79,2GiB", "79,250,1GiB", "0,500GiB", "1,2,3", ",500", "1,", "\u0663", "1e308", "2PB"]
)
def test_sizes_that_are_not_read(text: str) -> None:
    # 79,2 is 79.2 to half of the world; reading it as 792 would be silent.
    with pytest.raises(UsageError, match="--memory"):
        parse_bytes(text, what="--memory")


@pytest.mark.parametrize(
    ("text", "count"), [("1,000", 1000), ("12,345,678", 12_345_678), ("1_000", 1000), ("128k", 128_000)]
)
def test_thousands_are_read(text: str, count: int) -> None:
    assert parse_count(text, what="--context") == count


@pytest.mark.parametrize("text", ["1,39", "1,390", "1e308", "1e-300", "0", "-1", "nan"])
def test_prices_that_are_not_read(text: str) -> None:
    with pytest.raises(UsageError, match="--price"):
        parse_price(text, what="--price")


def test_a_decimal_comma_is_no_fraction() -> None:
    with pytest.raises(UsageError, match="'0,5'"):
        parse_fraction("0,5", what="--reserve")


@pytest.mark.parametrize("count", ["7", "7e8", "7e11"])
def test_nominal_parameters_of_another_magnitude(count: str) -> None:
    ten = int(float(count)) if count != "7e8" else 70_000_000
    with pytest.raises(UsageError, match="order of magnitude"):
        read_model("llama-2-7b", nominal_parameters=ten)
    assert read_model("llama-2-7b", nominal_parameters=7_000_000_000).nominal_parameters == 7_000_000_000


# Messages -----------------------------------------------------------------------------------------


def test_messages_never_drive_the_terminal() -> None:
    text = str(HeadcountError("a\x1b[31mred\nline \udcff \u200e end"))
    assert text.isprintable()
    assert text.startswith("a\\x1b[31mred line")


def test_replace_keeps_a_ledger_a_ledger() -> None:
    term = Term(name="n", symbol="n", value=1, unit="B")
    ledger = Ledger(name="a", terms=(term,), parts=(Ledger(name="b"),)).replace(name="c")
    assert ledger.terms == (term,)
    assert ledger.as_dict()["name"] == "c"


# Files that are not files -------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".json", ".gguf", ".safetensors"])
def test_pipes_devices_and_loops(tmp_path: Path, suffix: str) -> None:
    pipe, device, loop = (tmp_path / (name + suffix) for name in ("pipe", "device", "loop"))
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    loop.symlink_to(loop)
    for path in (pipe, device):
        with pytest.raises(ModelFileError, match="not a regular file"):
            read_model(str(path))
    with pytest.raises(ModelFileError, match="symbolic links"):
        read_model(str(loop))


def test_a_pipe_called_config_json(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ModelFileError, match="not a regular file"):
        read_model(str(tmp_path))


@pytest.mark.parametrize("entry", ["{}", "[[]]", '{"a":{}}'])
def test_a_config_of_a_million_entries(entry: str) -> None:
    raw = ('{"model_type":"llama","x":[' + (entry + ",") * 600_000 + "1]}").encode()
    with pytest.raises(ModelFileError, match="entries is no config"):
        parse_config(raw, "config.json")


def test_an_adapter_beside_the_config_of_its_base(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    header = json.dumps(
        {"lora_A": {"dtype": "BF16", "shape": [8, 4096], "data_offsets": [0, 65536]}}
    ).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(65536))
    with pytest.raises(ModelFileError, match="32,768 numbers, its config describes a model of 6,738,415,616"):
        read_model(str(tmp_path))


# Configs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["big", 2.5, -1, [], [["a"]], True])
@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("dbrx", "attn_config"),
        ("dbrx", "ffn_config"),
        ("kimi-linear-48b-a3b", "linear_attn_config"),
        ("gemma-3-12b", "text_config"),
    ],
)
def test_a_group_of_keys_that_is_no_object(name: str, key: str, value: Any) -> None:
    # Passed over, the class defaults would answer: 2.6 billion parameters for Gemma 3 12B.
    with pytest.raises(ModelFileError, match=f"{key} must be an object"):
        built(published(name), **{key: value})


@pytest.mark.parametrize("value", [2.5, [], {"a": 1}, True])
def test_a_model_type_that_is_no_text(value: Any) -> None:
    with pytest.raises(ModelFileError, match="model_type must be text"):
        built(published("deepseek-v3.2"), model_type=value)


def test_wrappers_in_wrappers() -> None:
    config = LLAMA
    for _ in range(40):
        config = {"model_type": "llava", "text_config": config}
    with pytest.raises(ModelFileError, match="nested more than"):
        language_model(config)


def test_a_config_without_sizes_says_that_they_are_defaults() -> None:
    # liuhaotian/llava-v1.5-7b states neither: its language model is the Llama class's default, 7B.
    spec = built({"model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": 32064}})
    assert any("class defaults of 'llama'" in note for note in spec.notes)
    assert not any("class defaults" in note for note in built(LLAMA).notes)


@pytest.mark.parametrize("wrapper", ["minicpmv", "deepseek_vl_v2", "fuyu"])
def test_an_encoder_that_is_left_out_is_said(wrapper: str) -> None:
    spec = built({"model_type": wrapper, "vision_config": {}, "text_config": LLAMA})
    assert any("encoder is not" in note for note in spec.notes)


@pytest.mark.parametrize("kind", ["sliding_attention", "chunked_attention"])
def test_layers_that_keep_an_unknown_number_of_tokens(kind: str) -> None:
    config = {**LLAMA, "model_type": "qwen3", "layer_types": [kind] * 32, "sliding_window": None}
    if kind == "chunked_attention":
        with pytest.raises(ModelFileError, match="attention_chunk_size"):
            built(config)
    else:
        # The class runs such layers without a window: they keep everything.
        assert {mixer.kind for layer in built(config).layers for mixer in layer.mixers} == {"full"}


@pytest.mark.parametrize("value", ["", "big", "gated-", "gated-big", "relu-gelu"])
def test_t5_activations(value: str) -> None:
    with pytest.raises(ModelFileError, match="feed_forward_proj"):
        built(published("flan-t5-base"), feed_forward_proj=value)


def test_an_empty_state_dtype() -> None:
    with pytest.raises(ModelFileError, match="mamba_ssm_cache_dtype"):
        built(published("nemotron-3-nano-30b-a3b"), mamba_ssm_cache_dtype="")


def test_two_thousand_million_heads_are_refused_at_once() -> None:
    begin = time.monotonic()
    with pytest.raises(UsageError, match="query heads must be a multiple"):
        spec_from_config(
            {**LLAMA, "num_attention_heads": 2**31, "hidden_size": 2**31},
            name="x",
            source="test",
            overrides={"kv_heads": 3},
        )
    assert time.monotonic() - begin < 2
    assert divisors(36) == [1, 2, 3, 4, 6, 9, 12, 18, 36]
    assert divisors(1) == [1]


# Quantisation -------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["fp8", "", [], 5, False])
def test_a_quantisation_that_is_no_object(value: Any) -> None:
    with pytest.raises(ModelFileError, match="quantization_config must be an object"):
        read_quantization({"quantization_config": value})


@pytest.mark.parametrize("value", ["big", 128, [128], [128, 128, 128], {}])
def test_block_sizes(value: Any) -> None:
    with pytest.raises(ModelFileError, match="weight_block_size"):
        read_quantization({"quantization_config": {"quant_method": "fp8", "weight_block_size": value}})


@pytest.mark.parametrize("value", ["lm_head", 5, {"a": 1}, ["lm_head", None]])
def test_a_list_of_exceptions_that_is_none(value: Any) -> None:
    with pytest.raises(ModelFileError, match="must be a list of module names"):
        read_quantization({"quantization_config": {"quant_method": "fp8", "ignored_layers": value}})


@pytest.mark.parametrize(
    "entry", ["re:(.+)+$x", "re:(([a-z_.0-9]+)+)+!", "re:(a|a)*b", "re:.*.*.*.*.*x", "re:" + "a" * 600]
)
def test_patterns_that_may_never_end(entry: str) -> None:
    with pytest.raises(ModelFileError, match="may never end"):
        matches("model.layers.0.self_attn.q_proj", (entry,))


def test_long_lists_of_exceptions_are_looked_up() -> None:
    paths = tuple(f"model.layers.{i % 40}.mlp{i}" for i in range(100_000))
    begin = time.monotonic()
    assert not any(matches(f"model.layers.{i}.mlp.up_proj", paths) for i in range(300))
    assert matches("model.layers.7.mlp7", paths)
    assert time.monotonic() - begin < 2
    with pytest.raises(ModelFileError, match="patterns in one list"):
        matches("a", tuple(f"*{i}" for i in range(10_000)))


# Descriptions -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("layers=32,hidden=4096,kv_heads=8", "needs heads and hidden"),
        ("layers=32,hidden=4096,heads=32,ffn=11008,vocab=32000,top_k=2", "go together"),
        ("layers=32,hidden=4096,heads=32,ffn=11008,vocab=32000,experts=8", "go together"),
    ],
)
def test_descriptions_that_would_be_guessed(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_inline(text)


def test_parameters_are_not_known_without_query_heads() -> None:
    assert not read_inline(
        "layers=32,hidden=4096,kv_heads=8,head_dim=128,ffn=11008,vocab=32000"
    ).parameters_known
    assert read_inline("layers=32,hidden=4096,heads=32,kv_heads=8,ffn=11008,vocab=32000").parameters_known


@pytest.mark.parametrize("absent", ["", None])
@pytest.mark.parametrize("name", ["deepseek-v3.2", "qwen3-8b", "gpt-oss-20b"])
def test_a_type_found_by_its_architecture_is_the_same_model(name: str, absent: str | None) -> None:
    config = published(name)
    same, other = built(config), built(config, model_type=absent)
    assert weight_bytes(other) == weight_bytes(same)
    assert other.layers == same.layers
