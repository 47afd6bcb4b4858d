"""Layers against their torch.nn counterparts, and what their constructors refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headcount.errors import UnknownNameError, UsageError
from headcount.transformer import layers


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


PAIRS: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module]]] = {
    "linear": (lambda: layers.Linear(6, 10), lambda: nn.Linear(6, 10)),
    "linear without bias": (lambda: layers.Linear(6, 10, bias=False), lambda: nn.Linear(6, 10, bias=False)),
    "layer norm": (lambda: layers.LayerNorm(6), lambda: nn.LayerNorm(6)),
    "RMS norm": (lambda: layers.RMSNorm(6), lambda: nn.RMSNorm(6, eps=1e-6)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_same_parameters_values_and_gradients_as_torch_nn(name: str) -> None:
    ours, theirs = (make().double() for make in PAIRS[name])
    for parameter in ours.parameters():
        parameter.data.normal_()
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(3, 5, 6, dtype=torch.float64)
    found = ours(x)
    torch.testing.assert_close(found, theirs(x), rtol=0, atol=1e-12)
    weight = torch.randn_like(found)
    (found * weight).sum().backward()
    (theirs(x) * weight).sum().backward()
    for (key, own), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad, rtol=0, atol=1e-12, msg=key)


def test_tied_embedding_adds_both_gradients() -> None:
    table = layers.Embedding(7, 4).double()
    stock = nn.Embedding(7, 4, dtype=torch.float64)
    stock.load_state_dict(table.state_dict())
    ids = torch.tensor([[0, 3, 3, 6]])
    weight = torch.randn(1, 4, 7, dtype=torch.float64)
    (table.logits(table(ids)) * weight).sum().backward()
    (nn.functional.linear(stock(ids), stock.weight) * weight).sum().backward()
    torch.testing.assert_close(table.weight.grad, stock.weight.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "stock"),
    [
        ("relu", nn.functional.relu),
        ("gelu", nn.functional.gelu),
        ("gelu_tanh", lambda x: nn.functional.gelu(x, approximate="tanh")),
        ("silu", nn.functional.silu),
    ],
)
def test_plain_feed_forward(name: str, stock: Callable[[Tensor], Tensor]) -> None:
    ours = layers.make_feed_forward(name, 4, 16).double()
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    wanted = stock(x @ ours.up.weight.T + ours.up.bias) @ ours.down.weight.T + ours.down.bias
    torch.testing.assert_close(ours(x), wanted, rtol=0, atol=1e-12)
    assert sum(parameter.numel() for parameter in ours.parameters()) == 2 * 4 * 16 + 16 + 4


@pytest.mark.parametrize(
    ("name", "stock"),
    [
        ("swiglu", nn.functional.silu),
        ("geglu", nn.functional.gelu),
        ("geglu_tanh", lambda x: nn.functional.gelu(x, approximate="tanh")),
        ("reglu", nn.functional.relu),
        ("glu", torch.sigmoid),
    ],
)
def test_gated_feed_forward(name: str, stock: Callable[[Tensor], Tensor]) -> None:
    ours = layers.make_feed_forward(name, 4, 16, bias=False).double()
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    wanted = (stock(x @ ours.gate.weight.T) * (x @ ours.up.weight.T)) @ ours.down.weight.T
    torch.testing.assert_close(ours(x), wanted, rtol=0, atol=1e-12)
    assert sum(parameter.numel() for parameter in ours.parameters()) == 3 * 4 * 16


def test_dropout_only_while_training() -> None:
    dropout = layers.Dropout(0.25)
    x = torch.ones(10_000)
    dropped = dropout(x)
    assert sorted(set(dropped.tolist())) == [0.0, pytest.approx(4 / 3)]
    assert float((dropped == 0).float().mean()) == pytest.approx(0.25, abs=0.02)
    assert dropout.eval()(x) is x


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: layers.Linear(0, 3), "linear: inputs must be a whole number of 1 or more; given 0"),
        (lambda: layers.Embedding(5, -1), "embedding: width must be a whole number of 1 or more; given -1"),
        (lambda: layers.Dropout(1.0), "dropout must be 0 or more and below 1; given 1.0"),
        (lambda: layers.Dropout(-0.1), "dropout must be 0 or more and below 1; given -0.1"),
        (lambda: layers.Dropout(float("nan")), "given nan"),
        (lambda: layers.make_norm("layernorm", 4), "unknown norm 'layernorm'; nearest: layer_norm"),
        (lambda: layers.make_feed_forward("swiglue", 4, 8), "nearest: swiglu"),
        (lambda: layers.FeedForward(4, 8, activation="tanh"), "unknown activation 'tanh'"),
    ],
)
def test_refusals(make: Callable[[], Any], words: str, plain_signatures: None) -> None:
    with pytest.raises((UsageError, UnknownNameError)) as caught:
        make()
    assert words in str(caught.value) and "\n" not in str(caught.value)
