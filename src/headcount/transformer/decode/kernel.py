"""The compiled functions that carry out instructions, kept on disk, and the loop over a program's table.

Compiling takes some seconds, once per weight format: numba keeps the machine code in this folder, or in the user's cache
directory where that cannot be written, apart for every processor. It looks at the date of one file alone, so every function
also carries a number made of the sources of the whole room in its name: code of another version is never taken.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterable
from typing import Any

import numba
from numba.core import types

from headcount.transformer.decode import instructions as at
from headcount.transformer.decode.attend import attend, merge
from headcount.transformer.decode.compiler import act, inlined, plain
from headcount.transformer.decode.heads import heads
from headcount.transformer.decode.memory import add_shared, give_way, integer_at, observe, pause, publish
from headcount.transformer.decode.project import project_bf16, project_fp32, project_int8
from headcount.transformer.decode.stream import (
    look_up_bf16,
    look_up_fp32,
    look_up_int8,
    prepare_bf16,
    prepare_fp32,
    prepare_int8,
    rewrite,
)
from headcount.transformer.decode.tiles import BF16, FP32, INT8

# run(header, thread, generation): the new generation when it ran, the old one when the wait was too long; thread ANNOUNCE
# makes ``generation`` the new one.
Run = Callable[[int, int, int], int]
ANNOUNCE = -1

FORMED = {
    at.PROJECT: {FP32: project_fp32, BF16: project_bf16, INT8: project_int8},
    at.PREPARE: {FP32: prepare_fp32, BF16: prepare_bf16, INT8: prepare_int8},
    at.EMBED: {FP32: look_up_fp32, BF16: look_up_bf16, INT8: look_up_int8},
    at.POSITIONS: {FP32: look_up_fp32, BF16: look_up_bf16, INT8: look_up_int8},
}
SHARED = {
    at.HEADS: heads, at.ATTEND: attend, at.MERGE: merge, at.NORM: rewrite, at.COPY: rewrite, at.RESIDUAL: rewrite
}  # fmt: skip


@inlined
def wait_for_all(header: int, turn: int) -> None:
    """Arrive, and return when every thread has arrived ``turn`` times."""
    arrived = integer_at(header + at.ARRIVED)
    wanted = turn * integer_at(header + at.THREADS)
    if add_shared(arrived, 1) + 1 < wanted:
        spins, patience = 0, integer_at(header + at.PATIENCE)
        while observe(arrived) < wanted:
            spins += 1
            pause()
            if spins > patience:
                give_way()


def run(header: int, thread: int, generation: int) -> int:
    """Wait for a new generation, then carry out the whole table as thread ``thread``. See ``Run``."""
    if thread == ANNOUNCE:
        publish(header + at.GENERATION, generation)
        return generation
    looks = integer_at(header + at.WATCHES)
    while observe(header + at.GENERATION) == generation:
        looks -= 1
        if looks < 0:
            return generation
        pause()
    row = integer_at(header + at.PROGRAM)
    end = row + integer_at(header + at.LENGTH) * at.ROW_BYTES
    private = integer_at(header + at.PRIVATE) + thread * integer_at(header + at.PRIVATE_BYTES)
    turn = integer_at(header + at.ROUND)
    found = observe(header + at.GENERATION)
    while row < end:
        action = integer_at(row + at.ACTION)
        if action == 0:
            turn += 1
            wait_for_all(header, turn)
        else:
            act(action, row, header, private, thread)
        row += at.ROW_BYTES
    return int(found)


@functools.cache
def _digest() -> str:
    folder = os.path.dirname(__file__)
    mixed = hashlib.sha256(numba.__version__.encode())
    for name in sorted(os.listdir(folder)):
        if name.endswith(".py"):
            with open(os.path.join(folder, name), "rb") as file:
                mixed.update(file.read())
    return mixed.hexdigest()[:12]


def kept(compiler: Callable[..., Any], signature: Any, function: Any, **options: Any) -> Any:
    """``function`` compiled, from the disk when it is there."""
    function = plain(function)
    base = function.__qualname__.split("-")[0]
    function.__qualname__ = f"{base}-{_digest()}"
    try:
        return compiler(signature, cache=True, error_model="numpy", **options)(function)
    except RuntimeError as problem:
        # No folder can be written: then every process compiles anew.
        if "cannot cache" not in str(problem):
            raise
        return compiler(signature, error_model="numpy", **options)(function)


@functools.cache
def kernel() -> Run:
    """The compiled loop."""
    made: Run = kept(numba.njit, types.int64(types.int64, types.int64, types.int64), run, nogil=True)
    return made


@functools.cache
def _action(function: Any) -> Any:
    return kept(numba.cfunc, types.void(types.int64, types.int64, types.int64, types.int64), function)


def actions(form: int, operations: Iterable[int]) -> dict[int, int]:
    """Operation -> address of the function that carries it out; only those asked for are compiled."""
    found = {}
    for operation in operations:
        if operation != at.BARRIER:
            function = FORMED[operation][form] if operation in FORMED else SHARED[operation]
            found[operation] = int(_action(function).address)
    return found
