"""What every operation refuses, and the edges of the number range that single operations meet."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from headcount.errors import OperandError
from headcount.transformer.ops.arithmetic import product
from headcount.transformer.ops.cross_entropy import cross_entropy
from headcount.transformer.ops.embedding import embedding
from headcount.transformer.ops.gelu import gelu
from headcount.transformer.ops.linear import linear
from headcount.transformer.ops.relu import relu
from headcount.transformer.ops.silu import silu
from headcount.transformer.ops.softmax import softmax


def test_whole_numbers_are_not_truncated_in_silence(plain_signatures: None) -> None:
    with pytest.raises(OperandError, match="silu: input 1 is int64; it must be floating"):
        silu(torch.tensor([1, 2]))
    with pytest.raises(OperandError, match="embedding: input 1 is float32; it must be whole numbers"):
        embedding(torch.tensor([1.0]), torch.ones(2, 2))


def test_two_devices_are_refused(plain_signatures: None) -> None:
    with pytest.raises(OperandError, match="inputs are on meta and on cpu"):
        embedding(torch.zeros(2, dtype=torch.long, device="meta"), torch.ones(2, 2))
    with pytest.raises(OperandError, match="move them to one device"):
        product(torch.ones(2, 2), torch.ones(2, 2, device="meta"))


def test_label_smoothing_of_large_logits() -> None:
    logits = torch.randn(4, 50_000, generator=torch.Generator().manual_seed(0)) + 1e6
    targets = torch.tensor([1, 2, 3, 4])
    wanted = functional.cross_entropy(logits.double(), targets, label_smoothing=0.1)
    assert float(cross_entropy(logits, targets, label_smoothing=0.1)) == pytest.approx(
        float(wanted), rel=1e-5
    )
    flat = cross_entropy(torch.full((2, 4), 1e38), torch.tensor([0, 1]), label_smoothing=0.1)
    assert float(flat) == pytest.approx(math.log(4))


def test_gelu_far_out_has_slope_one() -> None:
    x = torch.tensor([1e14, 1e30, -1e30], requires_grad=True)
    gelu(x, form="tanh").backward(torch.ones(3))
    assert x.grad is not None and x.grad.tolist() == [1.0, 1.0, 0.0]


def test_a_dead_unit_stops_an_infinite_gradient() -> None:
    x = torch.tensor([-1.0, 0.0, 1.0], requires_grad=True)
    relu(x).backward(torch.full((3,), math.inf))
    assert x.grad is not None and x.grad.tolist() == [0.0, 0.0, math.inf]


def test_half_precision_softmax_is_rounded_once() -> None:
    row = torch.zeros(65_600, dtype=torch.float16)
    assert softmax(row)[0] == torch.softmax(row, 0)[0] > 0
    wide = torch.randn(4, 4096, generator=torch.Generator().manual_seed(0)).bfloat16()
    torch.testing.assert_close(softmax(wide), torch.softmax(wide, -1), rtol=2**-7, atol=0)


def test_linear_without_inputs() -> None:
    assert linear(torch.randn(2, 0), torch.randn(3, 0)).tolist() == [[0.0] * 3] * 2
