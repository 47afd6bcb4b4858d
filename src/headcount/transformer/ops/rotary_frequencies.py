"""Inverse frequencies of the rotary planes, plain and stretched to longer contexts than the model was trained on.

Plain: plane i of R/2 turns by w_i = base^(-2i/R) radians per token; its wavelength is 2 pi / w_i tokens. Stretching by
a factor f (context f times as long):

    linear        w_i / f: every plane turns f times slower (Chen et al. 2023)
    dynamic       a larger base, base' = base (f n / n0 - (f - 1))^(R / (R - 2)) for n > n0 tokens: the slowest plane
                  slows down, the fastest hardly (NTK-aware, chosen from the length n at hand; bloc97, emozilla 2023)
    llama3        planes that complete many turns within n0 keep w, slow ones get w / f, a linear blend between
    yarn          the same idea with the blend linear in the plane's index, and c = 0.1 ln f + 1 on cos and sin, which
                  multiplies every score by c^2 (Peng et al. 2023)
    longrope      one measured factor per plane, a short list and a long one (Ding et al. 2024)
    proportional  only the first part of the planes turns, with exponents over the whole head (Gemma 3n)

Frequencies are computed in float32 in the order the reference does: models were trained with those roundings, and at
position 10^5 a frequency that is off by its last bit turns a plane by 0.006 radians.

Every rule returns (frequencies (R/2), attention factor c).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from headcount.errors import UnknownNameError, UsageError


class Frequencies(NamedTuple):
    """Radians per token of each plane, and the constant on cos and sin."""

    inverse: Tensor
    attention_factor: float = 1.0


def plain(width: int, *, base: float = 10000.0, dtype: torch.dtype = torch.float32) -> Frequencies:
    """Return w_i = base^(-2i/R)."""
    return Frequencies(1.0 / _wavelengths(width, base, dtype))


def linear(width: int, *, base: float = 10000.0, factor: float) -> Frequencies:
    """Return w_i / f."""
    return Frequencies(plain(width, base=base).inverse / factor)


def dynamic(
    width: int, *, base: float = 10000.0, factor: float, trained_length: int, length: int | None = None
) -> Frequencies:
    """Return the frequencies of the stretched base; up to ``trained_length`` tokens they are the plain ones."""
    reach = max(length or 0, trained_length)
    stretch = factor * reach / trained_length - (factor - 1)
    return plain(width, base=base * stretch ** (width / (width - 2)))


def llama3(
    width: int,
    *,
    base: float = 10000.0,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    trained_length: int,
) -> Frequencies:
    """Blend w and w / f by how many turns t = n0 w / 2 pi a plane completes: all w / f below low, all w above high."""
    w = plain(width, base=base).inverse
    wavelength = 2 * math.pi / w
    keep = (trained_length / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor)
    blend = (1 - keep) * w / factor + keep * w
    fast = wavelength < trained_length / high_freq_factor
    slow = wavelength > trained_length / low_freq_factor
    return Frequencies(torch.where(slow, w / factor, torch.where(fast, w, blend)))


def yarn(
    width: int,
    *,
    base: float = 10000.0,
    factor: float,
    trained_length: int,
    turns: tuple[float, float] = (32.0, 1.0),
    truncate: bool = True,
    attention_factor: float | None = None,
) -> Frequencies:
    """Blend w and w / f between the planes that complete ``turns`` = (fast, slow) turns within ``trained_length``.

    ``attention_factor`` None takes 0.1 ln f + 1 (``yarn_attention_factor`` has the form with two multipliers).
    """
    wavelengths = _wavelengths(width, base, torch.float32)
    low, high = (width * math.log(trained_length / (n * 2 * math.pi)) / (2 * math.log(base)) for n in turns)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    if low == high:
        high += 0.001
    # The reference blends with 1 - (1 - ramp); kept, because rounding makes it differ from ramp.
    keep = 1 - ((torch.arange(width // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    inverse = 1.0 / (factor * wavelengths) * (1 - keep) + 1.0 / wavelengths * keep
    return Frequencies(
        inverse, yarn_attention_factor(factor) if attention_factor is None else attention_factor
    )


def yarn_attention_factor(
    factor: float, mscale: float | None = None, mscale_all_dim: float | None = None
) -> float:
    """Return 0.1 ln f + 1, or with both multipliers (0.1 m ln f + 1) / (0.1 m' ln f + 1); 1 for f <= 1."""

    def grown(multiplier: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * multiplier * math.log(factor) + 1.0

    return grown(mscale) / grown(mscale_all_dim) if mscale and mscale_all_dim else grown(1.0)


def longrope(
    width: int,
    *,
    base: float = 10000.0,
    factors: tuple[Sequence[float], Sequence[float]],
    factor: float,
    trained_length: int,
    length: int | None = None,
    attention_factor: float | None = None,
) -> Frequencies:
    """Return w_i / f_i with the short list up to ``trained_length`` tokens, the long one beyond; ``factors`` = both.

    ``attention_factor`` None takes sqrt(1 + ln f / ln n0).
    """
    chosen = factors[1] if length and length > trained_length else factors[0]
    if len(chosen) != width // 2:
        raise UsageError(f"longrope: {len(chosen)} factors for {width // 2} planes")
    if attention_factor is None:
        attention_factor = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(trained_length))
    stretched = torch.tensor(chosen, dtype=torch.float32) * _wavelengths(width, base, torch.float32)
    return Frequencies(1.0 / stretched, attention_factor)


def proportional(
    width: int, *, base: float = 10000.0, share: float = 1.0, factor: float = 1.0
) -> Frequencies:
    """Return w_i / f with exponents over the whole ``width``, for the first ``share`` of the planes; 0 for the rest."""
    turning = int(share * width // 2)
    w = plain(width, base=base).inverse.clone()
    w[turning:] = 0
    return Frequencies(w / factor)


RULES: dict[str, Callable[..., Frequencies]] = {
    "default": plain,
    "linear": linear,
    "dynamic": dynamic,
    "llama3": llama3,
    "yarn": yarn,
    "longrope": longrope,
    "proportional": proportional,
}


def rotary_frequencies(rule: str, width: int, **numbers: Any) -> tuple[Float[Tensor, " P"], float]:
    """Frequencies and attention factor by the rule's name; ``width`` = R, the columns that turn (even).

    Raises
    ------
    UnknownNameError: a rule that is not in ``RULES``.  UsageError: an odd width.
    """
    if rule not in RULES:
        raise UnknownNameError(what="rotary scaling", given=rule, allowed=RULES)
    if width % 2 or width < 2:
        raise UsageError(f"rotary positions turn pairs of columns; the rotary width {width} is not even")
    return RULES[rule](width, **numbers)


def _wavelengths(width: int, base: float, dtype: torch.dtype) -> Tensor:
    """Return base^(2i/R): tokens per radian."""
    return torch.as_tensor(base ** (torch.arange(0, width, 2, dtype=dtype) / width))
