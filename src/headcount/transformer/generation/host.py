"""``Host``: one model serving several conversations at once, within a budget of cache bytes.

Each ``step`` is one pass of the network over the rows of all live replies: a decode step is one row, a prompt a chunk of
rows (Agrawal et al. 2023), so nobody waits for a long prompt to be read whole. Rows are packed, never padded.

Admission is the planner's question in small. A reply that may grow to n tokens holds

    kv_bytes(n) = sum over layers of what each keeps of n tokens             (spec/attention.py)

and is admitted only when that, with what is promised to the others, stays within the budget: an admitted reply
never runs out of room, and a refused one changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch

from headcount.errors import CacheFullError, UsageError
from headcount.spec.kv_format import kv_format
from headcount.spec.model import ModelSpec
from headcount.transformer.generation.reply import Asked, Reply
from headcount.transformer.kv_cache.call import Call
from headcount.transformer.kv_cache.conversation import Conversation
from headcount.transformer.weights.model import LoadedModel
from headcount.transformer.weights.tokenizer import Tokenizer
from headcount.units import human_bytes


class DecodeProgram(Protocol):
    """A compiled decode step: one token of each conversation in, logits (B, V) out, caches extended."""

    def step(self, ids: Sequence[int], conversations: Sequence[Conversation]) -> torch.Tensor:
        """Run it."""


class Host:
    """Serve a model.

    kv       format of the caches (``spec.kv_format``)
    budget   bytes all caches together may come to hold; None: no bound but memory
    chunk    most rows of one prompt in one pass
    program  a compiled decode step, used whenever every live reply brings exactly one row
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
    ) -> None:
        if chunk < 1:
            raise UsageError(f"a chunk needs 1 token or more; given {chunk}")
        self.model, self.tokenizer = model, tokenizer
        self.format = kv_format(kv)
        self.budget, self.chunk, self.program = budget, chunk, program
        self.replies: list[Reply] = []
        self.passes = self.written = 0
        self._promised: dict[int, tuple[Conversation, int]] = {}
        first = next(model.network.parameters())
        self._device, self._dtype = first.device, first.dtype

    def open(self) -> Conversation:
        """A conversation that holds nothing yet."""
        return Conversation(self.model.spec, format=self.format.name, dtype=self._dtype, device=self._device)

    def bytes_at(self, tokens: int) -> int:
        """Cache bytes of one conversation of this length."""
        return kv_bytes(self.model.spec, tokens, self.format.name)

    @property
    def promised_bytes(self) -> int:
        """Bytes the open conversations may come to hold."""
        return sum(count for _, count in self._promised.values())

    @property
    def held_bytes(self) -> int:
        """Bytes the open conversations hold now."""
        return sum(conversation.nbytes for conversation, _ in self._promised.values())

    @property
    def held_tokens(self) -> int:
        """Tokens the open conversations have read."""
        return sum(conversation.length for conversation, _ in self._promised.values())

    @property
    def conversations(self) -> int:
        """How many are open."""
        return len(self._promised)

    def ask(
        self,
        prompt: Sequence[int],
        asked: Asked,
        *,
        conversation: Conversation | None = None,
        history: Sequence[int] = (),
        number: int | None = None,
    ) -> Reply:
        """Admit a reply to ``prompt``; ``conversation`` and its whole ``history`` of tokens continue an older one.

        Raises
        ------
        CacheFullError: it may come to hold more than the budget has left; nothing has changed.
        UsageError: an empty prompt, or more tokens than the model has positions.
        """
        if not prompt:
            raise UsageError("the prompt is empty: there is nothing to continue")
        talk = self.open() if conversation is None else conversation
        reply = Reply(
            talk,
            [*history, *prompt],
            asked,
            number=len(self.replies) if number is None else number,
            tokenizer=self.tokenizer,
        )
        self._check_positions(reply)
        self._promise(talk, reply.most_tokens)
        self.replies.append(reply)
        return reply

    def fork(self, conversation: Conversation, tokens: int) -> Conversation:
        """An independent continuation of a conversation, promised room for ``tokens`` tokens."""
        copy = conversation.fork()
        try:
            self._promise(copy, tokens)
        except CacheFullError:
            copy.release()
            raise
        return copy

    def close(self, conversation: Conversation) -> None:
        """Forget a conversation; its bytes are free."""
        self._promised.pop(id(conversation), None)
        conversation.release()

    def step(self) -> list[tuple[Reply, str]]:
        """One pass; each live reply that wrote a token, with the text that may be shown."""
        live = [reply for reply in self.replies if reply.ended is None]
        if not live:
            return []
        self.passes += 1
        rows = [reply.waiting[: self.chunk] for reply in live]
        with torch.inference_mode():
            if self.program is not None and all(len(row) == 1 for row in rows):
                logits = self.program.step([row[0] for row in rows], [reply.conversation for reply in live])
                writing = live
            else:
                logits, writing = self._pass(live, rows)
        self.written += len(writing)
        out = [(reply, reply.take(row)) for reply, row in zip(writing, logits, strict=True)]
        self.replies = [reply for reply in self.replies if reply.ended is None]
        return out

    def stream(self) -> Iterator[tuple[Reply, str]]:
        """Step until every reply has ended."""
        while self.replies:
            yield from self.step()

    def _pass(self, live: Sequence[Reply], rows: Sequence[Sequence[int]]) -> tuple[Any, list[Reply]]:
        """Run the network over these rows; logits of the replies whose prompts are now read whole."""
        call = Call([(reply.conversation, len(row)) for reply, row in zip(live, rows, strict=True)])
        whole = [len(row) == len(reply.waiting) for reply, row in zip(live, rows, strict=True)]
        ids = torch.tensor([[token for row in rows for token in row]], device=self._device)
        hidden = self.model.network.hidden(ids, call=call)
        ends = call.last_rows(self._device)[torch.tensor(whole, device=self._device)]
        writing = [reply for reply, done in zip(live, whole, strict=True) if done]
        return (self.model.network.logits(hidden[:, ends])[0] if writing else []), writing

    def _check_positions(self, reply: Reply) -> None:
        most, known = reply.most_tokens + 1, self.model.spec.max_positions
        if known and most > known:
            raise UsageError(
                f"{most:,} tokens (prompt {most - reply.asked.limit:,} + reply {reply.asked.limit:,}) are more than the "
                f"model's {known:,} positions"
            )

    def _promise(self, conversation: Conversation, tokens: int) -> None:
        """Set aside room for ``tokens`` tokens, or raise and leave all as it was."""
        needed = self.bytes_at(tokens)
        others = self.promised_bytes - self._promised.get(id(conversation), (conversation, 0))[1]
        if self.budget is not None and others + needed > self.budget:
            count = len([1 for key in self._promised if key != id(conversation)])
            whom = f"{count} other conversation{'s' if count > 1 else ''}"
            held = f"{human_bytes(others)} are promised to {whom}" if count else "nothing is promised yet"
            raise CacheFullError(
                f"no room: a conversation of {tokens:,} tokens comes to hold {human_bytes(needed)}; of the KV budget of "
                f"{human_bytes(self.budget)}, {held}"
            )
        conversation.reserve(tokens, exact_windows=False)
        self._promised[id(conversation)] = (conversation, needed)


def kv_bytes(spec: ModelSpec, tokens: int, format: str) -> int:
    """Bytes one conversation of ``tokens`` tokens holds."""
    kv = kv_format(format)
    return sum(mixer.kv_bytes(tokens, kv) for layer in spec.layers for mixer in layer.mixers)
