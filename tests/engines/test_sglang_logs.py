"""Predicted against printed: start-ups of real SGLang servers (data/sglang_logs.json)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headcount.engines import Case, Layout, Settings
from headcount.engines.sglang import pools
from headcount.engines.sglang.engine import Sglang
from headcount.engines.sglang.options import resolve
from headcount.hardware import accelerator
from headcount.spec.reader import read_model

LOGS = json.loads((Path(__file__).parent / "data/sglang_logs.json").read_text())
GIB = 2**30


def case(row: dict[str, Any], **settings: Any) -> Case:
    return Case(
        model=read_model(row["model"]),
        accelerator=accelerator(row["card"]),
        layout=Layout(tp=row["tp"]),
        context=8192,
        settings=Settings(
            kv=row.get("kv", "auto"),
            arguments=tuple((name, text) for name, text in row.get("arguments", ())),
            **settings,
        ),
    )


@pytest.mark.parametrize("row", LOGS["pools"], ids=[row["id"] for row in LOGS["pools"]])
def test_tokens_of_the_printed_cache_memory(row: dict[str, Any]) -> None:
    """Memory is printed to 0.01 GiB, so half of that is allowed, and a page."""
    engine = Sglang(row["version"])
    pool = engine.pool(case(row), round(row["kv_gib"] * GIB))
    assert pool.block_tokens is not None
    # K and V are printed apart: two roundings of 0.005 GiB.
    rounding = 0.01 * GIB / pool.bytes_per_token + pool.block_tokens
    assert abs(pool.tokens - row["tokens"]) <= rounding + 1e-4 * row["tokens"]
    assert pool.tokens == pytest.approx(row["tokens"], rel=0.002)
    if "sliding" in row:
        assert row["sliding"] == int(0.8 * row["tokens"])


def test_a_page_of_64_is_exact() -> None:
    row = next(row for row in LOGS["pools"] if row["id"] == "qwen3-8b")
    assert Sglang(row["version"]).pool(case(row), round(row["kv_gib"] * GIB)).tokens == 992896


@pytest.mark.parametrize("row", LOGS["states"], ids=[row["id"] for row in LOGS["states"]])
def test_state_slots_and_tokens_of_a_hybrid(row: dict[str, Any]) -> None:
    """Slots to one (the bytes left are printed to 0.01 GiB); both states' bytes; the tokens that are left within 0.5 %."""
    asked, engine = case(row), Sglang(row["version"])
    setup = resolve(asked, engine.rules, engine.kv_format_name(asked.model, asked.settings))
    stage = pools.stage_pool(asked.model, 0, len(asked.model.layers), setup)
    made = pools.solve([stage], [round(row["cache_gib"] * GIB)], setup)
    assert abs(made.slots - row["slots"]) <= 1
    assert (row["slots"] + 1) * stage.state / GIB == pytest.approx(
        row["conv_gib"] + row["recurrent_gib"], abs=0.011
    )
    assert made.tokens == pytest.approx(row["tokens"], rel=0.005)


@pytest.mark.parametrize("row", LOGS["starts"], ids=[row["id"] for row in LOGS["starts"]])
def test_cache_memory_of_a_real_start(row: dict[str, Any]) -> None:
    """From model, card and flags alone: within 3 % of the printed cache, and inside the stated interval."""
    asked = case(row, weights=row["weights"], utilization=row["fraction"])
    engine = Sglang(row.get("version"))
    budget = engine.replica(asked).budget
    assert budget.kv_budget / GIB == pytest.approx(row["kv_gib"], rel=0.03)
    assert budget.kv_low <= row["kv_gib"] * GIB <= budget.kv_high
    if row["weights_gib"] is not None:
        assert engine.loaded_bytes(asked) / GIB == pytest.approx(row["weights_gib"], rel=0.005)


@pytest.mark.parametrize("row", LOGS["loads"], ids=[row["id"] for row in LOGS["loads"]])
def test_what_loading_takes_is_what_was_printed(row: dict[str, Any]) -> None:
    """Tensors, rotary tables and the allocator's segments, within 0.7 % (tensors alone: up to 9 %)."""
    loaded = Sglang().loaded_bytes(case(row)) / GIB
    assert loaded == pytest.approx(row["weights_gib"], rel=0.007, abs=0.005)
