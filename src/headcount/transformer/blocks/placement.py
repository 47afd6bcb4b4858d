"""Where the norm stands: seven ways to wire sub-layers to the residual stream.

    post        x <- LN(x + Drop(Sublayer(x)))                     as published (Vaswani et al. 2017, 3.1 and 5.4)
    pre         x <- x + Drop(Sublayer(LN(x)))                     the stream is never normalised: gradients reach every
                                                                   block undiminished (Xiong et al. 2020)
    parallel    x <- x + sum_i Drop(Sublayer_i(LN(x)))             one norm, all sub-layers read it (GPT-J, PaLM)
    beside      x <- x + sum_i Drop(Sublayer_i(LN_i(x)))           the same, each sub-layer with a norm of its own (GPT-NeoX)
    sandwich    x <- x + LN'(Drop(Sublayer(LN(x))))                before and after (Gemma 2, GLM-4)
    after       x <- x + LN(Drop(Sublayer(x)))                     behind the sub-layer, inside the sum (OLMo 2)
    through     x <- LN(x) + Drop(Sublayer(LN(x)))                 the stream itself is normed on its way (BLOOM's switch
                                                                   apply_residual_connection_post_layernorm)

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

# A sandwich's second norm is named after the sub-layer it stands behind.
OUT = "_out"


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


def beside(x: Tensor, sublayers: Sequence[Sublayer], norms: ModuleDict, dropout: Module) -> Tensor:
    """x + the sum of Drop(Sublayer_i(LN_i(x)))."""
    y = x
    for name, run in sublayers:
        with recording.scope(name):
            y = add(y, dropout(run(norms[name](x))))
    return y


def sandwich(x: Tensor, sublayers: Sequence[Sublayer], norms: ModuleDict, dropout: Module) -> Tensor:
    """x + LN'(Drop(Sublayer(LN(x)))), one sub-layer after another."""
    for name, run in sublayers:
        with recording.scope(name):
            x = add(x, norms[name + OUT](dropout(run(norms[name](x)))))
    return x


def after(x: Tensor, sublayers: Sequence[Sublayer], norms: ModuleDict, dropout: Module) -> Tensor:
    """x + LN(Drop(Sublayer(x))), one sub-layer after another."""
    for name, run in sublayers:
        with recording.scope(name):
            x = add(x, norms[name](dropout(run(x))))
    return x


def through(x: Tensor, sublayers: Sequence[Sublayer], norms: ModuleDict, dropout: Module) -> Tensor:
    """LN(x) + Drop(Sublayer(LN(x))), one sub-layer after another."""
    for name, run in sublayers:
        with recording.scope(name):
            n = norms[name](x)
            x = add(n, dropout(run(n)))
    return x


PLACEMENTS: dict[str, Callable[[Tensor, Sequence[Sublayer], ModuleDict, Module], Tensor]] = {
    "post": post,
    "pre": pre,
    "parallel": parallel,
    "beside": beside,
    "sandwich": sandwich,
    "after": after,
    "through": through,
}


def make_norms(placement: str, kind: str, width: int, sublayers: Sequence[str]) -> ModuleDict:
    """The norms of a block: one per sub-layer under its name, or the one that all share."""
    return ModuleDict({name: make_norm(kind, width) for name in norm_names(placement, sublayers)})


def norm_names(placement: str, sublayers: Sequence[str]) -> list[str]:
    """Which norms a placement asks for."""
    if placement == "parallel":
        return ["shared"]
    behind = [name + OUT for name in sublayers] if placement == "sandwich" else []
    return [*sublayers, *behind]
