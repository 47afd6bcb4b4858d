"""``Reply``: one answer being written, from its prompt's first token to the reason why it ended.

waiting rows     tokens of the conversation whose keys and values are not in the cache yet: the prompt, then always one
ids              tokens written so far
ended            None while it goes on; then stop token, stop string, length, or closed in the middle
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from headcount.errors import UsageError
from headcount.record import Record
from headcount.transformer.generation.sampling import Sampling, choose
from headcount.transformer.generation.stop import StopStrings
from headcount.transformer.kv_cache.conversation import Conversation
from headcount.transformer.weights.tokenizer import Tokenizer

STOP_TOKEN, STOP_STRING, LENGTH, CLOSED = "stop token", "stop string", "length", "closed"
STOPPED = "stopped"


class Asked(Record):
    """What one reply is asked: at most ``limit`` tokens, how to choose them, where to stop."""

    limit: int = 128
    sampling: Sampling = Sampling()
    stop_strings: tuple[str, ...] = ()
    stop_tokens: frozenset[int] = frozenset()

    def _check(self) -> None:
        if isinstance(self.limit, bool) or not isinstance(self.limit, int) or self.limit < 1:
            raise UsageError(f"a reply needs room for 1 token or more; given {self.limit!r}")


class Reply:
    """One answer in one conversation. ``number`` seeds its draws; ``tokenizer`` None leaves it without text."""

    def __init__(
        self,
        conversation: Conversation,
        history: Sequence[int],
        asked: Asked,
        *,
        number: int = 0,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        if len(history) <= conversation.length:
            raise UsageError("a prompt needs at least one token that the conversation does not hold yet")
        self.conversation = conversation
        self.history = list(history)
        self.asked = asked
        self.number = number
        self.ids: list[int] = []
        self.ended: str | None = None
        self.text = ""
        self._stops = StopStrings(asked.stop_strings)
        self._generator = asked.sampling.generator(number)
        self._words = tokenizer.detokeniser() if tokenizer is not None else None

    @property
    def waiting(self) -> list[int]:
        """Tokens that the next call has to read."""
        return self.history[self.conversation.length :]

    @property
    def most_tokens(self) -> int:
        """Entries its cache can come to hold: the last token written is never read."""
        return len(self.history) - len(self.ids) + self.asked.limit - 1

    def take(self, logits_V: torch.Tensor) -> str:
        """Choose the next token and return the text that may now be shown; sets ``ended`` when it was the last."""
        token = choose(logits_V, self.asked.sampling, self.history, self._generator)
        self.ids.append(token)
        self.history.append(token)
        if token in self.asked.stop_tokens:
            return self._show(self._closing("", STOP_TOKEN))
        piece = self._words.push(token) if self._words is not None else ""
        shown = self._stops.feed(piece)
        if self._stops.found is not None:
            self.ended = STOP_STRING
        elif len(self.ids) >= self.asked.limit:
            shown = self._closing(shown, LENGTH)
        return self._show(shown)

    def _closing(self, shown: str, reason: str) -> str:
        """What was held back: an unfinished character, the beginning of a stop string. They may complete one."""
        last = self._words.flush() if self._words is not None else ""
        shown += self._stops.feed(last)
        self.ended = reason if self._stops.found is None else STOP_STRING
        return shown + (self._stops.finish() if self._stops.found is None else "")

    def _show(self, text: str) -> str:
        self.text += text
        return text
