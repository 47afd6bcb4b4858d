"""The transformers engine without transformers: published figures, and refusals. Exact caches: test_transformers_reference."""

from __future__ import annotations

import pytest

from headcount.engines import Case, Layout, Settings, engine
from headcount.errors import UnknownNameError, UnsupportedModelError, UsageError
from headcount.hardware import accelerator
from headcount.spec.reader import read_model
from headcount.units import GIB

PAGED = ("cache", "paged")


def case(
    model: str, *arguments: tuple[str, str], tp: int = 1, context: int = 2048, **settings: object
) -> Case:
    return Case(
        model=read_model(model),
        accelerator=accelerator("h100-80gb"),
        layout=Layout(tp=tp),
        context=context,
        settings=Settings(arguments=arguments, **settings),
    )


def test_paged_blocks_follow_the_heads_of_a_rank() -> None:
    """huggingface/transformers pull 48566: Qwen3-32B on 4 GPUs, 814 blocks (208k tokens) of undivided heads became 3,258
    (834k) of a rank's, in the same memory.
    """
    block = 64 * 2 * 8 * 128 * 2 * 256
    memory = 3258 * block // 4
    undivided = engine("transformers").pool(case("qwen3-32b", PAGED), memory)
    divided = engine("transformers").pool(case("qwen3-32b", PAGED, tp=4), memory)
    assert (undivided.blocks, undivided.tokens) == (814, 208_384)
    assert (divided.blocks, divided.tokens) == (3258, 834_048)


def test_one_conversation_of_llama() -> None:
    """2 x 32 x 8 x 128 x 2 B a token, and the growth of one layer beside it."""
    found = engine("transformers").pool(case("llama-3.1-8b"), 10 * GIB)
    assert found.bytes_per_token == 131_072
    assert found.needed_bytes == 2048 * 131_072
    assert found.concurrency == 40


def test_windows_hold_their_window_and_the_prompt_before() -> None:
    """Mistral-7B v0.1: 4,096 tokens of 8,192 are held, but all of a prompt until the next step."""
    asked = case("mistral-7b", context=8192)
    found = engine("transformers")
    assert found.pool(asked, 2**34).needed_bytes == 4096 * 131_072
    chunked = case("mistral-7b", ("prefill-chunk-size", "512"), context=8192)
    whole, pieces = found.replica(asked), found.replica(chunked)
    # The cache is a window's; the prompt's other tokens are of the peak, not of the cache.
    assert whole.kv_bytes_per_conversation_per_gpu == 4096 * 131_072
    assert pieces.kv_bytes_per_conversation_per_gpu == 4096 * 131_072
    assert whole.ledger.find("e").value > 8192 * 131_072
    # window - 1 + chunk tokens, 3 % for the allocator, 512 tokens of activations.
    assert 4607 * 131_072 < pieces.ledger.find("e").value < 5300 * 131_072
    assert pieces.conversations > whole.conversations


@pytest.mark.parametrize("arguments", [(), (("cache", "static"),), (PAGED,), (("cache", "quantized"),)])
def test_budget_adds_up_and_the_interval_is_ordered(arguments: tuple[tuple[str, str], ...]) -> None:
    found = engine("transformers").replica(case("llama-3.1-8b", *arguments))
    budget = found.budget
    assert (
        budget.memory
        == budget.reserved + budget.weights + sum(b for _, b in budget.overhead) + budget.kv_budget
    )
    assert 0 < found.low <= found.conversations <= found.high
    assert budget.kv_low <= budget.kv_budget <= budget.kv_high
    # What the page shows as used is cache, and fits what is left for it.
    assert found.conversations * found.kv_bytes_per_conversation_per_gpu <= budget.kv_budget
    assert found.ledger.find("N_conv").value == found.conversations
    assert found.warnings


def test_what_stands_beside_the_caches_is_overhead() -> None:
    """32 conversations of 8,192 tokens hold 32 x 1 GiB of cache (131,072 B a token); prompts and logits are no cache."""
    found = engine("transformers").replica(case("llama-3.1-8b", context=8192))
    assert found.kv_bytes_per_conversation_per_gpu == GIB
    room = found.budget.memory - found.budget.weights - dict(found.budget.overhead)["context and kernels"]
    peak = found.ledger.find("e").value
    assert found.conversations == room // peak
    assert 0 <= found.budget.kv_budget - found.conversations * GIB < peak


def test_float32_checkpoints_are_loaded_as_they_are() -> None:
    """Transformers 5 keeps the checkpoint's type, weights and cache; GPT-2 is published in float32."""
    asked = case("gpt2", context=512)
    asked = asked.replace(model=asked.model.replace(dtype="fp32"))
    found = engine("transformers")
    assert found.loaded_bytes(asked) == 4 * asked.model.parameters
    assert found.pool(asked, GIB).bytes_per_token == 2 * 12 * 768 * 4


def test_quantised_cache() -> None:
    """fp8: a byte a number, two float32 scales a layer. quanto: 4 bits and 2 x 16 bits for 64 numbers = 4.5 bits, the newest
    127 tokens in 16 bits.
    """
    found = engine("transformers")
    fp8 = found.pool(case("llama-3.1-8b", ("cache", "quantized"), ("backend", "fp8")), GIB)
    assert fp8.needed_bytes == 2048 * 65_536 + 32 * 8
    quanto = found.pool(case("llama-3.1-8b", ("cache", "quantized")), GIB)
    assert quanto.needed_bytes == (2048 - 127) * 65_536 * 9 // 16 + 127 * 131_072
    with pytest.raises(UnsupportedModelError, match="full attention only"):
        found.pool(case("gemma-3-27b", ("cache", "quantized")), GIB)


@pytest.mark.parametrize(
    ("model", "layout", "words"),
    [
        ("mixtral-8x7b", Layout(tp=2), "not known"),
        ("llama-3.1-8b", Layout(tp=16), "8 key/value heads"),
        ("llama-3.1-8b", Layout(pp=2), "pipeline"),
        ("t5-small", Layout(), "encoder"),
    ],
)
def test_layouts_that_are_refused(model: str, layout: Layout, words: str) -> None:
    assert words in (engine("transformers").refusal(read_model(model), layout) or "")


def test_it_is_no_server_and_has_no_other_formats() -> None:
    found = engine("transformers")
    with pytest.raises(UsageError, match="not a server"):
        found.launch(case("llama-3.1-8b"), model="x", concurrency=1)
    with pytest.raises(UsageError, match="cache=quantized"):
        found.kv_format_name(read_model("llama-3.1-8b"), Settings(kv="fp8"))
    with pytest.raises(UnknownNameError, match="version"):
        engine("transformers", "4.57.0")
    with pytest.raises(UnsupportedModelError, match="continuous batching"):
        found.pool(case("deepseek-v3", PAGED), GIB)
