"""What reaches the log reader besides clean text: prefixes, encodings, cuts, noise, gigabytes."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import os
import time
import tracemalloc

import pytest

from headcount.errors import UsageError
from headcount.verify.logs import LogReading, read_log
from headcount.verify.logs.dumps import read_dump
from headcount.verify.logs.reading import _READERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DATA = os.path.join(os.path.dirname(__file__), "data", "logs")
LOGS = sorted(name for name in os.listdir(DATA) if name.endswith(".log"))


def data(name: str) -> bytes:
    with open(os.path.join(DATA, name), "rb") as file:
        return file.read()


def figures(reading: LogReading) -> list[dict[str, object]]:
    """The observations without the date, which a prefix may add."""
    return [{**observation.as_dict(), "date": None} for observation in reading.observations]


def each_line(change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    return lambda text: b"".join(change(line) + b"\n" for line in text.rstrip(b"\n").split(b"\n"))


def docker_json(line: bytes) -> bytes:
    return json.dumps(
        {"log": line.decode() + "\n", "stream": "stderr", "time": "2025-05-05T15:24:45Z"}
    ).encode()


WRAPPINGS: dict[str, Callable[[bytes], bytes]] = {
    "docker compose": each_line(lambda line: b"vllm-1  | " + line),
    "kubernetes": each_line(lambda line: b"2025-05-05T15:24:45.123456789Z stdout F " + line),
    "journald": each_line(lambda line: b"May 05 15:24:45 host app[812]: " + line),
    "docker json-file": each_line(docker_json),
    "a box": each_line(lambda line: b"\xe2\x94\x82 " + line + b"      \xe2\x94\x82"),
    "colours": each_line(
        lambda line: b"\x1b[32m" + line.replace(b" ", b"\x1b[0;36m \x1b[0m", 2) + b"\x1b[0m"
    ),
    "CRLF": lambda text: text.replace(b"\n", b"\r\n"),
    "progress bars": each_line(lambda line: b"Loading:  10%|#\rLoading: 100%|##########\r" + line),
    "UTF-8 BOM": lambda text: b"\xef\xbb\xbf" + text,
    "UTF-16 with BOM": lambda text: text.decode().encode("utf-16"),
    "UTF-16 big-endian": lambda text: b"\xfe\xff" + text.decode().encode("utf-16-be"),
    "UTF-16 without BOM": lambda text: text.decode().encode("utf-16-le"),
    "damaged UTF-8": each_line(lambda line: b"\xff\xc3(\xe2\x82 " + line),
    "no newline at the end but a full stop": lambda text: text + b".",
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_wrapping_changes_no_figure(wrapping: str) -> None:
    for name in LOGS:
        plain = figures(read_log([data(name)], name=name))
        wrapped = figures(read_log([WRAPPINGS[wrapping](data(name))], name=name))
        if wrapping == "a box":
            # llama.cpp's names run to the end of the line, box and all.
            for one in (*plain, *wrapped):
                one.pop("model"), one.pop("weight_dtype_or_quant")
        assert wrapped == plain, name


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_pieces_may_be_of_any_size(size: int) -> None:
    for name in ("vllm-0.6-v0.log", "llamacpp-2024.log"):
        text = data(name)
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert figures(read_log(pieces, name=name)) == figures(read_log(io.BytesIO(text), name=name))


def assert_no_new_figure(name: str, text: bytes, cut: int) -> None:
    """A cut log says what the lines before the cut say, or the cut line as a whole; never a third thing."""
    begin = text.rfind(b"\n", 0, cut) + 1
    end = text.find(b"\n", cut)
    before = figures(read_log([text[:begin]], name=name))
    whole = figures(read_log([text[: end + 1]], name=name))
    found = figures(read_log([text[:cut]], name=name))
    assert len(found) in (len(before), len(whole))
    for index, observation in enumerate(found):
        for field, value in observation.items():
            known = [reading[index][field] for reading in (before, whole) if index < len(reading)]
            if field != "notes":
                assert value in known or value in (None, ()), (name, text[begin:cut], field)


def test_half_a_line_is_never_half_a_number() -> None:
    for name in LOGS:
        text = data(name)
        step = max(1, len(text) // 60) | 1
        for cut in range(1, len(text) - 1, step):
            if text[cut - 1 : cut] != b"\n":
                assert_no_new_figure(name, text, cut)


@pytest.mark.slow
def test_half_a_line_is_never_half_a_number_anywhere() -> None:
    for name in LOGS:
        text = data(name)
        for cut in range(1, len(text) - 1):
            if text[cut - 1 : cut] != b"\n":
                assert_no_new_figure(name, text, cut)


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("INFO # GPU blocks: 19", "num_gpu_blocks"),
        ("GPU KV cache size: 126,256", "kv_cache_tokens"),
        ("Available KV cache memory: 61.6", "kv_cache_memory_gib"),
        ("the estimated maximum model length is 1220", "estimated_max_len"),
        ("Maximum concurrency for 8,192 tokens per request: 15.4", "max_concurrency"),
    ],
)
def test_cut_figure_is_not_read(line: str, field: str) -> None:
    reading = read_log([b"Model loading took 1.00 GiB and 2 seconds\n" + line.encode()], name="cut")
    assert getattr(reading.observations[0], field) is None


@pytest.mark.parametrize(
    "packed", [gzip.compress(b"GPU KV cache size: 1 tokens\n"), b"\x28\xb5\x2f\xfd123", b"PK\x03\x04abc"]
)
def test_compressed_input_is_named(packed: bytes) -> None:
    reading = read_log([packed], name="vllm.log.gz")
    assert reading.observations == ()
    assert "compressed, not text" in reading.refusals[0]


def test_binary_input_is_named() -> None:
    assert "binary" in read_log([b"\x00\x01\x02\x00\x00\x03" * 900], name="core").refusals[0]


def test_text_stream_is_refused() -> None:
    with pytest.raises(UsageError, match="mode 'rb'"):
        read_log(["GPU KV cache size: 1 tokens"], name="pasted")  # type: ignore[list-item]


REAL = data("vllm-0.7-v0.log")
NOISE = b"INFO 05-05 15:24:45 [loggers.py:111] Engine 000: Avg prompt throughput: 10.0 tokens/s, running: 3 reqs\n"


def noise(size: int) -> Iterator[bytes]:
    """``size`` bytes of a server's ordinary lines, a binary dump without newlines among them, the start in the middle."""
    piece = NOISE * 2500
    done = 0
    while done < size:
        if done <= size // 2 < done + len(piece):
            yield REAL
        if done <= size // 3 < done + len(piece):
            for _ in range(40):
                yield b"x" * 100_000
            yield b"\n"
        yield piece
        done += len(piece)


def peak_of(size: int) -> tuple[LogReading, int, float]:
    tracemalloc.start()
    began = time.perf_counter()
    reading = read_log(noise(size), name="noise")
    seconds = time.perf_counter() - began
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return reading, peak, seconds


def test_twenty_megabytes_pass_in_bounded_memory() -> None:
    reading, peak, seconds = peak_of(20_000_000)
    assert figures(reading) == figures(read_log([REAL], name="plain"))
    assert peak < 20_000_000
    assert seconds < 10
    assert any("longer than 64 KiB" in note for note in reading.notes)


@pytest.mark.slow
def test_three_hundred_megabytes_pass_in_bounded_memory() -> None:
    reading, peak, seconds = peak_of(300_000_000)
    assert figures(reading) == figures(read_log([REAL], name="plain"))
    assert peak < 20_000_000
    assert seconds < 120


def test_endless_noise_ends_and_says_so() -> None:
    start = data(LOGS[0])
    noise = b"GET /health 200\n" * 4096
    reading = read_log(itertools.chain([start], itertools.repeat(noise)), name="x", most_bytes=1 << 20)
    assert figures(reading) == figures(read_log(io.BytesIO(start), name="x"))
    assert "the log goes on after 1.00 MiB: what follows was not read" in reading.notes
    (refusal,) = read_log(itertools.repeat(noise), name="x", most_bytes=1 << 20).refusals
    assert refusal.endswith("the log goes on after 1.00 MiB: what follows was not read")
    whole = read_log(io.BytesIO(start), name="x", most_bytes=len(start))
    assert not any("goes on" in note for note in whole.notes)


def test_endless_starts_are_bounded() -> None:
    line = b"INFO [core.py:58] Initializing a V1 LLM engine (v0.8.5) with config: model='m', x=1\n# GPU blocks: 7, # CPU\n"
    reading = read_log((line for _ in range(2000)), name="loop")
    assert len(reading.observations) == 200
    assert any("more than 200 starts" in note for note in reading.notes)


def hostile_lines() -> list[bytes]:
    """Every wording's own word, then 60,000 of what its expression repeats."""
    fillers = (
        b" ",
        b"9",
        b"1,",
        b"9,999,",
        b"a",
        b"(",
        b"'",
        b"{",
        b"=",
        b"\\",
        b"] [",
        b"1.",
        b"GiB ",
        b"\x1b[",
    )
    words = dict.fromkeys(word for reader in _READERS for word in reader.words())
    return [word.encode() + filler * (60_000 // len(filler)) for word in words for filler in fillers]


def test_hostile_lines_take_linear_time() -> None:
    # 60 kB a line, about 1,500 lines: a quadratic expression would take minutes for the first of them.
    lines = hostile_lines()[::11]
    began = time.perf_counter()
    for line in lines:
        read_log([line + b"\n"], name="hostile")
    assert time.perf_counter() - began < 0.15 * len(lines)


@pytest.mark.slow
def test_all_hostile_lines_take_linear_time() -> None:
    for line in hostile_lines():
        began = time.perf_counter()
        read_log([line + b"\n"], name="hostile")
        assert time.perf_counter() - began < 2, line[:60]


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        (
            "a=1, b='x, y', c=[1, 2], d={'a': 2}, e=None)",
            {"a": "1", "b": "x, y", "c": "[1, 2]", "d": "{'a': 2}", "e": "None"},
        ),
        ("'a': 'it\\'s', 'b': <X.Y: 3>, 'c': True}", {"a": "it\\'s", "b": "<X.Y: 3>", "c": "True"}),
        # The value that the cut may have shortened is left out.
        ("a=1, b=12", {"a": "1"}),
        ("a=1, b='x", {"a": "1"}),
        ("", {}),
    ],
)
def test_dump(text: str, pairs: dict[str, str]) -> None:
    assert read_dump(text) == pairs
