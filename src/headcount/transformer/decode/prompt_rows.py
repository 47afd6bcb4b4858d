"""Rows of prompts into the order the tiles read, and scores into weights: the parts of ``prompt.py`` that move numbers.

keys     panels of 32 keys; per 32 bits of a row 32 words side by side      (``tiles.py``: w)
values   panels of 32 columns; per 32 bits of a column 32 words             two keys in bfloat16, one in float32
queries  as they are, zeros to a multiple of 32 columns and of 8 rows       (``tiles.py``: x)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from headcount.transformer.decode.bends import soft_cap
from headcount.transformer.decode.compiler import (
    ADDRESS,
    FLOAT,
    I32,
    INTEGER,
    NOTHING,
    call,
    compiled,
    emits,
    features,
    ir,
)
from headcount.transformer.decode.lanes import (
    FLOATS,
    HALVES,
    LANES,
    WORDS,
    add,
    all_of,
    emit_bfloat16,
    emit_exp,
    emit_fma,
    emit_load,
    emit_mask,
    emit_spread,
    emit_store,
    keep_first,
    larger,
    load,
    load_part,
    multiply,
    peak,
    spread,
    store,
    subtract,
    total,
    words_of,
)
from headcount.transformer.decode.memory import double_at, float_at, integer_at, set_float
from headcount.transformer.decode.prompt_job import CAP, CAUSAL, CHUNK, KEYS, SCALE, WINDOW
from headcount.transformer.decode.tiles import PAIRS

_FEATURES = features()
LEAST = np.float32(-np.inf)
NONE = np.float32(0)


def _halves(b: Any, address: Any, count: Any) -> Any:
    pointer = b.inttoptr(address, HALVES.as_pointer())
    zero = ir.Constant(HALVES, [0] * HALVES.count)
    name = "llvm.masked.load.v16i16.p0"
    found = call(b, name, HALVES, pointer, ir.Constant(I32, 2), emit_mask(b, count), zero)
    return b.zext(found, WORDS)


@emits(NOTHING, ADDRESS, ADDRESS)
def copy_word(b: Any, target: Any, source: Any) -> None:
    """Four bytes."""
    emit_store(b, target, emit_load(b, source, I32))


@emits(NOTHING, ADDRESS, ADDRESS, INTEGER, ADDRESS, INTEGER)
def weave_rows(b: Any, target: Any, even: Any, evens: Any, odd: Any, odds: Any) -> None:
    """Sixteen pairs of bfloat16, one of each row: the first ``evens`` and ``odds``, zeros beyond."""
    words = b.or_(_halves(b, even, evens), b.shl(_halves(b, odd, odds), words_of(16)))
    emit_store(b, target, words)


@emits(LANES, ADDRESS, INTEGER)
def load_bfloat16_part(b: Any, address: Any, count: Any) -> Any:
    """The first ``count`` bfloat16 from an address, widened, zero beyond; nothing beyond is read."""
    return b.bitcast(b.shl(_halves(b, address, count), words_of(16)), FLOATS)


@emits(NOTHING, ADDRESS, LANES)
def store_bfloat16(b: Any, address: Any, x: Any) -> None:
    """Sixteen numbers, rounded to bfloat16, to an address."""
    if PAIRS:
        bits = call(b, "llvm.x86.avx512bf16.cvtneps2bf16.512", HALVES, x)
    else:
        bits = b.trunc(emit_bfloat16(b, x), HALVES)
    emit_store(b, address, bits, 2)


@emits(LANES, LANES, INTEGER, FLOAT)
def drop_first(b: Any, x: Any, count: Any, other: Any) -> Any:
    """``other`` in the first ``count`` lanes, x in the rest."""
    return b.select(emit_mask(b, count), emit_spread(b, other), x)


@emits(LANES, LANES)
def exp_below(b: Any, x: Any) -> Any:
    """exp x for x of 0 or less, -inf included; NaN stays. As ``lanes.exp``, in half the instructions where there is AVX-512.

    Its scaling by 2^n takes any n and gives 0 below float32, so that one bound is enough: exp(-110) = 2^-159 is 0.
    """
    if "avx512f" not in _FEATURES:
        return emit_exp(b, x)
    least = all_of(-110.0)
    x = b.select(b.fcmp_ordered(">", least, x), least, x)
    n = call(b, "llvm.rint.v16f32", FLOATS, b.fmul(x, all_of(1 / math.log(2))))
    r = emit_fma(b, n, all_of(-0.693145751953125), x)
    r = emit_fma(b, n, all_of(-(math.log(2) - 0.693145751953125)), r)
    y = all_of(1 / math.factorial(6))
    for power in range(5, -1, -1):
        y = emit_fma(b, y, r, all_of(1 / math.factorial(power)))
    # All lanes, rounded as everything else is (4: by the processor's current mode).
    everywhere, mode = ir.Constant(ir.IntType(16), -1), ir.Constant(I32, 4)
    return call(b, "llvm.x86.avx512.mask.scalef.ps.512", FLOATS, y, n, y, everywhere, mode)


@compiled
def lowest(job: int, position: int) -> int:
    """The first key that a query at this position may see."""
    window, chunk = int(integer_at(job + WINDOW)), int(integer_at(job + CHUNK))
    least = 0
    if window and position + 1 > window:
        least = position + 1 - window
    if chunk:
        least = position // chunk * chunk
    return least


@compiled
def highest(job: int, position: int) -> int:
    """One behind the last key that a query at this position may see."""
    keys = int(integer_at(job + KEYS))
    if integer_at(job + CAUSAL) and position + 1 < keys:
        return position + 1
    return keys


@compiled
def pack_key_panel(source: int, row_bytes: int, rows: int, words: int, target: int) -> None:
    """32 keys; those behind ``rows`` are zeros, and so are words to the next multiple of 16 (or 32) columns."""
    for key in range(32):
        at = target + 4 * key
        if key < rows:
            row = source + key * row_bytes
            for word in range(words):
                copy_word(at + 128 * word, row + 4 * word)
        else:
            for word in range(words):
                set_float(at + 128 * word, NONE)


@compiled
def pack_value_panel(bf16: int, source: int, row_bytes: int, rows: int, columns: int, target: int) -> None:
    """32 columns of 32 values; zeros behind ``rows`` and ``columns``."""
    for key in range(0, 32, 2 if bf16 else 1):
        row, place = source + key * row_bytes, target + 128 * (key // 2 if bf16 else key)
        evens, odds = columns if key < rows else 0, columns if key + 1 < rows else 0
        for half in range(2):
            skipped = 16 * half
            if bf16:
                at = row + 2 * skipped
                weave_rows(place + 4 * skipped, at, evens - skipped, at + row_bytes, odds - skipped)
            else:
                store(place + 4 * skipped, load_part(row + 4 * skipped, evens - skipped))


@compiled
def copy_query(bf16: int, source: int, width: int, target: int) -> None:
    """One row; zeros to a multiple of 32 columns."""
    if bf16 and PAIRS:
        for word in range(0, width // 2, 16):
            store(target + 4 * word, load_part(source + 4 * word, width // 2 - word))
        return
    for column in range(0, width, 32):
        for half in range(column, column + 32, 16):
            if bf16:
                store(target + 4 * half, load_bfloat16_part(source + 2 * half, width - half))
            else:
                store(target + 4 * half, load_part(source + 4 * half, width - half))


@compiled
def bend_scores(job: int, scores: int, panels: int, least: int, most: int) -> Any:
    """Scale, cap and mask one row in place; keys ``least`` to ``most`` (from the first panel) stay. The largest."""
    scale = spread(np.float32(double_at(job + SCALE)))
    cap = np.float32(double_at(job + CAP))
    largest = spread(LEAST)
    for panel in range(panels):
        for half in range(2):
            place, key = scores + 1024 * panel + 64 * half, 32 * panel + 16 * half
            s = multiply(load(place), scale)
            if cap != NONE:
                s = soft_cap(s, cap)
            if key + 16 > most:
                s = keep_first(s, most - key, LEAST)
            if key < least:
                s = drop_first(s, least - key, LEAST)
            store(place, s)
            largest = larger(s, largest)
    return peak(largest)


@compiled
def soften(bf16: int, scores: int, panels: int, largest: Any, state: int, target: int) -> Any:
    """Weights e^(s - m) of one row to ``target``; ``state`` holds m and l; return e^(m - m')."""
    before = float_at(state)
    high = largest
    if before > largest:
        high = before
    # A row that has seen no key yet: e^(-inf - 0) is the 0 that e^(-inf + inf) is not.
    shift = spread(high if high != LEAST else NONE)
    sums = spread(NONE)
    for panel in range(panels):
        for half in range(2):
            p = exp_below(subtract(load(scores + 1024 * panel + 64 * half), shift))
            sums = add(sums, p)
            if bf16 and PAIRS:
                store_bfloat16(target + 64 * panel + 32 * half, p)
            else:
                store(target + 128 * panel + 64 * half, p)
    factor = peak(exp_below(subtract(spread(before), shift)))
    set_float(state, high)
    set_float(state + 4, float_at(state + 4) * factor + total(sums))
    return factor
