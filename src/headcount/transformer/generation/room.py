"""``Room``: the cache bytes that open conversations may come to hold, and who was promised how many.

A conversation of n tokens holds

    kv_bytes(n) = sum over layers of what each keeps of n tokens             (spec/attention.py)

Without pages the sum of all promises stays within the budget. Over pages the budget is taken at once: of B bytes, as
conversations of ``context`` tokens would use them, a share goes to the pools of pages and the rest to what does not lie in
pages (states s per conversation, pages p):

    pools  B p / (p + s)        states  B s / (p + s)

and a promise takes its pages from the pools, so that forks pay only for pages of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from headcount.errors import CacheFullError, UsageError
from headcount.spec.attention import StateSpace
from headcount.spec.kv_format import GroupedKvFormat, kv_format
from headcount.spec.model import ModelSpec
from headcount.transformer.kv_cache.conversation import Conversation, Pools
from headcount.units import human_bytes


class Promise(NamedTuple):
    """A conversation may come to hold so many tokens, and therefore bytes."""

    conversation: Conversation
    tokens: int
    nbytes: int


class Room:
    """Who was promised what, of ``budget`` bytes (None: no bound but memory).

    ``pools`` is where entries lie, None for tensors of their own; ``state_budget`` is then the part of the budget
    that lies outside of the pools.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        kv: str,
        budget: int | None = None,
        pools: Pools | None = None,
        state_budget: int = 0,
    ) -> None:
        self.spec, self.kv, self.budget, self.pools = spec, kv, budget, pools
        self.state_bytes = state_bytes(spec, kv)
        self.state_budget = state_budget
        self._promises: dict[int, Promise] = {}

    def __contains__(self, conversation: Conversation) -> bool:
        return id(conversation) in self._promises

    @property
    def promises(self) -> list[Promise]:
        """All of them, oldest first."""
        return list(self._promises.values())

    @property
    def promised_bytes(self) -> int:
        """Bytes set aside: the sum of the promises, or the pages they hold (shared ones once) and their states."""
        if self.pools is None:
            return sum(promise.nbytes for promise in self._promises.values())
        pages = sum((pool.pages - pool.free_pages) * pool.page_bytes for pool in self.pools.values())
        return pages + len(self._promises) * self.state_bytes

    def promise(self, conversation: Conversation, tokens: int) -> None:
        """Set aside room for ``tokens`` tokens in all, or raise CacheFullError and leave all as it was."""
        needed = kv_bytes(self.spec, tokens, self.kv)
        others = [promise for key, promise in self._promises.items() if key != id(conversation)]
        held, asked, most = sum(promise.nbytes for promise in others), needed, self.budget
        if self.pools is not None:
            held, asked, most = len(others) * self.state_bytes, self.state_bytes, self.state_budget
        if most is not None and held + asked > most:
            raise self._full(tokens, asked, most, held, len(others))
        conversation.reserve(tokens, exact_windows=False)
        self._promises[id(conversation)] = Promise(conversation, tokens, needed)

    def fork(self, conversation: Conversation, tokens: int) -> Conversation:
        """An independent continuation with room for ``tokens`` tokens; CacheFullError leaves all as it was.

        What the older one was promised stays: pages it alone could write into before are counted anew.
        """
        if conversation not in self:
            raise UsageError("this conversation is not open here: it cannot be forked")
        copy = conversation.fork()
        try:
            self.promise(copy, tokens)
            self.promise(conversation, self._promises[id(conversation)].tokens)
        except CacheFullError:
            self._promises.pop(id(copy), None)
            copy.release()
            raise
        return copy

    def forget(self, conversation: Conversation) -> None:
        """Its bytes are free. UsageError for one that is not open here."""
        if self._promises.pop(id(conversation), None) is None:
            raise UsageError("this conversation is not open here: it was closed, or belongs to another host")
        conversation.release()

    def _full(self, tokens: int, asked: int, most: int, held: int, others: int) -> CacheFullError:
        whom = f"{others} other conversation{'s' if others > 1 else ''}"
        taken = f"{human_bytes(held)} are promised to {whom}" if others else "nothing is promised yet"
        what = "KV budget" if self.pools is None else "KV budget's part for states"
        return CacheFullError(
            f"no room: a conversation of {tokens:,} tokens comes to hold {human_bytes(asked)}; of the {what} of "
            f"{human_bytes(most)}, {taken}"
        )


def paged_room(
    spec: ModelSpec,
    *,
    kv: str,
    budget: int | None,
    page_tokens: int,
    context: int,
    make: Callable[..., Pools],
) -> Room:
    """Room in pages of ``page_tokens`` tokens; ``make(budget_bytes=, context=, page_tokens=)`` takes the memory.

    Raises
    ------
    UsageError: no budget, a format that is not stored in pages, or a model that keeps nothing per token.
    CacheFullError: a budget too small for one page.
    """
    if budget is None:
        raise UsageError("pages are cut from a budget; give one")
    if isinstance(kv_format(kv), GroupedKvFormat):
        raise UsageError(f"KV format {kv} shares scales between tokens: it is not stored in pages")
    state = state_bytes(spec, kv)
    entries = kv_bytes(spec, context, kv) - state
    if entries <= 0:
        raise UsageError(f"{spec.name!r} keeps nothing per token: there is nothing to lay in pages")
    share = budget * entries // (entries + state)
    pools = make(budget_bytes=share, context=context, page_tokens=page_tokens)
    return Room(spec, kv=kv, budget=budget, pools=pools, state_budget=budget - share)


def kv_bytes(spec: ModelSpec, tokens: int, format: str) -> int:
    """Bytes one conversation of ``tokens`` tokens holds."""
    kv = kv_format(format)
    return sum(mixer.kv_bytes(tokens, kv) for layer in spec.layers for mixer in layer.mixers)


def state_bytes(spec: ModelSpec, format: str) -> int:
    """Bytes of one conversation that do not grow with it and lie in no page."""
    kv = kv_format(format)
    return sum(
        mixer.kv_bytes(1, kv)
        for layer in spec.layers
        for mixer in layer.mixers
        if isinstance(mixer, StateSpace)
    )
