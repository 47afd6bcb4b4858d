"""HEADS: queries, keys and values of the new tokens, head by head: norm, turn, and where they go.

The projections have written Q, then K, then V of each conversation one behind the other (``HEADS_VECTOR``). Queries are
scaled here once instead of every score, and padded with zeros; for a bfloat16 cache they are unwoven (``attention_tiles``).
"""

from __future__ import annotations

import numpy as np

from headcount.transformer.decode.compiler import compiled
from headcount.transformer.decode.instructions import (
    COUNT,
    HALF,
    HEAD_AT,
    HEAD_WIDTH,
    HEADS_BYTES,
    HEADS_NORM_EPSILON,
    HEADS_NORM_FULL,
    HEADS_NORM_KIND,
    HEADS_VECTOR,
    KEY_HEAD_BYTES,
    KEY_NORM_BIAS,
    KEY_NORM_WEIGHT,
    KEYS,
    KV_HEADS,
    LAYER,
    MEMORIES,
    MEMORY_BF16,
    MEMORY_KIND,
    MEMORY_LAYER_BYTES,
    MEMORY_NUMBERS,
    NO_TURN,
    QUERY_HEADS,
    QUERY_NORM_BIAS,
    QUERY_NORM_WEIGHT,
    READY,
    READY_BYTES,
    READY_VECTOR_BYTES,
    SCALE,
    STORED,
    THREADS,
    TURN,
    TURN_BYTES,
    TURN_LAYOUT,
    TURN_VECTOR_BYTES,
    TURN_WIDTH,
    TURNS,
    VALUE_HEAD_BYTES,
    VALUE_WIDTH,
    VALUES,
)
from headcount.transformer.decode.lanes import (
    fma,
    load,
    load_part,
    multiply,
    spread,
    store,
    store_bfloat16_part,
    store_part,
    subtract,
    unweave,
)
from headcount.transformer.decode.memory import double_at, float_at, integer_at, set_float
from headcount.transformer.decode.normalise import normalise


@compiled
def turn(row: int, header: int, number: int, head: int) -> None:
    """(a, b) -> (a cos - b sin, b cos + a sin) for the planes of one head's first columns, in place."""
    layout, half = integer_at(row + TURN_LAYOUT), integer_at(row + TURN_WIDTH) // 2
    cos = integer_at(header + TURNS) + integer_at(row + TURN) * integer_at(header + TURN_BYTES)
    cos += number * integer_at(header + TURN_VECTOR_BYTES)
    sin = cos + integer_at(header + TURN_VECTOR_BYTES) // 2
    if layout == HALF and half % 16 == 0:
        for at in range(0, 4 * half, 64):
            c, s = load(cos + at), load(sin + at)
            a, b = load(head + at), load(head + 4 * half + at)
            store(head + at, subtract(multiply(a, c), multiply(b, s)))
            store(head + 4 * half + at, fma(a, s, multiply(b, c)))
        return
    apart = 4 * half if layout == HALF else 4
    step = 4 if layout == HALF else 8
    for plane in range(half):
        at = head + step * plane
        a, b = float_at(at), float_at(at + apart)
        c, s = float_at(cos + 4 * plane), float_at(sin + 4 * plane)
        set_float(at, a * c - b * s)
        set_float(at + apart, b * c + a * s)


@compiled
def append(source: int, target: int, width: int, bf16: bool) -> None:
    """One row into a cache."""
    for at in range(0, width, 16):
        x = load_part(source + 4 * at, width - at)
        if bf16:
            store_bfloat16_part(target + 2 * at, x, width - at)
        else:
            store_part(target + 4 * at, x, width - at)


@compiled
def make_ready(row: int, source: int, target: int, bf16: bool) -> None:
    """A query, scaled, to where attention reads it."""
    width = integer_at(row + HEAD_WIDTH)
    scale = spread(np.float32(double_at(row + SCALE)))
    for at in range(0, width, 32):
        place = target + 4 * at
        if bf16:
            unweave(place, source + 4 * at, width - at)
        else:
            store(place, load_part(source + 4 * at, width - at))
            store(place + 64, load_part(source + 4 * at + 64, width - at - 16))
        store(place, multiply(load(place), scale))
        store(place + 64, multiply(load(place + 64), scale))


def heads(row: int, header: int, private: int, thread: int) -> None:
    """HEADS: this thread's share of all conversations' query heads and key/value heads."""
    threads, own = integer_at(header + THREADS), private + integer_at(header + HEAD_AT)
    queries, kv_heads = integer_at(row + QUERY_HEADS), integer_at(row + KV_HEADS)
    width, value_width = integer_at(row + HEAD_WIDTH), integer_at(row + VALUE_WIDTH)
    memories = integer_at(header + MEMORIES) + integer_at(row + LAYER) * integer_at(
        header + MEMORY_LAYER_BYTES
    )
    full, kind = integer_at(row + HEADS_NORM_FULL), integer_at(row + HEADS_NORM_KIND)
    each = queries + kv_heads
    units = each * integer_at(header + COUNT)
    for unit in range(units * thread // threads, units * (thread + 1) // threads):
        number, head = unit // each, unit % each
        memory = memories + number * 8 * MEMORY_NUMBERS
        bf16 = integer_at(memory + MEMORY_KIND) == MEMORY_BF16
        vector = integer_at(row + HEADS_VECTOR) + number * integer_at(row + HEADS_BYTES)
        is_key = head >= queries
        whole = vector + (4 * queries * width if is_key else 0)
        head -= queries if is_key else 0
        part, count = whole + 4 * head * width, width
        weight = integer_at(row + KEY_NORM_WEIGHT) if is_key else integer_at(row + QUERY_NORM_WEIGHT)
        bias = integer_at(row + KEY_NORM_BIAS) if is_key else integer_at(row + QUERY_NORM_BIAS)
        if full:
            count = width * (kv_heads if is_key else queries)
            weight += 4 * head * width
            bias += 4 * head * width if bias != 0 else 0
        else:
            whole = part
        norm = (kind, weight, bias, double_at(row + HEADS_NORM_EPSILON))
        normalise(whole, count, part, own, width, norm)
        if integer_at(row + TURN_LAYOUT) != NO_TURN:
            turn(row, header, number, own)
        if not is_key:
            ready = integer_at(header + READY) + number * integer_at(header + READY_VECTOR_BYTES)
            make_ready(row, own, ready + head * integer_at(row + READY_BYTES), bf16)
            continue
        size, at = 2 if bf16 else 4, integer_at(memory + STORED)
        key = integer_at(memory + KEYS) + head * integer_at(memory + KEY_HEAD_BYTES)
        value = integer_at(memory + VALUES) + head * integer_at(memory + VALUE_HEAD_BYTES)
        append(own, key + at * width * size, width, bf16)
        source = vector + 4 * ((queries + kv_heads) * width + head * value_width)
        append(source, value + at * value_width * size, value_width, bf16)
