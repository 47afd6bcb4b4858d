"""The toy task of scaling.py and heads.py, and a small network for it.

A sequence of n tokens; token i carries a key (the n keys are a permutation), a value (one of 16) and a query (another
permutation of the keys). Every token is asked

    far     the value of the token whose key equals its query      attention by content
    near    the value of the token before it (circularly)          attention by position

``far`` alone needs one pattern of attention, both at once need two. Every batch is new, so accuracy in training is
accuracy on unseen data.

Network: x = E_key + E_value + E_query + E_position, pre-norm blocks (or bare attention), a last norm, one linear readout
per question. Queries and keys start with variance 1 per component, as the variance argument assumes:
W_Q, W_K ~ N(0, 1/D) on normalised input.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Module, ModuleDict, ModuleList
from torch.nn.init import normal_

from headcount.record import Record
from headcount.transformer.attention.multi_head import Heads, MultiHeadAttention
from headcount.transformer.blocks.block import BlockShape, EncoderBlock
from headcount.transformer.layers import Embedding, LayerNorm, Linear
from headcount.transformer.ops.arithmetic import add
from headcount.transformer.ops.cross_entropy import cross_entropy

VALUES = 16
BATCH = 32
FAR, NEAR = "far", "near"


class Batch(NamedTuple):
    """Token parts (B, n) by name, and the answers (B, n) by question."""

    parts: dict[str, Tensor]
    answers: dict[str, Tensor]


def draw_batch(size: int, tokens: int, stream: torch.Generator) -> Batch:
    """``size`` new sequences of ``tokens`` tokens."""
    keys = torch.rand(size, tokens, generator=stream).argsort(1)
    queries = torch.rand(size, tokens, generator=stream).argsort(1)
    values = torch.randint(0, VALUES, (size, tokens), generator=stream)
    positions = torch.arange(tokens).expand(size, tokens)
    # argsort inverts a permutation: where each key is, looked up by what each token asks for.
    holder = keys.argsort(1).gather(1, queries)
    parts = {"key": keys, "value": values, "query": queries, "position": positions}
    return Batch(parts, {FAR: values.gather(1, holder), NEAR: values.roll(1, 1)})


class LookupShape(Record):
    """The network: ``blocks`` 0 is one attention layer without feed-forward; ``questions`` are FAR, NEAR or both."""

    tokens: int
    width: int
    heads: int
    head_width: int
    value_width: int
    scale: float | None = None
    blocks: int = 1
    questions: tuple[str, ...] = (FAR,)

    def attention(self) -> Heads:
        """Every attention layer's shape."""
        return Heads(
            width=self.width,
            heads=self.heads,
            head_width=self.head_width,
            value_width=self.value_width,
            scale=self.scale,
            bias=False,
        )


class BareAttention(Module):
    """x + attention(LN(x)): a pre-norm block without its feed-forward."""

    def __init__(self, shape: Heads) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(shape)
        self.norms = ModuleDict({"attention": LayerNorm(shape.width)})

    def forward(self, x: Tensor) -> Tensor:
        """The attention sub-layer and its residual sum."""
        return add(x, self.attention(self.norms["attention"](x)))


class LookupNetwork(Module):
    """Token parts to one row of logits per question."""

    def __init__(self, shape: LookupShape) -> None:
        super().__init__()
        self.shape = shape
        sizes = {"key": shape.tokens, "value": VALUES, "query": shape.tokens, "position": shape.tokens}
        self.tables = ModuleDict({name: Embedding(size, shape.width) for name, size in sizes.items()})
        heads = shape.attention()
        if shape.blocks:
            block = BlockShape(attention=heads, feed_forward=4 * shape.width, norm="pre")
            self.layers = ModuleList(EncoderBlock(block) for _ in range(shape.blocks))
        else:
            self.layers = ModuleList([BareAttention(heads)])
        self.norm = LayerNorm(shape.width)
        self.readouts = ModuleDict({question: Linear(shape.width, VALUES) for question in shape.questions})
        for name, weight in self.named_parameters():
            if name.startswith("tables"):
                normal_(weight, std=0.5)
            elif "attention.query" in name or "attention.key" in name:
                normal_(weight, std=1 / math.sqrt(shape.width))

    def embed(self, batch: Batch) -> Tensor:
        """The sum of the four embeddings, (B, n, D)."""
        found = [self.tables[name](ids) for name, ids in batch.parts.items()]
        x: Tensor = found[0]
        for part in found[1:]:
            x = add(x, part)
        return x

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Logits (B, n, 16) by question."""
        x = self.embed(batch)
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        return {question: readout(x) for question, readout in self.readouts.items()}

    def loss(self, batch: Batch) -> Tensor:
        """Mean over the questions of the cross-entropy, in nats; ln 16 = 2.77 when nothing is known."""
        losses = [cross_entropy(logits, batch.answers[name]) for name, logits in self(batch).items()]
        total = losses[0]
        for each in losses[1:]:
            total = add(total, each)
        return total / len(losses)

    @torch.no_grad()
    def accuracy(self, batch: Batch) -> dict[str, float]:
        """Share of right answers by question, and of tokens with all answers right under ``all``."""
        right = {name: logits.argmax(-1) == batch.answers[name] for name, logits in self(batch).items()}
        together = torch.stack(list(right.values())).all(0)
        return {name: float(each.float().mean()) for name, each in {**right, "all": together}.items()}

    @torch.no_grad()
    def score_deviation(self, batch: Batch) -> float:
        """Standard deviation of the first layer's scaled scores q.k: 1 when the scale normalises them."""
        layer, shape = self.layers[0], self.shape
        x = layer.norms["attention"](self.embed(batch))  # type: ignore[operator, index]
        split = (-1, shape.tokens, shape.heads, shape.head_width)
        q, k = (getattr(layer.attention, name)(x).view(split).transpose(1, 2) for name in ("query", "key"))
        scale = 1 / math.sqrt(shape.head_width) if shape.scale is None else shape.scale
        scores: Tensor = q @ k.mT * scale
        return float(scores.std())


class Trace(NamedTuple):
    """Loss of every step; ``diverged`` when it stopped being finite (the run ends there)."""

    losses: list[float]
    diverged: bool

    def last(self, count: int = 20) -> float | None:
        """Mean loss of the last steps; None after divergence."""
        return None if self.diverged else sum(self.losses[-count:]) / len(self.losses[-count:])

    def steps_to(self, goal: float, window: int = 10) -> int | None:
        """First step at which the mean of the last ``window`` losses is below ``goal``; None if never."""
        for end in range(window, len(self.losses) + 1):
            if sum(self.losses[end - window : end]) / window < goal:
                return end
        return None


def train(
    network: LookupNetwork, optimizer: torch.optim.Optimizer, *, steps: int, stream: torch.Generator
) -> Trace:
    """Minimise the loss on ``steps`` new batches of ``stream``."""
    losses: list[float] = []
    for _ in range(steps):
        loss = network.loss(draw_batch(BATCH, network.shape.tokens, stream))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
        if not math.isfinite(losses[-1]):
            return Trace(losses, True)
    return Trace(losses, False)
