"""The two chapters' questions and the table of known answers, asked through the command line at full precision.

Expected numbers: arithmetic by hand from published shapes, published parameter counts, measured logs; none is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Ask = Callable[[str], dict[str, Any]]
CHAPTER_ORDER = "book layers=32,hidden=4096,heads=32 --params 7e9 --engine textbook --gpu a100-80gb --users 200 --context 2048"
CHAPTER_FIT = "fit mistral-7b --engine textbook --gpu a100-80gb --context 4096 --reserve 0.10"


def test_the_gpu_order(ask: Ask) -> None:
    plan = ask(CHAPTER_ORDER)
    assert plan["kv_bytes_per_token"] == 524_288
    assert plan["kv_bytes_per_conversation"] == 1_073_741_824
    assert plan["weight_bytes"] == 14_000_000_000
    assert plan["lower_bound"] == {"total_bytes": 228_748_364_800, "gpus": 3}
    assert plan["gpus"] == 4
    assert plan["replicas"] == 4
    assert plan["layout"] == {"tp": 1, "pp": 1, "dp": 4}
    assert plan["conversations_per_replica"] == 61
    three = next(row for row in plan["smaller"] if row["gpus"] == 3)
    assert "183 of 200" in three["refused"]
    assert "32 query heads do not divide by 3" in three["refused"]
    assert [row["gpus"] for row in plan["smaller"]] == [3, 2, 1]


def test_the_pipeline_alternative_is_listed_with_its_cost(ask: Ask) -> None:
    plan = ask(CHAPTER_ORDER + " --price 2")
    stages = next(row for row in plan["alternatives"] if row["layout"] == {"tp": 1, "pp": 3, "dp": 1})
    assert (stages["gpus"], stages["conversations"], stages["usd_per_hour"]) == (3, 203, 6.0)
    assert "--allow-pp" in stages["refused"]
    assert stages["note"]
    assert ask(CHAPTER_ORDER + " --allow-pp")["gpus"] == 3


@pytest.mark.parametrize(
    ("options", "gpus"),
    [("--reserve 0.10", 4), ("--spare 1", 5), ("--memory 80GiB", 4), ("--kv q8_0", 2)],
)
def test_the_order_under_other_assumptions(ask: Ask, options: str, gpus: int) -> None:
    # Worked by hand: floor((80e9 (1 - r) - 14e9) / 2**30) conversations a card.
    assert ask(f"{CHAPTER_ORDER} {options}")["gpus"] == gpus


@pytest.mark.parametrize(
    ("tp", "held"),
    [(2, 135), (4, 284)],
)
def test_tensor_parallel_replicas_hold(ask: Ask, tp: int, held: int) -> None:
    question = "fit" + CHAPTER_ORDER.removeprefix("book").replace("--users 200 ", "")
    assert ask(f"{question} --tp {tp}")["conversations_per_replica"] == held


def test_mistral_conversations(ask: Ask) -> None:
    plan = ask(CHAPTER_FIT + " --params 7e9")
    assert plan["conversations"] == 108
    assert plan["kv_budget_bytes"] == 58_000_000_000
    assert plan["kv_bytes_per_conversation"] == 536_870_912
    exact = ask(CHAPTER_FIT)
    assert exact["conversations"] == 107
    assert exact["parameters"] == 7_241_732_096


def test_multi_query_mistral_is_another_model(ask: Ask) -> None:
    plan = ask(CHAPTER_FIT + " --params 7e9 --kv-heads 1")
    assert plan["conversations"] == 864
    assert any(
        "-234,881,024 parameters" in warning and "needs training" in warning for warning in plan["warnings"]
    )


def test_llama_2_70b_grouped_against_multi_head(ask: Ask) -> None:
    assert ask("show llama-2-70b --context 4096")["kv_bytes"] == {"4096": 1_342_177_280}
    many = ask("show llama-2-70b --context 4096 --kv-heads 64")
    assert many["kv_bytes"] == {"4096": 10_737_418_240}
    assert many["parameters"] == 78_371_889_152


@pytest.mark.parametrize(
    "model", ["layers=40,kv_heads=4,head_dim=128", "layers=40,hidden=5120,heads=40,kv_heads=4"]
)
def test_forty_layers_four_heads(ask: Ask, model: str) -> None:
    assert ask(f"show {model} --context 8192")["kv_bytes"] == {"8192": 671_088_640}


@pytest.mark.parametrize(
    ("kv", "total_gib"),
    [("int8", 200.0), ("int8_per_token_head", 203.125), ("q8_0", 212.5), ("fp16", 400.0)],
)
def test_eight_bit_cache_at_twice_the_context(ask: Ask, kv: str, total_gib: float) -> None:
    each = ask(f"show llama-2-7b --context 4096 --kv {kv}")["kv_bytes"]["4096"]
    assert 200 * each / 2**30 == total_gib


def test_crossovers(ask: Ask) -> None:
    found = ask("show llama-2-7b")["crossovers"]
    assert list(found["textbook"].values())[:5] == [16_384, 8_192, 24_576, 32_768, 16_384]
    assert list(found["model"].values()) == [16_512, 8_320, 24_704, 33_024, 16_640, 49_408]


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ("llama-2-7b", 6_738_415_616),
        ("llama-3-8b", 8_030_261_248),
        ("llama-2-70b", 68_976_648_192),
        ("mixtral-8x7b", 46_702_792_704),
        ("gemma-2-9b", 9_241_705_984),
        ("gpt2", 124_439_808),
        ("qwen2.5-7b", 7_615_616_512),
        ("phi-3-mini-4k", 3_821_079_552),
        ("falcon-7b", 6_921_720_704),
        ("smollm2-135m", 134_515_008),
    ],
)
def test_published_parameter_counts(ask: Ask, model: str, parameters: int) -> None:
    assert ask(f"show {model}")["parameters"] == parameters


@pytest.mark.parametrize(
    ("model", "context", "kv_bytes"),
    [
        ("gemma-3-27b", 32_768, 3_120_562_176),  # 52 layers see 1,024 tokens only; peers say 15.5 GiB
        ("gpt-oss-20b", 32_768, 808_452_096),  # 12 layers see 128 tokens
        ("falcon-7b", 2_048, 16_777_216),  # multi_query: one key/value head; peers say 71 times more
        ("deepseek-v3", 4_096, 70_272 * 4_096),  # one latent; peers say 12 to 25 times more
        ("qwen3-next-80b-a3b", 32_768, 805_306_368 + 36 * 1_097_728),  # 12 attention layers and 36 states
        ("nemotron-h-8b", 8_192, 134_217_728 + 24 * 4_255_744),  # 4 attention layers and 24 states
    ],
)
def test_cache_of_one_conversation(ask: Ask, model: str, context: int, kv_bytes: int) -> None:
    assert ask(f"show {model} --context {context}")["kv_bytes"] == {str(context): kv_bytes}


def test_deepseek_latent_is_whole_on_every_rank(ask: Ask) -> None:
    one, eight = (
        ask(f"fit deepseek-v3 --engine textbook --gpu gb300 --context 4096 --tp {tp}") for tp in (4, 8)
    )
    assert one["per_gpu"]["kv_bytes_per_conversation"] == 70_272 * 4_096
    assert eight["per_gpu"]["kv_bytes_per_conversation"] == 70_272 * 4_096


def test_deepseek_on_eight_h200(ask: Ask) -> None:
    plan = ask("fit deepseek-v3 --gpu h200 --gpus 8 --tp 8 --context 4096")
    # 172 to 181 by the reserve that is taken (latent whole on every rank); planners that divide it by eight say 1,400.
    assert plan["conversations_low"] <= 181 and plan["conversations_high"] >= 172
    assert 160 <= plan["conversations"] <= 185


def test_llama_on_h100_against_a_measured_start(ask: Ask) -> None:
    # vLLM 0.19 on H100 80GB, utilization 0.95: 58.11 GiB of cache, 58.11 conversations of 8,192 tokens (llm-d-planner PR 205).
    plan = ask("fit llama-3.1-8b --gpu h100-80gb --context 8192 --engine-version 0.19.1 --utilization 0.95")
    assert plan["conversations_low"] <= 58 <= plan["conversations_high"]
    assert abs(plan["kv_budget_bytes"] / 2**30 - 58.11) < 0.5


def test_longest_context_for_a_number_of_users(ask: Ask) -> None:
    question = "fit mistral-7b --params 7e9 --engine textbook --gpu a100-80gb --reserve 0.10 --users"
    # floor(58e9 / 109) B each at 131,072 B a token are 4,059.7 tokens.
    assert ask(f"{question} 109")["deployment"]["context"] == 4_059
    # 108 windows of 4,096 tokens fit, and a window does not grow: the model's 32,768 positions are the limit.
    assert ask(f"{question} 108")["deployment"]["context"] == 32_768


def test_too_close_to_call(ask: Ask) -> None:
    plan = ask("book deepseek-v3 --gpu h200 --users 1000 --context 8192")
    assert any(warning.startswith("too close to call") for warning in plan["warnings"])


def test_a_utilization_is_shown_as_the_fraction_kept_free(ask: Ask) -> None:
    plan = ask("fit mistral-7b --engine textbook --gpu a100-80gb --context 4096 --utilization 0.9")
    assert plan["reserved_bytes"] == 8_000_000_000
    terms = {term["symbol"]: term for term in plan["ledger"]["parts"][0]["terms"]}
    assert terms["R"]["numbers"] == "80,000,000,000 x 0.1"
