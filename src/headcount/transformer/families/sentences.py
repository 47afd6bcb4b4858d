"""One vector per text: a pool over an encoder's vectors, then length one.

    mean    sum over real tokens of y_t / their number          first    y of the first token
    max     the largest number of each column                   unit     v / |v|

Source: Reimers and Gurevych 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headcount.errors import UnknownNameError, UsageError
from headcount.transformer.families.encoder import Encoder


def mean_pool(x_BTD: Float[Tensor, "B T D"], keep_BT: Bool[Tensor, "B T"]) -> Float[Tensor, "B D"]:
    """The mean of the real tokens' vectors; every sequence has one or more."""
    weight_BT1 = keep_BT[..., None].to(x_BTD.dtype)
    return (x_BTD * weight_BT1).sum(1) / weight_BT1.sum(1)


def first_pool(x_BTD: Float[Tensor, "B T D"], keep_BT: Bool[Tensor, "B T"]) -> Float[Tensor, "B D"]:
    """The vector of the first token."""
    return x_BTD[:, 0]


def max_pool(x_BTD: Float[Tensor, "B T D"], keep_BT: Bool[Tensor, "B T"]) -> Float[Tensor, "B D"]:
    """The largest number of each column over the real tokens."""
    return torch.where(keep_BT[..., None], x_BTD, -torch.inf).amax(1)


POOLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": mean_pool,
    "first": first_pool,
    "max": max_pool,
}


def sentence_vectors(
    network: Encoder, texts: Sequence[Sequence[int]], *, pool: str = "mean", unit: bool = True
) -> Float[Tensor, "B D"]:
    """Embed token ids (special tokens included), padded to the longest on the right.

    Raises
    ------
    UsageError: no text, or one without a token.    UnknownNameError: no such pool.
    OperandError: a text longer than the encoder's positions.
    """
    if pool not in POOLS:
        raise UnknownNameError(what="pool", given=pool, allowed=POOLS)
    if not texts or not all(texts):
        raise UsageError("sentence vectors: give one text or more, each of one token or more")
    device = network.embedding.weight.device
    lengths = torch.tensor([len(text) for text in texts], device=device)
    longest = int(lengths.max())
    ids_BT = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts], device=device)
    keep_BT = torch.arange(longest, device=device)[None] < lengths[:, None]
    vectors_BD = POOLS[pool](network(ids_BT, keep_BT=keep_BT), keep_BT)
    return torch.nn.functional.normalize(vectors_BD, dim=-1) if unit else vectors_BD
