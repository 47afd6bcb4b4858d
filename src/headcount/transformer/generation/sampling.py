"""From logits to the next token: penalties, temperature, filters, then a draw. All rules act on one row of logits z.

    repetition penalty r    z_i / r if z_i > 0 else z_i r, for every token i already in the conversation
    temperature t           z / t;  t = 0 is greedy: the largest logit, the lowest id among equals
    top k                   only the k largest logits stay
    top p                   only the most probable tokens whose probabilities sum to p stay (the one that crosses p stays)
    min p                   only tokens at least p times as probable as the best stay

in this order, as the reference implementation applies them. The draw uses a generator of its own per conversation, so a
conversation's tokens do not depend on who else is being served.

Sources: Keskar et al. 2019 (penalty), Fan et al. 2018 (top k), Holtzman et al. 2020 (top p), Nguyen et al. 2024 (min p).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from headcount.errors import OperandError, UsageError
from headcount.record import Record


class Sampling(Record):
    """How the next token is chosen; the defaults choose greedily. ``seed`` None draws anew every time."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None

    def _check(self) -> None:
        for name, low, high in (
            ("temperature", 0.0, 100.0),
            ("top_p", 0.0, 1.0),
            ("min_p", 0.0, 1.0),
            ("repetition_penalty", 0.01, 100.0),
        ):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not low <= value <= high:
                raise UsageError(f"{name} must lie between {low:g} and {high:g}; given {value!r}")
        if self.top_p == 0:
            raise UsageError("top_p 0 keeps no token; it must be above 0")
        if isinstance(self.top_k, bool) or not isinstance(self.top_k, int) or self.top_k < 0:
            raise UsageError(f"top_k must be a whole number, 0 for no limit; given {self.top_k!r}")

    def generator(self, conversation: int = 0) -> torch.Generator:
        """The draws of one conversation: reproducible by seed, different for each conversation of a batch."""
        generator = torch.Generator()
        if self.seed is None:
            generator.seed()
        else:
            generator.manual_seed(self.seed * 1_000_003 + conversation)
        return generator


def penalize(z_V: Float[Tensor, " V"], history: Sequence[int], penalty: float) -> Float[Tensor, " V"]:
    """Make tokens that already stand in the conversation less likely."""
    if penalty == 1.0 or not history:
        return z_V
    seen = torch.tensor(sorted(set(history)), device=z_V.device)
    z = z_V.clone()
    z[seen] = torch.where(z[seen] > 0, z[seen] / penalty, z[seen] * penalty)
    return z


def restrict(z_V: Float[Tensor, " V"], sampling: Sampling) -> Float[Tensor, " V"]:
    """Set the logits that a filter excludes to minus infinity; the best token always stays."""
    z = z_V
    if sampling.top_k and sampling.top_k < len(z):
        z = z.masked_fill(z < z.topk(sampling.top_k).values[-1], -math.inf)
    if sampling.top_p < 1:
        ordered, ids = z.sort(descending=False)
        behind = ordered.softmax(-1).cumsum(-1)
        drop = behind <= 1 - sampling.top_p
        drop[-1] = False
        z = z.masked_fill(torch.zeros_like(drop).scatter(0, ids, drop), -math.inf)
    if sampling.min_p > 0:
        probabilities = z.softmax(-1)
        z = z.masked_fill(probabilities < sampling.min_p * probabilities.max(), -math.inf)
    return z


def distribution(z_V: Float[Tensor, " V"], sampling: Sampling, history: Sequence[int]) -> Float[Tensor, " V"]:
    """Probabilities of the next token after all rules (temperature above 0)."""
    z = penalize(z_V.float(), history, sampling.repetition_penalty)
    # From the largest logit down, and never by less than float32 can divide by: a tiny temperature is greedy, not NaN.
    return restrict((z - z.max()) / max(sampling.temperature, 1e-30), sampling).softmax(-1)


def choose(
    z_V: Float[Tensor, " V"], sampling: Sampling, history: Sequence[int], generator: torch.Generator
) -> int:
    """The next token's id.

    Raises
    ------
    OperandError: logits that hold no number (NaN), or no finite largest one: the weights or the cache are damaged.
    """
    # NaN is the largest of whatever it stands among.
    if not math.isfinite(float(z_V.max())):
        raise OperandError(
            "the network's logits are not numbers (NaN or infinite): damaged weights, or an overflow in 16 bits"
        )
    if sampling.temperature == 0:
        return int(penalize(z_V.float(), history, sampling.repetition_penalty).argmax())
    p_V = distribution(z_V, sampling, history).cpu()
    return int(torch.multinomial(p_V, 1, generator=generator))
