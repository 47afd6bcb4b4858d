"""Many conversations over one pool against plain histories: sharing, copying, giving back, and a budget that runs out."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headcount.errors import CacheFullError, UsageError
from headcount.spec.kv_format import kv_format
from headcount.transformer.kv_cache.conversation import horizon_of
from headcount.transformer.kv_cache.formats import entry_of
from headcount.transformer.kv_cache.paged import PagedCache
from headcount.transformer.kv_cache.pool import Pool

from .histories import History, chunked, first_visible, full, latent, sliding

MIXERS = [full(2, 3, 2), sliding(1, 2, 2, 5), sliding(1, 2, 2, 1), chunked(1, 2, 2, 4), latent(3, 2)]


class Held(NamedTuple):
    """What an error must leave alone."""

    length: int
    table: tuple[int, ...]
    spare: tuple[int, ...]
    keys: torch.Tensor


def held(cache: PagedCache) -> Held:
    return Held(cache.length, tuple(cache._table), tuple(cache._spare), cache.read().keys)


def same(left: Held, right: Held) -> bool:
    return left[:3] == right[:3] and torch.equal(left.keys, right.keys)


@given(
    which=st.sampled_from(range(len(MIXERS))),
    pages=st.integers(1, 12),
    page_tokens=st.integers(1, 5),
    moves=st.lists(
        st.tuples(
            st.sampled_from(["extend", "extend", "fork", "release", "reserve", "new"]),
            st.integers(0, 5),
            st.integers(1, 12),
        ),
        max_size=40,
    ),
)
def test_random_conversations_against_plain_histories(
    which: int, pages: int, page_tokens: int, moves: list[tuple[str, int, int]]
) -> None:
    mixer = MIXERS[which]
    entry, horizon = entry_of(mixer, "fp32"), horizon_of(mixer)
    pool = Pool(entry, pages=pages, page_tokens=page_tokens)
    sizes = (entry.heads, entry.key_width, entry.value_width)
    talks: list[tuple[PagedCache, History]] = []
    for move, number, count in moves:
        if move == "new" or not talks:
            history = History(*sizes, seed=len(talks), dtype=torch.float32)
            talks.append((PagedCache(pool, dtype=torch.float32, horizon=horizon), history))
            continue
        cache, history = talks[number % len(talks)]
        before = [held(one) for one, _ in talks]
        try:
            if move == "fork":
                talks.append((cache.fork(), history.copy(seed=100 + len(talks))))
            elif move == "release":
                cache.release()
                talks.remove((cache, history))
            elif move == "reserve":
                cache.reserve(count)
            else:
                ahead = history.copy(seed=count)
                start = first_visible(mixer, len(history))
                kept = cache.extend(*ahead.draw(count))
                history.keys, history.values = ahead.keys, ahead.values
                assert kept.first == start
                assert torch.equal(kept.keys, history.keys[:, start:])
                assert torch.equal(kept.values, history.values[:, start:])
        except CacheFullError:
            assert all(same(held(one), was) for (one, _), was in zip(talks, before, strict=True))
        pool.check_integrity()
        for one, own in talks:
            kept = one.read()
            assert one.length == len(own) and torch.equal(kept.keys, own.keys[:, kept.first :])
            assert one.nbytes == mixer.kv_bytes(one.length, kv_format("fp32")) <= one.allocated_bytes
    for cache, _ in talks:
        cache.release()
    pool.check_integrity()
    assert pool.free_pages == pages


@given(
    which=st.sampled_from(range(len(MIXERS))),
    page_tokens=st.integers(1, 5),
    prompt=st.integers(0, 20),
    shared=st.booleans(),
    total=st.integers(1, 60),
    data=st.data(),
)
def test_what_reserve_promised_is_there_though_others_take_every_other_page(
    which: int, page_tokens: int, prompt: int, shared: bool, total: int, data: st.DataObject
) -> None:
    mixer = MIXERS[which]
    entry, horizon = entry_of(mixer, "fp32"), horizon_of(mixer)
    pool = Pool(entry, pages=150, page_tokens=page_tokens)
    history = History(entry.heads, entry.key_width, entry.value_width, seed=3, dtype=torch.float32)
    cache = PagedCache(pool, dtype=torch.float32, horizon=horizon)
    if prompt:
        cache.extend(*history.draw(prompt))
    twin = cache.fork() if shared else None
    taken = pool.free_pages
    wanted = cache.pages_to_reserve(total)
    cache.reserve(total)
    assert taken - pool.free_pages == wanted
    while pool.free_pages:
        pool.take()
    while len(history) < total:
        cache.extend(*history.draw(data.draw(st.integers(1, total - len(history)))))
        kept = cache.read()
        assert torch.equal(kept.keys, history.keys[:, kept.first :])
    if twin is not None:
        kept = twin.read()
        assert torch.equal(kept.keys, history.keys[:, kept.first : prompt])


def test_a_window_gives_back_whole_pages() -> None:
    mixer = sliding(1, 1, 1, 8)
    pool = Pool(entry_of(mixer, "fp32"), pages=100, page_tokens=4)
    cache = PagedCache(pool, dtype=torch.float32, horizon=horizon_of(mixer))
    history = History(1, 1, 1, seed=0, dtype=torch.float32)
    most = 0
    for _ in range(200):
        cache.extend(*history.draw(1))
        most = max(most, 100 - pool.free_pages)
    # 8 entries touch 2 pages of 4 when they are aligned, 3 when not.
    assert most == 3


def test_a_fork_takes_no_page_until_one_writes() -> None:
    mixer = full(1, 1, 1)
    pool = Pool(entry_of(mixer, "fp32"), pages=10, page_tokens=4)
    cache = PagedCache(pool, dtype=torch.float32)
    history = History(1, 1, 1, seed=0, dtype=torch.float32)
    cache.extend(*history.draw(6))
    twin = cache.fork()
    assert pool.free_pages == 8 and pool.references[:2] == [2, 2]
    cache.extend(*history.draw(1))
    # The half-filled page was copied; the full one is still shared, and the twin now owns the old half.
    assert pool.free_pages == 7 and pool.references[:3] == [2, 1, 1]
    twin.extend(*History(1, 1, 1, seed=9, dtype=torch.float32).draw(1))
    assert pool.free_pages == 7


def test_the_copy_of_a_shared_page_counts_before_anything_changes() -> None:
    pool = Pool(entry_of(full(1, 1, 1), "fp32"), pages=3, page_tokens=4)
    cache = PagedCache(pool, dtype=torch.float32)
    history = History(1, 1, 1, seed=0, dtype=torch.float32)
    cache.extend(*history.draw(6))
    twin = cache.fork()
    before = held(cache)
    # 3 more tokens: a copy of the half page and a new page; one is free.
    with pytest.raises(CacheFullError, match="2 more pages of 4 tokens asked for, 1 of 3 free"):
        cache.extend(*history.copy(seed=1).draw(3))
    assert same(held(cache), before) and pool.free_pages == 1 and pool.references[:2] == [2, 2]
    twin.release()
    cache.extend(*history.draw(3))
    assert torch.equal(cache.read().keys, history.keys)


def test_a_budget_in_bytes() -> None:
    # 4 heads x (8 + 8) x 2 B = 128 B a token, 2,048 B a page of 16.
    entry = entry_of(full(4, 8, 8), "fp16")
    pool = Pool.within(entry, budget_bytes=10_000, page_tokens=16)
    assert pool.pages == 4 and pool.page_bytes == 2048 and pool.allocated_bytes == 8192
    cache = PagedCache(pool, dtype=torch.float16)
    history = History(4, 8, 8, seed=0, dtype=torch.float16)
    cache.extend(*history.draw(64))
    with pytest.raises(CacheFullError, match="1 more page of 16 tokens asked for, 0 of 4 free"):
        cache.extend(*history.draw(1))
    assert cache.length == 64 and torch.equal(cache.read().keys, history.keys[:, :64])
    with pytest.raises(CacheFullError, match="holds no page"):
        Pool.within(entry, budget_bytes=2047, page_tokens=16)


def test_a_page_lost_is_noticed() -> None:
    pool = Pool(entry_of(full(1, 1, 1), "fp32"), pages=3)
    pool.take()
    with pytest.raises(RuntimeError, match="0 are held"):
        pool.check_integrity()
    with pytest.raises(UsageError, match="free already"):
        pool.drop(2)
    with pytest.raises(UsageError, match="cannot be shared"):
        pool.share([2])
