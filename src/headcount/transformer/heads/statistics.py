"""What a head's attention looks like, in numbers: means over the queries of a text.

    confidence            mean_t max_j A_tj                                    (Voita et al. 2019, 3)
    confidence_no_sink    the same over keys j >= 1
    entropy               mean_t -sum_j A_tj ln A_tj, in nats
    sink_mass             mean_t A_t0, t >= 1                                  (Xiao et al. 2024, attention sinks)
    distance              mean_t sum_j A_tj (t - j), in tokens
    self_mass             mean_t A_tt;  previous_mass  mean_t A_t(t-1)
    offset, offset_share  the relative position j - t that most often has the largest weight, and how often it has

The first token takes weight that means nothing: models rest there when a head has nothing to look at. Voita et al. leave the
end-of-sentence token out for the same reason; "no sink" here leaves out key 0. Queries 0 and 1 are left out of every mean:
they have no choice once key 0 is gone.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headcount.record import Record
from headcount.transformer.heads.maps import watch
from headcount.transformer.heads.sites import check_ids

FIRST_QUERY = 2


class HeadStatistics(Record):
    """The numbers of one head; see the module for each."""

    layer: int
    head: int
    confidence: float
    confidence_no_sink: float
    entropy_nats: float
    sink_mass: float
    distance_tokens: float
    self_mass: float
    previous_mass: float
    offset: int
    offset_share: float


def head_statistics(network: Any, ids_BT: Int[Tensor, "B T"]) -> list[HeadStatistics]:
    """The numbers of every head over a batch of sequences of equal length, layers in order."""
    check_ids(ids_BT, least=FIRST_QUERY + 1)
    found: list[HeadStatistics] = []

    def see(layer: int, a_BNTT: Tensor) -> None:
        found.extend(layer_statistics(layer, a_BNTT.float()))

    watch(network, ids_BT, see)
    return found


def layer_statistics(layer: int, a_BNTT: Float[Tensor, "B N T T"]) -> list[HeadStatistics]:
    """The numbers of one layer's heads, from their weights."""
    N, T = a_BNTT.shape[1:3]
    query_Q = torch.arange(FIRST_QUERY, T, device=a_BNTT.device)
    a_BNQS = a_BNTT[:, :, FIRST_QUERY:]
    beyond = a_BNQS[..., 1:].max(-1)
    offset_BNQ = beyond.indices + 1 - query_Q
    mode_N = offset_BNQ.transpose(0, 1).reshape(N, -1).mode(-1).values
    share_N = (offset_BNQ == mode_N[:, None]).float().mean((0, 2))
    distance_QS = (query_Q[:, None] - torch.arange(T, device=a_BNTT.device)[None]).float()

    def mean(values_BNQ: Tensor) -> list[float]:
        numbers: list[float] = values_BNQ.double().mean((0, 2)).tolist()
        return numbers

    diagonals = a_BNTT.diagonal(dim1=-2, dim2=-1), a_BNTT.diagonal(-1, dim1=-2, dim2=-1)
    columns = zip(
        mean(a_BNQS.amax(-1)),
        mean(beyond.values),
        mean(torch.special.entr(a_BNQS).sum(-1)),
        mean(a_BNQS[..., 0]),
        mean((a_BNQS * distance_QS).sum(-1)),
        mean(diagonals[0][..., FIRST_QUERY:]),
        mean(diagonals[1][..., FIRST_QUERY - 1 :]),
        mode_N.tolist(),
        share_N.tolist(),
        strict=True,
    )
    names = HeadStatistics._fields[2:]
    return [
        HeadStatistics(layer=layer, head=head, **dict(zip(names, numbers, strict=True)))
        for head, numbers in enumerate(columns)
    ]
