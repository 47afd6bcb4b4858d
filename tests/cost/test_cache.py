"""KV bytes against published counts and arithmetic by hand: 2 L K H p and what departs from it."""

from __future__ import annotations

import pytest

from headcount.cost.cache import (
    bytes_by_kind,
    conversation_bytes,
    fitting_formats,
    format_fits,
    growing_attention,
    marginal_bytes,
    rank_mixer,
    token_bytes,
)
from headcount.errors import UsageError
from headcount.spec.attention import CrossAttention, FullAttention, LatentAttention, SlidingWindow, StateSpace
from headcount.spec.kv_format import KV_FORMATS, kv_format
from headcount.spec.reader import read_model

FP16 = kv_format("fp16")
GIB = 2**30
MHA_7B = "layers=32,hidden=4096,heads=32"


@pytest.mark.parametrize(
    ("name", "count"),
    [
        (MHA_7B, 524_288),
        ("layers=32,hidden=4096,heads=32,kv_heads=8", 131_072),
        ("layers=32,hidden=4096,heads=32,kv_heads=1", 16_384),
        # DeepSeek-V3 insights (arXiv 2505.09343, table 1): KB a token in bf16.
        ("deepseek-v3", 70_272),
        ("qwen2.5-72b", 327_680),
        ("llama-3.1-405b", 516_096),
        # GPT-3 class MHA of Falcon-7B's one head: 2 x 32 x 64 x 2.
        ("falcon-7b", 8_192),
    ],
)
def test_bytes_per_token(name: str, count: int) -> None:
    assert token_bytes(read_model(name), FP16) == count


@pytest.mark.parametrize(
    ("name", "kv_heads", "context", "count"),
    [
        ("llama-2-70b", None, 4096, 1_342_177_280),
        ("llama-2-70b", 64, 4096, 10_737_418_240),
        ("layers=40,hidden=4096,heads=32,kv_heads=4,head_dim=128", None, 8192, 671_088_640),
        (MHA_7B, None, 2048, GIB),
        # Mistral-7B keeps 4,096 tokens of any longer context.
        ("mistral-7b", None, 4096, 536_870_912),
        ("mistral-7b", None, 32768, 536_870_912),
    ],
)
def test_bytes_per_conversation(name: str, kv_heads: int | None, context: int, count: int) -> None:
    assert conversation_bytes(read_model(name, kv_heads=kv_heads), context, FP16) == count


@pytest.mark.parametrize(
    ("kv", "gib"), [("fp16", 400.0), ("int8", 200.0), ("int8_per_token_head", 203.125), ("q8_0", 212.5)]
)
def test_eight_bit_caches_at_twice_the_context(kv: str, gib: float) -> None:
    # 200 conversations of 4,096 tokens: half the bytes at twice 2,048, and what the scales add.
    assert 200 * conversation_bytes(read_model(MHA_7B), 4096, kv_format(kv)) == gib * GIB


def test_gemma_2_alternates_windows_and_full_layers() -> None:
    # 46 layers, 16 KV heads of 128; every other one keeps at most 4,096 tokens.
    model = read_model("gemma-2-27b")
    row = 2 * 16 * 128 * 2
    assert conversation_bytes(model, 8192, FP16) == 23 * row * (4096 + 8192)
    assert bytes_by_kind(model, 8192, FP16) == {
        "sliding": (23, 23 * row * 4096),
        "full": (23, 23 * row * 8192),
    }
    assert token_bytes(model, FP16) == 46 * row
    assert marginal_bytes(model, 4095, FP16) == 46 * row
    assert marginal_bytes(model, 4096, FP16) == 23 * row


def test_cross_attention_is_paid_once() -> None:
    # Whisper large-v3: 32 decoder layers, 20 heads of 64; the audio is 1,500 positions.
    model = read_model("whisper-large-v3")
    row = 32 * 2 * 20 * 64 * 2
    assert conversation_bytes(model, 100, FP16) == row * (100 + 1500)
    assert token_bytes(model, FP16) == marginal_bytes(model, 100, FP16) == row


def test_states_do_not_grow() -> None:
    model = read_model("falcon-mamba-7b")
    assert token_bytes(model, FP16) == 0
    assert conversation_bytes(model, 10, FP16) == conversation_bytes(model, 100_000, FP16) > 0
    assert conversation_bytes(model, 0, FP16) == 0


# What a tensor-parallel rank holds -----------------------------------------------------------------

HEADS = FullAttention(num_attention_heads=32, num_key_value_heads=8, head_dim=128, v_head_dim=128)


@pytest.mark.parametrize(("tp", "held"), [(1, 8), (2, 4), (4, 2), (8, 1), (16, 1), (32, 1)])
def test_a_rank_holds_whole_key_value_heads(tp: int, held: int) -> None:
    assert rank_mixer(HEADS, tp).kv_bytes(1000, FP16) == 1000 * 2 * held * 128 * 2


def test_a_latent_is_whole_on_every_rank() -> None:
    latent = LatentAttention(
        num_attention_heads=128, kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128
    )
    for tp in (1, 2, 8):
        assert rank_mixer(latent, tp).kv_bytes(1000, FP16) == 1000 * 576 * 2


def test_a_state_is_divided() -> None:
    state = StateSpace(family="mamba2", conv_elements=4096 * 3, recurrent_elements=4096 * 128)
    assert rank_mixer(state, 4).kv_bytes(1000, FP16) == (4096 * 3 + 4096 * 128) * 2 // 4


def test_windows_and_sources_survive_the_division() -> None:
    shape = {"num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 64, "v_head_dim": 64}
    assert rank_mixer(SlidingWindow(window=512, **shape), 4).tokens_kept(9999) == 512
    assert rank_mixer(CrossAttention(source_positions=1500, **shape), 4).tokens_kept(1) == 1500


# Formats -------------------------------------------------------------------------------------------


def test_formats_that_do_not_fill_their_blocks_are_refused() -> None:
    # One head of 48 is a block and a half of 32 values.
    model = read_model("layers=2,hidden=96,heads=2,kv_heads=1,head_dim=48")
    assert not format_fits(model, kv_format("q8_0"))
    assert format_fits(model, FP16)
    names = {kv.name for kv in fitting_formats(model)}
    assert "fp8" in names
    assert names.isdisjoint({"q8_0", "q4_0"})
    with pytest.raises(UsageError, match="blocks of 32"):
        conversation_bytes(model, 1, kv_format("q4_0"))


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        # ggml's block sizes: bytes of 32 values x 8 / 32.
        ("fp16", 16),
        ("q8_0", 8.5),
        ("q5_1", 6.0),
        ("q5_0", 5.5),
        ("q4_1", 5.0),
        ("q4_0", 4.5),
        ("iq4_nl", 4.5),
        ("nvfp4", 4.5),
    ],
)
def test_bits_per_value(name: str, bits: float) -> None:
    assert KV_FORMATS[name].bits_per_value(128) == bits


def test_the_attention_that_grows() -> None:
    full = growing_attention(read_model("gemma-2-27b"))
    assert isinstance(full, FullAttention)
    assert isinstance(growing_attention(read_model("mistral-7b")), SlidingWindow)
    assert growing_attention(read_model("falcon-mamba-7b")) is None
