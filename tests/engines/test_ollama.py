"""Ollama on llama.cpp: its estimate against public logs, its defaults, its environment."""

from __future__ import annotations

import pytest

from headcount.engines import Case, Layout, Settings, engine
from headcount.engines.llamacpp.caches import cache_bytes, total_cache_bytes
from headcount.engines.llamacpp.ollama import Ollama, default_context, estimated_bytes
from headcount.engines.llamacpp.weights import placed_weights
from headcount.errors import UsageError
from headcount.hardware import accelerator
from headcount.spec.reader import read_model
from headcount.units import GIB, MIB


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


def own_engine_bytes(version: str, model: str, n_ctx: int, slots: int, **arguments: str) -> int:
    """Bytes of the caches on Ollama's own engine."""
    given = {name.replace("_", "-"): value for name, value in arguments.items()} | {"ollama-engine": "true"}
    settings = Settings(max_num_seqs=slots, arguments=tuple(given.items()))
    found = Ollama(version)
    rules, options = found.rules_of(settings), found.options(settings)
    return total_cache_bytes(cache_bytes(read_model(model), n_ctx, slots, options=options, rules=rules))


@pytest.mark.parametrize(
    ("version", "model", "n_ctx", "slots", "arguments", "printed"),
    [
        # memory.required.kv="1.6 GiB" (0.9.6): 52 layers of 2 x 1,024 + 512 cells, 10 of 8,192
        ("0.9.6", "gemma-3-27b", 8192, 2, {"flash_attention": "false"}, 1.6),
        # memory.required.kv="992.0 MiB"
        ("2025-08-22", "gemma-3-12b", 8192, 1, {"flash_attention": "false"}, 992 / 1024),
        # "kv cache" of CUDA0 and CPU together, 2026-04-09
        ("2026-04-09", "qwen3-next-80b-a3b", 32768, 1, {}, 2.6),
        ("2026-04-09", "qwen3-next-80b-a3b", 32768, 1, {"kv_cache_type": "q8_0"}, 955.2 / 1024 + 1.3),
        ("2026-04-09", "qwen3-next-80b-a3b", 32768, 1, {"kv_cache_type": "q4_0"}, 875.2 / 1024 + 1.2),
    ],
)
def test_caches_of_the_own_engine(
    version: str, model: str, n_ctx: int, slots: int, arguments: dict[str, str], printed: float
) -> None:
    assert own_engine_bytes(version, model, n_ctx, slots, **arguments) / GIB == pytest.approx(
        printed, abs=0.05
    )


def test_the_own_engines_releases() -> None:
    """kvcache/causal.go: one more token a slot from 0.12.4; recurrent.go: 24 checkpoints from 0.17.1; 0.30 has no such engine."""
    own = Settings(arguments=(("ollama-engine", "true"),))
    assert [Ollama(version).rules_of(own).kept_more for version in ("0.12.3", "0.12.4")] == [0, 1]
    assert [Ollama(version).rules_of(own).checkpoints for version in ("0.15.4", "0.17.0", "0.17.1")] == [
        0,
        32,
        24,
    ]
    assert Ollama("2026-02-01").rules_of(own).checkpoints == 0
    assert Ollama("0.24.0").rules_of(own).own and not Ollama("0.30.0").rules_of(own).own
    assert not Ollama("0.24.0").rules_of(Settings()).own


def test_windows_of_the_own_engine() -> None:
    """gpt-oss keeps 4,096 tokens of each conversation, Gemma 3 its window and, with two slots, one token more."""
    gpt = own_engine_bytes("0.24.0", "gpt-oss-20b", 2 * 32768, 2)
    # 12 + 12 layers of 8 x 64 wide keys and values
    assert gpt == 12 * (2 * 32768 + 2 * 4096 + 512) * 2 * 8 * 64 * 2
    short = own_engine_bytes("0.24.0", "gpt-oss-20b", 2 * 4096, 2)
    assert short == 24 * 2 * 4096 * 2 * 8 * 64 * 2
    gemma = own_engine_bytes("0.24.0", "gemma-3-12b", 8192, 2) - own_engine_bytes(
        "0.12.3", "gemma-3-12b", 8192, 2
    )
    # 40 layers; 2 x 1,025 + 512 cells are padded to 2,816, 2 x 1,024 + 512 are 2,560.
    assert gemma == 40 * 256 * 2 * 8 * 256 * 2


def test_a_plan_on_the_own_engine_adds_up() -> None:
    """Gemma 3 12B: the towers are in the model's file, windows of 1,024 keep one token more with several slots."""
    asked = case(8192, weights="q4_k_m", arguments=(("ollama-engine", "true"),))
    asked = asked.replace(model=read_model("gemma-3-12b"), accelerator=accelerator("rtx-4090"))
    own, plain = Ollama("0.20.2"), asked.replace(settings=asked.settings.replace(arguments=()))
    found = own.replica(asked)
    towers = 2 * asked.model.tower_parameters
    assert found.budget.weights - own.replica(plain).budget.weights == towers
    assert own.loaded_bytes(asked) - own.loaded_bytes(plain) == towers
    shown = {term.name: term for term in found.ledger.terms}
    slots = found.conversations
    cells = shown["sliding KV: cells of a stream"]
    assert cells.value == -(-(slots * 1025 + 512) // 256) * 256
    assert cells.numbers.startswith(f"rup({slots} x 1,025 + 512, 256)")
    assert f"{towers:,}" in shown["weights on this GPU"].numbers
    assert any("own engine" in words for words in found.warnings) and not any(
        "mmproj" in words for words in found.warnings
    )
    assert ("OLLAMA_NEW_ENGINE", "1") in own.launch(asked, model="gemma3:12b", concurrency=2).environment
