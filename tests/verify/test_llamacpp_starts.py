"""llama.cpp's and Ollama's starts as public logs print them: what belongs to which figure, and whose start it is."""

from __future__ import annotations

import pytest

from headcount.spec.reader import read_model
from headcount.verify.logs import LogReading, read_log
from headcount.verify.observation import Observation
from headcount.verify.receipt import Receipt, make_receipt


def read(text: str) -> LogReading:
    return read_log([text.encode()], name="pasted")


def one(text: str) -> Observation:
    (found,) = read(text).observations
    return found


def receipt(text: str, model: str, **asked: str) -> Receipt:
    return make_receipt(one(text), read_model(model), **asked)


def error(found: Receipt, quantity: str) -> float | None:
    (line,) = (line for line in found.lines if line.quantity == quantity)
    return line.relative_error


QWEN = """\
build: 6123 (79c1160b) with cc for x86_64-linux-gnu
llama_model_loader: - kv   2:                               general.name str              = Qwen2.5 7B Instruct
print_info: file type   = Q4_K - Medium
print_info: file size   = 4.36 GiB (4.91 BPW)
load_tensors: offloaded 29/29 layers to GPU
load_tensors:   CPU_Mapped model buffer size =   292.36 MiB
load_tensors:        CUDA0 model buffer size =  4168.09 MiB
llama_context: n_seq_max     = 1
llama_context: n_ctx         = 32768
llama_kv_cache_unified:      CUDA0 KV buffer size =  1792.00 MiB
llama_kv_cache_unified: size = 1792.00 MiB ( 32768 cells,  28 layers,  1/1 seqs), K (f16):  896.00 MiB, V (f16):  896.00 MiB
llama_context:      CUDA0 compute buffer size =   304.00 MiB
"""


@pytest.mark.parametrize(
    "command",
    [
        "llama-server -m qwen2.5-7b-instruct-q4_k_m.gguf --ctx-size 32768 -np 1",
        "# argv: llama-server --host 127.0.0.1 --ctx-size 8192 --parallel 4 --batch-size 2048 --ubatch-size 2048 --jinja",
    ],
)
def test_a_servers_own_arguments_do_not_make_it_ollama(command: str) -> None:
    plain, found = one(QWEN), one(f"{command}\n{QWEN}")
    assert found.engine == "llama.cpp"
    assert found.replace(arguments=()) == plain.replace(arguments=())
    assert found.engine_version == "b6123"


def test_the_files_size_stands_for_all_tensors() -> None:
    assert one(QWEN).weights_gib == 4.36
    assert error(receipt(QWEN, "qwen2.5-7b"), "weights") == pytest.approx(0, abs=0.001)


def test_devices_caches_are_summed_where_no_line_does_it() -> None:
    """A window cache may be as large as the full one: Gemma 4 E2B with a micro-batch of 2,048 tokens, Vulkan."""
    lines = QWEN.splitlines()
    found = one("\n".join(line for line in lines if " cells," not in line))
    assert (found.kv_cache_memory_gib, found.kv_cache_tokens) == (1.75, 32768)
    found = one(
        "0.08.770.185 I llama_context: n_ctx         = 8192\n"
        "0.08.773.947 I llama_kv_cache_iswa: creating non-SWA KV cache, size = 8192 cells\n"
        "0.08.775.296 I llama_kv_cache:    Vulkan1 KV buffer size =    48.00 MiB\n"
        "0.08.817.753 I llama_kv_cache_iswa: creating     SWA KV cache, size = 4096 cells\n"
        "0.08.819.204 I llama_kv_cache:    Vulkan1 KV buffer size =    48.00 MiB\n"
    )
    assert found.kv_cache_memory_gib == 96 / 1024


def test_two_equal_caches_are_two() -> None:
    """Gemma 2 2B, 8,192 tokens in 4 unified slots: the window cache has as many cells as the full one."""
    text = """\
print_info: file type   = Q4_K - Medium
print_info: file size   = 1.59 GiB (5.21 BPW)
load_tensors:   CPU_Mapped model buffer size =  1623.67 MiB
load_tensors:   CPU_REPACK model buffer size =   921.38 MiB
llama_context: n_seq_max     = 4
llama_context: n_ctx         = 8192
llama_context: flash_attn    = auto
llama_context: kv_unified    = true
llama_kv_cache_iswa: creating non-SWA KV cache, size = 8192 cells
llama_kv_cache: size =  416.00 MiB (  8192 cells,  13 layers,  4/1 seqs), K (f16):  208.00 MiB, V (f16):  208.00 MiB
llama_kv_cache_iswa: creating     SWA KV cache, size = 8192 cells
llama_kv_cache: size =  416.00 MiB (  8192 cells,  13 layers,  4/1 seqs), K (f16):  208.00 MiB, V (f16):  208.00 MiB
llama_context: Flash Attention was auto, set to enabled
"""
    found = one(text)
    assert (found.kv_cache_memory_gib, found.kv_cache_tokens) == (832 / 1024, 8192)
    assert (found.weights_gib, dict(found.arguments)["flash-attn"]) == (1.59, "on")
    assert error(receipt(text, "gemma-2-2b"), "tokens") == 0


def test_tensors_laid_out_anew_are_no_further_ones() -> None:
    found = one(
        "load_tensors:   CPU_Mapped model buffer size =  1623.67 MiB\n"
        "load_tensors:   CPU_REPACK model buffer size =   921.38 MiB\n"
    )
    assert found.weights_gib == pytest.approx(1623.67 / 1024)
    unmapped = one(
        "load_tensors:          CPU model buffer size =   702.29 MiB\n"
        "load_tensors:   CPU_REPACK model buffer size =   921.38 MiB\n"
    )
    assert unmapped.weights_gib == pytest.approx((702.29 + 921.38) / 1024)


def test_weights_of_gpus_alone_are_named_so() -> None:
    reading = read("load_tensors:        CUDA0 model buffer size =  4168.09 MiB\n")
    assert reading.observations[0].weights_gib == pytest.approx(4168.09 / 1024)
    assert any("no buffer of the host" in note for note in reading.notes)


def test_keys_and_values_of_two_types() -> None:
    """Qwen3.6-27B: 16 layers of 4 x 256 wide keys and values."""
    text = (
        "llama_kv_cache: size = 6656.00 MiB (262144 cells,  16 layers,  1/1 seqs), "
        "K (q8_0): 4352.00 MiB, V (q4_0): 2304.00 MiB\n"
    )
    assert dict(one(text).arguments)["flash-attn"] == "on"
    assert error(receipt(text, "qwen3.6-27b"), "tokens") == 0


def test_quantised_values_say_that_flash_attention_is_on() -> None:
    """A build of 2025-08 whose default is off, in an excerpt without its flash_attn line."""
    text = (
        "build: 6123 (79c1160b) with cc for x86_64-linux-gnu\n"
        "llama_kv_cache_unified: size =  952.00 MiB ( 32768 cells,  28 layers,  1/1 seqs), "
        "K (q8_0):  476.00 MiB, V (q8_0):  476.00 MiB\n"
    )
    assert error(receipt(text, "qwen2.5-7b"), "tokens") == 0


def test_sequences_of_a_cache_line_are_the_slots() -> None:
    text = (
        "llama_kv_cache: size = 1024.00 MiB (  2048 cells,  32 layers,  4/4 seqs), "
        "K (f16):  512.00 MiB, V (f16):  512.00 MiB\n"
    )
    found = receipt(text, "llama-3.1-8b")
    assert (found.observation.max_num_seqs, found.observation.max_model_len) == (4, 8192)
    assert (found.held, found.context) == (4, 2048)


def test_one_stream_of_several_sequences_is_unified() -> None:
    found = one("llama_kv_cache: size =   68.00 MiB ( 8192 cells,  8 layers, 4/1 seqs)\n")
    assert (found.max_num_seqs, found.kv_cache_tokens) == (4, 8192)
    assert ("kv-unified", "true") in found.arguments


def test_the_context_is_that_of_the_longest_cache() -> None:
    """DeepSeek-V4 keeps nothing in the full cache; its cells are the context all the same."""
    found = one("""\
llama_kv_cache: size =    0.00 MiB ( 64000 cells,   0 layers,  1/1 seqs), K (bf16):    0.00 MiB, V (bf16):    0.00 MiB
llama_kv_cache: size =  182.75 MiB (  4352 cells,  43 layers,  1/1 seqs), K (bf16):  182.75 MiB, V (bf16):    0.00 MiB
""")
    assert (found.max_model_len, found.kv_cache_tokens) == (64000, 4352)


MTP = """\
2026-05-14 22:14:14.195 | print_info: file type   = Q4_K - Medium
2026-05-14 22:14:14.195 | print_info: file size   = 16.67 GiB (5.24 BPW)
2026-05-14 22:14:14.195 | llama_prepare_model_devices: using device CUDA0 (NVIDIA GeForce RTX 5090) (0000:0b:00.0) - \
30930 MiB free
2026-05-14 22:14:14.493 | print_info: general.name          = Qwen3.6-27B
2026-05-14 22:14:30.967 | llama_context: n_ctx         = 131072
2026-05-14 22:14:30.967 | llama_context: n_ubatch      = 512
2026-05-14 22:14:30.967 | llama_context: flash_attn    = enabled
2026-05-14 22:14:30.967 | llama_context: kv_unified    = true
2026-05-14 22:14:31.035 | llama_kv_cache: size = 4352.00 MiB (131072 cells,  16 layers,  4/1 seqs), \
K (q8_0): 2176.00 MiB, V (q8_0): 2176.00 MiB
2026-05-14 22:14:31.360 | sched_reserve:      CUDA0 compute buffer size =   495.00 MiB
2026-05-14 22:14:31.712 | srv    load_model: creating MTP draft context against the target model 'Qwen3.6-27B-UD-Q4_K_XL.gguf'
2026-05-14 22:14:31.712 | llama_context: n_ctx         = 131072
2026-05-14 22:14:31.728 | llama_kv_cache: size =  272.00 MiB (131072 cells,   1 layers,  4/1 seqs), \
K (q8_0):  136.00 MiB, V (q8_0):  136.00 MiB
2026-05-14 22:14:32.050 | sched_reserve:      CUDA0 compute buffer size =   495.00 MiB
2026-05-14 22:14:32.100 | srv    load_model: initializing, n_slots = 4, n_ctx_slot = 131072, kv_unified = 'true'
"""


def test_a_drafters_context_is_no_start_of_its_own() -> None:
    reading = read(MTP)
    (found,) = reading.observations
    assert (found.kv_cache_memory_gib, found.kv_cache_tokens, found.max_num_seqs) == (4.25, 131072, 4)
    assert any("drafter" in note and "0.2656" in note for note in reading.notes)
    # A second server in the same log is a start again.
    text = (
        MTP
        + "llama_model_loader: loaded meta data with 40 key-value pairs and 866 tensors from a.gguf (version 3)\n"
    )
    assert len(read(text + MTP).observations) == 2


def test_the_printed_compute_buffer_is_without_the_pools_copies() -> None:
    """f16 copies of this cache would take 512 MiB of the 495 printed (before llama.cpp #23907)."""
    assert error(receipt(MTP, "qwen3.6-27b"), "activation") == pytest.approx(0, abs=0.1)


def test_devices_of_other_machines_are_read() -> None:
    """Llama 3.1 405B over two RPC servers; the name in the file says no size, that of the file does."""
    found = one("""\
llama_model_loader: loaded meta data with 30 key-value pairs and 1138 tensors from /home/ubuntu/Llama-3.1-405B_Q4_0.gguf \
(version GGUF V3 (latest))
llama_model_loader: - kv   2:                               general.name str              = Llama Hf
llama_context: n_ctx         = 4096
llama_kv_cache_unified: RPC[172.31.110.11:50052] KV buffer size =   800.00 MiB
llama_kv_cache_unified: RPC[172.31.110.12:50052] KV buffer size =   784.00 MiB
llama_kv_cache_unified:        CPU KV buffer size =   432.00 MiB
llama_context: RPC[172.31.110.11:50052] compute buffer size =  1160.00 MiB
""")
    assert (found.kv_cache_memory_gib, found.peak_activation_gib) == (2016 / 1024, 1160 / 1024)
    assert found.model == "Llama-3.1-405B_Q4_0.gguf"


def test_a_devices_full_and_window_cache_are_added() -> None:
    reading = read("""\
llama_kv_cache_unified:      CANN0 KV buffer size =   512.00 MiB
llama_kv_cache_unified:      CANN1 KV buffer size =   256.00 MiB
llama_kv_cache_unified: size =  768.00 MiB (131072 cells,   3 layers,  1/1 seqs), K (f16): 384.00 MiB, V (f16): 384.00 MiB
llama_kv_cache_unified:      CANN0 KV buffer size =     3.00 MiB
llama_kv_cache_unified:      CANN1 KV buffer size =     3.00 MiB
llama_kv_cache_unified: size =    6.00 MiB (   768 cells,   4 layers,  1/1 seqs), K (f16):   3.00 MiB, V (f16):   3.00 MiB
""")
    assert "the cache is summed over 2 GPUs [GiB]: CANN0 0.50, CANN1 0.25" in reading.notes


def test_experts_on_the_host_are_weights_too() -> None:
    found = one("""\
load_tensors:   CPU_Mapped model buffer size = 10949.33 MiB
load_tensors:        CANN0 model buffer size =   109.20 MiB
load_tensors:        CANN7 model buffer size =   641.43 MiB
""")
    assert found.weights_gib == pytest.approx((10949.33 + 109.2 + 641.43) / 1024)
    assert found.gpu_count == 2


LORA = """\
time=2025-12-01T20:28:54.084Z level=INFO source=server.go:376 msg="starting llama server" cmd="ollama_llama_server runner \
--model blobs/sha256-667b --ctx-size 8192 --batch-size 512 --n-gpu-layers 33 --threads 24 --parallel 4 --port 46753"
llama_load_model_from_file: using device CUDA0 (NVIDIA GeForce RTX 4090) - 23818 MiB free
llm_load_print_meta: model ftype      = Q4_K - Medium
llm_load_print_meta: model size       = 4.58 GiB (4.89 BPW)
llm_load_print_meta: general.name     = Meta Llama 3.1 8B Instruct
llm_load_tensors:          CPU model buffer size =   281.81 MiB
llm_load_tensors:        CUDA0 model buffer size =  4403.49 MiB
llama_new_context_with_model: n_seq_max     = 4
llama_new_context_with_model: n_ctx         = 8192
llama_new_context_with_model: n_batch       = 2048
llama_new_context_with_model: n_ubatch      = 512
llama_new_context_with_model: flash_attn    = 0
llama_new_context_with_model: KV self size  = 1024.00 MiB, K (f16):  512.00 MiB, V (f16):  512.00 MiB
llama_new_context_with_model:      CUDA0 compute buffer size =   560.00 MiB
"""


def test_ollamas_runner_says_its_settings_by_ollamas_names() -> None:
    """An Ollama of 2025-01 run in 2025-12: all slots in one stream, no flash attention."""
    found = receipt(LORA, "llama-3.1-8b")
    assert found.observation.arguments == (("flash-attention", "false"), ("num-batch", "512"))
    assert found.observation.engine_version == "2025-01-11"
    assert not any("has no rule" in words for words in found.notes)
    for quantity in ("weights", "tokens", "activation"):
        assert error(found, quantity) == pytest.approx(0, abs=0.03), quantity


def test_a_wording_is_no_newer_than_its_log() -> None:
    assert one(LORA.replace("2025-12-01", "2024-12-01")).engine_version is None
    (note,) = (note for note in read(LORA).notes if "wording" in note)
    assert "2025-01-11" in note


DEVICES = """\
time=2026-05-05T01:30:33.796+08:00 level=INFO source=device.go:240 msg="model weights" device=CUDA0 size="4.1 GiB"
time=2026-05-05T01:30:33.796+08:00 level=INFO source=device.go:251 msg="kv cache" device=CUDA0 size="1.8 GiB"
time=2026-05-05T01:30:33.796+08:00 level=INFO source=device.go:262 msg="compute graph" device=CUDA0 size="1.8 GiB"
"""
COMMIT = (
    'time=2026-05-05T01:30:33.958+08:00 level=INFO source=runner.go:895 msg=load request="{Operation:commit LoraPath:[] '
    "Parallel:1 BatchSize:512 FlashAttention:Auto KvSize:32768 KvCacheType: NumThreads:6 MultiUserCache:false "
    'ProjectorPath: MainGPU:0 UseMmap:true}"\n'
)


def test_sizes_before_the_load_request_hold() -> None:
    """Ollama 0.20 lays a model out for llama.cpp's runner before it asks for the load."""
    found = one(DEVICES + COMMIT)
    assert (found.weights_gib, found.kv_cache_memory_gib, found.peak_activation_gib) == (4.1, 1.8, 1.8)
    assert found.arguments == (("num-batch", "512"),)
    runner = "load_tensors:   CPU_Mapped model buffer size =   292.36 MiB\n" + (
        "load_tensors:        CUDA0 model buffer size =  4168.09 MiB\n"
    )
    reading = read(DEVICES + COMMIT + runner)
    (found,) = reading.observations
    # What llama.cpp then takes for its graph is not in this excerpt: the server's 1.8 GiB were an estimate.
    assert (found.kv_cache_memory_gib, found.peak_activation_gib) == (1.8, None)
    assert "weights and cache are the server's estimate before loading" in reading.notes


def test_ollamas_weights_are_of_all_devices() -> None:
    text = """\
time=2025-10-22T02:17:58.181Z level=DEBUG source=device.go:206 msg="model weights" device=CUDA0 size="18.5 GiB"
time=2025-10-22T02:17:58.181Z level=DEBUG source=device.go:211 msg="model weights" device=CPU size="11.7 GiB"
"""
    assert error(receipt(text, "qwen3-30b-a3b-2507", weights="q8_0"), "weights") == pytest.approx(
        0, abs=0.003
    )


GEMMA = """\
time=2025-08-22T17:36:22.027-04:00 level=INFO source=server.go:175 msg=offload library=cuda layers.requested=-1 \
layers.model=49 layers.offload=48 layers.split="" memory.available="[11.1 GiB]" memory.gpu_overhead="0 B" \
memory.required.full="11.4 GiB" memory.required.partial="8.9 GiB" memory.required.kv="992.0 MiB" \
memory.required.allocations="[8.9 GiB]" memory.weights.total="6.8 GiB" memory.weights.repeating="6.0 GiB" \
memory.weights.nonrepeating="787.5 MiB" memory.graph.full="519.5 MiB" memory.graph.partial="1.3 GiB" \
projector.weights="795.9 MiB" projector.graph="1.0 GiB"
time=2025-08-22T17:36:22.176-04:00 level=INFO source=server.go:438 msg="starting llama server" cmd="ollama runner \
--ollama-engine --model blobs/sha256-e8ad --ctx-size 8192 --batch-size 512 --n-gpu-layers 48 --threads 28 --parallel 1"
"""


def test_ollamas_own_engine_is_told_apart() -> None:
    """Gemma 3 12B: 40 window layers of 1,024 + 512 cells and 8 full ones; the projector is in the model's file."""
    found = receipt(GEMMA, "gemma-3-12b", weights="q4_k_m")
    assert ("ollama-engine", "true") in found.observation.arguments
    assert ("flash-attention", "false") in found.observation.arguments
    assert error(found, "tokens") == 0
    assert error(found, "weights") == pytest.approx(0, abs=0.005)


@pytest.mark.parametrize(
    "line",
    [
        'level=INFO source=runner.go:925 msg="starting ollama engine"',
        'level=INFO source=ggml.go:494 msg="offloaded 20/49 layers to GPU"',
        'level=INFO source=ggml.go:377 msg="model weights" buffer=ROCm0 size="16.2 GiB"',
    ],
)
def test_words_of_the_own_engine(line: str) -> None:
    assert ("ollama-engine", "true") in one(f"{DEVICES}time=2026-05-05T01:30:34 {line}\n").arguments
    assert not one(DEVICES).arguments


@pytest.mark.parametrize(
    ("kv", "on_gpu", "on_host"), [("", "1.1 GiB", "1.5 GiB"), ("q4_0", "875.2 MiB", "1.2 GiB")]
)
def test_the_own_engine_keeps_checkpoints_of_states(kv: str, on_gpu: str, on_host: str) -> None:
    """Qwen3-Coder-Next, Ollama of 2026-04: 24 checkpoints and the state of the one slot, in 36 layers."""
    text = f"""\
time=2026-04-09T23:30:17.630-07:00 level=INFO source=runner.go:1284 msg=load request="{{Operation:commit LoraPath:[] \
Parallel:1 BatchSize:1024 FlashAttention:Enabled KvSize:32768 KvCacheType:{kv} NumThreads:8 MultiUserCache:false}}"
time=2026-04-09T23:30:17.630-07:00 level=INFO source=ggml.go:494 msg="offloaded 20/49 layers to GPU"
time=2026-04-09T23:30:17.630-07:00 level=INFO source=device.go:251 msg="kv cache" device=CUDA0 size="{on_gpu}"
time=2026-04-09T23:30:17.631-07:00 level=INFO source=device.go:256 msg="kv cache" device=CPU size="{on_host}"
"""
    # Two figures with one decimal of GiB.
    assert error(receipt(text, "qwen3-next-80b-a3b"), "tokens") == pytest.approx(0, abs=0.05)
