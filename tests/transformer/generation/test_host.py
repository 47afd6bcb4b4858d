"""One model, several conversations: every way of serving writes the tokens that the equations without a cache write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from served_models import DRAWN, FAMILIES, served, uncached, words

from headcount.errors import CacheFullError, OperandError, UsageError
from headcount.spec.kv_format import kv_format
from headcount.transformer.generation.host import Host
from headcount.transformer.generation.reply import CLOSED, LENGTH, STOP_TOKEN, Asked
from headcount.transformer.generation.sampling import Sampling
from headcount.transformer.generation.uncached import ProjectionCount, generate_uncached
from headcount.transformer.kv_cache.call import Call
from headcount.transformer.kv_cache.conversation import Conversation
from headcount.transformer.weights.model import LoadedModel

# Alone and whole; prompts in pieces; over pages, with pieces that cross them.
WAYS: dict[str, dict[str, Any]] = {
    "cached": {},
    "chunked": {"chunk": 5},
    "paged": {"page_tokens": 4, "budget": 1 << 22},
    "paged and chunked": {"page_tokens": 3, "budget": 1 << 22, "chunk": 4},
}


def host(family: str, **options: Any) -> Host:
    return Host(served(family), kv="fp32", **options)


def finish(server: Host) -> None:
    for _ in server.stream():
        pass


@pytest.mark.parametrize("sampling", [Sampling(), DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", FAMILIES)
def test_all_ways_write_the_same(family: str, way: str, sampling: Sampling) -> None:
    """Four conversations, joining and leaving in the middle of the others' replies."""
    model, asked = served(family), Asked(limit=12, sampling=sampling)
    prompts = [words(count, seed) for seed, count in enumerate((9, 1, 17, 6))]
    truth = [uncached(model, prompt, asked, number) for number, prompt in enumerate(prompts)]
    server = host(family, **WAYS[way])
    first = server.ask(prompts[0], asked, number=0)
    server.step()
    second = server.ask(prompts[1], asked, number=1)
    third = server.ask(prompts[2], asked, number=2)
    for _ in range(6):
        server.step()
    # The third leaves before its end; the fourth takes its place.
    left = list(third.ids)
    server.close(third.conversation)
    fourth = server.ask(prompts[3], asked, number=3)
    finish(server)
    assert [first.ids, second.ids, fourth.ids] == [truth[0], truth[1], truth[3]]
    assert left == truth[2][: len(left)] and 0 < len(left) < 12
    assert (first.ended, third.ended) == (LENGTH, CLOSED)
    assert server.conversations == 3 and not server.replies


@pytest.mark.parametrize("family", FAMILIES)
def test_a_conversation_goes_on(family: str) -> None:
    """A second turn reads only what the cache does not hold: the last token written, and the new ones."""
    model, asked = served(family), Asked(limit=6)
    server = host(family, chunk=4)
    one = server.ask(words(7, 1), asked)
    finish(server)
    more = words(5, 2)
    two = server.ask(more, asked, conversation=one.conversation, history=one.history)
    assert len(two.waiting) == 1 + 5
    finish(server)
    assert two.ids == uncached(model, [*words(7, 1), *one.ids, *more], asked)


@pytest.mark.parametrize("family", ["llama", "deepseek_v3"])
def test_stop_tokens_end_a_reply(family: str) -> None:
    model = served(family)
    free = uncached(model, words(5, 0), Asked(limit=12))
    stop = free[5]
    asked = Asked(limit=12, stop_tokens=frozenset([stop]))
    server = host(family)
    reply = server.ask(words(5, 0), asked)
    finish(server)
    assert reply.ids == free[: free.index(stop) + 1] == uncached(model, words(5, 0), asked)
    assert reply.ended == STOP_TOKEN


def test_seeds_do_not_depend_on_the_company() -> None:
    asked = Asked(limit=10, sampling=DRAWN)
    alone = host("llama")
    one = alone.ask(words(6, 0), asked)
    finish(alone)
    crowded = host("llama")
    others = [crowded.ask(words(8, seed), asked, number=seed) for seed in (1, 2)]
    same = crowded.ask(words(6, 0), asked)
    other_number = crowded.ask(words(6, 0), asked, number=9)
    finish(crowded)
    assert same.ids == one.ids != other_number.ids
    assert all(len(reply.ids) == 10 for reply in others)


def llama_bytes(tokens: int, width: int = 4) -> int:
    """3 layers, keys and values, 3 heads of 8."""
    return tokens * 3 * 2 * 3 * 8 * width


def test_promised_bytes_are_the_specs() -> None:
    server = host("llama", budget=10**6)
    reply = server.ask(words(7, 0), Asked(limit=5))
    # The last token written is never read.
    assert server.promised_bytes == llama_bytes(11) == server.bytes_at(11)
    assert server.held_bytes == 0
    finish(server)
    assert server.held_bytes == llama_bytes(11) == reply.conversation.allocated_bytes
    assert (server.held_tokens, server.written, server.passes) == (11, 5, 5)


@pytest.mark.parametrize("kv", ["fp32", "bf16", "fp8", "int8_per_token_head"])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_promised_comes_to_be_held(family: str, kv: str) -> None:
    server = Host(served(family), kv=kv, budget=10**7)
    for seed, count in enumerate((9, 20)):
        server.ask(words(count, seed), Asked(limit=8))
    fmt = kv_format(kv)
    spec = served(family).spec
    promised = sum(
        mixer.kv_bytes(count + 7, fmt) for count in (9, 20) for layer in spec.layers for mixer in layer.mixers
    )
    assert server.promised_bytes == promised
    finish(server)
    assert server.held_bytes == promised


@pytest.mark.parametrize("options", [{}, {"page_tokens": 4}], ids=["rows", "pages"])
def test_a_refused_conversation_changes_nothing(options: dict[str, Any]) -> None:
    """Room for two of 12 tokens; the third comes when one of them has gone."""
    model, asked = served("llama"), Asked(limit=5)
    server = host("llama", budget=2 * llama_bytes(12), **options)
    replies = [server.ask(words(8, seed), asked) for seed in (0, 1)]
    server.step()
    before = (server.promised_bytes, server.held_bytes, server.conversations, len(server.replies))
    assert server.promised_bytes == 2 * llama_bytes(12)
    with pytest.raises(CacheFullError, match="room") as refused:
        server.ask(words(8, 2), asked)
    assert "\n" not in str(refused.value)
    assert before == (server.promised_bytes, server.held_bytes, server.conversations, len(server.replies))
    finish(server)
    for seed, reply in enumerate(replies):
        assert reply.ids == uncached(model, words(8, seed), asked)
    server.close(replies[0].conversation)
    late = server.ask(words(8, 2), asked)
    finish(server)
    assert late.ids == uncached(model, words(8, 2), asked)
    for open_one in (replies[1], late):
        server.close(open_one.conversation)
    assert server.promised_bytes == server.held_bytes == server.conversations == 0


def test_pages_once_promised_are_not_given_to_others() -> None:
    """A reply that has hardly begun holds one page, and is promised three; the pool has four."""
    server = host("llama", budget=llama_bytes(16), page_tokens=4)
    reply = server.ask(words(2, 0), Asked(limit=11))
    server.step()
    with pytest.raises(CacheFullError):
        server.ask(words(2, 1), Asked(limit=7))
    small = server.ask(words(2, 1), Asked(limit=3))
    finish(server)
    assert (len(reply.ids), len(small.ids)) == (11, 3)


def test_a_continued_turn_that_does_not_fit_leaves_the_conversation() -> None:
    server = host("llama", budget=llama_bytes(20))
    one = server.ask(words(7, 1), Asked(limit=6))
    finish(server)
    with pytest.raises(CacheFullError):
        server.ask(words(5, 2), Asked(limit=9), conversation=one.conversation, history=one.history)
    assert server.promised_bytes == llama_bytes(12)
    two = server.ask(words(5, 2), Asked(limit=3), conversation=one.conversation, history=one.history)
    finish(server)
    assert two.ids == uncached(served("llama"), one.history + words(5, 2), Asked(limit=3))


def pools(server: Host) -> list[Any]:
    assert server.room.pools is not None
    return list(server.room.pools.values())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("options", [{}, {"page_tokens": 4}], ids=["rows", "pages"])
def test_forks_go_their_own_ways(family: str, options: dict[str, Any]) -> None:
    model, asked = served(family), Asked(limit=9)
    server = host(family, budget=1 << 20, **options)
    one = server.ask(words(18, 1), asked)
    for _ in range(4):
        server.step()
    history = one.history[: one.conversation.length]
    twin = server.fork(one.conversation, 40)
    third = server.fork(twin, 40)
    two = server.ask(words(4, 5), asked, conversation=twin, history=history)
    three = server.ask(words(6, 6), asked, conversation=third, history=history)
    finish(server)
    assert one.ids == uncached(model, words(18, 1), asked)
    assert two.ids == uncached(model, [*history, *words(4, 5)], asked)
    assert three.ids == uncached(model, [*history, *words(6, 6)], asked)
    for reply in (one, two, three):
        server.close(reply.conversation)
    assert server.promised_bytes == 0
    if options:
        for pool in pools(server):
            pool.check_integrity()
            assert pool.free_pages == pool.pages


def test_forks_share_pages() -> None:
    """3 layers of 18 tokens: 5 pages each. A fork for 24 tokens takes one copied tail and one new page."""
    server = host("llama", budget=1 << 20, page_tokens=4)
    one = server.ask(words(18, 1), Asked(limit=1))
    finish(server)
    (pool,) = pools(server)
    free = pool.free_pages
    assert pool.pages - free == 3 * 5
    twin = server.fork(one.conversation, 24)
    assert free - pool.free_pages == 3 * 2
    pool.check_integrity()
    server.close(twin)
    assert pool.free_pages == free


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_a_fork_does_not_take_what_was_promised(family: str) -> None:
    """Pages for one reply to its end, and 0, 1, 2 ... more: a fork is refused and harms nobody, or both can finish."""
    asked, forked = Asked(limit=16), 0
    probe = host(family, budget=1 << 20, page_tokens=4)
    probe.ask(words(10, 1), asked)
    (pool,) = pools(probe)
    truth = uncached(served(family), words(10, 1), asked)
    history = words(10, 1) + truth[:4]
    other_truth = uncached(served(family), [*history, *words(1, 4)], Asked(limit=10))
    for spare in range(0, 24, 2):
        server = host(family, budget=(pool.pages - pool.free_pages + spare) * pool.page_bytes, page_tokens=4)
        one = server.ask(words(10, 1), asked)
        for _ in range(5):
            server.step()
        before = (server.promised_bytes, server.conversations)
        try:
            twin = server.fork(one.conversation, 25)
        except CacheFullError:
            assert before == (server.promised_bytes, server.conversations)
            finish(server)
        else:
            forked += 1
            two = server.ask(words(1, 4), Asked(limit=10), conversation=twin, history=history)
            finish(server)
            assert two.ids == other_truth
        assert one.ids == truth
        pools(server)[0].check_integrity()
    assert 0 < forked < 12


def test_states_have_their_part_of_a_paged_budget() -> None:
    """A state is as large after one token as after many: its part of the budget bounds how many are open."""
    server = host("bamba", budget=1 << 20, page_tokens=4)
    room = server.room
    assert sum(pool.allocated_bytes for pool in pools(server)) + room.state_budget <= 1 << 20
    most = room.state_budget // room.state_bytes
    for number in range(most):
        server.ask(words(1, number), Asked(limit=1))
    with pytest.raises(CacheFullError, match="part for states"):
        server.ask(words(1, 0), Asked(limit=1))
    assert server.conversations == most


def test_pages_need_a_budget_that_holds_one() -> None:
    with pytest.raises(UsageError, match="give one"):
        host("llama", page_tokens=4)
    with pytest.raises(CacheFullError, match="no page"):
        host("llama", page_tokens=64, budget=1000)
    with pytest.raises(UsageError, match="not stored in pages"):
        Host(served("llama"), kv="int4_per_channel", page_tokens=4, budget=1 << 20)
    with pytest.raises(UsageError, match="lie in one piece"):
        host("llama", page_tokens=4, budget=1 << 20, program=OneToken())


def test_the_kind_of_fp8_is_the_one_asked_for() -> None:
    kept = []
    for kv in ("fp8", "fp8_e5m2"):
        server = Host(served("llama"), kv=kv)
        reply = server.ask(words(9, 0), Asked(limit=1))
        finish(server)
        kept.append(reply.conversation.caches[0][0].read().keys)
    assert not torch.equal(*kept)


def test_what_is_refused() -> None:
    server = host("llama")
    with pytest.raises(
        UsageError, match=r"130 tokens \(prompt 120 \+ reply 10\) are more than the model's 128 positions"
    ):
        server.ask(words(120, 0), Asked(limit=10))
    with pytest.raises(UsageError, match="empty"):
        server.ask([], Asked(limit=10))
    with pytest.raises(UsageError, match="token 101 is not of the model's vocabulary, 0 to 100"):
        server.ask([5, 101], Asked())
    with pytest.raises(UsageError, match="token -1"):
        server.ask([-1], Asked())
    assert (server.conversations, server.promised_bytes) == (0, 0)
    reply = server.ask(words(8, 0), Asked(limit=3))
    server.step()
    with pytest.raises(UsageError, match="still being answered"):
        server.ask([5], Asked(limit=1), conversation=reply.conversation, history=reply.history)
    finish(server)
    with pytest.raises(UsageError, match="holds 10 tokens, its history names 0"):
        server.ask(words(12, 0), Asked(limit=1), conversation=reply.conversation)
    with pytest.raises(UsageError, match="not open here"):
        host("llama").ask([5], Asked(limit=1), conversation=reply.conversation, history=reply.history)
    server.close(reply.conversation)
    for again in (
        lambda: server.close(reply.conversation),
        lambda: server.fork(reply.conversation, 20),
        lambda: server.ask([5], Asked(limit=1), conversation=reply.conversation, history=reply.history),
    ):
        with pytest.raises(UsageError, match="not open here"):
            again()
    with pytest.raises(UsageError, match="a chunk needs 1 token"):
        host("llama", chunk=0)
    for limit in (0, -1, 1.5, True):
        with pytest.raises(UsageError, match="room for 1 token"):
            Asked(limit=limit)  # type: ignore[arg-type]


class OneToken:
    """A compiled step that remembers how many conversations it was given, and lets the network run."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def step(self, ids: Sequence[int], conversations: Sequence[Conversation]) -> torch.Tensor:
        self.sizes.append(len(ids))
        call = Call([(conversation, 1) for conversation in conversations])
        logits: torch.Tensor = served("llama").network(torch.tensor([list(ids)]), call=call)[0]
        return logits


@pytest.mark.parametrize("chunk", [1, 4, 512])
def test_a_compiled_step_runs_when_all_wait_for_one_token(chunk: int) -> None:
    """Not before: a prompt read one token at a time writes nothing until its end."""
    asked, program = Asked(limit=6), OneToken()
    server = host("llama", chunk=chunk, program=program)
    replies = [server.ask(words(count, count), asked) for count in (5, 9)]
    finish(server)
    for count, reply in zip((5, 9), replies, strict=True):
        assert reply.ids == uncached(served("llama"), words(count, count), asked)
    # By then the shorter prompt may have written more.
    assert program.sizes and max(program.sizes) <= 2


def test_damaged_weights_are_one_error() -> None:
    import copy

    model = served("llama")
    network = copy.deepcopy(model.network)
    with torch.no_grad():
        network.norm.weight[3] = torch.nan
    server = Host(LoadedModel(model.spec, network, ""), kv="fp32")
    server.ask(words(4, 0), Asked(limit=3))
    with pytest.raises(OperandError, match="not numbers"):
        finish(server)


@pytest.mark.parametrize("family", FAMILIES)
def test_projections_with_and_without_a_cache(family: str) -> None:
    """A text of 64 tokens, one prompt token and 64 written: 64 projections per layer; without a cache 64 x 65 / 2."""
    model, asked = served(family), Asked(limit=64)
    if not any(
        name.endswith((".mixer.key", ".mixer.down", ".mixer.input"))
        for name, _ in model.network.named_modules()
    ):
        pytest.fail("the projections that are counted have other names here")
    server = host(family)
    reply = server.ask([5], asked)
    with ProjectionCount(model.network) as counted:
        finish(server)
    assert counted.per_layer == 64
    with ProjectionCount(model.network) as counted:
        assert list(generate_uncached(model.network, [5], asked)) == reply.ids
    assert counted.per_layer == 2080


def test_a_count_of_nothing_is_refused() -> None:
    with ProjectionCount(torch.nn.Linear(2, 2)) as counted:
        pass
    with pytest.raises(UsageError, match="different counts"):
        _ = counted.per_layer
