"""Rules of the log readers, on lines in the engines' formats whose figures are our own: they stand for no real log."""

from __future__ import annotations

import os

import pytest

from headcount.verify.logs import LogReading, read_log

DATA = os.path.join(os.path.dirname(__file__), "data", "logs")


def read_file(name: str) -> LogReading:
    with open(os.path.join(DATA, name), "rb") as file:
        return read_log(file, name=name)


def read_text(*lines: str) -> LogReading:
    return read_log([("\n".join(lines) + "\n").encode()], name="pasted")


def test_the_poorest_rank_sizes_the_cache_and_the_heaviest_has_the_weights() -> None:
    reading = read_text(
        "(Worker_TP0 pid=1) INFO 05-08 16:18:24 [gpu_model_runner.py:49] Model loading took 15.26 GiB memory and 23.1 seconds",
        "(Worker_TP1 pid=2) INFO 05-08 16:18:24 [gpu_model_runner.py:49] Model loading took 15.31 GiB memory and 23.1 seconds",
        "(Worker_TP1 pid=2) INFO 05-08 16:18:30 [gpu_worker.py:9] Available KV cache memory: 4.20 GiB",
        "(Worker_TP0 pid=1) INFO 05-08 16:18:30 [gpu_worker.py:9] Available KV cache memory: 4.90 GiB",
    )
    (observation,) = reading.observations
    assert observation.weights_gib == 15.31
    assert observation.kv_cache_memory_gib == 4.2
    assert reading.ranks == ("Worker_TP0", "Worker_TP1")
    assert "cache memory differs between 2 ranks: 4.2 to 4.9" in reading.notes


def test_several_starts_are_several_observations() -> None:
    start = (
        "INFO 04-29 01:34:48 [core.py:58] Initializing a V1 LLM engine (v0.{}) with config: model='a/b', max_seq_len=4096, "
        "tensor_parallel_size=2, quantization=awq, kv_cache_dtype=fp8, compilation_config={{'level': 3, 'model': 'x'}}"
    )
    reading = read_text(
        start.format("8.5"),
        "INFO 04-29 01:35:48 [gpu_model_runner.py:1] Model loading took 14.99 GiB and 3.4 seconds",
        "INFO 04-29 01:35:49 [kv_cache_utils.py:1] GPU KV cache size: 100,000 tokens",
        start.format("9.0"),
        "INFO 04-29 01:45:48 [gpu_model_runner.py:1] Model loading took 14.99 GiB and 3.4 seconds",
        "INFO 04-29 01:45:49 [kv_cache_utils.py:1] GPU KV cache size: 120,000 tokens",
    )
    first, second = reading.observations
    assert (first.engine_version, first.kv_cache_tokens) == ("0.8.5", 100_000)
    assert (second.engine_version, second.kv_cache_tokens) == ("0.9.0", 120_000)
    assert (second.model, second.tensor_parallel, second.weight_dtype_or_quant) == ("a/b", 2, "awq")
    assert second.kv_cache_dtype == "fp8"


def test_data_parallel_engine_processes_are_one_start() -> None:
    line = (
        "(EngineCore_DP{} pid={}) INFO 08-01 07:00:00 [core.py:74] "
        "Initializing a V1 LLM engine (v0.11.0) with config: model='m', x=1"
    )
    reading = read_text(
        line.format(0, 10),
        "(EngineCore_DP0 pid=10) INFO 08-01 07:00:09 [kv_cache_utils.py:1] GPU KV cache size: 9,000 tokens",
        line.format(1, 11),
        "(EngineCore_DP1 pid=11) INFO 08-01 07:00:10 [kv_cache_utils.py:1] GPU KV cache size: 8,000 tokens",
    )
    (observation,) = reading.observations
    assert observation.kv_cache_tokens == 8_000


def test_stages_of_a_pipeline_of_engines_are_kept_apart() -> None:
    first, second = read_file("vllm-omni-stages.log").observations
    assert (first.kv_cache_memory_gib, first.kv_cache_tokens, first.max_concurrency) == (
        100.43,
        2_925_232,
        89.27,
    )
    assert (second.kv_cache_memory_gib, second.kv_cache_tokens, second.max_concurrency) == (
        37.18,
        1_949_520,
        29.75,
    )


def test_vllm_arguments_come_from_the_dump_and_secrets_do_not() -> None:
    reading = read_text(
        "(APIServer pid=1) INFO [utils.py:1] non-default args: {'model': 'org/name', 'api_key': ['sk-1'], 'enforce_eager': True, "
        "'gpu_memory_utilization': 0.85, 'max_num_seqs': 64, 'block_size': 32, 'hf_token': 'hf_1', "
        "'speculative_config': {'model': 'draft', 'num_speculative_tokens': 3}}",
        "(Worker pid=2) INFO [gpu_worker.py:1] Available KV cache memory: 4.20 GiB",
    )
    (observation,) = reading.observations
    assert observation.model == "org/name"
    assert (observation.gpu_memory_utilization, observation.max_num_seqs, observation.block_size) == (
        0.85,
        64,
        32,
    )
    assert ("enforce-eager", "true") in observation.arguments
    assert "sk-1" not in repr(reading)
    assert "hf_1" not in repr(reading)


def test_workers_small_pool_for_graphs_is_not_the_engines() -> None:
    reading = read_text(
        "(Worker_TP0 pid=1) INFO [kv_cache_utils.py:826] Overriding num_gpu_blocks=0 with num_gpu_blocks_override=16",
        "(Worker_TP0 pid=1) INFO [gpu_worker.py:460] Available KV cache memory: 15.72 GiB",
    )
    assert reading.observations[0].num_gpu_blocks is None


def test_two_weights_of_one_process_are_ambiguous() -> None:
    reading = read_text(
        "INFO 07-01 00:00:01 model_runner.py:1] Loading model weights took 14.9888 GB",
        "INFO 07-01 00:00:02 model_runner.py:1] Loading model weights took 0.9100 GB",
        "INFO 07-01 00:00:03 gpu_executor.py:1] # GPU blocks: 1952, # CPU blocks: 512",
    )
    assert reading.observations[0].weights_gib is None
    assert any("weights 2 times" in note for note in reading.notes)


def test_sglang_arguments() -> None:
    reading = read_text(
        "[2025-11-11 04:27:11] server_args=ServerArgs(model_path='org/name', context_length=None, quantization='fp8', "
        "kv_cache_dtype='fp8_e5m2', mem_fraction_static=0.851, tp_size=4, dp_size=2, cuda_graph_bs=[1, 2, 4], "
        "enable_dp_attention=True, api_key='sk-1')",
        "[2025-11-11 04:28:11 TP0] max_total_num_tokens=889384, chunked_prefill_size=8192, max_prefill_tokens=16384, "
        "max_running_requests=4, context_len=128000, available_gpu_mem=24.83 GB",
    )
    (observation,) = reading.observations
    assert (observation.model, observation.tensor_parallel, observation.data_parallel) == ("org/name", 4, 2)
    assert (observation.gpu_memory_utilization, observation.kv_cache_dtype) == (0.851, "fp8_e5m2")
    assert (observation.kv_cache_tokens, observation.max_num_seqs, observation.max_model_len) == (
        889_384,
        4,
        128_000,
    )
    assert ("enable-dp-attention", "true") in observation.arguments
    assert "sk-1" not in repr(reading)


def test_ollamas_runner_outranks_its_estimate() -> None:
    with open(os.path.join(DATA, "ollama-offload.log"), encoding="utf-8") as file:
        own = file.read().splitlines()
    reading = read_text(
        *own,
        "llama_model_loader: loaded meta data with 30 key-value pairs and 255 tensors from b (version GGUF V3 (latest))",
        "load_tensors:        CUDA0 model buffer size =  1918.35 MiB",
        "llama_context: n_ctx         = 8192",
        "llama_kv_cache_unified:      CUDA0 KV buffer size =   896.00 MiB",
        "llama_kv_cache_unified: KV self size  =  896.00 MiB, K (f16):  448.00 MiB, V (f16):  448.00 MiB",
    )
    (observation,) = reading.observations
    assert observation.engine == "ollama"
    assert observation.weights_gib == pytest.approx(1918.35 / 1024)
    assert observation.kv_cache_memory_gib == 0.875
    # Not that they are the server's estimate; but half of the runner's weights may be missing.
    (note,) = reading.notes
    assert "no buffer of the host" in note


def test_ollamas_layouts_are_tried_and_the_last_one_holds() -> None:
    load = (
        "time=2026-04-09T23:17:19Z level=INFO source=runner.go:1284 msg=load "
        'request="{{Operation:{} Parallel:1 KvSize:32768 KvCacheType:q8_0 NumThreads:8}}"'
    )
    size = 'time=2026-04-09T23:17:20Z level=INFO source=device.go:251 msg="kv cache" device={} size="{}"'
    reading = read_text(
        load.format("fit"),
        size.format("CUDA0", "2.0 GiB"),
        load.format("commit"),
        size.format("CUDA0", "955.2 MiB"),
        size.format("CPU", "1.3 GiB"),
        load.format("fit"),
        size.format("CUDA0", "4.0 GiB"),
    )
    first, second = reading.observations
    assert first.kv_cache_memory_gib == pytest.approx(955.2 / 1024 + 1.3)
    assert (first.max_model_len, first.kv_cache_dtype) == (32768, "q8_0")
    assert second.kv_cache_memory_gib == 4.0


def test_a_second_context_of_one_model_keeps_the_weights() -> None:
    reading = read_text(
        "llama_model_loader: loaded meta data with 30 key-value pairs and 255 tensors from a/b.gguf (version GGUF V3 (latest))",
        "load_tensors:        CUDA0 model buffer size =  1024.00 MiB",
        "llama_context: n_ctx                 = 4096",
        "llama_kv_cache: size =   22.50 MiB (  4096 cells,  30 layers,  1/1 seqs), K (f16):   11.25 MiB, V (f16):   11.25 MiB",
        "llama_context: n_ctx                 = 8192",
        "llama_kv_cache: size =   45.00 MiB (  8192 cells,  30 layers,  1/1 seqs), K (f16):   22.50 MiB, V (f16):   22.50 MiB",
    )
    first, second = reading.observations
    assert (first.max_model_len, second.max_model_len) == (4096, 8192)
    assert first.weights_gib == second.weights_gib == 1.0
    assert second.model == "b.gguf"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("2024-05-01T00:00:00Z INFO text_generation_router: Setting max batch total tokens to 81920", "TGI"),
        ("[TM][INFO] [BlockManager] max_block_count = 1024", "LMDeploy"),
        ("INFO: Initializing the Aphrodite Engine (v0.5.2) with the following config:", "Aphrodite"),
        (
            "INFO:     Uvicorn running on http://0.0.0.0:8000",
            "no engine's start-up lines; wanted is one of vllm",
        ),
        (
            "(EngineCore pid=1) INFO [core.py:1] Initializing a V1 LLM engine (v0.32.0) with config: model='m', x=1",
            "vllm printed it",
        ),
        ("", "no engine's start-up lines"),
    ],
)
def test_refusal_names_the_reason(line: str, words: str) -> None:
    reading = read_text(line)
    assert reading.observations == ()
    (refusal,) = reading.refusals
    assert words in refusal
    assert "\n" not in refusal


def test_a_forks_lines_are_not_taken_for_vllms() -> None:
    reading = read_text(
        "INFO: Initializing the Aphrodite Engine (v0.5.2)", "INFO: # GPU blocks: 1000, # CPU blocks: 10"
    )
    assert reading.observations == ()
    assert "Aphrodite" in reading.refusals[0]


def test_a_logged_prompt_is_not_the_engine_speaking() -> None:
    reading = read_text(
        "INFO 05-05 [logger.py:39] Received request cmpl-1: prompt: 'GPU KV cache size: 5 tokens', params: None",
        "INFO 05-05 [kv_cache_utils.py:1] GPU KV cache size: 9,000 tokens",
    )
    assert reading.observations[0].kv_cache_tokens == 9_000


@pytest.mark.parametrize(
    ("printed", "mix"),
    [
        ("print_info: file type   = Q4_K - Medium", "q4_k_m"),
        ("print_info: file type   = Q5_K - Small", "q5_k_s"),
        ("print_info: file type   = Q3_K - Medium", "q3_k_m"),
        ("print_info: file type   = Q2_K - Medium", "q2_k"),
        ("print_info: file type   = Q2_K - Small", "Q2_K - Small"),
        ("print_info: file type   = Q3_K - Large", "Q3_K - Large"),
        ("print_info: file type   = Q6_K", "q6_k"),
        ("print_info: file type   = Q8_0", "q8_0"),
        ("print_info: file type   = BF16", "bf16"),
        ("print_info: file type   = all F32", "f32"),
        ("print_info: file type   = MXFP4 MoE", "mxfp4_moe"),
        ("print_info: file type   = IQ2_XXS - 2.0625 bpw", "IQ2_XXS - 2.0625 bpw"),
        ("print_info: file type   = (guessed) Q4_0", "q4_0"),
        ("llm_load_print_meta: model ftype      = Q4_K - Small", "q4_k_s"),
        ("llm_load_print_meta: model ftype      = mostly Q5_K - Medium (guessed)", "q5_k_m"),
        ("llama_model_load_internal: ftype      = 2 (mostly Q4_0)", "q4_0"),
    ],
)
def test_gguf_mix_by_the_name_it_is_asked_for(printed: str, mix: str) -> None:
    reading = read_text(printed, "load_tensors:        CUDA0 model buffer size =  1918.35 MiB")
    assert reading.observations[0].weight_dtype_or_quant == mix
    assert any("guessed" in note for note in reading.notes) == ("guessed" in printed)


def test_ollamas_own_engine_names_mix_and_model() -> None:
    reading = read_text(
        'time=2025-07-24T18:29:07.610+09:00 level=INFO source=ggml.go:92 msg="" architecture=gemma3 file_type=Q4_K_M '
        'name="Gemma 3 4b It" description="" num_tensors=883 num_key_values=37',
        'time=2025-07-24T18:29:08.610+09:00 level=INFO source=ggml.go:300 msg="model weights" buffer=CUDA0 size="3.1 GiB"',
    )
    (observation,) = reading.observations
    assert (observation.model, observation.weight_dtype_or_quant) == ("Gemma 3 4b It", "q4_k_m")


def test_lines_of_no_one_release_give_no_hint() -> None:
    reading = read_text(
        "Loading model weights took 14.9888 GB",
        "Available KV cache memory: 4.25 GiB",
        "# GPU blocks: 7, # CPU",
    )
    assert reading.observations[0].release_hint is None
    assert any("no one release" in note for note in reading.notes)


def test_other_platforms_wordings_say_nothing() -> None:
    reading = read_text(
        "INFO 05-05 11:01:02 [xpu_model_runner.py:420] Loading model weights took 14.9888 GB",
    )
    assert reading.observations[0].release_hint == "0.33.0"


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (
            (
                "memory reserved for KV Cache is -1.05GiB.",
                "ValueError: No available memory for the cache blocks. Try increasing",
            ),
            "no memory was left for the cache: -1.05 GiB after weights and activations",
        ),
        (
            ("ValueError: No available memory for the cache blocks. Try increasing",),
            "no memory was left for the cache",
        ),
        (
            (
                "ValueError: Free memory on device cuda:0 (1.5/23.5 GiB) on startup is less than desired GPU memory "
                "utilization (0.9, 21.2 GiB). Decrease GPU memory utilization",
            ),
            "1.5 of 23.5 GiB were free, utilization 0.9 asks for 21.2 GiB",
        ),
    ],
)
def test_refused_vllm_start(lines: tuple[str, ...], reason: str) -> None:
    reading = read_text("Model loading took 1.25 GiB memory and 2.1 seconds", *lines)
    assert f"start refused: {reason}" in reading.notes
    assert reading.observations[0].notes.count("start refused") == 1
    # The error alone is a start that was refused, too.
    assert read_text(lines[-1]).observations[0].engine == "vllm"


def test_a_start_tried_again_after_a_refusal_is_another() -> None:
    load = "(EngineCore pid=1) INFO [gpu_model_runner.py:1] Model loading took {} GiB memory and 23.1 seconds"
    first, second = read_text(
        load.format("15.26"),
        "ValueError: No available memory for the cache blocks. Try increasing",
        load.format("7.63"),
        "(EngineCore pid=1) INFO [gpu_worker.py:9] Available KV cache memory: 4.25 GiB",
    ).observations
    assert (first.weights_gib, second.weights_gib) == (15.26, 7.63)
    assert "start refused" in first.notes
    assert second.notes == ""


@pytest.mark.parametrize(
    ("lines", "sizes"),
    [
        (("(Worker_PP1_TP1 pid=1) INFO [x.py:1] Available KV cache memory: 4.25 GiB",), (2, 2)),
        (("(Worker_PP2 pid=1) INFO [x.py:1] Available KV cache memory: 4.25 GiB",), (None, 3)),
        (("(Worker_PP0_TP0 pid=1) INFO [x.py:1] Available KV cache memory: 4.25 GiB",), (None, None)),
        (
            (
                "vllm serve org/name --tensor-parallel-size 2 --pipeline-parallel-size=3 --port 80",
                "Available KV cache memory: 4.25 GiB",
            ),
            (2, 3),
        ),
        (
            (
                "(Worker_PP0 pid=1) rank 0 in world size 2 is assigned as DP rank 0, PP rank 0, PCP rank 0, TP rank 0, EP N/A",
                "(Worker_PP1 pid=2) rank 1 in world size 2 is assigned as DP rank 0, PP rank 1, PCP rank 0, TP rank 0, EP N/A",
                "Available KV cache memory: 4.25 GiB",
            ),
            (1, 2),
        ),
        (
            (
                "(Worker pid=1) rank 0 in world size 4 is assigned as DP rank 0, PP rank 0, PCP rank 0, TP rank 0, EP N/A",
                "Available KV cache memory: 4.25 GiB",
            ),
            (None, None),
        ),
    ],
)
def test_parallel_sizes_as_far_as_they_are_shown(
    lines: tuple[str, ...], sizes: tuple[int | None, int | None]
) -> None:
    reading = read_text(*lines)
    (observation,) = reading.observations
    assert (observation.tensor_parallel, observation.pipeline_parallel) == sizes
    assert any("how many there are" in note for note in reading.notes) == ("TP0 pid" in lines[0])


def test_refusals_leave_the_files_name_to_the_caller() -> None:
    for text in (b"", b"mlc_llm\n", b"PK\x03\x04abc", b"\x00\x01\x02\x00\x00\x03" * 900):
        (refusal,) = read_log([text], name="README.md").refusals
        assert "README.md" not in refusal


def test_a_peak_printed_with_the_weights_in_it() -> None:
    """vLLM 0.6.4 prints the peak of PyTorch's memory, weights and all (worker/worker.py)."""
    found = read_text(
        "INFO 11-20 08:00:10 llm_engine.py:249] Initializing an LLM engine (v0.6.4) with config: model='m', max_seq_len=32768",
        "INFO 11-20 08:00:20 model_runner.py:1077] Loading model weights took 13.5083 GB",
        "INFO 11-20 08:00:22 worker.py:232] Memory profiling results: total_gpu_memory=44.53GiB initial_memory_usage=14.00GiB "
        "peak_torch_memory=16.20GiB memory_usage_post_profile=14.06Gib non_torch_memory=0.49GiB kv_cache_size=23.38GiB "
        "gpu_memory_utilization=0.90",
    ).observations[0]
    assert found.peak_activation_gib == pytest.approx(16.20 - 13.5083, abs=1e-3)
    assert (found.non_torch_gib, found.kv_cache_memory_gib) == (0.49, 23.38)


def test_tensorrt_llms_memory_outside_torch() -> None:
    found = read_text(
        "[TensorRT-LLM] TensorRT LLM version: 1.1.0",
        "[TRT-LLM] [I] Memory used after loading model weights (inside torch) in memory usage profiling: 14.99 GiB",
        "[TRT-LLM] [I] Memory used after loading model weights (outside torch) in memory usage profiling: 1.20 GiB",
        "[TRT-LLM] [I] Memory used outside torch (e.g., NCCL and CUDA graphs) in memory usage profiling: 2.00 GiB",
        "[TRT-LLM] [I] Allocated 55.22 GiB for max tokens in paged KV cache (452352).",
    ).observations[0]
    assert (found.non_torch_gib, found.weights_gib) == (2.0, 14.99)
