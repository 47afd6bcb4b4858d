"""SGLang's wordings of 2025-02 to 2026-10, verbatim lines of public logs: old ones, command lines, pairs of pools, states."""

from __future__ import annotations

import pytest

from headcount.spec.reader import read_model
from headcount.verify.case_of import ask
from headcount.verify.logs import LogReading, read_log
from headcount.verify.observation import Observation


def read_text(*lines: str, end: str = "\n") -> LogReading:
    return read_log([("\n".join(lines) + end).encode()], name="pasted")


def one(*lines: str) -> Observation:
    (observation,) = read_text(*lines).observations
    return observation


# DeepSeek-R1-Distill-Qwen-7B, SGLang 0.4.2, 2025-02-04, a public GitHub repository (the dump is shortened).
OLD = (
    "[2025-02-04 05:21:33] server_args=ServerArgs(model_path='/sgl-workspace/models/DeepSeek-R1-Distill-Qwen-7B', "
    "dtype='auto', kv_cache_dtype='auto', quantization=None, context_length=None, mem_fraction_static=0.88, tp_size=1)",
    "[2025-02-04 05:21:40 TP0] Load weight begin. avail mem=22.76 GB",
    "[2025-02-04 05:29:17 TP0] Load weight end. type=Qwen2ForCausalLM, dtype=torch.bfloat16, avail mem=8.37 GB",
    "[2025-02-04 05:29:17 TP0] KV Cache is allocated. K size: 2.82 GB, V size: 2.82 GB.",
    "[2025-02-04 05:29:17 TP0] Memory pool end. avail mem=1.68 GB",
    "[2025-02-04 05:29:20 TP0] max_total_num_tokens=105531, chunked_prefill_size=2048, max_prefill_tokens=16384, "
    "max_running_requests=2049, context_len=131072",
)


def test_pools_without_tokens_and_weights_as_a_difference() -> None:
    """0.4.2 prints K and V alone, and only what is free before and after loading."""
    found = one(*OLD)
    assert (found.weights_gib, found.kv_cache_memory_gib, found.kv_cache_tokens) == (14.39, 5.64, 105_531)
    assert found.gpu_memory_utilization == 0.88


def test_a_pool_without_tokens_says_none() -> None:
    found = one(*OLD[:5])
    assert (found.kv_cache_memory_gib, found.kv_cache_tokens) == (5.64, None)


def test_a_log_that_only_loads_gives_the_weights() -> None:
    assert one(*OLD[:3]).weights_gib == 14.39
    assert read_text(*OLD[:2]).observations == ()


def test_half_a_line_gives_no_weights() -> None:
    """A difference is taken only where the line prints no usage: here it would be 6.24."""
    begin = "[2026-02-01 00:05:02 TP0] Load weight begin. avail mem=15.50 GB"
    line = "[2026-02-01 00:05:03 TP0] Load weight end. elapsed=1.25 s, avail mem=9.26 GB, mem usage=5.98 GB."
    for cut in range(1, len(line)):
        weights = [found.weights_gib for found in read_text(begin, line[:cut], end="").observations]
        assert weights in ([], [5.98]), line[:cut]


def test_memory_that_grew_while_loading_says_nothing() -> None:
    assert read_text(OLD[1], OLD[2].replace("8.37", "30.37")).observations == ()


def test_a_draft_models_difference_is_its_own() -> None:
    found = one(
        "[2025-02-04 05:21:40 TP0] Load weight begin. avail mem=22.76 GB",
        "[2025-02-04 05:29:17 TP0] Load weight end. type=A, dtype=torch.bfloat16, avail mem=8.37 GB",
        "[2025-02-04 05:29:40 TP0] Load weight begin. avail mem=8.37 GB",
        "[2025-02-04 05:29:47 TP0] Load weight end. type=B, dtype=torch.bfloat16, avail mem=7.37 GB",
    )
    assert found.weights_gib == 14.39
    assert "more than one model" in found.notes


# LFM2-700M, 2025-12-29, a public GitHub repository; the command is broken where it was pasted.
BENCH = (
    "python -m sglang.bench_one_batch --model-path LiquidAI/LFM2-700M --batch 4 -",
    "-input-len 2048 --output-len 1024 --attention-backend triton",
    "[2025-12-29 18:33:03 TP0] Load weight begin. avail mem=15.33 GB",
    "[2025-12-29 18:33:03 TP0] Load weight end. type=Lfm2ForCausalLM, dtype=torch.bfloat16, avail mem=13.81 GB, "
    "mem usage=1.52 GB.",
    "[2025-12-29 18:33:03 TP0] Mamba Cache is allocated. max_mamba_cache_size: 85292, conv_state size: 4.88GB, "
    "ssm_state size: 0.00GB ",
    "[2025-12-29 18:33:03 TP0] KV Cache is allocated. #tokens: 473854, K size: 2.71 GB, V size: 2.71 GB",
    "max_total_num_tokens=473854",
    "Warmup ...",
)


def test_a_benchmark_prints_its_tokens_alone() -> None:
    found = one(*BENCH)
    assert (found.model, found.weights_gib) == ("LiquidAI/LFM2-700M", 1.52)
    assert (found.kv_cache_tokens, found.kv_cache_memory_gib) == (473_854, 5.42)


def test_tokens_cut_off_are_not_read() -> None:
    (found,) = read_text(*BENCH[:5], "max_total_num_tokens=4738", end="").observations
    assert found.kv_cache_tokens is None


def test_a_command_of_several_lines() -> None:
    """Qwen3.5-9B, 2026-04-14, 'Exp-001: Qwen3.5-9B TP=4' in a public GitHub repository."""
    found = one(
        "CUDA_VISIBLE_DEVICES=0,2 python -m sglang.launch_server \\",
        "    --model-path 'Qwen/Qwen3.5-9B' \\",
        "    --port 9991 \\",
        "    --tp-size 2 \\",
        "    --mem-fraction-static 0.8 \\",
        "    --context-length 262144 \\",
        "    --reasoning-parser qwen3 \\",
        "    2>&1 | tee sglang-exp001-enable-metrics.log",
        "[2026-04-14 16:08:49 TP0] KV Cache is allocated. #tokens: 327310, K size: 2.50 GB, V size: 2.50 GB",
    )
    assert (found.model, found.tensor_parallel) == ("Qwen/Qwen3.5-9B", 2)
    assert (found.gpu_memory_utilization, found.max_model_len) == (0.8, 262_144)


@pytest.mark.parametrize(
    ("command", "model", "tp", "share"),
    [
        # https://github.com/vllm-project/vllm/issues/21348
        (
            "python3 -m sglang.launch_server --model /path/to/Qwen3-235B-A22B-FP8 --tp 4 --trust-remote-code "
            "--host 0.0.0.0 --port 8000 --mem-fraction-static 0.93",
            "/path/to/Qwen3-235B-A22B-FP8",
            4,
            0.93,
        ),
        # Kimi-K2.5 on MI355X, 2026-02-26, a public GitHub repository.
        (
            "sglang serve --model-path moonshotai/Kimi-K2.5 --tp 8 --trust-remote-code --tool-call-parser kimi_k2",
            "moonshotai/Kimi-K2.5",
            8,
            None,
        ),
        ("sglang serve org/name --tensor-parallel-size=2", "org/name", 2, None),
        # The shell's variables are no values.
        ("python -m sglang.launch_server --model-path $MODEL --tp ${TP} --dp 1", None, None, None),
        ("  Example: sglang serve --model-path <model> [options]", None, None, None),
        ("Usage: sglang serve --model-path MODEL --tp 2", None, None, None),
        # Clients.
        ("python -m sglang.bench_serving --backend sglang --model org/name --tp 2", None, None, None),
        ("python -m sglang.bench_one_batch_server --model org/name --tp 2", None, None, None),
        ("vllm serve org/name --tp 2", None, None, None),
    ],
)
def test_what_a_command_line_says(
    command: str, model: str | None, tp: int | None, share: float | None
) -> None:
    found = one(command, "KV Cache is allocated. #tokens: 367404, K size: 8.23 GB, V size: 8.23 GB")
    assert (found.model, found.tensor_parallel, found.gpu_memory_utilization) == (model, tp, share)


def test_a_word_that_the_end_cuts_off_is_not_read_and_no_key_is_kept() -> None:
    reading = read_text(
        "KV Cache is allocated. #tokens: 367404, K size: 8.23 GB, V size: 8.23 GB",
        "python -m sglang.launch_server --api-key sk-1 --tp 4 --mem-fraction-static 0.9",
        end="",
    )
    (found,) = reading.observations
    assert (found.tensor_parallel, found.gpu_memory_utilization) == (4, None)
    assert "sk-1" not in repr(reading)


def test_the_resolved_arguments_outrank_the_command() -> None:
    found = one(
        "python -m sglang.launch_server --model-path org/name --tp 2 --mem-fraction-static 0.9",
        "[2026-04-14 16:08:40] server_args=ServerArgs(model_path='org/name', tp_size=2, mem_fraction_static=0.765)",
        "[2026-04-14 16:08:49 TP0] KV Cache is allocated. #tokens: 327310, K size: 2.50 GB, V size: 2.50 GB",
    )
    assert found.gpu_memory_utilization == 0.765


def test_a_command_after_a_finished_start_opens_the_next() -> None:
    first, second = read_text(
        *BENCH,
        "python -m sglang.bench_one_batch --model-path org/name",
        BENCH[5],
        "max_total_num_tokens=473854",
    ).observations
    assert (first.model, second.model) == ("LiquidAI/LFM2-700M", "org/name")


def test_arguments_printed_as_a_dict() -> None:
    """entrypoints/engine.py from 0.5.20 on: ``server_args={server_args.resolved_dict()}``."""
    found = one(
        "[2026-10-30 10:00:00] server_args={'model_path': 'org/name', 'tp_size': 4, 'mem_fraction_static': 0.83, "
        "'kv_cache_dtype': 'fp8_e4m3', 'attn_dp_size': 4, 'disable_radix_cache': True}",
        "[2026-10-30 10:00:09 TP0] KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 327310, "
        "K size: 2.50 GB, V size: 2.50 GB",
    )
    assert (found.model, found.tensor_parallel, found.gpu_memory_utilization) == ("org/name", 4, 0.83)
    assert dict(found.arguments) == {"attn-dp-size": "4", "disable-radix-cache": "true"}


@pytest.mark.parametrize(("kernels", "in_force"), [("triton", 0.826), ("aiter", 0.702)])
def test_a_printed_fraction_is_in_force(kernels: str, in_force: float) -> None:
    """Kimi-K2.5 on MI355X logs triton, which keeps no part of it; with aiter its factor is in the figure already."""
    found = one(
        f"[2026-02-26 16:30:34] server_args=ServerArgs(model_path='moonshotai/Kimi-K2.5', context_length=None, "
        f"mem_fraction_static={in_force}, tp_size=8, attention_backend='{kernels}')",
        "[2026-02-26 16:41:18 TP0] KV Cache is allocated. #tokens: 2454421, KV size: 160.63 GB",
    ).replace(gpu="MI355X", gpu_count=8)
    asked = ask(found, read_model("kimi-k2.5"))
    assert asked.case.context > 8192
    assert asked.engine.default_utilization(asked.case) == pytest.approx(in_force)


# MiMo-V2-Flash, 2026-01-31, a public GitHub repository: cut before the second pool.
PAIR = (
    "[2026-01-31 13:50:39 TP2] Use sliding window memory pool. full_layer_tokens=375360, swa_layer_tokens=300288",
    "[2026-01-31 13:50:39 TP1] Use sliding window memory pool. full_layer_tokens=375360, swa_layer_tokens=300288",
    "[2026-01-31 13:50:39 TP1] KV Cache is allocated. #tokens: 300288, K size: 8.38 GB, V size: 5.59 GB",
    "[2026-01-31 13:50:39 TP2] KV Cache is allocated. #tokens: 300288, K size: 8.38 GB, V size: 5.59 GB",
)


def test_the_sliding_pool_alone_is_not_the_cache() -> None:
    found = one(*PAIR)
    assert (found.kv_cache_tokens, found.kv_cache_memory_gib) == (375_360, None)
    assert found.notes == "one pool of two is shown: the cache memory is not read"


def test_both_pools_are_summed() -> None:
    full = (
        "[2026-01-31 13:50:39 TP{}] KV Cache is allocated. #tokens: 375360, K size: 1.21 GB, V size: 0.81 GB"
    )
    found = one(*PAIR, full.format(1), full.format(2))
    assert (found.kv_cache_tokens, found.kv_cache_memory_gib) == (
        375_360,
        pytest.approx(8.38 + 5.59 + 1.21 + 0.81),
    )


def test_the_pair_as_older_releases_write_it() -> None:
    """model_runner.py of 0.5.3: "Use Sliding window memory pool."."""
    assert one(PAIR[0].replace("Use sliding", "Use Sliding")).kv_cache_tokens == 375_360


@pytest.mark.parametrize(
    ("line", "memory"),
    [
        # DeepSeek-V4-Flash, 2026-05-15, a public GitHub repository.
        (
            "DSv4 memory calculation: bytes_per_full_token=15955.85, available_bytes=19.58 GB, full_token=1317632",
            19.58,
        ),
        # pool_configurator.py of 0.5.15.
        (
            "DSV4 memory calculation: bytes_per_full_token=15955.85, available_bytes=19.58 GB, "
            "c128_state_fixed=0.01 GB, full_token=1317632",
            19.58,
        ),
    ],
)
def test_compressed_attention_prints_its_bytes(line: str, memory: float) -> None:
    found = one(f"[2026-05-15 09:09:53 TP0] {line}")
    assert (found.kv_cache_memory_gib, found.kv_cache_tokens, found.bytes_per_token) == (
        memory,
        1_317_632,
        15955.85,
    )
