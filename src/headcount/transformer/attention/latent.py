"""Latent attention (MLA): keys and values are rebuilt from one narrow vector per token, so that only it is cached.

    c_q = norm(x W_DQ)                 q_n = [c_q W_UQ,n , turn(c_q W_QR,n)]       H + R wide, one per head
    c   = norm(x W_DKV)                r wide, the latent; cached
    k_r = turn(x W_KR)                 R wide, rotary, shared by all heads; cached
    k_n = [W_UK,n c , k_r]             v_n = W_UV,n c
    y   = concat_n(attend(q_n, k_n, v_n)) W_O         scale 1 / sqrt(H + R)

Expanded: k_n and v_n are built for every token, then ordinary attention with K = N heads.

Absorbed: the up-projections move to the other side of the products they stand in,

    (q_n . W_UK,n c) = (W_UK,n^T q_n) . c              sum_j a_j W_UV,n c_j = W_UV,n (sum_j a_j c_j)

so attention runs on the latent itself: queries [W_UK,n^T q_n , q_r] of width r + R against ONE key head [c , k_r], values c of
width r: multi-query attention with unequal key and value widths. Same numbers, other order: more multiplications per
pair (2 r + R instead of H + R + W), but no key or value is ever built, which is what a decode step wants.

Cached per token: r + R numbers, whatever N is: c (1, S, r) and the turned k_r (1, S, R). A prompt on an empty cache runs
expanded, every later step absorbed, as the costs want it; both read what the cache gave back.

The gradients need no rule of their own: every line is an operation with its backward. Source: DeepSeek-V2 report 2024, 2.1
and appendix C.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import Module, Parameter
from torch.nn.init import xavier_uniform_

from headcount.errors import UnknownNameError
from headcount.record import Record
from headcount.transformer.attention.attend import KERNELS, attend
from headcount.transformer.attention.masks import Everything, Mask, simplest
from headcount.transformer.attention.memory import Memory, concat_queries
from headcount.transformer.attention.rule import Rule
from headcount.transformer.layers import Linear, RMSNorm, positive
from headcount.transformer.ops.arithmetic import product, scores
from headcount.transformer.ops.rearrange import CONCAT, CUT, merge_heads, repeat_heads, split_heads
from headcount.transformer.ops.rotary import LAYOUTS, rotary


class LatentHeads(Record):
    """Sizes of a latent attention layer, with Hugging Face's names beside them."""

    width: int  # D, hidden_size
    heads: int  # N, num_attention_heads
    latent: int  # r, kv_lora_rank
    plain_width: int  # H, qk_nope_head_dim
    rotary_width: int  # R, qk_rope_head_dim
    value_width: int  # W, v_head_dim
    query_latent: int | None = None  # q_lora_rank; None projects queries from x directly
    rotary_layout: str = "interleaved"
    kernel: str = "naive"
    bias: bool = False  # attention_bias: of the projections from x and back to it
    scale: float | None = None  # of the scores; None is 1 / sqrt(H + R)

    def _check(self) -> None:
        sizes = {name: getattr(self, name) for name in self._fields[:6]}
        positive("latent attention", **sizes)
        if self.query_latent is not None:
            positive("latent attention", query_latent=self.query_latent)
        if self.kernel not in KERNELS:
            raise UnknownNameError(what="attention kernel", given=self.kernel, allowed=KERNELS)
        if self.rotary_layout not in LAYOUTS:
            raise UnknownNameError(what="rotary layout", given=self.rotary_layout, allowed=LAYOUTS)


class LatentAttention(Module):
    """Multi-head latent attention, expanded or absorbed by argument; the parameters are the same."""

    def __init__(self, shape: LatentHeads) -> None:
        super().__init__()
        self.shape = shape
        query_inputs = shape.width if shape.query_latent is None else shape.query_latent
        per_head = shape.plain_width + shape.rotary_width
        self.query_down = Linear(shape.width, query_inputs, bias=shape.bias) if shape.query_latent else None
        self.query_norm = RMSNorm(query_inputs) if shape.query_latent else None
        self.query_up = Linear(query_inputs, shape.heads * per_head, bias=False)
        self.down = Linear(shape.width, shape.latent + shape.rotary_width, bias=shape.bias)
        self.latent_norm = RMSNorm(shape.latent)
        # One (H, r) and one (W, r) matrix per head, kept apart so that either can be absorbed.
        self.key_up = Parameter(torch.empty(shape.heads, shape.plain_width, shape.latent))
        self.value_up = Parameter(torch.empty(shape.heads, shape.value_width, shape.latent))
        self.output = Linear(shape.heads * shape.value_width, shape.width, bias=shape.bias)
        self.kernel = shape.kernel
        for weight in (self.key_up, self.value_up):
            for head in weight.data:
                xavier_uniform_(head)

    def forward(
        self,
        x_BTD: Float[Tensor, "B T D"],
        *,
        turns: tuple[Tensor, Tensor],
        mask: Mask | None = None,
        absorbed: bool = False,
        memory: Memory | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Self-attention of x; ``turns`` are cos and sin of its rotary positions (``ops.rotary.turns``).

        ``memory`` keeps c and k_r between calls; x is then one row of new tokens, of one conversation or several, and a
        conversation that had tokens before is absorbed.
        """
        shape = self.shape
        c_q = (
            x_BTD
            if self.query_down is None or self.query_norm is None
            else self.query_norm(self.query_down(x_BTD))
        )
        q_plain, q_turned = CUT(
            split_heads(self.query_up(c_q), shape.heads), widths=(shape.plain_width, shape.rotary_width)
        )
        q_turned = rotary(q_turned, *turns, layout=shape.rotary_layout)
        c, k_shared = CUT(self.down(x_BTD), widths=(shape.latent, shape.rotary_width))
        c_B1Sr = split_heads(self.latent_norm(c), 1)
        k_shared = rotary(split_heads(k_shared, 1), *turns, layout=shape.rotary_layout)
        asked = Everything() if mask is None else mask
        if memory is None:
            look = self.absorbed if absorbed else self.expanded
            o_BNTW = look((q_plain, q_turned), c_B1Sr, k_shared, self.rule(asked))
        else:
            o_BNTW = concat_queries(
                (self.absorbed if seen.start else self.expanded)(
                    (q_plain[:, :, seen.rows], q_turned[:, :, seen.rows]),
                    seen.keys,
                    seen.values,
                    self.rule(asked, seen.start, seen.rows.stop - seen.rows.start),
                )
                for seen in memory.extend(c_B1Sr, k_shared)
            )
        y: Tensor = self.output(merge_heads(o_BNTW))
        return y

    def rule(self, mask: Mask, start: int = 0, queries: int = 0) -> Rule:
        """What ``attend`` is asked for queries at ``start`` ...; every earlier key is there."""
        width = self.shape.plain_width + self.shape.rotary_width
        scale = width**-0.5 if self.shape.scale is None else self.shape.scale
        return Rule(mask=simplest(mask, start, queries, start + queries), scale=scale, query_start=start)

    def expanded(self, queries: tuple[Tensor, Tensor], c_B1Sr: Tensor, k_B1SR: Tensor, rule: Rule) -> Tensor:
        """Build keys and values of every token, then ordinary attention."""
        k_BNSH = CONCAT(scores(c_B1Sr, self.key_up), repeat_heads(k_B1SR, self.shape.heads))
        v_BNSW = scores(c_B1Sr, self.value_up)
        return attend(CONCAT(*queries), k_BNSH, v_BNSW, rule=rule, kernel=self.kernel)

    def absorbed(self, queries: tuple[Tensor, Tensor], c_B1Sr: Tensor, k_B1SR: Tensor, rule: Rule) -> Tensor:
        """Carry the queries into the latent, attend there, and carry the result out."""
        q_latent = CONCAT(product(queries[0], self.key_up), queries[1])
        o_latent = attend(q_latent, CONCAT(c_B1Sr, k_B1SR), c_B1Sr, rule=rule, kernel=self.kernel)
        return scores(o_latent, self.value_up)
