"""The inner loops of attention: sixteen scores at a time, and the weighted sum of values.

    scores   s_j = q . k_j              16 tokens, each a row of H numbers; 16 sums side by side, added up by a tree
    weigh    o_g += sum_j p_gj v_j      64 columns of the values, for 1 to 4 query heads that share them

Rows are float32, or bfloat16 read as pairs in 32-bit words: the lower halves are the even columns, the upper the odd ones.
Queries and sums then lie unwoven too: per 32 columns 16 even ones, then 16 odd ones. Columns beyond the width are never
read; rows beyond ``count`` are never read either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headcount.transformer.decode.compiler import ADDRESS, F32, INTEGER, NOTHING, constant, emits, ir
from headcount.transformer.decode.lanes import (
    COUNT,
    LANES,
    WORDS,
    ZERO,
    emit_fma,
    emit_high,
    emit_load,
    emit_load_part,
    emit_load_words,
    emit_low,
    emit_spread,
    emit_store,
)
from headcount.transformer.decode.tiles import Grid, Loop


def _picked(b: Any, x: Any, y: Any, places: list[int]) -> Any:
    return b.shuffle_vector(x, y, ir.Constant(WORDS, places))


def _tree(b: Any, rows: list[Any]) -> Any:
    """Lane j of the result is the sum of all lanes of row j; every step halves the vectors and adds."""
    quarters = range(0, COUNT, 4)
    orders = (
        [at + place for at in quarters for place in (0, 16, 1, 17)],
        [at + place for at in quarters for place in (2, 18, 3, 19)],
        [at + place for at in quarters for place in (0, 1, 16, 17)],
        [at + place for at in quarters for place in (2, 3, 18, 19)],
        [*range(4), *range(8, 12), *range(16, 20), *range(24, 28)],
        [*range(4, 8), *range(12, 16), *range(20, 24), *range(28, 32)],
    )
    for level in range(4):
        first, second = orders[min(2 * level, 4)], orders[min(2 * level + 1, 5)]
        pairs = zip(rows[0::2], rows[1::2], strict=True)
        rows = [b.fadd(_picked(b, x, y, first), _picked(b, x, y, second)) for x, y in pairs]
    return rows[0]


def _rows(b: Any, base: Any, row_bytes: Any, count: Any) -> list[Any]:
    """Addresses of 16 rows; the last of ``count`` again for those beyond."""
    last = b.sub(count, constant(1))
    places = []
    for number in range(COUNT):
        index = b.select(b.icmp_signed("<", constant(number), last), constant(number), last)
        places.append(b.add(base, b.mul(index, row_bytes)))
    return places


def _scores(width_columns: int) -> Any:
    @emits(LANES, ADDRESS, ADDRESS, INTEGER, INTEGER, INTEGER)
    def scores(b: Any, q: Any, k: Any, row_bytes: Any, width: Any, count: Any) -> Any:
        """Scores of a query with ``count`` (1 to 16) rows of ``width`` numbers, ``row_bytes`` apart at ``k``."""
        rows = _rows(b, k, row_bytes, count)
        passes = b.sdiv(b.add(width, constant(width_columns - 1)), constant(width_columns))
        loop = Loop(b, passes, [[ZERO] * COUNT])
        at = b.mul(loop.number, constant(64))
        left = b.sub(width, b.mul(loop.number, constant(width_columns)))
        place = b.add(q, b.mul(loop.number, constant(4 * width_columns)))
        sums = []
        if width_columns == COUNT:
            x = emit_load(b, place)
            for row, total in zip(rows, loop.carried[0], strict=True):
                sums.append(emit_fma(b, emit_load_part(b, b.add(row, at), left), x, total))
        else:
            even, odd = emit_load(b, place), emit_load(b, b.add(place, constant(64)))
            words_left = b.sdiv(left, constant(2))
            for row, total in zip(rows, loop.carried[0], strict=True):
                words = emit_load_words(b, b.add(row, at), words_left)
                sums.append(
                    emit_fma(b, emit_high(b, words), odd, emit_fma(b, emit_low(b, words), even, total))
                )
        loop.close([sums])
        return _tree(b, sums)

    return scores


def _columns(b: Any, row: Any, width: Any, bf16: bool) -> list[Any]:
    """64 columns of a row as four vectors (unwoven when bfloat16), zeros beyond ``width``."""
    found = []
    if bf16:
        for part in range(2):
            left = b.sub(b.sdiv(width, constant(2)), constant(16 * part))
            words = emit_load_words(b, b.add(row, constant(64 * part)), left)
            found += [emit_low(b, words), emit_high(b, words)]
        return found
    for part in range(4):
        left = b.sub(width, constant(16 * part))
        found.append(emit_load_part(b, b.add(row, constant(64 * part)), left))
    return found


def _weigh_heads(b: Any, heads: int, bf16: bool, places: Sequence[Any]) -> None:
    """The loop over tokens for ``heads`` query heads; ``places`` as the arguments of ``weigh``."""
    sums, sum_bytes, p, p_bytes, v, row_bytes, width, count, factors = places
    own = [b.add(sums, b.mul(sum_bytes, constant(head))) for head in range(heads)]
    weights = [b.add(p, b.mul(p_bytes, constant(head))) for head in range(heads)]
    start: Grid = []
    for head, place in enumerate(own):
        factor = emit_spread(b, emit_load(b, b.add(factors, constant(4 * head)), F32))
        start.append([b.fmul(emit_load(b, b.add(place, constant(64 * part))), factor) for part in range(4)])
    loop = Loop(b, count, start)
    columns = _columns(b, b.add(v, b.mul(loop.number, row_bytes)), width, bf16)
    made: Grid = []
    for weight, carried in zip(weights, loop.carried, strict=True):
        share = emit_spread(b, emit_load(b, b.add(weight, b.mul(loop.number, constant(4))), F32))
        made.append([emit_fma(b, share, x, total) for x, total in zip(columns, carried, strict=True)])
    loop.close(made)
    for place, row in zip(own, made, strict=True):
        for part, value in enumerate(row):
            emit_store(b, b.add(place, constant(64 * part)), value)


@emits(
    NOTHING, INTEGER, INTEGER, ADDRESS, INTEGER, ADDRESS, INTEGER, ADDRESS, INTEGER, INTEGER, INTEGER, ADDRESS
)
def weigh(b: Any, bf16: Any, heads: Any, *places: Any) -> None:
    """``sums_g`` = ``factors_g`` ``sums_g`` + the weighted rows, for 1 to 4 ``heads`` and 64 columns.

    ``places``: sums, bytes between them; weights, bytes between them; rows, bytes between them; columns left, tokens; factors.
    """
    behind = b.function.append_basic_block("weighed")
    choice = b.switch(b.add(b.mul(bf16, constant(8)), heads), behind)
    for kind in range(2):
        for count in range(1, 5):
            block = b.function.append_basic_block("weigh")
            choice.add_case(constant(8 * kind + count), block)
            b.position_at_end(block)
            _weigh_heads(b, count, bool(kind), places)
            b.branch(behind)
    b.position_at_end(behind)


scores_fp32, scores_bf16 = _scores(COUNT), _scores(2 * COUNT)
