"""Decoding on the CPU: milliseconds per step of the compiled program, beside llama.cpp and vLLM on the same shapes.

    a step     one new token of each of B conversations: embedding, all layers, logits, arg max
    a prompt   512 tokens read into an empty cache, one row of logits; headcount's bf16 network in PyTorch
    of read    bytes of the packed weights / step, beside the rate at which PyTorch sums 1 GiB of float32 in the same rounds
    rounds     every program runs in a process of its own, kept waiting; rounds go through all of them in turn, so that a
               slow moment falls on all; medians over all steps, and the 10th to 90th percentile

Weights are random for headcount (speed does not depend on them). Peers are optional: each is given as the interpreter that
has it installed, and a model of the same shapes.

    python benchmarks/decode.py [--model smollm2-135m] [--rounds 5] [--steps 24] [--threads 2]
        [--llama PYTHON BF16.gguf Q8_0.gguf] [--vllm PYTHON DIRECTORY]

vLLM has no call for one step: its figure is (time of 8 + steps tokens - time of 8 tokens) / steps.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from statistics import median
from typing import Any

SHAPES = ((1, 128), (1, 1024), (8, 128), (8, 1024))
PROMPT = 512
PROMPT_REPEATS = 4
ROOM = 256


def serve(answer: Any) -> None:
    """Answer questions ``B context steps`` (one JSON line each; no steps: read a prompt) until the input ends."""
    print("ready", flush=True)
    for line in sys.stdin:
        print("answer " + json.dumps(answer(*map(int, line.split()))), flush=True)


def serve_ours(model: str, weights: str, threads: int) -> None:
    import torch

    from headcount.spec.reader import read_model
    from headcount.transformer.decode.program import compile_program
    from headcount.transformer.families.registry import build_network
    from headcount.transformer.generation.setup import compile_prompts
    from headcount.transformer.kv_cache.call import Call
    from headcount.transformer.kv_cache.conversation import Conversation

    torch.set_num_threads(threads)
    spec = read_model(model)
    network = build_network(spec, seed=0).to(torch.bfloat16)
    start = time.perf_counter()
    program = compile_program(network, weights=weights, threads=threads)
    print(f"# headcount {weights}: compiled in {time.perf_counter() - start:.2f} s", file=sys.stderr)

    compile_prompts(network)

    def read_prompt(tokens: int) -> float:
        talk = Conversation(spec, format="bf16", dtype=torch.bfloat16)
        talk.reserve(tokens)
        ids = torch.arange(10, 10 + tokens)[None]
        begin = time.perf_counter()
        call = Call([(talk, tokens)])
        with torch.inference_mode():
            network(ids, call=call, rows=call.last_rows())[0, 0].argmax().item()
        return time.perf_counter() - begin

    def answer(batch: int, context: int, steps: int) -> dict[str, Any]:
        if not steps:
            return {"seconds": [read_prompt(context) for _ in range(PROMPT_REPEATS)], "bytes": 0}
        talks = [Conversation(spec, format="bf16") for _ in range(batch)]
        for talk in talks:
            talk.reserve(context + ROOM)
            for (cache,) in talk.caches:
                cache.open_rows(context)
                for rows in cache.storage:
                    rows.normal_()
                cache.advance(context)
        ids, seconds = [11] * batch, []
        for _ in range(steps):
            begin = time.perf_counter()
            ids = program.step(ids, talks).numpy().argmax(1).tolist()
            seconds.append(time.perf_counter() - begin)
        return {"seconds": seconds, "bytes": program.nbytes}

    serve(answer)


def serve_read_rate(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
    numbers = torch.ones(1 << 28)

    def answer(batch: int, context: int, steps: int) -> dict[str, Any]:
        seconds = []
        for _ in range(4):
            begin = time.perf_counter()
            numbers.sum()
            seconds.append(time.perf_counter() - begin)
        return {"seconds": seconds, "bytes": 4 << 28}

    serve(answer)


def serve_llama(path: str, threads: int) -> None:
    import ctypes

    import llama_cpp as api
    import numpy as np

    silent = api.llama_log_callback(lambda level, text, data: None)
    api.llama_log_set(silent, ctypes.c_void_p(0))
    api.llama_backend_init()
    model = api.llama_model_load_from_file(path.encode(), api.llama_model_default_params())
    vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
    contexts: dict[Any, Any] = {}

    def run(context: Any, rows: list[tuple[int, int, int, bool]]) -> None:
        batch = api.llama_batch_init(len(rows), 0, 1)
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        failed = api.llama_decode(context, batch)
        api.llama_batch_free(batch)
        if failed:
            raise RuntimeError(f"llama_decode returned {failed}")

    def opened(batch: int, length: int) -> Any:
        asked = api.llama_context_default_params()
        asked.n_ctx, asked.n_batch, asked.n_seq_max = batch * (length + ROOM) + PROMPT, 2048, batch
        asked.n_threads = asked.n_threads_batch = threads
        asked.flash_attn_type, asked.kv_unified = 1, False
        context = api.llama_init_from_model(model, asked)
        for sequence in range(batch):
            run(context, [(10 + i * 7919 % 40000, i, sequence, i == length - 1) for i in range(length)])
        return context

    def read_prompt(length: int) -> float:
        if "prompt" not in contexts:
            contexts["prompt"] = opened(1, 1)
        context = contexts["prompt"]
        api.llama_memory_clear(api.llama_get_memory(context), True)
        begin = time.perf_counter()
        run(context, [(10 + i * 7919 % 40000, i, 0, i == length - 1) for i in range(length)])
        np.ctypeslib.as_array(api.llama_get_logits_ith(context, length - 1), shape=(vocabulary,)).argmax()
        return time.perf_counter() - begin

    def answer(batch: int, length: int, steps: int) -> dict[str, Any]:
        if not steps:
            return {"seconds": [read_prompt(length) for _ in range(PROMPT_REPEATS)], "bytes": 0}
        if (batch, length) not in contexts:
            contexts[batch, length] = opened(batch, length)
        context, ids, seconds = contexts[batch, length], [11] * batch, []
        for sequence in range(batch):
            api.llama_memory_seq_rm(api.llama_get_memory(context), sequence, length, -1)
        for step in range(steps):
            begin = time.perf_counter()
            run(context, [(ids[sequence], length + step, sequence, True) for sequence in range(batch)])
            found = [api.llama_get_logits_ith(context, sequence) for sequence in range(batch)]
            ids = [int(np.ctypeslib.as_array(row, shape=(vocabulary,)).argmax()) for row in found]
            seconds.append(time.perf_counter() - begin)
        return {"seconds": seconds, "bytes": os.path.getsize(path)}

    serve(answer)


def serve_vllm(folder: str) -> None:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from vllm import LLM, SamplingParams

    engine = LLM(
        folder, dtype="bfloat16", max_model_len=2048, max_num_seqs=16, enable_prefix_caching=False,
        disable_log_stats=True, skip_tokenizer_init=True,
    )  # fmt: skip
    ids = [10 + i * 7919 % 40000 for i in range(2048)]

    def generate(batch: int, length: int, tokens: int) -> float:
        asked = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        begin = time.perf_counter()
        engine.generate(
            [{"prompt_token_ids": [5 + i, *ids[: length - 1]]} for i in range(batch)], asked, use_tqdm=False
        )
        return time.perf_counter() - begin

    def answer(batch: int, length: int, steps: int) -> dict[str, Any]:
        if not steps:
            return {"seconds": [generate(1, length, 1) for _ in range(PROMPT_REPEATS)], "bytes": 0}
        less, more = generate(batch, length, 8), generate(batch, length, 8 + steps)
        return {"seconds": [(more - less) / steps] * steps, "bytes": 0}

    for batch, length in SHAPES:
        generate(batch, length, 8)
    serve(answer)


class Peer:
    """A process that waits for questions."""

    def __init__(self, python: str, *words: str, threads: int) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(
            [python, __file__, "--serve", *words, "--threads", str(threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        self._line("ready")

    def ask(self, batch: int, context: int, steps: int) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{batch} {context} {steps}\n")
        self.process.stdin.flush()
        found: dict[str, Any] = json.loads(self._line("answer ").removeprefix("answer "))
        return found

    def _line(self, start: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(start):
                return line
        raise RuntimeError(f"a peer ended: {self.process.args}")


def measure(peers: dict[str, Peer], rounds: int, steps: int) -> None:
    for batch, context in SHAPES:
        seconds: dict[str, list[float]] = {name: [] for name in peers}
        sizes: dict[str, int] = {}
        for _ in range(rounds):
            for name, peer in peers.items():
                time.sleep(0.3)  # Threads of the one before may still be watching for work.
                found = peer.ask(batch, context, steps)
                seconds[name] += found["seconds"][2:]
                sizes[name] = found["bytes"]
        read = sizes["read"] / median(seconds.pop("read")) / 1e9
        print(f"\n{batch} x {context:,} tokens; PyTorch reads {read:.0f} GB/s")
        print("| program | ms a step | 10th to 90th % | tokens/s | weights GB/s |\n|---|---|---|---|---|")
        for name, found in seconds.items():
            found.sort()
            low, middle, high = found[len(found) // 10], median(found), found[len(found) * 9 // 10]
            rate = f"{sizes[name] / middle / 1e9:.1f}" if sizes[name] else ""
            print(
                f"| {name} | {middle * 1e3:.2f} | {low * 1e3:.2f} to {high * 1e3:.2f} | {batch / middle:.0f} | {rate} |"
            )


def measure_prompts(peers: dict[str, Peer], rounds: int) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in peers if name not in ("read", "headcount int8")}
    for _ in range(rounds):
        for name, found in seconds.items():
            time.sleep(0.3)
            found += peers[name].ask(1, PROMPT, 0)["seconds"][1:]
    print(f"\na prompt of {PROMPT} tokens")
    print("| program | ms | 10th to 90th % | tokens/s |\n|---|---|---|---|")
    for name, found in seconds.items():
        found.sort()
        low, middle, high = found[len(found) // 10], median(found), found[len(found) * 9 // 10]
        print(
            f"| {name} | {middle * 1e3:.0f} | {low * 1e3:.0f} to {high * 1e3:.0f} | {PROMPT / middle:.0f} |"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--weights", nargs="+", default=["bf16", "int8"])
    parser.add_argument("--llama", nargs="+", metavar="PATH", default=[])
    parser.add_argument("--vllm", nargs=2, metavar="PATH")
    parser.add_argument("--serve", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        kind, *words = args.serve
        if kind == "ours":
            serve_ours(words[0], words[1], args.threads)
        elif kind == "llama":
            serve_llama(words[0], args.threads)
        elif kind == "vllm":
            serve_vllm(words[0])
        else:
            serve_read_rate(args.threads)
        return 0
    peers = {"read": Peer(sys.executable, "read", threads=args.threads)}
    for weights in args.weights:
        peers[f"headcount {weights}"] = Peer(
            sys.executable, "ours", args.model, weights, threads=args.threads
        )
    for path in args.llama[1:]:
        peers[f"llama.cpp {os.path.basename(path)}"] = Peer(
            args.llama[0], "llama", path, threads=args.threads
        )
    if args.vllm:
        peers["vLLM bf16"] = Peer(args.vllm[0], "vllm", args.vllm[1], threads=args.threads)
    measure(peers, args.rounds, args.steps)
    measure_prompts(peers, args.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
