"""Which heads do something that has a name. Every role is a published definition and a threshold; one may have no head.

    previous   the largest weight lies on the token before, for 90 % of the queries       (Voita et al. 2019, 5.1)
    positional the same for one other relative position than -1 and 0                      (Voita et al. 2019, 5.1)
    self       the same for the query's own token                                          (Voita et al. 2019, 5.1)
    sink       more than half of the weight on the first token                             (Xiao et al. 2024)
    induction  on random tokens said twice, the weight on the token after the previous occurrence of the query's token,
               averaged over the second copy, is above 0.3                                 (Olsson et al. 2022, 4)
    rare       the largest weight lies on one of the two rarest tokens in view, for more than half of the queries
                                                                                           (Voita et al. 2019, 5.3)

Maxima leave the first token out (``statistics.py``). Olsson et al. print no threshold: 0.3 is chosen here. A token is rarer the
less often it occurs in the text, and among equals the later its id: byte-pair merges are numbered by falling frequency.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from headcount.errors import UsageError
from headcount.record import Record
from headcount.transformer.heads.maps import watch, watched
from headcount.transformer.heads.sites import check_ids
from headcount.transformer.heads.statistics import FIRST_QUERY, HeadStatistics

POSITIONAL_SHARE = 0.9
SINK_MASS = 0.5
INDUCTION_MASS = 0.3
RARE_SHARE = 0.5
VOITA = "Voita et al. 2019"


class Holder(Record):
    """A head that has a role, and the number that says so."""

    layer: int
    head: int
    score: float


class Role(Record):
    """A role, the heads that have it (largest score first), and the head that comes nearest when none has."""

    name: str
    definition: str
    source: str
    threshold: float
    holders: tuple[Holder, ...]
    best: Holder


class Induction(Record):
    """Random tokens said twice: per head the weight on what followed before, and the loss of both copies in nats a token."""

    scores: tuple[Holder, ...]
    tokens: int
    first_copy_nats: float
    second_copy_nats: float


def find_roles(
    statistics: Sequence[HeadStatistics], induction: Induction, rare: Sequence[Holder]
) -> tuple[Role, ...]:
    """The six roles, from numbers that were measured before."""

    def at(*offsets: int, others: bool = False) -> list[Holder]:
        """Each head's share of maxima on its commonest offset, if that is one of these (or none of them)."""
        return [
            Holder(
                layer=s.layer, head=s.head, score=s.offset_share if (s.offset in offsets) != others else 0.0
            )
            for s in statistics
        ]

    sink = [Holder(layer=s.layer, head=s.head, score=s.sink_mass) for s in statistics]
    return (
        _role(
            "previous", "largest weight on the token before, 90 % of queries", VOITA, POSITIONAL_SHARE, at(-1)
        ),
        _role(
            "positional",
            "the same for another relative position",
            VOITA,
            POSITIONAL_SHARE,
            at(-1, 0, others=True),
        ),
        _role("self", "the same for the token itself", VOITA, POSITIONAL_SHARE, at(0)),
        _role("sink", "more than half of its weight on the first token", "Xiao et al. 2024", SINK_MASS, sink),
        _role(
            "induction",
            "on tokens said twice, looks at what followed the first time",
            "Olsson et al. 2022",
            INDUCTION_MASS,
            induction.scores,
        ),
        _role(
            "rare", "largest weight on one of the two rarest tokens, half of queries", VOITA, RARE_SHARE, rare
        ),
    )


def _role(name: str, definition: str, source: str, threshold: float, scores: Sequence[Holder]) -> Role:
    ranked = sorted(scores, key=lambda holder: -holder.score)
    holders = tuple(holder for holder in ranked if holder.score >= threshold)
    return Role(
        name=name, definition=definition, source=source, threshold=threshold, holders=holders, best=ranked[0]
    )


def twice(vocabulary: int, *, tokens: int, seed: int, lead: Sequence[int] = ()) -> Int[Tensor, "1 S"]:
    """``lead``, then ``tokens`` ids drawn evenly from the vocabulary, then the same again."""
    if tokens < 2 or vocabulary < 2:
        raise UsageError(
            f"induction: needs 2 tokens or more of a vocabulary of 2 or more; given {tokens}, {vocabulary}"
        )
    once = torch.randint(0, vocabulary, (tokens,), generator=torch.Generator().manual_seed(seed))
    return torch.cat((torch.tensor(list(lead), dtype=torch.long), once, once))[None]


@torch.no_grad()
def find_induction(
    network: Any, vocabulary: int, *, tokens: int = 96, seed: int = 0, lead: Sequence[int] = ()
) -> Induction:
    """Run the repeated random tokens; ``lead`` holds what a sequence of this model begins with (BOS)."""
    ids_BT = twice(vocabulary, tokens=tokens, seed=seed, lead=lead)
    scores: list[Holder] = []
    # Query p + n + i of the second copy, key p + i + 1: what followed the same token before.
    queries = torch.arange(len(lead) + tokens, len(lead) + 2 * tokens)

    def see(layer: int, a_BNTT: Tensor) -> None:
        mass_N = a_BNTT[0][:, queries, queries - tokens + 1].double().mean(-1)
        scores.extend(
            Holder(layer=layer, head=head, score=score) for head, score in enumerate(mass_N.tolist())
        )

    device = next(network.parameters()).device
    with watched(network, see):
        logits_BTV = network(ids_BT.to(device))
    nats_T = cross_entropy(logits_BTV[0, :-1].float(), ids_BT[0, 1:].to(device), reduction="none")
    split = len(lead) + tokens
    first, second = nats_T[max(len(lead) - 1, 0) : split - 1], nats_T[split:]
    return Induction(
        scores=tuple(scores),
        tokens=tokens,
        first_copy_nats=float(first.mean()),
        second_copy_nats=float(second.mean()),
    )


def find_rare(network: Any, ids_BT: Int[Tensor, "B T"], counts_V: Int[Tensor, " V"]) -> list[Holder]:
    """Per head, how often the largest weight lies on one of the two rarest tokens in view; ``counts_V`` of the whole text.

    Sequences should be about a sentence long: that is what Voita et al. look within.
    """
    check_ids(ids_BT, least=FIRST_QUERY + 2)
    rarest_BTS = _two_rarest(ids_BT, counts_V)
    found: list[Holder] = []

    def see(layer: int, a_BNTT: Tensor) -> None:
        top_BNQ1 = a_BNTT[:, :, FIRST_QUERY + 1 :, 1:].argmax(-1, keepdim=True) + 1
        rare_BNQS = rarest_BTS[:, None, FIRST_QUERY + 1 :].expand(-1, a_BNTT.shape[1], -1, -1)
        share_N = rare_BNQS.gather(-1, top_BNQ1).float().mean((0, 2, 3))
        found.extend(
            Holder(layer=layer, head=head, score=share) for head, share in enumerate(share_N.tolist())
        )

    watch(network, ids_BT, see)
    return found


def _two_rarest(ids_BT: Tensor, counts_V: Tensor) -> Tensor:
    """``(B, T, S)``: True where key s is one of the two rarest of keys 1 ... t."""
    # Frequent first, then small ids: the rank grows with rarity, without ties between different tokens.
    rarity_BT = -counts_V[ids_BT].long() * (int(ids_BT.max()) + 1) + ids_BT
    T = ids_BT.shape[1]
    seen_TS = torch.ones(T, T, dtype=torch.bool, device=ids_BT.device).tril()
    seen_TS[:, 0] = False
    ranked_BTS = torch.where(seen_TS, rarity_BT[:, None, :], torch.iinfo(torch.long).min)
    second_BT = ranked_BTS.topk(min(2, T), dim=-1).values[..., -1:]
    return (ranked_BTS >= second_BT) & seen_TS


def token_counts(ids: Tensor, vocabulary: int) -> Int[Tensor, " V"]:
    """How often every token occurs."""
    return torch.bincount(ids.flatten(), minlength=vocabulary)
