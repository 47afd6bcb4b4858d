"""Contiguous, rolling and paged caches against plain histories: what is shown, what it weighs, what a fork changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headcount.errors import OperandError, UsageError
from headcount.spec.attention import Mixer
from headcount.spec.kv_format import kv_format
from headcount.transformer.kv_cache.cache import Cache
from headcount.transformer.kv_cache.contiguous import ContiguousCache
from headcount.transformer.kv_cache.conversation import make_cache
from headcount.transformer.kv_cache.formats import entry_of
from headcount.transformer.kv_cache.pool import Pool
from headcount.transformer.kv_cache.rolling import RollingCache

from .histories import (
    CPU,
    LOSSLESS,
    History,
    chunked,
    first_visible,
    full,
    latent,
    sliding,
)

SIZES = st.integers(1, 5)
MIXERS = st.one_of(
    st.builds(full, SIZES, SIZES, SIZES),
    st.builds(sliding, SIZES, SIZES, SIZES, st.integers(1, 9)),
    st.builds(chunked, SIZES, SIZES, SIZES, st.integers(1, 9)),
    st.builds(latent, SIZES, SIZES),
)
STEPS = st.lists(st.one_of(st.just(1), st.integers(0, 20)), max_size=12)
PAGE = st.one_of(st.none(), st.integers(1, 6))


def make(mixer: Mixer, name: str, page_tokens: int | None) -> Cache:
    pools = None
    if page_tokens:
        entry = entry_of(mixer, name)
        pools = {entry.geometry: Pool(entry, pages=300, page_tokens=page_tokens)}
    return make_cache(mixer, format=name, dtype=LOSSLESS[name], device=CPU, pools=pools)


def history_of(mixer: Mixer, name: str, seed: int) -> History:
    entry = entry_of(mixer, name)
    return History(entry.heads, entry.key_width, entry.value_width, seed=seed, dtype=LOSSLESS[name])


@given(
    mixer=MIXERS,
    name=st.sampled_from(sorted(LOSSLESS)),
    steps=STEPS,
    page=PAGE,
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_every_append_shows_what_the_mask_allows_and_weighs_what_the_spec_says(
    mixer: Mixer, name: str, steps: list[int], page: int | None, seed: int, data: st.DataObject
) -> None:
    cache, history = make(mixer, name, page), history_of(mixer, name, seed)
    for tokens in steps:
        if data.draw(st.booleans()):
            cache.reserve(data.draw(st.integers(0, 40)))
        start = first_visible(mixer, len(history))
        keys, values = history.draw(tokens)
        kept = cache.extend(keys, values)
        assert kept.first == start
        assert torch.equal(kept.keys, history.keys[:, start:])
        assert torch.equal(kept.values, history.values[:, start:])
        assert cache.length == len(history)
        assert cache.nbytes == mixer.kv_bytes(len(history), kv_format(name)) <= cache.allocated_bytes


@given(
    mixer=MIXERS,
    name=st.sampled_from(sorted(LOSSLESS)),
    steps=st.lists(st.integers(1, 20), min_size=1, max_size=6),
    more=st.integers(0, 8),
)
def test_reserved_exactly_nothing_lies_idle(mixer: Mixer, name: str, steps: list[int], more: int) -> None:
    cache, history = make(mixer, name, None), history_of(mixer, name, 0)
    cache.reserve(sum(steps) + more)
    allocated = cache.allocated_bytes
    for tokens in steps:
        cache.extend(*history.draw(tokens))
        assert cache.allocated_bytes == allocated
    if more:
        cache.extend(*history.draw(more))
    assert cache.allocated_bytes == allocated == cache.nbytes


@given(
    mixer=MIXERS,
    steps=STEPS,
    page=PAGE,
    later=st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=8),
)
def test_a_fork_and_its_parent_do_not_see_each_other(
    mixer: Mixer, steps: list[int], page: int | None, later: list[tuple[bool, int]]
) -> None:
    cache, history = make(mixer, "fp32", page), history_of(mixer, "fp32", 1)
    for tokens in steps:
        cache.extend(*history.draw(tokens))
    pair = [(cache, history), (cache.fork(), history.copy(seed=2))]
    for which, tokens in later:
        one, own = pair[which]
        start = first_visible(mixer, len(own))
        kept = one.extend(*own.draw(tokens))
        assert torch.equal(kept.keys, own.keys[:, start:]) and torch.equal(kept.values, own.values[:, start:])
    pair[0][0].release()
    one, own = pair[1]
    start = first_visible(mixer, len(own))
    assert torch.equal(one.extend(*own.draw(3)).keys, own.keys[:, start:])


def test_growth_is_amortised() -> None:
    cache, history = make(full(1, 1, 1), "fp32", None), history_of(full(1, 1, 1), "fp32", 0)
    assert isinstance(cache, ContiguousCache)
    moves, before = 0, 0
    for _ in range(1000):
        cache.extend(*history.draw(1))
        moves += cache.capacity != before
        before = cache.capacity
    # 16, 32, ..., 1024.
    assert moves == 7 and before == 1024


def test_a_window_left_to_grow_moves_once_a_window() -> None:
    mixer = sliding(1, 1, 1, 50)
    cache, history = make(mixer, "fp32", None), history_of(mixer, "fp32", 0)
    assert isinstance(cache, RollingCache)
    addresses = set()
    for _ in range(1000):
        cache.extend(*history.draw(1))
        assert cache.allocated_bytes <= 2 * 50 * 8
        addresses.add((cache.last_row - cache.length, cache.capacity))
    # One move per 51 appends once 100 rows are there: the 49 that stay leave 51 free.
    assert len(addresses) <= 1000 / 51 + 4


def test_extend_gives_views_and_one_head_lies_in_one_run() -> None:
    mixer = full(3, 4, 2)
    cache, history = make(mixer, "bf16", None), history_of(mixer, "bf16", 0)
    assert isinstance(cache, ContiguousCache)
    cache.reserve(10)
    kept = cache.extend(*history.draw(6))
    keys, values = cache.storage
    assert (
        keys.shape == (3, 10, 4)
        and values.shape == (3, 10, 2)
        and keys.is_contiguous()
        and values.is_contiguous()
    )
    assert kept.keys.data_ptr() == keys.data_ptr() and kept.values.data_ptr() == values.data_ptr()


@pytest.mark.parametrize("mixer", [full(2, 3, 3), sliding(2, 3, 3, 4), chunked(2, 3, 3, 4)])
def test_a_kernel_writes_into_storage_itself(mixer: Mixer) -> None:
    cache, history = make(mixer, "fp32", None), history_of(mixer, "fp32", 0)
    assert isinstance(cache, ContiguousCache)
    for _ in range(20):
        row = cache.open_rows(1)
        stored_keys, stored_values = cache.storage
        keys, values = history.draw(1)
        stored_keys[:, row], stored_values[:, row] = keys[:, 0], values[:, 0]
        cache.advance(1)
        assert cache.nbytes == mixer.kv_bytes(len(history), kv_format("fp32"))
        first = first_visible(mixer, len(history) - 1)
        begin = cache.last_row - (len(history) - first)
        assert torch.equal(stored_keys[:, begin : cache.last_row], history.keys[:, first:])
    kept = cache.read()
    assert torch.equal(kept.keys, history.keys[:, kept.first :])
    with pytest.raises(UsageError, match="open_rows"):
        cache.advance(1000)


def test_memory_taken_in_inference_mode_serves_outside_of_it() -> None:
    mixer = full(1, 2, 2)
    cache, history = make(mixer, "fp32", None), history_of(mixer, "fp32", 0)
    with torch.inference_mode():
        cache.extend(*(part.clone() for part in history.draw(3)))
    kept = cache.extend(*history.draw(2))
    assert torch.equal(kept.keys, history.keys)


# Misuse --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("plain_signatures")
@pytest.mark.parametrize("page", [None, 4])
@pytest.mark.parametrize(
    ("keys", "values", "message"),
    [
        (torch.zeros(3, 1, 4), torch.zeros(3, 1, 5), "this cache keeps K=2, H=4, W=5"),
        (torch.zeros(2, 1, 5), torch.zeros(2, 1, 5), "this cache keeps K=2, H=4, W=5"),
        (torch.zeros(2, 1, 4), torch.zeros(2, 2, 5), "expected T = 1"),
        (torch.zeros(2, 1, 4), torch.zeros(2, 5), "expected 3 dimensions"),
        (torch.zeros(2, 1, 4).double(), torch.zeros(2, 1, 5).double(), "computes in float32"),
        (torch.zeros(2, 1, 4), torch.zeros(2, 1, 5).double(), "one dtype"),
    ],
)
def test_wrong_operands(page: int | None, keys: torch.Tensor, values: torch.Tensor, message: str) -> None:
    cache = make(full(2, 4, 5), "fp32", page)
    with pytest.raises(OperandError, match=message):
        cache.extend(keys, values)
    assert cache.length == 0 and cache.nbytes == 0


@pytest.mark.parametrize("page", [None, 4])
@pytest.mark.parametrize("mixer", [full(1, 2, 2), sliding(1, 2, 2, 3)])
def test_after_release_everything_raises(mixer: Mixer, page: int | None) -> None:
    cache, history = make(mixer, "fp32", page), history_of(mixer, "fp32", 0)
    cache.extend(*history.draw(5))
    cache.release()
    row = history.draw(1)
    calls: list[Callable[[], object]] = [
        lambda: cache.extend(*row),
        lambda: cache.reserve(9),
        cache.fork,
        cache.release,
    ]
    for call in calls:
        with pytest.raises(UsageError, match="after release"):
            call()
    assert cache.nbytes == cache.allocated_bytes == 0


def test_gradients_are_refused_rather_than_lost() -> None:
    cache = make(full(1, 2, 2), "fp32", None)
    row = torch.zeros(1, 1, 2, requires_grad=True)
    with pytest.raises(UsageError, match="no_grad"):
        cache.extend(row, row)
    with torch.no_grad():
        assert not cache.extend(row, row).keys.requires_grad


@pytest.mark.usefixtures("plain_signatures")
@pytest.mark.parametrize("tokens", [-1, True, 1.5])
def test_reserve_wants_a_count(tokens: int) -> None:
    with pytest.raises(UsageError, match="whole number"):
        make(full(1, 2, 2), "fp32", None).reserve(tokens)


def test_storage_of_rows_that_are_not_plain_is_refused() -> None:
    cache = make_cache(full(1, 2, 2), format="int8_per_token_head", dtype=torch.float32, device=CPU)
    assert isinstance(cache, ContiguousCache)
    with pytest.raises(UsageError, match="int8_per_token_head"):
        _ = cache.storage


def test_a_rolling_cache_without_a_window_is_refused() -> None:
    with pytest.raises(UsageError, match="window or a chunk"):
        RollingCache(entry_of(full(1, 2, 2), "fp32"), dtype=torch.float32, device=CPU)
