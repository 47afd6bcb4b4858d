"""Predicted against measured: vLLM 0.19.0 start-ups on one H100 80GB (tests/engines/data/README.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headcount.engines import Case, Layout, Settings
from headcount.engines.vllm.engine import Vllm
from headcount.errors import HeadcountError
from headcount.hardware import accelerator
from headcount.spec.reader import read_model

ROWS = json.loads((Path(__file__).parent / "data/vllm_start_up_logs.json").read_text())
GIB = 2**30


def in_catalogue(row: dict[str, Any]) -> bool:
    try:
        read_model(row["model"])
    except HeadcountError:
        return False
    return True


KNOWN = [row for row in ROWS if in_catalogue(row) and row["kv_cache_dtype"] in (None, "auto")]


# What these figures lack, and how much it weighs at most.
LEFT_OUT = {
    "google/gemma-3-4b-it": ("vision tower and its activations", 1.7),
    "google/gemma-3-12b-it": ("vision tower and its activations", 1.7),
    "google/gemma-3-27b-it": ("vision tower and its activations", 1.7),
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": ("vision tower", 1.1),
    "moonshotai/Kimi-VL-A3B-Instruct": ("vision tower", 1.1),
    "openai/gpt-oss-20b": ("MXFP4 kernels pad the widths of 2,880", 1.0),
}
PLAIN = (
    "codellama/CodeLlama-7b-hf",
    "google/gemma-7b",
    "ibm-granite/granite-3.1-8b-instruct",
    "moonshotai/Kimi-Dev-72B",
    "Qwen/Qwen2.5-72B-Instruct",
    "Qwen/Qwen2.5-7B-Instruct",
    "Qwen/Qwen3-30B-A3B",
    "Qwen/Qwen3-8B",
)


def predicted(row: dict[str, Any]) -> Any:
    case = Case(
        model=read_model(row["model"]),
        accelerator=accelerator("h100-80gb"),
        layout=Layout(tp=row["tensor_parallel"], pp=row["pipeline_parallel"] or 1),
        context=row["max_model_len"],
        settings=Settings(
            utilization=row["gpu_memory_utilization"],
            memory_bytes=round(row["gpu_total_memory_gib"] * GIB),
            max_num_batched_tokens=row["max_num_batched_tokens"],
            max_num_seqs=row["max_num_seqs"],
        ),
    )
    return Vllm("0.19.1").replica(case)


def test_enough_rows_are_compared() -> None:
    assert len(KNOWN) >= 12


@pytest.mark.parametrize("row", KNOWN, ids=[f"{row['model']}-tp{row['tensor_parallel']}" for row in KNOWN])
def test_cache_memory_of_a_real_start(row: dict[str, Any]) -> None:
    """Text models within 0.35 GiB of the measured cache; the rest within what their table entry says."""
    replica = predicted(row)
    measured = row["kv_cache_memory_gib"]
    error = replica.budget.kv_budget / GIB - measured
    reason, allowed = LEFT_OUT.get(row["model"], ("", 0.35))
    assert abs(error) < allowed, f"{error:+.2f} GiB of {measured} {reason}"


@pytest.mark.parametrize(
    "row",
    [row for row in KNOWN if row["model"] in PLAIN],
    ids=lambda row: f"{row['model']}-tp{row['tensor_parallel']}",
)
def test_conversations_of_a_real_start(row: dict[str, Any]) -> None:
    """Full attention only: the log's concurrency and the run-time count are the same figure."""
    replica = predicted(row)
    assert replica.low <= int(row["max_concurrency"]) <= replica.high
