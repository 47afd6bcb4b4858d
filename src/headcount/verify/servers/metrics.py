"""Prometheus text, read line by line: only the wanted names are kept, every kept value is checked.

    name{label="value",other="x"} 1.5 [timestamp]

Format: https://prometheus.io/docs/instrumenting/exposition_formats/ (text format 0.0.4; OpenMetrics agrees where it
matters here).
"""

from __future__ import annotations

import math
import re

from headcount.record import Record
from headcount.verify.servers.http import METRICS_BYTES, Client, ServerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

# Beyond what 4,096 engines of one deployment would say of one name.
_MOST_SAMPLES = 1 << 14
# The largest value that any of the wanted names can honestly have: tokens and bytes fit in 2**53.
_MOST = 2.0**53
_NAME = re.compile(rb"[A-Za-z_:][A-Za-z0-9_:]*")
_LABEL = re.compile(r'\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*"((?:[^"\\\n]|\\.)*)"\s*(,|$)')
_ESCAPES = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}


class Sample(Record):
    """One line: its name, labels and value."""

    name: str
    labels: dict[str, str]
    value: float

    def __hash__(self) -> int:
        return hash((self.name, tuple(sorted(self.labels.items())), self.value))


def fetch_metrics(client: Client, wanted: Iterable[str], *, path: str = "/metrics") -> list[Sample] | None:
    """The samples of ``wanted`` names; None where the server has no metrics (404, 501).

    Raises ServerError for another status, for a body that is not Prometheus text, and for a wanted value that is not
    a number from 0 to 2**53.
    """
    exchange = client.open("GET", path, limit=METRICS_BYTES)
    try:
        where = client.address.words() + path
        if exchange.status in (404, 501):
            return None
        if exchange.status != 200:
            raise ServerError(f"{where} answers {exchange.status}")
        kind = exchange.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in ("text/plain", "application/openmetrics-text"):
            raise ServerError(f"{where}: not Prometheus text but {kind[:60] or 'of no stated type'}")
        return list(read_samples(exchange.lines(), wanted, where=where))
    finally:
        exchange.close()


def read_samples(lines: Iterable[bytes], wanted: Iterable[str], *, where: str) -> Iterator[Sample]:
    """Yield the samples whose name is in ``wanted``; other lines are passed over unread.

    Raises ServerError as ``fetch_metrics`` does; the message names the metric.
    """
    names = {name.encode(): name for name in wanted}
    kept = 0
    for line in lines:
        match = _NAME.match(line)
        if match is None or match[0] not in names:
            continue
        if kept == _MOST_SAMPLES:
            raise ServerError(f"{where}: more than {_MOST_SAMPLES:,} samples of the wanted names")
        kept += 1
        yield _sample(line, names[match[0]], where)


def _sample(line: bytes, name: str, where: str) -> Sample:
    try:
        text = line.decode().rstrip("\r")
    except UnicodeDecodeError:
        raise ServerError(f"{where}: {name}: not text") from None
    rest, labels = text[len(name) :].lstrip(), {}
    if rest.startswith("{"):
        inside, brace, rest = _closed(rest)
        if not brace:
            raise ServerError(f"{where}: {name}: labels without an end")
        labels = _labels(inside, f"{where}: {name}")
    fields = rest.split()
    try:
        value = float(fields[0]) if fields and len(fields) <= 2 else math.nan
    except ValueError:
        value = math.nan
    if not 0 <= value <= _MOST:
        shown = fields[0] if fields else ""
        raise ServerError(f"{where}: {name} is {shown[:40]!r}, which is not possible")
    return Sample(name=name, labels=labels, value=value)


def _closed(rest: str) -> tuple[str, str, str]:
    """Cut ``{...} 1.0`` at the brace that no quotes hold."""
    quoted, skip = False, False
    for place, sign in enumerate(rest):
        if skip:
            skip = False
        elif quoted and sign == "\\":
            skip = True
        elif sign == '"':
            quoted = not quoted
        elif sign == "}" and not quoted:
            return rest[1:place], sign, rest[place + 1 :]
    return rest[1:], "", ""


def _labels(inside: str, where: str) -> dict[str, str]:
    labels, place = {}, 0
    while inside[place:].strip():
        match = _LABEL.match(inside, place)
        if match is None:
            raise ServerError(f"{where}: labels that cannot be read: {inside[place : place + 40]!r}")
        labels[match[1]] = re.sub(r"\\.", lambda found: _ESCAPES.get(found[0], found[0]), match[2])
        place = match.end()
    return labels


def total(samples: Iterable[Sample], name: str) -> int | None:
    """The sum over all series of ``name``, a whole number; None where there is none."""
    values = [sample.value for sample in samples if sample.name == name]
    return round(sum(values)) if values else None


def fullest(samples: Iterable[Sample], names: Container[str], where: str) -> float | None:
    """The largest share of a cache in use among ``names``; None without one.

    Raises ServerError for a cache that is more than full.
    """
    fractions = [sample.value for sample in samples if sample.name in names]
    if any(value > 1.0001 for value in fractions):
        raise ServerError(f"{where}/metrics: a cache that is {max(fractions):g} times full is not possible")
    return max(fractions, default=None)
