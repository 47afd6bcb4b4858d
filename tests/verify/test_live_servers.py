"""Real servers on this machine's CPU: what the rules say must be what they report, and hold.

HEADCOUNT_VLLM_PYTHON and HEADCOUNT_LLAMA_PYTHON name interpreters that have vLLM's CPU build and llama-cpp-python's server
(CONTRIBUTING.md says how to make them). Each test makes its own model: a llama of SmolLM2-135M's shape with dummy weights,
and a llama of four narrow layers.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headcount.engines import Case, Layout, Settings, engine
from headcount.hardware import accelerator
from headcount.spec.model import ModelSpec
from headcount.spec.reader import read_model
from headcount.units import GIB
from headcount.verify.servers.attach import attach
from headcount.verify.servers.http import ServerError
from headcount.verify.servers.load import hold
from headcount.verify.servers.server import LiveServer
from headcount.verify.servers.vllm import usable_blocks

pytestmark = [pytest.mark.slow, pytest.mark.reference]
# SmolLM2-135M: https://huggingface.co/HuggingFaceTB/SmolLM2-135M/blob/main/config.json
SMOL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_act": "silu",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "max_position_embeddings": 8192,
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "rms_norm_eps": 1e-05,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "vocab_size": 49152,
}
LONGEST = 2048
# Figures do not depend on the card: blocks follow from the cache bytes, which the server was given.
CARD = "h100-80gb"
START_SECONDS = 300.0


def interpreter(variable: str, module: str) -> str:
    python = os.environ.get(variable)
    if not python:
        pytest.skip(f"{variable} names no interpreter with {module}")
    found = subprocess.run([python, "-c", f"import {module}"], capture_output=True, text=True)
    if found.returncode:
        pytest.fail(f"{variable}={python}: {found.stderr.strip().splitlines()[-1]}")
    return python


def write_smol(folder: Path) -> Path:
    """A config, and a tokenizer of one word for each id; the server fills the weights itself."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SMOL))
    vocabulary = {f"t{number}": number for number in range(49152)}
    unknown = {"id": 0, "content": "t0", "single_word": False, "lstrip": False, "rstrip": False}
    (folder / "tokenizer.json").write_text(
        json.dumps(
            {
                "version": "1.0",
                "added_tokens": [{**unknown, "normalized": False, "special": True}],
                "pre_tokenizer": {"type": "WhitespaceSplit"},
                "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "t0"},
            }
        )
    )
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "t0", "eos_token": "t0"}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    return folder


def write_gguf(
    path: Path, *, layers: int = 4, width: int = 128, kv_width: int = 64, words: int = 512
) -> Path:
    """A llama with 4 heads of 32, 2 of them key/value heads, and a vocabulary of bytes and made-up words."""
    gguf = pytest.importorskip("gguf")
    np = pytest.importorskip("numpy")
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(layers)
    writer.add_context_length(LONGEST)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(2 * width)
    writer.add_head_count(width // 32)
    writer.add_head_count_kv(kv_width // 32)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(32)
    writer.add_vocab_size(words)
    tokens = [b"<unk>", b"<s>", b"</s>", *(f"<0x{byte:02X}>".encode() for byte in range(256))]
    kinds = [2, 3, 3] + [6] * 256 + [1] * (words - len(tokens))
    tokens += [f"\u2581t{number}".encode() for number in range(len(tokens), words)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * words)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    random = np.random.default_rng(0)
    shapes = {"token_embd": (words, width), "output": (words, width)}
    for layer in range(layers):
        block = f"blk.{layer}."
        shapes |= {
            block + "attn_q": (width, width),
            block + "attn_k": (kv_width, width),
            block + "attn_v": (kv_width, width),
            block + "attn_output": (width, width),
            block + "ffn_gate": (2 * width, width),
            block + "ffn_up": (2 * width, width),
            block + "ffn_down": (width, 2 * width),
        }
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{block}{norm}.weight", np.ones(width, np.float32))
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", (random.standard_normal(shape) * 0.05).astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


@contextmanager
def running(command: list[str], port: int, log: Path, **environment: str) -> Iterator[LiveServer]:
    """Start the server, wait until it answers, end it and its children."""
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            start_new_session=True,
        )
    try:
        yield wait_for(process, f"http://127.0.0.1:{port}", log)
    finally:
        # Its own session, so that the workers it started end with it.
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for(process: subprocess.Popen[bytes], url: str, log: Path) -> LiveServer:
    until, said = time.monotonic() + START_SECONDS, ""
    while process.poll() is None and time.monotonic() < until:
        try:
            return attach(url)
        except ServerError as error:
            said = str(error)
            time.sleep(1.0)
    pytest.fail(f"no server: {said}; {log.read_text()[-1500:]}")


@pytest.fixture(scope="module")
def start_vllm(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., object]:
    python = interpreter("HEADCOUNT_VLLM_PYTHON", "vllm")
    folder = tmp_path_factory.mktemp("vllm")
    model = write_smol(folder / "small-llama")

    def start(*arguments: str) -> object:
        port = free_port()
        # ``vllm serve`` fails in the CPU build of 0.32.0; the module is what it would run.
        command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
        command += ["--load-format", "dummy", "--dtype", "bfloat16", "--enforce-eager"]
        command += ["--max-model-len", str(LONGEST), "--host", "127.0.0.1", "--port", str(port), *arguments]
        return running(
            command,
            port,
            folder / "log",
            VLLM_CPU_KVCACHE_SPACE="1",
            VLLM_CPU_OMP_THREADS_BIND="nobind",
            HF_HUB_OFFLINE="1",
            VLLM_NO_USAGE_STATS="1",
        )

    return start


def smol(tmp_path: Path) -> ModelSpec:
    (tmp_path / "config.json").write_text(json.dumps(SMOL))
    return read_model(str(tmp_path))


def case_of(model: ModelSpec, context: int, *arguments: tuple[str, str]) -> Case:
    return Case(
        model=model,
        accelerator=accelerator(CARD),
        layout=Layout(),
        context=context,
        settings=Settings(arguments=arguments),
    )


def test_vllm_reports_what_the_rules_say(start_vllm: Callable[..., object], tmp_path: Path) -> None:
    with start_vllm() as server:  # type: ignore[attr-defined]
        found = server.observation
        pages = ("block-size", str(found.block_size))
        pool = engine("vllm", found.engine_version).pool(case_of(smol(tmp_path), LONGEST, pages), GIB)
        assert found.kv_cache_memory_gib == 1.0
        assert (pool.blocks, pool.tokens) == (found.num_gpu_blocks, found.kv_cache_tokens)
        assert pool.concurrency is not None and found.max_concurrency is not None
        assert round(pool.concurrency, 2) == found.max_concurrency
        # 3 conversations of 1,000 tokens hold 3 x ceil(1,000 / block) blocks of those that can be held.
        load = hold(server, conversations=3, context_tokens=1000, reply_tokens=100, yours=True)
        blocks = usable_blocks(found)
        assert found.block_size and blocks
        assert (load.at_once, load.first_queued, load.preemptions) == (3, None, 0)
        assert load.fraction == pytest.approx(3 * -(-1000 // found.block_size) / blocks, rel=1e-9)


def test_vllm_holds_the_nth_and_queues_the_next(start_vllm: Callable[..., object], tmp_path: Path) -> None:
    with start_vllm("--num-gpu-blocks-override", "33") as server:  # type: ignore[attr-defined]
        found = server.observation
        arguments = (("block-size", str(found.block_size)), ("num-gpu-blocks-override", "33"))
        rules = engine("vllm", found.engine_version)
        pool = rules.pool(case_of(smol(tmp_path), LONGEST, *arguments), GIB)
        assert (pool.blocks, pool.tokens) == (found.num_gpu_blocks, found.kv_cache_tokens) == (33, 4224)
        longest = (*arguments, ("max-model-len", str(LONGEST)))
        most = rules.replica(case_of(smol(tmp_path), 1000, *longest)).conversations
        assert most == 4

        full = hold(server, conversations=most, context_tokens=1000, reply_tokens=100, yours=True)
        assert (full.at_once, full.first_queued, full.waiting, full.fraction) == (most, None, 0, 1.0)
        over = hold(server, conversations=most + 1, context_tokens=1000, reply_tokens=100, yours=True)
        assert (over.at_once, over.first_queued, over.queued_for, over.waiting) == (
            most,
            most + 1,
            "cache",
            1,
        )
        # Prompts of four blocks: all begin, and one is thrown out as they grow to eight.
        grown = hold(server, conversations=most + 1, context_tokens=1000, reply_tokens=500, yours=True)
        assert (grown.at_once, grown.first_queued, grown.queued_for) == (most, most + 1, "preempted")
        assert server.usage().running == 0


@pytest.mark.parametrize("interrupt", [True, False])
def test_llama_cpp_python_runs_one_at_a_time(tmp_path: Path, interrupt: bool) -> None:
    python = interpreter("HEADCOUNT_LLAMA_PYTHON", "llama_cpp.server.app")
    model = write_gguf(tmp_path / "tiny.gguf")
    port, log = free_port(), tmp_path / "log"
    command = [python, "-m", "llama_cpp.server", "--model", str(model), "--n_ctx", "1000", "--n_threads", "1"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--interrupt_requests", str(interrupt).lower()]
    with running([*command, "--verbose", "true"], port, log) as server:
        case = case_of(read_model(str(model)), 1000)
        pool = engine("llama.cpp").pool(case, 1 << 20)
        printed = re.search(r"llama_kv_cache: size = +([\d.]+) MiB \( *(\d+) cells", log.read_text())
        assert printed is not None
        assert (
            (float(printed[1]), int(printed[2]))
            == ((pool.needed_bytes or 0) / 2**20, pool.tokens)
            == (1.0, 1024)
        )
        load = hold(server, conversations=2, context_tokens=600, reply_tokens=300, yours=True, seconds=60)
        assert (load.at_once, load.first_queued) == (1, 2)
        # The default: the second request ends the first one's reply. Told not to, the server lets it wait.
        assert load.queued_for == ("cut" if interrupt else "slots")
        # Longer than its context: answered with 200 and an empty stream.
        with pytest.raises(ServerError, match="refused every conversation: a reply ended without a reason"):
            hold(server, conversations=1, context_tokens=1500, yours=True)
