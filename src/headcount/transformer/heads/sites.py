"""The layers of a decoder that attend by heads: where heads are watched, gated and removed."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor
from torch.nn import ModuleList

from headcount.errors import UnsupportedModelError, UsageError
from headcount.transformer.attention.multi_head import MultiHeadAttention
from headcount.transformer.families.decoder import Decoder


class Site(NamedTuple):
    """One layer's attention: its place in ``network.layers``, and the module."""

    layer: int
    attention: MultiHeadAttention

    @property
    def heads(self) -> int:
        """N, query heads."""
        return self.attention.shape.heads


def sites(network: Any) -> list[Site]:
    """Every attention by heads; layers that mix otherwise (states, latents) are not among them.

    Raises UnsupportedModelError when the network is no decoder, or none of its layers has heads.
    """
    layers = getattr(network, "layers", None)
    if not isinstance(network, Decoder) or not isinstance(layers, ModuleList):
        raise UnsupportedModelError(f"heads are studied in decoder networks; given {type(network).__name__}")
    found = [
        Site(number, mixer)
        for number, layer in enumerate(layers)
        if isinstance(mixer := getattr(layer, "mixer", None), MultiHeadAttention)
    ]
    if not found:
        kinds = sorted({type(getattr(layer, "mixer", None)).__name__ for layer in layers})
        raise UnsupportedModelError(f"no layer attends by heads; the layers mix by {', '.join(kinds)}")
    return found


def site_of(network: Any, layer: int, head: int = 0) -> Site:
    """The attention of one layer; UsageError names the layers and heads there are."""
    found = sites(network)
    for site in found:
        if site.layer == layer:
            if not 0 <= head < site.heads:
                raise UsageError(f"layer {layer} has heads 0 to {site.heads - 1}; given {head}")
            return site
    numbers = [site.layer for site in found]
    raise UsageError(
        f"layer {layer} does not attend by heads; {len(numbers)} layers of {numbers[0]} to {numbers[-1]} do"
    )


def check_ids(ids_BT: Tensor, least: int = 2) -> None:
    """UsageError unless ``ids_BT`` is a batch of sequences of at least ``least`` tokens."""
    if ids_BT.dim() != 2 or ids_BT.shape[0] < 1 or ids_BT.shape[1] < least:
        raise UsageError(
            f"heads are measured on sequences of {least} tokens or more; given ids of shape {tuple(ids_BT.shape)}"
        )
