"""What every kind of live server can be asked, whatever its names for it."""

from __future__ import annotations

from abc import ABC, abstractmethod

from headcount.record import Record
from headcount.verify.servers.http import ServerError, read_json, whole_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headcount.verify.observation import Observation
    from headcount.verify.servers.http import Client

# Token ids of made prompts: beyond the control tokens that vocabularies keep at their start (Mistral's Tekken has 1,000),
# inside every vocabulary of 2,512 tokens and more.
_IDS = tuple(range(2000, 2512))
_TOKENS = len(_IDS)


class Usage(Record):
    """What a server says it holds at this moment; None where it does not say.

    running      requests it computes now
    waiting      requests it has accepted and does not compute
    fraction     of its cache in use, 0 to 1, in its own counting
    preemptions  requests thrown out of the cache since it started
    """

    running: int | None = None
    waiting: int | None = None
    fraction: float | None = None
    preemptions: int | None = None


class LiveServer(ABC):
    """One server that answers.

    words        its name and version, ``vLLM 0.32.0``
    model        the name that requests must use
    observation  what it said of its memory
    slots        requests that it runs at a time at most, where it says so
    """

    def __init__(
        self, client: Client, *, words: str, model: str, observation: Observation, slots: int | None = None
    ) -> None:
        self.client = client
        self.words = words
        self.model = model
        self.observation = observation
        self.slots = slots

    @property
    def longest(self) -> int | None:
        """Tokens of the longest request it takes, where it says so."""
        return self.observation.max_model_len

    @abstractmethod
    def usage(self) -> Usage:
        """What it holds now. Raises ServerError."""

    @abstractmethod
    def request(self, prompt: list[int] | str, reply_tokens: int) -> dict[str, Any]:
        """The body of one streaming completion of exactly ``reply_tokens`` tokens, as far as the server can promise."""

    def prompt(self, number: int, tokens: int, *, run: int) -> tuple[list[int] | str, int]:
        """A prompt of ``tokens`` tokens that shares no beginning with another ``number`` or ``run``, and its length."""
        return token_prompt(number, tokens, run=run), tokens

    def get_json(self, path: str) -> Any:
        """``path`` as JSON; None where the server has no such endpoint (404, 405, 501).

        Raises ServerError for another status than 200.
        """
        answer = self.client.get(path)
        where = self.client.address.words() + path
        if answer.status in (404, 405, 501):
            return None
        if answer.status != 200:
            raise ServerError(f"{where} answers {answer.status}")
        return read_json(answer, where=where)


def token_prompt(number: int, tokens: int, *, run: int) -> list[int]:
    """``tokens`` ids; the first four say ``number`` and ``run``, so that no cache of prefixes can share a page.

    A cache shares whole pages from the first token on: one different id at the start makes every page different.
    """
    head = [number % _TOKENS, number // _TOKENS % _TOKENS, run % _TOKENS, run // _TOKENS % _TOKENS]
    rest = [(place * 7919 + number * 104_729 + run) % _TOKENS for place in range(len(head), tokens)]
    return [_IDS[digit] for digit in [*head, *rest][:tokens]]


def text_of(value: object) -> str | None:
    """``value`` if it is a text of a sane length, else None."""
    return value if isinstance(value, str) and 0 < len(value) <= 500 else None


def count_of(value: object, *, where: str) -> int | None:
    """``value`` as a count; None for None and "None". Raises ServerError for anything else that is no count."""
    return None if value is None or value == "None" else whole_number(value, where=where)
