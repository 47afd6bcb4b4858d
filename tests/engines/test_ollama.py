"""Ollama on llama.cpp: its estimate against public logs, its defaults, its environment."""

from __future__ import annotations

import pytest

from headcount.engines import Case, Layout, Settings, engine
from headcount.engines.llamacpp.ollama import Ollama, default_context, estimated_bytes
from headcount.engines.llamacpp.weights import placed_weights
from headcount.errors import UsageError
from headcount.hardware import accelerator
from headcount.spec.reader import read_model
from headcount.units import MIB


def case(context: int, **settings: object) -> Case:
    return Case(
        model=read_model("llama-3.2-3b"),
        accelerator=accelerator("a100-80gb"),
        layout=Layout(),
        context=context,
        settings=Settings(**settings),
    )


def test_the_cache_of_a_public_log() -> None:
    """llama3.2:3b, --ctx-size 8192 --parallel 4: memory.required.kv 896.0 MiB (ollama #8098, 2024-12)."""
    asked = case(2048, max_num_seqs=4)
    pool = Ollama("2024-12-15").pool(asked, 896 * MIB)
    assert pool.tokens == 8192
    model = asked.model
    estimate = estimated_bytes(model, 8192) - placed_weights(model).file_bytes
    assert estimate == 896 * MIB


def test_real_allocations_are_llama_cpps() -> None:
    ours, theirs = Ollama().replica(case(8192, max_num_seqs=4)), engine("llama.cpp", "2026-08-21")
    assert ours.budget == theirs.replica(case(8192, max_num_seqs=4)).budget
    assert any("estimate" in term.name for term in ours.ledger.terms)


def test_defaults_by_memory() -> None:
    assert default_context(accelerator("h100-80gb")) == 262_144
    assert default_context(accelerator("rtx-4090")) == 32_768
    assert default_context(accelerator("rtx-4090"), gpus=2) == 262_144
    assert default_context(accelerator("h100-80gb"), trained=8192) == 8192


def test_launch_is_an_environment() -> None:
    made = Ollama().launch(case(8192, kv="q8_0"), model="llama3.2:3b", concurrency=4)
    environment = dict(made.environment)
    assert environment["OLLAMA_CONTEXT_LENGTH"] == "8192"
    assert environment["OLLAMA_NUM_PARALLEL"] == "4"
    assert environment["OLLAMA_KV_CACHE_TYPE"] == "q8_0"


def test_what_ollama_does_not_take() -> None:
    with pytest.raises(UsageError, match="no KV cache type"):
        Ollama().replica(case(8192, kv="q5_1"))
    with pytest.raises(UsageError, match="fb30760"):
        Ollama("latest")
