"""Start-up logs against what the engines printed: public excerpts, runs of our own, published rows (data/logs/README.md)."""

from __future__ import annotations

import json
import os

import pytest

from headcount.engines.versions import release
from headcount.verify.logs import LogReading, read_log
from headcount.verify.logs.vllm_releases import newest_release, releases_of

DATA = os.path.join(os.path.dirname(__file__), "data", "logs")


def read_file(name: str) -> LogReading:
    with open(os.path.join(DATA, name), "rb") as file:
        return read_log(file, name=name)


def read_text(*lines: str) -> LogReading:
    return read_log([("\n".join(lines) + "\n").encode()], name="pasted")


# File -> engine, and the figures as they stand in the log (GiB; MiB divided by 1024 where the log prints MiB).
EXCERPTS: dict[str, tuple[str, dict[str, object]]] = {
    "vllm-0.6-v0.log": (
        "vllm",
        {
            "gpu_total_memory_gib": 23.58,
            "gpu_memory_utilization": 0.9,
            "weights_gib": 14.9888,
            "non_torch_gib": 0.35,
            "kv_cache_memory_gib": 3.81,
            "num_gpu_blocks": 1952,
            "max_concurrency": 1.56,
            "max_concurrency_tokens": 20000,
            "max_model_len": 20000,
        },
    ),
    "vllm-0.7-v0.log": (
        "vllm",
        {
            "gpu_total_memory_gib": 15.99,
            "weights_gib": 5.2045,
            "peak_activation_gib": 1.41,
            "non_torch_gib": 0.05,
            "cuda_graphs_gib": 0.64,
            "kv_cache_memory_gib": 7.73,
            "num_gpu_blocks": 9048,
            "max_concurrency": 47.12,
        },
    ),
    "vllm-refused-v0.log": ("vllm", {"max_model_len": 8192, "kv_cache_tokens": 2400}),
    "vllm-refused-v1.log": (
        "vllm",
        {
            "max_model_len": 262144,
            "kv_needed_gib": 62.0,
            "kv_cache_memory_gib": 48.66,
            "estimated_max_len": 205728,
        },
    ),
    # 0.6 GiB "peak activation" holds the 0.58 GiB estimated for CUDA graphs: neither figure is the activation's.
    "vllm-pp2-consumed.log": (
        "vllm",
        {
            "tensor_parallel": 4,
            "pipeline_parallel": 2,
            "gpu_total_memory_gib": 23.56,
            "gpu_memory_utilization": 0.935,
            "peak_activation_gib": None,
            "weights_gib": None,
            "non_torch_gib": None,
            "cuda_graphs_gib": 0.1,
            "kv_cache_memory_gib": 1.95,
        },
    ),
    "vllm-0.32-cpu.log": (
        "vllm",
        {
            "engine_version": "0.32.0",
            "release_hint": None,
            "pipeline_parallel": 1,
            "tensor_parallel": 1,
            "weight_dtype_or_quant": "bfloat16",
            "kv_cache_dtype": "auto",
            "max_model_len": 2048,
            "kv_cache_memory_gib": 1.0,
            "gpu_total_memory_gib": 23.54,
            "kv_cache_tokens": 46592,
            "max_concurrency": 22.75,
            "arguments": (("enforce-eager", "true"),),
        },
    ),
    "sglang-tp8.log": (
        "sglang",
        {"kv_cache_tokens": 2795207, "kv_cache_memory_gib": 106.62, "date": "2025-10-16"},
    ),
    "sglang-b200-graphs.log": (
        "sglang",
        {
            "kv_cache_tokens": 2243474,
            "kv_cache_memory_gib": 119.82,
            "cuda_graphs_gib": 1.44,
            "kv_cache_dtype": "bfloat16",
        },
    ),
    "sglang-swa.log": ("sglang", {"kv_cache_tokens": 1496958, "kv_cache_memory_gib": 77.63}),
    "sglang-draft.log": (
        "sglang",
        {"kv_cache_tokens": 454112, "kv_cache_memory_gib": 6.92, "kv_cache_dtype": "fp8_e4m3"},
    ),
    "sglang-refused.log": (
        "sglang",
        {"weights_gib": 125.65, "gpu_memory_utilization": 0.88, "kv_cache_tokens": None},
    ),
    "llamacpp-2023.log": ("llama.cpp", {"max_model_len": 512, "kv_cache_memory_gib": 1560 / 1024}),
    "llamacpp-2024.log": (
        "llama.cpp",
        {
            "gpu_count": 2,
            "max_model_len": 4096,
            "kv_cache_dtype": "f16",
            "kv_cache_memory_gib": 5.0,
            "weights_gib": (1640.62 + 5434.38 + 13989.53) / 1024,
        },
    ),
    "llamacpp-dsv4.log": (
        "llama.cpp",
        {"kv_cache_memory_gib": 182.75 / 1024, "kv_cache_tokens": 4352, "kv_cache_dtype": "bf16"},
    ),
    "llamacpp-smollm2-cpu.log": (
        "llama.cpp",
        {
            "weight_dtype_or_quant": "q4_1",
            "model": "Smollm2 135M 8k Lc100K Mix1 Ep2",
            "weights_gib": 92.10 / 1024,
            "kv_cache_memory_gib": 22.5 / 1024,
            "kv_cache_tokens": 1024,
            "max_num_seqs": 1,
            "peak_activation_gib": 98.25 / 1024,
        },
    ),
    # Gemma 3 keeps two caches: 3 full layers and 15 sliding ones, here both of 4,096 cells.
    "llamacpp-gemma3-q8-cpu.log": (
        "llama.cpp",
        {
            "model": "Gemma 3 270m",
            "weight_dtype_or_quant": "q4_k_m",
            # file size; 12.66 MiB of it lie once more in CPU_REPACK.
            "weights_gib": 235.16 / 1024,
            "kv_cache_memory_gib": (6.38 + 31.88) / 1024,
            "kv_cache_tokens": 4096,
            "kv_cache_dtype": "q8_0",
        },
    ),
    "llamacpp-four-streams-cpu.log": (
        "llama.cpp",
        {"max_model_len": 4096, "max_num_seqs": 4, "kv_cache_tokens": 4096, "kv_cache_memory_gib": 90 / 1024},
    ),
    "ollama-offload.log": (
        "ollama",
        {
            "gpu_count": 1,
            "weights_gib": 2.4,
            "kv_cache_memory_gib": 0.875,
            "max_model_len": 8192,
            "max_num_seqs": 4,
            "kv_cache_tokens": 8192,
        },
    ),
    "ollama-four-gpus.log": (
        "ollama",
        {"gpu_count": 4, "weights_gib": 87.3, "kv_cache_memory_gib": 19.5, "max_model_len": 64000},
    ),
    "ollama-journald.log": (
        "ollama",
        # memory.weights.total and the projector, which Ollama's own engine loads with it
        {
            "weights_gib": 6.8 + 795.9 / 1024,
            "kv_cache_memory_gib": 992 / 1024,
            "max_num_seqs": 1,
            "date": "2025-08-22",
        },
    ),
    "ollama-devices.log": (
        "ollama",
        {
            "weights_gib": 14.8 + 8.6 + 680 / 1024,
            "peak_activation_gib": 9.1,
            "max_model_len": 128000,
            "kv_cache_dtype": "q8_0",
        },
    ),
    "tensorrt-llm-docs.log": (
        "tensorrt-llm",
        {
            "gpu_total_memory_gib": 79.10,
            "num_gpu_blocks": 4060,
            "block_size": 64,
            "kv_cache_memory_gib": 63.44,
            "kv_cache_tokens": 259840,
        },
    ),
    "tensorrt-llm-mlperf.log": (
        "tensorrt-llm",
        {
            "weights_gib": 37803 / 1024,
            "peak_activation_gib": 700.45 / 1024,
            "kv_cache_memory_gib": 122.61,
            "kv_cache_tokens": 803520,
        },
    ),
    "tensorrt-llm-window.log": (
        "tensorrt-llm",
        {"num_gpu_blocks": 116617, "block_size": 32, "kv_cache_tokens": 3731744, "kv_cache_memory_gib": 78.3},
    ),
    "tensorrt-llm-2023.log": ("tensorrt-llm", {"kv_cache_tokens": 10718}),
    # The first allocation (8,224 tokens) is the profile's.
    "tensorrt-llm-pytorch.log": (
        "tensorrt-llm",
        {
            "weights_gib": 63.52,
            "peak_activation_gib": 0.85,
            "kv_cache_memory_gib": 5.95,
            "kv_cache_tokens": 86720,
            "bytes_per_token": 73728.0,
            "gpu_total_memory_gib": 119.70,
            "max_num_seqs": 64,
        },
    ),
}


@pytest.mark.parametrize("name", EXCERPTS)
def test_excerpt_gives_the_printed_figures(name: str) -> None:
    engine, wanted = EXCERPTS[name]
    reading = read_file(name)
    assert reading.engine == engine
    assert reading.refusals == ()
    (observation,) = reading.observations
    assert observation.engine == engine
    for field, value in wanted.items():
        found = getattr(observation, field)
        assert found == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value), field


def test_every_data_file_is_used() -> None:
    logs = {name for name in os.listdir(DATA) if name.endswith(".log")}
    assert logs == {*EXCERPTS, "vllm-omni-stages.log"}


ROW_FIELDS = (
    "gpu_total_memory_gib",
    "gpu_memory_utilization",
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_seqs",
    "weights_gib",
    "peak_activation_gib",
    "non_torch_gib",
    "kv_cache_memory_gib",
    "num_gpu_blocks",
    "kv_cache_tokens",
    "max_concurrency",
    "max_concurrency_tokens",
    "estimated_max_len",
    "kv_needed_gib",
    "block_size",
    "kv_cache_dtype",
)


# n_ctx is not among the words of this row: the cells of its cache, padded to 32, stand for the 2,000 tokens asked for.
PADDED = {("085-AI-Playground-325", "max_model_len"): 2016}


def test_published_rows_agree_wherever_the_words_are_printed_ones() -> None:
    """Every figure read from a row's words is the row's own; what a row's table left empty is not compared."""
    with open(os.path.join(DATA, "rows.jsonl"), encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    assert len(rows) >= 60
    compared = 0
    for row in rows:
        reading = read_text(*row["raw"].split("; "))
        (observation,) = reading.observations
        assert observation.engine == row["engine"], row["id"]
        for field in ROW_FIELDS:
            found = getattr(observation, field)
            if found is None or field not in row:
                continue
            compared += 1
            # Rows state a MiB figure as GiB with up to five digits.
            close = pytest.approx(row[field], rel=1e-3, abs=1e-3) if isinstance(found, float) else row[field]
            close = PADDED.get((row["id"], field), close)
            assert found == close, (row["id"], field)
    assert compared >= 500


# A word that an engine prints before a figure -> the field that must then be read, in rows where the word stands.
PRINTED = {
    "Loading model weights took ": "weights_gib",
    "Model loading took ": "weights_gib",
    "Available KV cache memory: ": "kv_cache_memory_gib",
    "GPU KV cache size: ": "kv_cache_tokens",
    "# GPU blocks: ": "num_gpu_blocks",
    "Maximum concurrency for ": "max_concurrency",
    "torch peak memory increase: ": "peak_activation_gib",
    "non-torch forward increase memory: ": "non_torch_gib",
    "is the estimated maximum model length ": "estimated_max_len",
    "GiB KV cache is needed, which": "kv_needed_gib",
    "KV Cache is allocated. #tokens: ": "kv_cache_tokens",
    "KV self size = ": "kv_cache_memory_gib",
    "memory.required.kv=": "kv_cache_memory_gib",
}


def test_printed_words_are_never_passed_over() -> None:
    with open(os.path.join(DATA, "rows.jsonl"), encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    seen = 0
    for row in rows:
        (observation,) = read_text(*row["raw"].split("; ")).observations
        for words, field in PRINTED.items():
            # "took 29.09" without its unit is half a line.
            if words in row["raw"] and not row["raw"].rstrip().endswith("Model loading took 29.09"):
                seen += 1
                assert getattr(observation, field) is not None, (row["id"], field)
    assert seen >= 200


# The newest release that prints every line of the excerpt, by vLLM's sources.
HINTS = {
    "vllm-0.6-v0.log": "0.6.4",
    "vllm-0.7-v0.log": "0.8.2",
    "vllm-refused-v0.log": "0.10.2",
    "vllm-refused-v1.log": "0.10.1",
    "vllm-pp2-consumed.log": "0.33.0",
    "vllm-omni-stages.log": "0.27.1",
    "vllm-0.32-cpu.log": None,
}


@pytest.mark.parametrize("name", HINTS)
def test_wording_tells_the_newest_release(name: str) -> None:
    assert {observation.release_hint for observation in read_file(name).observations} == {HINTS[name]}


def test_wordings_are_those_of_the_released_sources() -> None:
    with open(os.path.join(DATA, "vllm-wordings.jsonl"), encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    assert len(rows) >= 40
    for row in rows:
        spans = list(releases_of(row["line"] + "\n"))
        assert newest_release(spans) == row["last"], row["line"]
        first = max(release(since) for since, _ in spans)
        # An excerpt may leave ", # CPU blocks" out: these two are not told apart at their beginning.
        assert first == release(row["first"]) or row["line"] == "# GPU blocks: 9048", row["line"]


REFUSED = {
    "vllm-refused-v0.log": "start refused: one request of 8192 tokens is longer than the 2400 that the cache holds",
    "vllm-refused-v1.log": "start refused: one request of 262144 tokens needs 62 GiB of cache, 48.66 GiB are available, "
    "205728 tokens would fit",
    "sglang-refused.log": "start refused: the weights left no memory for the cache under --mem-fraction-static 0.88",
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_start_names_its_reason(name: str) -> None:
    reading = read_file(name)
    assert REFUSED[name] in reading.notes
    assert reading.observations[0].notes == REFUSED[name]
