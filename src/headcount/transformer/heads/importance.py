"""Importance of a head: how much the loss is expected to move when the head's gate does (Michel et al. 2019, 2.3 and 3).

    I_h = E_x | dL(x) / dg_h |  =  E_x | sum O_h(x) * dL(x) / dO_h(x) |         at g = 1

x is one sequence, L(x) its mean next-token loss in nats. ``normalised`` divides by the Euclidean norm of the layer, as the
paper does before it compares heads of different layers. One forward and one backward pass give all heads; the backward
is this package's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headcount.errors import OperandError
from headcount.transformer.heads.gates import gated, open_gates
from headcount.transformer.heads.sites import check_ids
from headcount.transformer.ops.arithmetic import scale
from headcount.transformer.ops.cross_entropy import cross_entropy
from headcount.transformer.ops.operation import differentiate


def importance(network: Any, ids_BT: Int[Tensor, "B T"], *, at_once: int = 4) -> list[Float[Tensor, " N"]]:
    """I_h of every head, one tensor per layer with heads; ``at_once`` sequences share a pass."""
    check_ids(ids_BT)
    sums: list[Tensor] = [torch.zeros_like(gate) for gate in open_gates(network)]
    for start in range(0, len(ids_BT), at_once):
        part_BT = ids_BT[start : start + at_once]
        for total, slope_BN in zip(sums, gate_slopes(network, part_BT), strict=True):
            total += slope_BN.abs().sum(0)
    return [total / len(ids_BT) for total in sums]


def gate_slopes(network: Any, ids_BT: Int[Tensor, "B T"]) -> list[Float[Tensor, "B N"]]:
    """dL(x)/dg_h of every sequence and head, at open gates."""
    count = len(ids_BT)
    gates = [gate.expand(count, -1).clone().requires_grad_() for gate in open_gates(network)]
    # Kernels of PyTorch's own would bring PyTorch's own backward.
    with (
        torch.enable_grad(),
        differentiate("by_hand"),
        _kernel(network, "naive"),
        _frozen(network),
        gated(network, gates),
    ):
        logits_BTV = network(ids_BT)
        # The mean over B T tokens, times B: the sum of each sequence's own mean.
        loss = scale(cross_entropy(logits_BTV[:, :-1], ids_BT[:, 1:]), float(count))
        if not torch.isfinite(loss):
            raise OperandError(
                "the network's logits are not numbers (NaN): no head matters more than another"
            )
        slopes: tuple[Tensor, ...] = torch.autograd.grad(loss, gates)
    return list(slopes)


def normalised(importances: list[Float[Tensor, " N"]]) -> list[Float[Tensor, " N"]]:
    """Each layer divided by its Euclidean norm; a layer of zeros stays zero."""
    return [layer / layer.norm().clamp_min(torch.finfo(layer.dtype).tiny) for layer in importances]


@contextmanager
def _kernel(network: Any, name: str) -> Iterator[None]:
    """Let every attention run one kernel inside the block."""
    before = [(module, module.kernel) for module in network.modules() if hasattr(module, "kernel")]
    network.use_kernel(name)
    try:
        yield
    finally:
        for module, kernel in before:
            module.kernel = kernel


@contextmanager
def _frozen(network: Any) -> Iterator[None]:
    """Ask for no gradient of the weights inside the block."""
    before = [parameter for parameter in network.parameters() if parameter.requires_grad]
    for parameter in before:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in before:
            parameter.requires_grad_(True)
