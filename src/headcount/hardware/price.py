"""Rental prices seen in a public catalogue: a spot check with a date, not an offer."""

from __future__ import annotations

import json
import os

from headcount.errors import UsageError
from headcount.hardware.accelerator import accelerator
from headcount.record import Record

KINDS = ("on demand", "spot")
_DATA = os.path.join(os.path.dirname(__file__), "prices.json")


class Price(Record):
    """US dollars for one ``accelerator`` and one hour; ``kind`` is ``on demand`` or ``spot``."""

    accelerator: str
    usd_per_hour: float
    provider: str
    region: str
    kind: str
    as_of: str
    source: str
    note: str = ""


def prices() -> tuple[Price, ...]:
    """Return every price on file."""
    with open(_DATA, encoding="utf-8") as file:
        return tuple(Price(**row) for row in json.load(file)["prices"])


def price(name: str, *, kind: str = "on demand") -> Price | None:
    """Return the lowest ``kind`` price on file for one accelerator, or None where there is none.

    ``name`` is read as in ``accelerator``; an unknown name raises UnknownNameError, an unknown kind
    UsageError.
    """
    if kind not in KINDS:
        raise UsageError(f"price kind {kind[:40]!r} is not one of: {', '.join(KINDS)}")
    card = accelerator(name).name
    found = [entry for entry in prices() if entry.accelerator == card and entry.kind == kind]
    return min(found, key=lambda entry: entry.usd_per_hour, default=None)
