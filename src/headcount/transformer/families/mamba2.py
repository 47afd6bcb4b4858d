"""Mamba-2: a mixer without keys and values; each head carries one matrix from token to token.

    g, u, d = x W_in^T                                 gate I, convolved I + 2 G S, time step N
    v, b, c = act(conv(u))                             causal, one filter of K taps per channel
    s_t     = softplus(d_t + d_0), clipped             step size of each head
    h_t     = exp(-s_t exp(A)) h_t-1 + (s_t v_t) b_t^T       (P, S), one per head; b and c are shared by the N / G heads
    o_t     = h_t c_t + D v_t                                of a group
    y       = norm(o * silu(g)) W_out^T                the norm runs over each group's I / G numbers

The recurrence is written as it stands: one update and one read per token, each a matrix product of P S multiply-adds per
head, so that a FLOP counter reads 2 per element of the state and token. Its backward comes from the operations it is made of.

A conversation keeps the last K - 1 columns of u and h, whatever its length. Conversations of one call that bring
equally many tokens run as one batch.

Letters: N heads of width P, I = N P, G groups, S numbers of state per row. Half precision is widened inside the recurrence.
Source: Dao, Gu 2024 (arXiv 2405.21060).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import Module, Parameter, functional

from headcount.errors import UnknownNameError, UnsupportedModelError
from headcount.record import Record
from headcount.spec.attention import StateSpace
from headcount.spec.model import LayerSpec, ModelSpec
from headcount.transformer.attention.masks import Padding
from headcount.transformer.families.settings import Settings
from headcount.transformer.families.step import Step
from headcount.transformer.families.style import Style, attention
from headcount.transformer.layers import PLAIN, Linear, positive
from headcount.transformer.ops.arithmetic import product
from headcount.transformer.ops.gated import gated
from headcount.transformer.ops.precision import widen
from headcount.transformer.ops.rearrange import CONCAT, CUT
from headcount.transformer.ops.rms_norm import rms_norm

# What a hybrid's layers of this kind are called in its checkpoint; the rows of its attention stand before them.
NAMES = """
layers.{i}.mixer.output.weight          model.layers.{i}.mamba.out_proj.weight
layers.{i}.mixer.output.bias            model.layers.{i}.mamba.out_proj.bias
layers.{i}.mixer.input.weight           model.layers.{i}.mamba.in_proj.weight
layers.{i}.mixer.input.bias             model.layers.{i}.mamba.in_proj.bias
layers.{i}.mixer.conv.weight            model.layers.{i}.mamba.conv1d.weight
layers.{i}.mixer.conv.bias              model.layers.{i}.mamba.conv1d.bias
layers.{i}.mixer.step_bias              model.layers.{i}.mamba.dt_bias
layers.{i}.mixer.decay_log              model.layers.{i}.mamba.A_log
layers.{i}.mixer.skip                   model.layers.{i}.mamba.D
layers.{i}.mixer.norm_weight            model.layers.{i}.mamba.norm.weight
"""


class MambaShape(Record):
    """Sizes of a Mamba-2 mixer; ``limit`` bounds the step sizes."""

    width: int
    heads: int
    head_width: int
    groups: int
    state: int
    taps: int
    activation: str = "silu"
    bias: bool = False
    conv_bias: bool = True
    eps: float = 1e-5
    limit: tuple[float, float] = (0.0, math.inf)

    def _check(self) -> None:
        sizes = {name: getattr(self, name) for name in self._fields[:6]}
        positive("Mamba-2", **sizes)
        if self.heads % self.groups:
            raise UnsupportedModelError(
                f"Mamba-2: {self.heads} heads do not divide into {self.groups} groups"
            )
        if self.activation not in PLAIN:
            raise UnknownNameError(what="activation", given=self.activation, allowed=PLAIN)

    @property
    def inner(self) -> int:
        """I = N P."""
        return self.heads * self.head_width

    @property
    def channels(self) -> int:
        """What is convolved: I + 2 G S."""
        return self.inner + 2 * self.groups * self.state


class Carried(NamedTuple):
    """What goes from token to token: columns (B, C, K - 1) of u, and h (B, G, I / G, S)."""

    columns: Tensor
    state: Tensor


class Convolution(Module):
    """One causal filter of K taps per channel; weight (C, 1, K) as PyTorch stores it."""

    def __init__(self, channels: int, taps: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = Parameter(torch.empty(channels, 1, taps))
        self.bias = Parameter(torch.zeros(channels)) if bias else None
        torch.nn.init.uniform_(self.weight, -(taps**-0.5), taps**-0.5)

    def forward(self, u_BCT: Float[Tensor, "B C T"]) -> Float[Tensor, "B C U"]:
        """``(B, C, K - 1 + T) -> (B, C, T)``: the first K - 1 columns are the past."""
        return functional.conv1d(u_BCT, self.weight, self.bias, groups=len(self.weight))


class Mamba2(Module):
    """The mixer; parameters as the published ones, under readable names."""

    def __init__(self, shape: MambaShape) -> None:
        super().__init__()
        self.shape = shape
        self.input = Linear(shape.width, shape.inner + shape.channels + shape.heads, bias=shape.bias)
        self.conv = Convolution(shape.channels, shape.taps, bias=shape.conv_bias)
        self.step_bias = Parameter(torch.ones(shape.heads))
        self.decay_log = Parameter(torch.arange(1, shape.heads + 1, dtype=torch.float32).log())
        self.skip = Parameter(torch.ones(shape.heads))
        self.norm_weight = Parameter(torch.ones(shape.inner))
        self.output = Linear(shape.inner, shape.width, bias=shape.bias)

    def forward(self, x_BTD: Float[Tensor, "B T D"], step: Step) -> Float[Tensor, "B T D"]:
        """``(B, T, D) -> (B, T, D)``; with a cache B = 1, the conversations of the call one after another."""
        shape, keep = self.shape, _keep(step)
        gate, u, d = CUT(self.input(x_BTD), widths=(shape.inner, shape.channels, shape.heads))
        memory = step.memory()
        if memory is None:
            # Padding in front must leave the state as it was before the first token: zero.
            u = u if keep is None else u * keep
            o_BTI, _ = self.scan(u, d, self.start(u), keep)
        else:
            o_BTI = self._recall(u, d, memory)
        y: Tensor = self.output(self._norm(o_BTI, gate))
        return y

    def start(self, u_BTC: Float[Tensor, "B T C"]) -> Carried:
        """Zeros: nothing was read yet."""
        shape, B = self.shape, len(u_BTC)
        wide = widen(u_BTC)
        return Carried(
            u_BTC.new_zeros(B, shape.channels, shape.taps - 1),
            wide.new_zeros(B, shape.groups, shape.inner // shape.groups, shape.state),
        )

    def scan(
        self, u_BTC: Tensor, d_BTN: Tensor, before: Carried, keep: Tensor | None = None
    ) -> tuple[Float[Tensor, "B T I"], Carried]:
        """The recurrence over T tokens from ``before``: o of every token, and what the next one starts from."""
        shape = self.shape
        B, T = d_BTN.shape[:2]
        columns = CONCAT(before.columns, u_BTC.mT)
        mixed = PLAIN[shape.activation](self.conv(columns)).mT
        mixed = widen(mixed if keep is None else mixed * keep)
        v_BTI, b, c = CUT(mixed, widths=(shape.inner, shape.groups * shape.state, shape.groups * shape.state))
        b_TBG1S = b.reshape(B, T, shape.groups, 1, shape.state).transpose(0, 1)
        c_TBGS1 = c.reshape(B, T, shape.groups, shape.state, 1).transpose(0, 1)
        s_BTN = functional.softplus(widen(d_BTN) + widen(self.step_bias)).clamp(*shape.limit)
        decay_BTN = (-s_BTN * widen(self.decay_log).exp()).exp()
        v_BTNP = v_BTI.reshape(B, T, shape.heads, shape.head_width)
        taken = self._rows(v_BTNP * s_BTN[..., None])
        decay = self._rows(decay_BTN[..., None].expand_as(v_BTNP))
        state, read = widen(before.state), []
        for t in range(T):
            state = state * decay[t] + product(taken[t], b_TBG1S[t])
            read.append(product(state, c_TBGS1[t]))
        o_BTNP = torch.stack(read, 1).view(v_BTNP.shape) + v_BTNP * widen(self.skip)[:, None]
        return o_BTNP.flatten(2), Carried(columns[..., T:], state)

    def _rows(self, x_BTNP: Tensor) -> Tensor:
        """``(T, B, G, I / G, 1)``: the rows of all heads of a group are one column."""
        B, T = x_BTNP.shape[:2]
        return x_BTNP.reshape(B, T, self.shape.groups, -1, 1).transpose(0, 1)

    def _norm(self, o_BTI: Tensor, gate_BTI: Tensor) -> Tensor:
        """norm(o * silu(g)) over each group, in the precision of the recurrence until the weight."""
        inner = gated(widen(gate_BTI), o_BTI, activation="silu")
        normed = rms_norm(inner.view(*inner.shape[:-1], self.shape.groups, -1), None, eps=self.shape.eps)
        return normed.flatten(-2).to(gate_BTI.dtype) * self.norm_weight

    def _recall(self, u_1TC: Tensor, d_1TN: Tensor, memory: Any) -> Tensor:
        """Each conversation from the state it left, those with equally many new tokens together."""
        rows = memory.rows()
        by_count: dict[int, list[int]] = {}
        for number, (part, _, _) in enumerate(rows):
            by_count.setdefault(part.stop - part.start, []).append(number)
        outs: list[Tensor] = [d_1TN] * len(rows)
        for count, numbers in by_count.items():
            parts, caches = [rows[i][0] for i in numbers], [rows[i][1] for i in numbers]
            u = torch.cat([u_1TC[:, part] for part in parts])
            d = torch.cat([d_1TN[:, part] for part in parts])
            o, after = self.scan(u, d, self._carried(caches, u))
            for i, cache, columns, state, out in zip(
                numbers, caches, after.columns, after.state, o, strict=True
            ):
                cache.write(columns, state, tokens=count)
                outs[i] = out
        return torch.cat(outs)[None]

    def _carried(self, caches: Sequence[Any], like: Tensor) -> Carried:
        """The states of several conversations as one batch."""
        shape = self.shape
        states = [cache.read() for cache in caches]
        return Carried(
            torch.stack([state.conv for state in states])
            .to(like.dtype)
            .view(-1, shape.channels, shape.taps - 1),
            widen(torch.stack([state.recurrent for state in states])).view(
                -1, shape.groups, shape.inner // shape.groups, shape.state
            ),
        )


def _keep(step: Step) -> Tensor | None:
    """Which tokens are real, ``(B, T, 1)``; None: all of them."""
    if step.padding is None:
        return None
    if not isinstance(step.padding, Padding):
        raise UnsupportedModelError("Mamba-2 knows padding alone, no other mask")
    return step.padding.keep_BS[..., None]


def read_mamba(settings: Settings, mixer: StateSpace, *, activation: str, eps: float) -> MambaShape:
    """The shape that a config of Bamba's spelling (``mamba_*``) states; the spec has checked that heads fill I."""
    if mixer.family != "mamba2":
        raise UnsupportedModelError(f"the transformer does not run {mixer.family} layers")
    width = settings.spec.hidden_size
    heads = settings.integer("mamba_n_heads", default=128, least=1)
    low, high = _limit(settings)
    return MambaShape(
        width=width,
        heads=heads,
        head_width=settings.integer("mamba_expand", default=2) * width // heads,
        groups=settings.integer("mamba_n_groups", default=1, least=1),
        state=settings.integer("mamba_d_state", default=256),
        taps=settings.integer("mamba_d_conv", default=4, least=2),
        activation=activation,
        bias=settings.flag("mamba_proj_bias"),
        conv_bias=settings.flag("mamba_conv_bias", default=True),
        eps=eps,
        limit=(low, high),
    )


def _limit(settings: Settings) -> tuple[float, float]:
    """``time_step_limit``; an infinite end is written as a number, a word, or an object that holds the word."""
    stated = settings.value("time_step_limit")
    if stated is None:
        return 0.0, math.inf
    ends = []
    for end in stated if isinstance(stated, list) else ():
        word = end.get("__float__") if isinstance(end, dict) else end
        if word in ("Infinity", "inf"):
            word = math.inf
        if isinstance(word, bool) or not isinstance(word, int | float) or word < 0:
            break
        ends.append(float(word))
    if len(ends) != 2:
        raise UnsupportedModelError(
            f"time_step_limit must be two numbers of 0 or more; given {str(stated)[:40]}"
        )
    return ends[0], ends[1]


def hybrid_mixer(spec: ModelSpec, style: Style, settings: Settings) -> Callable[[LayerSpec, int], Module]:
    """The mixer of a layer by what it keeps: a state, or keys and values."""

    def mixer(layer: LayerSpec, index: int) -> Module:
        kept = layer.mixers[0]
        if isinstance(kept, StateSpace):
            return Mamba2(read_mamba(settings, kept, activation=style.activation, eps=style.norm.eps))
        return attention(spec, style, layer, index)

    return mixer
