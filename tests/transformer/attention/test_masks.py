"""Masks against their definition written out pair by pair, and coverage against the pairs themselves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headcount.errors import OperandError, UnknownNameError, UsageError
from headcount.transformer.attention.masks import (
    ALL,
    NONE,
    Causal,
    Everything,
    Mask,
    Packed,
    Padding,
    mask,
)

KEYS = 12
SEGMENTS = [0, 0, 0, 1, 2, 2, 2, 2, 2, 3, 3, 3]
# Definitions as sentences over one query q and one key k.
RULES: dict[str, tuple[Mask, Callable[[int, int], bool]]] = {
    "everything": (Everything(), lambda q, k: True),
    "causal": (Causal(), lambda q, k: k <= q),
    "window": (mask("sliding_window", window=3), lambda q, k: q - 3 < k <= q),
    "window of 1": (mask("sliding_window", window=1), lambda q, k: k == q),
    "chunked": (mask("chunked", chunk=5), lambda q, k: k <= q and k // 5 == q // 5),
    "prefix": (mask("prefix", length=4), lambda q, k: k <= q or k < 4),
    "padding": (Padding.of_lengths(torch.tensor([7]), KEYS), lambda q, k: k < 7),
    "packed": (Packed.of_lengths([3, 1, 5, 3]), lambda q, k: SEGMENTS[q] == SEGMENTS[k]),
    "both": (
        Causal() & Packed.of_lengths([3, 1, 5, 3]),
        lambda q, k: k <= q and SEGMENTS[q] == SEGMENTS[k],
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_pairs(name: str) -> None:
    kind, rule = RULES[name]
    found = kind.allowed(torch.arange(KEYS), torch.arange(KEYS))[0]
    assert found.tolist() == [[rule(q, k) for k in range(KEYS)] for q in range(KEYS)]


@pytest.mark.parametrize("name", RULES)
@given(data=st.data())
def test_coverage_never_lies(name: str, data: st.DataObject) -> None:
    """``all`` and ``none`` must be true of every pair; ``some`` is always safe."""
    kind, rule = RULES[name]
    q0, k0 = data.draw(st.integers(0, KEYS - 1)), data.draw(st.integers(0, KEYS - 1))
    queries = range(q0, data.draw(st.integers(q0 + 1, KEYS)))
    keys = range(k0, data.draw(st.integers(k0 + 1, KEYS)))
    pairs = {rule(q, k) for q in queries for k in keys}
    found = kind.coverage(queries, keys)
    if found == ALL:
        assert pairs == {True}
    elif found == NONE:
        assert pairs == {False}
    elif name != "both":
        assert pairs == {True, False}


def test_refusals() -> None:
    with pytest.raises(UnknownNameError, match="nearest: sliding_window"):
        mask("slidingwindow")
    with pytest.raises(UsageError, match="'sliding_window' takes window; given none"):
        mask("sliding_window")
    with pytest.raises(UsageError, match="chunk must be a whole number, 1 or more; given -2"):
        mask("chunked", chunk=-2)
    with pytest.raises(UsageError, match="window must be a whole number, 1 or more; given nan"):
        mask("sliding_window", window=float("nan"))
    with pytest.raises(UsageError, match="lengths must be one or more numbers"):
        Packed.of_lengths([])
    with pytest.raises(OperandError, match="must be booleans of shape"):
        Padding(keep_BS=torch.ones(2, 3))
    with pytest.raises(OperandError, match="must be whole numbers"):
        Packed(segment_BS=torch.ones(2, 3))
