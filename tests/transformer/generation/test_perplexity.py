"""Perplexity through the cache against the loss of the whole text at once."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from served_models import FAMILIES, served, words
from torch.nn.functional import cross_entropy

from headcount.errors import OperandError, UnknownNameError, UsageError
from headcount.transformer.generation.perplexity import perplexity


@torch.no_grad()
def at_once(family: str, ids: list[int], window: int) -> float:
    losses = []
    for start in range(0, len(ids), window):
        part = torch.tensor(ids[start : start + window])
        if len(part) > 1:
            z_TV = served(family).network(part[None])[0, :-1].double()
            losses.append(cross_entropy(z_TV, part[1:], reduction="none"))
    return math.exp(float(torch.cat(losses).mean()))


@pytest.mark.parametrize(("window", "chunk"), [(None, 1), (None, 7), (None, 500), (20, 6), (27, 32)])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_whole_text_at_once(family: str, window: int | None, chunk: int) -> None:
    """55 tokens: windows of 27 leave one token alone, which nothing predicts."""
    model, ids = served(family), words(55, 3)
    found = perplexity(model.network, model.spec, ids, window=window, chunk=chunk)
    assert found == pytest.approx(at_once(family, ids, window or 55), rel=1e-5)


@pytest.mark.parametrize("kv", ["int8_per_token_head", "fp8", "bf16"])
def test_the_chunk_changes_nothing_for_stored_rows(kv: str) -> None:
    model, ids = served("llama"), words(40, 3)
    found = [perplexity(model.network, model.spec, ids, kv=kv, chunk=chunk) for chunk in (1, 8, 64)]
    # A number at the edge between two codes may fall on either side.
    assert found == pytest.approx([found[0]] * 3, rel=2e-4)
    assert found[0] != pytest.approx(perplexity(model.network, model.spec, ids), rel=1e-6)


@pytest.mark.parametrize(
    ("options", "words_"),
    [
        ({"ids": [5]}, "2 tokens"),
        ({"window": 1}, "window of 2"),
        ({"chunk": 0}, "chunk of 1"),
        ({"ids": [5] * 200}, "200 tokens is more than the model's 128 positions"),
    ],
)
def test_refusals(options: dict[str, Any], words_: str) -> None:
    model = served("llama")
    with pytest.raises(UsageError, match=words_):
        perplexity(model.network, model.spec, **{"ids": [5, 6, 7], **options})


def test_an_unknown_format_and_damaged_weights() -> None:
    import copy

    model = served("llama")
    with pytest.raises(UnknownNameError):
        perplexity(model.network, model.spec, [5, 6], kv="fp9")
    network = copy.deepcopy(model.network)
    with torch.no_grad():
        network.norm.weight[0] = torch.nan
    with pytest.raises(OperandError, match="not numbers"):
        perplexity(network, model.spec, [5, 6])
