"""Real blocks, small enough to be drawn: built by the transformer's own modules, run forward and backward on a tape.

encoder         post-norm, feed-forward with ReLU: the block of the original
decoder         three sub-layers: masked attention, attention to the encoder, feed-forward
pre-norm        the encoder block with its norms before the sub-layers
parallel        one norm, attention and feed-forward side by side
gated           pre-norm, RMSNorm, SwiGLU, four query heads over two key/value heads: the modern block
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import Module

from headcount.explain.graph import Graph, graph_of, with_constant
from headcount.record import Record
from headcount.transformer.attention.masks import Causal
from headcount.transformer.attention.multi_head import Heads
from headcount.transformer.blocks.block import BlockShape, DecoderBlock, EncoderBlock
from headcount.transformer.ops.arithmetic import product, total
from headcount.transformer.ops.recording import name, record

TOKENS, WIDTH = 3, 4
WORDS = {
    "encoder": "one encoder block of the original, post-norm",
    "decoder": "one decoder block of the original: three sub-layers, post-norm",
    "pre-norm": "one block with its norms before the sub-layers",
    "parallel": "one block with attention and feed-forward side by side",
    "gated": "one modern block: pre-norm, RMSNorm, SwiGLU, grouped key/value heads",
}


class Run(Record):
    """A block that ran: the module, its input and output, the encoder's output a decoder block read, the graph."""

    block: EncoderBlock | DecoderBlock
    x: Tensor
    encoded: Tensor | None
    out: Tensor
    graph: Graph


def shape_of(kind: str, *, width: int = WIDTH, heads: int = 2, feed_forward: int | None = None) -> BlockShape:
    """The block's shape by its name in ``WORDS``."""
    gated = kind == "gated"
    return BlockShape(
        attention=Heads(
            width=width,
            heads=2 * heads if gated else heads,
            kv_heads=heads if gated else None,
            head_width=width // heads if gated else None,
            bias=not gated,
            kernel="composed",
        ),
        feed_forward=feed_forward or 2 * width,
        activation="swiglu" if gated else "relu",
        norm={"encoder": "post", "decoder": "post", "parallel": "parallel"}.get(kind, "pre"),
        norm_kind="rms_norm" if gated else "layer_norm",
    )


def make_block(kind: str, *, seed: int, **sizes: int) -> EncoderBlock | DecoderBlock:
    """The module in float64, its weights from ``seed``, dropout off."""
    shape = shape_of(kind, **sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        block = DecoderBlock(shape) if kind == "decoder" else EncoderBlock(shape)
    return block.double().eval()


def run_block(kind: str, *, seed: int = 0, tokens: int = TOKENS, **sizes: int) -> Run:
    """Run it on random tokens, read each out by one random vector u, L = sum of y u, run backward.

    The plain sum would give a post-norm block no gradient at all: LayerNorm's outputs sum to a constant.
    """
    block = make_block(kind, seed=seed, **sizes)
    width = sizes.get("width", WIDTH)
    stream = torch.Generator().manual_seed(seed)
    x = torch.randn(1, tokens, width, generator=stream, dtype=torch.float64).requires_grad_()
    readout = torch.randn(width, 1, generator=stream, dtype=torch.float64)
    encoded = None
    with record() as tape:
        for letter, parameter in _letters(block).items():
            name(parameter, letter)
        name(x, "x")
        if kind == "decoder":
            encoded = torch.randn(1, tokens, width, generator=stream, dtype=torch.float64).requires_grad_()
            name(encoded, "M")
            out = block(x, encoded, mask=Causal())
        else:
            out = block(x, mask=Causal() if kind == "gated" else None)
        name(out, "y")
        z = name(product(out, name(readout, "u")), "z")
        name(total(z), "L").backward()  # type: ignore[no-untyped-call]
    graph = with_constant(graph_of(tape), 1 / math.sqrt(shape_of(kind, **sizes).attention.H))
    return Run(block=block, x=x, encoded=encoded, out=out, graph=graph)


_LETTERS = {
    "query": "Q", "key": "K", "value": "V", "output": "O", "up": "up", "down": "down", "gate": "gate",
}  # fmt: skip


def _letters(block: Module) -> dict[str, Tensor]:
    """``attention.query.weight`` -> ``W_Q``; cross-attention's are ``W_Qc``; norms have w and b by sub-layer."""
    norms = {"attention": "1", "feed_forward": "2", "shared": ""}
    if hasattr(block, "cross_attention"):
        norms = {"attention": "1", "cross_attention": "2", "feed_forward": "3"}
    found: dict[str, Tensor] = {}
    for path, parameter in block.named_parameters():
        parts = path.split(".")
        sign = "W" if parts[-1] == "weight" else "b"
        if parts[0] == "norms":
            found[("w" if sign == "W" else "b") + "_n" + norms[parts[1]]] = parameter
        else:
            found[f"{sign}_{_LETTERS[parts[-2]]}" + ("c" if parts[0] == "cross_attention" else "")] = (
                parameter
            )
    return found
