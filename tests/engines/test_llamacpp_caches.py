"""Caches, cells and model buffers against what llama.cpp itself printed, and against public logs.

``data/llamacpp_printed.json`` says how it was made. Printed to 0.01 MiB: equality is of that text.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from headcount.engines.llamacpp.builds import Build, build
from headcount.engines.llamacpp.caches import Cache, cache_bytes, total_cache_bytes
from headcount.engines.llamacpp.options import cache_type, default_options
from headcount.engines.llamacpp.weights import placed_weights
from headcount.errors import UnsupportedModelError, UsageError
from headcount.spec.huggingface.config import spec_from_config
from headcount.spec.model import ModelSpec
from headcount.spec.reader import read_model
from headcount.units import MIB

with open(
    os.path.join(os.path.dirname(__file__), "data", "llamacpp_printed.json"), encoding="utf-8"
) as _file:
    PRINTED: dict[str, Any] = json.load(_file)
GROUPS = ("files", "shapes", "architectures")
MODELS = [(group, name) for group in GROUPS for name in PRINTED[group]]


def printed_model(group: str, name: str) -> ModelSpec:
    return spec_from_config(PRINTED[group][name]["config"], name=name, source="printed", overrides={})


def caches_of(model: ModelSpec, asked: dict[str, Any], rules: Build) -> tuple[Cache, ...]:
    options = default_options(
        unified=asked.get("unified", False),
        ubatch=asked.get("ubatch", 512),
        swa_full=asked.get("swa_full", False),
        flash=asked.get("fa", 1) == 1,
        key=cache_type(asked.get("k", "f16")),
        value=cache_type(asked.get("v", "f16")),
    )
    return cache_bytes(model, asked["n_ctx"], asked.get("slots", 1), options=options, rules=rules)


@pytest.mark.parametrize(("group", "name"), MODELS)
def test_caches_are_those_that_were_printed(group: str, name: str) -> None:
    model = printed_model(group, name)
    # Files converted before the latent cache: today's rules of cells, full keys and values.
    rules = build().replace(latent=not name.endswith("-before-mla"))
    for row in PRINTED[group][name]["rows"]:
        ours = sorted(
            (cache.cells, f"{cache.key_bytes / MIB:.2f}", f"{cache.value_bytes / MIB:.2f}")
            for cache in caches_of(model, row["asked"], rules)
        )
        theirs = sorted(
            (line["cells"], f"{line['k_mib']:.2f}", f"{line['v_mib']:.2f}") for line in row["caches"]
        )
        assert ours == theirs, row["asked"]


@pytest.mark.parametrize(
    ("name", "mix", "file_bytes"),
    [
        # Sum over the tensors of the file.
        ("gemma-3-270m-q4_k_m", "q4_k_m", 246_587_904),
        ("SmolLM2-135M-Instruct.Q4_1", "q4_1", 96_576_768),
    ],
)
def test_named_mixes_give_the_bytes_of_real_files(name: str, mix: str, file_bytes: int) -> None:
    placed = placed_weights(printed_model("files", name), mix)
    assert placed.file_bytes == file_bytes
    # The CPU's buffers: every tensor once, the tied table included, in whole 32 bytes.
    assert sum(PRINTED["files"][name]["model_mib"]) == pytest.approx(file_bytes / MIB, abs=0.02)


@pytest.mark.parametrize(
    ("model", "mix", "file_bytes"),
    [
        # Published Meta-Llama-3-8B Q4_K_M: 4.92 GB, of which 7.8 MB is the vocabulary.
        ("llama-3-8b", "q4_k_m", 4_912_898_048),
        # Published gpt-oss-20b-mxfp4.gguf: 12,109,566,560 B, header and vocabulary included.
        ("gpt-oss-20b", "auto", 12_109_566_560),
    ],
)
def test_published_files(model: str, mix: str, file_bytes: int) -> None:
    assert placed_weights(read_model(model), mix).file_bytes == pytest.approx(file_bytes, rel=0.0015)


def test_llama_3_8b_q4_k_m_to_the_byte() -> None:
    assert placed_weights(read_model("llama-3-8b"), "q4_k_m").file_bytes == 4_912_898_048


# (source, config of a shape, n_ctx, slots, unified, version, printed MiB)
LOGS = [
    ("lmstudio-bug-tracker 1862: 16384.00 + 598.50", "qwen3.6-27b", 262144, 4, True, "2026-04-26", 16982.5),
    ("llama.cpp 22546: 8192.00 + 50.25", "qwen3.5-9b", 262144, 1, False, "2026-05-01", 8242.25),
    ("lmstudio-bug-tracker 1454", "deepseek-r1-before-mla", 16384, 1, False, "2025-04-01", 78080.0),
    ("llama.cpp 12369", "qwq-32b", 32768, 1, False, "2025-03-13", 8192.0),
    ("Llama-3-8B, n_ctx 8192", "llama3-8b", 8192, 1, False, "2024-05-20", 1024.0),
]


@pytest.mark.parametrize("log", LOGS, ids=[log[0] for log in LOGS])
def test_public_logs(log: tuple[str, str, int, int, bool, str, float]) -> None:
    _, name, n_ctx, slots, unified, version, mib = log
    found = cache_bytes(
        printed_model("shapes", name),
        n_ctx,
        slots,
        options=default_options(unified=unified),
        rules=build(version),
    )
    assert total_cache_bytes(found) / MIB == mib


@pytest.mark.parametrize(
    ("slots", "n_ctx", "mib"), [(1, 4096, 27), (2, 4096, 42), (4, 4096, 72), (8, 4096, 72), (1, 8192, 39)]
)
def test_sliding_cells_multiply_with_the_slots(slots: int, n_ctx: int, mib: int) -> None:
    """gemma-3-270m under llama-server --parallel N: table of unsloth pull request 5225 (2026-05)."""
    model = printed_model("files", "gemma-3-270m-q4_k_m")
    assert total_cache_bytes(cache_bytes(model, n_ctx, slots, rules=build("2026-05-03"))) == mib * MIB


def test_older_builds_round_otherwise() -> None:
    """gpt-oss, n_ctx 2000: 2016 cells and 640 sliding ones in intel/AI-Playground #325 (2025), no flash attention."""
    model = printed_model("shapes", "gpt-oss-20b")
    plain = default_options(flash=False)
    old = cache_bytes(model, 2000, options=plain, rules=build("2025-08-10"))
    new = cache_bytes(model, 2000, options=plain, rules=build())
    assert [cache.cells for cache in old] == [2016, 640]
    assert [cache.cells for cache in new] == [2048, 768]


def test_windows_are_honoured_where_llama_cpp_does() -> None:
    """Mistral's window is not read by llama.cpp: every cell is kept."""
    config = {
        "model_type": "mistral", "sliding_window": 4096, "hidden_size": 4096, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000,
        "max_position_embeddings": 32768,
    }  # fmt: skip
    model = spec_from_config(config, name="mistral-7b-v0.1", source="test", overrides={})
    assert [(cache.name, cache.cells) for cache in cache_bytes(model, 32768)] == [("KV", 32768)]


def test_builds_without_the_small_cache_keep_every_cell() -> None:
    model = printed_model("shapes", "gemma3-27b")
    assert [cache.cells for cache in cache_bytes(model, 32768, rules=build("2025-05-01"))] == [32768]


@pytest.mark.parametrize(
    ("types", "model"), [(("q8_0", "f16"), "deepseek-v2-lite"), (("q8_0", "q8_0"), "olmo-odd")]
)
def test_types_that_llama_cpp_refuses(types: tuple[str, str], model: str) -> None:
    """Latents take one type (llama_init_from_model); a block must divide the head."""
    if model == "olmo-odd":
        spec = read_model("layers=2,hidden=80,heads=4,kv_heads=4,ffn=96,vocab=256")
    else:
        spec = printed_model("shapes", model)
    options = default_options(key=cache_type(types[0]), value=cache_type(types[1]))
    with pytest.raises(UsageError, match=r"llama\.cpp refuses"):
        cache_bytes(spec, 1024, options=options)


def test_quantised_values_need_flash_attention() -> None:
    with pytest.raises(UsageError, match="flash attention"):
        default_options(kv="q8_0", flash=False)


def test_a_cache_without_a_rule_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match="not modelled"):
        cache_bytes(read_model("t5-base"), 512)


@pytest.mark.parametrize(
    ("version", "date"), [("b9401", "2026-05-29"), ("4621", "2025-02-03"), ("0c1e57098", "2026-10-01")]
)
def test_builds_are_dated(version: str, date: str) -> None:
    assert build(version).date == date


@pytest.mark.parametrize("version", ["", "latest", "b0", "b99999", "deadbeef0", "2026-13-01"])
def test_versions_that_are_none(version: str) -> None:
    if version:
        with pytest.raises(UsageError, match="b7000"):
            build(version)
    else:
        assert build(version) == build()
