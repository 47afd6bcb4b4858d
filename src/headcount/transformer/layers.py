"""Layers: modules that hold parameters and call the operations. No mathematics here: each equation is in ``ops/``.

    Linear, Embedding              weights as PyTorch stores them: (outputs, inputs), (V, D)
    LayerNorm, RMSNorm             ``NORMS`` by name
    FeedForward, GatedFeedForward  ``FEED_FORWARDS`` by name: relu, gelu, ..., swiglu, geglu, ...
    Dropout                        on in training mode only

``torch.nn.Module`` serves as container: it registers, moves, saves and names parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import Module, Parameter
from torch.nn.init import normal_, xavier_uniform_

from headcount.errors import UnknownNameError, UsageError
from headcount.record import Record
from headcount.transformer.ops import recording
from headcount.transformer.ops.dropout import dropout
from headcount.transformer.ops.embedding import embedding
from headcount.transformer.ops.gated import gated
from headcount.transformer.ops.gelu import gelu
from headcount.transformer.ops.layer_norm import layer_norm
from headcount.transformer.ops.linear import linear
from headcount.transformer.ops.relu import relu
from headcount.transformer.ops.rms_norm import rms_norm
from headcount.transformer.ops.silu import silu


def positive(layer: str, **sizes: int) -> None:
    """Raise UsageError unless every size is a whole number of 1 or more."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise UsageError(f"{layer}: {name} must be a whole number of 1 or more; given {size!r}")


class Linear(Module):
    """y = x W^T + b, weight (outputs, inputs); starts at Glorot's uniform weights and a zero bias."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True) -> None:
        super().__init__()
        positive("linear", inputs=inputs, outputs=outputs)
        self.weight = Parameter(torch.empty(outputs, inputs))
        self.bias = Parameter(torch.zeros(outputs)) if bias else None
        xavier_uniform_(self.weight)

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch F"]:
        """Apply the map to the last dimension."""
        return linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Sizes, for ``print(model)``."""
        outputs, inputs = self.weight.shape
        return f"{inputs} -> {outputs}" + ("" if self.bias is None else ", bias")


class Embedding(Module):
    """A row of width D per token id; ``logits`` uses the same table as the output projection (tied weights).

    Starts at N(0, 1/D), so that rows times sqrt(D) have unit entries and tied logits of a unit vector unit variance.
    """

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        positive("embedding", vocabulary=vocabulary, width=width)
        self.weight = Parameter(torch.empty(vocabulary, width))
        normal_(self.weight, std=1 / math.sqrt(width))

    def forward(self, ids: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch D"]:
        """Look the ids up."""
        return embedding(ids, self.weight)

    def logits(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch V"]:
        """x W^T: one score per entry of the vocabulary."""
        return linear(x, self.weight)


class LayerNorm(Module):
    """w (x - mean) / sqrt(var + eps) + b over the last dimension; without w when ``gain`` is False."""

    def __init__(self, width: int, *, eps: float = 1e-5, bias: bool = True, gain: bool = True) -> None:
        super().__init__()
        positive("layer norm", width=width)
        self.weight = Parameter(torch.ones(width)) if gain else None
        self.bias = Parameter(torch.zeros(width)) if bias else None
        self.eps = eps

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        """Normalise every token."""
        return layer_norm(x, self.weight, self.bias, eps=self.eps)


class RMSNorm(Module):
    """w x / sqrt(mean x^2 + eps) over the last dimension; ``add_one`` uses 1 + w (Gemma)."""

    def __init__(self, width: int, *, eps: float = 1e-6, add_one: bool = False) -> None:
        super().__init__()
        positive("RMS norm", width=width)
        self.weight = Parameter(torch.zeros(width) if add_one else torch.ones(width))
        self.eps = eps
        self.add_one = add_one

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        """Normalise every token."""
        return rms_norm(x, self.weight, eps=self.eps, add_one=self.add_one)


class NormShape(Record):
    """Which norm, with its constants; ``make`` builds one of a width."""

    kind: str = "rms_norm"
    eps: float = 1e-6
    bias: bool = True  # of a layer norm
    gain: bool = True  # of a layer norm
    add_one: bool = False  # of an RMS norm

    def _check(self) -> None:
        if self.kind not in NORMS:
            raise UnknownNameError(what="norm", given=self.kind, allowed=NORMS)
        if not 0 <= self.eps < 1:
            raise UsageError(f"{self.kind}: eps must lie between 0 and 1; given {self.eps:g}")

    def make(self, width: int) -> Module:
        """A norm over the last ``width`` numbers."""
        if self.kind == "layer_norm":
            return LayerNorm(width, eps=self.eps, bias=self.bias, gain=self.gain)
        return RMSNorm(width, eps=self.eps, add_one=self.add_one)


NORMS: dict[str, Callable[[int], Module]] = {"layer_norm": LayerNorm, "rms_norm": RMSNorm}


def make_norm(name: str, width: int) -> Module:
    """A norm by name; UnknownNameError lists the names."""
    if name not in NORMS:
        raise UnknownNameError(what="norm", given=name, allowed=NORMS)
    return NORMS[name](width)


class Dropout(Module):
    """Zero each entry with probability p while training, grow the rest by 1 / (1 - p); nothing otherwise."""

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise UsageError(f"dropout must be 0 or more and below 1; given {p}")
        self.p = p

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Draw a mask from PyTorch's generator and apply it."""
        return dropout(x, self.p) if self.training and self.p else x


PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": relu,
    "gelu": gelu,
    "gelu_tanh": lambda x: gelu(x, form="tanh"),
    "silu": silu,
}


class FeedForward(Module):
    """W_down act(W_up x + b) + b: two matrices, F wide inside, the same for every token."""

    def __init__(self, width: int, inner: int, *, activation: str = "relu", bias: bool = True) -> None:
        super().__init__()
        if activation not in PLAIN:
            raise UnknownNameError(what="activation", given=activation, allowed=PLAIN)
        self.up = Linear(width, inner, bias=bias)
        self.down = Linear(inner, width, bias=bias)
        self.activation = activation

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        """Widen, bend, narrow."""
        inner = recording.name(PLAIN[self.activation](self.up(x)), "F")
        y: Tensor = self.down(inner)
        return y


class GatedFeedForward(Module):
    """W_down (act(W_gate x) * W_up x): three matrices; ``activation`` silu makes it SwiGLU, gelu GeGLU."""

    def __init__(self, width: int, inner: int, *, activation: str = "silu", bias: bool = False) -> None:
        super().__init__()
        self.gate = Linear(width, inner, bias=bias)
        self.up = Linear(width, inner, bias=bias)
        self.down = Linear(inner, width, bias=bias)
        self.activation = activation

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        """Two projections, one gating the other, narrowed."""
        inner = recording.name(gated(self.gate(x), self.up(x), activation=self.activation), "F")
        y: Tensor = self.down(inner)
        return y


# Name -> (gated?, activation).
FEED_FORWARDS: dict[str, tuple[bool, str]] = {
    **{name: (False, name) for name in PLAIN},
    "swiglu": (True, "silu"),
    "geglu": (True, "gelu"),
    "geglu_tanh": (True, "gelu_tanh"),
    "reglu": (True, "relu"),
    "glu": (True, "sigmoid"),
}


def make_feed_forward(name: str, width: int, inner: int, *, bias: bool = True) -> Module:
    """A feed-forward layer by the name of its activation; UnknownNameError lists the names."""
    if name not in FEED_FORWARDS:
        raise UnknownNameError(what="feed-forward", given=name, allowed=FEED_FORWARDS)
    is_gated, activation = FEED_FORWARDS[name]
    kind = GatedFeedForward if is_gated else FeedForward
    return kind(width, inner, activation=activation, bias=bias)
