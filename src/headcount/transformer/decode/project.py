"""PROJECT: a weight times the prepared vectors of all conversations; the groups of 32 rows divided among the threads.

A gated pair of weights is packed as one: 16 rows of the gate, then the same 16 rows of ``up``; the product
act(gate) * up is taken while both are at hand.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headcount.transformer.decode import tiles
from headcount.transformer.decode.bends import bend
from headcount.transformer.decode.compiler import inlined
from headcount.transformer.decode.instructions import (
    ACTIVATION,
    ACTIVATION_BOUND,
    BIAS,
    BLOCKS,
    COUNT,
    FACTOR_OUT,
    GATED,
    GROUPS,
    PACKED_AT,
    PACKED_BYTES,
    TARGET,
    TARGET_BYTES,
    THREADS,
    TILE_AT,
    WEIGHT,
)
from headcount.transformer.decode.lanes import add, load, multiply, spread, store
from headcount.transformer.decode.memory import double_at, integer_at


@inlined
def finish(row: int, tile: int, count: int, group: int, number: int) -> None:
    """Bias, activation, gate; from the tile of ``count`` vectors to where the vectors lie."""
    kind, bias = integer_at(row + ACTIVATION), integer_at(row + BIAS)
    bound, factor = (
        np.float32(double_at(row + ACTIVATION_BOUND)),
        spread(np.float32(double_at(row + FACTOR_OUT))),
    )
    gated = integer_at(row + GATED)
    target = integer_at(row + TARGET) + number * integer_at(row + TARGET_BYTES)
    for vector in range(count):
        x, y = load(tile + 128 * vector), load(tile + 128 * vector + 64)
        if bias != 0:
            x, y = add(x, load(bias + 128 * group)), add(y, load(bias + 128 * group + 64))
        place = target + vector * integer_at(row + TARGET_BYTES)
        if gated:
            store(place + 64 * group, multiply(bend(x, kind, bound), y))
        else:
            store(place + 128 * group, bend(multiply(x, factor), kind, bound))
            store(place + 128 * group + 64, bend(multiply(y, factor), kind, bound))


def _project(form: int, one: Any, two: Any, four: Any, eight: Any) -> Any:
    per_block = tiles.group_bytes(form, 1)

    @inlined
    def project(row: int, header: int, private: int, thread: int) -> None:
        """This thread's groups, each for all conversations before the next is read."""
        groups, blocks = integer_at(row + GROUPS), integer_at(row + BLOCKS)
        threads, vectors = integer_at(header + THREADS), integer_at(header + COUNT)
        tile, packed = private + integer_at(header + TILE_AT), private + integer_at(header + PACKED_AT)
        x_bytes, weight = integer_at(header + PACKED_BYTES), integer_at(row + WEIGHT)
        for group in range(groups * thread // threads, groups * (thread + 1) // threads):
            w = weight + group * blocks * per_block
            done = 0
            while done < vectors:
                x, left = packed + done * x_bytes, vectors - done
                if left >= 8:
                    eight(w, blocks, x, x_bytes, tile)
                    left = 8
                elif left >= 4:
                    four(w, blocks, x, x_bytes, tile)
                    left = 4
                elif left >= 2:
                    two(w, blocks, x, x_bytes, tile)
                    left = 2
                else:
                    one(w, blocks, x, x_bytes, tile)
                finish(row, tile, left, group, done)
                done += left

    return project


_fp32 = _project(tiles.FP32, tiles.fp32_1, tiles.fp32_2, tiles.fp32_4, tiles.fp32_8)
_bf16 = _project(tiles.BF16, tiles.bf16_1, tiles.bf16_2, tiles.bf16_4, tiles.bf16_8)
_int8 = _project(tiles.INT8, tiles.int8_1, tiles.int8_2, tiles.int8_4, tiles.int8_8)


def project_fp32(row: int, header: int, private: int, thread: int) -> None:
    """PROJECT with float32 weights."""
    _fp32(row, header, private, thread)


def project_bf16(row: int, header: int, private: int, thread: int) -> None:
    """PROJECT with bfloat16 weights."""
    _bf16(row, header, private, thread)


def project_int8(row: int, header: int, private: int, thread: int) -> None:
    """PROJECT with int8 weights."""
    _int8(row, header, private, thread)
