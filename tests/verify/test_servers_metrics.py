"""Prometheus text: real output is read, everything else is refused by name."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from fake_servers import CHUNKED, DATA, NOT_FOUND, Fake, answer, chunk
from hypothesis import given
from hypothesis import strategies as st

from headcount.errors import HeadcountError
from headcount.verify.servers.http import Client, Patience, ServerError, read_address
from headcount.verify.servers.metrics import Sample, fetch_metrics, read_samples, total

QUICK = Patience(connect=1.0, read=1.0, total=2.0)


def read(text: str, *names: str) -> list[Sample]:
    return list(read_samples(text.encode().split(b"\n"), names or ("m",), where="here"))


def test_a_recorded_answer() -> None:
    """vLLM 0.32.0; the figures are those of its start-up log beside it."""
    text = (DATA / "vllm-0.32.0-metrics.txt").read_text()
    info = read(text, "vllm:cache_config_info")[0].labels
    assert (info["block_size"], info["num_gpu_blocks"]) == ("128", "364")
    assert (info["kv_cache_size_tokens"], info["kv_cache_max_concurrency"]) == ("46592", "22.75")
    assert "CPU KV cache size: 46,592 tokens" in (DATA / "vllm-0.32.0-cpu.log").read_text()
    # By name alone: neither the reasons nor the histogram that begin with it.
    assert len(read(text, "vllm:num_requests_waiting")) == 1
    assert len(read(text, "vllm:num_preemptions_total")) == 1


def test_labels_and_values() -> None:
    assert read('m{a="x\\"y}",b="c\\\\d\\ne",} 3 1700000000') == [
        Sample(name="m", labels={"a": 'x"y}', "b": "c\\d\ne"}, value=3.0)
    ]
    assert read("m 1\r\nm{} 2e3\n# HELP m x\nmm 7\nM 8\n m 9\n") == [
        Sample(name="m", labels={}, value=1.0),
        Sample(name="m", labels={}, value=2000.0),
    ]
    assert total(read('m 1\nm{a="b"} 2'), "m") == 3
    assert total([], "m") is None


@pytest.mark.parametrize(
    "line",
    ["m NaN", "m nan", "m -1", "m +Inf", "m 1e308", "m 1e999", "m", "m ", "m x", "m 1 2 3", "m{a=b} 1", "m{a=\"b\" 1",
     "m{a=\"b\"c=\"d\"} 1", "m{=\"b\"} 1", "m{a=\"b} 1", "m \x00\x01", "m 0x10", "m 1_0_"],
)  # fmt: skip
def test_impossible_lines_of_a_wanted_name(line: str) -> None:
    with pytest.raises(ServerError, match="here: m"):
        read(line)
    assert read(line.replace("m", "n", 1)) == [], "another name's line is not looked at"


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(rest: bytes) -> None:
    try:
        found = list(read_samples((b"m" + rest).split(b"\n"), ("m",), where="here"))
    except HeadcountError as error:
        assert "\n" not in str(error)
    else:
        assert all(0 <= sample.value <= 2**53 for sample in found)


def test_no_metrics_is_not_an_error() -> None:
    with Fake(lambda *_: NOT_FOUND) as fake:
        assert fetch_metrics(Client(read_address(fake.url), patience=QUICK), ("m",)) is None


@pytest.mark.parametrize(
    ("body", "kind", "status", "says"),
    [
        (b"<html>", "text/html", "200 OK", "not Prometheus text but text/html"),
        (b"{}", "application/json", "200 OK", "not Prometheus text"),
        (b"no", "text/plain", "500 Oh", "answers 500"),
        (b"m\xff\xfe 1\nm 1\xff\n", "text/plain", "200 OK", "m: not text"),
        (b"m 1\n" * 20_000, "text/plain", "200 OK", "more than 16,384 samples"),
        (b"x" * 70_000, "text/plain", "200 OK", "a line of more than"),
    ],
)
def test_bodies_that_are_no_metrics(body: bytes, kind: str, status: str, says: str) -> None:
    with Fake(lambda *_: answer(body, kind, status)) as fake, pytest.raises(ServerError, match=says):
        fetch_metrics(Client(read_address(fake.url), patience=QUICK), ("m",))


def test_ten_million_lines_end_at_the_limit() -> None:
    def pieces() -> Iterator[bytes]:
        yield CHUNKED % b"text/plain"
        for _ in range(1000):
            yield chunk(b"other_metric 12345\n" * 10_000)

    with Fake(lambda *_: pieces()) as fake:
        began = time.monotonic()
        with pytest.raises(ServerError, match="more than 8,388,608 bytes"):
            fetch_metrics(Client(read_address(fake.url), patience=QUICK), ("m",))
        assert time.monotonic() - began < 2.5
