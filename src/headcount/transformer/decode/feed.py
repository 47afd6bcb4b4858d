"""What goes into a projection: a vector rounded and laid out as the tiles read it.

fp32   as it is
bf16   rounded to bfloat16 where the processor multiplies pairs of them, else as it is
int8   per 32 numbers: scale s = max |x| / 127, round(x / s), and 128 times their sum (``tiles.py``)
"""

from __future__ import annotations

from typing import Any

from headcount.transformer.decode.compiler import (
    ADDRESS,
    F32,
    I8,
    I32,
    NOTHING,
    call,
    constant,
    emits,
    ir,
)
from headcount.transformer.decode.lanes import (
    COUNT,
    FLOATS,
    HALVES,
    WORDS,
    ZERO,
    emit_bfloat16,
    emit_load,
    emit_max,
    emit_spread,
    emit_store,
    emit_sum,
)
from headcount.transformer.decode.tiles import PAIRS

BYTES = ir.VectorType(I8, COUNT)


@emits(NOTHING, ADDRESS, ADDRESS)
def feed_fp32(b: Any, source: Any, target: Any) -> None:
    """32 numbers as they are."""
    for half in (0, 64):
        emit_store(b, b.add(target, constant(half)), emit_load(b, b.add(source, constant(half))))


@emits(NOTHING, ADDRESS, ADDRESS)
def feed_bf16(b: Any, source: Any, target: Any) -> None:
    """32 numbers, rounded where the tiles take bfloat16."""
    for half in (0, 1):
        x = emit_load(b, b.add(source, constant(64 * half)))
        if PAIRS:
            emit_store(b, b.add(target, constant(32 * half)), b.trunc(emit_bfloat16(b, x), HALVES))
        else:
            emit_store(b, b.add(target, constant(64 * half)), x)


@emits(NOTHING, ADDRESS, ADDRESS)
def feed_int8(b: Any, source: Any, target: Any) -> None:
    """32 numbers as whole numbers and their scale."""
    halves = [emit_load(b, b.add(source, constant(half))) for half in (0, 64)]
    sizes = [call(b, "llvm.fabs.v16f32", FLOATS, x) for x in halves]
    largest = call(b, "llvm.vector.reduce.fmax.v16f32", F32, emit_max(b, *sizes))
    # NaN and infinity must reach the product: the maximum skips NaN, and zero times either is NaN.
    poison = emit_sum(b, b.fmul(b.fadd(*halves), ZERO))
    scale = b.fadd(b.fdiv(largest, ir.Constant(F32, 127.0)), poison)
    nothing = b.fcmp_ordered("==", largest, ir.Constant(F32, 0.0))
    inverse = b.select(nothing, ir.Constant(F32, 0.0), b.fdiv(ir.Constant(F32, 127.0), largest))
    wide = emit_spread(b, inverse)
    total = None
    for number, x in enumerate(halves):
        rounded = call(b, "llvm.rint.v16f32", FLOATS, b.fmul(x, wide))
        whole = b.fptosi(rounded, WORDS)
        emit_store(b, b.add(target, constant(16 * number)), b.trunc(whole, BYTES))
        total = whole if total is None else b.add(total, whole)
    shift = b.shl(call(b, "llvm.vector.reduce.add.v16i32", I32, total), ir.Constant(I32, 7))
    emit_store(b, b.add(target, constant(32)), scale)
    emit_store(b, b.add(target, constant(36)), shift)
