"""Precision and passes of entry-by-entry operations.

Half-precision tensors are computed in float32 and rounded once, where the result leaves the operation. bfloat16 keeps 8
significant bits: a sum of 4,096 equal terms in it stops growing at the 256th.

On a processor an entry-by-entry formula goes through its tensors in groups that fit the cache, so its five or ten passes
read main memory once, and no float32 copy of a half-precision tensor ever exists whole.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

HALVES = (torch.bfloat16, torch.float16)
# Entries in a group: 512 KiB of float32. GELU forward and backward on 4 Mi entries took 32 ms at 2^13, 23 at 2^15, 21 at
# 2^17, 22 whole (2026-11-30, one core of an AMD EPYC with 1 MiB of second-level cache).
GROUP = 1 << 17


def widen(x: Tensor) -> Tensor:
    """Return x itself, or a float32 copy of a half-precision x."""
    return x.float() if x.dtype in HALVES else x


def entrywise(
    function: Callable[..., tuple[Tensor, ...]], *tensors: Tensor, outputs: int = 1
) -> tuple[Tensor, ...]:
    """Apply ``function`` to tensors of one shape and dtype, widened; return its ``outputs`` results, rounded back.

    Whole when PyTorch differentiates the function (writing group by group would hide it), off the processor, or small.
    """
    first = tensors[0]
    watched = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    if watched or first.device.type != "cpu" or first.numel() <= GROUP:
        return tuple(out.to(first.dtype) for out in function(*map(widen, tensors)))
    results = tuple(torch.empty(first.shape, dtype=first.dtype) for _ in range(outputs))
    groups = -(-first.numel() // (GROUP * torch.get_num_threads()))
    cut = zip(*(tensor.reshape(-1).chunk(groups) for tensor in (*tensors, *results)), strict=True)
    for pieces in cut:
        for piece, out in zip(
            pieces[len(tensors) :], function(*map(widen, pieces[: len(tensors)])), strict=True
        ):
            piece.copy_(out)
    return results
