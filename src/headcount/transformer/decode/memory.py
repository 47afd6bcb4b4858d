"""Numbers at addresses, whole numbers that two threads may touch at once, and what a waiting thread does.

``publish`` and ``add_shared`` make everything written before visible to whoever sees the new number through ``observe``
(in the words of the C++11 memory model: sequentially consistent writes, acquiring reads).
"""

from __future__ import annotations

import os
from typing import Any

from numba.core import types

from headcount.transformer.decode.compiler import (
    ADDRESS,
    DOUBLE,
    F32,
    F64,
    FLOAT,
    I8,
    I16,
    I32,
    I64,
    INTEGER,
    NOTHING,
    X86,
    call,
    emits,
    ir,
)

# Gives the rest of the time slice to another thread that waits for this processor.
give_way = types.ExternalFunction("SwitchToThread" if os.name == "nt" else "sched_yield", types.int32())


def _at(b: Any, address: Any, kind: Any) -> Any:
    return b.inttoptr(address, kind.as_pointer())


@emits(INTEGER, ADDRESS)
def integer_at(b: Any, address: Any) -> Any:
    """A 64-bit whole number."""
    return b.load(_at(b, address, I64), align=8)


@emits(INTEGER, ADDRESS)
def byte_at(b: Any, address: Any) -> Any:
    """An unsigned byte."""
    return b.zext(b.load(_at(b, address, I8), align=1), I64)


@emits(DOUBLE, ADDRESS)
def double_at(b: Any, address: Any) -> Any:
    """A float64."""
    return b.load(_at(b, address, F64), align=8)


@emits(FLOAT, ADDRESS)
def float_at(b: Any, address: Any) -> Any:
    """A float32."""
    return b.load(_at(b, address, F32), align=4)


@emits(FLOAT, ADDRESS)
def bfloat16_at(b: Any, address: Any) -> Any:
    """A bfloat16, widened."""
    bits = b.zext(b.load(_at(b, address, I16), align=2), I32)
    return b.bitcast(b.shl(bits, ir.Constant(I32, 16)), F32)


@emits(FLOAT, ADDRESS)
def float16_at(b: Any, address: Any) -> Any:
    """A finite float16 of 0 or more, widened: its bits shifted into place, times 2^112."""
    bits = b.shl(b.zext(b.load(_at(b, address, I16), align=2), I32), ir.Constant(I32, 13))
    return b.fmul(b.bitcast(bits, F32), ir.Constant(F32, 2.0**112))


@emits(NOTHING, ADDRESS, FLOAT)
def set_float(b: Any, address: Any, value: Any) -> None:
    """Store a float32."""
    b.store(value, _at(b, address, F32), align=4)


@emits(INTEGER, ADDRESS)
def observe(b: Any, address: Any) -> Any:
    """Read a shared number, and with it everything its publisher wrote before."""
    return b.load_atomic(_at(b, address, I64), ordering="acquire", align=8)


@emits(NOTHING, ADDRESS, INTEGER)
def publish(b: Any, address: Any, value: Any) -> None:
    """Write a shared number after everything written so far."""
    b.store_atomic(value, _at(b, address, I64), ordering="seq_cst", align=8)


@emits(INTEGER, ADDRESS, INTEGER)
def add_shared(b: Any, address: Any, value: Any) -> Any:
    """Add to a shared number; return what it was."""
    return b.atomic_rmw("add", _at(b, address, I64), value, ordering="seq_cst")


@emits(NOTHING)
def pause(b: Any) -> None:
    """Tell the processor that this loop waits."""
    if X86:
        call(b, "llvm.x86.sse2.pause", ir.VoidType())
    else:
        b.asm(ir.FunctionType(ir.VoidType(), []), "yield", "", [], side_effect=True)
