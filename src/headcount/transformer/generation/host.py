"""``Host``: one model serving several conversations at once, within a budget of cache bytes.

Each ``step`` is one pass of the network over the rows of all live replies: a decode step is one row, a prompt a chunk of
rows (Agrawal et al. 2023), so nobody waits for a long prompt to be read whole. Rows are packed, never padded.

Admission is the planner's question in small (``room``): a reply that may grow to n tokens is admitted only when the bytes
of n tokens, with what is promised to the others, stay within the budget. An admitted reply never runs out of room, and a
refused one changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch

from headcount.errors import UsageError
from headcount.spec.kv_format import kv_format
from headcount.transformer.decode.crew import alone
from headcount.transformer.generation.reply import CLOSED, STOPPED, Asked, Reply
from headcount.transformer.generation.room import Room, kv_bytes, paged_room
from headcount.transformer.kv_cache.call import Call
from headcount.transformer.kv_cache.conversation import Conversation, make_pools
from headcount.transformer.weights.model import LoadedModel
from headcount.transformer.weights.tokenizer import Tokenizer

# How long a conversation is taken to become where a budget is divided between kinds of pages.
PAGED_CONTEXT = 4096


@runtime_checkable
class DecodeProgram(Protocol):
    """A compiled decode step: one token of each conversation in, logits (B, V) out, caches extended."""

    def step(self, ids: Sequence[int], conversations: Sequence[Conversation]) -> torch.Tensor:
        """Run it."""


class Host:
    """Serve a model.

    kv       format of the caches (``spec.kv_format``)
    budget   bytes all caches together may come to hold; None: no bound but memory
    chunk    most rows of one prompt in one pass
    program  a compiled decode step, used whenever every live reply waits for exactly one token
    page_tokens  keep entries in pages of so many tokens, cut from the budget at once; forks then share pages
    """

    def __init__(
        self,
        model: LoadedModel,
        *,
        tokenizer: Tokenizer | None = None,
        kv: str = "bf16",
        budget: int | None = None,
        chunk: int = 512,
        program: DecodeProgram | None = None,
        page_tokens: int | None = None,
    ) -> None:
        if chunk < 1:
            raise UsageError(f"a chunk needs 1 token or more; given {chunk}")
        if program is not None and page_tokens is not None:
            raise UsageError(
                "a compiled step reads caches that lie in one piece; give a program or page_tokens"
            )
        self.model, self.tokenizer = model, tokenizer
        self.format = kv_format(kv)
        self.budget, self.chunk, self.program = budget, chunk, program
        self.replies: list[Reply] = []
        self.passes = self.written = 0
        first = next(model.network.parameters())
        self._device, self._dtype, self._kv = first.device, first.dtype, kv
        self.room = (
            Room(model.spec, kv=kv, budget=budget) if page_tokens is None else self._pages(page_tokens)
        )

    def _pages(self, page_tokens: int) -> Room:
        spec = self.model.spec
        return paged_room(
            spec,
            kv=self._kv,
            budget=self.budget,
            page_tokens=page_tokens,
            context=min(spec.max_positions or PAGED_CONTEXT, PAGED_CONTEXT),
            make=partial(make_pools, spec, format=self._kv, device=self._device),
        )

    def open(self) -> Conversation:
        """A conversation that holds nothing yet."""
        return Conversation(
            self.model.spec,
            format=self._kv,
            dtype=self._dtype,
            device=self._device,
            pools=self.room.pools,
        )

    def bytes_at(self, tokens: int) -> int:
        """Cache bytes of one conversation of this length."""
        return kv_bytes(self.model.spec, tokens, self._kv)

    @property
    def promised_bytes(self) -> int:
        """Bytes the open conversations may come to hold."""
        return self.room.promised_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes the open conversations hold now."""
        return sum(promise.conversation.nbytes for promise in self.room.promises)

    @property
    def held_tokens(self) -> int:
        """Tokens the open conversations have read."""
        return sum(promise.conversation.length for promise in self.room.promises)

    @property
    def conversations(self) -> int:
        """How many are open."""
        return len(self.room.promises)

    def ask(
        self,
        prompt: Sequence[int],
        asked: Asked,
        *,
        conversation: Conversation | None = None,
        history: Sequence[int] = (),
        number: int = 0,
    ) -> Reply:
        """Admit a reply to ``prompt``; ``conversation`` and its whole ``history`` of tokens continue an older one.

        ``number`` tells conversations that share a seed apart: the same prompt under another number draws anew.

        Raises
        ------
        CacheFullError: it may come to hold more than the budget has left; nothing has changed.
        UsageError: an empty prompt, a token that is not of the vocabulary, more tokens than the model has positions; a
            conversation that is not open here, is still being answered, or holds more than ``history`` says.
        """
        if not prompt:
            raise UsageError("the prompt is empty: there is nothing to continue")
        if conversation is not None:
            self._check_open(conversation, history)
        self._check_ids([*history, *prompt])
        talk = self.open() if conversation is None else conversation
        reply = Reply(talk, [*history, *prompt], asked, number=number, tokenizer=self.tokenizer)
        self._check_positions(reply)
        self.room.promise(talk, reply.most_tokens)
        self.replies.append(reply)
        return reply

    def fork(self, conversation: Conversation, tokens: int) -> Conversation:
        """An independent continuation of a conversation, promised room for ``tokens`` tokens in all.

        Raises
        ------
        CacheFullError: no room for it; nothing has changed.
        UsageError: a conversation that is not open here.
        """
        return self.room.fork(conversation, tokens)

    def close(self, conversation: Conversation) -> None:
        """Forget a conversation, in the middle of a reply or after it; its bytes are free.

        Raises UsageError for a conversation that is not open here.
        """
        self.room.forget(conversation)
        for reply in self.replies:
            if reply.conversation is conversation:
                reply.ended = CLOSED
        self.replies = [reply for reply in self.replies if reply.ended is None]

    def stop(self, reply: Reply) -> None:
        """End a reply where it is; its conversation stays open."""
        if reply.ended is None:
            reply.ended = STOPPED
        self.replies = [other for other in self.replies if other is not reply]

    def step(self) -> list[tuple[Reply, str]]:
        """One pass; each live reply that wrote a token, with the text that may be shown."""
        live = [reply for reply in self.replies if reply.ended is None]
        if not live:
            return []
        self.passes += 1
        waiting = [reply.waiting for reply in live]
        with torch.inference_mode():
            if self.program is not None and all(len(row) == 1 for row in waiting):
                logits = self.program.step(
                    [row[0] for row in waiting], [reply.conversation for reply in live]
                )
                writing = live
            else:
                logits, writing = self._pass(live, [row[: self.chunk] for row in waiting])
        self.written += len(writing)
        # Between two compiled steps PyTorch's threads would watch for work on the processors that the next one needs.
        with torch.inference_mode(), alone() if self.program is not None else nullcontext():
            out = [(reply, reply.take(row)) for reply, row in zip(writing, logits, strict=True)]
        self.replies = [reply for reply in self.replies if reply.ended is None]
        return out

    def stream(self) -> Iterator[tuple[Reply, str]]:
        """Step until every reply has ended."""
        while self.replies:
            yield from self.step()

    def _pass(self, live: Sequence[Reply], rows: Sequence[Sequence[int]]) -> tuple[Any, list[Reply]]:
        """Run the network over these rows; logits of the replies whose prompts are now read whole."""
        call = Call(
            [(reply.conversation, len(row)) for reply, row in zip(live, rows, strict=True)],
            ends=[reply.conversation.length + len(reply.waiting) for reply in live],
        )
        whole = [len(row) == len(reply.waiting) for reply, row in zip(live, rows, strict=True)]
        ids = torch.tensor([[token for row in rows for token in row]], device=self._device)
        hidden = self.model.network.hidden(ids, call=call)
        ends = call.last_rows(self._device)[torch.tensor(whole, device=self._device)]
        writing = [reply for reply, done in zip(live, whole, strict=True) if done]
        return (self.model.network.logits(hidden[:, ends])[0] if writing else []), writing

    def _check_open(self, conversation: Conversation, history: Sequence[int]) -> None:
        if conversation not in self.room:
            raise UsageError("this conversation is not open here: it was closed, or belongs to another host")
        if any(reply.conversation is conversation for reply in self.replies):
            raise UsageError("this conversation is still being answered; wait for the reply's end")
        if len(history) < conversation.length:
            raise UsageError(
                f"the conversation holds {conversation.length:,} tokens, its history names {len(history):,}: give all"
            )

    def _check_ids(self, ids: Sequence[int]) -> None:
        known = self.model.spec.vocab_size
        wrong = next((token for token in ids if not 0 <= token < known), None)
        if wrong is not None:
            raise UsageError(f"token {wrong} is not of the model's vocabulary, 0 to {known - 1:,}")

    def _check_positions(self, reply: Reply) -> None:
        most, known = reply.most_tokens + 1, self.model.spec.max_positions
        if known and most > known:
            raise UsageError(
                f"{most:,} tokens (prompt {most - reply.asked.limit:,} + reply {reply.asked.limit:,}) are more than the "
                f"model's {known:,} positions"
            )
