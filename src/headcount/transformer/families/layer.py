"""One layer of a family: a mixer, a feed-forward, and how the residual stream runs past them.

The wiring is ``blocks/placement.py``; here stand only the family's extras: a multiplier on what a sub-layer adds
(Granite), and mixers that are told of the call (``Step``).
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import Identity, Module, ModuleDict

from headcount.transformer.blocks.placement import PLACEMENTS, Sublayer
from headcount.transformer.families.step import Step
from headcount.transformer.ops.arithmetic import scale


class Scale(Module):
    """x times a constant."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """Multiply."""
        return scale(x, self.factor)


class Layer(Module):
    """Mixer, optional cross-attention, optional feed-forward, wired by the placement of their norms."""

    def __init__(
        self,
        mixer: Module,
        feed_forward: Module | None,
        norms: ModuleDict,
        *,
        placement: str = "pre",
        branch: float = 1.0,
        cross: Module | None = None,
    ) -> None:
        super().__init__()
        self.mixer = mixer
        self.cross = cross
        self.feed_forward = feed_forward
        self.norms = norms
        self.placement = placement
        self.branch = Identity() if branch == 1.0 else Scale(branch)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """``(B, T, D) -> (B, T, D)``."""
        cross, feed_forward = self.cross, self.feed_forward
        sublayers = [Sublayer("mixer", lambda x: self.mixer(x, step))]
        if cross is not None:
            sublayers.append(Sublayer("cross", lambda x: cross(x, step)))
        if feed_forward is not None:
            sublayers.append(Sublayer("feed_forward", feed_forward))
        return PLACEMENTS[self.placement](x, sublayers, self.norms, self.branch)
