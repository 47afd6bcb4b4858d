"""Fewer key/value heads by mean-pooling (Ainslie et al. 2023, 3.1): the first half of turning MHA or GQA into GQA or MQA.

    W_K'[k] = mean over the K / K' heads j of group k of W_K[j]        W_V' the same, biases too

The paper then trains for 5 % of the original steps; without that the model is worse, and by how much is what is measured here.
The cache shrinks by K' / K at once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from headcount.errors import UnsupportedModelError, UsageError
from headcount.spec.model import ModelSpec
from headcount.transformer.families.self_attention import SelfAttention
from headcount.transformer.heads.geometry import cache_bytes_per_token, with_heads
from headcount.transformer.heads.prune import Smaller, shallow_copy
from headcount.transformer.heads.sites import sites
from headcount.transformer.layers import Linear


def regroup(network: Any, spec: ModelSpec, kv_heads: int) -> Smaller:
    """A copy of ``network`` with ``kv_heads`` key/value heads in every layer; what does not change is shared with it.

    Raises
    ------
    UsageError: ``kv_heads`` does not divide the key/value heads of every layer, or is not fewer.
    UnsupportedModelError: keys are normed over all heads, so that a pooled key is no mean of keys.
    """
    check_kv_heads(network, kv_heads)
    smaller = shallow_copy(network)
    kept: dict[int, tuple[int, int]] = {}
    removed = 0
    for site in sites(smaller):
        assert isinstance(site.attention, SelfAttention)  # check_kv_heads has refused all others
        smaller.layers[site.layer].mixer = _pooled(site.attention, kv_heads)
        kept[site.layer] = (site.heads, kv_heads)
        removed += site.attention.shape.K - kv_heads
    note = f"key/value heads mean-pooled to {kv_heads} a layer, not trained since"
    new = with_heads(spec, kept, note=note)
    if "num_key_value_heads" in new.config:
        new = new.replace(config={**new.config, "num_key_value_heads": kv_heads})
    return Smaller(
        spec=new,
        network=smaller,
        parameters_saved=spec.parameters - new.parameters,
        cache_bytes_saved=cache_bytes_per_token(spec) - cache_bytes_per_token(new),
        groups_removed=removed,
    )


def check_kv_heads(network: Any, kv_heads: int) -> None:
    """Raise as ``regroup`` does, unless every layer's key/value heads can be pooled to ``kv_heads``."""
    for site in sites(network):
        whole, layer = site.attention, site.layer
        K = whole.shape.K
        if kv_heads < 1 or kv_heads >= K or K % kv_heads:
            allowed = [str(k) for k in range(1, K) if K % k == 0]
            raise UsageError(
                f"layer {layer} has {K} key/value heads; groups of equal size give "
                f"{', '.join(allowed) or 'nothing fewer'}, not {kv_heads}"
            )
        if type(whole) is not SelfAttention:
            raise UnsupportedModelError(f"layer {layer}: heads of {type(whole).__name__} cannot be pooled")
        if whole.shape.qk_norm == "full":
            raise UnsupportedModelError(
                f"layer {layer} norms keys over all heads: a pooled key is no mean of keys"
            )


def _pooled(whole: SelfAttention, kv_heads: int) -> SelfAttention:
    shape = whole.shape
    with torch.device("meta"):
        pooled = SelfAttention(
            shape.replace(kv_heads=kv_heads), mask=whole.mask, turn=whole.turn, bias=whole.told
        )
    pooled.kernel, pooled.sinks = whole.kernel, whole.sinks
    pooled.query, pooled.output = whole.query, whole.output
    pooled.query_norm, pooled.key_norm = whole.query_norm, whole.key_norm
    _pool(pooled.key, whole.key, shape.K, kv_heads)
    _pool(pooled.value, whole.value, shape.K, kv_heads)
    return pooled


def _pool(linear: Linear, source: Linear, K: int, kv_heads: int) -> None:
    linear.weight = Parameter(_mean(source.weight.detach(), K, kv_heads))
    linear.bias = None if source.bias is None else Parameter(_mean(source.bias.detach(), K, kv_heads))


def _mean(rows: Tensor, K: int, kv_heads: int) -> Tensor:
    """``(K H, ...)`` to ``(K' H, ...)``: the mean of each K / K' heads that stand beside each other."""
    width, rest = rows.shape[0] // K, rows.shape[1:]
    return rows.view(kv_heads, K // kv_heads, width, *rest).mean(1).reshape(kv_heads * width, *rest)
