"""Pages, groups and blocks against the answers of vLLM 0.33.0's own planner (tests/engines/data/README.md)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from headcount.engines.vllm.groups import CacheLayer
from headcount.engines.vllm.pages import (
    PagePlan,
    align_hybrid_block,
    attention_layer,
    in_flight_tokens,
    latent_layer,
    plan_pages,
    plan_stages,
    state_layer,
)
from headcount.engines.vllm.rules import RULES, rules_for
from headcount.errors import LayoutError, UnknownNameError, UnsupportedModelError, UsageError
from headcount.verify.planner_cases import cache_layer, judge_case

GIB = 2**30
DATA = Path(__file__).parent / "data"
CASES = [
    json.loads(line)
    for line in gzip.decompress((DATA / "vllm_planner_cases.jsonl.gz").read_bytes()).splitlines()
]
SPECS = {
    "FullAttentionSpec": "full",
    "SlidingWindowSpec": "sliding",
    "ChunkedLocalAttentionSpec": "chunked",
    "MLAAttentionSpec": "mla",
    "MambaSpec": "mamba",
    "UniformTypeKVCacheSpecs": "uniform",
    "CrossAttentionSpec": "cross",
}


@pytest.mark.parametrize("case", CASES, ids=[str(number) for number in range(len(CASES))])
def test_planner_case(case: dict[str, Any]) -> None:
    outcome = judge_case(case, "case")
    assert outcome.exact, (outcome.predicted, outcome.reported, outcome.reason)
    if case["expect"].get("refused"):
        return
    plan = plan_pages(
        [(cache_layer(run["layer"]), run["count"]) for run in case["layers"]],
        engine_version=case["engine_version"],
        hybrid_manager=case["hybrid_manager"],
        mamba_cache_mode=case["mamba_cache_mode"],
    )
    got = sorted([group.kind, group.layer_count, group.block_size, group.page_bytes] for group in plan.groups)
    assert got == sorted([SPECS[name], *rest] for name, *rest in case["expect"]["groups"])


def test_qwen3_next_block_is_544_tokens() -> None:
    # vLLM logs "Setting attention block size to 544 tokens" for this model.
    block = align_hybrid_block(
        attention_bytes_per_token=2_048, state_bytes=1_097_728, kernel_block=16, block_size=16
    )
    assert (block.block_size, block.page_bytes) == (544, 1_114_112)


Runs = list[tuple[CacheLayer, int]]


def bf16(
    kind: str, heads: int, width: int, value_width: int = 0, *, block: int = 16, reach: int = 0
) -> CacheLayer:
    widths = (width, value_width or width)
    return attention_layer(
        kind,
        block_size=block,
        heads=heads,
        widths=widths,
        token_bytes=2 * heads * sum(widths),
        dtype="bfloat16",
        reach=reach,
    )


def gemma3() -> Runs:
    sliding, full = bf16("sliding", 16, 128, reach=1024), bf16("full", 16, 128)
    return [*[(sliding, 5), (full, 1)] * 10, (sliding, 2)]


def llama4() -> Runs:
    return [(bf16("chunked", 8, 128, reach=8192), 3), (bf16("full", 8, 128), 1)] * 12


def qwen3_next(state_block: int) -> Runs:
    state = state_layer(block_size=state_block, state_bytes=1_097_728, page_bytes=1_114_112)
    return [(state, 3), (bf16("full", 2, 256, block=544), 1)] * 12


def mimo_v2() -> Runs:
    full, sliding = bf16("full", 4, 192, 128), bf16("sliding", 8, 192, 128, reach=128)
    return [(full, 1), *[(sliding, 4), (full, 1)] * 8, (sliding, 7)]


def latent(width_bytes: int, identity: str = "") -> CacheLayer:
    return latent_layer(block_size=64, width=576, token_bytes=width_bytes, dtype="fp8", identity=identity)


LLAMA3 = bf16("full", 8, 128)
LLAMA3_FP8 = attention_layer(
    "full", block_size=16, heads=8, widths=(128, 128), token_bytes=2_048, dtype="fp8"
)
GPT_OSS = [(bf16("sliding", 8, 64, reach=128), 1), (bf16("full", 8, 64), 1)]
GEMMA2 = [(bf16("sliding", 8, 256, reach=4096), 1), (bf16("full", 8, 256), 1)]
GEMMA4 = [(bf16("sliding", 4, 256, reach=512), 5), (bf16("full", 4, 512), 1)]
NARROW = [(bf16("sliding", 1, 72, reach=512), 1), (bf16("full", 4, 128), 1)]
# What the named file leaves to its case names: (layers, options of plan_pages). Windows of GEMMA4, NARROW: read off R.
NAMED: dict[str, tuple[Runs, dict[str, Any]]] = {
    "Llama-3-8B bf16": ([(LLAMA3, 32)], {}),
    "Llama-3-8B fp8": ([(LLAMA3_FP8, 32)], {}),
    "Mistral-7B-v0.1": ([(bf16("sliding", 8, 128, reach=4096), 32)], {}),
    "Gemma-2-9B": (GEMMA2 * 21, {}),
    "Gemma-3-27B": (gemma3(), {}),
    "same, in-flight": (gemma3(), {}),
    "same, hybrid": (gemma3(), {"hybrid_manager": False}),
    "gpt-oss-120b": (GPT_OSS * 18, {}),
    "gpt-oss-20b": ([*GPT_OSS * 12, (GPT_OSS[1][0], 1)], {}),
    "Llama-4-Scout 36": (llama4(), {"hybrid_manager": False}),
    "Llama-4-Scout, hybrid enabled": (llama4(), {}),
    "Qwen3-Next-80B 36 GDN + 12 full(2x256), attention block 544, mamba mode none": (qwen3_next(262_144), {}),
    "Qwen3-Next-80B 36 GDN + 12 full(2x256), attention block 544, mamba mode align": (
        qwen3_next(544),
        {"mamba_cache_mode": "align"},
    ),
    "DeepSeek-V3 MLA": ([(latent(1_152), 61)], {}),
    "DeepSeek-V3.2": ([(latent(656), 1), (latent(132, "indexer"), 1)] * 61, {}),
    "Gemma-4-like": (GEMMA4 * 5, {}),
    "MiMo-V2-Flash": (mimo_v2(), {}),
    "page sizes that do not divide": (NARROW * 4, {}),
    "DCP 4": ([(bf16("full", 1, 128), 80)], {"context_shards": 4}),
}
NAMED_CASES = json.loads((DATA / "vllm_planner_named.json").read_text())
STAGE_CASES = json.loads((DATA / "vllm_planner_stages.json").read_text())


def answers(plan: PagePlan, available: int, tokens: int, flight: int, encoder: int = 0) -> dict[str, Any]:
    blocks = plan.num_blocks(available)
    return {
        "groups": [[g.kind, g.layer_count, g.block_size, g.page_bytes] for g in plan.groups],
        "bytes_per_block": plan.bytes_per_block,
        "num_blocks": blocks,
        "kv_tokens": plan.kv_tokens(blocks, tokens, flight, encoder_tokens=encoder),
        "max_concurrency": plan.concurrency(blocks, tokens, flight, encoder_tokens=encoder),
        "need_bytes": plan.needed_bytes(tokens, flight, encoder_tokens=encoder),
        "fits": plan.fits(available, tokens, flight, encoder_tokens=encoder),
    }


def expected_answers(raw: dict[str, Any]) -> dict[str, Any]:
    groups = [[SPECS[name], *rest] for name, *rest in raw["groups"]]
    keys = ("bytes_per_block", "num_blocks", "kv_tokens", "need_bytes", "fits")
    concurrency = pytest.approx(raw["max_concurrency"], rel=1e-12)
    return {"groups": groups, "max_concurrency": concurrency, **{key: raw[key] for key in keys}}


@pytest.mark.parametrize("case", NAMED_CASES, ids=[case["case"] for case in NAMED_CASES])
def test_named_model(case: dict[str, Any]) -> None:
    (name,) = [name for name in NAMED if case["case"].startswith(name)]
    layers, options = NAMED[name]
    plan = plan_pages(layers, **{"hybrid_manager": True, "mamba_cache_mode": "none", **options})
    got = answers(plan, case["available"], case["max_model_len"], case["max_in_flight_tokens"])
    assert got == expected_answers(case)


@pytest.mark.parametrize("case", STAGE_CASES, ids=[case["case"] for case in STAGE_CASES])
def test_pipeline_stages_and_packed_layouts(case: dict[str, Any]) -> None:
    layers = [cache_layer(run["layer"]) for run in case["layers"] for _ in range(run["count"])]
    stages: list[Runs] = []
    for count in case["stage_layers"]:
        stages.append([(layer, 1) for layer in layers[:count]])
        del layers[:count]
    plans = plan_stages(
        stages,
        hybrid_manager=case["hybrid_manager"],
        mamba_cache_mode=case["mamba_cache_mode"],
        block_outermost=case["block_outermost"],
        context_shards=case.get("dcp", 1),
    )
    asked = (case["available_bytes"], case["max_model_len"], case["max_in_flight_tokens"])
    encoder = case.get("encoder_tokens", 0)
    for plan, expected in zip(plans, case["expect"], strict=True):
        assert answers(plan, *asked, encoder) == expected_answers(expected)


def test_a_mix_with_latent_layers_is_refused_by_name() -> None:
    with pytest.raises(LayoutError, match="latent"):
        plan_pages(
            [(latent(656), 4), (bf16("chunked", 8, 128, block=64, reach=8192), 4)],
            hybrid_manager=True,
            mamba_cache_mode="none",
        )


@pytest.mark.parametrize("window", [1, 4, 5, 15, 16, 17, 128, 130])
@pytest.mark.parametrize("batches", [1, 2])
def test_decoding_sliding_layer_holds_what_its_window_touches(window: int, batches: int) -> None:
    # By counting: before a step that writes token n, tokens older than the window of the oldest unfinished step go.
    block = 16
    plan = plan_pages(
        [(bf16("sliding", 8, 128, reach=window), 1)], hybrid_manager=True, mamba_cache_mode="none"
    )
    most = 0
    for cached in range(1, 400):
        oldest = max(0, cached - (window - 1 + batches))
        most = max(most, len({token // block for token in range(oldest, cached)}))
        assert plan.resident_blocks(cached, batches_in_flight=batches) >= most
    assert plan.resident_blocks(400, batches_in_flight=batches) == most


def test_live_conversations_leave_the_null_block_out() -> None:
    plan = plan_pages([(LLAMA3, 32)], hybrid_manager=True, mamba_cache_mode="none")
    # 8,192 tokens hold 512 blocks: 30,720 blocks are 60 of them, one short without the null block.
    assert plan.live_conversations(30_720, 8_192) == 59
    assert plan.live_conversations(30_721, 8_192) == 60


def test_longest_request_is_the_last_that_starts() -> None:
    plan = plan_pages(gemma3(), hybrid_manager=False, mamba_cache_mode="none")
    available = 64_424_509_440  # the named case refuses 131,072 tokens here
    longest = plan.longest_request(available, 131_072, 16_384)
    assert plan.fits(available, longest, 16_384)
    assert not plan.fits(available, longest + 1, 16_384)


def test_in_flight_tokens_by_release() -> None:
    assert in_flight_tokens(8_192) == 16_384
    assert in_flight_tokens(8_192, pipeline_stages=2) == 24_576
    assert in_flight_tokens(8_192, pipeline_stages=2, runner_v2=False) == 16_384
    assert in_flight_tokens(8_192, async_scheduling=False) == 8_192
    assert in_flight_tokens(8_192, engine_version="0.25.1") == 8_192


def test_group_size_by_release() -> None:
    # 12 sliding and 13 full layers: 13 a group since 0.14.1, 12 (one layer alone in a third group) before.
    layers, _ = NAMED["gpt-oss-20b"]
    counts = {}
    for version in ("0.11.2", "0.14.1", "0.33.0"):
        plan = plan_pages(layers, hybrid_manager=True, mamba_cache_mode="none", engine_version=version)
        counts[version] = [group.layer_count for group in plan.groups]
    assert counts == {"0.11.2": [12, 7, 6], "0.14.1": [12, 13], "0.33.0": [12, 13]}


def test_older_releases_without_a_rule_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"0\.8\.5"):
        plan_pages(qwen3_next(544), hybrid_manager=True, mamba_cache_mode="none", engine_version="0.8.5")
    with pytest.raises(UnknownNameError, match="all"):
        plan_pages(qwen3_next(544), hybrid_manager=True, mamba_cache_mode="all")
    with pytest.raises(UnknownNameError):
        rules_for("0.3.3")
    assert rules_for("0.34.1") is RULES["0.33.0"]


def test_turboquant_slots_and_plain_ends() -> None:
    """The release's own example sizes: 3-bit keys and values of width 128 take 50 + 52 = 102 bytes a head (config.py)."""
    from headcount.engines import Case, Layout, Settings, engine
    from headcount.hardware import accelerator
    from headcount.spec.kv_format import kv_format
    from headcount.spec.reader import read_model

    assert kv_format("turboquant_3bit_nc").pair_bytes(1, 128, 128) == 102
    assert kv_format("turboquant_k8v4").pair_bytes(8, 128, 128) == 8 * (128 + 64 + 4)
    case = Case(
        model=read_model("llama-3.1-8b"),
        accelerator=accelerator("h100-80gb"),
        layout=Layout(),
        context=8192,
        settings=Settings(kv="turboquant_3bit_nc"),
    )
    pool = engine("vllm").pool(case, 60 * 2**30)
    # 28 packed layers of 8 x 102 B; four layers of 4,096 B whose 16 tokens fill a page of ceil(65,536 / 13,056) x 16 = 96
    # packed tokens, 78,336 B. Groups of four: 7 of ceil(8,192 / 96) = 86 blocks and one of 512.
    assert pool.blocks == 60 * 2**30 // (4 * 78_336)
    assert pool.needed_bytes == (7 * 86 + 512) * 4 * 78_336
    with pytest.raises(UsageError, match=r"0\.20\.0 is the first"):
        engine("vllm", "0.19.0").pool(case, 2**30)


@pytest.mark.parametrize(
    ("kv", "model", "last_without", "first"),
    [
        ("int8_per_token_head", "llama-3.1-8b", "0.19.1", "0.20.0"),
        ("int4_per_token_head", "llama-3.1-8b", "0.24.0", "0.25.0"),
        ("nvfp4", "llama-3.1-8b", "0.19.1", "0.20.0"),
        ("nvfp4", "glm-5.2", "0.29.0", "0.30.0"),
    ],
)
def test_a_cache_format_begins_with_its_release(kv: str, model: str, last_without: str, first: str) -> None:
    """Choices of --kv-cache-dtype (config/cache.py CacheDType) in both releases; a nightly build may have them before."""
    from headcount.engines import Settings, engine
    from headcount.spec.reader import read_model

    spec, settings = read_model(model), Settings(kv=kv)
    assert engine("vllm", first).kv_format_name(spec, settings)
    assert engine("vllm", f"{last_without}rc1.dev9").kv_format_name(spec, settings)
    with pytest.raises(UsageError, match=f"{first} is the first release with it"):
        engine("vllm", last_without).kv_format_name(spec, settings)


def start(
    model: str, card: str, version: str, *, tp: int = 1, context: int = 8192, **settings: Any
) -> tuple[Any, Any]:
    from headcount.engines import Case, Layout, Settings, engine
    from headcount.hardware import accelerator
    from headcount.spec.reader import read_model

    case = Case(
        model=read_model(model),
        accelerator=accelerator(card),
        layout=Layout(tp=tp),
        context=context,
        settings=Settings(**settings),
    )
    return engine("vllm", version), case


def test_a_state_is_one_block_unless_prefixes_are_cached() -> None:
    """A 0.13.0 start (two L40S, fp8 KV, 17.58 GiB): 767,552 tokens, 84.29 requests of 32,768; blocks of 1,072 tokens."""
    settings: dict[str, Any] = {"kv": "fp8", "arguments": (("enable-prefix-caching", "false"),)}
    vllm, case = start("qwen3-next-80b-a3b", "l40s", "0.13.0", tp=2, context=32768, **settings)
    pool = vllm.pool(case, round(17.58 * GIB))
    assert (pool.tokens, pool.block_tokens) == (767_552, 1072)
    assert pool.concurrency == pytest.approx(84.29, abs=0.04)


def test_context_shards_multiply_the_printed_tokens() -> None:
    """Kimi-K2, TP 8 with decode context parallelism 8, vLLM 0.11.1: 46.80 GiB, 5,721,088 tokens = 8 x 715,136."""
    shards = {"arguments": (("decode-context-parallel-size", "8"),)}
    vllm, case = start("kimi-k2", "h200", "0.11.1", tp=8, **shards)
    assert vllm.pool(case, round(46.8 * GIB)).tokens == pytest.approx(5_721_088, rel=2e-4)


def test_v0_gives_cross_layers_blocks_like_all_others() -> None:
    """Llama-3.2-11B-Vision on V0 (pull request 12126 of vllm): 14.65 GiB make 6,001 blocks over all 40 layers."""
    vllm, case = start("llama-3.2-11b-vision", "h100-80gb", "0.6.6")
    assert vllm.pool(case, round(14.65 * GIB)).blocks == pytest.approx(6001, abs=2)


def test_older_cards_run_v0_after_v1_came() -> None:
    """A V100 (compute capability 7.0) runs V0 until 0.10.1; windows are whole there (engine/arg_utils.py)."""
    v1, on_t4 = start("gemma-2-9b", "t4", "0.10.2", context=4096)
    before, _ = start("gemma-2-9b", "t4", "0.10.1", context=4096)
    v0, on_h100 = start("gemma-2-9b", "h100-80gb", "0.7.3", context=4096)
    newer, _ = start("gemma-2-9b", "h100-80gb", "0.10.1", context=4096)
    assert before.pool(on_t4, 8 * GIB) == v0.pool(on_h100, 8 * GIB)
    assert v1.pool(on_t4, 8 * GIB) != before.pool(on_t4, 8 * GIB)
    assert newer.pool(on_h100, 8 * GIB) != v0.pool(on_h100, 8 * GIB)


def test_hybrids_cache_prefixes_by_default_since_0_28() -> None:
    """Qwen3.8-27B, of one shape with 3.6, on 0.27.1: 59.21 requests of 8,192 tokens = 829 blocks / 14, one block a state."""
    for version, blocks in (("0.27.1", 14), ("0.28.0", 17)):
        vllm, case = start("qwen3.6-27b", "h100-80gb", version)
        pool = vllm.pool(case, 30 * GIB)
        assert pool.blocks / pool.concurrency == pytest.approx(blocks)


def test_deepseek_v4_before_its_groups_were_fitted() -> None:
    """DeepSeek-V4-Flash, TP 2, vLLM 0.23.0 (a public log): 32.08 GiB, 2,175,276 tokens, 8.30 requests of 262,144.

    A block is 22 slots of 37,440 B, 21 of 8,640 and 20 of 1,728; a request takes cdiv(sum of pages, 1,002,240) = 3,993.
    """
    vllm, case = start(
        "deepseek-v4-flash", "h200", "0.23.0", tp=2, context=262_144, kv="fp8", max_num_batched_tokens=8192
    )
    pool = vllm.pool(case, round(32.08 * GIB))
    assert pool.blocks == round(32.08 * GIB) // (22 * 37_440 + 21 * 8_640 + 20 * 1_728)
    assert pool.blocks / pool.concurrency == pytest.approx(3993)
    assert pool.tokens == pytest.approx(2_175_276, rel=2e-4)
    # 0.27 overlays the groups: a block is as wide as the widest.
    vllm, case = start("deepseek-v4-flash", "h200", "0.28.0", tp=2, context=262_144, kv="fp8")
    assert vllm.pool(case, 32 * GIB).blocks == 32 * GIB // 1_002_240


def test_marlin_pads_wider_than_triton() -> None:
    """gpt-oss-120b, H100, 0.10.1: 65.97 GiB with Marlin's kernels (issue 23278 of vllm), which the low end allows for."""
    from headcount.engines.vllm.weights import stage_weights

    _, case = start("gpt-oss-120b", "h100-80gb", "0.10.1")
    (loaded,) = stage_weights(case, [(0, len(case.model.layers))], "0.10.1")
    assert (loaded.total + loaded.unsure) / GIB == pytest.approx(65.97, rel=0.002)
    assert loaded.total / GIB == pytest.approx(64.38, rel=0.004)


SPARSE: list[tuple[str, str, str, int, str, float]] = [
    # GLM-5.2: 78 layers, 21 indexers. Measured with its drafter's layer and indexer: 54,728 B (vLLM fork, pull request
    # 82 of github.com/local-inference-lab/vllm); without them 656 and 132 less. Before 0.24 each layer has an indexer.
    ("glm-5.2", "rtx-pro-6000", "0.24.0", 4, "fp8", 78 * 656 + 21 * 132),
    ("glm-5.2", "rtx-pro-6000", "0.24.0", 4, "auto", 78 * 656 + 21 * 132),
    ("glm-5.2", "h200-141gb", "0.23.0", 8, "fp8", 78 * (656 + 132)),
    ("glm-5.2", "h200-141gb", "0.24.0", 8, "auto", 78 * 1152 + 21 * 132),
    # FlashMLA packs, FlashInfer keeps plain fp8: Blackwell prefers it for few heads at first, then for every fp8 cache.
    ("deepseek-v3.2", "h200-141gb", "0.33.0", 8, "fp8", 61 * (656 + 132)),
    ("deepseek-v3.2", "b200", "0.16.0", 8, "fp8", 61 * (656 + 132)),
    ("deepseek-v3.2", "b200", "0.17.0", 4, "fp8", 61 * (656 + 132)),
    ("deepseek-v3.2", "b200", "0.17.0", 8, "fp8", 61 * (576 + 132)),
    ("deepseek-v3.2", "b200", "0.33.0", 4, "fp8", 61 * (576 + 132)),
    ("glm-5.2", "b200", "0.18.0", 8, "fp8", 78 * (656 + 132)),
    ("glm-5.2", "b200", "0.24.0", 8, "fp8", 78 * 576 + 21 * 132),
]


@pytest.mark.parametrize(("model", "card", "version", "tp", "kv", "bytes_per_token"), SPARSE)
def test_sparse_caches_by_release_and_card(
    model: str, card: str, version: str, tp: int, kv: str, bytes_per_token: float
) -> None:
    vllm, case = start(model, card, version, tp=tp, kv=kv)
    assert vllm.pool(case, 8 * GIB).bytes_per_token == bytes_per_token
    if (model, version, kv) == ("glm-5.2", "0.24.0", "fp8") and tp == 4:
        drafts = (("speculative-method", "mtp"), ("num-speculative-tokens", "1"))
        vllm, drafting = start(model, card, version, tp=tp, kv=kv, arguments=drafts)
        assert vllm.pool(drafting, 8 * GIB).bytes_per_token == 54_728


def test_sparse_attention_needs_its_cards() -> None:
    def replica(card: str, version: str) -> None:
        vllm, case = start("deepseek-v3.2", card, version, tp=8)
        vllm.replica(case)

    replica("h200-141gb", "0.23.0")
    with pytest.raises(LayoutError, match=r"no sparse attention for compute capability 8\.0"):
        replica("a100-80gb", "0.33.0")
    with pytest.raises(LayoutError, match=r"compute capability 12\.0"):
        replica("rtx-pro-6000", "0.23.0")
