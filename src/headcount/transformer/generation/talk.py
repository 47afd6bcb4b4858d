"""``Talk``: a chat of several turns over one cache. Each turn reads only what the cache does not hold yet.

The whole chat is rendered by the model's template and compared with the tokens that the cache has read: where they agree to
the end of the cache (the usual case), the new turn is the rest; where a reply's text is tokenised otherwise than it
was written, the conversation is read anew. Either way the reply is that of the rendered chat.
"""

from __future__ import annotations

from headcount.errors import UsageError
from headcount.transformer.generation.host import Host
from headcount.transformer.generation.reply import Asked, Reply
from headcount.transformer.kv_cache.conversation import Conversation
from headcount.transformer.weights.chat import render
from headcount.transformer.weights.tokenizer import Tokenizer


class Talk:
    """Turns of one conversation. ``raw`` continues plain text instead of a chat."""

    def __init__(
        self, host: Host, tokenizer: Tokenizer, *, system: str | None = None, raw: bool = False
    ) -> None:
        self.host, self.tokenizer = host, tokenizer
        self.raw = raw or tokenizer.chat_template is None
        if system is not None and self.raw:
            raise UsageError("--system needs a model with a chat template; this text is continued as it is")
        self.messages = [] if system is None else [{"role": "system", "content": system}]
        self.conversation: Conversation | None = None
        self._read: list[int] = []

    def say(self, text: str, asked: Asked, *, number: int = 0) -> Reply:
        """Ask for the reply to ``text``; the host's steps write it, ``heard`` closes the turn.

        Raises
        ------
        CacheFullError: the turn does not fit the budget; what was said before stands, and can be continued.
        """
        if not text.strip():
            raise UsageError("the prompt is empty: there is nothing to answer")
        messages = [*self.messages, {"role": "user", "content": text}]
        ids = self._ids(text, messages)
        held = 0 if self.conversation is None else self.conversation.length
        if self.conversation is not None and ids[:held] == self._read[:held] and len(ids) > held:
            reply = self.host.ask(
                ids[held:], asked, conversation=self.conversation, history=ids[:held], number=number
            )
        else:
            # A cache that holds other tokens is of no use: its room goes to the one that is read anew.
            self.close()
            reply = self.host.ask(ids, asked, number=number)
            self.conversation = reply.conversation
        self.messages = messages
        return reply

    def heard(self, reply: Reply) -> None:
        """The reply has ended: it is part of the chat now."""
        self.messages.append({"role": "assistant", "content": reply.text})
        self._read = list(reply.history)

    def close(self) -> None:
        """Give the cache back; a later turn reads the whole talk anew."""
        if self.conversation is not None:
            self.host.close(self.conversation)
            self.conversation = None

    def _ids(self, text: str, messages: list[dict[str, str]]) -> list[int]:
        if self.raw:
            return [*self._read, *self.tokenizer.encode(text, special=not self._read)]
        template = self.tokenizer.chat_template or ""
        return self.tokenizer.encode(render(template, messages, names=self.tokenizer.names), special=False)
