"""GELU: x times the probability that a standard normal variable is below x.

Exact, with Phi the normal distribution function and phi its density:

    y = x Phi(x),   Phi(x) = (1 + erf(x / sqrt 2)) / 2,   phi(x) = exp(-x^2 / 2) / sqrt(2 pi)
    dy/dx = Phi(x) + x phi(x)

Tanh approximation, u = sqrt(2/pi) (x + 0.044715 x^3):  y = x (1 + tanh u) / 2. Since (1 + tanh u) / 2 = sigmoid(2u),

    y = x s,   s = sigmoid(2u)
    dy/dx = s + x s (1 - s) 2 u',   u' = sqrt(2/pi) (1 + 3 * 0.044715 x^2)

which is how it is computed (a sigmoid costs less than a tanh). The two curves differ by at most 4.8e-4.

Saved: the slope dy/dx, as large as x and all that the backward needs: one product instead of a second erf and exp.
Half-precision inputs are computed in float32 and rounded where they are stored.

Shapes: (...) -> (...). Source: Hendrycks, Gimpel 2016.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from headcount.errors import UnknownNameError
from headcount.transformer.ops.operation import Operation
from headcount.transformer.ops.precision import entrywise

FORMS = ("exact", "tanh")
CUBIC = 0.044715
SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
FAR = 1e4


class Saved(NamedTuple):
    """What the backward reads: dy/dx."""

    slope: Tensor


def forward(x: Tensor, *, form: str = "exact") -> tuple[Tensor, Saved]:
    """Return ``(x Phi(x), saved)``, or its tanh approximation."""
    if form not in FORMS:
        raise UnknownNameError(what="form of GELU", given=form, allowed=FORMS)
    y, slope = entrywise(value_and_slope_tanh if form == "tanh" else value_and_slope_exact, x, outputs=2)
    return y, Saved(slope)


def backward(saved: Saved, d_y: Tensor) -> tuple[Tensor]:
    """Return dy * dy/dx."""
    return (d_y * saved.slope,)


GELU = Operation(
    "gelu",
    forward=forward,
    backward=backward,
    formula="y = x Phi(x)",
    gradient="dx = dy (Phi(x) + x phi(x))",
)


def gelu(x: Float[Tensor, "*shape"], *, form: str = "exact") -> Float[Tensor, "*shape"]:
    """GELU, entry by entry; ``form`` is ``exact`` (erf) or ``tanh`` (the approximation)."""
    y: Tensor = GELU(x, form=form)
    return y


def value_exact(x: Tensor) -> Tensor:
    """Return x Phi(x)."""
    return x * _phi_exact(x)


def value_and_slope_exact(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x Phi(x) and Phi(x) + x phi(x)."""
    phi = _phi_exact(x)
    density = (x * x).mul_(-0.5).exp_()
    return x * phi, torch.addcmul(phi, x, density, value=1 / math.sqrt(2 * math.pi))


def value_tanh(x: Tensor) -> Tensor:
    """Return x sigmoid(2u)."""
    return x * _phi_tanh(x)


def value_and_slope_tanh(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return y = x s and s + y (1 - s) 2 u', with s = sigmoid(2u)."""
    s = _phi_tanh(x)
    # Beyond FAR s is 0 or 1 and the slope is s; inside, no factor overflows.
    near = x.clamp(-FAR, FAR)
    twice_slope = (near * near).mul_(3 * CUBIC).add_(1).mul_(2 * SQRT_2_OVER_PI).mul_(near).mul_(s)
    return x * s, torch.addcmul(s, twice_slope, 1 - s)


def _phi_exact(x: Tensor) -> Tensor:
    return (x * math.sqrt(0.5)).erf_().add_(1).mul_(0.5)


def _phi_tanh(x: Tensor) -> Tensor:
    return torch.sigmoid((x * x).mul_(CUBIC).add_(1).mul_(x).mul_(2 * SQRT_2_OVER_PI))
