"""Attention weights of a text: A of every layer and head, seen while the network runs, one layer in memory at a time.

    A = softmax(cap(Q K^T scale) + bias + mask)        (B, N, T, S); rows sum to one, less what a learned sink takes

The kernels that serve do not keep A; while a network is watched, its attention runs by the naive kernel, which does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headcount.errors import UnsupportedModelError
from headcount.transformer.attention import naive
from headcount.transformer.attention.masks import Mask, simplest
from headcount.transformer.attention.memory import Bias
from headcount.transformer.attention.multi_head import MultiHeadAttention
from headcount.transformer.heads.prune import PrunedAttention
from headcount.transformer.heads.sites import check_ids, site_of, sites

# layer, A (B, N, T, S)
See = Callable[[int, Tensor], None]


@contextmanager
def watched(network: Any, see: See) -> Iterator[None]:
    """Inside the block every attention of ``network`` shows its weights to ``see`` as soon as it has them."""
    found = sites(network)
    for site in found:
        if type(site.attention).look not in (MultiHeadAttention.look, PrunedAttention.look):
            raise UnsupportedModelError(
                f"layer {site.layer}: the weights of {type(site.attention).__name__} cannot be watched"
            )
    try:
        for site in found:
            # An attribute of the instance stands before the method of its class.
            object.__setattr__(site.attention, "look", _looking(site.layer, site.attention, see))
        yield
    finally:
        for site in found:
            site.attention.__dict__.pop("look", None)


def _looking(layer: int, attention: MultiHeadAttention, see: See) -> Callable[..., Tensor]:
    """``MultiHeadAttention.look`` by the naive kernel, its weights shown."""

    def look(
        q_BNTH: Tensor,
        k_BKSH: Tensor,
        v_BKSW: Tensor,
        *,
        mask: Mask,
        bias: Bias | None = None,
        start: int = 0,
        first: int = 0,
    ) -> Tensor:
        if isinstance(attention, PrunedAttention):
            k_BKSH, v_BKSW = attention.spread(k_BKSH), attention.spread(v_BKSW)
        B, N, T, _ = q_BNTH.shape
        S = k_BKSH.shape[2]
        rule = attention.shape.rule(simplest(mask, start - first, T, S), start - first)
        told = (
            None if bias is None else bias.between(range(start, start + T), range(first, first + S), q_BNTH)
        )
        o_BNTW, saved = naive.forward(q_BNTH, k_BKSH, v_BKSW, attention.sinks, told, rule=rule)
        see(layer, saved.a.view(B, N, T, S))
        return o_BNTW

    return look


@torch.no_grad()
def watch(network: Any, ids_BT: Int[Tensor, "B T"], see: See) -> None:
    """Run the layers over ``ids_BT`` (no logits are made) and show every layer's weights to ``see``."""
    check_ids(ids_BT)
    with watched(network, see):
        network.hidden(ids_BT)


def attention_map(network: Any, ids_T: Int[Tensor, " T"], *, layer: int, head: int) -> Float[Tensor, "T T"]:
    """A of one head for one text; UsageError when there is no such layer or head."""
    site_of(network, layer, head)
    kept: list[Tensor] = []

    def see(number: int, a_BNTT: Tensor) -> None:
        if number == layer:
            kept.append(a_BNTT[0, head].clone())

    watch(network, ids_T[None], see)
    return kept[0]
