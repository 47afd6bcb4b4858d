"""The HTTP client against servers that break every rule: each ends in time, in one line, and leads nowhere else."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from fake_servers import CHUNKED, Fake, Reply, answer, chunk

from headcount.errors import HeadcountError, UsageError
from headcount.verify.servers.http import Client, Patience, ServerError, read_address, read_json, whole_number

QUICK = Patience(connect=1.0, read=0.3, total=0.6)


def client(fake: Fake, **more: object) -> Client:
    return Client(read_address(fake.url), patience=QUICK, **more)  # type: ignore[arg-type]


def endless(
    piece: bytes, head: bytes = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"
) -> Iterator[bytes]:
    yield head
    while True:
        yield piece


def drip(text: bytes, seconds: float = 0.05) -> Iterator[bytes]:
    for place in range(len(text)):
        yield text[place : place + 1]
        time.sleep(seconds)


@pytest.mark.parametrize(
    ("url", "host", "port", "prefix"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1", 8000, ""),
        ("http://gpu7:8000/v1/", "gpu7", 8000, ""),
        ("https://llm.example/team/a/v1", "llm.example", 443, "/team/a"),
        ("http://[::1]:30000", "::1", 30000, ""),
    ],
)
def test_addresses(url: str, host: str, port: int, prefix: str) -> None:
    address = read_address(url)
    assert (address.host, address.port, address.prefix) == (host, port, prefix)


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:8000", "ftp://a", "file:///etc/passwd", "http://", "http://a:99999", "http://a:0", "http://a:x",
     "http://a/?q=1", "http://a/#b", "http://u:secret@a", "http://[::1", "http://a/b c", "http://a/é", "http://a\n.b"],
)  # fmt: skip
def test_bad_addresses(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_address(url)
    assert "secret" not in str(caught.value) and "\n" not in str(caught.value)


def test_a_whole_answer() -> None:
    with Fake(lambda *_: answer({"a": 1})) as fake:
        found = client(fake).get("/x")
        assert (found.status, read_json(found, where="x")) == (200, {"a": 1})
        assert fake.requests == [("GET", "/x")]


def test_the_key_is_sent_and_never_shown() -> None:
    with Fake(lambda *_: answer("no", status="401 Unauthorized")) as fake:
        assert client(fake, key="sk-very-secret").get("/x").status == 401
        assert "Authorization: Bearer sk-very-secret" in fake.heads[0]
    for key in ("a b", "a\r\nX: y", "é", ""):
        with pytest.raises(UsageError) as caught:
            Client(read_address("http://127.0.0.1:1"), key=key)
        assert not key or key not in str(caught.value)


def test_a_redirect_is_not_followed() -> None:
    with Fake(lambda *_: answer({})) as other:
        head = f"HTTP/1.1 307 Moved\r\nLocation: {other.url}/v1/models\r\nContent-Length: 0\r\n\r\n".encode()
        with Fake(lambda *_: head) as fake, pytest.raises(ServerError, match="redirects are not followed"):
            client(fake).get("/v1/models")
        assert other.requests == []


def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with Fake(lambda *_: answer({})) as proxy, Fake(lambda *_: answer({})) as fake:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        assert client(fake).get("/x").status == 200
        assert proxy.requests == []


def test_nobody_listens() -> None:
    with Fake(lambda *_: answer({})) as fake:
        pass
    with pytest.raises(ServerError, match="refused"):
        client(fake).get("/x")
    with pytest.raises(ServerError, match="not found"):
        Client(read_address("http://no-such-host.invalid:1"))


def test_an_unknown_certificate_is_refused() -> None:
    with Fake(lambda *_: answer({}), tls=True) as fake, pytest.raises(ServerError, match="certificate"):
        client(fake).get("/x")
    assert fake.requests == []


@pytest.mark.parametrize(
    ("name", "reply", "says"),
    [
        ("endless body", lambda: endless(b"x" * 65536), "more than 1,048,576 bytes"),
        ("endless chunks", lambda: endless(chunk(b"x" * 65536), CHUNKED % b"a/b"), "more than 1,048,576 bytes"),
        ("endless headers", lambda: endless(b"A: b\r\n", b"HTTP/1.1 200 OK\r\n"), "not HTTP|more than"),
        ("one endless header", lambda: endless(b"a" * 65536, b"HTTP/1.1 200 OK\r\nA: "), "not HTTP|more than"),
        ("an endless status line", lambda: endless(b"a" * 65536, b"HTTP/1.1 200 "), "not HTTP|more than"),
        ("100 Continue for ever", lambda: endless(b"HTTP/1.1 100 Continue\r\n\r\n", b""), "more than|after 0.6 s"),
        ("a length that lies high", lambda: b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nabc", "before its stated end"),
        ("a length beyond any", lambda: b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n", "at most 1,048,576"),
        ("a length of minus one", lambda: endless(b"x" * 65536, b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"), "more than"),
        ("drip", lambda: drip(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n" + b"x" * 999), "no whole answer after 0.6 s"),
        ("silence", lambda: drip(b"HTTP", 0.5), "0.3 s of silence"),
        ("reset", lambda: None, "reset|abort|closed"),
        ("nothing", lambda: b"", "closed without an answer"),
        ("binary", lambda: bytes(range(256)) * 9, "not HTTP"),
        ("another protocol", lambda: b"SSH-2.0-OpenSSH_9.6\r\n", "not HTTP"),
        ("a chunk length in words", lambda: CHUNKED % b"a/b" + b"zz\r\nabc\r\n", "chunks are malformed"),
        ("a chunk of minus one", lambda: endless(b"x" * 65536, CHUNKED % b"a/b" + b"-1\r\n"), "not HTTP|more than"),
        ("a chunk cut short", lambda: CHUNKED % b"a/b" + b"ff\r\nabc", "broken off"),
        ("trailers for ever", lambda: endless(b"A: b\r\n", CHUNKED % b"a/b" + b"0\r\n"), "more than|after 0.6 s"),
        ("gzip", lambda: b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx", "encoded body"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_hostile_answers_end_in_time_and_in_one_line(name: str, reply: object, says: str) -> None:
    def handler(*_: object) -> Reply:
        return reply()  # type: ignore[operator, no-any-return]

    with Fake(handler) as fake:
        began = time.monotonic()
        with pytest.raises(ServerError, match=says) as caught:
            client(fake).get("/x")
        assert time.monotonic() - began < 3.0, name
        assert isinstance(caught.value, HeadcountError) and "\n" not in str(caught.value)
        assert len(str(caught.value)) < 400


def test_a_line_longer_than_any() -> None:
    with Fake(lambda *_: answer("x" * 70_000, "text/plain")) as fake:
        exchange = client(fake).open("GET", "/x", limit=1 << 20)
        with pytest.raises(ServerError, match="a line of more than"):
            list(exchange.lines())
        exchange.close()


def test_lines_across_pieces() -> None:
    pieces = [CHUNKED % b"text/plain", chunk(b"ab\nc"), chunk(b"d\n\ne"), b"0\r\n\r\n"]
    with Fake(lambda *_: pieces) as fake:
        exchange = client(fake).open("GET", "/x", limit=100)
        assert list(exchange.lines()) == [b"ab", b"cd", b"", b"e"]
        exchange.close()


@pytest.mark.parametrize(
    "body", ["", "{", "[" * 100_000, '{"a": NaN}', '{"a": 1' + "0" * 5000 + "}", b"\xff\xfe"]
)
def test_bodies_that_are_not_json(body: str | bytes) -> None:
    with Fake(lambda *_: answer(body, "text/html")) as fake:
        found = client(fake).get("/x")
        with pytest.raises(ServerError, match=r"not JSON .text/html"):
            read_json(found, where="x")


def test_whole_numbers() -> None:
    assert [whole_number(value, where="x") for value in (0, 12, 12.0, "12")] == [0, 12, 12, 12]
    for value in (-1, 1.5, True, None, "", "-1", "1e3", "٣", 2**60, float("nan"), float("inf"), [], {}):
        with pytest.raises(ServerError, match="not possible"):
            whole_number(value, where="x")
