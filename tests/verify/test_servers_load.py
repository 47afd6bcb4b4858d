"""Holding conversations: bounded, honest about what was seen, and gone afterwards."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from fake_servers import CHUNKED, LLAMA_CPP_PYTHON, NOT_FOUND, Engine, Fake, Reply, answer, chunk

from headcount.errors import HeadcountError, UsageError
from headcount.verify.servers.attach import attach
from headcount.verify.servers.http import Client, Patience, ServerError, read_address
from headcount.verify.servers.load import Load, Progress, hold, reply_length
from headcount.verify.servers.server import token_prompt

QUICK = Patience(connect=1.0, read=1.0, total=2.0)


def held(engine: Engine, conversations: int, **more: Any) -> Load:
    with Fake(engine.handler) as fake:
        server = attach(fake.url, patience=QUICK)
        options = {"context_tokens": 200, "reply_tokens": 80, "yours": True, "seconds": 10.0, **more}
        return hold(server, conversations=conversations, **options)


def test_all_fit() -> None:
    seen: list[Progress] = []
    load = held(Engine(slots=4), 4, progress=seen.append)
    assert (load.at_once, load.first_queued, load.queued_for) == (4, None, None)
    assert (load.running, load.waiting, load.fraction) == (4, 0, 1.0)
    assert (load.prompt_tokens, load.reply_tokens, load.others) == (120, 80, 0)
    assert 4 * 120 < load.held_tokens <= 4 * 200
    assert (load.refused, load.cut, load.early, load.errors) == (0, 0, 0, ())
    assert load.stopped == "decided" and max(step.open for step in seen) == 4


def test_the_next_one_queues() -> None:
    engine = Engine(slots=4)
    load = held(engine, 6)
    assert (load.at_once, load.first_queued, load.queued_for) == (4, 5, "cache")
    assert (load.running, load.waiting) == (4, 2)
    assert load.whole + load.closed == 6
    # Closed is gone: the server has nothing left to do.
    assert (engine.running, engine.waiting) == (0, 0)


def test_thrown_out_is_not_at_once() -> None:
    load = held(Engine(slots=4, throw_out=1), 4)
    assert (load.at_once, load.first_queued, load.queued_for, load.preemptions) == (3, 4, "preempted", 1)


def test_no_prompt_begins_like_another() -> None:
    engine = Engine(slots=3)
    held(engine, 3)
    held(engine, 3)
    heads = {tuple(prompt[:4]) for prompt in engine.prompts}
    assert len(heads) == len(engine.prompts) == 6
    heads = {tuple(token_prompt(number, 8, run=7)[:2]) for number in range(4096)}
    assert len(heads) == 4096
    assert len(token_prompt(1, 3, run=7)) == 3 and len(token_prompt(1, 999, run=7)) == 999


def test_refused_by_all() -> None:
    with pytest.raises(
        ServerError, match="refused every conversation: answers 400: maximum context length is 100"
    ):
        held(Engine(slots=1, refuse="maximum context length is 100"), 2)


def test_out_of_time() -> None:
    engine = Engine(slots=2, step=0.2)
    began = time.monotonic()
    load = held(engine, 3, seconds=0.8)
    assert load.stopped == "out of time" and time.monotonic() - began < 4
    assert (load.at_once, load.whole, load.closed) == (2, 0, 3)


def test_an_interrupt_closes_everything() -> None:
    engine = Engine(slots=4, step=0.05)

    def interrupt(step: Progress) -> None:
        if step.open == 4:
            raise KeyboardInterrupt

    before = threading.active_count()
    with Fake(engine.handler) as fake:
        server = attach(fake.url, patience=QUICK)
        with pytest.raises(KeyboardInterrupt):
            hold(
                server, conversations=4, context_tokens=200, reply_tokens=150, yours=True, progress=interrupt
            )
        until = time.monotonic() + 3
        while engine.running and time.monotonic() < until:
            time.sleep(0.02)
        assert engine.running == 0
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("pieces", "says"),
    [
        ([chunk(b"data: {\n\n")], "not JSON"),
        ([chunk(b"data: [1]\n\n")], "not JSON"),
        ([chunk(b'data: {"error": {"message": "out of memory"}}\n\n')], "out of memory"),
        ([chunk(b'data: {"choices": [7]}\n\n')], "not JSON"),
        ([chunk(b'data: {"choices": {"a": 1}}\n\n')], "not JSON"),
        (
            [chunk(b'data: {"choices": [], "usage": {"completion_tokens": 1e300}}\n\n')],
            "completion_tokens.*not possible",
        ),
        ([b"zz\r\n"], "chunks are malformed"),
        ([chunk(b"x" * 70_000)], "a line of more than"),
    ],
)
def test_broken_streams(pieces: list[bytes], says: str) -> None:
    engine = Engine(slots=1)

    def handler(method: str, path: str, body: bytes) -> Reply:
        return (
            [CHUNKED % b"text/event-stream", *pieces]
            if method == "POST"
            else engine.handler(method, path, body)
        )

    with Fake(handler) as fake, pytest.raises(ServerError, match=says):
        hold(attach(fake.url, patience=QUICK), conversations=1, context_tokens=50, yours=True, seconds=5)


def test_metrics_that_fail_under_load_are_told() -> None:
    engine = Engine(slots=2)
    asked = 0

    def handler(method: str, path: str, body: bytes) -> Reply:
        nonlocal asked
        if path == "/metrics":
            asked += 1
            if asked > 2:
                return answer("x", "text/plain", "500 Oh")
        return engine.handler(method, path, body)

    with Fake(handler) as fake:
        load = hold(
            attach(fake.url, patience=QUICK), conversations=2, context_tokens=100, reply_tokens=60, yours=True
        )
    assert load.at_once == 2 and load.running is None
    assert any("metrics answers 500" in said for said in load.errors)


def test_a_server_that_cuts_the_running_reply() -> None:
    """llama-cpp-python's default: a request that arrives ends the stream before it, with [DONE] and no reason."""
    arrivals: list[int] = []

    one = threading.Lock()

    def stream(number: int) -> Any:
        with one:
            yield CHUNKED % b"text/event-stream"
            for place in range(1, 61):
                reason = '"length"' if place == 60 else "null"
                yield chunk(b'data: {"choices": [{"text": "a", "finish_reason": %s}]}\n\n' % reason.encode())
                time.sleep(0.005)
                if place > 3 and len(arrivals) > number:
                    break
            yield chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
            # The next reply begins when a busy client, too, has seen the end of this one.
            time.sleep(0.3)

    def handler(method: str, path: str, body: bytes) -> Reply:
        if path == "/extras/tokenize/count":
            return answer({"count": body.count(b" a")})
        if method == "POST":
            arrivals.append(1)
            return stream(len(arrivals))
        return LLAMA_CPP_PYTHON.get(path, NOT_FOUND)

    with Fake(handler) as fake:
        load = hold(
            attach(fake.url, patience=QUICK), conversations=3, context_tokens=100, yours=True, seconds=5
        )
    assert (load.at_once, load.first_queued, load.queued_for) == (1, 2, "cut")
    assert load.cut >= 1 and load.whole == 1
    assert load.prompt_tokens == 68 and load.fraction is None


def test_whose_server_it_is() -> None:
    with Fake(Engine(slots=1).handler) as fake:
        server = attach(fake.url, patience=QUICK)
        ask: dict[str, Any] = {"conversations": 1, "context_tokens": 50}
        with pytest.raises(UsageError, match="--this-host-is-mine"):
            hold(server, **ask)
        with pytest.raises(UsageError, match="names 'gpu7'"):
            hold(server, **ask, yours="gpu7")
        # As if it were another machine's address.
        server.client = Client(read_address("http://192.0.2.1:1"))
        assert not server.client.loopback
        with pytest.raises(UsageError, match="is not this machine"):
            hold(server, **ask, yours=True)
        assert ("POST", "/v1/completions") not in fake.requests


@pytest.mark.parametrize(
    "ask",
    [
        {"conversations": 0},
        {"conversations": 4097},
        {"context_tokens": 7},
        {"context_tokens": 2049},
        {"reply_tokens": 200},
        {"reply_tokens": -1},
        {"conversations": 4096, "context_tokens": 2**20},
        {"seconds": 0},
        {"seconds": float("nan")},
        {"seconds": 1e9},
    ],
)
def test_out_of_bounds(ask: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        held(Engine(slots=1), **{"conversations": 1, **ask})  # type: ignore[arg-type]


def test_reply_length() -> None:
    # 200 prompts of 2,048 tokens are 200 steps of 2,048: the first reply must last longer than that.
    assert reply_length(200, 2048) == 300
    assert reply_length(1, 2048) == 32
    assert reply_length(4096, 2048) == 1024
    assert reply_length(1, 8) == 4


def test_errors_are_one_family() -> None:
    assert issubclass(ServerError, HeadcountError)
