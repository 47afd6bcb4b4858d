"""The program as numbers: a header, and one row of a table per instruction. Both are int64; here stand the places.

Every place is a byte offset, so that compiled code reads ``integer_at(row + WEIGHT)``. A float64 lies in a place as its
bits (``bits_of``). Addresses are absolute, except offsets named ``private``: into the running thread's own memory.

    EMBED      x_m = factor * row ids_m of a table
    POSITIONS  x_m += row positions_m + offset of a table
    NORM       x_m = norm(x_m)
    COPY       x_m = a shared vector (what a projection wrote)
    PREPARE    packed_m = norm(a vector), rounded and laid out as the tiles read it
    PROJECT    a shared vector = act(W packed_m + bias), or act(gate) * up; rows divided among the threads
    HEADS      queries made ready; new keys and values into the caches; heads divided among the threads
    ATTEND     partial attention over this thread's share of each conversation's tokens
    MERGE      the threads' shares together: plain_m
    RESIDUAL   x_m += factor * norm(a shared vector)
    BARRIER    wait for all threads

PROJECT, HEADS and ATTEND divide their work and write shared memory; everything else every thread computes for itself, in
its own memory: a vector of D numbers costs less to compute twice than to wait for.

Every row carries the address of the compiled function that carries it out (``ACTION``); a barrier's is 0.
"""

from __future__ import annotations

import struct

EMBED, POSITIONS, NORM, COPY, PREPARE, PROJECT, HEADS, ATTEND, MERGE, RESIDUAL, BARRIER = range(11)
ROW_BYTES = 256


def bits_of(number: float) -> int:
    """The bits of a float64 as int64."""
    bits: int = struct.unpack("<q", struct.pack("<d", number))[0]
    return bits


# Every row: what to do, and who does it.
OPERATION, ACTION = 0, 248
# EMBED, POSITIONS: a table of rows (float32, bfloat16), or packed groups of 32 rows.
TABLE, TABLE_KIND, TABLE_ROW_BYTES, TABLE_WIDTH, TABLE_OFFSET, FACTOR = range(8, 56, 8)
ROWS_FP32, ROWS_BF16, PACKED = 0, 1, 2
# NORM, COPY, PREPARE, RESIDUAL: where the vectors lie, and the norm. FACTOR too.
SOURCE, SOURCE_KIND, SOURCE_BYTES, NORM_KIND, NORM_WEIGHT, NORM_BIAS, NORM_EPSILON, WIDTH = range(56, 120, 8)
SHARED, STREAM, PLAIN = 0, 1, 2
NO_NORM, RMS_NORM, LAYER_NORM = 0, 1, 2
# PROJECT.
WEIGHT, GROUPS, BLOCKS, TARGET, TARGET_BYTES, BIAS, ACTIVATION, ACTIVATION_BOUND, GATED, FACTOR_OUT = range(
    8, 88, 8
)
IDENTITY, SILU, GELU, GELU_TANH, RELU, SIGMOID, CLIP, SOFT_CAP = range(8)
# HEADS, ATTEND and MERGE. READY_BYTES: from one ready query to the next; SUM_BYTES: from one sum of values to the next.
LAYER, QUERY_HEADS, KV_HEADS, HEAD_WIDTH, VALUE_WIDTH, SCALE, SCORE_CAP, WINDOW, CHUNK = range(8, 80, 8)
TURN, TURN_WIDTH, TURN_LAYOUT, SINKS, SLOPES, HEADS_VECTOR, HEADS_BYTES = range(80, 136, 8)
QUERY_NORM_WEIGHT, QUERY_NORM_BIAS, KEY_NORM_WEIGHT, KEY_NORM_BIAS, HEADS_NORM_KIND = range(136, 176, 8)
HEADS_NORM_FULL, HEADS_NORM_EPSILON, READY_BYTES, SUM_BYTES = range(176, 208, 8)
NO_TURN, HALF, INTERLEAVED = 0, 1, 2

# The header.
PROGRAM, LENGTH, COUNT, THREADS, ARRIVED, ROUND, IDS, AT = range(0, 64, 8)
PRIVATE, PRIVATE_BYTES, STREAM_AT, STREAM_BYTES, PLAIN_AT, PLAIN_BYTES, PACKED_AT, PACKED_BYTES = range(
    64, 128, 8
)
TILE_AT, HEAD_AT, SCORES_AT, SUMS_AT, STATE_AT = range(128, 168, 8)
READY, READY_VECTOR_BYTES, PARTIALS, PARTIAL_THREAD_BYTES, PARTIAL_VECTOR_BYTES, PARTIAL_HEAD_BYTES = range(
    168, 216, 8
)
TURNS, TURN_BYTES, TURN_VECTOR_BYTES, MEMORIES, MEMORY_LAYER_BYTES, GENERATION, WATCHES, PATIENCE = range(
    216, 280, 8
)
HEADER_NUMBERS = 40

# One conversation's memory in one layer.
KEYS, VALUES, KEY_HEAD_BYTES, VALUE_HEAD_BYTES, STORED, FIRST, MEMORY_KIND = range(0, 56, 8)
MEMORY_NUMBERS = 8
MEMORY_FP32, MEMORY_BF16 = 0, 1

# Tokens whose scores one pass of attention holds.
SCORE_BLOCK = 128
