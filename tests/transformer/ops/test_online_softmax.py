"""Online softmax: merging states in any order equals the two-pass softmax; gradients; empty and masked blocks."""

from __future__ import annotations

import math
import random
from functools import reduce

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from headcount.errors import OperandError, UsageError
from headcount.transformer.ops.online_softmax import (
    ONLINE_SOFTMAX,
    State,
    empty,
    finish,
    merge,
    online_softmax,
    stream,
    summarize,
)
from headcount.transformer.ops.operation import differentiate

# One unit of float64's last place: the distance the streamed result may have from the two-pass one, relative.
UNIT = 2.3e-16


def operands(rows: int, keys: int, width: int, seed: int, spread: float = 3.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(rows, keys, dtype=torch.float64, generator=generator) * spread
    # Positive values: a relative error would mean nothing where values cancel.
    values = torch.rand(keys, width, dtype=torch.float64, generator=generator) + 0.5
    return scores, values


def far(ours: Tensor, truth: Tensor) -> float:
    return ((ours - truth).abs() / truth.abs()).max().item()


@given(keys=st.integers(1, 40), block=st.integers(1, 41), seed=st.integers(0, 2**31))
def test_stream_equals_the_two_pass_softmax(keys: int, block: int, seed: int) -> None:
    scores, values = operands(3, keys, 2, seed)
    truth = torch.softmax(scores, -1) @ values
    # Each merge rounds once or twice; a handful of units, never more with the number of keys.
    assert far(online_softmax(scores, values, block=block), truth) <= 8 * UNIT
    state = stream(scores, values, block=block)
    lse = torch.logsumexp(scores, -1, keepdim=True)
    torch.testing.assert_close(state.m + state.l.log(), lse, rtol=1e-15, atol=1e-15)


def test_worked_row_is_equal_to_the_last_place() -> None:
    """Two heads' worked scores, streamed one key at a time, against the closed form."""
    scores = torch.tensor([[4.0, 5.0], [7.0, 10.0]], dtype=torch.float64) / math.sqrt(2)
    values = torch.tensor([[2.0, 2.0], [1.0, 2.0]], dtype=torch.float64)
    truth = torch.tensor([[1.3302384506733431, 2.0], [1.1070418014651706, 2.0]], dtype=torch.float64)
    assert far(online_softmax(scores, values, block=1), truth) <= UNIT


@given(pieces=st.lists(st.integers(1, 5), min_size=1, max_size=6), seed=st.integers(0, 2**31))
def test_any_order_and_any_tree_of_merges(pieces: list[int], seed: int) -> None:
    scores, values = operands(2, sum(pieces), 3, seed, spread=20.0)
    truth = torch.softmax(scores, -1) @ values
    states = [summarize(s, v) for s, v in zip(scores.split(pieces, -1), values.split(pieces, 0), strict=True)]
    random.Random(seed).shuffle(states)
    while len(states) > 1:
        states[:2] = [merge(states[1], states[0])] if len(states) % 2 else [merge(states[0], states[1])]
        states.append(states.pop(0))
    assert far(finish(states[0]), truth) <= 16 * UNIT


@given(seed=st.integers(0, 2**31))
def test_merge_is_associative_and_the_empty_state_is_neutral(seed: int) -> None:
    scores, values = operands(2, 9, 3, seed)
    a, b, c = (summarize(scores[:, i : i + 3], values[i : i + 3]) for i in (0, 3, 6))
    for left, right in zip(merge(merge(a, b), c), merge(a, merge(b, c)), strict=True):
        torch.testing.assert_close(left, right, rtol=4 * UNIT, atol=0)
    for both in (merge(a, empty(scores, values)), merge(empty(scores, values), a)):
        for left, right in zip(both, a, strict=True):
            assert torch.equal(left, right)


def test_no_overflow_where_the_maximum_grows() -> None:
    scores = torch.tensor([[-800.0, 0.0, 800.0]])
    assert finish(
        reduce(merge, [summarize(scores[:, i : i + 1], torch.eye(3)[i : i + 1]) for i in range(3)])
    ).tolist() == [[0, 0, 1]]


@given(
    lead=st.lists(st.integers(1, 2), max_size=2),
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 3)),
    block=st.integers(1, 6),
    mode=st.sampled_from(["by_hand", "autograd"]),
)
def test_gradient(lead: list[int], sizes: tuple[int, int, int], block: int, mode: str) -> None:
    rows, keys, width = sizes
    scores = torch.randn(*lead, rows, keys, dtype=torch.float64, requires_grad=True)
    values = torch.randn(*lead, keys, width, dtype=torch.float64, requires_grad=True)
    d_out = torch.randn(*lead, rows, width, dtype=torch.float64)
    with differentiate(mode):
        assert gradcheck(lambda s, v: online_softmax(s, v, block=block), (scores, values))
        mine = torch.autograd.grad(online_softmax(scores, values, block=block), (scores, values), d_out)
    theirs = torch.autograd.grad(torch.softmax(scores, -1) @ values, (scores, values), d_out)
    for ours, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(ours, other, rtol=0, atol=1e-13)


@pytest.mark.parametrize("mode", ["by_hand", "autograd"])
@pytest.mark.parametrize("block", [1, 2, 4])
def test_masked_blocks_and_masked_rows(mode: str, block: int) -> None:
    scores = torch.tensor(
        [[-torch.inf] * 4, [-torch.inf, -torch.inf, 0.0, 1.0], [1.0, 0.0, -torch.inf, -torch.inf]],
        requires_grad=True,
    )
    values = torch.arange(4.0)[:, None].requires_grad_()
    with differentiate(mode):
        out = online_softmax(scores, values, block=block)
        out.sum().backward()
    share = 1 / (1 + math.exp(-1))
    assert out.flatten().tolist() == pytest.approx([0, 2 * (1 - share) + 3 * share, 1 - share])
    assert scores.grad is not None and scores.grad[0].tolist() == [0] * 4
    assert scores.grad.isfinite().all()
    assert values.grad is not None and values.grad.flatten().tolist() == pytest.approx(
        [share, 1 - share, 1 - share, share]
    )


def test_no_keys_at_all() -> None:
    out = online_softmax(torch.ones(3, 0), torch.ones(0, 2))
    assert out.tolist() == [[0, 0]] * 3


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_and_inf_are_not_hidden(bad: float) -> None:
    out = online_softmax(torch.tensor([[bad, 0.0, 1.0], [0.0, 0.0, 0.0]]), torch.ones(3, 1), block=1)
    assert out[0].isnan().all() and out[1].item() == 1


def test_refusals() -> None:
    with pytest.raises(UsageError, match="block = 0"):
        online_softmax(torch.ones(2, 3), torch.ones(3, 1), block=0)
    with pytest.raises(OperandError, match="differ in leading dimensions"):
        ONLINE_SOFTMAX(torch.ones(5, 2, 3), torch.ones(3, 1), block=2)
    assert isinstance(stream(torch.ones(2, 3), torch.ones(3, 1), block=2), State)
