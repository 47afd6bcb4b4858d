"""The rules that choose a token: kept sets and probabilities against the reference's, draws against their probabilities."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headcount.errors import OperandError, UsageError
from headcount.transformer.generation.sampling import Sampling, choose, distribution, penalize

SAMPLINGS = st.builds(
    Sampling,
    temperature=st.floats(0.2, 3.0),
    top_k=st.integers(0, 60),
    top_p=st.one_of(st.just(1.0), st.floats(0.05, 0.999)),
    min_p=st.one_of(st.just(0.0), st.floats(0.001, 0.9)),
    repetition_penalty=st.one_of(st.just(1.0), st.floats(0.5, 2.0)),
)


def logits(seed: int, spread: float = 3.0, count: int = 50) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed)) * spread


@pytest.mark.reference
@settings(max_examples=300)
@given(sampling=SAMPLINGS, seed=st.integers(0, 10**6), history=st.lists(st.integers(0, 49), max_size=12))
def test_kept_sets_and_probabilities_are_the_references(
    sampling: Sampling, seed: int, history: list[int]
) -> None:
    from transformers import (
        LogitsProcessorList,
        MinPLogitsWarper,
        RepetitionPenaltyLogitsProcessor,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    rules: list[Any] = [TemperatureLogitsWarper(sampling.temperature)]
    if sampling.repetition_penalty != 1:
        rules.insert(0, RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    if sampling.top_k:
        rules.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        rules.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        rules.append(MinPLogitsWarper(sampling.min_p))
    z_V = logits(seed)
    # The reference's penalty gathers from the history: it needs one.
    seen = torch.tensor([history or [0]])
    if not history and sampling.repetition_penalty != 1:
        rules.pop(0)
    theirs = LogitsProcessorList(rules)(seen, z_V[None].clone())[0].softmax(-1)
    ours = distribution(z_V, sampling, history)
    assert torch.equal(ours > 0, theirs > 0)
    assert (ours - theirs).abs().max() <= 1e-6


def test_penalty_by_hand() -> None:
    z_V = torch.tensor([2.0, -2.0, 4.0, 0.5])
    assert penalize(z_V, [0, 1, 1], 2.0).tolist() == [1.0, -4.0, 4.0, 0.5]
    assert penalize(z_V, [], 2.0) is z_V


def test_filters_by_hand() -> None:
    """Probabilities 1/2, 1/4, 1/8, 1/8."""
    z_V = torch.tensor([3.0, 2.0, 1.0, 1.0]) * math.log(2)

    def kept(**rules: Any) -> list[int]:
        p_V = distribution(z_V, Sampling(temperature=1.0, **rules), [])
        return torch.nonzero(p_V).flatten().tolist()

    assert kept(top_k=2) == [0, 1] and kept(top_k=9) == [0, 1, 2, 3]
    # The token that crosses p stays.
    assert kept(top_p=0.5) == [0] and kept(top_p=0.51) == [0, 1] and kept(top_p=0.01) == [0]
    assert kept(min_p=0.4) == [0, 1] and kept(min_p=1.0) == [0]


def test_greedy_takes_the_lowest_id_of_the_largest() -> None:
    draw = Sampling().generator()
    assert choose(torch.tensor([1.0, 5.0, 5.0]), Sampling(), [], draw) == 1
    assert choose(torch.tensor([1.0, 5.0, 4.9]), Sampling(repetition_penalty=1.5), [1], draw) == 2


@pytest.mark.parametrize("temperature", [1e-5, 1e-30, 1e-40, 5e-324])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    sampling = Sampling(temperature=temperature, seed=1)
    assert choose(logits(3, spread=100.0), sampling, [], sampling.generator()) == int(logits(3).argmax())


def test_draws_follow_the_probabilities() -> None:
    """Pearson's chi-squared of 20,000 draws over 10 tokens: below 27.88, the 0.999 quantile at 9 degrees of freedom."""
    sampling = Sampling(temperature=0.8, seed=5)
    z_V, draw = logits(4, spread=1.0, count=10), sampling.generator()
    counts = torch.bincount(
        torch.tensor([choose(z_V, sampling, [], draw) for _ in range(20_000)]), minlength=10
    )
    expected = 20_000 * (z_V.double() / 0.8).softmax(-1)
    assert float(((counts - expected) ** 2 / expected).sum()) < 27.88


def test_seeds() -> None:
    def draws(seed: int | None, number: int = 0) -> list[int]:
        sampling = Sampling(temperature=2.0, seed=seed)
        draw = sampling.generator(number)
        return [choose(logits(1), sampling, [], draw) for _ in range(24)]

    assert draws(3) == draws(3) and draws(3, 1) == draws(3, 1)
    assert draws(3) != draws(3, 1) and draws(3) != draws(4) and draws(None) != draws(None)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, top_k=3)])
def test_logits_that_are_no_numbers(sampling: Sampling, bad: float) -> None:
    z_V = logits(0)
    z_V[7] = bad
    with pytest.raises(OperandError, match="not numbers"):
        choose(z_V, sampling, [], sampling.generator())
    with pytest.raises(OperandError, match="not numbers"):
        choose(torch.full((5,), -math.inf), sampling, [], sampling.generator())


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"temperature": -1.0}, "temperature must lie between 0 and 100; given -1.0"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0.0}, "top_p 0 keeps no token"),
        ({"top_p": 1.5}, "top_p must lie"),
        ({"min_p": -0.1}, "min_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"top_k": -1}, "top_k must be a whole number"),
        ({"top_k": True}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
    ],
)
def test_bad_rules(rules: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Sampling(**rules)
