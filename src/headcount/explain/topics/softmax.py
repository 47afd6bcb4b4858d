"""Softmax of a row: overflow, the shift by the maximum, what the shift does not mend, the merge of partial sums."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headcount.explain.arithmetic import short
from headcount.explain.asked import Asked
from headcount.explain.derivation import Derivation, Step, Symbol, Table, shown
from headcount.transformer.ops.operands import plain
from headcount.transformer.ops.softmax import naive_softmax, softmax

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
LOGITS = (1000.0, 1002.0)


def derive(asked: Asked) -> Derivation:
    """From the textbook line to the one that is run."""
    return Derivation(
        topic="softmax",
        title="Softmax without overflow",
        summary="A row of scores becomes positive weights that sum to 1. The textbook line breaks at scores "
        "near 90; the line "
        "that is run does not.",
        symbols=(
            Symbol(symbol="s_j", meaning="score of key j in one row"),
            Symbol(symbol="m", meaning="the row's maximum, max_j s_j"),
            Symbol(symbol="a_j", meaning="weight of key j; all positive, summing to 1"),
            Symbol(symbol="l", meaning="the row's sum of exp(s_j - m)"),
            Symbol(symbol="lse", meaning="log-sum-exp, m + log l"),
        ),
        steps=(_textbook(), _shift(), _invariance(), _ranges(), _limits(), _merge()),
        sources=(
            "Bridle 1990 (softmax); Goodfellow, Bengio, Courville 2016, section 4.1 (the shift)",
            "Milakov and Gimelshein 2018 (running maximum and sum)",
            "torch.finfo for the ranges of the types",
        ),
    )


def _row(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(LOGITS, dtype=dtype)


def _textbook() -> Step:
    powers = torch.exp(_row(torch.float32))
    rows = [
        (
            plain(dtype),
            *(float(v) for v in torch.exp(_row(dtype))),
            *(float(v) for v in naive_softmax(_row(dtype))),
        )
        for dtype in DTYPES
    ]
    half = naive_softmax(torch.tensor([1000.0, 0.0]))
    return Step(
        title="the textbook line, and how it fails",
        why="The ratio of two exponentials is what we want; neither of the two may leave the range of the type.",
        formula=("a_j = exp(s_j) / sum_k exp(s_k)",),
        arithmetic=(
            f"exp(1000) = {float(powers[0])} in float32, so a = inf / (inf + inf) = {float(naive_softmax(_row())[0])}",
        ),
        tables=(
            Table(
                title="scores [1000, 1002] by the textbook line",
                header=("type", "exp(1000)", "exp(1002)", "a_1", "a_2"),
                rows=tuple(rows),
            ),
        ),
        note=f"Not every entry is NaN: [1000, 0] gives [{float(half[0])}, {short(float(half[1]))}]; finite / "
        f"inf is 0.",
        chapters="call scores of 1000 'entirely plausible' after the variance argument. Under that argument's "
        "own model they "
        f"lie {short(1000 / math.sqrt(64), 0)} standard deviations out at d_k = 64 and "
        f"{1000 / math.sqrt(1024):.0f} at "
        "d_k = 1024: impossible. They do arise after training, when logits grow or a channel is an outlier.",
    )


def _shift() -> Step:
    row = _row()
    shifted = row - row.max()
    powers = shifted.exp()
    return Step(
        title="subtract the maximum first",
        why="A factor exp(-m) cancels between numerator and denominator. With m the maximum, the largest "
        "exponent is 0, the "
        "largest exponential 1, and nothing can overflow.",
        formula=("exp(s_j - m) / sum_k exp(s_k - m) = exp(s_j) exp(-m) / (exp(-m) sum_k exp(s_k)) = a_j",),
        arithmetic=(
            f"m = {short(float(row.max()))}, shifted [{short(float(shifted[0]))}, {short(float(shifted[1]))}]",
            f"sum {short(float(powers[0]))} + {short(float(powers[1]))} = {short(float(powers.sum()))}",
            f"a_1 = {short(float(powers[0]))} / {short(float(powers.sum()))} = {short(float(softmax(row)[0]))}",
        ),
        values=(
            shown("s - m", shifted, "shifted"),
            shown("exp(s - m)", powers),
            shown("l", float(powers.sum()), "sum"),
            shown("a", softmax(row), "softmax"),
        ),
        chapters=f"put float32's limit at roughly exp(88) = 1.6 x 10^38. exp(88) is {math.exp(88):.4g}; the "
        f"exact limit is "
        f"ln(max) = {math.log(torch.finfo(torch.float32).max):.8f}.",
    )


def _invariance() -> Step:
    generator = torch.Generator().manual_seed(0)
    row = torch.randn(8, generator=generator, dtype=torch.float64)
    rows = [(float(c), float((softmax(row + c) - softmax(row)).abs().max())) for c in (-1000, -1, 1, 1000)]
    return Step(
        title="a shift changes nothing, measured",
        why="Eight random scores, every one raised by the same constant.",
        formula=("softmax(s + c) = softmax(s)",),
        tables=(Table(title="largest change of a weight", header=("shift c", "change"), rows=tuple(rows)),),
        note="What remains is the rounding of s + c: a sum near 1000 keeps three digits fewer after the point.",
    )


def largest_argument(dtype: torch.dtype) -> float:
    """The largest number of this type whose exponential is finite in it, found by stepping through the numbers."""
    x = torch.tensor(math.log(torch.finfo(dtype).max), dtype=dtype)
    up, down = torch.tensor(torch.inf, dtype=dtype), torch.tensor(-torch.inf, dtype=dtype)
    while torch.exp(x).isfinite():
        x = torch.nextafter(x, up)
    while not torch.exp(x).isfinite():
        x = torch.nextafter(x, down)
    return float(x)


def _ranges() -> Step:
    rows = []
    for dtype in DTYPES:
        info = torch.finfo(dtype)
        rows.append(
            (
                plain(dtype),
                f"{info.max:.4g}",
                f"{math.log(info.max):.8f}",
                f"{largest_argument(dtype):.8g}",
                f"{math.log(info.tiny):.4f}",
                f"{math.log(info.smallest_normal * info.eps):.2f}",
            )
        )
    return Step(
        title="where each type overflows and underflows",
        why="exp(s) overflows above ln(max); it loses bits below ln(smallest normal number) and is 0 below "
        "about ln(smallest "
        "subnormal number) - ln 2, where the type has subnormal numbers at all.",
        formula=("exp(s) <= max  <->  s <= ln(max)",),
        tables=(
            Table(
                title="from torch.finfo; the fourth column is found by trying",
                header=("type", "max", "ln(max)", "last finite s", "ln(normal)", "ln(subnormal)"),
                rows=tuple(rows),
            ),
        ),
        note="bfloat16 has float32's range with fewer digits; float16 ends at 11, within reach of ordinary "
        "unscaled scores.",
    )


def _limits() -> Step:
    inf = torch.inf
    cases = {
        "[-inf, -inf]": "every key masked: zeros, not NaN (our choice, and FlashAttention's)",
        "[0, -inf]": "one key masked: its weight is exactly 0",
        "[-200, 0] in float32": "exp(-200) underflows to 0: the weight is lost, harmlessly",
        "[inf, 0]": "no limit exists: NaN, not hidden",
        "[nan, 0]": "NaN stays NaN",
    }
    tensors = (
        torch.tensor([-inf, -inf]),
        torch.tensor([0.0, -inf]),
        torch.tensor([-200.0, 0.0]),
        torch.tensor([inf, 0.0]),
        torch.tensor([torch.nan, 0.0]),
    )
    rows = [
        (name, *(float(v) for v in softmax(tensor)), words)
        for (name, words), tensor in zip(cases.items(), tensors, strict=True)
    ]
    return Step(
        title="what the shift does not mend",
        why="Overflow is gone. These are not overflow, so each has a rule of its own.",
        tables=(
            Table(title="our softmax", header=("scores", "a_1", "a_2", "what happens"), rows=tuple(rows)),
        ),
        chapters="say 'no overflow possible' and stop there. A row that is masked completely would still compute "
        "-inf - (-inf) = NaN without a rule.",
    )


def _merge() -> Step:
    row = torch.tensor([1000.0, 1002.0, 1001.0, 1003.0], dtype=torch.float64)
    left, right = row[:2], row[2:]
    m1, m2 = float(left.max()), float(right.max())
    l1, l2 = float((left - m1).exp().sum()), float((right - m2).exp().sum())
    m = max(m1, m2)
    total = l1 * math.exp(m1 - m) + l2 * math.exp(m2 - m)
    whole = float((row - row.max()).exp().sum())
    return Step(
        title="merge two halves of a row",
        why="A row need not be in one place. Two halves with their own maximum and sum combine exactly: this is "
        "all that "
        "online softmax (FlashAttention) needs.",
        formula=("m = max(m_1, m_2)", "l = l_1 exp(m_1 - m) + l_2 exp(m_2 - m)", "lse = m + log l"),
        arithmetic=(
            f"left [1000, 1002]: m_1 = {m1:.0f}, l_1 = {short(l1)}; right [1001, 1003]: m_2 = {m2:.0f}, l_2 = "
            f"{short(l2)}",
            f"l = {short(l1)} x exp({m1 - m:.0f}) + {short(l2)} x exp({m2 - m:.0f}) = {short(total)}",
        ),
        values=(
            shown("l", total, "merged"),
            shown("l_whole", whole, "in one piece"),
            shown("difference", abs(total - whole)),
            shown("lse", m + math.log(total), "merged"),
        ),
        note="`headcount explain tiled` carries the output along with it.",
    )
