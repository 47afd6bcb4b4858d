"""Whole conversations: bytes of every kind against the spec, states, sources, forks, and a budget over many layers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headcount.cost.cache import bytes_by_kind, conversation_bytes
from headcount.errors import CacheFullError, OperandError, UnsupportedModelError, UsageError
from headcount.spec.attention import CompressedLatent, LatentAttention, Mixer, SharedCache, StateSpace
from headcount.spec.kv_format import KvFormat, kv_format
from headcount.spec.model import LayerSpec, ModelSpec
from headcount.spec.reader import read_model
from headcount.transformer.kv_cache.cache import EntryCache
from headcount.transformer.kv_cache.conversation import Conversation, make_caches, make_pools
from headcount.transformer.kv_cache.cross import CrossCache
from headcount.transformer.kv_cache.formats import CODECS
from headcount.transformer.kv_cache.state import StateCache

from .histories import chunked, cross, full, latent, sliding

STATE = StateSpace(family="mamba2", conv_elements=12, recurrent_elements=40, recurrent_dtype_bytes=4)
OPEN_STATE = StateSpace(family="conv", conv_elements=7, recurrent_elements=0)
MIXERS = st.one_of(
    st.builds(full, st.integers(1, 3), st.just(32), st.sampled_from([32, 64])),
    st.builds(sliding, st.integers(1, 3), st.just(32), st.just(32), st.integers(1, 9)),
    st.builds(chunked, st.just(2), st.just(16), st.just(16), st.integers(1, 9)),
    st.builds(latent, st.just(48), st.just(16)),
    st.builds(cross, st.just(1), st.just(32), st.just(32), st.integers(1, 9)),
    st.sampled_from([STATE, OPEN_STATE]),
)


def model_of(*layers: tuple[Mixer, ...]) -> ModelSpec:
    return ModelSpec(
        name="drawn",
        family="llama",
        vocab_size=1,
        hidden_size=1,
        layers=tuple(LayerSpec(mixers=mixers, feed_forward=None, weights=()) for mixers in layers),
        outside=(),
        tied_embeddings=True,
        max_positions=0,
        dtype="bf16",
        source="test",
    )


def say(talk: Conversation, tokens: int, dtype: torch.dtype = torch.float32) -> None:
    """One pass of ``tokens`` new tokens through every cache, as a network would."""
    talk.make_room(tokens)
    for layer in talk.caches:
        for cache in layer:
            if isinstance(cache, EntryCache):
                entry = cache.entry
                keys = torch.randn(entry.heads, tokens, entry.key_width, dtype=dtype)
                cache.extend(keys, torch.randn(entry.heads, tokens, entry.value_width, dtype=dtype))
            elif isinstance(cache, StateCache):
                mixer = cache.mixer
                cache.write(
                    torch.randn(mixer.conv_elements), torch.randn(1, mixer.recurrent_elements), tokens=tokens
                )
            elif isinstance(cache, CrossCache) and not cache.written:
                entry = cache._source.entry
                keys = torch.randn(entry.heads, cache.source_positions, entry.key_width, dtype=dtype)
                cache.write(
                    keys, torch.randn(entry.heads, cache.source_positions, entry.value_width, dtype=dtype)
                )
    talk.advance(tokens)


def check_bytes(talk: Conversation, fmt: KvFormat) -> None:
    spec = talk.spec
    assert talk.nbytes == conversation_bytes(spec, talk.length, fmt)
    assert talk.nbytes_by_kind() == {
        kind: count for kind, (_, count) in bytes_by_kind(spec, talk.length, fmt).items()
    }


@settings(max_examples=60)
@given(
    layers=st.lists(st.lists(MIXERS, min_size=1, max_size=2).map(tuple), min_size=1, max_size=3),
    name=st.sampled_from(sorted(CODECS)),
    paged=st.booleans(),
    moves=st.lists(st.one_of(st.integers(1, 12), st.just("fork")), min_size=1, max_size=6),
)
def test_bytes_are_the_specs_for_every_kind_format_and_length(
    layers: list[tuple[Mixer, ...]], name: str, paged: bool, moves: list[int | str]
) -> None:
    spec = model_of(*layers)
    pools = make_pools(spec, budget_bytes=2**24, context=100, format=name) if paged else None
    talks = [Conversation(spec, format=name, pools=pools)]
    for move in moves:
        if move == "fork":
            talks.append(talks[-1].fork())
        else:
            assert isinstance(move, int)
            say(talks[-1], move)
            check_bytes(talks[-1], kv_format(name))
    for pool in (pools or {}).values():
        pool.check_integrity()
    for talk in talks:
        talk.release()
        assert talk.nbytes == talk.allocated_bytes == 0
    for pool in (pools or {}).values():
        pool.check_integrity()
        assert pool.free_pages == pool.pages


@pytest.mark.parametrize(
    "name",
    [
        "smollm2-135m",
        "gemma-2-2b",
        "llama-4-scout",
        "deepseek-v2-lite",
        "mamba-130m",
        "bamba-9b",
        "recurrentgemma-2b",
        "kimi-linear-48b-a3b",
        "bart-base",
        "gpt-oss-20b",
    ],
)
@pytest.mark.parametrize("fmt", ["fp32", "bf16", "q8_0", "int4_per_token_head"])
def test_catalogue_models_weigh_what_the_planner_says(name: str, fmt: str) -> None:
    with Conversation(read_model(name), format=fmt) as talk:
        talk.reserve(9)
        say(talk, 7)
        say(talk, 1)
        say(talk, 1)
        check_bytes(talk, kv_format(fmt))
        assert talk.allocated_bytes == talk.nbytes


def test_what_the_running_cache_does_not_have_is_refused_by_name() -> None:
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 4, "v_head_dim": 4}
    refused: list[tuple[Mixer, str]] = [
        (SharedCache(source_layer=3, **heads), "layer 3"),
        (CompressedLatent(num_attention_heads=1, head_dim=4, window=4, rate=4), "CompressedLatent"),
        (
            LatentAttention(
                num_attention_heads=1,
                kv_lora_rank=4,
                qk_rope_head_dim=2,
                qk_nope_head_dim=4,
                v_head_dim=4,
                index_head_dim=8,
            ),
            "indexer",
        ),
    ]
    for mixer, message in refused:
        with pytest.raises(UnsupportedModelError, match=message):
            make_caches(model_of((mixer,)))


# States and sources --------------------------------------------------------------------------------


@pytest.mark.usefixtures("plain_signatures")
def test_a_state_is_replaced_and_forked() -> None:
    cache = make_caches(model_of((STATE,)), format="bf16", dtype=torch.bfloat16)[0][0]
    assert isinstance(cache, StateCache)
    assert cache.nbytes == 0 and cache.allocated_bytes == STATE.state_bytes(2) == 12 * 2 + 40 * 4
    conv, recurrent = torch.arange(12.0).view(3, 4), torch.arange(40.0).view(2, 4, 5) / 3
    cache.write(conv, recurrent, tokens=5)
    twin = cache.fork()
    cache.write(conv + 1, recurrent + 1, tokens=1)
    # 12 small whole numbers are exact in bfloat16; the recurrent part is kept in float32.
    assert torch.equal(twin.read().conv.float(), conv.flatten()) and torch.equal(
        twin.read().recurrent, recurrent.flatten()
    )
    assert torch.equal(cache.read().recurrent, recurrent.flatten() + 1)
    assert (cache.length, twin.length, cache.nbytes) == (6, 5, 184)
    with pytest.raises(OperandError, match="expected 12 and 40"):
        cache.write(conv, conv, tokens=1)
    with pytest.raises(UsageError, match="1 or more tokens"):
        cache.write(conv, recurrent, tokens=0)
    with pytest.raises(UsageError, match="state cache is not extended"):
        cache.extend(torch.zeros(1, 1, 1), torch.zeros(1, 1, 1))
    cache.release()
    with pytest.raises(UsageError, match="after release"):
        cache.read()
    assert twin.nbytes == 184


def test_a_source_is_written_once() -> None:
    talk = Conversation(model_of((full(2, 4, 4), cross(2, 4, 4, 6))), format="fp16", dtype=torch.float16)
    cache = talk.caches[0][1]
    assert isinstance(cache, CrossCache)
    with pytest.raises(UsageError, match="before the source"):
        cache.read()
    keys, values = torch.randn(2, 6, 4).half(), torch.randn(2, 6, 4).half()
    with pytest.raises(UsageError, match="1 to 6"):
        cache.write(torch.zeros(2, 7, 4).half(), torch.zeros(2, 7, 4).half())
    cache.write(keys, values)
    with pytest.raises(UsageError, match="written once"):
        cache.write(keys, values)
    twin = cache.fork()
    assert twin.read().keys.data_ptr() == cache.read().keys.data_ptr()
    cache.release()
    assert torch.equal(twin.read().values, values)
    assert twin.nbytes == twin.allocated_bytes == 2 * 6 * 8 * 2


# Pools ---------------------------------------------------------------------------------------------


def test_a_conversation_fits_in_all_layers_or_changes_none() -> None:
    spec = model_of(*[(full(1, 4, 4),)] * 5, (sliding(1, 4, 4, 8),))
    page = 4 * (4 + 4) * 4
    pools = make_pools(spec, budget_bytes=20 * page, context=16, page_tokens=4)
    (pool,) = pools.values()
    assert pool.pages == 20
    first, second = Conversation(spec, pools=pools), Conversation(spec, pools=pools)
    say(first, 8)
    assert pool.free_pages == 8
    with pytest.raises(CacheFullError, match="all layers together ask for 12 more pages"):
        say(second, 8)
    assert second.length == 0 and pool.free_pages == 8
    say(second, 4)
    with pytest.raises(CacheFullError):
        first.make_room(4)
    pool.check_integrity()
    second.release()
    say(first, 4)
    check_bytes(first, kv_format("fp32"))


def test_room_for_a_pass_does_not_end_an_earlier_promise() -> None:
    spec = model_of((full(1, 4, 4),), (full(1, 4, 4),))
    pools = make_pools(spec, budget_bytes=2**14, context=16, page_tokens=4)
    (pool,) = pools.values()
    talk = Conversation(spec, pools=pools)
    talk.reserve(20)
    assert pool.pages - pool.free_pages == 10
    while pool.free_pages:
        pool.take()
    for tokens in (7, 1, 12):
        say(talk, tokens)
    assert talk.length == 20
    with pytest.raises(CacheFullError):
        talk.make_room(1)


def test_windows_need_not_be_exact() -> None:
    spec = model_of((sliding(1, 4, 4, 8),), (full(1, 4, 4),))
    talk, loose = Conversation(spec), Conversation(spec)
    talk.reserve(40)
    loose.reserve(40, exact_windows=False)
    for _ in range(40):
        say(talk, 1)
        say(loose, 1)
    assert talk.allocated_bytes == talk.nbytes == loose.nbytes
    assert loose.allocated_bytes - loose.nbytes == 8 * 4 * 8


def test_a_budget_is_divided_as_conversations_would_use_it() -> None:
    spec = model_of((full(2, 8, 8),), (full(2, 8, 8),), (full(1, 4, 4),))
    # 2 layers x 128 B and 1 x 32 B a token: 8 to 1.
    pools = make_pools(spec, budget_bytes=9 * 3200, context=160, page_tokens=16)
    assert sorted(pool.allocated_bytes for pool in pools.values()) == [3072, 24576]
    with pytest.raises(CacheFullError, match="no page"):
        make_pools(spec, budget_bytes=100, context=16)
    with pytest.raises(UsageError, match="no pool"):
        Conversation(spec, format="fp16", pools=pools)


def test_a_pass_that_broke_off_is_noticed() -> None:
    talk = Conversation(model_of((full(1, 2, 2),), (full(1, 2, 2),)))
    talk.make_room(1)
    talk.caches[0][0].extend(torch.zeros(1, 1, 2), torch.zeros(1, 1, 2))
    with pytest.raises(UsageError, match="should hold 1 tokens; they hold 0 to 1"):
        talk.advance(1)
    with pytest.raises(UsageError, match="broke off"):
        talk.make_room(1)
    talk.release()
    with pytest.raises(UsageError, match="after release"):
        talk.make_room(1)
