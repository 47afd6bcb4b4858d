"""The predicted compute buffer against what llama.cpp printed: on the CPU for models of real shapes, and on GPUs."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from test_llamacpp_caches import PRINTED, printed_model

from headcount.engines.llamacpp.builds import build
from headcount.engines.llamacpp.compute import ComputeBuffer, compute_buffer
from headcount.engines.llamacpp.options import cache_type, default_options
from headcount.spec.reader import read_model
from headcount.units import MIB

# Before-MLA files run another graph; f16 copies of quantised caches exist on CUDA only.
ROWS = [
    (name, row)
    for name, entry in PRINTED["shapes"].items()
    for row in entry["rows"]
    if not name.endswith("-before-mla") and "k" not in row["asked"]
]


def predict(name: str, asked: dict[str, Any]) -> ComputeBuffer:
    options = default_options(
        flash=asked.get("fa", 1) == 1, unified=asked.get("unified", False), ubatch=asked.get("ubatch", 512)
    )
    rules = build().replace(slot_outputs="outputs" in asked)
    return compute_buffer(
        printed_model("shapes", name), asked["n_ctx"], asked.get("slots", 1), options=options, rules=rules
    )


@pytest.mark.parametrize(("name", "row"), ROWS)
def test_every_printed_buffer_lies_in_the_interval(name: str, row: dict[str, Any]) -> None:
    found = predict(name, row["asked"])
    assert found.low <= row["compute_mib"][0] * MIB <= found.high


def test_most_are_exact() -> None:
    errors = [
        abs(predict(name, row["asked"]).expected / MIB / row["compute_mib"][0] - 1) for name, row in ROWS
    ]
    print(f"{len(errors)} buffers, worst {max(errors):.1%}, median {statistics.median(errors):.2%}")
    assert max(errors) < 0.13
    assert sum(error < 0.001 for error in errors) > 0.7 * len(errors)


# (source, model, n_ctx, flash, GPUs, version, printed MiB)
GPU_LOGS = [
    ("llama.cpp 22546, CUDA0", "qwen3.5-9b", 262144, True, 1, "2026-05-01", 808.02),
    ("logs of llama3.1:8b, 2024 and 2025, CUDA0", "llama3-8b", 8192, False, 1, "2024-08-30", 560.00),
    ("llama.cpp 12369, ROCm0, 5 GPUs", "qwq-32b", 32768, False, 1, "2025-03-13", 2664.00),
]


@pytest.mark.parametrize("log", GPU_LOGS, ids=[log[0] for log in GPU_LOGS])
def test_buffers_printed_for_gpus(log: tuple[str, str, int, bool, int, str, float]) -> None:
    _, name, n_ctx, flash, gpus, version, mib = log
    found = compute_buffer(
        printed_model("shapes", name),
        n_ctx,
        1,
        options=default_options(flash=flash),
        rules=build(version),
        gpus=gpus,
    )
    print(f"{found.expected / MIB:.2f} for {mib} MiB")
    assert found.low <= mib * MIB <= found.high


def test_inputs_are_held_four_times_when_layers_are_split() -> None:
    """Command-R on two GPUs, pipeline parallelism with 4 copies: CUDA0 672.01 MiB (pull request 6122, 2024-03)."""
    found = compute_buffer(
        read_model("command-r-35b"),
        4096,
        1,
        options=default_options(flash=False),
        rules=build("2024-03-25"),
        gpus=2,
    )
    print(f"{found.expected / MIB:.2f} for 672.01 MiB")
    assert found.binding == "attention"
    assert found.low <= 672.01 * MIB <= found.high


def test_a_quantised_cache_costs_f16_copies_on_cuda() -> None:
    """ggml-cuda/fattn.cu: one layer's keys and values of all streams, in f16, beside the masks."""
    options = default_options(key=cache_type("q8_0"), value=cache_type("q8_0"))
    found = compute_buffer(printed_model("shapes", "llama3-8b"), 131072, 1, options=options, rules=build())
    assert found.binding == "dequantised cache"
    # 131,072 cells x 2 x 1,024 x 2 B, and the mask of 131,072 x 512 x 2 B.
    assert found.expected == 131072 * 2 * 1024 * 2 + 131072 * 512 * 2
    assert found.low < found.expected


def test_copies_out_of_cudas_pool_are_not_printed() -> None:
    """Qwen3.6-27B, 131,072 unified cells in q8_0, 4 slots: 495.00 MiB printed on 2026-05-14, before #23907."""
    options = default_options(key=cache_type("q8_0"), value=cache_type("q8_0"), unified=True)
    model = read_model("qwen3.6-27b")
    found = compute_buffer(model, 131072, 4, options=options, rules=build("2026-05-14"))
    assert found.printed / MIB == pytest.approx(495, rel=0.05)
    # They are taken all the same: 131,072 cells x 2 x 1,024 x 2 B.
    assert found.expected - found.printed == 131072 * 2 * 1024 * 2
    newer = compute_buffer(model, 131072, 4, options=options, rules=build("2026-07-01"))
    assert newer.printed == newer.expected
