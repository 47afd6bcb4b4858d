"""What today's planners get wrong, as tests: each case is one that a published tool answers silently and wrongly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headcount.errors import HeadcountError, LayoutError, UsageError

Ask = Callable[[str], dict[str, Any]]


def test_heads_beyond_the_key_value_heads_are_replicated(ask: Ask) -> None:
    """Mistral at TP 16: eight key/value heads cannot shrink below one a rank. Peers go on dividing: twice too many."""
    question = "fit mistral-7b --engine textbook --gpu a100-80gb --context 4096 --gpus-per-node 16 --tp"
    eight, sixteen = ask(f"{question} 8"), ask(f"{question} 16")
    assert eight["per_gpu"]["kv_bytes_per_conversation"] == 536_870_912 // 8
    assert sixteen["per_gpu"]["kv_bytes_per_conversation"] == 536_870_912 // 8


@pytest.mark.parametrize(
    ("model", "tp"), [("llama-2-7b", 3), ("qwen2-7b", 8), ("qwen3-14b", 5), ("falcon-7b", 2)]
)
def test_layouts_that_engines_refuse(ask: Ask, model: str, tp: int) -> None:
    """Accepted as "fits: true" elsewhere: 32 heads over 3, 28 over 8, a vocabulary of 151,936 over 5, 71 heads over 2."""
    with pytest.raises(LayoutError):
        ask(f"fit {model} --gpu h100-80gb --context 2048 --tp {tp}")


@pytest.mark.parametrize("context", ["-5", "0", "-1"])
def test_negative_context_is_not_negative_memory(ask: Ask, context: str) -> None:
    with pytest.raises(UsageError):
        ask(f"show llama-2-7b --context {context}")


def test_encoder_decoders_have_both_caches(ask: Ask) -> None:
    """Peers answer 0 B, crash or size the cross cache from the wrong length."""
    t5 = ask("show t5-base --context 512")["kv_bytes_by_kind"]
    # 12 decoder layers x 2 x 12 heads x 64 x 2 B = 36,864 B a token, once for the answer and once for the source.
    assert t5["full"] == {"layers": 12, "bytes": 512 * 36_864}
    assert t5["cross"]["layers"] == 12
    whisper = ask("show whisper-large-v3 --context 448")["kv_bytes_by_kind"]
    # 32 decoder layers x 2 x 20 heads x 64 x 2 B = 163,840 B a position; 1,500 encoder positions, whatever the text.
    assert whisper["cross"] == {"layers": 32, "bytes": 1_500 * 163_840}


@pytest.mark.parametrize(
    ("model", "per_token"),
    [
        ("falcon-7b", 8_192),  # 32 layers x 1 head x 2 x 64 x 2 B, not 71 heads
        ("falcon-40b", 245_760 // 2),  # 60 x 8 x 2 x 64 x 2 B
        ("qwen2.5-vl-7b", 57_344),  # 28 x 4 x 2 x 128 x 2 B; nested or flat config
        ("gpt-oss-20b", 49_152),  # 24 x 8 x 2 x 64 x 2 B, head_dim 64 and not 2880 / 64 = 45
        ("granite-3.1-8b", 163_840),  # 40 x 8 x 2 x 128 x 2 B
        ("mistral-small-3.2-24b", 163_840),  # measured by vLLM: 28.20 GiB / 184,832 tokens
        ("qwen3-0.6b", 114_688),  # measured: 69.66 GiB / 652,144 tokens; head_dim 128, not 1024 / 16
    ],
)
def test_bytes_per_token(ask: Ask, model: str, per_token: int) -> None:
    assert ask(f"show {model}")["kv_bytes_per_token"]["fp16"] == per_token


def test_the_weights_decide_on_one_card(ask: Ask) -> None:
    """Llama-3.3-70B in 16 bits has no room on one H100: the plan says so, with zero conversations and the reason."""
    plan = ask("fit llama-3.3-70b --gpu h100-80gb --context 2048")
    assert plan["conversations"] == 0
    assert "no memory for a cache" in plan["binding"]


def test_a_vision_tower_is_counted(ask: Ask) -> None:
    """vLLM 0.19 logs 8.58 GiB of weights for gemma-3-4b-it on one GPU, its rotary tables of 0.56 GiB among them."""
    plan = ask("fit gemma-3-4b --gpu h100-80gb --context 8192 --engine-version 0.19.0 --utilization 0.95")
    assert abs(plan["per_gpu"]["weight_bytes"] / 2**30 - 8.58) < 0.05


def test_pipeline_remainder_goes_to_the_middle() -> None:
    """vLLM keeps the first and last stage light: 32 layers in 3 are 11, 11, 10; 30 in 4 are 7, 8, 8, 7."""
    from headcount.engines.vllm.engine import pipeline_stages

    assert [end - start for start, end in pipeline_stages(32, 3)] == [11, 11, 10]
    assert [end - start for start, end in pipeline_stages(30, 4)] == [7, 8, 8, 7]


def test_unknown_engine_formats_are_refused(ask: Ask) -> None:
    with pytest.raises(HeadcountError):
        ask("fit llama-2-7b --gpu a100-80gb --context 2048 --kv q4_0")


def test_the_engine_runs_no_more_than_max_num_seqs(ask: Ask) -> None:
    """Cache for 130,000 short conversations is no use to an engine that runs four at a time."""
    plan = ask("fit gpt2 --gpu h100-80gb --context 10 --max-seqs 4")
    assert plan["conversations"] == 4
    assert "max_num_seqs" in plan["binding"]


def test_more_gpus_never_hold_fewer(ask: Ask) -> None:
    """64 heads do not divide by 3: two of three GPUs still hold what two hold, and the idle one is said."""
    two, three = (ask(f"fit codellama-34b --gpu h100-80gb --context 2048 --gpus {count}") for count in (2, 3))
    assert three["conversations"] >= two["conversations"]
    assert any("idle" in warning for warning in three["warnings"])
