"""The threads that run a program together. The caller is thread 0; the others wait between steps.

A waiting thread first watches the header's generation, less than a millisecond, so that the next token finds it awake;
then it sleeps until it is called. Threads hold no reference to what they serve: when the crew goes, they end.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headcount.transformer.decode.instructions import (
    ARRIVED,
    GENERATION,
    HEADER_NUMBERS,
    PATIENCE,
    ROUND,
    THREADS,
    WATCHES,
)
from headcount.transformer.decode.kernel import ANNOUNCE, Run

# Looks at the generation before a worker sleeps; each pauses the processor for some tens of nanoseconds. Long enough for a
# token to be sampled and written: a sleeper may wake on the processor where its caller is busy waiting for it.
LOOKS_IDLE = 30_000
# Looks at the counter of a barrier before a thread lets others have its processor: some milliseconds, because who yields to
# a busy machine gets its turn back a whole time slice later. With more threads than processors the one waited for may
# need this very processor: then soon.
LOOKS_AT_BARRIER, LOOKS_WHEN_CROWDED = 200_000, 500


def processors() -> int:
    """Processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def alone() -> Iterator[None]:
    """Let PyTorch compute on the calling thread only, for small work between two steps (sampling).

    Otherwise its own threads take part and then watch for more work, for milliseconds, on the processors that the next
    step needs.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Worker:
    """What one thread and its caller share. A ring too many only makes it look once more."""

    def __init__(self) -> None:
        self.bell: SimpleQueue[None] = SimpleQueue()
        self.asleep = False
        self.leaving = False

    def wake(self) -> None:
        """Ring if it sleeps, or is about to."""
        if self.asleep:
            self.asleep = False
            self.bell.put(None)


class Crew:
    """``threads`` threads around one header (``instructions.py``)."""

    def __init__(self, run: Run, threads: int) -> None:
        self.run, self.threads = run, threads
        self.header: NDArray[np.int64] = np.zeros(HEADER_NUMBERS, np.int64)
        # The counter that all threads write to shares its cache line with nothing that they read.
        self._arrived: NDArray[np.int64] = np.zeros(24, np.int64)
        self.header[THREADS // 8] = threads
        self.header[ARRIVED // 8] = self._arrived.ctypes.data + 64
        self.header[WATCHES // 8] = LOOKS_IDLE
        crowded = threads > processors()
        self.header[PATIENCE // 8] = LOOKS_WHEN_CROWDED if crowded else LOOKS_AT_BARRIER
        self._address = self.header.ctypes.data
        self._workers = [Worker() for _ in range(threads - 1)]
        for number, worker in enumerate(self._workers, 1):
            # The memory must outlive the thread: it may be watching when the crew goes.
            kept = (self.header, self._arrived)
            thread = threading.Thread(
                target=_serve,
                args=(run, self._address, number, worker, kept),
                name=f"decode {number}",
                daemon=True,
            )
            thread.start()
        weakref.finalize(self, _dismiss, self._workers)

    def step(self, barriers: int) -> None:
        """Run the program once on all threads; it holds ``barriers`` barriers, the last of them at its end."""
        generation = int(self.header[GENERATION // 8])
        # Announced before anyone is woken: who is about to sleep looks once more after saying so.
        self.run(self._address, ANNOUNCE, generation + 1)
        for worker in self._workers:
            worker.wake()
        self.run(self._address, 0, generation)
        self.header[ROUND // 8] += barriers


def _serve(run: Run, header: int, number: int, worker: Worker, kept: Any) -> None:
    generation, numbers = 0, kept[0]
    while not worker.leaving:
        found = run(header, number, generation)
        if found != generation:
            generation = found
            continue
        worker.asleep = True
        if worker.leaving or int(numbers[GENERATION // 8]) != generation:
            worker.asleep = False
            continue
        worker.bell.get()


def _dismiss(workers: list[Worker]) -> None:
    for worker in workers:
        worker.leaving = True
        worker.wake()
