"""``Step``: what one call of a network tells every layer besides the vectors themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from headcount.transformer.attention.masks import Mask


class Step(NamedTuple):
    """One layer's view of a call.

    turns      name -> cos and sin of the rotary positions; a layer that turns knows its name
    memories   one per mixer of the layer, in the order of ``LayerSpec.mixers``; empty without a cache
    padding    which keys exist, in a batch of unequal lengths without a cache
    encoded    (B, S, C), the encoder's output that cross-attention reads; None once a cache holds its keys
    encoded_padding   which of its positions exist
    """

    turns: dict[str, tuple[Tensor, Tensor]]
    memories: Sequence[Any] = ()
    padding: Mask | None = None
    encoded: Tensor | None = None
    encoded_padding: Mask | None = None

    def memory(self, number: int = 0) -> Any:
        """The layer's ``number``-th memory; None without a cache."""
        return self.memories[number] if self.memories else None
