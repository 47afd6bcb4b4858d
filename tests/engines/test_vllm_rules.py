"""The rules by release: facts read in the published source distributions, and measured start-ups."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headcount.engines.versions import release
from headcount.engines.vllm.rules import (
    CUBLAS_BYTES,
    CUBLAS_BYTES_SM90,
    LAST_WITH_BLOCK_TOKENS,
    RELEASED,
    RULES,
    batch_defaults,
    bytes_per_logit,
    is_prerelease,
    release_on,
    rules_for,
    runs_v2,
    sampler_peak_bytes,
)
from headcount.errors import UnknownNameError

GIB = 2**30

# (first release that has it, field, value, the release just before and its value, file in the sdist under vllm/).
# Both releases were opened; the file holds the statement in each.
FACTS: list[tuple[str, str, Any, str, Any, str]] = [
    ("0.4.1", "chunk_tokens", 768, "0.4.0", 0, "config.py SchedulerConfig"),
    ("0.4.2", "chunk_tokens", 512, "0.4.1", 768, "config.py SchedulerConfig"),
    ("0.5.1", "latent_cache", "256", "0.5.0", "", "config.py ModelConfig.get_head_size"),
    ("0.5.3", "chunked_above", 32768, "0.5.2", 0, "engine/arg_utils.py"),
    ("0.5.5", "logit_bytes", 40, "0.5.4", 30, "model_executor/layers/sampler.py"),
    ("0.6.2", "logit_bytes", 38, "0.6.1", 40, "model_executor/layers/sampler.py"),
    (
        "0.6.4",
        "charged_memory",
        "every byte on the device",
        "0.6.3",
        "growth of the reserved memory since before NCCL set-up",
        "worker/worker.py",
    ),
    ("0.6.5", "chunk_tokens", 2048, "0.6.4", 512, "config.py SchedulerConfig"),
    ("0.6.5", "largest_graph", 512, "0.6.4", 256, "config.py; worker/model_runner.py"),
    (
        "0.6.5",
        "charged_memory",
        "growth since before NCCL set-up",
        "0.6.4",
        "every byte on the device",
        "utils.py",
    ),
    ("0.7.0", "latent_cache", "query", "0.6.6", "256", "config.py ModelConfig.get_head_size"),
    ("0.7.1", "latent_cache", "latent", "0.7.0", "query", "config.py ModelConfig.use_mla"),
    ("0.8.0", "generation", "V1", "0.7.3", "V0", "envs.py VLLM_USE_V1"),
    ("0.8.0", "v0_below", 8.0, "0.7.3", 0.0, "engine/arg_utils.py _is_v1_supported_oracle"),
    ("0.8.0", "large_device", "name", "0.7.3", "", "engine/arg_utils.py"),
    ("0.8.4", "small_device_seqs", 256, "0.8.3", 1024, "engine/arg_utils.py"),
    ("0.8.5", "large_device", "memory", "0.8.4", "name", "engine/arg_utils.py"),
    ("0.9.0", "a100_is_large", False, "0.8.5", True, "engine/arg_utils.py"),
    ("0.9.0", "sampler_hidden_copies", 2, "0.8.5", 1, "v1/worker/gpu_model_runner.py"),
    ("0.9.0", "flashinfer_logit_bytes", 14, "0.8.5", 10, "v1/sample/ops/topk_topp_sampler.py"),
    ("0.9.1", "hybrid_manager", True, "0.9.0", False, "v1/core/kv_cache_utils.py get_kv_cache_config"),
    ("0.9.1", "free_checked", True, "0.9.0", False, "v1/worker/gpu_worker.py init_device"),
    (
        "0.9.1",
        "charged_memory",
        "growth since before NCCL set-up",
        "0.9.0",
        "every byte on the device",
        "v1/worker/gpu_worker.py",
    ),
    ("0.10.0", "chunked_freed", True, "0.9.2", False, "v1/kv_cache_interface.py"),
    ("0.10.0", "graph_seqs_factor", 2, "0.9.2", 0, "config.py SchedulerConfig"),
    ("0.10.1", "chunked_freed", False, "0.10.0", True, "envs.py, config/__init__.py"),
    ("0.10.1", "seqs_capped_by_tokens", True, "0.10.0", False, "engine/arg_utils.py"),
    ("0.10.1", "mxfp4_multiples", (64, 256), "0.10.0", (1, 1), "quantization/mxfp4.py create_weights"),
    ("0.10.2", "v0_below", 0.0, "0.10.1", 8.0, "engine/arg_utils.py _is_v1_supported_oracle"),
    ("0.10.2", "mamba_rule", "one", "0.10.1", "", "engine/arg_utils.py _is_v1_supported_oracle"),
    (
        "0.11.0",
        "charged_memory",
        "growth since after NCCL set-up",
        "0.10.2",
        "growth since before NCCL set-up",
        "v1/worker/gpu_worker.py init_device",
    ),
    ("0.11.1", "mamba_rule", "length", "0.11.0", "one", "v1/kv_cache_interface.py MambaSpec"),
    ("0.11.1", "flashinfer_sampler", "opt-in", "0.11.0", "installed", "v1/sample/ops/topk_topp_sampler.py"),
    ("0.11.1", "tokens_capped_by_seqs", True, "0.11.0", False, "engine/arg_utils.py"),
    ("0.11.1", "graph_step", 16, "0.11.0", 8, "config/vllm.py _set_cudagraph_sizes"),
    ("0.12.0", "widen_below", 1.25, "0.11.2", 0.0, "v1/core/kv_cache_utils.py"),
    ("0.12.0", "pages_unified", True, "0.11.2", False, "v1/core/kv_cache_utils.py get_kv_cache_groups"),
    ("0.14.0", "async_scheduling", True, "0.13.0", False, "config/scheduler.py"),
    ("0.14.0", "requested_rounding", "ceil", "0.13.0", "truncated", "v1/worker/utils.py request_memory"),
    ("0.14.0", "moe_workspace_kept", True, "0.13.0", False, "unquantized_fused_moe_method.py"),
    ("0.15.0", "mamba_rule", "mode", "0.14.1", "length", "v1/kv_cache_interface.py MambaSpec"),
    ("0.17.0", "logit_bytes", 14, "0.16.0", 38, "v1/sample/ops/topk_topp_triton.py"),
    ("0.17.0", "sparse_plain_heads", 16, "0.16.0", 0, "platforms/cuda.py _get_backend_priorities"),
    ("0.17.0", "sparse_plain_widths", (128,), "0.16.0", (), "mla/flashinfer_mla_sparse.py"),
    ("0.18.0", "widen_below", 1.5, "0.17.1", 1.25, "v1/core/kv_cache_utils.py"),
    ("0.18.0", "cuda_graphs_counted", "opt-in", "0.17.1", "no", "v1/worker/gpu_worker.py"),
    ("0.18.0", "swap_space", False, "0.17.1", True, "config/cache.py"),
    ("0.19.0", "mxfp4_multiples", (128, 256), "0.18.1", (64, 256), "fused_moe/oracle/mxfp4.py"),
    ("0.19.0", "sparse_plain_heads", 2**20, "0.18.1", 16, "platforms/cuda.py _get_backend_priorities"),
    ("0.19.0", "sparse_plain_widths", (128, 192), "0.18.1", (128,), "mla/flashinfer_mla_sparse.py"),
    ("0.20.0", "cuda_graphs_counted", "yes", "0.19.1", "opt-in", "envs.py"),
    ("0.20.0", "default_utilization", 0.92, "0.19.1", 0.90, "config/cache.py"),
    ("0.20.0", "packed_layout", "slots", "0.19.1", "", "v1/core/kv_cache_utils.py"),
    (
        "0.20.1",
        "tokens_from_concurrency",
        True,
        "0.20.0",
        False,
        "v1/core/kv_cache_utils.py _report_kv_cache_config",
    ),
    ("0.21.0", "flashinfer_sampler", "default", "0.20.2", "opt-in", "envs.py"),
    (
        "0.21.0",
        "rocm_prints_used_memory",
        False,
        "0.20.2",
        True,
        "platforms/rocm.py get_current_memory_usage",
    ),
    ("0.22.0", "mamba_all_speculative", True, "0.21.0", False, "v1/kv_cache_interface.py MambaSpec"),
    ("0.22.0", "v2_logit_bytes", 6, "0.21.0", 0, "v1/worker/gpu/sample/sampler.py"),
    ("0.24.0", "sparse_sm120", True, "0.23.0", False, "platforms/cuda.py _get_backend_priorities"),
    ("0.24.0", "shared_indexers", True, "0.23.0", False, "models/deepseek_v2.py DeepseekV2MLAAttention"),
    ("0.24.0", "v2_runner", "listed", "0.23.0", "plain", "config/vllm.py"),
    ("0.25.0", "v2_runner", "dense", "0.24.0", "listed", "config/vllm.py"),
    ("0.26.0", "in_flight_batches", True, "0.25.1", False, "v1/kv_cache_interface.py SlidingWindowSpec"),
    ("0.26.0", "v2_logit_bytes", 2, "0.25.1", 6, "v1/worker/gpu/sample/sampler.py"),
    ("0.27.0", "concurrency_per_group", True, "0.26.0", False, "v1/core/kv_cache_utils.py"),
    ("0.27.0", "packed_layout", "overlaid", "0.26.0", "slots", "v1/core/kv_cache_utils.py"),
    ("0.27.0", "charged_by_free_memory", True, "0.26.0", False, "utils/mem_utils.py memory_profiling"),
    ("0.28.0", "hybrid_prefix_caching", True, "0.27.1", False, "engine/arg_utils.py default_prefix_caching"),
    ("0.28.0", "tier_160_gib", True, "0.27.1", False, "engine/arg_utils.py get_batch_defaults"),
    ("0.28.0", "largest_graph_sm100", 1024, "0.27.1", 512, "config/vllm.py _set_cudagraph_sizes"),
    (
        "0.28.0",
        "mamba_default",
        ("align", "align"),
        "0.27.1",
        ("all", "align"),
        "model_executor/models/config.py",
    ),
    ("0.29.0", "null_block_reserved", True, "0.28.0", False, "v1/core/kv_cache_utils.py"),
    ("0.29.0", "packed_layout", "fitted", "0.28.0", "overlaid", "v1/core/kv_cache_utils.py"),
    ("0.29.0", "mamba_checkpoints", True, "0.28.0", False, "v1/kv_cache_interface.py MambaSpec"),
    ("0.29.0", "v2_runner", "all", "0.28.0", "dense", "config/vllm.py use_v2_model_runner"),
    ("0.29.0", "table_bytes", 4.125, "0.28.0", 0.0, "v1/worker/gpu/sample/penalties.py"),
    ("0.32.0", "mamba_modes", ("none", "align"), "0.31.0", ("none", "align", "all"), "config/cache.py"),
    ("0.33.0", "cublas_charged", False, "0.32.0", True, "v1/worker/gpu_worker.py init_device"),
    ("0.33.0", "logit_bytes", 14, "0.32.0", 2, "v1/worker/gpu/model_runner.py _dummy_sampler_run"),
]


@pytest.mark.parametrize(
    ("first", "field", "value", "before", "old", "file"), FACTS, ids=[f"{f[0]}-{f[1]}" for f in FACTS]
)
def test_a_change_begins_where_the_source_says(
    first: str, field: str, value: Any, before: str, old: Any, file: str
) -> None:
    assert getattr(rules_for(first), field) == value, file
    assert getattr(rules_for(before), field) == old, file


def test_every_release_with_a_change_is_in_the_table() -> None:
    firsts = {fact[0] for fact in FACTS} | {"0.4.0", "0.23.0"}
    assert set(RULES) == firsts
    assert list(RULES) == sorted(RULES, key=release, reverse=True)


def test_releases_between_changes_follow_the_older_one() -> None:
    assert rules_for("0.16.0").version == "0.15.0"
    assert rules_for("v0.8.5.post1").version == "0.8.5"
    assert rules_for("0.40.0").version == "0.33.0"
    assert rules_for("0.4.0.post1").version == "0.4.0"
    for text in ("0.3.3", "newest", "", "1"):
        with pytest.raises(UnknownNameError):
            rules_for(text)


def test_a_build_before_a_release_has_the_rules_of_the_one_before() -> None:
    # A public log of 0.20.2rc1.dev129 would be of the main branch between 0.20.1 and 0.20.2.
    assert rules_for("0.20.2rc1.dev129+g1a2b3c4d5").version == "0.20.1"
    assert rules_for("0.20.1rc0").version == "0.20.0"
    assert [
        is_prerelease(text) for text in ("0.9.0a1", "0.9.0.post1", "v0.19.0+cu130", "0.9.1.dev3+gabc")
    ] == [
        True,
        False,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("day", "version"),
    [
        # Days of https://pypi.org/project/vllm/#history
        ("2024-12-14", "0.6.4.post1"),
        ("2025-04-28", "0.8.5"),
        ("2025-05-01", "0.8.5"),
        ("2025-05-02", "0.8.5.post1"),
        ("2026-02-25", "0.15.1"),
        ("2026-02", "0.16.0"),
        ("2026-04-03", "0.19.0"),
        ("2030-01-01", "0.33.0"),
    ],
)
def test_the_release_of_a_day(day: str, version: str) -> None:
    assert release_on(day) == version


def test_days_are_in_order_and_before_the_first_there_is_none() -> None:
    assert list(RELEASED.values()) == sorted(RELEASED.values())
    assert len(RELEASED) == 79
    for day in ("2024-01-31", ""):
        with pytest.raises(UnknownNameError):
            release_on(day)
    assert not rules_for(LAST_WITH_BLOCK_TOKENS).tokens_from_concurrency


# "PyTorch activation peak memory" or "peak activation" as vLLM printed it, where the sampler's dummy run is the peak.
# (release, model, rows, vocabulary, tokens, hidden width, cuBLAS workspace, printed GiB, source)
_PLANNER = "https://github.com/llm-d-incubation/llm-d-planner/pull/205"
PEAKS = [
    # V0: 256 rows, tokens = max_model_len. The logs name no version; they are of 2024-12-14 and 2025-02-26.
    (
        "0.6.4",
        "Meta-Llama-3-8B",
        256,
        128256,
        8192,
        4096,
        CUBLAS_BYTES_SM90,
        1.26,
        "vllm-project/vllm#10511",
    ),
    ("0.7.3", "Qwen2.5-7B 4-bit", 256, 152064, 4096, 3584, CUBLAS_BYTES, 1.42, "vllm-project/vllm#13882"),
    # V1 on H100: 1024 rows, 8192 tokens. The first three name no version and are of 2026-02: 0.11.1 to 0.16.0 count
    # the same.
    ("0.16.0", "gpt-oss-20b", 1024, 201088, 8192, 2880, CUBLAS_BYTES_SM90, 7.38, _PLANNER),
    ("0.16.0", "Qwen3-0.6B", 1024, 151936, 8192, 1024, CUBLAS_BYTES_SM90, 5.56, _PLANNER),
    ("0.16.0", "Qwen3-32B", 1024, 151936, 8192, 5120, CUBLAS_BYTES_SM90, 5.64, _PLANNER),
    ("0.19.0", "gpt-oss-20b", 1024, 201088, 8192, 2880, CUBLAS_BYTES_SM90, 2.87, _PLANNER),
    ("0.19.0", "gemma-2-27b-it", 1024, 256000, 8192, 4608, CUBLAS_BYTES_SM90, 3.66, _PLANNER),
    ("0.19.0", "gemma-2-2b-it", 1024, 256000, 8192, 2304, CUBLAS_BYTES_SM90, 3.62, _PLANNER),
    ("0.19.0", "gemma-7b", 1024, 256000, 8192, 3072, CUBLAS_BYTES_SM90, 3.63, _PLANNER),
    ("0.19.0", "Kimi-Dev-72B", 1024, 152064, 8192, 8192, CUBLAS_BYTES_SM90, 2.29, _PLANNER),
    ("0.19.0", "Qwen2.5-7B-Instruct", 1024, 152064, 8192, 3584, CUBLAS_BYTES_SM90, 2.21, _PLANNER),
    ("0.19.0", "Qwen3-8B", 1024, 151936, 8192, 4096, CUBLAS_BYTES_SM90, 2.21, _PLANNER),
    ("0.19.0", "Llama-3.3-70B-Instruct", 1024, 128256, 8192, 8192, CUBLAS_BYTES_SM90, 1.96, _PLANNER),
]


@pytest.mark.parametrize("row", PEAKS, ids=[f"{row[0]}-{row[1]}" for row in PEAKS])
def test_the_counted_tensors_are_the_measured_peak(row: tuple[Any, ...]) -> None:
    """Nothing here is fitted: tensors counted in the source against the figure of a start-up log, within 0.01 GiB."""
    version, _, rows, vocabulary, tokens, hidden, cublas, printed, source = row
    rules = rules_for(version)
    counted = cublas + sampler_peak_bytes(
        bytes_per_logit(rules, rows=rows),
        rules,
        rows=rows,
        vocabulary=vocabulary,
        tokens=tokens,
        hidden=hidden,
    )
    assert abs(counted / GIB - printed) < 0.01, source


def test_bytes_per_logit_in_the_other_paths() -> None:
    # Tensors by hand: 2 + 4 + 4 + 8 and the whole sort's 8 + 8 + 4 + 4 + 8; cub sorts fewer than 128 rows as one.
    assert bytes_per_logit(rules_for("0.10.2"), rows=64) == 2 + 4 + 4 + 8 + 8 + 8 + 4 + 4 + 8
    assert bytes_per_logit(rules_for("0.5.0"), rows=64) == 2 + 2 + 8 + 8 + 8 + 2 + 2 + 8
    assert bytes_per_logit(rules_for("0.11.0"), rows=1024, flashinfer=True) == 2 + 4 + 4 + 4
    assert bytes_per_logit(rules_for("0.15.0"), rows=1024, flashinfer=False) == 38
    assert bytes_per_logit(rules_for("0.24.0"), rows=1024, v2=True) == 2 + 4
    assert bytes_per_logit(rules_for("0.24.0"), rows=1024) == 14
    assert bytes_per_logit(rules_for("0.31.0"), rows=1024) == 2


@pytest.mark.parametrize(
    ("version", "model", "expected"),
    [
        # config/vllm.py _is_default_v2_model_runner_model and use_v2_model_runner of each release
        ("0.21.0", {"architecture": "Qwen3ForCausalLM"}, False),
        ("0.22.1", {"architecture": "Qwen3ForCausalLM"}, True),
        ("0.22.1", {"architecture": "Qwen3ForCausalLM", "quantized": True}, False),
        ("0.22.1", {"architecture": "LlamaForCausalLM"}, False),
        ("0.23.0", {"architecture": "LlamaForCausalLM"}, True),
        ("0.24.0", {"architecture": "LlamaForCausalLM", "quantized": True}, True),
        ("0.24.0", {"architecture": "Gemma2ForCausalLM"}, False),
        ("0.25.1", {"architecture": "Gemma2ForCausalLM"}, True),
        ("0.25.1", {"architecture": "Qwen3MoeForCausalLM", "experts": True}, False),
        ("0.25.1", {"architecture": "Qwen2MoeForCausalLM", "experts": True}, True),
        ("0.28.0", {"architecture": "DeepseekV4ForCausalLM", "experts": True}, True),
        ("0.28.0", {"architecture": "FalconH1ForCausalLM", "hybrid": True}, False),
        ("0.29.0", {"architecture": "Qwen3MoeForCausalLM", "experts": True}, True),
    ],
)
def test_which_runner(version: str, model: dict[str, Any], expected: bool) -> None:
    assert runs_v2(rules_for(version), **model) is expected


@pytest.mark.parametrize(
    ("version", "device", "gib", "server", "length", "expected"),
    [
        # engine/arg_utils.py of each release
        ("0.4.1", "NVIDIA H100", 79, True, 4096, (4096, 256)),
        ("0.5.0", "NVIDIA H100", 79, True, 131072, (131072, 256)),
        ("0.5.4", "NVIDIA H100", 79, True, 131072, (512, 256)),
        ("0.7.3", "NVIDIA H100", 79, True, 131072, (2048, 256)),
        ("0.8.3", "NVIDIA H100 80GB HBM3", 79, True, 8192, (8192, 1024)),
        ("0.8.3", "NVIDIA A100-SXM4-80GB", 79, True, 8192, (2048, 1024)),
        ("0.8.4", "NVIDIA A100-SXM4-80GB", 79, True, 8192, (2048, 256)),
        ("0.8.5", "NVIDIA A100-SXM4-80GB", 79, True, 8192, (8192, 1024)),
        ("0.9.0", "NVIDIA A100-SXM4-80GB", 79, True, 8192, (2048, 256)),
        ("0.19.0", "NVIDIA H100 80GB HBM3", 79, False, 8192, (16384, 1024)),
        ("0.19.0", "NVIDIA L40S", 44, False, 8192, (8192, 256)),
        ("0.27.1", "NVIDIA B200", 178, True, 8192, (8192, 1024)),
        ("0.28.0", "NVIDIA B200", 178, True, 8192, (16384, 1024)),
        # NVML tells no memory of a GB10, which counts as a small device (pull request 57378 measured these).
        ("0.27.1", "NVIDIA GB10", 119, True, 8192, (2048, 256)),
        ("0.33.0", "NVIDIA GB10", 119, True, 8192, (2048, 256)),
        ("0.11.0", "NVIDIA L40S", 44, True, 4, (2048, 256)),
        ("0.11.1", "NVIDIA L40S", 44, True, 4, (1024, 256)),
    ],
)
def test_batch_defaults(
    version: str, device: str, gib: int, server: bool, length: int, expected: tuple[int, int]
) -> None:
    found = batch_defaults(
        rules_for(version), device_bytes=gib * GIB, device_name=device, server=server, max_model_len=length
    )
    assert found == expected


def test_blocks_of_experts_are_refined_since_0_29() -> None:
    """768 / 4 = 192 columns are no whole blocks of 128, but of 64 = gcd(128, 128, 192, 2048) (fused_moe/oracle/fp8.py)."""
    from headcount.engines.base import Layout
    from headcount.engines.vllm.refusals import vllm_refusal
    from headcount.spec.reader import read_model

    model = read_model("qwen3-30b-a3b-fp8")
    assert "not whole groups of 128" in (vllm_refusal(model, Layout(tp=4), "0.28.0") or "")
    assert vllm_refusal(model, Layout(tp=4), "0.29.0") is None
    assert vllm_refusal(model, Layout(tp=2), "0.28.0") is None


def test_layers_that_draft_are_weights_too(ask: Callable[[str], dict[str, Any]]) -> None:
    """DeepSeek-V3's prediction module holds 11.5 billion parameters of its own (README_WEIGHTS.md of the release), fp8 here."""
    question = "fit deepseek-v3 --gpu h200 --gpus 8 --tp 8 --context 8192"
    plain = ask(question)
    drafts = "--engine-arg speculative-method=mtp --engine-arg num-speculative-tokens=1"
    drafting = ask(f"{question} {drafts}")
    more = drafting["per_gpu"]["weight_bytes"] - plain["per_gpu"]["weight_bytes"]
    # The projection of 2 D x D stays whole and in 16 bits on each rank, the rest is an eighth.
    projection = 2 * 7168**2
    assert 8 * (more - 2 * projection) + projection == pytest.approx(11.5e9, rel=0.03)
    assert drafting["conversations"] < plain["conversations"]
    assert any("prediction" in warning for warning in plain["warnings"])
    assert not any("prediction" in warning for warning in drafting["warnings"])


def test_a_drafter_of_its_own_is_said_not_to_be_counted(ask: Callable[[str], dict[str, Any]]) -> None:
    drafts = "--engine-arg speculative-method=eagle3 --engine-arg num-speculative-tokens=3"
    plan = ask(f"fit llama-3.1-8b --gpu h100-80gb --context 8192 {drafts}")
    assert any("its weights are not counted" in warning for warning in plan["warnings"])


@pytest.mark.parametrize("stated", [True, 5, 1.5, {"a": 1}, [], [3], "LlamaForCausalLM"])
def test_architectures_may_be_anything(
    stated: object, tmp_path: Path, ask: Callable[[str], dict[str, Any]]
) -> None:
    config = {
        "model_type": "llama",
        "architectures": stated,
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "vocab_size": 1000,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert ask(f"fit {path} --gpu h100-80gb --context 1024")["conversations"] > 0
