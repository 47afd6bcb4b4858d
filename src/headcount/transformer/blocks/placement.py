"""Where the norm stands: three ways to wire sub-layers to the residual stream.

    post        x <- LN(x + Drop(Sublayer(x)))                     as published (Vaswani et al. 2017, 3.1 and 5.4)
    pre         x <- x + Drop(Sublayer(LN(x)))                     the stream is never normalised: gradients reach every
                                                                   block undiminished (Xiong et al. 2020)
    parallel    x <- x + sum_i Drop(Sublayer_i(LN(x)))             one norm, all sub-layers read it (GPT-J, PaLM)

Backward: each sum hands its gradient on to both branches (``ops/arithmetic.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor
from torch.nn import Module, ModuleDict

from headcount.transformer.layers import make_norm
from headcount.transformer.ops import recording
from headcount.transformer.ops.arithmetic import add


class Sublayer(NamedTuple):
    """A sub-layer by its name, and the call."""

    name: str
    run: Callable[[Tensor], Tensor]


def post(x: Tensor, sublayers: Sequence[Sublayer], norms: ModuleDict, dropout: Module) -> Tensor:
    """LN(x + Drop(Sublayer(x))), one sub-layer after another."""
    for name, run in sublayers:
        with recording.scope(name):
            x = norms[name](add(x, dropout(run(x))))
    return x


def pre(x: Tensor, sublayers: Sequence[Sublayer], norms: ModuleDict, dropout: Module) -> Tensor:
    """x + Drop(Sublayer(LN(x))), one sub-layer after another."""
    for name, run in sublayers:
        with recording.scope(name):
            x = add(x, dropout(run(norms[name](x))))
    return x


def parallel(x: Tensor, sublayers: Sequence[Sublayer], norms: ModuleDict, dropout: Module) -> Tensor:
    """x + the sum of Drop(Sublayer_i(LN(x)))."""
    n = norms["shared"](x)
    for name, run in sublayers:
        with recording.scope(name):
            x = add(x, dropout(run(n)))
    return x


PLACEMENTS: dict[str, Callable[[Tensor, Sequence[Sublayer], ModuleDict, Module], Tensor]] = {
    "post": post,
    "pre": pre,
    "parallel": parallel,
}


def make_norms(placement: str, kind: str, width: int, sublayers: Sequence[str]) -> ModuleDict:
    """The norms of a block: one per sub-layer under its name, or the one that all share."""
    names = ["shared"] if placement == "parallel" else sublayers
    return ModuleDict({name: make_norm(kind, width) for name in names})
