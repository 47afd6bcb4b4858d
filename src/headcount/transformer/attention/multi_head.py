"""Multi-head attention with its projections: what the tokens are multiplied by before and after ``attend``.

    Q = x W_Q^T    K = c W_K^T    V = c W_V^T        c = x (self-attention) or another sequence (cross-attention)
    O_n = attend(Q_n, K_n//G, V_n//G)                for each of the N query heads over K key/value heads, G = N / K
    y = concat(O_1, ..., O_N) W_O^T

The head width H and the value width W are free: D / N is a habit (H = W = D / N by default). Optional, in the order
they apply: a clip of Q, K and V, a norm of every query and key (QK-norm), rotary positions, soft cap, a bias per pair
(ALiBi), sinks.

With a cache, K and V of the new tokens are handed to ``memory``, which answers with what the new queries may look at:
their own and all earlier ones, already projected and turned. Nothing is projected twice.

Sources: Vaswani et al. 2017, 3.2.2; Shazeer 2019, Ainslie et al. 2023 (K < N); Henry et al. 2020 (QK-norm).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import Module, Parameter

from headcount.errors import OperandError, UnknownNameError, UsageError
from headcount.record import Record
from headcount.transformer.attention.attend import KERNELS, attend
from headcount.transformer.attention.masks import Everything, Mask, simplest
from headcount.transformer.attention.memory import Bias, Memory, Seen, concat_queries
from headcount.transformer.attention.rule import Rule
from headcount.transformer.layers import Linear, NormShape, positive
from headcount.transformer.ops import recording
from headcount.transformer.ops.rearrange import merge_heads, split_heads
from headcount.transformer.ops.rotary import LAYOUTS, rotary

QK_NORMS = (False, True, "head", "full")


class Heads(Record):
    """The shape of an attention layer; None takes the usual value (K = N, H = D / N, W = H, context D).

    ``output_bias`` None is ``bias``. ``qk_norm``: True or ``head`` norms each head's H numbers, ``full`` all N H (K H) of
    them before they are split; ``norm`` says which norm. ``clip`` c bounds Q, K and V to [-c, c] (MPT, OLMo).
    """

    width: int
    heads: int
    kv_heads: int | None = None
    head_width: int | None = None
    value_width: int | None = None
    context_width: int | None = None
    bias: bool = True
    output_bias: bool | None = None
    qk_norm: bool | str = False
    norm: NormShape = NormShape()
    clip: float | None = None
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
        if self.qk_norm not in QK_NORMS:
            raise UnknownNameError(what="query/key norm", given=str(self.qk_norm), allowed=["head", "full"])
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
        output_bias = shape.bias if shape.output_bias is None else shape.output_bias
        self.output = Linear(shape.heads * shape.W, shape.width, bias=output_bias)
        each = shape.qk_norm != "full"
        self.query_norm = (
            shape.norm.make(shape.H if each else shape.heads * shape.H) if shape.qk_norm else None
        )
        self.key_norm = shape.norm.make(shape.H if each else shape.K * shape.H) if shape.qk_norm else None
        self.kernel = shape.kernel
        self.sinks = Parameter(torch.zeros(shape.heads)) if shape.sinks else None

    def forward(
        self,
        x_BTD: Float[Tensor, "B T D"],
        context_BSC: Float[Tensor, "B S C"] | None = None,
        *,
        mask: Mask | None = None,
        turns: tuple[Tensor, Tensor] | None = None,
        memory: Memory | None = None,
        bias: Bias | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Attend from x to ``context`` (to x itself when None) under ``mask`` (everything when None).

        ``turns`` are cos and sin of the rotary positions of x (``ops.rotary.turns``), shared by all layers of a stack.
        ``memory`` keeps keys and values between calls; x is then one row of new tokens, of one conversation or several.
        """
        shape = self.shape
        context = x_BTD if context_BSC is None else context_BSC
        q_BNTH = self._heads(self.query(x_BTD), shape.heads, self.query_norm)
        k_BKSH, v_BKSW = self.keys_values(context)
        if turns is not None:
            if context is not x_BTD:
                raise OperandError("attention: rotary positions turn one sequence; cross-attention has two")
            q_BNTH = rotary(q_BNTH, *turns, layout=shape.rotary_layout)
            k_BKSH = rotary(k_BKSH, *turns, layout=shape.rotary_layout)
        recording.name(q_BNTH, "Q")
        recording.name(k_BKSH, "K")
        asked = Everything() if mask is None else mask
        if memory is None:
            o_BNTW = self.look(q_BNTH, k_BKSH, v_BKSW, mask=asked, bias=bias)
        else:
            o_BNTW = concat_queries(
                self.look(
                    q_BNTH[:, :, seen.rows],
                    seen.keys,
                    seen.values,
                    mask=asked,
                    bias=bias,
                    start=seen.start,
                    first=seen.first,
                )
                for seen in memory.extend(k_BKSH, v_BKSW)
            )
        y: Tensor = self.output(merge_heads(recording.name(o_BNTW, "O")))
        return y

    def keys_values(self, context_BSC: Tensor) -> tuple[Tensor, Tensor]:
        """K (B, K, S, H), not yet turned, and V (B, K, S, W) of a context: what cross-attention keeps of its source."""
        k_BKSH = self._heads(self.key(context_BSC), self.shape.K, self.key_norm)
        return k_BKSH, recording.name(self._heads(self.value(context_BSC), self.shape.K, None), "V")

    def look_at(self, x_BTD: Tensor, seen: Sequence[Seen], *, mask: Mask | None = None) -> Tensor:
        """Attend from the rows of x to keys and values projected before (``keys_values``): nothing of theirs is new."""
        asked = Everything() if mask is None else mask
        q_BNTH = self._heads(self.query(x_BTD), self.shape.heads, self.query_norm)
        o_BNTW = concat_queries(self.look(q_BNTH[:, :, s.rows], s.keys, s.values, mask=asked) for s in seen)
        y: Tensor = self.output(merge_heads(o_BNTW))
        return y

    def look(
        self,
        q_BNTH: Tensor,
        k_BKSH: Tensor,
        v_BKSW: Tensor,
        *,
        mask: Mask,
        bias: Bias | None = None,
        start: int = 0,
        first: int = 0,
    ) -> Tensor:
        """Attend queries at positions ``start`` ... to keys at ``first`` ... (absolute, of one conversation)."""
        T, S = q_BNTH.shape[2], k_BKSH.shape[2]
        rule = self.shape.rule(simplest(mask, start - first, T, S), start - first)
        told = (
            None if bias is None else bias.between(range(start, start + T), range(first, first + S), q_BNTH)
        )
        return attend(
            q_BNTH, k_BKSH, v_BKSW, rule=rule, sinks_N=self.sinks, bias_BNTS=told, kernel=self.kernel
        )

    def _heads(self, projected: Tensor, heads: int, norm: Module | None) -> Tensor:
        """Clip, norm over all heads, split, norm of each head: whichever this attention has."""
        if self.shape.clip is not None:
            projected = projected.clamp(-self.shape.clip, self.shape.clip)
        if norm is not None and self.shape.qk_norm == "full":
            return split_heads(norm(projected), heads)
        split = split_heads(projected, heads)
        return split if norm is None else norm(split)
