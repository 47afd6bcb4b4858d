"""Embedding against torch.nn.functional.embedding; ids that repeat; a table shared with the output projection."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from headcount.errors import OperandError
from headcount.transformer.ops.embedding import EMBEDDING, embedding
from headcount.transformer.ops.linear import linear
from headcount.transformer.ops.operation import differentiate


@given(
    shape=st.lists(st.integers(0, 4), max_size=2),
    rows=st.integers(1, 5),
    width=st.integers(1, 3),
    mode=st.sampled_from(["by_hand", "autograd"]),
    dtype=st.sampled_from([torch.int64, torch.int32]),
)
def test_values_and_gradient(shape: list[int], rows: int, width: int, mode: str, dtype: torch.dtype) -> None:
    ids = torch.randint(rows, shape, dtype=dtype)
    weight = torch.randn(rows, width, dtype=torch.float64, requires_grad=True)
    assert torch.equal(embedding(ids, weight), torch.nn.functional.embedding(ids, weight))
    with differentiate(mode):
        assert gradcheck(lambda w: embedding(ids, w), (weight,))


def test_every_reading_of_a_row_adds_to_its_gradient() -> None:
    weight = torch.zeros(4, 2, requires_grad=True)
    (embedding(torch.tensor([1, 3, 1]), weight) * torch.tensor([[1.0], [10.0], [100.0]])).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [[0, 0], [101, 101], [0, 0], [10, 10]]


def test_tied_table_gets_both_gradients() -> None:
    ids = torch.tensor([[0, 2, 2]])
    ours = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    theirs = ours.detach().clone().requires_grad_()
    linear(embedding(ids, ours), ours).square().sum().backward()
    hidden = torch.nn.functional.embedding(ids, theirs)
    torch.nn.functional.linear(hidden, theirs).square().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize("bad", [-1, 4])
def test_id_outside_the_table(bad: int) -> None:
    with pytest.raises(OperandError, match=f"id {bad} is outside the table of V = 4 rows"):
        embedding(torch.tensor([0, bad]), torch.ones(4, 2))


def test_float_ids() -> None:
    with pytest.raises(OperandError, match="input 1 is float32; it must be whole numbers"):
        EMBEDDING(torch.tensor([0.0]), torch.ones(4, 2))
