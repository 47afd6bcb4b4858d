"""The engine's contract: what one GPU holds, what is refused, what is launched."""

from __future__ import annotations

import pytest

from headcount.engines import Case, Layout, Settings, engine
from headcount.engines.calibration import Calibration
from headcount.engines.llamacpp.engine import LlamaCpp
from headcount.engines.llamacpp.options import read_options
from headcount.engines.llamacpp.stages import split_items
from headcount.errors import UnknownNameError, UsageError
from headcount.hardware import accelerator
from headcount.spec.reader import read_model
from headcount.units import GIB, MIB


def case(model: str, gpu: str, context: int, *, pp: int = 1, **settings: object) -> Case:
    return Case(
        model=read_model(model),
        accelerator=accelerator(gpu),
        layout=Layout(pp=pp),
        context=context,
        settings=Settings(**settings),
    )


def test_the_budget_adds_up_and_the_slots_fit_it() -> None:
    asked = case("llama-3-8b", "rtx-4090", 8192, weights="q4_k_m")
    found = LlamaCpp().replica(asked)
    budget = found.budget
    spent = budget.reserved + budget.weights + sum(size for _, size in budget.overhead)
    assert budget.memory == spent + budget.kv_budget
    # 32 layers x 8,192 cells x 2 x 1,024 x 2 B a slot.
    assert found.kv_bytes_per_conversation_per_gpu == GIB
    assert found.conversations * GIB <= budget.kv_budget < (found.conversations + 1) * GIB
    assert 0 < found.low <= found.conversations <= found.high
    assert found.ledger.terms[-1].value == found.conversations


def test_weights_leave_the_token_embedding_with_the_cpu() -> None:
    """CUDA0 model buffer of Llama-3-8B Q4_K_M: the file less token_embd (Q4_K, 128,256 x 4,096 x 4.5 bits)."""
    asked = case("llama-3-8b", "rtx-4090", 8192, weights="q4_k_m")
    table = 128_256 * 4096 // 256 * 144
    held = LlamaCpp().replica(asked).budget.weights
    assert held == pytest.approx(4_912_898_048 - table, rel=1e-5)
    # As llama.cpp printed it for llama3.1:8b in many logs of 2024 and 2025: CPU_Mapped 281.81 MiB, CUDA0 4403.49 MiB.
    assert table / MIB == pytest.approx(281.81, abs=0.01)
    assert held / MIB == pytest.approx(4403.49, abs=0.01)
    # A log's weights are the whole file's: model size = 4.58 GiB there.
    assert LlamaCpp().loaded_bytes(asked) == 4_912_898_048


def test_a_tied_table_is_held_again_beside_the_output() -> None:
    asked = case("gemma-3-27b", "h100-80gb", 8192, weights="bf16")
    whole = 2 * asked.model.parameters
    assert LlamaCpp().replica(asked).budget.weights == pytest.approx(whole, rel=1e-3)


def test_layers_are_dealt_out_by_position() -> None:
    assert split_items(32, 1, None) == [(0, 33)]
    assert split_items(32, 2, None) == [(0, 17), (17, 33)]
    assert split_items(40, 4, None) == [(0, 11), (11, 21), (21, 31), (31, 41)]
    # -ngl 1 is the output alone, -ngl 11 the last ten blocks and the output.
    assert split_items(32, 1, 1) == [(32, 33)]
    assert split_items(32, 1, 11) == [(22, 33)]
    for pp in (1, 2, 3, 5, 7):
        dealt = [item for item in range(33) for gpu in range(pp) if item * pp // 33 == gpu]
        cuts = split_items(32, pp, None)
        assert [item for start, end in cuts for item in range(start, end)] == dealt
        assert all(
            item * pp // 33 == gpu for gpu, (start, end) in enumerate(cuts) for item in range(start, end)
        )


def test_the_build_bounds_the_slots() -> None:
    found = LlamaCpp("b9500").replica(case("qwen3-0.6b", "h200-141gb", 256))
    assert found.conversations == 256
    assert "slots" in found.binding
    assert LlamaCpp("2025-08-01").replica(case("qwen3-0.6b", "h200-141gb", 256)).conversations == 64


def test_parallel_bounds_the_slots() -> None:
    arguments = (("parallel", "3"),)
    found = LlamaCpp().replica(case("qwen3-0.6b", "h100-80gb", 4096, arguments=arguments))
    assert found.conversations == 3


def test_nothing_fits_is_said() -> None:
    found = LlamaCpp().replica(case("llama-2-70b", "rtx-4090", 4096))
    assert found.conversations == 0
    assert "no memory" in found.binding


def test_pool_prints_the_cells_of_a_log() -> None:
    """16384.00 + 598.50 MiB for 262,144 cells, 4 slots, unified (lmstudio-bug-tracker #1862)."""
    arguments = (("kv-unified", "true"), ("parallel", "4"))
    asked = case("qwen3.6-27b", "h100-80gb", 262144, arguments=arguments)
    pool = LlamaCpp("2026-04-26").pool(asked, round(16982.5 * MIB))
    assert pool.tokens == 262_144
    assert pool.bytes_per_token == 65_536


@pytest.mark.parametrize("model", ["t5-base", "deepseek-v4-flash", "opt-6.7b", "zamba2-7b"])
def test_models_that_are_refused(model: str) -> None:
    assert LlamaCpp().refusal(read_model(model), Layout()) is not None


def test_only_layers_are_split() -> None:
    model = read_model("llama-3-8b")
    reason = LlamaCpp().refusal(model, Layout(tp=2))
    assert reason is not None
    assert "by layers" in reason
    assert LlamaCpp().refusal(model, Layout(pp=2)) is None


def test_kv_names_and_arguments() -> None:
    rules = LlamaCpp().rules
    both = read_options(Settings(kv="q8_0"), rules)
    assert (both.key.name, both.value.name) == ("q8_0", "q8_0")
    keys = read_options(Settings(kv="f16", arguments=(("cache_type_k", "q8_0"),)), rules)
    assert (keys.key.name, keys.value.name) == ("q8_0", "fp16")
    with pytest.raises(UsageError, match="no KV cache type"):
        read_options(Settings(kv="fp8"), rules)
    with pytest.raises(UsageError):
        read_options(Settings(arguments=(("gpu-memory-utilization", "0.9"),)), rules)
    with pytest.raises(UnknownNameError, match="GGUF"):
        LlamaCpp().replica(case("llama-3-8b", "rtx-4090", 4096, weights="awq"))


def test_a_calibration_replaces_what_is_inferred() -> None:
    """Total and unaccounted of an RTX 4090: 24,080 and 451 MiB (llama.cpp #15860)."""
    measured = Calibration(
        engine="llama.cpp",
        engine_version="0c1e57098",
        model="llama-3-8b",
        gpu="rtx-4090",
        tp=1,
        pp=1,
        origin="llama.cpp #15860",
        device_bytes=24_080 * MIB,
        non_torch_bytes=451 * MIB,
    )
    plain = LlamaCpp().replica(case("llama-3-8b", "rtx-4090", 8192)).budget
    found = LlamaCpp().replica(case("llama-3-8b", "rtx-4090", 8192, calibration=measured)).budget
    assert found.memory == 24_080 * MIB
    assert dict(found.overhead)["CUDA context and kernels"] == 451 * MIB
    assert plain.kv_low < found.kv_low <= found.kv_budget <= found.kv_high < plain.kv_high


def test_launch_says_every_figure() -> None:
    asked = case("llama-3-8b", "rtx-4090", 8192, kv="q8_0", arguments=(("ubatch-size", "1024"),))
    made = LlamaCpp("b7000").launch(asked, model="llama.gguf", concurrency=4)
    line = " ".join(made.argv)
    for part in (
        "-m llama.gguf",
        "-c 32768",
        "-np 4",
        "-ub 1024",
        "-ctk q8_0",
        "-ctv q8_0",
        "-fa on",
        "--metrics",
    ):
        assert part in line
    assert made.image == "ghcr.io/ggml-org/llama.cpp:server-cuda-b7000"
    assert (made.port, made.health, made.metrics) == (8080, "/health", "/metrics")
    assert "-hf" in LlamaCpp().launch(asked, model="ggml-org/x-GGUF", concurrency=4).argv
    with pytest.raises(UsageError, match="256"):
        LlamaCpp().launch(asked, model="x.gguf", concurrency=300)


def test_the_door() -> None:
    assert engine("llama.cpp").version == "0c1e57098"
    assert engine("llama-server", "7000").version == "b7000"
