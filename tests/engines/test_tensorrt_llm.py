"""TensorRT-LLM against what real starts printed. Logs are public; each figure names where it stands."""

from __future__ import annotations

import json
import shlex

import pytest

from headcount.engines import Case, Layout, Settings, engine
from headcount.engines.calibration import Calibration
from headcount.errors import LayoutError, UnknownNameError, UsageError
from headcount.hardware import accelerator
from headcount.spec.attention import SlidingWindow
from headcount.spec.reader import read_model
from headcount.units import GIB

GPT_OSS = "gpt-oss-120b"


def case(model: str, *, gpu: str = "h100-80gb", tp: int = 1, context: int = 2048, **settings: object) -> Case:
    return Case(
        model=read_model(model),
        accelerator=accelerator(gpu),
        layout=Layout(tp=tp),
        context=context,
        settings=Settings(**settings),
    )


# MLCommons inference results v5.1, closed/CoreWeave/log_70B_serve.txt (2025-07-09): Llama-2-70B, 4-bit weights, fp8 cache,
# one GPU of 178.36 GiB, TensorRT-LLM 1.0.0rc2.
B200_TOTAL, B200_FREE, B200_CACHE = 178.36, 136.23, 122.61


def test_blocks_of_the_mlcommons_start() -> None:
    found = engine("tensorrt-llm", "1.0.0rc2").pool(case("llama-2-70b", kv="fp8"), round(B200_CACHE * GIB))
    assert (found.bytes_per_token, found.blocks, found.tokens) == (163_840, 25_110, 803_520)


def test_fraction_is_of_what_is_left_after_loading() -> None:
    """Told the 136.23 GiB that were free, the budget is 0.9 of them: 122.61 GiB, 25,110 blocks."""
    calibration = Calibration(
        engine="tensorrt-llm",
        engine_version="1.0.0rc2",
        model="llama-2-70b",
        gpu="b200",
        tp=1,
        pp=1,
        origin="log_70B_serve.txt",
        device_bytes=round(B200_TOTAL * GIB),
        weight_bytes=round(36.917 * GIB),
        activation_bytes=0,
        non_torch_bytes=round((B200_TOTAL - B200_FREE - 36.917) * GIB),
        weights="nvfp4",
        kv="fp8",
        max_num_seqs=10**6,
    )
    asked = case("llama-2-70b", gpu="b200", context=32, kv="fp8", weights="nvfp4", calibration=calibration)
    found = engine("tensorrt-llm", "1.0.0rc2").replica(
        asked.replace(settings=asked.settings.replace(max_num_seqs=10**6))
    )
    assert round(found.budget.kv_budget / GIB, 2) == B200_CACHE
    assert (found.low, found.conversations, found.high) == (25_110, 25_110, 25_110)


def test_mlcommons_start_from_the_model_alone() -> None:
    """Weights within 0.5 %; the cache inside the stated interval, 1.3 % off the expected figure."""
    asked = case("llama-2-70b", gpu="b200", kv="fp8", weights="nvfp4", memory_bytes=round(B200_TOTAL * GIB))
    found = engine("tensorrt-llm").replica(asked).budget
    assert found.weights / GIB == pytest.approx(36.917, rel=0.005)
    assert found.kv_low <= B200_CACHE * GIB <= found.kv_high
    assert found.kv_budget / GIB == pytest.approx(B200_CACHE, rel=0.02)
    assert (
        found.memory == found.reserved + found.weights + sum(b for _, b in found.overhead) + found.kv_budget
    )


def test_gpt_oss_keeps_all_tokens_in_every_layer() -> None:
    """1.1.0rc3 on a DGX Spark (2025-12-20): "kv size is 73728", 86,711 tokens estimated, 86,720 allocated (rounded up)."""
    asked = case(GPT_OSS, gpu="dgx-spark")
    assert any(isinstance(mixer, SlidingWindow) for layer in asked.model.layers for mixer in layer.mixers)
    old = engine("tensorrt-llm", "1.1.0rc3")
    assert old.pool(asked, 2**30).bytes_per_token == 73_728
    [(_, plan)] = old._plans(asked)
    assert plan.blocks(86_711 * 73_728) == (86_720 // 32,)
    # 1.2 rounds down.
    [(_, plan)] = engine("tensorrt-llm", "1.2.1")._plans(asked)
    assert plan.blocks(86_711 * 73_728) == (86_711 // 32,)


def test_gpt_oss_20b_temporary_cache() -> None:
    """1.1.0rc3 on GB10 (forums.developer.nvidia.com/t/354807): 4,128 tokens are 0.19 GiB."""
    found = engine("tensorrt-llm", "1.1.0rc3").pool(case("gpt-oss-20b"), 4128 * 49_152)
    assert (found.tokens, found.bytes_per_token) == (4128, 49_152)
    assert round(4128 * found.bytes_per_token / GIB, 2) == 0.19


def test_tinyllama_blocks() -> None:
    """Triton 25.12 (triton-inference-server/tutorials pull 150): 78.30 GiB, 116,617 blocks, to the printed 0.01 GiB."""
    found = engine("tensorrt-llm", "1.1.0").pool(case("tinyllama-1.1b"), round(78.30 * GIB))
    assert found.bytes_per_token == 22_528
    assert found.blocks == pytest.approx(116_617, abs=0.005 * GIB / (32 * 22_528) + 1)


@pytest.mark.parametrize(
    ("kv", "bytes_per_token"),
    # DeepSeek-V3: 61 layers of one latent, 512 + 64 wide, whole on every rank; nvfp4 adds one scale byte for 16 values.
    [("auto", 61 * 576 * 2), ("fp8", 61 * 576), ("nvfp4", 61 * 576 // 2 + 61 * 576 // 16)],
)
def test_latent_cache_is_not_divided(kv: str, bytes_per_token: int) -> None:
    # 35,136 B in fp8 is what 1.x prints for DeepSeek-V3 ("kv size is 35136").
    asked = case("deepseek-v3", gpu="h200", tp=8, kv=kv)
    assert engine("tensorrt-llm").pool(asked, 2**34).bytes_per_token == bytes_per_token


@pytest.mark.parametrize(("tp", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1)])
def test_heads_of_a_rank(tp: int, heads: int) -> None:
    found = engine("tensorrt-llm").pool(case("llama-3.1-70b", tp=tp), 2**34)
    assert found.bytes_per_token == 2 * 80 * heads * 128 * 2


def test_windows_in_pools_of_their_own() -> None:
    """gpt-oss-20b: 12 layers of 128 tokens, 12 of all; half the memory each (equal shares)."""
    asked = case("gpt-oss-20b", context=8192, arguments=(("max-attention-window", "model"),))
    [(_, plan)] = engine("tensorrt-llm")._plans(asked)
    layer_token = 2 * 8 * 64 * 2
    assert [(pool.window, pool.bytes_per_token) for pool in plan.pools] == [
        (0, 12 * layer_token),
        (128, 12 * layer_token),
    ]
    assert plan.blocks(2**34) == (2**33 // (12 * layer_token) // 32,) * 2
    assert [pool.blocks_of(8192, 32) for pool in plan.pools] == [256, 5]
    with pytest.raises(UsageError, match="not known before"):
        engine("tensorrt-llm", "1.1.0").pool(asked, 2**34)


def test_attention_data_parallel() -> None:
    asked = case("deepseek-v3", gpu="h200", tp=8, weights="fp8")
    divided = asked.replace(settings=asked.settings.replace(arguments=(("enable-attention-dp", "true"),)))
    found = engine("tensorrt-llm")
    assert found.loaded_bytes(divided) > found.loaded_bytes(asked)
    assert found.replica(divided).conversations > 4 * found.replica(asked).conversations


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("mamba-2.8b", "recurrent"),
        ("qwen3-next-80b-a3b", "recurrent"),
        ("deepseek-v3.2", "indexer"),
    ],
)
def test_caches_without_a_rule_are_refused(model: str, words: str) -> None:
    asked = case(model)
    assert words in (engine("tensorrt-llm").refusal(asked.model, asked.layout) or "")


def test_versions_formats_and_fractions_are_checked() -> None:
    with pytest.raises(UnknownNameError, match="version"):
        engine("tensorrt-llm", "latest")
    with pytest.raises(UsageError, match="fp8, nvfp4"):
        engine("tensorrt-llm").replica(case("llama-3.1-8b", kv="int8"))
    with pytest.raises(UsageError, match="below 1"):
        engine("tensorrt-llm").replica(case("llama-3.1-8b", utilization=1.0))
    with pytest.raises(LayoutError, match="compiled engines"):
        engine("tensorrt-llm", "0.13.0").replica(case("llama-3.1-8b"))


def test_launch_line() -> None:
    made = engine("tensorrt-llm", "1.2.1").launch(
        case("llama-3.1-8b", tp=2), model="org/name", concurrency=12
    )
    assert made.argv[:3] == ("trtllm-serve", "serve", "org/name")
    pairs = dict(zip(made.argv[3::2], made.argv[4::2], strict=True))
    assert pairs["--tp_size"] == "2"
    assert (pairs["--max_batch_size"], pairs["--max_num_tokens"], pairs["--max_seq_len"]) == (
        "12",
        "8192",
        "2048",
    )
    assert pairs["--kv_cache_free_gpu_memory_fraction"] == "0.9"
    assert (made.image, made.port, made.health) == (
        "nvcr.io/nvidia/tensorrt-llm/release:1.2.1",
        8000,
        "/health",
    )


def test_launch_line_writes_what_has_no_flag() -> None:
    asked = case("llama-3.1-8b", kv="fp8", utilization=0.8, arguments=(("tokens-per-block", "64"),))
    made = engine("tensorrt-llm").launch(asked, model="org/a name", concurrency=4)
    assert made.argv[:2] == ("sh", "-c")
    words = shlex.split(made.argv[2])
    written = json.loads(words[2])
    assert written == {
        "kv_cache_config": {"dtype": "fp8", "tokens_per_block": 64, "free_gpu_memory_fraction": 0.8}
    }
    assert words[4] == words[words.index("--extra_llm_api_options") + 1]
    assert "org/a name" in words
