"""Multi-head attention with its projections: what the tokens are multiplied by before and after ``attend``.

    Q = x W_Q^T    K = c W_K^T    V = c W_V^T        c = x (self-attention) or another sequence (cross-attention)
    O_n = attend(Q_n, K_n//G, V_n//G)                for each of the N query heads over K key/value heads, G = N / K
    y = concat(O_1, ..., O_N) W_O^T

The head width H and the value width W are free: D / N is a habit (H = W = D / N by default). Optional, in the order
they apply: RMS norm of every query and key (QK-norm), rotary positions, soft cap, sinks.

Sources: Vaswani et al. 2017, 3.2.2; Shazeer 2019, Ainslie et al. 2023 (K < N); Henry et al. 2020 (QK-norm).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import Module, Parameter

from headcount.errors import OperandError, UnknownNameError, UsageError
from headcount.record import Record
from headcount.transformer.attention.attend import KERNELS, attend
from headcount.transformer.attention.masks import Everything, Mask
from headcount.transformer.attention.rule import Rule
from headcount.transformer.layers import Linear, RMSNorm, positive
from headcount.transformer.ops import recording
from headcount.transformer.ops.rearrange import merge_heads, split_heads
from headcount.transformer.ops.rotary import LAYOUTS, rotary


class Heads(Record):
    """The shape of an attention layer; None takes the usual value (K = N, H = D / N, W = H, context D)."""

    width: int
    heads: int
    kv_heads: int | None = None
    head_width: int | None = None
    value_width: int | None = None
    context_width: int | None = None
    bias: bool = True
    qk_norm: bool = False
    sinks: bool = False
    soft_cap: float | None = None
    scale: float | None = None
    rotary_layout: str = "half"
    kernel: str = "naive"

    def _check(self) -> None:
        positive("attention", width=self.width, heads=self.heads)
        for name in ("kv_heads", "head_width", "value_width", "context_width"):
            if getattr(self, name) is not None:
                positive("attention", **{name: getattr(self, name)})
        if self.head_width is None and self.width % self.heads:
            raise UsageError(
                f"attention: width {self.width} does not divide into {self.heads} heads; "
                "change one of them or give head_width"
            )
        if self.heads % self.K:
            raise UsageError(
                f"attention: {self.heads} query heads do not divide among {self.K} key/value heads; "
                "heads must be a multiple of kv_heads"
            )
        if self.kernel not in KERNELS:
            raise UnknownNameError(what="attention kernel", given=self.kernel, allowed=KERNELS)
        if self.rotary_layout not in LAYOUTS:
            raise UnknownNameError(what="rotary layout", given=self.rotary_layout, allowed=LAYOUTS)
        self.rule(Everything())

    @property
    def K(self) -> int:  # noqa: N802
        """Key/value heads."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def H(self) -> int:  # noqa: N802
        """Width of a query and a key."""
        return self.width // self.heads if self.head_width is None else self.head_width

    @property
    def W(self) -> int:  # noqa: N802
        """Width of a value."""
        return self.H if self.value_width is None else self.value_width

    def rule(self, mask: Mask, query_start: int = 0) -> Rule:
        """What ``attend`` is asked."""
        return Rule(mask=mask, scale=self.scale, soft_cap=self.soft_cap, query_start=query_start)


class MultiHeadAttention(Module):
    """Projections W_Q, W_K, W_V, W_O around ``attend``; see ``Heads`` for the options."""

    def __init__(self, shape: Heads) -> None:
        super().__init__()
        self.shape = shape
        context = shape.width if shape.context_width is None else shape.context_width
        self.query = Linear(shape.width, shape.heads * shape.H, bias=shape.bias)
        self.key = Linear(context, shape.K * shape.H, bias=shape.bias)
        self.value = Linear(context, shape.K * shape.W, bias=shape.bias)
        self.output = Linear(shape.heads * shape.W, shape.width, bias=shape.bias)
        self.query_norm = RMSNorm(shape.H) if shape.qk_norm else None
        self.key_norm = RMSNorm(shape.H) if shape.qk_norm else None
        self.sinks = Parameter(torch.zeros(shape.heads)) if shape.sinks else None

    def forward(
        self,
        x_BTD: Float[Tensor, "B T D"],
        context_BSC: Float[Tensor, "B S C"] | None = None,
        *,
        mask: Mask | None = None,
        turns: tuple[Tensor, Tensor] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Attend from x to ``context`` (to x itself when None) under ``mask`` (everything when None).

        ``turns`` are cos and sin of the rotary positions of x (``ops.rotary.turns``), shared by all layers of a stack.
        """
        shape = self.shape
        context = x_BTD if context_BSC is None else context_BSC
        q_BNTH = split_heads(self.query(x_BTD), shape.heads)
        k_BKSH = split_heads(self.key(context), shape.K)
        v_BKSW = recording.name(split_heads(self.value(context), shape.K), "V")
        if self.query_norm is not None and self.key_norm is not None:
            q_BNTH, k_BKSH = self.query_norm(q_BNTH), self.key_norm(k_BKSH)
        if turns is not None:
            if context is not x_BTD:
                raise OperandError("attention: rotary positions turn one sequence; cross-attention has two")
            q_BNTH = rotary(q_BNTH, *turns, layout=shape.rotary_layout)
            k_BKSH = rotary(k_BKSH, *turns, layout=shape.rotary_layout)
        recording.name(q_BNTH, "Q")
        recording.name(k_BKSH, "K")
        rule = shape.rule(Everything() if mask is None else mask)
        o_BNTW = attend(q_BNTH, k_BKSH, v_BKSW, rule=rule, sinks_N=self.sinks, kernel=shape.kernel)
        y: Tensor = self.output(merge_heads(recording.name(o_BNTW, "O")))
        return y
