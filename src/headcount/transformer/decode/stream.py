"""What every thread computes for itself: look-ups, norms, sums, and laying vectors out for the tiles."""

from __future__ import annotations

from typing import Any

import numpy as np

from headcount.transformer.decode.compiler import inlined
from headcount.transformer.decode.feed import feed_bf16, feed_fp32, feed_int8
from headcount.transformer.decode.instructions import (
    AT,
    COUNT,
    FACTOR,
    IDS,
    NORM_BIAS,
    NORM_EPSILON,
    NORM_KIND,
    NORM_WEIGHT,
    OPERATION,
    PACKED,
    PACKED_AT,
    PACKED_BYTES,
    PLAIN,
    PLAIN_AT,
    PLAIN_BYTES,
    POSITIONS,
    RESIDUAL,
    ROWS_BF16,
    SOURCE,
    SOURCE_BYTES,
    SOURCE_KIND,
    STREAM,
    STREAM_AT,
    STREAM_BYTES,
    TABLE,
    TABLE_KIND,
    TABLE_OFFSET,
    TABLE_ROW_BYTES,
    TABLE_WIDTH,
    WIDTH,
)
from headcount.transformer.decode.lanes import fma, load_part, spread, store_part
from headcount.transformer.decode.memory import (
    bfloat16_at,
    byte_at,
    double_at,
    float16_at,
    float_at,
    integer_at,
    set_float,
)
from headcount.transformer.decode.normalise import normalise
from headcount.transformer.decode.tiles import (
    BF16,
    COLUMNS,
    FP32,
    INT8,
    INT8_BLOCK_BYTES,
    group_bytes,
    vector_bytes,
)

NONE = np.float32(0)
FP32_BYTES, BF16_BYTES = group_bytes(FP32, 1), group_bytes(BF16, 1)


@inlined
def fp32_number(table: int, row: int, column: int, blocks: int) -> Any:
    """One number of a packed weight (``tiles`` has the layouts)."""
    return float_at(table + row // 32 * blocks * FP32_BYTES + column * 128 + row % 32 * 4)


@inlined
def bf16_number(table: int, row: int, column: int, blocks: int) -> Any:
    """One number of a packed weight."""
    return bfloat16_at(
        table + row // 32 * blocks * BF16_BYTES + column // 2 * 128 + row % 32 * 4 + column % 2 * 2
    )


@inlined
def int8_number(table: int, row: int, column: int, blocks: int) -> Any:
    """One number of a packed weight."""
    block = table + (row // 32 * blocks + column // 32) * INT8_BLOCK_BYTES
    whole = byte_at(block + column % 32 // 4 * 128 + row % 32 * 4 + column % 4) - 128
    return np.float32(whole) * float16_at(block + 1024 + row % 32 * 2)


def _look_up(packed_number: Any) -> Any:
    @inlined
    def look_up(row: int, header: int, private: int) -> None:
        """EMBED and POSITIONS."""
        added, kind = integer_at(row + OPERATION) == POSITIONS, integer_at(row + TABLE_KIND)
        which = integer_at(header + AT) if added else integer_at(header + IDS)
        factor, table = np.float32(double_at(row + FACTOR)), integer_at(row + TABLE)
        width = integer_at(row + TABLE_WIDTH)
        for number in range(integer_at(header + COUNT)):
            index = integer_at(which + 8 * number) + integer_at(row + TABLE_OFFSET)
            target = private + integer_at(header + STREAM_AT) + number * integer_at(header + STREAM_BYTES)
            at = table + index * integer_at(row + TABLE_ROW_BYTES)
            for column in range(width):
                if kind == PACKED:
                    x = packed_number(table, index, column, (width + 31) // 32)
                elif kind == ROWS_BF16:
                    x = bfloat16_at(at + 2 * column)
                else:
                    x = float_at(at + 4 * column)
                x *= factor
                if added:
                    x += float_at(target + 4 * column)
                set_float(target + 4 * column, x)

    return look_up


@inlined
def norm_of(row: int) -> Any:
    """The instruction's norm, as ``normalise`` takes it."""
    return (
        integer_at(row + NORM_KIND), integer_at(row + NORM_WEIGHT), integer_at(row + NORM_BIAS),
        double_at(row + NORM_EPSILON),
    )  # fmt: skip


@inlined
def source_of(row: int, header: int, private: int, number: int) -> Any:
    """Where the vector of a conversation lies that an instruction reads."""
    kind = integer_at(row + SOURCE_KIND)
    at = integer_at(row + SOURCE) + number * integer_at(row + SOURCE_BYTES)
    if kind == STREAM:
        at = private + integer_at(header + STREAM_AT) + number * integer_at(header + STREAM_BYTES)
    if kind == PLAIN:
        at = private + integer_at(header + PLAIN_AT) + number * integer_at(header + PLAIN_BYTES)
    return at


def rewrite(row: int, header: int, private: int, thread: int) -> None:
    """NORM, COPY and RESIDUAL."""
    width, kind, operation = integer_at(row + WIDTH), integer_at(row + NORM_KIND), integer_at(row + OPERATION)
    factor, plain = spread(np.float32(double_at(row + FACTOR))), private + integer_at(header + PLAIN_AT)
    for number in range(integer_at(header + COUNT)):
        x = private + integer_at(header + STREAM_AT) + number * integer_at(header + STREAM_BYTES)
        source = source_of(row, header, private, number)
        target = plain if operation == RESIDUAL else x
        if kind or operation != RESIDUAL:
            normalise(source, width, source, target, width, norm_of(row))
            source = target
        if operation == RESIDUAL:
            for at in range(0, width, 16):
                y = fma(factor, load_part(source + 4 * at, width - at), load_part(x + 4 * at, width - at))
                store_part(x + 4 * at, y, width - at)


def _prepare(form: int, feed: Any) -> Any:
    block_bytes = vector_bytes(form, 1)

    @inlined
    def prepare(row: int, header: int, private: int) -> None:
        """PREPARE: norm, then lay out for the tiles."""
        width, kind = integer_at(row + WIDTH), integer_at(row + NORM_KIND)
        blocks = (width + COLUMNS - 1) // COLUMNS
        plain = private + integer_at(header + PLAIN_AT)
        for number in range(integer_at(header + COUNT)):
            source = source_of(row, header, private, number)
            if kind or width % COLUMNS:
                normalise(source, width, source, plain, width, norm_of(row))
                for column in range(width, blocks * COLUMNS):
                    set_float(plain + 4 * column, NONE)
                source = plain
            target = private + integer_at(header + PACKED_AT) + number * integer_at(header + PACKED_BYTES)
            for block in range(blocks):
                feed(source + 128 * block, target + block_bytes * block)

    return prepare


_prepare_fp32, _prepare_bf16, _prepare_int8 = (
    _prepare(FP32, feed_fp32),
    _prepare(BF16, feed_bf16),
    _prepare(INT8, feed_int8),
)
_look_up_fp32, _look_up_bf16, _look_up_int8 = (
    _look_up(fp32_number),
    _look_up(bf16_number),
    _look_up(int8_number),
)


def prepare_fp32(row: int, header: int, private: int, thread: int) -> None:
    """PREPARE for float32 weights."""
    _prepare_fp32(row, header, private)


def prepare_bf16(row: int, header: int, private: int, thread: int) -> None:
    """PREPARE for bfloat16 weights."""
    _prepare_bf16(row, header, private)


def prepare_int8(row: int, header: int, private: int, thread: int) -> None:
    """PREPARE for int8 weights."""
    _prepare_int8(row, header, private)


def look_up_fp32(row: int, header: int, private: int, thread: int) -> None:
    """EMBED and POSITIONS beside float32 weights."""
    _look_up_fp32(row, header, private)


def look_up_bf16(row: int, header: int, private: int, thread: int) -> None:
    """EMBED and POSITIONS beside bfloat16 weights."""
    _look_up_bf16(row, header, private)


def look_up_int8(row: int, header: int, private: int, thread: int) -> None:
    """EMBED and POSITIONS beside int8 weights."""
    _look_up_int8(row, header, private)
