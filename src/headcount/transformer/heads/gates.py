"""A factor per head, between attention and W_O: 1 leaves the head, 0 removes it, and dL/dg is what the head is worth.

    y = concat(g_1 O_1, ..., g_N O_N) W_O^T

Backward of the gate alone, o' = g_n o_n:

    do_n = g_n do'_n            dg_n = sum over tokens t and entries w of o_ntw do'_ntw

so at g = 1, dg_n = sum O_n * dL/dO_n. Each sequence of the batch has its own gates, and so its own dg. Source: Michel et al.
2019 (masks xi_h); Voita et al. 2019 (gates g_i).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

from headcount.errors import OperandError
from headcount.transformer.heads.sites import Site, sites
from headcount.transformer.ops.operands import bind
from headcount.transformer.ops.operation import Operation


class Saved(NamedTuple):
    """What the gate's backward reads: both factors."""

    o: Tensor
    gate: Tensor


def forward(o: Tensor, gate: Tensor) -> tuple[Tensor, Saved]:
    """Return ``(each head's columns of o (B, T, N W) times its gate (B or 1, N), saved)``."""
    sizes = bind("gate", o=(o, "B T D"), gate=(gate, "C N"))
    if sizes["C"] not in (1, sizes["B"]) or sizes["D"] % sizes["N"]:
        raise OperandError(
            f"gate: o {tuple(o.shape)} has no gates of shape {tuple(gate.shape)}; one row, or one per sequence, of N"
        )
    by_head = o.view(*o.shape[:2], sizes["N"], -1) * gate[:, None, :, None]
    return by_head.flatten(-2), Saved(o, gate)


def backward(saved: Saved, d_out: Tensor) -> tuple[Tensor, Tensor]:
    """Return dO and dg (module docstring)."""
    o, gate = saved
    split = (*o.shape[:2], gate.shape[1], -1)
    d_by_head = d_out.reshape(split)
    d_o = (d_by_head * gate[:, None, :, None]).flatten(-2)
    d_gate = (o.reshape(split) * d_by_head).sum((1, 3)).sum_to_size(gate.shape)
    return d_o, d_gate


GATE = Operation(
    "gate",
    forward=forward,
    backward=backward,
    formula="o' = g_n o_n",
    gradient="do = g do', dg_n = sum o_n do'_n",
)
# One per site, each (N) or (B, N).
Gates = Sequence[Tensor]


def open_gates(network: Any) -> list[Tensor]:
    """All ones: every head as it is."""
    return [
        torch.ones(site.heads, device=_weight(site).device, dtype=_weight(site).dtype)
        for site in sites(network)
    ]


def without(network: Any, removed: Sequence[tuple[int, int]]) -> list[Tensor]:
    """Gates that close the heads ``(layer, head)`` and leave the others."""
    gates = open_gates(network)
    for site, gate in zip(sites(network), gates, strict=True):
        for layer, head in removed:
            if layer == site.layer:
                gate[head] = 0.0
    return gates


@contextmanager
def gated(network: Any, gates: Gates) -> Iterator[None]:
    """Inside the block every head's output is multiplied by its gate before W_O; OperandError when counts differ."""
    found = sites(network)
    if len(gates) != len(found) or any(
        gate.shape[-1] != site.heads for gate, site in zip(gates, found, strict=False)
    ):
        raise OperandError(
            f"gates: the network has {len(found)} layers of {[site.heads for site in found][:4]} ... heads; "
            f"given {len(gates)} of {[gate.shape[-1] for gate in gates][:4]} ..."
        )
    handles = []
    try:
        for site, gate in zip(found, gates, strict=True):
            handles.append(site.attention.output.register_forward_pre_hook(_hook(gate)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _hook(gate: Tensor) -> Any:
    """What a projection W_O is called with, gated."""
    rows = gate if gate.dim() == 2 else gate[None]

    def multiply(module: Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
        return (GATE(inputs[0], rows),)

    return multiply


def _weight(site: Site) -> Tensor:
    return site.attention.output.weight
