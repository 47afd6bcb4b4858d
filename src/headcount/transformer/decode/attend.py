"""ATTEND and MERGE: one decode step of attention, each thread over its share of each conversation's tokens.

    s_nj = cap(scale q_n . k_j) + slope_n (j - i)       softmax over j in blocks of 128 tokens, with running maximum m and
                                                        sum l: a new maximum m' multiplies what was summed by e^(m - m')

The shares are put together in ``merge``: o_n = sum_t e^(m_t - m) o_nt / (sum_t e^(m_t - m) l_nt + e^(sink_n - m)).
Source of both: Milakov, Gimelshein 2018; Dao et al. 2022 (blocks), 2023 (shares of one row: Flash-Decoding).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headcount.transformer.decode.attention_tiles import scores_bf16, scores_fp32, weigh
from headcount.transformer.decode.bends import soft_cap
from headcount.transformer.decode.compiler import inlined
from headcount.transformer.decode.instructions import (
    CHUNK,
    COUNT,
    FIRST,
    HEAD_WIDTH,
    KEY_HEAD_BYTES,
    KEYS,
    KV_HEADS,
    LAYER,
    MEMORIES,
    MEMORY_BF16,
    MEMORY_KIND,
    MEMORY_LAYER_BYTES,
    MEMORY_NUMBERS,
    PARTIAL_HEAD_BYTES,
    PARTIAL_THREAD_BYTES,
    PARTIAL_VECTOR_BYTES,
    PARTIALS,
    PLAIN_AT,
    PLAIN_BYTES,
    QUERY_HEADS,
    READY,
    READY_BYTES,
    READY_VECTOR_BYTES,
    SCORE_BLOCK,
    SCORE_CAP,
    SCORES_AT,
    SINKS,
    SLOPES,
    STATE_AT,
    STORED,
    SUM_BYTES,
    SUMS_AT,
    THREADS,
    VALUE_HEAD_BYTES,
    VALUE_WIDTH,
    VALUES,
    WINDOW,
)
from headcount.transformer.decode.lanes import (
    add,
    exp,
    keep_first,
    larger,
    load,
    load_part,
    multiply,
    peak,
    ramp,
    spread,
    store,
    store_part,
    store_woven,
    subtract,
    total,
)
from headcount.transformer.decode.memory import double_at, float_at, integer_at, set_float

LEAST = np.float32(-np.inf)
NONE = np.float32(0)
ONE = np.float32(1)
BLOCK_BYTES = 4 * SCORE_BLOCK


@inlined
def score_block(
    row: int, query: int, keys: int, bf16: int, span: tuple[int, int], slope: Any, target: int
) -> Any:
    """Scores to ``target``, -inf beyond; return the largest. ``span``: position of the first token minus the query's, tokens."""
    behind, count = span
    width = integer_at(row + HEAD_WIDTH)
    row_bytes = width * (2 if bf16 else 4)
    cap = np.float32(double_at(row + SCORE_CAP))
    largest = spread(LEAST)
    for at in range(0, count, 16):
        left = count - at
        if left > 16:
            left = 16
        if bf16:
            s = scores_bf16(query, keys + at * row_bytes, row_bytes, width, left)
        else:
            s = scores_fp32(query, keys + at * row_bytes, row_bytes, width, left)
        if cap != NONE:
            s = soft_cap(s, cap)
        if slope != NONE:
            s = add(s, ramp(np.float32(behind + at) * slope, slope))
        s = keep_first(s, left, LEAST)
        store(target + 4 * at, s)
        largest = larger(s, largest)
    return peak(largest)


@inlined
def soften_block(scores: int, count: int, state: int, largest: Any) -> Any:
    """Scores become e^(s - m) in place; ``state`` holds m and l; return e^(m - m'), the factor of what was summed before."""
    before = float_at(state)
    highest = largest
    if before > largest:
        highest = before
    factor = peak(exp(spread(before - highest)))
    sums = spread(NONE)
    for at in range(0, count, 16):
        p = exp(subtract(load(scores + 4 * at), spread(highest)))
        store(scores + 4 * at, p)
        sums = add(sums, p)
    set_float(state, highest)
    set_float(state + 4, float_at(state + 4) * factor + total(sums))
    return factor


@inlined
def attend_block(
    row: int, memory: int, ready: int, private: int, header: int, kv_head: int, span: tuple[int, int]
) -> None:
    """Add tokens to the sums of the query heads of one key/value head. ``span``: the first one's row, tokens."""
    block, count = span
    group = integer_at(row + QUERY_HEADS) // integer_at(row + KV_HEADS)
    width, value_width = integer_at(row + HEAD_WIDTH), integer_at(row + VALUE_WIDTH)
    bf16 = 1 if integer_at(memory + MEMORY_KIND) == MEMORY_BF16 else 0
    size = 2 if bf16 else 4
    keys = integer_at(memory + KEYS) + kv_head * integer_at(memory + KEY_HEAD_BYTES) + block * width * size
    values = (
        integer_at(memory + VALUES)
        + kv_head * integer_at(memory + VALUE_HEAD_BYTES)
        + block * value_width * size
    )
    scores, sums = private + integer_at(header + SCORES_AT), private + integer_at(header + SUMS_AT)
    state, sum_bytes = private + integer_at(header + STATE_AT), integer_at(row + SUM_BYTES)
    factors, slopes = state + 8 * group, integer_at(row + SLOPES)
    behind = block - integer_at(memory + STORED)
    for head in range(group):
        slope = float_at(slopes + 4 * (kv_head * group + head)) if slopes != 0 else NONE
        query = ready + (kv_head * group + head) * integer_at(row + READY_BYTES)
        largest = score_block(row, query, keys, bf16, (behind, count), slope, scores + head * BLOCK_BYTES)
        set_float(
            factors + 4 * head, soften_block(scores + head * BLOCK_BYTES, count, state + 8 * head, largest)
        )
    for column in range(0, value_width, 64):
        for head in range(0, group, 4):
            here = group - head
            if here > 4:
                here = 4
            weigh(
                bf16, here, sums + head * sum_bytes + 4 * column, sum_bytes, scores + head * BLOCK_BYTES, BLOCK_BYTES,
                values + column * size, value_width * size, value_width - column, count, factors + 4 * head,
            )  # fmt: skip


@inlined
def hand_over(row: int, header: int, private: int, kv_head: int, bf16: bool, partial: int) -> None:
    """A group's sums to where the threads' shares are merged: per head m, l, 56 bytes of nothing, then the sums."""
    group, width = integer_at(row + QUERY_HEADS) // integer_at(row + KV_HEADS), integer_at(row + VALUE_WIDTH)
    state = private + integer_at(header + STATE_AT)
    for head in range(group):
        target = partial + (kv_head * group + head) * integer_at(header + PARTIAL_HEAD_BYTES)
        set_float(target, float_at(state + 8 * head))
        set_float(target + 4, float_at(state + 8 * head + 4))
        own = private + integer_at(header + SUMS_AT) + head * integer_at(row + SUM_BYTES)
        for at in range(0, 4 * width, 128):
            if bf16:
                store_woven(target + 64 + at, load(own + at), load(own + at + 64))
            else:
                store(target + 64 + at, load(own + at))
                store(target + 128 + at, load(own + at + 64))


def attend(row: int, header: int, private: int, thread: int) -> None:
    """ATTEND: every conversation, every head, this thread's share of the tokens."""
    threads, kv_heads = integer_at(header + THREADS), integer_at(row + KV_HEADS)
    memories = integer_at(header + MEMORIES) + integer_at(row + LAYER) * integer_at(
        header + MEMORY_LAYER_BYTES
    )
    window, chunk = integer_at(row + WINDOW), integer_at(row + CHUNK)
    state, sums = private + integer_at(header + STATE_AT), private + integer_at(header + SUMS_AT)
    group = integer_at(row + QUERY_HEADS) // kv_heads
    for number in range(integer_at(header + COUNT)):
        memory = memories + number * 8 * MEMORY_NUMBERS
        stored, first = integer_at(memory + STORED), integer_at(memory + FIRST)
        oldest = 0
        if window and stored + 1 > window:
            oldest = stored + 1 - window
        if chunk and (first + stored) // chunk * chunk > first:
            oldest = (first + stored) // chunk * chunk - first
        seen = stored + 1 - oldest
        start, stop = oldest + seen * thread // threads, oldest + seen * (thread + 1) // threads
        partial = integer_at(header + PARTIALS) + thread * integer_at(header + PARTIAL_THREAD_BYTES)
        partial += number * integer_at(header + PARTIAL_VECTOR_BYTES)
        ready = integer_at(header + READY) + number * integer_at(header + READY_VECTOR_BYTES)
        for kv_head in range(kv_heads):
            for head in range(group):
                set_float(state + 8 * head, LEAST)
                set_float(state + 8 * head + 4, NONE)
            for at in range(0, group * integer_at(row + SUM_BYTES), 64):
                store(sums + at, spread(NONE))
            for block in range(start, stop, SCORE_BLOCK):
                count = stop - block
                if count > SCORE_BLOCK:
                    count = SCORE_BLOCK
                attend_block(row, memory, ready, private, header, kv_head, (block, count))
            hand_over(row, header, private, kv_head, integer_at(memory + MEMORY_KIND) == MEMORY_BF16, partial)


def merge(row: int, header: int, private: int, thread: int) -> None:
    """MERGE: all shares of all heads, one head behind the other, to this thread's plain vector."""
    threads, width = integer_at(header + THREADS), integer_at(row + VALUE_WIDTH)
    step, sinks = integer_at(header + PARTIAL_THREAD_BYTES), integer_at(row + SINKS)
    for number in range(integer_at(header + COUNT)):
        vector = integer_at(header + PARTIALS) + number * integer_at(header + PARTIAL_VECTOR_BYTES)
        target = private + integer_at(header + PLAIN_AT) + number * integer_at(header + PLAIN_BYTES)
        for head in range(integer_at(row + QUERY_HEADS)):
            part = vector + head * integer_at(header + PARTIAL_HEAD_BYTES)
            highest = spread(float_at(sinks + 4 * head) if sinks != 0 else LEAST)
            for share in range(threads):
                highest = larger(spread(float_at(part + share * step)), highest)
            mass = spread(NONE)
            if sinks != 0:
                mass = exp(subtract(spread(float_at(sinks + 4 * head)), highest))
            for share in range(threads):
                weight = exp(subtract(spread(float_at(part + share * step)), highest))
                mass = add(mass, multiply(weight, spread(float_at(part + share * step + 4))))
            inverse = spread(ONE / peak(mass))
            for share in range(threads):
                weight = multiply(exp(subtract(spread(float_at(part + share * step)), highest)), inverse)
                for at in range(0, width, 16):
                    place = target + 4 * (head * width + at)
                    o = multiply(weight, load(part + share * step + 64 + 4 * at))
                    if share > 0:
                        o = add(o, load_part(place, width - at))
                    store_part(place, o, width - at)
