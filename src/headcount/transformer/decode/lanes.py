"""Sixteen float32 numbers as one value: what one AVX-512 register holds; narrower processors use two or four.

``emit_*`` write instructions and serve the primitives of other files; the rest are primitives for compiled functions.

    exp x = 2^n exp r,   n = round(x / ln 2),   r = x - n ln 2 in [-ln2/2, ln2/2],   exp r by its series to r^7

Relative error below 2e-7 (tested). Below -87.25, where float32 loses digits, it is 0; above 88.7 it stays
at exp 88.7 = 3.3e38.
"""

from __future__ import annotations

import math
from typing import Any

from numba.core import types
from numba.extending import models, register_model

from headcount.transformer.decode.compiler import (
    ADDRESS,
    F32,
    FLOAT,
    I16,
    I32,
    INTEGER,
    NOTHING,
    call,
    constant,
    emits,
    ir,
)

COUNT = 16
LEAST = -87.25
FLOATS = ir.VectorType(F32, COUNT)
WORDS = ir.VectorType(I32, COUNT)
HALVES = ir.VectorType(I16, COUNT)


class Lanes(types.Type):
    """The type of sixteen float32 numbers."""

    def __init__(self) -> None:
        super().__init__(name="lanes")


LANES = Lanes()


@register_model(Lanes)
class LanesModel(models.PrimitiveModel):
    """They are one LLVM vector."""

    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, FLOATS)  # type: ignore[no-untyped-call]


def all_of(number: float) -> Any:
    """The same number sixteen times."""
    return ir.Constant(FLOATS, [number] * COUNT)


def words_of(number: int) -> Any:
    """The same 32 bits sixteen times."""
    return ir.Constant(WORDS, [number - (1 << 32) if number >= 1 << 31 else number] * COUNT)


ZERO = all_of(0.0)
NUMBERS = ir.Constant(WORDS, list(range(COUNT)))


def emit_load(b: Any, address: Any, kind: Any = FLOATS, align: int = 4) -> Any:
    """What stands at an address."""
    return b.load(b.inttoptr(address, kind.as_pointer()), align=align)


def emit_store(b: Any, address: Any, value: Any, align: int = 4) -> None:
    """Put a value at an address."""
    b.store(value, b.inttoptr(address, value.type.as_pointer()), align=align)


def emit_spread(b: Any, value: Any) -> Any:
    """One number or word in all lanes."""
    kind = ir.VectorType(value.type, COUNT)
    undefined = ir.Constant(kind, ir.Undefined)
    first = b.insert_element(undefined, value, ir.Constant(I32, 0))
    return b.shuffle_vector(first, undefined, ir.Constant(WORDS, [0] * COUNT))


def emit_fma(b: Any, x: Any, y: Any, z: Any) -> Any:
    """x y + z, rounded once."""
    return call(b, "llvm.fma.v16f32", FLOATS, x, y, z)


def emit_max(b: Any, x: Any, y: Any) -> Any:
    """The larger of each pair; NaN when x is."""
    return b.select(b.fcmp_unordered("ugt", x, y), x, y)


def emit_min(b: Any, x: Any, y: Any) -> Any:
    """The smaller of each pair; NaN when x is."""
    return b.select(b.fcmp_unordered("ult", x, y), x, y)


def emit_exp(b: Any, x: Any) -> Any:
    """exp x (module docstring)."""
    given, x = x, emit_max(b, emit_min(b, x, all_of(88.7)), all_of(LEAST))
    n = call(b, "llvm.rint.v16f32", FLOATS, b.fmul(x, all_of(1 / math.log(2))))
    r = emit_fma(b, n, all_of(-0.693145751953125), x)  # ln 2 in two parts, the first exact times any n
    r = emit_fma(b, n, all_of(-(math.log(2) - 0.693145751953125)), r)
    y = all_of(1 / math.factorial(7))
    for power in range(6, -1, -1):
        y = emit_fma(b, y, r, all_of(1 / math.factorial(power)))
    exponent = b.shl(b.fptosi(n, WORDS), words_of(23))
    # The sign bit of y is clear, so adding n to its exponent field multiplies it by 2^n.
    made = b.bitcast(b.add(b.bitcast(y, WORDS), exponent), FLOATS)
    made = b.select(b.fcmp_ordered("olt", given, all_of(LEAST)), ZERO, made)
    return b.select(b.fcmp_unordered("uno", given, given), given, made)


def emit_low(b: Any, words: Any) -> Any:
    """The lower bfloat16 of each word, widened: its bits are the upper half of a float32's."""
    return b.bitcast(b.shl(words, words_of(16)), FLOATS)


def emit_high(b: Any, words: Any) -> Any:
    """The upper bfloat16 of each word, widened."""
    return b.bitcast(b.and_(words, words_of(0xFFFF0000)), FLOATS)


def emit_bfloat16(b: Any, x: Any) -> Any:
    """Rounded to the nearest bfloat16 (ties to even), as 16-bit patterns in 32-bit words; NaN stays NaN."""
    bits = b.bitcast(x, WORDS)
    odd = b.and_(b.lshr(bits, words_of(16)), words_of(1))
    rounded = b.lshr(b.add(b.add(bits, words_of(0x7FFF)), odd), words_of(16))
    return b.select(b.fcmp_unordered("uno", x, x), words_of(0x7FC0), rounded)


def emit_half(b: Any, bits: Any) -> Any:
    """Finite float16 numbers of 0 or more, given as 16 patterns of 16 bits, widened: shifted into place, times 2^112."""
    words = b.shl(b.zext(bits, WORDS), words_of(13))
    return b.fmul(b.bitcast(words, FLOATS), all_of(2.0**112))


def emit_mask(b: Any, count: Any) -> Any:
    """The first ``count`` lanes."""
    return b.icmp_signed("<", NUMBERS, emit_spread(b, b.trunc(count, I32)))


def emit_load_part(b: Any, address: Any, count: Any) -> Any:
    """The first ``count`` numbers from an address, zero beyond; nothing beyond is read."""
    pointer = b.inttoptr(address, FLOATS.as_pointer())
    return call(
        b, "llvm.masked.load.v16f32.p0", FLOATS, pointer, ir.Constant(I32, 4), emit_mask(b, count), ZERO
    )


def emit_load_words(b: Any, address: Any, count: Any) -> Any:
    """The first ``count`` 32-bit words from an address, zero beyond; nothing beyond is read."""
    pointer = b.inttoptr(address, WORDS.as_pointer())
    zero = words_of(0)
    return call(
        b, "llvm.masked.load.v16i32.p0", WORDS, pointer, ir.Constant(I32, 4), emit_mask(b, count), zero
    )


def emit_sum(b: Any, x: Any) -> Any:
    """The sum of all lanes."""
    function = b.module.globals.get("llvm.vector.reduce.fadd.v16f32")
    if function is None:
        function = ir.Function(
            b.module, ir.FunctionType(F32, [F32, FLOATS]), name="llvm.vector.reduce.fadd.v16f32"
        )
    return b.call(function, [ir.Constant(F32, 0.0), x], fastmath=("reassoc",))


@emits(LANES, ADDRESS)
def load(b: Any, address: Any) -> Any:
    """Sixteen numbers from an address."""
    return emit_load(b, address)


@emits(LANES, ADDRESS, INTEGER)
def load_part(b: Any, address: Any, count: Any) -> Any:
    """The first ``count`` numbers from an address, zero beyond; nothing beyond is read."""
    return emit_load_part(b, address, count)


@emits(NOTHING, ADDRESS, LANES)
def store(b: Any, address: Any, x: Any) -> None:
    """Sixteen numbers to an address."""
    emit_store(b, address, x)


@emits(NOTHING, ADDRESS, LANES, INTEGER)
def store_part(b: Any, address: Any, x: Any, count: Any) -> None:
    """The first ``count`` lanes to an address; nothing beyond is written."""
    pointer = b.inttoptr(address, FLOATS.as_pointer())
    call(
        b, "llvm.masked.store.v16f32.p0", ir.VoidType(), x, pointer, ir.Constant(I32, 4), emit_mask(b, count)
    )


@emits(LANES, FLOAT)
def spread(b: Any, number: Any) -> Any:
    """One number in all lanes."""
    return emit_spread(b, number)


@emits(LANES, LANES, LANES)
def add(b: Any, x: Any, y: Any) -> Any:
    """x + y."""
    return b.fadd(x, y)


@emits(LANES, LANES, LANES)
def subtract(b: Any, x: Any, y: Any) -> Any:
    """x - y."""
    return b.fsub(x, y)


@emits(LANES, LANES, LANES)
def multiply(b: Any, x: Any, y: Any) -> Any:
    """x y."""
    return b.fmul(x, y)


@emits(LANES, LANES, LANES, LANES)
def fma(b: Any, x: Any, y: Any, z: Any) -> Any:
    """x y + z."""
    return emit_fma(b, x, y, z)


@emits(LANES, LANES, LANES)
def larger(b: Any, x: Any, y: Any) -> Any:
    """The larger of each pair."""
    return emit_max(b, x, y)


@emits(LANES, LANES, LANES)
def smaller(b: Any, x: Any, y: Any) -> Any:
    """The smaller of each pair."""
    return emit_min(b, x, y)


@emits(LANES, LANES)
def exp(b: Any, x: Any) -> Any:
    """exp x."""
    return emit_exp(b, x)


@emits(LANES, LANES, INTEGER, FLOAT)
def keep_first(b: Any, x: Any, count: Any, other: Any) -> Any:
    """x in the first ``count`` lanes, ``other`` in the rest."""
    return b.select(emit_mask(b, count), x, emit_spread(b, other))


@emits(FLOAT, LANES)
def total(b: Any, x: Any) -> Any:
    """The sum of all lanes."""
    return emit_sum(b, x)


@emits(FLOAT, LANES)
def peak(b: Any, x: Any) -> Any:
    """The largest lane."""
    width = COUNT
    while width > 1:
        width //= 2
        order = [(lane + width) % COUNT for lane in range(COUNT)]
        x = emit_max(b, x, b.shuffle_vector(x, x, ir.Constant(WORDS, order)))
    return b.extract_element(x, ir.Constant(I32, 0))


@emits(LANES, FLOAT, FLOAT)
def ramp(b: Any, start: Any, step: Any) -> Any:
    """start, start + step, start + 2 step, ..."""
    numbers = ir.Constant(FLOATS, [float(lane) for lane in range(COUNT)])
    return emit_fma(b, numbers, emit_spread(b, step), emit_spread(b, start))


@emits(NOTHING, ADDRESS, LANES, LANES)
def store_woven(b: Any, address: Any, even: Any, odd: Any) -> None:
    """Thirty-two numbers to an address, alternating from ``even`` and ``odd``."""
    low = ir.Constant(WORDS, [lane // 2 + COUNT * (lane % 2) for lane in range(COUNT)])
    high = ir.Constant(WORDS, [COUNT // 2 + lane // 2 + COUNT * (lane % 2) for lane in range(COUNT)])
    emit_store(b, address, b.shuffle_vector(even, odd, low))
    emit_store(b, b.add(address, constant(4 * COUNT)), b.shuffle_vector(even, odd, high))


@emits(NOTHING, ADDRESS, ADDRESS, INTEGER)
def unweave(b: Any, target: Any, source: Any, count: Any) -> None:
    """Of ``count`` (at most 32) numbers, those at even places to ``target``, at odd places 64 bytes behind; zeros beyond."""
    parts = [
        emit_load_part(b, b.add(source, constant(4 * COUNT * part)), b.sub(count, constant(COUNT * part)))
        for part in range(2)
    ]
    for odd in range(2):
        order = ir.Constant(WORDS, [2 * lane + odd for lane in range(COUNT)])
        emit_store(b, b.add(target, constant(4 * COUNT * odd)), b.shuffle_vector(*parts, order))


@emits(NOTHING, ADDRESS, LANES, INTEGER)
def store_bfloat16_part(b: Any, address: Any, x: Any, count: Any) -> None:
    """The first ``count`` lanes, rounded to bfloat16, to an address; nothing beyond is written."""
    pointer = b.inttoptr(address, HALVES.as_pointer())
    bits = b.trunc(emit_bfloat16(b, x), HALVES)
    name = "llvm.masked.store.v16i16.p0"
    call(b, name, ir.VoidType(), bits, pointer, ir.Constant(I32, 2), emit_mask(b, count))
