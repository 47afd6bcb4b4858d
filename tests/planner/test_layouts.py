"""Layouts and settings that ``fit`` and ``book`` search: answers of one command against the other, at the edges of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headcount.cli.main import dispatch
from headcount.errors import UsageError

Ask = Callable[[str], dict[str, Any]]


@pytest.mark.parametrize(
    "question",
    [
        "llama-3.1-405b --gpu h100-80gb --users 20 --context 32768",
        "llama-3.3-70b --gpu h100-80gb --users 20 --context 8192 --engine llama.cpp",
        "mistral-large-123b --gpu rtx-4090 --users 20 --context 8192 --engine sglang",
    ],
)
def test_smaller_weights_never_take_more_gpus_than_a_plan_with_stages(ask: Ask, question: str) -> None:
    plan = ask(f"book {question}")
    assert plan["layout"]["pp"] > 1
    answers = {row["change"].split()[0]: row["gpus"] for row in plan["what_ifs"]}
    assert answers["--weights"] <= plan["gpus"] and answers["--kv"] <= plan["gpus"]


def test_the_reason_for_one_gpu_less_is_what_fit_says_of_it(ask: Ask) -> None:
    """DeepSeek-V3 on 15 H100 holds one conversation too few; ``TP 8 refused`` would be no reason."""
    question = "deepseek-v3 --gpu h100-80gb --context 32768"
    plan = ask(f"book {question} --users 100")
    reasons = {row["gpus"]: row["refused"] for row in plan["smaller"]}
    held = ask(f"fit {question} --gpus {plan['gpus'] - 1}")["conversations"]
    assert 0 < held < 100 and f"{held} of 100" in reasons[plan["gpus"] - 1]


@pytest.mark.parametrize(
    ("question", "counts"),
    [
        ("llama-3.1-405b --gpu a100-40gb --context 2048", (24, 25, 26, 31, 139)),
        ("llama-2-70b --gpu rtx-3060-12gb --context 2048", (24, 25)),
        ("llama4-scout --gpu h200-nvl --engine ollama --max-seqs 256 --context 17", (4, 5)),
        ("llama-3.1-70b --gpu l4 --context 2048 --engine sglang", (10, 11, 12, 13)),
    ],
)
def test_one_gpu_more_holds_no_less(ask: Ask, question: str, counts: tuple[int, ...]) -> None:
    held = [ask(f"fit {question} --gpus {count}")["conversations"] for count in counts]
    assert held == sorted(held) and held[0] > 0


def test_stages_that_hold_more_are_told_and_hold_what_is_said(ask: Ask) -> None:
    question = "llama-3-70b --gpu rtx-4090 --context 2048 --engine textbook --reserve 0.2"
    plan = ask(f"fit {question} --gpus 16")
    (piped,) = (other for other in plan["alternatives"] if other["layout"]["pp"] > 1)
    assert plan["deployment"]["layout"]["pp"] == 1 and piped["conversations"] > plan["conversations"]
    layout = piped["layout"]
    asked = f"--gpus {piped['gpus']} --tp {layout['tp']} --pp {layout['pp']}"
    assert ask(f"fit {question} {asked}")["conversations"] == piped["conversations"]


@pytest.mark.parametrize(
    ("question", "more"),
    [
        # Where a width holds something only within the uncertainty, and where layers are split as a matter of course.
        ("qwen3-next-80b-a3b --gpu l4 --gpus 12 --context 32768", "--memory 24.193555GiB"),
        ("nemotron-nano-12b-v2 --gpu rtx-4090 --gpus 3 --context 512 --engine ollama", "--kv q8_0"),
        ("internlm2.5-7b --gpu t4 --gpus 4 --context 4096 --engine ollama", "--memory 15.95GiB"),
        ("llama-3.3-70b --gpu h100-80gb --gpus 3 --context 8192 --engine llama.cpp", "--weights q8_0"),
    ],
)
def test_more_room_holds_no_less(ask: Ask, question: str, more: str) -> None:
    held = ask(f"fit {question}")["conversations"]
    assert 0 < held <= ask(f"fit {question} {more}")["conversations"]


def test_a_format_that_does_not_divide_the_heads_is_no_what_if(ask: Ask) -> None:
    """Phi-2's heads of 80 are no whole blocks of 32: llama.cpp refuses q8_0 keys, and the booking stands."""
    plan = ask("book phi-2 --gpu a100-80gb --users 50 --context 512 --engine llama.cpp")
    assert plan["gpus"] >= 1
    assert not any(row["change"].startswith("--kv q8_0") for row in plan["what_ifs"])


def test_a_setting_that_rules_out_a_width_leaves_the_others(ask: Ask) -> None:
    shards = "deepseek-v2-lite --gpu h100-80gb --context 4096 --engine-arg decode-context-parallel-size=2"
    assert ask(f"fit {shards} --gpus 2")["deployment"]["layout"]["tp"] == 2
    assert ask(f"book {shards} --users 10")["gpus"] == 2
    # SGLang's default fraction of a small card is negative for the widest shapes only.
    assert ask("book mixtral-8x7b --gpu t4 --users 50 --context 4096 --engine sglang")["gpus"] <= 16


def test_a_length_that_is_fixed_rules_out_only_the_longer_context(ask: Ask) -> None:
    plan = ask("book llama-3.1-8b --gpu h100-80gb --users 100 --context 4096 --engine-arg max-model-len=4096")
    changes = [row["change"] for row in plan["what_ifs"]]
    assert any(change.startswith("--kv") for change in changes)
    assert not any(change.startswith("--context") for change in changes)


def test_the_longest_context_of_many_users_is_found(ask: Ask) -> None:
    """At one token each vLLM's batch of 1,024 tokens holds 1,024 requests: no proof that nothing longer fits 2,000."""
    question = "fit llama-3.1-8b --gpu h100-80gb --max-seqs 4096"
    longest = ask(f"{question} --users 2000")["deployment"]["context"]
    assert ask(f"{question} --context {longest}")["conversations"] >= 2000
    assert ask(f"{question} --context {longest + 16}")["conversations"] < 2000


@pytest.mark.parametrize("version", ["0.19.0\ntouch x #", "0.19.0 ; $(id)", '0.19.0"', "0.33." + "9" * 5000])
@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama.cpp", "ollama", "tensorrt-llm"])
def test_a_release_is_one_word(engine: str, version: str) -> None:
    words = ["fit", "llama-3.1-8b", "--gpu", "h100-80gb", "--context", "4096", "--engine", engine]
    with pytest.raises(UsageError, match="is no release") as refused:
        dispatch([*words, "--engine-version", version])
    assert len(str(refused.value)) < 200


def test_a_build_has_no_image() -> None:
    words = "fit llama-3.1-8b --gpu h100-80gb --context 4096 --engine-version 0.33.0.dev1+g12 --emit docker-compose"
    with pytest.raises(UsageError, match="is no tag of an image"):
        dispatch(words.split())
