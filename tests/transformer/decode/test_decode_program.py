"""The program's own promises: weight formats, cache formats, batches, long contexts, refusals, threads."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
import torch
from stepwise import disturb, made, random_ids, worst_gap

from headcount.errors import OperandError, UnknownNameError, UnsupportedModelError, UsageError
from headcount.transformer.attention.masks import Chunked
from headcount.transformer.decode.program import compile_program
from headcount.transformer.kv_cache.call import Call
from headcount.transformer.kv_cache.conversation import Conversation, make_pools
from headcount.transformer.layers import Linear


@torch.no_grad()
def test_bf16_weights_are_the_rounded_network() -> None:
    """Against the network with weights rounded to bfloat16: what is left is the rounding of what meets them (2^-9 each)."""
    network, spec = made()
    for parameter in network.parameters():
        parameter.copy_(parameter.bfloat16())
    ids = random_ids(2, 30)
    wanted = network(ids)
    program = compile_program(network, weights="bf16", threads=2)
    assert worst_gap(program, network, spec, ids, wanted) < 0.02 * wanted.std() * 3


@torch.no_grad()
def test_int8_weights_are_the_quantised_network() -> None:
    """Against the network with Q8_0 weights put back: what is left is the rounding of activations (1/254 of each largest)."""
    network, spec = made(hidden_size=96, head_dim=16, intermediate_size=160)
    for module in network.modules():
        if isinstance(module, Linear) or module is network.embedding:
            blocks = module.weight.unflatten(1, (-1, 32))
            scale = (blocks.abs().amax(-1, keepdim=True) / 127).half().float()
            module.weight.copy_(((blocks / scale).round() * scale).flatten(1))
    ids = random_ids(2, 30)
    wanted = network(ids)
    program = compile_program(network, weights="int8", threads=2)
    assert worst_gap(program, network, spec, ids, wanted) < 0.03 * wanted.std() * 3


@torch.no_grad()
@pytest.mark.parametrize("format", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"head_dim": 64, "num_key_value_heads": 3},
        {"model_type": "mistral", "sliding_window": 100},
        {"head_dim": 72, "num_key_value_heads": 6},
        {"head_dim": 16, "num_attention_heads": 5, "num_key_value_heads": 1},
        {"model_type": "bloom", "n_head": 6, "n_layer": 2},
    ],
)
def test_long_contexts(format: str, changes: dict[str, Any]) -> None:
    """A prompt read by the network, then steps of both from equal caches, past one and two blocks of 128 scores."""
    network, spec = made(**changes)
    program = compile_program(network, weights="fp32", threads=2)
    ids = random_ids(1, 300)
    plain, compiled = Conversation(spec, format=format), Conversation(spec, format=format)
    position = 0
    for length in (1, 15, 16, 17, 126, 127, 129, 254, 257, 290):
        for conversation in (plain, compiled):
            chunk = ids[:, position:length]
            if chunk.shape[1]:
                network(chunk, call=Call([(conversation, chunk.shape[1])]))
        wanted = network(ids[:, length : length + 1], call=Call([(plain, 1)]))[0, 0]
        found = program.step([int(ids[0, length])], [compiled])[0]
        position = length + 1
        # A bfloat16 cache holds rounded rows in both; a row whose float32 differ in the last bit may round apart.
        assert (found - wanted).abs().max() < (1e-4 if format == "fp32" else 2e-2), length


@torch.no_grad()
@pytest.mark.parametrize("chunk", [7, 64])
def test_chunked_attention(chunk: int) -> None:
    network, spec = made()
    for layer in network.layers:
        layer.mixer.mask = Chunked(chunk=chunk)
    ids = random_ids(2, 100)
    program = compile_program(network, weights="fp32", threads=2)
    assert worst_gap(program, network, spec, ids, network(ids)) < 1e-5


@torch.no_grad()
def test_sinks() -> None:
    """A learned score per head that takes part in the softmax and carries no value."""
    network, spec = made()
    network.use_kernel("naive")
    for layer in network.layers:
        layer.mixer.sinks = torch.nn.Parameter(torch.randn(6))
    ids = random_ids(2, 40)
    program = compile_program(network, weights="fp32", threads=2)
    assert worst_gap(program, network, spec, ids, network(ids)) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("weights", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("count", [2, 5, 15])
def test_alone_or_together_the_same_bits(weights: str, count: int) -> None:
    network, spec = made(num_key_value_heads=3)
    disturb(network)
    program = compile_program(network, weights=weights, threads=2)
    together = [Conversation(spec, format="bf16") for _ in range(count)]
    alone = [Conversation(spec, format="bf16") for _ in range(count)]
    ids = random_ids(count, 20)
    for number in range(count):
        for conversation in (together[number], alone[number]):
            network(ids[number : number + 1, : number + 1], call=Call([(conversation, number + 1)]))
    for step in range(4):
        tokens = [int(ids[number, number + 1 + step]) for number in range(count)]
        batch = program.step(tokens, together)
        for number in range(count):
            single = program.step([tokens[number]], [alone[number]])
            assert torch.equal(batch[number], single[0])


@torch.no_grad()
def test_growing_forking_and_reading_on() -> None:
    """Caches move while they grow, a fork lies elsewhere, and the network may read on between two steps."""
    network, spec = made()
    program = compile_program(network, weights="fp32", threads=2)
    ids = random_ids(1, 120)
    wanted = network(ids)[0]
    talk = Conversation(spec)
    position = 0
    while position < 100:
        for _ in range(3):
            found = program.step([int(ids[0, position])], [talk])[0]
            assert (found - wanted[position]).abs().max() < 1e-5
            position += 1
        network(ids[:, position : position + 4], call=Call([(talk, 4)]))
        position += 4
        talk.reserve(position + 1 + position % 3)
        if position % 5 == 0:
            old, talk = talk, talk.fork()
            program.step([1], [old])
            old.release()


def test_what_is_refused() -> None:
    network, spec = made()
    program = compile_program(network, weights="fp32", threads=2)
    talk = Conversation(spec)
    with pytest.raises(UsageError, match="one id per conversation; given 2 ids, 1 conversations"):
        program.step([1, 2], [talk])
    with pytest.raises(UsageError, match="one id per conversation"):
        program.step([], [])
    with pytest.raises(UsageError, match="stands twice"):
        program.step([1, 2], [talk, talk])
    for token in (-1, 101):
        with pytest.raises(OperandError, match=f"id {token} is outside of the vocabulary of 101"):
            program.step([token], [talk])
    with pytest.raises(
        OperandError, match=r"K, H, W = \(2, 8, 8\), in fp32 or bf16; the cache keeps .* in float16"
    ):
        program.step([1], [Conversation(spec, format="fp16")])
    with pytest.raises(UsageError, match="not plain"):
        program.step([1], [Conversation(spec, format="int8_per_token_head")])
    pools = make_pools(spec, budget_bytes=1 << 20, context=64)
    with pytest.raises(UsageError, match="layer 0 keeps paged"):
        program.step([1], [Conversation(spec, pools=pools)])
    with pytest.raises(OperandError, match="a conversation of 3 layers; the program has 2"):
        program.step([1], [Conversation(made(num_hidden_layers=3)[1])])
    with pytest.raises(OperandError, match=r"the cache keeps \(3, 8, 8\)"):
        program.step([1], [Conversation(made(num_key_value_heads=3)[1])])
    talk.release()
    with pytest.raises(UsageError, match="release"):
        program.step([1], [talk])
    other = Conversation(spec)
    program.step([1], [other])
    other.release()
    with pytest.raises(UsageError, match="release"):
        program.step([1], [other])


def test_networks_that_are_refused() -> None:
    network, _ = made()
    with pytest.raises(UnknownNameError, match="weight format 'bf15'; nearest: bf16"):
        compile_program(network, weights="bf15")
    with pytest.raises(UsageError, match="threads must be 1 or more; given 0"):
        compile_program(network, threads=0)
    mixture, _ = made(model_type="mixtral", num_local_experts=4)
    with pytest.raises(UnsupportedModelError, match="Mixture is not compiled"):
        compile_program(mixture)
    odd, spec = made(model_type="bloom", hidden_size=30, n_head=6, n_layer=2)
    program = compile_program(odd, weights="fp32", threads=1)
    with pytest.raises(OperandError, match="odd width"):
        program.step([1], [Conversation(spec, format="bf16")])


def test_past_the_last_learned_position() -> None:
    network, spec = made(model_type="gpt2", n_embd=48, n_layer=2, n_head=3, max_position_embeddings=12)
    program = compile_program(network, weights="fp32", threads=2)
    talk = Conversation(spec)
    for _ in range(12):
        program.step([1], [talk])
    with pytest.raises(OperandError, match="position 12, the table ends at 11"):
        program.step([1], [talk])
    assert talk.length == 12


def test_threads_sleep_wake_and_end() -> None:
    def crew() -> int:
        return sum(thread.name.startswith("decode") for thread in threading.enumerate())

    network, spec = made()
    gc.collect()
    time.sleep(0.5)
    before = crew()
    program: Any = compile_program(network, weights="fp32", threads=4)
    talk = Conversation(spec)
    first = program.step([1], [talk])
    for pause in (0.2, 0.0, 0.05):
        time.sleep(pause)
        again = program.step([1], [Conversation(spec)])
        assert torch.equal(first, again)
    assert crew() == before + 3
    del program
    gc.collect()
    deadline = time.monotonic() + 10
    while crew() != before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert crew() == before


def test_alone() -> None:
    """PyTorch's threads are set aside between two steps, and come back."""
    from headcount.transformer.decode.crew import alone

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with pytest.raises(ZeroDivisionError), alone():
        assert torch.get_num_threads() == 1
        raise ZeroDivisionError
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "features"),
    [
        ("haswell", "+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+sse4.2,+sse4.1,+popcnt"),
        ("skylake-avx512", "+avx512f,+avx512bw,+avx512dq,+avx512vl,+avx512cd,+avx,+avx2,+fma,+f16c"),
    ],
)
def test_other_processors(name: str, features: str) -> None:
    """The same tests, compiled for processors without the products of pairs and quads."""
    tests = [
        os.path.join(os.path.dirname(__file__), file)
        for file in ("test_decode_program.py", "test_decode_numbers.py")
    ]
    environment = {**os.environ, "NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features}
    words = [sys.executable, "-m", "pytest", "-q", "-m", "transformer and not slow and not reference", *tests]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, cwd=os.getcwd())
    assert done.returncode == 0, done.stdout[-2000:]


def test_the_compiled_code_is_kept() -> None:
    """A second process takes it from the disk: no instruction is compiled again."""
    script = (
        "from headcount.transformer.decode import kernel as k\n"
        "loop = k.kernel()\n"
        "kept = [k._action(f).cache_hits for f in {*(d[0] for d in k.FORMED.values()), *k.SHARED.values()}]\n"
        "print(sum(loop.stats.cache_misses.values()), kept.count(0), len(kept))\n"
    )
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "0", "7"]


def test_a_released_conversation_keeps_nothing_alive() -> None:
    import weakref

    network, spec = made()
    program = compile_program(network, weights="fp32", threads=2)
    talk = Conversation(spec)
    program.step([1], [talk])
    kept = weakref.ref(talk.caches[0][0].storage[0])
    del talk
    gc.collect()
    assert kept() is None
