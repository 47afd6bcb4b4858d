"""stub"""

from __future__ import annotations
from headcount.record import Record


class Quantization(Record):
    """stub"""

    method: str


def read_quantization(config: dict[str, object]) -> Quantization | None:
    """stub"""
    return None
