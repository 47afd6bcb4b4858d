"""Norms, any width.

RMS    w x / sqrt(mean x^2 + eps)
layer  w (x - mean) / sqrt(var + eps) + b          a zero address of w or b leaves it out
"""

from __future__ import annotations

import math

import numpy as np

from headcount.transformer.decode.compiler import compiled
from headcount.transformer.decode.instructions import NO_NORM, RMS_NORM
from headcount.transformer.decode.lanes import (
    add,
    fma,
    keep_first,
    load_part,
    multiply,
    spread,
    store_part,
    subtract,
    total,
)

NONE = np.float32(0)


@compiled
def normalise(
    whole: int, count: int, part: int, target: int, width: int, norm: tuple[int, int, int, float]
) -> None:
    """``target`` = norm of the ``width`` numbers at ``part``, with mean and variance of the ``count`` numbers at ``whole``.

    Usually the two are one; they differ where heads are normed together. ``target`` may be ``part``. ``norm``: kind, addresses
    of w and b, eps; kind NO_NORM copies.
    """
    kind, weight, bias, epsilon = norm
    mean, scale = 0.0, 1.0
    if kind != NO_NORM:
        if kind != RMS_NORM:
            sums = spread(NONE)
            for at in range(0, count, 16):
                sums = add(sums, load_part(whole + 4 * at, count - at))
            mean = total(sums) / count
        squares, shift = spread(NONE), spread(mean)
        for at in range(0, count, 16):
            x = keep_first(subtract(load_part(whole + 4 * at, count - at), shift), count - at, NONE)
            squares = fma(x, x, squares)
        scale = 1.0 / math.sqrt(total(squares) / count + epsilon)
    shift, factor = spread(mean), spread(scale)
    for at in range(0, width, 16):
        left = width - at
        x = load_part(part + 4 * at, left)
        if kind != NO_NORM:
            x = multiply(subtract(x, shift), factor)
            if weight != 0:
                x = multiply(x, load_part(weight + 4 * at, left))
            if bias != 0:
                x = add(x, load_part(bias + 4 * at, left))
        store_part(target + 4 * at, x, left)
