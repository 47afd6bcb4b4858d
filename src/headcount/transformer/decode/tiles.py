"""The inner loops: one group of 32 weight rows times the vectors of 1, 2, 4 or 8 conversations.

    y_mr = sum_k w_rk x_mk          r = 0 ... 31, lanes are rows; k runs in steps, every step reads the next 128 bytes

    format   32 columns of a group                            and of a vector
    fp32     32 steps of 32 float32                           32 float32
    bf16     16 steps of 32 pairs (w_r,2j , w_r,2j+1)         32 bfloat16 where the processor multiplies them
                                                              (AVX512_BF16), else 32 float32
    int8     8 steps of 32 quads of w + 128, then 32 float16  32 int8, float32 scale s_x, int32 128 * sum x
             scales s_r

int8: sum_k w x = sum_k (w + 128) x - 128 sum_k x in whole numbers, exactly; times s_r s_x once per 32 columns. The shift
by 128 is there because the processor's instruction (VNNI) multiplies unsigned by signed bytes.

The weight of a group is read once for all conversations. A row's sum does not depend on how many there are: each lane
adds in the order of k, so one conversation gets the same bits alone or in a batch.
"""

from __future__ import annotations

from typing import Any

from headcount.transformer.decode.compiler import (
    ADDRESS,
    F32,
    I32,
    I64,
    INTEGER,
    NOTHING,
    call,
    constant,
    emits,
    features,
)
from headcount.transformer.decode.lanes import (
    FLOATS,
    HALVES,
    WORDS,
    ZERO,
    emit_fma,
    emit_half,
    emit_high,
    emit_load,
    emit_low,
    emit_spread,
    emit_store,
    words_of,
)

ROWS = 32
COLUMNS = 32
FP32, BF16, INT8 = 0, 1, 2
FORMATS = {"fp32": FP32, "bf16": BF16, "int8": INT8}
INT8_BLOCK_BYTES = 1024 + 64
INT8_VECTOR_BYTES = 32 + 4 + 4

_FEATURES = features()
PAIRS = {"avx512bf16", "avx512f"} <= _FEATURES
QUADS = {"avx512vnni", "avx512f"} <= _FEATURES

Grid = list[list[Any]]


def group_bytes(form: int, blocks: int) -> int:
    """Bytes of 32 rows of ``32 * blocks`` columns."""
    return blocks * (4096, 2048, INT8_BLOCK_BYTES)[form]


def vector_bytes(form: int, blocks: int) -> int:
    """Bytes of a vector of ``32 * blocks`` columns, as the loops read it."""
    if form == INT8:
        return blocks * INT8_VECTOR_BYTES
    return blocks * (64 if form == BF16 and PAIRS else 128)


class Loop:
    """One counted loop that carries the sums; ``step`` writes one pass of its body."""

    def __init__(self, b: Any, passes: Any, sums: Grid) -> None:
        self.b = b
        before = b.block
        self.body = b.function.append_basic_block("tile")
        self.behind = b.function.append_basic_block("tile_end")
        b.branch(self.body)
        b.position_at_end(self.body)
        self.passes = passes
        self.number = b.phi(I64)
        self.number.add_incoming(constant(0), before)
        self.carried = [[b.phi(value.type) for value in row] for row in sums]
        for row, start in zip(self.carried, sums, strict=True):
            for phi, value in zip(row, start, strict=True):
                phi.add_incoming(value, before)

    def close(self, sums: Grid) -> None:
        """End the body; code after this runs behind the loop."""
        b = self.b
        following = b.add(self.number, constant(1))
        end = b.block
        self.number.add_incoming(following, end)
        for row, values in zip(self.carried, sums, strict=True):
            for phi, value in zip(row, values, strict=True):
                phi.add_incoming(value, end)
        b.cbranch(b.icmp_signed("<", following, self.passes), self.body, self.behind)
        b.position_at_end(self.behind)


def _word(b: Any, address: Any, kind: Any) -> Any:
    return emit_spread(b, emit_load(b, address, kind, 4))


def _pairs(b: Any, total: Any, weights: Any, values: Any) -> Any:
    return call(b, "llvm.x86.avx512bf16.dpbf16ps.512", FLOATS, total, weights, values)


def _quads(b: Any, total: Any, weights: Any, values: Any) -> Any:
    """Four products of an unsigned with a signed byte, summed, in every lane."""
    if QUADS:
        return call(b, "llvm.x86.avx512.vpdpbusd.512", WORDS, total, weights, values)
    for place in range(4):
        w = b.and_(b.lshr(weights, words_of(8 * place)), words_of(0xFF))
        x = b.ashr(b.shl(values, words_of(24 - 8 * place)), words_of(24))
        total = b.add(total, b.mul(w, x))
    return total


def _fp32(b: Any, w: Any, blocks: Any, vectors: list[Any]) -> Grid:
    loop = Loop(b, b.mul(blocks, constant(4)), [[ZERO, ZERO] for _ in vectors])
    sums: Grid = [list(row) for row in loop.carried]
    base = b.add(w, b.mul(loop.number, constant(8 * 128)))
    for step in range(8):
        halves = [
            emit_load(b, b.add(base, constant(128 * step + 64 * half)), FLOATS, 64) for half in range(2)
        ]
        offset = b.add(b.mul(loop.number, constant(32)), constant(4 * step))
        for row, vector in zip(sums, vectors, strict=True):
            x = _word(b, b.add(vector, offset), F32)
            row[:] = [emit_fma(b, weights, x, total) for weights, total in zip(halves, row, strict=True)]
    loop.close(sums)
    return sums


def _bf16(b: Any, w: Any, blocks: Any, vectors: list[Any]) -> Grid:
    loop = Loop(b, b.mul(blocks, constant(4)), [[ZERO, ZERO] for _ in vectors])
    sums: Grid = [list(row) for row in loop.carried]
    base = b.add(w, b.mul(loop.number, constant(4 * 128)))
    for step in range(4):
        halves = [emit_load(b, b.add(base, constant(128 * step + 64 * half)), WORDS, 64) for half in range(2)]
        wide = [] if PAIRS else [(emit_low(b, words), emit_high(b, words)) for words in halves]
        offset = b.add(
            b.mul(loop.number, constant(16 if PAIRS else 32)), constant((4 if PAIRS else 8) * step)
        )
        for row, vector in zip(sums, vectors, strict=True):
            at = b.add(vector, offset)
            if PAIRS:
                x = _word(b, at, I32)
                row[:] = [_pairs(b, total, words, x) for words, total in zip(halves, row, strict=True)]
                continue
            even, odd = _word(b, at, F32), _word(b, b.add(at, constant(4)), F32)
            row[:] = [
                emit_fma(b, high, odd, emit_fma(b, low, even, total))
                for (low, high), total in zip(wide, row, strict=True)
            ]
    loop.close(sums)
    return sums


def _int8(b: Any, w: Any, blocks: Any, vectors: list[Any]) -> Grid:
    loop = Loop(b, blocks, [[ZERO, ZERO] for _ in vectors])
    base = b.add(w, b.mul(loop.number, constant(INT8_BLOCK_BYTES)))
    offset = b.mul(loop.number, constant(INT8_VECTOR_BYTES))
    places = [b.add(vector, offset) for vector in vectors]
    shift = [b.neg(_word(b, b.add(place, constant(36)), I32)) for place in places]
    whole: Grid = [[value, value] for value in shift]
    for step in range(8):
        halves = [emit_load(b, b.add(base, constant(128 * step + 64 * half)), WORDS, 64) for half in range(2)]
        for row, place in zip(whole, places, strict=True):
            x = _word(b, b.add(place, constant(4 * step)), I32)
            row[:] = [_quads(b, total, words, x) for words, total in zip(halves, row, strict=True)]
    places_of_scales = [b.add(base, constant(1024 + 32 * half)) for half in range(2)]
    scales = [emit_half(b, emit_load(b, place, HALVES, 32)) for place in places_of_scales]
    sums: Grid = []
    for row, place, carried in zip(whole, places, loop.carried, strict=True):
        scale = _word(b, b.add(place, constant(32)), F32)
        sums.append(
            [
                emit_fma(b, b.sitofp(value, FLOATS), b.fmul(scale, own), total)
                for value, own, total in zip(row, scales, carried, strict=True)
            ]
        )
    loop.close(sums)
    return sums


def _tile(form: int, count: int) -> Any:
    @emits(NOTHING, ADDRESS, INTEGER, ADDRESS, INTEGER, ADDRESS)
    def tile(b: Any, w: Any, blocks: Any, x: Any, x_bytes: Any, y: Any) -> None:
        """One group at ``w`` times ``count`` vectors, ``x_bytes`` apart at ``x``; 32 float32 each to ``y``."""
        vectors = [b.add(x, b.mul(x_bytes, constant(number))) for number in range(count)]
        sums = (_fp32, _bf16, _int8)[form](b, w, blocks, vectors)
        for number, row in enumerate(sums):
            for half, value in enumerate(row):
                emit_store(b, b.add(y, constant(128 * number + 64 * half)), value, 64)

    return tile


fp32_1, fp32_2, fp32_4, fp32_8 = (_tile(FP32, count) for count in (1, 2, 4, 8))
bf16_1, bf16_2, bf16_4, bf16_8 = (_tile(BF16, count) for count in (1, 2, 4, 8))
int8_1, int8_2, int8_4, int8_8 = (_tile(INT8, count) for count in (1, 2, 4, 8))
