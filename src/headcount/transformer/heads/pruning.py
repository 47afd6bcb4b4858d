"""What removing heads costs: orders of removal, perplexity of held-out text as heads go, and one head at a time.

    perplexity = exp(mean over tokens of -ln p(token | tokens before))
    cost of h  = mean loss with head h's gate at 0, less the mean loss with all open (nats a token)

Nothing is trained afterwards. Source: Michel et al. 2019, 3 and 4; with fine-tuning the order matters far less (Budhraja et al.
2020), so a curve here is about a model used as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from headcount.errors import UnknownNameError, UsageError
from headcount.record import Record
from headcount.transformer.heads.gates import gated, open_gates, without
from headcount.transformer.heads.importance import normalised
from headcount.transformer.heads.sites import check_ids, sites

# A head by its layer and its number in it.
Head = tuple[int, int]
ORDERS = ("importance", "normalized", "random")


class CurvePoint(Record):
    """Perplexity after ``removed`` heads are gated off, and its ratio to the whole model's."""

    order: str
    removed: int
    perplexity: float
    ratio: float


class HeadCost(Record):
    """The loss one head's removal adds, with the standard error of that mean over tokens."""

    layer: int
    head: int
    nats: float
    standard_error: float


@torch.no_grad()
def token_losses(network: Any, ids_BT: Int[Tensor, "B T"]) -> Float[Tensor, "B R"]:
    """-ln p of every token but the first of each sequence."""
    check_ids(ids_BT)
    logits_BTV = network(ids_BT)[:, :-1]
    return _losses(logits_BTV.flatten(0, 1), ids_BT[:, 1:].flatten()).view(len(ids_BT), -1)


def _losses(logits_RV: Tensor, targets_R: Tensor) -> Tensor:
    # Rows of V, never columns: PyTorch sums a column of 49,152 terms one by one, 1e-4 nats off in float32.
    losses: Tensor = cross_entropy(logits_RV.float(), targets_R, reduction="none")
    return losses


def perplexity(network: Any, ids_BT: Int[Tensor, "B T"]) -> float:
    """exp of the mean token loss, in double precision."""
    return math.exp(float(token_losses(network, ids_BT).double().mean()))


def removal_order(
    network: Any, order: str, *, importances: Sequence[Float[Tensor, " N"]] | None = None, seed: int = 0
) -> list[Head]:
    """Every head, the first to go first.

    ``importance`` least important first, ``normalized`` the same after division by each layer's norm, ``random`` drawn by
    ``seed``. UnknownNameError for another order, UsageError when it needs importances that were not given.
    """
    if order not in ORDERS:
        raise UnknownNameError(what="order of removal", given=order, allowed=ORDERS)
    heads = [(site.layer, head) for site in sites(network) for head in range(site.heads)]
    if order == "random":
        return [
            heads[i]
            for i in torch.randperm(len(heads), generator=torch.Generator().manual_seed(seed)).tolist()
        ]
    if importances is None:
        raise UsageError(f"order {order!r} needs the importance of every head")
    layers = list(importances) if order == "importance" else normalised(list(importances))
    scores = torch.cat([layer.detach().double().cpu() for layer in layers]).tolist()
    if len(scores) != len(heads):
        raise UsageError(f"order {order!r}: {len(scores)} importances for {len(heads)} heads")
    return [head for _, head in sorted(zip(scores, heads, strict=True))]


def heads_at(fraction: float, heads: int) -> int:
    """How many heads a fraction removes, rounded to the nearest; UsageError outside [0, 1)."""
    if not 0 <= fraction < 1:
        raise UsageError(f"a fraction of heads to remove is 0 or more and below 1; given {fraction}")
    return math.floor(fraction * heads + 0.5)


def masked_perplexity(network: Any, ids_BT: Int[Tensor, "B T"], removed: Sequence[Head]) -> float:
    """Perplexity with these heads gated off."""
    with gated(network, without(network, removed)):
        return perplexity(network, ids_BT)


def pruning_curve(
    network: Any, ids_BT: Int[Tensor, "B T"], orders: dict[str, Sequence[Head]], counts: Sequence[int]
) -> list[CurvePoint]:
    """Perplexity of ``ids_BT`` after the first ``counts`` heads of each order (by any name) are gated off."""
    base = perplexity(network, ids_BT)
    points = []
    for name, order in orders.items():
        for count in counts:
            found = masked_perplexity(network, ids_BT, order[:count])
            points.append(CurvePoint(order=name, removed=count, perplexity=found, ratio=found / base))
    return points


@torch.no_grad()
def leave_one_out(
    network: Any, ids_T: Int[Tensor, " T"], *, layers: Sequence[int] | None = None
) -> list[HeadCost]:
    """The cost of each head alone, in the order of the heads; ``layers`` limits it to some.

    The stream before each layer is kept from one run; the N variants of a layer start there as one batch, so a head of the
    last layer costs one layer, not the network.
    """
    found = sites(network)
    streams: dict[int, tuple[Tensor, Any]] = {}
    handles = [
        layer.register_forward_pre_hook(
            lambda module, inputs, number=number: streams.update({number: (inputs[0], inputs[1])})
        )
        for number, layer in enumerate(network.layers)
    ]
    try:
        base_R = token_losses(network, ids_T[None])[0].double()
    finally:
        for handle in handles:
            handle.remove()
    costs = []
    for index, site in enumerate(found):
        if layers is not None and site.layer not in layers:
            continue
        gates = open_gates(network)
        gates[index] = 1 - torch.eye(site.heads, dtype=gates[index].dtype, device=gates[index].device)
        x_BTD, step = streams[site.layer]
        x_BTD = x_BTD.expand(site.heads, -1, -1)
        with gated(network, gates):
            for layer in network.layers[site.layer :]:
                x_BTD = layer(x_BTD, step)
        if network.norm is not None:
            x_BTD = network.norm(x_BTD)
        for head, x_TD in enumerate(x_BTD):
            nats_R = _losses(network.logits(x_TD[None, :-1])[0], ids_T[1:]).double()
            costs.append(_cost(site.layer, head, nats_R - base_R))
    return costs


def _cost(layer: int, head: int, change_R: Tensor) -> HeadCost:
    error = change_R.std() / math.sqrt(len(change_R)) if len(change_R) > 1 else torch.tensor(math.inf)
    return HeadCost(layer=layer, head=head, nats=float(change_R.mean()), standard_error=float(error))
