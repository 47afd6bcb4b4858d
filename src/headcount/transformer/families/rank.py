"""One rank's part of a network under tensor parallelism of size T, cut out of the whole network.

    query, gate, up, key_up ...   rows: each rank computes N/T heads or F/T inner numbers
    key, value                    whole heads: max(1, K // T) of them, so beyond T = K every head lies on T/K ranks
    output, down                  columns; the ranks' partial sums are added (one all-reduce), then the bias
    embedding, head               rows of the vocabulary; looked-up rows are added, logits put side by side
    latent (MLA), router, norms   whole on every rank

Source: Shoeybi et al. 2019, section 3. What the cut does not know (a norm over all heads, states) is refused by name.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Module, Parameter

from headcount.errors import LayoutError, UnsupportedModelError
from headcount.transformer.attention.latent import LatentAttention
from headcount.transformer.attention.multi_head import MultiHeadAttention
from headcount.transformer.blocks.mixture import Mixture
from headcount.transformer.families.mamba2 import Mamba2
from headcount.transformer.families.self_attention import Alibi
from headcount.transformer.layers import Embedding, FeedForward, GatedFeedForward, Linear
from headcount.units import ceil_div


class Summed(Module):
    """Add the ranks' partial results, then the bias that only the whole sum gets."""

    def __init__(self, inner: Module, bias: Parameter | None = None) -> None:
        super().__init__()
        self.inner = inner
        self.bias = bias

    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        """All-reduce."""
        partial: Tensor = self.inner(*inputs, **options).contiguous()
        dist.all_reduce(partial)
        return partial if self.bias is None else partial + self.bias


class VocabularyRows(Module):
    """A rank's rows of the embedding table: ids outside of them look up zeros, and the ranks' rows are added."""

    def __init__(self, table: Embedding, rank: int, world: int) -> None:
        super().__init__()
        self.vocabulary = table.weight.shape[0]
        self.each = ceil_div(self.vocabulary, world)
        self.first = rank * self.each
        padded = nn.functional.pad(table.weight.data, (0, 0, 0, self.each * world - self.vocabulary))
        self.weight = Parameter(padded[self.first : self.first + self.each].clone(), requires_grad=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Look up what is here, add what is elsewhere."""
        here = (ids >= self.first) & (ids < self.first + self.each)
        rows = self.weight[torch.where(here, ids - self.first, 0)] * here[..., None]
        dist.all_reduce(rows)
        return rows

    def logits(self, x: Tensor) -> Tensor:
        """Each rank's scores side by side, the padding of the vocabulary cut off."""
        part = (x @ self.weight.t()).contiguous()
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, part)
        return torch.cat(parts, -1)[..., : self.vocabulary]


class VocabularyHead(VocabularyRows):
    """The output projection by rows of the vocabulary, with its bias."""

    def __init__(self, head: Linear, rank: int, world: int) -> None:
        super().__init__(head, rank, world)  # type: ignore[arg-type]
        self.bias = None
        if head.bias is not None:
            padded = nn.functional.pad(head.bias.data, (0, self.each * world - self.vocabulary))
            self.bias = Parameter(padded[self.first : self.first + self.each].clone(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the whole vocabulary."""
        part = x @ self.weight.t() + (0 if self.bias is None else self.bias)
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, part.contiguous())
        return torch.cat(parts, -1)[..., : self.vocabulary]


def cut(network: Any, rank: int, world: int) -> Any:
    """Replace every divided module of ``network`` by this rank's part, in place.

    Raises
    ------
    LayoutError: heads or widths that do not divide by ``world``.
    UnsupportedModelError: a module that is not known to divide.
    """
    modules = list(network.named_modules())
    mixtures = tuple(name + "." for name, module in modules if isinstance(module, Mixture))
    for name, module in modules:
        if isinstance(module, MultiHeadAttention):
            _cut_heads(module, rank, world)
        elif isinstance(module, LatentAttention):
            _cut_latent(module, rank, world)
        elif isinstance(module, Mixture):
            _cut_mixture(network, name, module, rank, world)
        elif isinstance(module, FeedForward | GatedFeedForward) and not name.startswith(mixtures):
            _cut_feed_forward(module, rank, world)
        elif isinstance(module, Mamba2):
            raise UnsupportedModelError("tensor parallelism of a state-space layer is not run here")
    network.embedding = VocabularyRows(network.embedding, rank, world)
    if network.head is not None:
        network.head = VocabularyHead(network.head, rank, world)
    return network


def _rows(weight: Tensor, part: int, parts: int) -> Parameter:
    if weight.shape[0] % parts:
        raise LayoutError(f"{weight.shape[0]} rows do not divide over {parts} ranks")
    size = weight.shape[0] // parts
    return Parameter(weight.data[part * size : (part + 1) * size].clone(), requires_grad=False)


def _cut_rows(layer: Linear, part: int, parts: int) -> None:
    layer.weight = _rows(layer.weight, part, parts)
    if layer.bias is not None:
        layer.bias = _rows(layer.bias, part, parts)


def _cut_columns(owner: Module, name: str, rank: int, world: int) -> None:
    layer: Linear = getattr(owner, name)
    layer.weight = Parameter(_rows(layer.weight.t(), rank, world).t().contiguous(), requires_grad=False)
    bias, layer.bias = layer.bias, None
    setattr(owner, name, Summed(layer, bias))


def _cut_heads(attention: MultiHeadAttention, rank: int, world: int) -> None:
    shape = attention.shape
    if shape.heads % world:
        raise LayoutError(f"{shape.heads} query heads do not divide over {world} ranks")
    if shape.qk_norm == "full":
        raise UnsupportedModelError("tensor parallelism of a query/key norm over all heads is not run here")
    kv_parts = min(world, shape.K)
    if shape.K % kv_parts or world % kv_parts:
        raise LayoutError(
            f"{shape.K} key/value heads neither divide over {world} ranks nor are divided by them"
        )
    _cut_rows(attention.query, rank, world)
    for layer in (attention.key, attention.value):
        _cut_rows(layer, rank * kv_parts // world, kv_parts)
    _cut_columns(attention, "output", rank, world)
    if attention.sinks is not None:
        attention.sinks = _rows(attention.sinks, rank, world)
    told = getattr(attention, "told", None)
    if isinstance(told, Alibi):
        attention.told = Alibi(told.slopes_N.chunk(world)[rank])  # type: ignore[assignment]
    attention.shape = shape.replace(
        heads=shape.heads // world, kv_heads=shape.K // kv_parts, head_width=shape.H, value_width=shape.W
    )


def _cut_latent(attention: LatentAttention, rank: int, world: int) -> None:
    shape = attention.shape
    if shape.heads % world:
        raise LayoutError(f"{shape.heads} heads do not divide over {world} ranks")
    _cut_rows(attention.query_up, rank, world)
    attention.key_up = _rows(attention.key_up, rank, world)
    attention.value_up = _rows(attention.value_up, rank, world)
    _cut_columns(attention, "output", rank, world)
    attention.shape = shape.replace(heads=shape.heads // world)


def _cut_feed_forward(layer: FeedForward | GatedFeedForward, rank: int, world: int) -> None:
    if isinstance(layer, GatedFeedForward):
        _cut_rows(layer.gate, rank, world)
    _cut_rows(layer.up, rank, world)
    _cut_columns(layer, "down", rank, world)


def _cut_mixture(network: Module, name: str, mixture: Mixture, rank: int, world: int) -> None:
    """Every expert's width divided; the mixture's own output is a partial sum, added over ranks once."""
    for key in ("gate", "up"):
        weight = getattr(mixture, key)
        setattr(
            mixture,
            key,
            Parameter(
                _rows(weight.transpose(0, 1), rank, world).transpose(0, 1).contiguous(), requires_grad=False
            ),
        )
        bias = getattr(mixture, key + "_bias", None)
        if bias is not None:
            setattr(
                mixture,
                key + "_bias",
                Parameter(_rows(bias.t(), rank, world).t().contiguous(), requires_grad=False),
            )
    down = mixture.down.permute(2, 0, 1)
    mixture.down = Parameter(_rows(down, rank, world).permute(1, 2, 0).contiguous(), requires_grad=False)
    if mixture.down_bias is not None and rank:
        # Weighed by the router inside the partial sum: it may enter on one rank only.
        mixture.down_bias.data.zero_()
    if mixture.shared is not None:
        shared = mixture.shared
        _cut_rows(shared.gate, rank, world)
        _cut_rows(shared.up, rank, world)
        shared.down.weight = Parameter(
            _rows(shared.down.weight.t(), rank, world).t().contiguous(), requires_grad=False
        )
    parent, _, leaf = name.rpartition(".")
    setattr(network.get_submodule(parent), leaf, Summed(mixture))
