"""Heads really removed: their rows of W_Q and columns of W_O, and a key/value head when all its query heads have gone.

    removed query head n        rows nH ... of W_Q, columns nH' ... of W_O              no cache is freed
    removed group k             also rows kH ... of W_K, kH' ... of W_V                 its entries of the cache

With grouped queries (K < N) a cache entry serves G query heads: it is freed only when the whole group goes. The outputs equal
those of gates at 0. Groups may be left uneven; their keys and values are then repeated per query head when they are used, and
kept once.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from headcount.errors import UnsupportedModelError, UsageError
from headcount.spec.model import ModelSpec
from headcount.transformer.attention.masks import Mask
from headcount.transformer.attention.memory import Bias
from headcount.transformer.attention.multi_head import Heads, MultiHeadAttention
from headcount.transformer.families.self_attention import Alibi, SelfAttention
from headcount.transformer.families.step import Step
from headcount.transformer.heads.geometry import cache_bytes_per_token, with_heads
from headcount.transformer.heads.sites import sites
from headcount.transformer.layers import Linear


class Smaller(NamedTuple):
    """A network with fewer heads, the spec that describes it, and what that saves.

    parameters_saved, and cache_bytes_saved: bytes of one token in all layers, at 16 bits a number
    groups_removed   key/value heads that are gone
    """

    spec: ModelSpec
    network: Any
    parameters_saved: int
    cache_bytes_saved: int
    groups_removed: int


class UnevenHeads(Heads):
    """Query heads over key/value heads that need not divide them: ``key_of`` names the one each query head reads."""

    key_of: tuple[int, ...] = ()

    def _check(self) -> None:
        if len(self.key_of) != self.heads or sorted(set(self.key_of)) != list(range(self.K)):
            raise UsageError(
                f"attention: {self.heads} query heads must read all of {self.K} key/value heads; given {self.key_of}"
            )
        # Everything but the division, which is what ``key_of`` replaces.
        Heads(**{**{name: getattr(self, name) for name in Heads._fields}, "kv_heads": self.heads})


class PrunedAttention(SelfAttention):
    """Self-attention with the heads that were kept."""

    def __init__(self, whole: SelfAttention, kept: Sequence[int]) -> None:
        G = whole.shape.heads // whole.shape.K
        groups = sorted({head // G for head in kept})
        key_of = tuple(groups.index(head // G) for head in kept)
        shape = _narrowed(whole.shape, key_of, len(groups))
        with torch.device("meta"):
            super().__init__(shape, mask=whole.mask, turn=whole.turn, bias=_told(whole, kept))
        self.kernel = whole.kernel
        self.query_norm, self.key_norm = whole.query_norm, whole.key_norm
        H, W = shape.H, shape.W
        for linear, source, heads, width in (
            (self.query, whole.query, kept, H),
            (self.key, whole.key, groups, H),
            (self.value, whole.value, groups, W),
        ):
            rows = _spans(heads, width, source.weight.device)
            _set(linear, source.weight[rows], None if source.bias is None else source.bias[rows])
        columns = _spans(kept, W, whole.output.weight.device)
        _set(self.output, whole.output.weight[:, columns], whole.output.bias)
        if whole.sinks is not None:
            self.sinks = Parameter(whole.sinks.detach()[list(kept)].clone())
        even = len(kept) % len(groups) == 0
        self.even = even and key_of == tuple(i // (len(kept) // len(groups)) for i in range(len(kept)))

    def look(
        self,
        q_BNTH: Tensor,
        k_BKSH: Tensor,
        v_BKSW: Tensor,
        *,
        mask: Mask,
        bias: Bias | None = None,
        start: int = 0,
        first: int = 0,
    ) -> Tensor:
        """As ``MultiHeadAttention.look``, uneven groups spread out."""
        k, v = self.spread(k_BKSH), self.spread(v_BKSW)
        return super().look(q_BNTH, k, v, mask=mask, bias=bias, start=start, first=first)

    def spread(self, kept_BKSH: Tensor) -> Tensor:
        """Keys or values, one per query head where the groups are uneven."""
        if self.even:
            return kept_BKSH
        assert isinstance(self.shape, UnevenHeads)
        return kept_BKSH[:, list(self.shape.key_of)]


class NoHeads(Module):
    """What is left of an attention without heads: the bias of W_O, or zero."""

    def __init__(self, bias: Parameter | None) -> None:
        super().__init__()
        self.bias = bias

    def forward(self, x_BTD: Tensor, step: Step) -> Tensor:
        """The same vector at every token."""
        nothing = torch.zeros_like(x_BTD)
        return nothing if self.bias is None else nothing + self.bias


def prune(network: Any, spec: ModelSpec, removed: Sequence[tuple[int, int]]) -> Smaller:
    """A copy of ``network`` without the heads ``(layer, head)``; tensors that do not change are shared with it.

    Raises
    ------
    UsageError: a layer or head that is not there.
    UnsupportedModelError: an attention whose heads cannot be cut apart (norms over all heads, told positions by other rules).
    """
    gone: dict[int, set[int]] = {}
    for layer, head in removed:
        gone.setdefault(layer, set()).add(head)
    smaller = shallow_copy(network)
    kept: dict[int, tuple[int, int]] = {}
    groups_removed = 0
    by_layer = {site.layer: site.attention for site in sites(smaller)}
    for layer, heads in gone.items():
        whole = by_layer.get(layer)
        if whole is None or not heads <= set(range(whole.shape.heads)):
            raise UsageError(f"heads {sorted(heads)} of layer {layer} are not all there to be removed")
        left = [head for head in range(whole.shape.heads) if head not in heads]
        attention = _cut(whole, left, layer)
        smaller.layers[layer].mixer = attention
        groups = attention.shape.K if isinstance(attention, PrunedAttention) else 0
        kept[layer] = (len(left), groups)
        groups_removed += whole.shape.K - groups
    count = sum(len(heads) for heads in gone.values())
    new = with_heads(spec, kept, note=f"{count:,} query heads and {groups_removed:,} key/value heads removed")
    return Smaller(
        spec=new,
        network=smaller,
        parameters_saved=spec.parameters - new.parameters,
        cache_bytes_saved=cache_bytes_per_token(spec) - cache_bytes_per_token(new),
        groups_removed=groups_removed,
    )


def shallow_copy(network: Any) -> Any:
    """New modules over the same parameters and buffers."""
    same: dict[int, Any] = {id(tensor): tensor for tensor in (*network.parameters(), *network.buffers())}
    return copy.deepcopy(network, same)


def _cut(whole: MultiHeadAttention, left: list[int], layer: int) -> PrunedAttention | NoHeads:
    if type(whole) is not SelfAttention:
        raise UnsupportedModelError(f"layer {layer}: heads of {type(whole).__name__} cannot be removed")
    if whole.shape.qk_norm == "full":
        raise UnsupportedModelError(
            f"layer {layer} norms queries over all heads: without one of them the others change"
        )
    return PrunedAttention(whole, left) if left else NoHeads(whole.output.bias)


def _narrowed(shape: Heads, key_of: tuple[int, ...], groups: int) -> UnevenHeads:
    """``shape`` with every usual value spelled out: widths no longer follow from the number of heads."""
    fields = {name: getattr(shape, name) for name in Heads._fields}
    fields |= {"heads": len(key_of), "kv_heads": groups, "head_width": shape.H, "value_width": shape.W}
    return UnevenHeads(**fields, key_of=key_of)


def _told(whole: SelfAttention, kept: Sequence[int]) -> Bias | None:
    if whole.told is None:
        return None
    if not isinstance(whole.told, Alibi):
        raise UnsupportedModelError(f"positions told by {type(whole.told).__name__} cannot be cut by heads")
    return Alibi(whole.told.slopes_N[list(kept)])


def _spans(heads: Sequence[int], width: int, device: torch.device) -> Tensor:
    """Rows of these heads of ``width`` rows each."""
    starts = torch.tensor(list(heads), device=device)[:, None] * width
    return (starts + torch.arange(width, device=device)).flatten()


def _set(linear: Linear, weight: Tensor, bias: Tensor | None) -> None:
    linear.weight = Parameter(weight.detach().clone())
    linear.bias = bias if bias is None or isinstance(bias, Parameter) else Parameter(bias.detach().clone())
