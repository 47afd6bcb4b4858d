"""What a projection's outputs pass through: activations and bounds, sixteen numbers at a time.

    silu x sigmoid(x)      gelu x Phi(x)      gelu_tanh x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3))      relu max(x, 0)
    clip to [-c, c]        soft cap c tanh(x / c)

Phi(x) = (1 + erf(x / sqrt 2)) / 2, with erf z = z P(z^2) / Q(z^2) for |z| <= 4 (the rational fit of Eigen and XLA; within
4e-7 of erf, tested).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from headcount.transformer.decode.compiler import FLOAT, INTEGER, constant, emits
from headcount.transformer.decode.instructions import (
    CLIP,
    GELU,
    GELU_TANH,
    RELU,
    SIGMOID,
    SILU,
    SOFT_CAP,
)
from headcount.transformer.decode.lanes import (
    FLOATS,
    LANES,
    ZERO,
    all_of,
    emit_exp,
    emit_fma,
    emit_max,
    emit_min,
    emit_spread,
)

UPPER = (
    -2.72614225801306e-10,
    2.77068142495902e-08,
    -2.10102402082508e-06,
    -5.69250639462346e-05,
    -7.34990630326855e-04,
    -2.95459980854025e-03,
    -1.60960333262415e-02,
)
LOWER = (
    -1.45660718464996e-05,
    -2.13374055278905e-04,
    -1.68282697438203e-03,
    -7.37332916720468e-03,
    -1.42647390514189e-02,
)


def _polynomial(b: Any, x: Any, numbers: tuple[float, ...]) -> Any:
    y = all_of(numbers[0])
    for number in numbers[1:]:
        y = emit_fma(b, y, x, all_of(number))
    return y


def _sigmoid(b: Any, x: Any) -> Any:
    return b.fdiv(all_of(1.0), b.fadd(all_of(1.0), emit_exp(b, b.fneg(x))))


def _gelu(b: Any, x: Any) -> Any:
    z = emit_max(b, emit_min(b, b.fmul(x, all_of(math.sqrt(0.5))), all_of(4.0)), all_of(-4.0))
    square = b.fmul(z, z)
    erf = b.fdiv(b.fmul(z, _polynomial(b, square, UPPER)), _polynomial(b, square, LOWER))
    return b.fmul(x, emit_fma(b, erf, all_of(0.5), all_of(0.5)))


def _gelu_tanh(b: Any, x: Any) -> Any:
    cubic = emit_fma(b, b.fmul(x, x), all_of(0.044715), all_of(1.0))
    return b.fmul(x, _sigmoid(b, b.fmul(b.fmul(x, cubic), all_of(2 * math.sqrt(2 / math.pi)))))


def _soft_cap(b: Any, x: Any, wide: Any) -> Any:
    grown = b.fadd(emit_exp(b, b.fdiv(b.fadd(x, x), wide)), all_of(1.0))
    return b.fmul(wide, b.fsub(all_of(1.0), b.fdiv(all_of(2.0), grown)))


@emits(LANES, LANES, FLOAT)
def soft_cap(b: Any, x: Any, bound: Any) -> Any:
    """c tanh(x / c) = c (1 - 2 / (e^(2 x / c) + 1))."""
    return _soft_cap(b, x, emit_spread(b, bound))


@emits(LANES, LANES, INTEGER, FLOAT)
def bend(b: Any, x: Any, kind: Any, bound: Any) -> Any:
    """What ``kind`` of ``instructions`` makes of x; ``bound`` is the c of a clip or a soft cap."""
    wide = emit_spread(b, bound)
    ways: dict[int, Callable[[], Any]] = {
        SILU: lambda: b.fmul(x, _sigmoid(b, x)),
        GELU: lambda: _gelu(b, x),
        GELU_TANH: lambda: _gelu_tanh(b, x),
        RELU: lambda: emit_max(b, x, ZERO),
        SIGMOID: lambda: _sigmoid(b, x),
        CLIP: lambda: emit_max(b, emit_min(b, x, wide), b.fneg(wide)),
        SOFT_CAP: lambda: _soft_cap(b, x, wide),
    }
    before, behind = b.block, b.function.append_basic_block("bent")
    choice = b.switch(kind, behind)
    made = [(x, before)]
    for number, way in ways.items():
        block = b.function.append_basic_block("bend")
        choice.add_case(constant(number), block)
        b.position_at_end(block)
        made.append((way(), b.block))
        b.branch(behind)
    b.position_at_end(behind)
    result = b.phi(FLOATS)
    for value, block in made:
        result.add_incoming(value, block)
    return result
