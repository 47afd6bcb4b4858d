"""What a card is sold as, what its driver reports and how fast it can be: one record per device.

The two memory figures differ in both directions, which is why both are kept: an "80 GB" A100 reports
81920 MiB = 85.9 GB, an Apple GPU is granted three quarters of the memory that the machine is sold with.
"""

from __future__ import annotations

import json
import os

from headcount.errors import UnknownNameError
from headcount.record import Record
from headcount.units import GB, MIB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_DATA = os.path.join(os.path.dirname(__file__), "accelerators.json")
_read: list[dict[str, Any]] = []


class Accelerator(Record):
    """One device as the serving engine sees it (a die, where a package shows up as two).

    name                       lower case, with the memory where it tells cards apart
    aliases                    other names, also the one that the vendor's tool prints
    datasheet_gb               memory as sold [10**9 B]; vendors who mean GiB sell more than it says
    reported_mib               total that the vendor's tool or driver shows [MiB]; None where unknown
    bandwidth_gb_s             memory bandwidth [10**9 B/s]
    dense_tflops               dtype -> dense matrix rate [10**12 FLOP/s]; absent where unsupported
    link_gb_s_per_direction    one device's link to its peers, one direction [10**9 B/s], or None
    unified_memory             the GPU takes its memory from the CPU's, so the total is not all its own
    modelled                   False: no engine of this project is modelled on it; figures only
    verified                   False: memory or bandwidth is recalled or follows a rule instead of a source
    as_of                      the day on which the sources were read
    """

    name: str
    aliases: tuple[str, ...]
    vendor: str
    datasheet_gb: int
    reported_mib: int | None
    reported_source: str | None
    bandwidth_gb_s: float
    dense_tflops: dict[str, float]
    link: str
    link_gb_s_per_direction: float | None
    compute_capability: str | None
    tdp_w: int | None
    unified_memory: bool
    modelled: bool
    sources: tuple[str, ...]
    as_of: str
    verified: bool
    note: str = ""

    def __hash__(self) -> int:
        # dense_tflops is a dictionary; the name is unique in the file.
        return hash((type(self).__name__, self.name))

    @property
    def datasheet_bytes(self) -> int:
        """Return the memory as sold: datasheet GB x 10**9 [B]."""
        return self.datasheet_gb * GB

    @property
    def driver_bytes(self) -> int:
        """Return the total that the driver reports [B]: reported MiB x 2**20.

        Where no tool output is known it is the datasheet's decimal GB. On a discrete card that is a lower
        bound (every discrete card with a known output reports at least that much); on unified memory it
        need not be.
        """
        if self.reported_mib is None:
            return self.datasheet_bytes
        return self.reported_mib * MIB

    @property
    def driver_bytes_source(self) -> str:
        """Say where ``driver_bytes`` comes from, in words that a warning can carry."""
        if self.reported_mib is not None:
            return f"{self.reported_mib} MiB: {self.reported_source}"
        caution = "the system takes part of it" if self.unified_memory else "a lower bound"
        return f"datasheet {self.datasheet_gb} GB (decimal), no tool output known: {caution}"


def _rows() -> list[dict[str, Any]]:
    """Return the entries of the data file, parsed once per process."""
    if not _read:
        with open(_DATA, encoding="utf-8") as file:
            _read.extend(json.load(file)["accelerators"])
    return _read


def _plain(name: str) -> str:
    """Return ``name`` without case and separators: ``"RTX 4090"`` and ``"rtx-4090"`` are the same name."""
    return "".join(ch for ch in name.lower() if ch.isalnum())


def _build(row: dict[str, Any]) -> Accelerator:
    return Accelerator(**{**row, "aliases": tuple(row["aliases"]), "sources": tuple(row["sources"])})


def accelerator(name: str) -> Accelerator:
    """Return the accelerator called ``name`` or one of its aliases; case and separators do not matter.

    Nothing is guessed: any other name raises UnknownNameError with the nearest names. A name without a
    memory size means the entry that lists it as an alias (``a100`` is ``a100-80gb``, ``m2-ultra`` the 192 GB
    one); the record's ``name`` says which.
    """
    wanted = _plain(name)
    for row in _rows():
        if _plain(row["name"]) == wanted or any(_plain(alias) == wanted for alias in row["aliases"]):
            return _build(row)
    raise UnknownNameError(what="GPU", given=name, allowed=[row["name"] for row in _rows()])


def accelerators() -> tuple[Accelerator, ...]:
    """Return every accelerator in the order of the file: by vendor, data centre first."""
    return tuple(_build(row) for row in _rows())
