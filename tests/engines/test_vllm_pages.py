"""Pages, groups and blocks against the answers of vLLM 0.33.0's own planner (tests/engines/data/README.md)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from headcount.engines.vllm_groups import CacheLayer
from headcount.engines.vllm_pages import (
    align_hybrid_block,
    attention_layer,
    latent_layer,
    plan_pages,
    rules_for,
    state_layer,
)
from headcount.errors import HeadcountError, UnknownNameError

DATA = Path(__file__).parent / "data"
CASES = [
    json.loads(line)
    for line in gzip.decompress((DATA / "vllm_planner_cases.jsonl.gz").read_bytes()).splitlines()
]
# Bytes per number and bytes of scales per head and token (vLLM: two fp32 scales in token-head formats).
BYTES = {"bfloat16": (2, 0), "float16": (2, 0), "float32": (4, 0), "fp8": (1, 0), "fp8_e4m3": (1, 0)}
KINDS = {"full_attention": "full", "sliding_window": "sliding", "chunked_local": "chunked"}
SPECS = {
    "FullAttentionSpec": "full",
    "SlidingWindowSpec": "sliding",
    "ChunkedLocalAttentionSpec": "chunked",
    "MLAAttentionSpec": "mla",
    "MambaSpec": "mamba",
    "UniformTypeKVCacheSpecs": "uniform",
}


def cache_layer(raw: dict[str, Any]) -> CacheLayer:
    if raw["kind"] == "mamba":
        return state_layer(
            block_size=raw["block_size"],
            state_bytes=raw["state_bytes"],
            page_bytes=raw["page_padded_bytes"] or 0,
            speculative_blocks=raw["speculative_blocks"],
        )
    number = BYTES[raw["kv_dtype"]][0]
    if raw["kind"] == "mla":
        return latent_layer(
            block_size=raw["block_size"],
            width=raw["latent_width"],
            token_bytes=raw["latent_width"] * number,
            dtype=raw["kv_dtype"],
        )
    return attention_layer(
        KINDS[raw["kind"]],
        block_size=raw["block_size"],
        heads=raw["kv_heads_per_rank"],
        widths=(raw["head_size"], raw["head_size_v"]),
        token_bytes=raw["kv_heads_per_rank"] * (raw["head_size"] + raw["head_size_v"]) * number,
        dtype=raw["kv_dtype"],
        reach=raw.get("window", raw.get("chunk", 0)),
    )


@pytest.mark.parametrize("case", CASES, ids=[str(number) for number in range(len(CASES))])
def test_planner_case(case: dict[str, Any]) -> None:
    layers = [(cache_layer(run["layer"]), run["count"]) for run in case["layers"]]
    expected = case["expect"]
    options = {"hybrid_manager": case["hybrid_manager"], "mamba_cache_mode": case["mamba_cache_mode"]}
    if expected.get("refused"):
        with pytest.raises(HeadcountError):
            plan_pages(layers, engine_version=case["engine_version"], **options)
        return
    plan = plan_pages(layers, engine_version=case["engine_version"], **options)
    got = sorted([group.kind, group.layer_count, group.block_size, group.page_bytes] for group in plan.groups)
    assert got == sorted([SPECS[name], *rest] for name, *rest in expected["groups"])
    assert plan.bytes_per_block == expected["bytes_per_block"]
    blocks = plan.num_blocks(case["available_bytes"])
    tokens, flight = case["max_model_len"], case["max_in_flight_tokens"]
    assert blocks == expected["num_blocks"]
    assert plan.concurrency(blocks, tokens, flight) == pytest.approx(expected["max_concurrency"], rel=1e-12)
    assert plan.kv_tokens(blocks, tokens, flight) == expected["kv_tokens"]
    assert plan.needed_bytes(tokens, flight) == expected["need_bytes"]
    assert plan.fits(case["available_bytes"], tokens, flight) == expected["fits"]


def test_qwen3_next_block_is_544_tokens() -> None:
    # vLLM logs "Setting attention block size to 544 tokens" for this model.
    block = align_hybrid_block(
        attention_bytes_per_token=2_048, state_bytes=1_097_728, kernel_block=16, block_size=16
    )
    assert (block.block_size, block.page_bytes) == (544, 1_114_112)


def test_rules_follow_the_release() -> None:
    assert rules_for("0.19.1").default_utilization == 0.90
    assert rules_for("0.21.0").default_utilization == 0.92
    assert rules_for("0.20.0").cuda_graphs_counted != "yes"
    assert rules_for("0.21.0").cuda_graphs_counted == "yes"
    with pytest.raises(UnknownNameError):
        rules_for("newest")
