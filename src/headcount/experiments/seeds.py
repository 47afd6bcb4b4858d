"""One random stream per (seed, repeat, purpose): a repeat can be run alone and gives the same numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def stream_seed(seed: int, *purpose: object) -> int:
    """32 bits (as many as PyTorch's CPU generator reads) for this purpose.

    Adding numbers (seed + repeat) would let repeat 1 of seed 0 be repeat 0 of seed 1; a hash keeps the streams apart.
    """
    text = "/".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")


def generator(seed: int, *purpose: object) -> torch.Generator:
    """A CPU generator for this purpose."""
    return torch.Generator().manual_seed(stream_seed(seed, *purpose))


@contextmanager
def seeded(seed: int, *purpose: object) -> Iterator[None]:
    """PyTorch's global generator for this purpose inside the block (layers initialise from it), as it was after it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, *purpose))
        yield
