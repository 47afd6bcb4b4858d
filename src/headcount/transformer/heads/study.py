"""Everything ``headcount heads`` says of a model: roles, statistics, importance; and what pruning or regrouping would cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headcount.errors import UsageError
from headcount.record import Record
from headcount.spec.model import ModelSpec
from headcount.transformer.heads.gates import gated, without
from headcount.transformer.heads.geometry import cache_bytes_per_token
from headcount.transformer.heads.importance import importance, normalised
from headcount.transformer.heads.prune import Smaller, prune
from headcount.transformer.heads.pruning import (
    Head,
    heads_at,
    masked_perplexity,
    perplexity,
    removal_order,
)
from headcount.transformer.heads.regroup import regroup
from headcount.transformer.heads.roles import (
    Induction,
    Role,
    find_induction,
    find_rare,
    find_roles,
    token_counts,
)
from headcount.transformer.heads.sample import Sample
from headcount.transformer.heads.sites import sites
from headcount.transformer.heads.statistics import HeadStatistics, head_statistics

# Tokens of one x of the importance, and of what stands for a sentence where rare tokens are looked for.
IMPORTANCE_TOKENS = 64
SENTENCE_TOKENS = 32
RANDOM_SEEDS = (0, 1, 2)


class Study(Record):
    """What was measured. ``importances`` and ``normalised`` are ``(layer, numbers per head)``."""

    spec: ModelSpec
    text: str
    measured_tokens: int
    held_out_tokens: int
    statistics: tuple[HeadStatistics, ...]
    roles: tuple[Role, ...]
    induction: Induction
    importances: tuple[tuple[int, tuple[float, ...]], ...]
    normalised: tuple[tuple[int, tuple[float, ...]], ...]

    @property
    def heads(self) -> int:
        """All query heads."""
        return len(self.statistics)

    def as_document(self) -> dict[str, object]:
        """The JSON object, before pruning and regrouping are added."""
        spec = self.spec
        worth = {(layer, h): v for layer, values in self.importances for h, v in enumerate(values)}
        within = {(layer, h): v for layer, values in self.normalised for h, v in enumerate(values)}
        return {
            "question": "heads",
            "model": {"name": spec.name, "family": spec.family, "source": spec.source},
            "text": {
                "name": self.text,
                "measured_tokens": self.measured_tokens,
                "held_out_tokens": self.held_out_tokens,
            },
            "roles": [
                {
                    **role.as_dict(),
                    "holders": [h.as_dict() for h in role.holders],
                    "best": role.best.as_dict(),
                }
                for role in self.roles
            ],
            "induction": {
                "random_tokens": self.induction.tokens,
                "first_copy_nats": self.induction.first_copy_nats,
                "second_copy_nats": self.induction.second_copy_nats,
            },
            "heads": [
                {
                    **each.as_dict(),
                    "importance": worth[each.layer, each.head],
                    "importance_normalized": within[each.layer, each.head],
                }
                for each in self.statistics
            ],
        }


class Trial(Record):
    """Perplexity of one way of removing heads, and its ratio to the whole model's."""

    name: str
    perplexity: float
    ratio: float


class Change(Record):
    """A model with fewer heads: its perplexity beside the whole model's, its spec, and what it saves.

    trials               other orders at the same count, gated; empty for a regrouping
    perplexity           of the network that was really built
    gate_difference      largest difference of its logits from those of gates at 0, over the largest logit; None for a
                         regrouping
    """

    what: str
    spec: ModelSpec
    whole_perplexity: float
    perplexity: float
    trials: tuple[Trial, ...]
    gate_difference: float | None
    heads_removed: int
    heads: int
    groups_removed: int
    groups: int
    parameters_saved: int
    parameters: int
    cache_bytes_saved: int
    cache_bytes: int

    def as_document(self) -> dict[str, object]:
        """Numbers only; the spec is left out."""
        rest = {name: value for name, value in self.as_dict().items() if name not in ("spec", "trials")}
        return {
            **rest,
            "ratio": self.perplexity / self.whole_perplexity,
            "trials": [t.as_dict() for t in self.trials],
        }


def study(network: Any, spec: ModelSpec, sample: Sample, *, lead: Sequence[int] = ()) -> Study:
    """Measure every head on ``sample``; ``lead`` holds the ids that begin a sequence of this model."""
    measured_1T = sample.measured_T[None]
    statistics = head_statistics(network, measured_1T)
    induction = find_induction(network, spec.vocab_size, lead=lead)
    counts_V = token_counts(torch.cat((sample.measured_T, sample.held_out_T)), spec.vocab_size)
    rare = find_rare(network, sample.sequences(SENTENCE_TOKENS), counts_V)
    worth = importance(network, sample.sequences(IMPORTANCE_TOKENS))
    layers = [site.layer for site in sites(network)]
    return Study(
        spec=spec,
        text=sample.name,
        measured_tokens=len(sample.measured_T),
        held_out_tokens=len(sample.held_out_T),
        statistics=tuple(statistics),
        roles=find_roles(statistics, induction, rare),
        induction=induction,
        importances=_table(layers, worth),
        normalised=_table(layers, normalised(worth)),
    )


def study_pruning(network: Any, found: Study, sample: Sample, *, fraction: float, order: str) -> Change:
    """Gate off this share of the heads in every order, and really remove them in the one that was asked for."""
    held_1T = sample.held_out_T[None]
    worth = [torch.tensor(values) for _, values in found.importances]
    count = heads_at(fraction, found.heads)
    if count == 0:
        raise UsageError(f"a fraction of {fraction:g} of {found.heads} heads removes none")
    orders: dict[str, list[Head]] = {
        name: removal_order(network, name, importances=worth) for name in ("importance", "normalized")
    }
    orders |= {f"random, seed {seed}": removal_order(network, "random", seed=seed) for seed in RANDOM_SEEDS}
    orders["most important first"] = orders["importance"][::-1]
    whole = perplexity(network, held_1T)
    trials = []
    for name, heads in orders.items():
        value = masked_perplexity(network, held_1T, heads[:count])
        trials.append(Trial(name=name, perplexity=value, ratio=value / whole))
    chosen = orders["random, seed 0" if order == "random" else order][:count]
    smaller = prune(network, found.spec, chosen)
    return _change(network, found, sample, smaller, trials=tuple(trials), what=order, removed=chosen)


def study_regrouping(network: Any, found: Study, sample: Sample, kv_heads: int) -> Change:
    """Pool the key/value heads to this many a layer."""
    smaller = regroup(network, found.spec, kv_heads)
    what = f"{kv_heads} key/value head" + ("s" if kv_heads > 1 else "")
    return _change(network, found, sample, smaller, trials=(), what=what, removed=())


def _change(
    network: Any,
    found: Study,
    sample: Sample,
    smaller: Smaller,
    *,
    trials: tuple[Trial, ...],
    what: str,
    removed: Sequence[Head],
) -> Change:
    held_1T = sample.held_out_T[None]
    return Change(
        what=what,
        spec=smaller.spec,
        whole_perplexity=perplexity(network, held_1T),
        perplexity=perplexity(smaller.network, held_1T),
        trials=trials,
        gate_difference=_gate_difference(network, smaller.network, held_1T, removed) if removed else None,
        heads_removed=len(removed),
        heads=found.heads,
        groups_removed=smaller.groups_removed,
        groups=sum(site.attention.shape.K for site in sites(network)),
        parameters_saved=smaller.parameters_saved,
        parameters=found.spec.parameters,
        cache_bytes_saved=smaller.cache_bytes_saved,
        cache_bytes=cache_bytes_per_token(found.spec),
    )


@torch.no_grad()
def _gate_difference(network: Any, smaller: Any, ids_1T: Tensor, removed: Sequence[Head]) -> float:
    """Largest difference of logits over the largest logit, after the first tokens of the text."""
    ids_1T = ids_1T[:, :64]
    with gated(network, without(network, removed)):
        masked = network(ids_1T)
    return float((masked - smaller(ids_1T)).abs().max() / masked.abs().max())


def _table(layers: list[int], values: Sequence[Tensor]) -> tuple[tuple[int, tuple[float, ...]], ...]:
    return tuple((layer, tuple(numbers.tolist())) for layer, numbers in zip(layers, values, strict=True))
