"""What every stack begins and ends with: embeddings with positions, a column of blocks, the last norm.

x_0 = Drop(E[ids] c + positions)      c = sqrt(D) with sinusoids, whose entries are of size 1; else 1
x_L = Block_L(... Block_1(x_0))
y   = LN(x_L)                         only after pre-norm and parallel blocks, whose stream nobody has normalised yet
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import Identity, Module, ModuleList
from torch.nn.init import normal_

from headcount.transformer.layers import Dropout, Embedding, make_norm
from headcount.transformer.ops import recording
from headcount.transformer.ops.arithmetic import scale
from headcount.transformer.ops.positions import learned_positions, sinusoidal_positions
from headcount.transformer.ops.rotary import turns
from headcount.transformer.ops.rotary_frequencies import rotary_frequencies
from headcount.transformer.stacks.config import StackConfig


class Inputs(Module):
    """Token ids to vectors: the embedding table (also the output projection), positions, dropout."""

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.embedding = Embedding(config.vocabulary, config.width)
        self.kind = config.positions
        self.factor = math.sqrt(config.width) if config.positions == "sinusoidal" else 1.0
        self.positions = Embedding(config.max_length, config.width) if config.positions == "learned" else None
        self.head_width = config.block().attention.H
        self.dropout = Dropout(config.dropout)
        if config.positions != "sinusoidal":
            # Unscaled rows enter the stream as they are; small ones keep the first logits near zero (GPT-2's 0.02).
            normal_(self.embedding.weight, std=0.02)
            if self.positions is not None:
                normal_(self.positions.weight, std=0.02)

    def forward(self, ids_BT: Int[Tensor, "B T"], *, start: int = 0) -> Float[Tensor, "B T D"]:
        """Embed, add positions from ``start`` on, drop."""
        with recording.scope("inputs"):
            x: Tensor = self.embedding(ids_BT)
            if self.factor != 1.0:
                x = scale(x, self.factor)
            if self.kind == "sinusoidal":
                x = sinusoidal_positions(x, start=start)
            elif self.positions is not None:
                x = learned_positions(x, self.positions.weight, start=start)
            y: Tensor = self.dropout(x)
            return y

    def turns(self, x_BTD: Float[Tensor, "B T D"]) -> tuple[Tensor, Tensor] | None:
        """Cos and sin of rotary positions 0 ... T - 1, shared by all blocks; None for the other kinds."""
        if self.kind != "rotary":
            return None
        frequencies, _ = rotary_frequencies("default", self.head_width)
        positions_T = torch.arange(x_BTD.shape[1], device=x_BTD.device)
        # Angles in float32 at least: at position 1,000 bfloat16 would round them to multiples of 8 radians.
        wide = torch.promote_types(x_BTD.dtype, torch.float32)
        return turns(positions_T, frequencies.to(x_BTD.device, wide), dtype=x_BTD.dtype)


class Column(Module):
    """Blocks one above the other, and the last norm where the blocks leave the stream unnormalised."""

    def __init__(self, config: StackConfig, make_block: Callable[[], Module]) -> None:
        super().__init__()
        self.blocks = ModuleList(make_block() for _ in range(config.layers))
        self.norm = Identity() if config.norm == "post" else make_norm(config.norm_kind, config.width)

    def climb(self, x_BTD: Tensor, run: Callable[[Module, Tensor], Tensor]) -> Tensor:
        """``run(block, x)`` for every block, then the norm."""
        for number, block in enumerate(self.blocks):
            with recording.scope(f"block {number}"):
                x_BTD = run(block, x_BTD)
        y: Tensor = self.norm(x_BTD)
        return y
