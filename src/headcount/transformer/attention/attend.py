"""The one door to attention: operands checked, then the kernel that was named.

naive      scores stored, four steps forward and back; the judge             (naive.py)
composed   the same as separate operations, one node each on a tape          (composed.py)
tiled      online softmax by tiles, O(n) memory, hand-derived backward       (tiled.py)
fused      PyTorch's own kernel, where it computes the same thing            (fused.py)
rows       one query at a time against exactly the keys it may see           (row_by_row.py)
compiled   prompts on the CPU without gradients, by numba                    (compiled.py)

A bias per pair (ALiBi, T5's relative positions) is added to the scaled scores by all but the tiled and compiled kernels.
"""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor
from torch.nn import Module

from headcount.errors import OperandError, UnknownNameError
from headcount.transformer.attention.compiled import compiled
from headcount.transformer.attention.composed import composed
from headcount.transformer.attention.fused import fused
from headcount.transformer.attention.naive import NAIVE
from headcount.transformer.attention.row_by_row import row_by_row
from headcount.transformer.attention.rule import Rule, check_operands
from headcount.transformer.attention.tiled import TILED

KERNELS: dict[str, Callable[..., Tensor]] = {
    "naive": NAIVE,
    "composed": composed,
    "tiled": TILED,
    "fused": fused,
    "rows": row_by_row,
    "compiled": compiled,
}


def use_kernel(network: Module, name: str) -> None:
    """Let every attention inside ``network`` run this kernel; UnknownNameError lists the names."""
    if name not in KERNELS:
        raise UnknownNameError(what="attention kernel", given=name, allowed=KERNELS)
    for module in network.modules():
        if hasattr(module, "kernel"):
            module.kernel = name  # type: ignore[assignment]


def attend(
    q_BNTH: Float[Tensor, "B N T H"],
    k_BKSH: Float[Tensor, "B K S H"],
    v_BKSW: Float[Tensor, "B K S W"],
    *,
    rule: Rule | None = None,
    sinks_N: Float[Tensor, " N"] | None = None,
    bias_BNTS: Float[Tensor, "C N T S"] | None = None,
    kernel: str = "naive",
) -> Float[Tensor, "B N T W"]:
    """O = softmax(cap(Q K^T scale) + bias + mask) V for N query heads over K key/value heads (K divides N).

    ``rule`` gives mask, scale (default 1 / sqrt(H)), soft cap and the position of the first query; ``sinks_N`` is one
    logit per query head that takes probability and gives nothing (gpt-oss); ``bias_BNTS`` one number per pair and head, for
    the whole batch when its first dimension is 1. All kernels give the same values;
    naive.py holds the equations.

    Raises
    ------
    OperandError: shapes, dtypes or devices that do not belong together, or what the fused or compiled kernel cannot follow.
    UnknownNameError: no such kernel.
    """
    if kernel not in KERNELS:
        raise UnknownNameError(what="attention kernel", given=kernel, allowed=KERNELS)
    asked = rule or Rule()
    check_operands(q_BNTH, k_BKSH, v_BKSW, sinks_N, asked)
    if bias_BNTS is None:
        return KERNELS[kernel](q_BNTH, k_BKSH, v_BKSW, sinks_N, rule=asked)
    if kernel == "tiled":
        raise OperandError(
            "attention: the tiled kernel takes no bias per pair; use kernel 'naive' or 'fused'"
        )
    return KERNELS[kernel](q_BNTH, k_BKSH, v_BKSW, sinks_N, bias_BNTS, rule=asked)
