"""Attention of a prompt, compiled: online softmax over blocks of keys, eight queries at a time (``tiles.py``).

    S = q K^T          8 queries x 32 keys per tile
    m' = max(m, max_j s_j)    p_j = e^(s_j - m')    l' = e^(m - m') l + sum_j p_j
    O' = e^(m - m') O + p V   8 queries x 32 columns per tile, p rounded to bfloat16 where the tiles multiply pairs

First every thread packs keys and values, 512 keys of a head at a time; then each takes 64 queries of a head at a time,
the longest rows first, until none is left. Sums are float32. A sink is where m and l begin: m = sink, l = 1.

Sources: Milakov, Gimelshein 2018 (online softmax); Dao et al. 2022 (blocks).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba.core import types

from headcount.transformer.decode import prompt_job as at
from headcount.transformer.decode import tiles
from headcount.transformer.decode.compiler import compiled
from headcount.transformer.decode.kernel import kept
from headcount.transformer.decode.lanes import (
    fma,
    load,
    multiply,
    spread,
    store,
    store_bfloat16_part,
    store_part,
)
from headcount.transformer.decode.memory import (
    add_shared,
    float_at,
    give_way,
    integer_at,
    observe,
    pause,
    set_float,
)
from headcount.transformer.decode.prompt_job import KEY_BLOCK, PACK_PANELS, QUERY_BLOCK, TILE_ROWS
from headcount.transformer.decode.prompt_rows import (
    LEAST,
    NONE,
    bend_scores,
    copy_query,
    highest,
    lowest,
    pack_key_panel,
    pack_value_panel,
    soften,
)
from headcount.transformer.decode.tiles import BF16, FP32, PAIRS

ONE = np.float32(1)
SUMS_BYTES = 4 * 32 * TILE_ROWS
SCORES_BYTES = 4 * TILE_ROWS * KEY_BLOCK
STATE_BYTES = 8 * QUERY_BLOCK + 64
WATCH = 2000


@compiled
def pack_unit(bf16: int, job: int, unit: int) -> None:
    """Panels of one key/value head."""
    keys, width, columns = (
        integer_at(job + at.KEYS),
        integer_at(job + at.HEAD_WIDTH),
        integer_at(job + at.VALUE_WIDTH),
    )
    panels = (keys + 31) // 32
    per_head = (panels + PACK_PANELS - 1) // PACK_PANELS
    head, first = unit // per_head, unit % per_head * PACK_PANELS
    batch, own = head // integer_at(job + at.KV_HEADS), head % integer_at(job + at.KV_HEADS)
    size, block_bytes = 2 if bf16 else 4, 2048 if bf16 else 4096
    key_blocks, value_blocks = (width + 31) // 32, (columns + 31) // 32
    k = integer_at(job + at.K) + batch * integer_at(job + at.K_BATCH) + own * integer_at(job + at.K_HEAD)
    v = integer_at(job + at.V) + batch * integer_at(job + at.V_BATCH) + own * integer_at(job + at.V_HEAD)
    k_row, v_row = integer_at(job + at.K_ROW), integer_at(job + at.V_ROW)
    packed_k = integer_at(job + at.PACKED_KEYS) + head * panels * key_blocks * block_bytes
    packed_v = integer_at(job + at.PACKED_VALUES) + head * panels * value_blocks * block_bytes
    for panel in range(first, min(first + PACK_PANELS, panels)):
        rows, target = keys - 32 * panel, packed_k + panel * key_blocks * block_bytes
        words = width * size // 4
        pack_key_panel(k + 32 * panel * k_row, k_row, rows, words, target)
        for place in range(target + 128 * words, target + key_blocks * block_bytes, 64):
            store(place, spread(NONE))
        for column in range(value_blocks):
            pack_value_panel(
                bf16, v + 32 * panel * v_row + 32 * column * size, v_row, rows, columns - 32 * column,
                packed_v + (column * panels + panel) * block_bytes,
            )  # fmt: skip


def _tile(form: int, eight: Any) -> Any:
    bf16, block_bytes = (1, 2048) if form == BF16 else (0, 4096)
    x_size = 2 if form == BF16 and PAIRS else 4

    @compiled
    def tile(job: int, private: int, head: int, row: int, position: int, block: int) -> None:
        """Eight queries, the first at ``row`` of its block and at ``position``, against one block of keys."""
        last = position + TILE_ROWS - 1
        first = max(block, lowest(job, position) // 32 * 32)
        count = min(block + KEY_BLOCK, highest(job, last)) - first
        if count <= 0:
            return
        total_panels, panels = (integer_at(job + at.KEYS) + 31) // 32, (count + 31) // 32
        key_blocks = (integer_at(job + at.HEAD_WIDTH) + 31) // 32
        value_blocks = (integer_at(job + at.VALUE_WIDTH) + 31) // 32
        head_k = integer_at(job + at.PACKED_KEYS) + head * total_panels * key_blocks * block_bytes
        head_v = integer_at(job + at.PACKED_VALUES) + head * total_panels * value_blocks * block_bytes
        scores, tile_sums = private, private + SCORES_BYTES
        weights = tile_sums + SUMS_BYTES
        state = weights + SCORES_BYTES
        factors = state + 8 * QUERY_BLOCK
        sums = state + STATE_BYTES
        queries = sums + QUERY_BLOCK * value_blocks * 128
        q_bytes, p_bytes = key_blocks * 32 * x_size, KEY_BLOCK * x_size
        k = head_k + first // 32 * key_blocks * block_bytes
        for panel in range(panels):
            eight(
                k + panel * key_blocks * block_bytes,
                key_blocks,
                queries + row * q_bytes,
                q_bytes,
                scores + 1024 * panel,
            )
        for number in range(TILE_ROWS):
            own = scores + 128 * number
            largest = bend_scores(
                job,
                own,
                panels,
                lowest(job, position + number) - first,
                highest(job, position + number) - first,
            )
            factor = soften(
                bf16, own, panels, largest, state + 8 * (row + number), weights + number * p_bytes
            )
            set_float(factors + 4 * number, factor)
        for column in range(value_blocks):
            v = head_v + (column * total_panels + first // 32) * block_bytes
            eight(v, panels, weights, p_bytes, tile_sums)
            for number in range(TILE_ROWS):
                factor = spread(float_at(factors + 4 * number))
                place = sums + (row + number) * value_blocks * 128 + 128 * column
                own = tile_sums + 128 * number
                store(place, fma(load(place), factor, load(own)))
                store(place + 64, fma(load(place + 64), factor, load(own + 64)))

    return tile


@compiled
def finish_row(bf16: int, source: int, inverse: Any, columns: int, target: int) -> None:
    """One row of sums, divided, to where it belongs."""
    for column in range(0, columns, 16):
        o = multiply(load(source + 4 * column), spread(inverse))
        if bf16:
            store_bfloat16_part(target + 2 * column, o, columns - column)
        else:
            store_part(target + 4 * column, o, columns - column)


def _unit(form: int, tile: Any) -> Any:
    bf16 = 1 if form == BF16 else 0
    x_size = 2 if form == BF16 and PAIRS else 4

    @compiled
    def attend_unit(job: int, private: int, unit: int) -> None:
        """64 queries of one head of one sequence; the last ones come first."""
        T, heads = integer_at(job + at.QUERIES), integer_at(job + at.HEADS)
        all_heads = heads * integer_at(job + at.BATCH)
        blocks = (T + QUERY_BLOCK - 1) // QUERY_BLOCK
        begin = (blocks - 1 - unit // all_heads) * QUERY_BLOCK
        batch, head = unit % all_heads // heads, unit % heads
        rows, kv_heads = min(QUERY_BLOCK, T - begin), integer_at(job + at.KV_HEADS)
        kv_head = batch * kv_heads + head // (heads // kv_heads)
        width, columns = integer_at(job + at.HEAD_WIDTH), integer_at(job + at.VALUE_WIDTH)
        q_bytes, sum_bytes = (width + 31) // 32 * 32 * x_size, (columns + 31) // 32 * 128
        state = private + 2 * SCORES_BYTES + SUMS_BYTES
        sums = state + STATE_BYTES
        queries = sums + QUERY_BLOCK * sum_bytes
        sink = integer_at(job + at.SINKS)
        q = integer_at(job + at.Q) + batch * integer_at(job + at.Q_BATCH) + head * integer_at(job + at.Q_HEAD)
        for row in range((rows + TILE_ROWS - 1) // TILE_ROWS * TILE_ROWS):
            # Rows behind the last repeat it, and are not written.
            here = begin + min(row, rows - 1)
            copy_query(bf16, q + here * integer_at(job + at.Q_ROW), width, queries + row * q_bytes)
            set_float(state + 8 * row, float_at(sink + 4 * head) if sink != 0 else LEAST)
            set_float(state + 8 * row + 4, ONE if sink != 0 else NONE)
            for place in range(sums + row * sum_bytes, sums + (row + 1) * sum_bytes, 64):
                store(place, spread(NONE))
        start = integer_at(job + at.START) + begin
        for block in range(lowest(job, start) // 32 * 32, highest(job, start + rows - 1), KEY_BLOCK):
            for row in range(0, rows, TILE_ROWS):
                tile(job, private, kv_head, row, start + row, block)
        out = (
            integer_at(job + at.OUT)
            + batch * integer_at(job + at.OUT_BATCH)
            + head * integer_at(job + at.OUT_HEAD)
        )
        for row in range(rows):
            mass = float_at(state + 8 * row + 4)
            inverse = NONE if mass == NONE else ONE / mass
            finish_row(
                bf16,
                sums + row * sum_bytes,
                inverse,
                columns,
                out + (begin + row) * integer_at(job + at.OUT_ROW),
            )

    return attend_unit


def _share(form: int, attend_unit: Any) -> Any:
    bf16 = 1 if form == BF16 else 0

    @compiled
    def share(job: int, thread: int) -> int:
        """This thread's part of one call: units of work until there are none."""
        panels = (integer_at(job + at.KEYS) + 31) // 32
        packs = integer_at(job + at.BATCH) * integer_at(job + at.KV_HEADS)
        packs *= (panels + PACK_PANELS - 1) // PACK_PANELS
        blocks = (integer_at(job + at.QUERIES) + QUERY_BLOCK - 1) // QUERY_BLOCK
        units = packs + blocks * integer_at(job + at.BATCH) * integer_at(job + at.HEADS)
        private = integer_at(job + at.PRIVATE) + thread * integer_at(job + at.PRIVATE_BYTES)
        unit = add_shared(job + at.NEXT, 1)
        while unit < packs:
            pack_unit(bf16, job, unit)
            add_shared(job + at.PACKED, 1)
            unit = add_shared(job + at.NEXT, 1)
        looks = 0
        while unit < units and observe(job + at.PACKED) < packs:
            # Another thread is packing the last panels: some ten thousand cycles at most.
            looks += 1
            pause()
            if looks > WATCH:
                give_way()
        while unit < units:
            attend_unit(job, private, unit - packs)
            unit = add_shared(job + at.NEXT, 1)
        return 0

    return share


def private_bytes(form: int, width: int, columns: int) -> int:
    """Bytes of scratch that each thread needs."""
    rows = -(-columns // 32) * 128 + -(-width // 32) * 128
    return 2 * SCORES_BYTES + SUMS_BYTES + STATE_BYTES + QUERY_BLOCK * rows


_FP32 = _share(FP32, _unit(FP32, _tile(FP32, tiles.fp32_8)))
_BF16 = _share(BF16, _unit(BF16, _tile(BF16, tiles.bf16_8)))


def share_fp32(job: int, thread: int) -> int:
    """One thread's part of a call over float32 operands."""
    return int(_FP32(job, thread))


def share_bf16(job: int, thread: int) -> int:
    """One thread's part of a call over bfloat16 operands."""
    return int(_BF16(job, thread))


@functools.cache
def prompt_kernel(form: int) -> Callable[[int, int], int]:
    """The compiled function, from the disk when it is there."""
    function = share_bf16 if form == BF16 else share_fp32
    made: Callable[[int, int], int] = kept(
        numba.njit, types.int64(types.int64, types.int64), function, nogil=True
    )
    return made
