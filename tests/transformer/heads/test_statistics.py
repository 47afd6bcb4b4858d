"""Numbers of heads whose attention is written down, so that every number is known."""

from __future__ import annotations

import math

import pytest
import torch
from random_decoders import VOCABULARY, random_decoder, random_ids

from headcount.transformer.heads.roles import (
    Holder,
    Induction,
    find_induction,
    find_rare,
    find_roles,
    token_counts,
    twice,
)
from headcount.transformer.heads.statistics import head_statistics, layer_statistics

T = 20
QUERIES = range(2, T)


def written() -> torch.Tensor:
    """Heads: previous token, own token, first token, all alike, two back, a quarter first and the rest own."""
    a = torch.zeros(1, 6, T, T)
    for t in range(T):
        a[0, 0, t, max(t - 1, 0)] = 1
        a[0, 1, t, t] = 1
        a[0, 2, t, 0] = 1
        a[0, 3, t, : t + 1] = 1 / (t + 1)
        a[0, 4, t, max(t - 2, 0)] = 1
        a[0, 5, t, 0] += 0.25
        a[0, 5, t, t] += 0.75
    return a


def test_written_heads() -> None:
    previous, own, first, alike, two_back, split = layer_statistics(7, written())
    assert [s.layer for s in (previous, alike)] == [7, 7]
    assert (previous.head, split.head) == (0, 5)
    assert (previous.offset, previous.offset_share, previous.previous_mass) == (-1, 1.0, 1.0)
    assert (own.offset, own.offset_share, own.self_mass, own.distance_tokens) == (0, 1.0, 1.0, 0.0)
    assert (first.sink_mass, first.confidence, first.confidence_no_sink) == (1.0, 1.0, 0.0)
    assert two_back.offset == -2
    # Query 2 looks at the first token, which is left out: 17 of 18.
    assert two_back.offset_share == pytest.approx(17 / 18)
    mean = sum(QUERIES) / len(QUERIES)
    assert first.distance_tokens == pytest.approx(mean)
    assert alike.distance_tokens == pytest.approx(mean / 2)
    assert alike.entropy_nats == pytest.approx(sum(math.log(t + 1) for t in QUERIES) / len(QUERIES), rel=1e-6)
    assert alike.confidence == pytest.approx(sum(1 / (t + 1) for t in QUERIES) / len(QUERIES), rel=1e-6)
    assert split.entropy_nats == pytest.approx(math.log(4) - 0.75 * math.log(3), rel=1e-6)
    assert (split.sink_mass, split.self_mass, split.confidence_no_sink) == (0.25, 0.75, 0.75)


def test_roles_of_written_heads() -> None:
    statistics = layer_statistics(0, written())
    scores = [Holder(layer=0, head=h, score=s) for h, s in enumerate((0.1, 0.9, 0.0, 0.4, 0.2, 0.1))]
    induction = Induction(scores=tuple(scores), tokens=8, first_copy_nats=1.0, second_copy_nats=1.0)
    nothing = [Holder(layer=0, head=h, score=h / 20) for h in range(6)]
    roles = {role.name: role for role in find_roles(statistics, induction, nothing)}
    found = {name: [holder.head for holder in role.holders] for name, role in roles.items()}
    # The split head has its largest weight on itself.
    assert found == {
        "previous": [0],
        "positional": [4],
        "self": [1, 5],
        "sink": [2],
        "induction": [1, 3],
        "rare": [],
    }
    assert roles["rare"].best.head == 5


def test_repeated_tokens() -> None:
    ids = twice(50, tokens=9, seed=3, lead=[7])[0].tolist()
    assert ids[0] == 7
    assert ids[1:10] == ids[10:]
    network, spec = random_decoder()
    found = find_induction(network, spec.vocab_size, tokens=12)
    # An untrained network has nothing to copy with.
    assert len(found.scores) == 18
    assert max(holder.score for holder in found.scores) < 0.3
    assert abs(found.first_copy_nats - found.second_copy_nats) < 2


def test_rare_tokens_by_counting() -> None:
    """The two rarest tokens in view of each query, found by sorting in plain Python."""
    network, _ = random_decoder()
    ids = random_ids(3, 16)
    ids[:, 3] = ids[:, 9]
    counts = token_counts(torch.cat((ids.flatten(), random_ids(1, 200, 2).flatten())), VOCABULARY)
    scores = find_rare(network, ids, counts)
    maps: list[torch.Tensor] = []
    from headcount.transformer.heads.maps import watch

    watch(network, ids, lambda layer, a: maps.append(a.clone()))
    for holder in scores:
        hits = total = 0
        for b in range(3):
            for t in range(3, 16):
                row = maps[holder.layer][b, holder.head, t, 1 : t + 1].tolist()
                top = 1 + row.index(max(row))
                in_view = sorted(ids[b, 1 : t + 1].tolist(), key=lambda v: (int(counts[v]), -v))
                hits += int(ids[b, top]) in in_view[:2]
                total += 1
        assert holder.score == pytest.approx(hits / total, abs=1e-6)


def test_batches_are_means() -> None:
    network, _ = random_decoder()
    ids = random_ids(2, 24)
    both = head_statistics(network, ids)
    one, two = head_statistics(network, ids[:1]), head_statistics(network, ids[1:])
    for whole, a, b in zip(both, one, two, strict=True):
        assert whole.entropy_nats == pytest.approx((a.entropy_nats + b.entropy_nats) / 2, abs=1e-5)
        assert whole.sink_mass == pytest.approx((a.sink_mass + b.sink_mass) / 2, abs=1e-6)
