"""Hold N conversations on a server at once, watch what it says of its cache meanwhile, and let go.

Each conversation is one streaming completion whose prompt and reply together are ``context_tokens`` long. All are sent
without waiting for one another. They are at once from the last one's first token to the first one's last:
the reply must be long enough for every prompt to be read before the first reply ends, see ``reply_length``. When the
first conversation is whole, what is decided is decided, and all are closed.

    at once        most conversations between their first token and their end at one moment, without those that the server
                   had thrown out again: open here, but not among those that it says it runs
    first queued   one more than that, where more were asked

vLLM counts a preemption when the request speaks again: one that is closed first is in no counter of the server
(seen on 0.32.0), so those thrown out are counted here as well.
"""

from __future__ import annotations

import json
import threading
import time

from headcount.errors import UsageError
from headcount.record import Record
from headcount.units import KIB, MIB, ceil_div
from headcount.verify.servers.http import BrokenOffError, Exchange, ServerError, whole_number
from headcount.verify.servers.server import Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headcount.verify.servers.server import LiveServer

MOST_CONVERSATIONS = 4096
# Of all conversations together: their prompts are made beforehand, at 8 bytes a token.
MOST_TOKENS = 1 << 24
MOST_SECONDS = 3600.0
# Prompt tokens that one step reads at the least: vLLM's default on small devices, where prompts are read most slowly.
_STEP_TOKENS = 2048
_LEAST_REPLY = 32
_WATCH_SECONDS = 0.1
_SETTLE_SECONDS = 5.0
# A reading thread holds one socket and one line.
_STACK_BYTES = 512 * KIB
_STREAM_BYTES = 4 * MIB
_BYTES_PER_TOKEN = 2 * KIB
_ENDINGS = {"length": "whole", "stop": "early"}


class Progress(Record):
    """Where a load stands, for a bar: ``open`` have sent a token and not ended."""

    asked: int
    open: int
    ended: int
    seconds: float
    usage: Usage


class Load(Record):
    """What happened.

    at_once, first_queued   see the module; first_queued counts from 1, None when none was
    queued_for              why the first one queued: cache, slots, preempted (it began, and was thrown out of the cache),
                            cut (the server ended another's reply for it), unknown
    held_tokens             most prompt and reply tokens of open conversations at one moment, none of them thrown out
    running, waiting        the server's own figures before the first conversation ended; None where it says nothing
    fraction                the most of its cache that it said was in use; None where it says nothing
    preemptions             by the server's count or by those thrown out, the larger; None where neither is known
    others                  requests that it was running before the load
    whole, early, cut, refused, closed   how the conversations ended: at their full length, before it by the model's own
                            end, ended by the server without a reason, answered with an error, closed here
    errors                  what was said by those refused or cut, or by metrics that failed; each once, at most five
    stopped                 "decided" or "out of time"
    """

    asked: int
    context_tokens: int
    prompt_tokens: int
    reply_tokens: int
    at_once: int
    first_queued: int | None
    queued_for: str | None
    held_tokens: int
    running: int | None
    waiting: int | None
    fraction: float | None
    preemptions: int | None
    others: int | None
    whole: int
    early: int
    cut: int
    refused: int
    closed: int
    errors: tuple[str, ...]
    stopped: str
    seconds: float


class Conversation:
    """One completion: its own thread writes, the watcher reads."""

    def __init__(self, prompt: list[int] | str, prompt_tokens: int, reply_tokens: int) -> None:
        self.prompt = prompt
        self.prompt_tokens = prompt_tokens
        self.reply_tokens = reply_tokens
        self.tokens = 0
        self.first_at: float | None = None
        self.ended_at: float | None = None
        self.ending = ""
        self.said = ""
        self.exchange: Exchange | None = None

    def is_open(self) -> bool:
        """Between its first token and its end."""
        return self.first_at is not None and self.ended_at is None

    def run(self, server: LiveServer, seconds: float, stop: threading.Event) -> None:
        """Send, read until the end, note what happened."""
        limit = _STREAM_BYTES + self.reply_tokens * _BYTES_PER_TOKEN
        try:
            body = server.request(self.prompt, self.reply_tokens)
            # Reachable before it starts: a queued request gets no head, and must be closed while it waits for one.
            # Silence is no fault here: a queued or preempted request has nothing to say. The watcher ends it in time.
            self.exchange = exchange = Exchange(
                server.client,
                "/v1/completions",
                limit=limit,
                total=seconds + _SETTLE_SECONDS,
                read=seconds + _SETTLE_SECONDS,
            )
            exchange.start("POST", body)
            self.prompt, body = "", {}
            if exchange.status != 200:
                self._end("refused", _reason(exchange))
                return
            for line in exchange.lines():
                self._read(line)
            self._end(self.ending or "cut", "" if self.ending else "a reply ended without a reason")
        except BrokenOffError as error:
            self._end("closed" if stop.is_set() else "cut", str(error))
        except ServerError as error:
            self._end("closed" if stop.is_set() else "refused", str(error))
        finally:
            if self.exchange is not None:
                self.exchange.close()

    def _end(self, ending: str, said: str = "") -> None:
        self.ending, self.said = ending, said
        self.ended_at = time.monotonic()

    def _read(self, line: bytes) -> None:
        """One line of server-sent events. Raises ServerError for an error inside the stream or a broken chunk."""
        if not line.startswith(b"data:") or line[5:].strip() in (b"", b"[DONE]"):
            return
        try:
            chunk = json.loads(line[5:])
            choices = chunk.get("choices") or []
            spoken = (chunk.get("usage") or {}).get("completion_tokens")
            text, reason = (
                (choices[0].get("text"), choices[0].get("finish_reason")) if choices else (None, None)
            )
        except (ValueError, AttributeError, LookupError, TypeError, RecursionError):
            raise ServerError("a chunk of the stream that is not JSON as it should be") from None
        if "error" in chunk:
            raise ServerError(f"the stream ends with an error: {str(chunk['error'])[:200]}")
        if choices and self.first_at is None:
            self.first_at = time.monotonic()
        if spoken is not None:
            where = "completion_tokens of a stream"
            self.tokens = max(self.tokens, whole_number(spoken, where=where, most=self.reply_tokens))
        elif text:
            self.tokens += 1
        if reason is not None:
            self.ending = _ENDINGS.get(str(reason), "cut")


def reply_length(conversations: int, context_tokens: int) -> int:
    """Reply tokens that keep the first conversation open until the last one's prompt is read, and half as many more.

        steps = ceil(N x context / 2,048);  reply = max(32, 1.5 x steps), at most half the context

    One step reads 2,048 prompt tokens or more and gives every open conversation one token.
    """
    steps = ceil_div(conversations * context_tokens, _STEP_TOKENS)
    return max(1, min(max(_LEAST_REPLY, steps + steps // 2), context_tokens // 2))


def hold(
    server: LiveServer,
    *,
    conversations: int,
    context_tokens: int,
    yours: bool | str = False,
    reply_tokens: int | None = None,
    seconds: float = 120.0,
    progress: Callable[[Progress], None] | None = None,
) -> Load:
    """Hold ``conversations`` of ``context_tokens`` tokens on ``server`` at once; see the module.

    ``yours`` is the caller's word that the server may be loaded: True for one on this machine, the host's own name for
    any other. ``seconds`` bounds it all; every connection is closed when it returns or raises, Ctrl-C included.

    Raises UsageError for counts out of bounds and without that word, ServerError when the server refused every
    conversation.
    """
    _allow(server, yours)
    if not 1 <= conversations <= MOST_CONVERSATIONS:
        raise UsageError(f"--load must be 1 to {MOST_CONVERSATIONS:,} conversations; given {conversations:,}")
    longest = server.longest or MOST_TOKENS
    if not 8 <= context_tokens <= longest:
        raise UsageError(f"a conversation must be 8 to {longest:,} tokens here; given {context_tokens:,}")
    reply = reply_tokens or reply_length(conversations, context_tokens)
    if not 1 <= reply < context_tokens:
        raise UsageError(f"a reply must be 1 to {context_tokens - 1:,} tokens; given {reply:,}")
    if conversations * context_tokens > MOST_TOKENS:
        raise UsageError(
            f"--load {conversations:,} of {context_tokens:,} tokens is {conversations * context_tokens:,} tokens; at most "
            f"{MOST_TOKENS:,} are made"
        )
    if not 0 < seconds <= MOST_SECONDS:
        raise UsageError(f"a load must be 0 to {MOST_SECONDS:,.0f} seconds; given {seconds:g}")
    _allow_files(conversations)
    before = server.usage()
    talks = _talks(server, conversations, context_tokens - reply, reply)
    watch = _Watch(server, talks, progress)
    stopped = watch.run(seconds)
    watch.settle(before.running or 0)
    return _result(server, watch, context_tokens, reply, before, stopped)


def _allow(server: LiveServer, yours: bool | str) -> None:
    host = server.client.address.host
    if yours is False or yours == "":
        raise UsageError(
            f"a load takes the server from its users: say that {host} is yours, --this-host-is-mine"
        )
    if isinstance(yours, str) and yours.strip("[]").lower() != host.lower():
        raise UsageError(f"--this-host-is-mine names {yours[:60]!r}, the address is {host!r}")
    if yours is True and not server.client.loopback:
        raise UsageError(f"{host} is not this machine: name it, --this-host-is-mine {host}")


def _allow_files(conversations: int) -> None:
    """One socket each; the soft limit is raised as far as the hard one lets it."""
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = conversations + 128
    if soft == resource.RLIM_INFINITY or soft >= need:
        return
    if hard != resource.RLIM_INFINITY and hard < need:
        raise UsageError(
            f"--load {conversations:,} needs {need:,} open files; this shell allows {hard:,} (ulimit -n)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))


def _talks(
    server: LiveServer, conversations: int, prompt_tokens: int, reply_tokens: int
) -> list[Conversation]:
    run = time.time_ns() // 10**6
    talks = []
    for number in range(1, conversations + 1):
        prompt, length = server.prompt(number, prompt_tokens, run=run)
        talks.append(Conversation(prompt, length, reply_tokens))
    return talks


class _Watch:
    """Starts the conversations, samples the server until the matter is decided, closes everything."""

    def __init__(
        self, server: LiveServer, talks: Sequence[Conversation], progress: Callable[[Progress], None] | None
    ) -> None:
        self.server = server
        self.talks = talks
        self.steady = Usage()
        self.last = Usage()
        self.fraction: float | None = None
        self.held_tokens = 0
        self.thrown_out: int | None = None
        self.errors: list[str] = []
        self.seconds = 0.0
        self._progress = progress
        self._stop = threading.Event()

    def run(self, seconds: float) -> str:
        began = time.monotonic()
        threads = [
            threading.Thread(target=talk.run, args=(self.server, seconds, self._stop), daemon=True)
            for talk in self.talks
        ]
        stack = threading.stack_size(_STACK_BYTES)
        started: list[threading.Thread] = []
        try:
            for thread in threads:
                try:
                    thread.start()
                except RuntimeError:
                    raise UsageError(
                        f"this machine can hold {len(started):,} connections, not {len(threads):,}"
                    ) from None
                started.append(thread)
            while True:
                self._look(time.monotonic() - began)
                if self._decided():
                    return "decided"
                if time.monotonic() - began >= seconds:
                    return "out of time"
                time.sleep(_WATCH_SECONDS)
        finally:
            threading.stack_size(stack)
            self._close(started)
            self.seconds = time.monotonic() - began

    def _decided(self) -> bool:
        """One is whole, or none is left: from here on conversations only leave."""
        return any(talk.ending == "whole" and talk.ended_at for talk in self.talks) or all(
            talk.ended_at for talk in self.talks
        )

    def _look(self, seconds: float) -> None:
        tokens = [talk.prompt_tokens + talk.tokens for talk in self.talks if talk.is_open()]
        try:
            self.last = usage = self.server.usage()
        except ServerError as error:
            # A loaded server may answer late; the load goes on, the gap is told.
            self._note(str(error))
            return
        ended = sum(talk.ended_at is not None for talk in self.talks)
        if usage.fraction is not None:
            self.fraction = max(usage.fraction, self.fraction or 0.0)
        if not ended:
            self.steady = usage
            if usage.running is not None:
                self.thrown_out = max(self.thrown_out or 0, len(tokens) - usage.running)
        if usage.running is None or len(tokens) <= usage.running:
            self.held_tokens = max(self.held_tokens, sum(tokens))
        if self._progress is not None:
            self._progress(
                Progress(asked=len(self.talks), open=len(tokens), ended=ended, seconds=seconds, usage=usage)
            )

    def settle(self, running: int) -> None:
        """Wait until the server has noticed that its clients are gone, a few seconds at most."""
        until = time.monotonic() + _SETTLE_SECONDS
        while (self.last.running or 0) > running and time.monotonic() < until:
            time.sleep(_WATCH_SECONDS)
            try:
                self.last = self.server.usage()
            except ServerError as error:
                self._note(str(error))
                return

    def _note(self, said: str) -> None:
        if said and said not in self.errors:
            self.errors.append(said)

    def _close(self, threads: Sequence[threading.Thread]) -> None:
        self._stop.set()
        for talk in self.talks:
            if talk.exchange is not None:
                talk.exchange.close()
        until = time.monotonic() + self.server.client.patience.connect + 1.0
        for thread in threads:
            # A thread that is still connecting ends by itself: the connection has its own time limit.
            thread.join(max(0.0, until - time.monotonic()))
        for talk in self.talks:
            if talk.ending in ("refused", "cut"):
                self._note(talk.said)


def _reason(exchange: Exchange) -> str:
    """What an error answer says: its message where it is JSON, else its first words."""
    text = b"".join(exchange.pieces()).decode(errors="replace")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = {}
    error = value.get("error", value) if isinstance(value, dict) else value
    message = error.get("message") if isinstance(error, dict) else error
    return str(ServerError(f"answers {exchange.status}: {str(message or text)[:200]}"))


def _result(
    server: LiveServer, watch: _Watch, context_tokens: int, reply: int, before: Usage, stopped: str
) -> Load:
    talks = watch.talks
    endings = [talk.ending for talk in talks]
    if all(talk.ending in ("refused", "cut") and talk.first_at is None for talk in talks):
        raise ServerError(f"{server.words} refused every conversation: {' '.join(watch.errors[:1])}")
    out = watch.thrown_out or 0
    at_once = _most_at_once(talks) - out
    queued = at_once + 1 if at_once < len(talks) - endings.count("refused") else None
    return Load(
        asked=len(talks),
        context_tokens=context_tokens,
        prompt_tokens=min(talk.prompt_tokens for talk in talks),
        reply_tokens=reply,
        at_once=at_once,
        first_queued=queued,
        queued_for=None if queued is None else _why_queued(server, watch, at_once),
        held_tokens=watch.held_tokens,
        running=watch.steady.running,
        waiting=watch.steady.waiting,
        fraction=watch.fraction,
        preemptions=_preemptions(watch, before),
        others=before.running,
        whole=endings.count("whole"),
        early=endings.count("early"),
        cut=endings.count("cut"),
        refused=endings.count("refused"),
        closed=endings.count("closed") + endings.count(""),
        errors=tuple(watch.errors[:5]),
        stopped=stopped,
        seconds=watch.seconds,
    )


def _most_at_once(talks: Sequence[Conversation]) -> int:
    """Sweep over first tokens and ends; an end at the same moment comes first."""
    marks = []
    for talk in talks:
        if talk.first_at is not None:
            marks.append((talk.first_at, 1))
            marks.append((talk.ended_at if talk.ended_at is not None else float("inf"), -1))
    most = now = 0
    for _, step in sorted(marks):
        now += step
        most = max(most, now)
    return most


def _preemptions(watch: _Watch, before: Usage) -> int | None:
    if before.preemptions is None or watch.last.preemptions is None:
        return watch.thrown_out
    return max(watch.last.preemptions - before.preemptions, watch.thrown_out or 0)


def _why_queued(server: LiveServer, watch: _Watch, at_once: int) -> str:
    """Cache: one more of the same share would not have fitted. Slots: as many ran as the server runs."""
    if any(talk.ending == "cut" for talk in watch.talks):
        return "cut"
    if watch.thrown_out:
        return "preempted"
    if server.slots is not None and at_once >= server.slots:
        return "slots"
    if watch.fraction is not None and at_once and watch.fraction * (at_once + 1) / at_once > 1:
        return "cache"
    return "unknown"
