"""Sinusoids against the paper's formula entry by entry, learned positions against an embedding of positions."""

from __future__ import annotations

import math

import pytest
import torch
from torch.autograd import gradcheck

from headcount.errors import OperandError, UsageError
from headcount.transformer.ops.positions import learned_positions, sinusoidal_positions, sinusoidal_table


def test_table_is_the_papers() -> None:
    # Printed values of PE(1) at D = 4.
    table = sinusoidal_table(2, 4, dtype=torch.float64)
    assert table[1].tolist() == pytest.approx(
        [0.8414709848, 0.5403023059, 0.0099998333, 0.9999500004], abs=5e-11
    )
    table = sinusoidal_table(50, 16, start=7, dtype=torch.float64)
    for row in (0, 1, 49):
        for i in range(8):
            angle = (row + 7) / 10000 ** (2 * i / 16)
            assert table[row, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-12)
            assert table[row, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-12)


def test_a_shift_is_one_rotation_for_all_positions() -> None:
    width, shift = 8, 5
    table = sinusoidal_table(40, width, dtype=torch.float64)
    speeds = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    sin, cos = table[:, 0::2], table[:, 1::2]
    turned = sin * (shift * speeds).cos() + cos * (shift * speeds).sin()
    torch.testing.assert_close(turned[:-shift], sin[shift:], rtol=0, atol=1e-13)


def test_float32_table_is_the_rounded_float64_one() -> None:
    far = sinusoidal_table(3, 6, start=100_000)
    assert far.dtype == torch.float32
    assert far[0, 0].item() == pytest.approx(math.sin(100_000), abs=6e-8)


def test_gradients() -> None:
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda y: sinusoidal_positions(y, start=2), (x,))
    assert gradcheck(lambda y, w: learned_positions(y, w, start=2), (x, weight))
    out = learned_positions(x, weight, start=2)
    torch.testing.assert_close(
        out, x + torch.nn.functional.embedding(torch.arange(2, 5), weight), rtol=0, atol=0
    )
    out.sum().backward()
    # Both sequences of the batch read rows 2, 3 and 4.
    assert weight.grad is not None and weight.grad[:, 0].tolist() == [0, 0, 2, 2, 2, 0]


def test_refusals() -> None:
    with pytest.raises(UsageError, match="even width"):
        sinusoidal_table(3, 5)
    with pytest.raises(OperandError, match="positions 4 to 6, the table has 6 rows"):
        learned_positions(torch.ones(3, 2), torch.ones(6, 2), start=4)
