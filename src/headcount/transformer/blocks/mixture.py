"""Mixture of experts as a feed-forward: a router sends each token to k of E experts, and only those are multiplied.

    z = x W_r^T (+ b)                     w, C = route(z)             k weights and the k experts they belong to
    y = sum_{i in C} w_i f_i(x)           f_i(x) = W_down,i (act(W_gate,i x + b) * (W_up,i x + b)) + b
      + g f_shared(x)                     experts every token visits; g = 1, or sigmoid(x w^T) (Qwen 2)

Routing, dispatch, combination and their gradients are ``ops/experts.py``. An expert no token was sent to computes nothing, so
a FLOP counter reads exactly top_k experts per token.

Clamped (gpt-oss), with a = 1.702 and c = 7:  f's product is (clip(u, -c, c) + 1) g sigmoid(a g), g = min(gate, c), which is
silu(a g) (u + 1) / a: an operation that exists, between two scalings.

Sources: Shazeer et al. 2017; Jiang et al. 2024 (Mixtral); DeepSeek-V3 report 2024; OpenAI 2025 (gpt-oss).
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import Module, Parameter
from torch.nn.init import uniform_, xavier_uniform_

from headcount.errors import UnknownNameError, UsageError
from headcount.record import Record
from headcount.transformer.layers import GatedFeedForward, Linear, positive
from headcount.transformer.ops import recording
from headcount.transformer.ops.arithmetic import add, scale
from headcount.transformer.ops.experts import SCORINGS, Groups, combine, dispatch, route
from headcount.transformer.ops.gated import ACTIVATIONS, gated
from headcount.transformer.ops.linear import linear
from headcount.transformer.ops.precision import widen


class RouterShape(Record):
    """How the k experts of a token are chosen and weighed (``ops.experts.route``).

    scoring      softmax or sigmoid of the logits; ``renormalize``: the weights of the chosen sum to one
    correction   the choice (not the weights) adds a bias that is a buffer, set while training without a loss (DeepSeek-V3)
    wide         logits are computed in float32 whatever the weights are
    """

    experts: int
    top_k: int
    scoring: str = "softmax"
    renormalize: bool = True
    scale: float = 1.0
    bias: bool = False
    correction: bool = False
    groups: Groups | None = None
    wide: bool = False

    def _check(self) -> None:
        positive("mixture", experts=self.experts, top_k=self.top_k)
        if self.top_k > self.experts:
            raise UsageError(f"mixture: {self.top_k} experts per token out of {self.experts} is not possible")
        if self.scoring not in SCORINGS:
            raise UnknownNameError(what="router scoring", given=self.scoring, allowed=SCORINGS)


class MixtureShape(Record):
    """A mixture: F of one expert, of the shared one (0: none), activation, biases.

    shared_gate   the shared expert is weighed by a sigmoid per token
    clamp         (a, c) of the clamped product; None: act(gate) * up
    """

    width: int
    inner: int
    router: RouterShape
    activation: str = "silu"
    bias: bool = False
    shared: int = 0
    shared_bias: bool = False
    shared_gate: bool = False
    clamp: tuple[float, float] | None = None

    def _check(self) -> None:
        positive("mixture", width=self.width, inner=self.inner)
        if self.activation not in ACTIVATIONS:
            raise UnknownNameError(what="activation", given=self.activation, allowed=ACTIVATIONS)
        if self.shared_gate and not self.shared:
            raise UsageError("mixture: a gate of the shared expert needs a shared expert")


class Router(Module):
    """Scores every expert for every token, and chooses."""

    def __init__(self, width: int, shape: RouterShape) -> None:
        super().__init__()
        self.shape = shape
        self.weight = Parameter(torch.empty(shape.experts, width))
        self.bias = Parameter(torch.zeros(shape.experts)) if shape.bias else None
        self.correction: Tensor | None
        self.register_buffer("correction", torch.zeros(shape.experts) if shape.correction else None)
        xavier_uniform_(self.weight)

    def forward(self, x_MD: Float[Tensor, "M D"]) -> tuple[Tensor, Tensor]:
        """Weights and indices of the chosen, both ``(M, k)``."""
        shape = self.shape
        if shape.wide:
            bias = None if self.bias is None else widen(self.bias)
            logits = linear(widen(x_MD), widen(self.weight), bias)
        else:
            logits = linear(x_MD, self.weight, self.bias)
        return route(
            recording.name(logits, "router logits"),
            self.correction,
            top_k=shape.top_k,
            scoring=shape.scoring,
            renormalize=shape.renormalize,
            scale=shape.scale,
            groups=shape.groups,
        )


class Mixture(Module):
    """E gated feed-forwards in stacked weights, of which each token visits k; see ``MixtureShape``."""

    def __init__(self, shape: MixtureShape) -> None:
        super().__init__()
        self.shape = shape
        E, F, D = shape.router.experts, shape.inner, shape.width
        self.router = Router(D, shape.router)
        self.gate = Parameter(torch.empty(E, F, D))
        self.up = Parameter(torch.empty(E, F, D))
        self.down = Parameter(torch.empty(E, D, F))
        self.gate_bias = Parameter(torch.zeros(E, F)) if shape.bias else None
        self.up_bias = Parameter(torch.zeros(E, F)) if shape.bias else None
        self.down_bias = Parameter(torch.zeros(E, D)) if shape.bias else None
        self.shared = (
            GatedFeedForward(D, shape.shared, activation=shape.activation, bias=shape.shared_bias)
            if shape.shared
            else None
        )
        self.shared_gate = Linear(D, 1, bias=False) if shape.shared_gate else None
        # Glorot's range of one expert's matrix.
        reach = math.sqrt(6 / (F + D))
        for stack in (self.gate, self.up, self.down):
            uniform_(stack, -reach, reach)

    def forward(self, x_BTD: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        """Every token through its k experts, and through the shared one."""
        x_MD = x_BTD.reshape(-1, x_BTD.shape[-1])
        weights_Mk, chosen_Mk = self.router(x_MD)
        parts, order = dispatch(x_MD, chosen_Mk, experts=self.shape.router.experts)
        y = combine(self._experts(parts), weights_Mk, order)
        if self.shared is not None:
            y = add(y, self._visited_by_all(x_MD, self.shared))
        return y.view(x_BTD.shape)

    def _experts(self, parts: tuple[Tensor, ...]) -> list[Tensor]:
        """f_e of the rows that were sent to expert e."""
        # One gradient for each whole stack: taking matrices one at a time would make a full-sized one per expert.
        apart = torch.is_grad_enabled()
        gates, ups, downs = (w.unbind() if apart else w for w in (self.gate, self.up, self.down))
        biases = (self.gate_bias, self.up_bias, self.down_bias)
        by_expert = [None if b is None else b.unbind() if apart else b for b in biases]
        results = []
        for e, x in enumerate(parts):
            if not len(x):
                results.append(x)
                continue
            gate_bias, up_bias, down_bias = (None if b is None else b[e] for b in by_expert)
            inner = self._product(linear(x, gates[e], gate_bias), linear(x, ups[e], up_bias))
            results.append(linear(recording.name(inner, "F"), downs[e], down_bias))
        return results

    def _product(self, gate: Tensor, up: Tensor) -> Tensor:
        if self.shape.clamp is None:
            return gated(gate, up, activation=self.shape.activation)
        slope, limit = self.shape.clamp
        turned = scale(gate.clamp(max=limit), slope)
        return scale(gated(turned, up.clamp(-limit, limit) + 1, activation="silu"), 1 / slope)

    def _visited_by_all(self, x_MD: Tensor, shared: Module) -> Tensor:
        y: Tensor = shared(x_MD)
        if self.shared_gate is None:
            return y
        return gated(self.shared_gate(x_MD).expand_as(y), y, activation="sigmoid")
