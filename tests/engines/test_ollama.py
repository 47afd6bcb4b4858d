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


@pytest.mark.parametrize(
    ("release", "source"),
    [
        # LLAMA_CPP_VERSION of the tags v0.30.0 and v0.32.15; Makefile.sync of the others, dated by their first tag.
        ("0.32.15", "llama.cpp b10488"),
        ("v0.30.0", "llama.cpp b9452"),
        ("0.31.1", "llama.cpp b9840"),
        ("0.24.0", "llama.cpp of 2025-12-18"),
        ("0.5.7", "llama.cpp of 2025-01-10"),
    ],
)
def test_a_release_carries_a_llama_cpp(release: str, source: str) -> None:
    found = Ollama(release)
    assert found.version == release.removeprefix("v")
    assert found.rules.source.startswith(source)
    image = found.launch(case(8192), model="x", concurrency=2).image
    assert image == f"docker.io/ollama/ollama:{found.version}"


def test_rules_of_releases_are_those_of_their_trees() -> None:
    """The vendored sources: LLAMA_MAX_SEQ 64 in 0.11.5, 256 in 0.12.4; no latent cache in 0.6.6, one in 0.6.7; sliding
    caches from 0.11.5; cells padded by the kernel in 0.12.11, to 256 in 0.13.2.
    """
    assert (Ollama("0.11.5").rules.most_slots, Ollama("0.12.4").rules.most_slots) == (64, 256)
    assert (Ollama("0.6.6").rules.latent, Ollama("0.6.7").rules.latent) == (False, True)
    assert (Ollama("0.7.0").rules.sliding, Ollama("0.11.5").rules.sliding) == (False, True)
    assert (Ollama("0.12.11").rules.cell_multiple_plain, Ollama("0.13.2").rules.cell_multiple_plain) == (
        32,
        256,
    )


def test_releases_that_start_no_llama_server_and_unread_ones_are_said() -> None:
    assert any("does not start llama-server" in w for w in Ollama("0.5.7").replica(case(8192)).warnings)
    assert any("rules of 0.32.15" in w for w in Ollama("0.40.1").replica(case(8192)).warnings)
    assert not any("Ollama 0" in w for w in Ollama("0.32.15").replica(case(8192)).warnings)


def test_what_ollama_does_not_take() -> None:
    with pytest.raises(UsageError, match="no KV cache type"):
        Ollama().replica(case(8192, kv="q5_1"))
    with pytest.raises(UsageError, match="give the day of the release, such as 2025-01-15"):
        Ollama("latest")
