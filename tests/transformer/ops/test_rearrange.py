"""Splits, merges, repeats and joins against PyTorch's indexing, and a tape that stays connected through them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from headcount.errors import OperandError
from headcount.transformer.ops.arithmetic import total
from headcount.transformer.ops.operation import differentiate
from headcount.transformer.ops.rearrange import concat, cut, merge_heads, repeat_heads, split_heads
from headcount.transformer.ops.recording import record

SIZES = st.integers(1, 3)
LEAD = st.lists(SIZES, max_size=2)
MODES = st.sampled_from(["by_hand", "autograd"])


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@given(lead=LEAD, length=SIZES, heads=SIZES, head=SIZES, mode=MODES)
def test_heads(lead: list[int], length: int, heads: int, head: int, mode: str) -> None:
    x, o = random(*lead, length, heads * head), random(*lead, heads, length, head)
    q = split_heads(x, heads)
    for n in range(heads):
        assert torch.equal(q[..., n, :, :], x[..., n * head : (n + 1) * head])
    assert torch.equal(merge_heads(q), x)
    with differentiate(mode):
        assert gradcheck(lambda y: split_heads(y, heads), (x,))
        assert gradcheck(merge_heads, (o,))


@given(lead=LEAD, heads=SIZES, groups=SIZES, mode=MODES)
def test_repeated_heads(lead: list[int], heads: int, groups: int, mode: str) -> None:
    k = random(*lead, heads, 2, 3)
    out = repeat_heads(k, groups)
    for n in range(heads * groups):
        assert torch.equal(out[..., n, :, :], k[..., n // groups, :, :])
    with differentiate(mode):
        assert gradcheck(lambda y: repeat_heads(y, groups), (k,))


@given(lead=LEAD, widths=st.lists(st.integers(0, 3), min_size=1, max_size=3), mode=MODES)
def test_concat_and_cut(lead: list[int], widths: list[int], mode: str) -> None:
    parts = [random(*lead, width) for width in widths]
    x = random(*lead, sum(widths))
    assert torch.equal(concat(*parts), torch.cat(parts, -1))
    for ours, theirs in zip(cut(x, widths), x.split(widths, dim=-1), strict=True):
        assert torch.equal(ours, theirs)
    with differentiate(mode):
        if sum(widths):
            assert gradcheck(lambda *y: concat(*y), parts)
            assert gradcheck(lambda y: concat(*cut(y, widths)[::-1]), (x,))


def test_unused_part_of_a_cut_gets_a_zero_gradient() -> None:
    x = random(2, 5)
    total(cut(x, (2, 3))[1]).backward()
    assert x.grad is not None and x.grad.tolist() == [[0, 0, 1, 1, 1]] * 2


def test_tape_stays_connected() -> None:
    x = random(2, 4, 6)
    with record() as tape:
        total(merge_heads(split_heads(x, 3))).backward()
    made = [node.outputs[0] for node in tape.nodes]
    used = [node.inputs[0] for node in tape.nodes]
    assert used[1:] == made[:-1]
    assert all(value.gradient is not None for value in tape.values.values())


def test_refusals() -> None:
    with pytest.raises(OperandError, match="D = 6 does not divide into N = 4 heads"):
        split_heads(torch.ones(2, 6), 4)
    with pytest.raises(OperandError, match="sum to 5, x has D = 6"):
        cut(torch.ones(2, 6), (2, 3))
    with pytest.raises(OperandError, match="all dimensions but the last"):
        concat(torch.ones(2, 1), torch.ones(3, 1))
    with pytest.raises(OperandError, match="G = 0"):
        repeat_heads(torch.ones(2, 3, 4), 0)
