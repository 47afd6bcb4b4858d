"""Threads that help with one call at a time and sleep in between: for work of milliseconds, which a wake-up costs little of.

Decode steps have a ``Crew`` of their own, which watches for the next token; here nobody watches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

# Work, and where its thread tells that it is done: with None, or with what went wrong.
Task = tuple[Callable[[], object], "SimpleQueue[BaseException | None]"]

_tasks: SimpleQueue[Task] = SimpleQueue()
_lock = threading.Lock()
_threads: list[threading.Thread] = []


def together(work: Callable[[int], object], threads: int) -> None:
    """Call ``work(0)`` here and ``work(1)`` ... ``work(threads - 1)`` elsewhere at once; return when all are done."""
    done: SimpleQueue[BaseException | None] = SimpleQueue()
    with _lock:
        while len(_threads) < threads - 1:
            thread = threading.Thread(target=_serve, name=f"prompt {len(_threads) + 1}", daemon=True)
            thread.start()
            _threads.append(thread)
    for number in range(1, threads):
        _tasks.put((lambda number=number: work(number), done))  # type: ignore[misc]
    problem: BaseException | None = None
    try:
        work(0)
    finally:
        # Others may still use what the caller lent them.
        for _ in range(1, threads):
            problem = done.get() or problem
    if problem is not None:
        raise problem


def _serve() -> None:
    while True:
        work, done = _tasks.get()
        try:
            work()
        except BaseException as problem:
            done.put(problem)
        else:
            done.put(None)
