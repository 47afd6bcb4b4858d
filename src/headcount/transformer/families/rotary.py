"""Rotary positions as a config states them: base, width, layout, and the rule that stretches them.

Two spellings are in use: ``rope_theta`` with an optional ``rope_scaling`` object (every release before 2026), and one
``rope_parameters`` object that holds both, or one such object per kind of layer (Gemma 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headcount.errors import ModelFileError, UnsupportedModelError
from headcount.record import Record
from headcount.transformer.families.settings import Settings
from headcount.transformer.ops.rotary import turns
from headcount.transformer.ops.rotary_frequencies import RULES, rotary_frequencies, yarn_attention_factor


class RotaryShape(Record):
    """One way of turning: R columns, rule and numbers of ``ops.rotary_frequencies``; ``by_length``: it asks for n."""

    width: int
    rule: str = "default"
    numbers: tuple[tuple[str, Any], ...] = ()

    @property
    def by_length(self) -> bool:
        """Whether the frequencies depend on how long the sequence is."""
        return self.rule in ("dynamic", "longrope")

    def frequencies(self, length: int) -> tuple[Tensor, float]:
        """Radians per token of each plane and the attention factor, for sequences of up to ``length`` tokens."""
        extra = {"length": length} if self.by_length else {}
        return rotary_frequencies(self.rule, self.width, **dict(self.numbers), **extra)

    def turns(
        self,
        positions: Tensor,
        dtype: torch.dtype,
        *,
        counts: Sequence[int] | None = None,
        ends: Sequence[int] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Cos and sin for these positions: (T, R/2), or (B, 1, T, R/2) when each sequence has its own.

        ``counts``: the row holds several conversations of so many tokens; each turns by its own length, or by its
        ``ends``, the length of a prompt of which this is a part.
        """
        if self.by_length and counts is not None:
            lengths = ends or [int(part.max()) + 1 for part in torch.split(positions, list(counts))]
            parts = [
                self._turned(part, dtype, length)
                for part, length in zip(torch.split(positions, list(counts)), lengths, strict=True)
            ]
            return torch.cat([cos for cos, _ in parts]), torch.cat([sin for _, sin in parts])
        return self._turned(positions, dtype, int(positions.max()) + 1 if self.by_length else 0)

    def _turned(self, positions: Tensor, dtype: torch.dtype, length: int) -> tuple[Tensor, Tensor]:
        """``turns`` of sequences of one length."""
        inverse, factor = self.frequencies(length)
        cos, sin = turns(positions, inverse.to(positions.device), attention_factor=factor, dtype=dtype)
        return (cos, sin) if positions.dim() == 1 else (cos[:, None], sin[:, None])


def read_rotary(
    settings: Settings, head_width: int, *, base: float = 10000.0, share: float = 1.0, kind: str = ""
) -> RotaryShape:
    """The rotary positions of a config; ``base`` and ``share`` (of H that turns) where it is silent.

    ``kind`` picks the entry of a per-kind ``rope_parameters`` (``full_attention``, ``sliding_attention``).
    Raises UnsupportedModelError for a stretching rule that is not known.
    """
    stated = settings.value("rope_parameters") or {}
    if not isinstance(stated, dict):
        raise ModelFileError(f"config key rope_parameters must be an object; given {str(stated)[:40]!r}")
    if kind and isinstance(stated.get(kind), dict):
        stated = stated[kind]
    scaling = settings.value("rope_scaling")
    if scaling is not None and not isinstance(scaling, dict):
        raise ModelFileError(f"config key rope_scaling must be an object; given {str(scaling)[:40]!r}")
    if not stated and isinstance(scaling, dict):
        stated = scaling
    inner = Settings(settings.spec)
    inner.config = {**settings.config, **{key: value for key, value in stated.items() if value is not None}}
    # A share above 1 would turn columns that no head has: past the end of every query and key.
    part = inner.number("partial_rotary_factor", "rotary_pct", default=share, above=0.0, most=1.0)
    width = int(head_width * part)
    if width < 2 or width % 2:
        raise ModelFileError(
            f"config: {part:g} of a head width of {head_width} turns {width} columns; pairs are turned"
        )
    numbers: dict[str, Any] = {"base": inner.number("rope_theta", "rotary_emb_base", default=base, above=1.0)}
    rule = str(stated.get("rope_type") or stated.get("type") or "default")
    rule = {"su": "longrope"}.get(rule, rule)
    if rule not in RULES:
        raise UnsupportedModelError(f"rotary scaling {rule[:40]!r} is not known; known: {', '.join(RULES)}")
    numbers.update(_stretching(rule, inner))
    return RotaryShape(width=width, rule=rule, numbers=tuple(numbers.items()))


def _stretching(rule: str, settings: Settings) -> dict[str, Any]:
    """The numbers of one rule, under the names of ``ops.rotary_frequencies``."""
    trained = settings.integer(
        "original_max_position_embeddings",
        "max_position_embeddings",
        default=settings.spec.max_positions or 2048,
    )
    if rule != "default" and trained < 2:
        raise ModelFileError(
            f"config key original_max_position_embeddings must be 2 or more; given {trained}"
        )
    factor = settings.number("factor", default=1.0, above=0.0)
    if rule == "default":
        return {}
    if rule == "linear":
        return {"factor": factor}
    if rule == "dynamic":
        reach = settings.integer("max_position_embeddings", default=trained)
        return {"factor": factor, "trained_length": reach}
    if rule == "llama3":
        low = settings.number("low_freq_factor", default=1.0, above=0.0)
        return {
            "factor": settings.number("factor", default=8.0, above=0.0),
            "low_freq_factor": low,
            "high_freq_factor": settings.number("high_freq_factor", default=4.0, above=low),
            "trained_length": trained,
        }
    if rule == "yarn":
        return _yarn(settings, trained)
    if rule == "longrope":
        return _longrope(settings, trained)
    return {"share": settings.number("partial_rotary_factor", default=1.0)}


def _yarn(settings: Settings, trained: int) -> dict[str, Any]:
    factor = settings.number("factor", default=1.0, above=0.0)
    attention = settings.optional_number("attention_factor", above=0.0)
    multiplier, all_dims = settings.optional_number("mscale"), settings.optional_number("mscale_all_dim")
    slow = settings.number("beta_slow", default=1.0, above=0.0)
    if attention is None:
        attention = yarn_attention_factor(factor, multiplier, all_dims)
    return {
        "factor": factor,
        "trained_length": trained,
        "turns": (settings.number("beta_fast", default=32.0, above=0.0), slow),
        "truncate": settings.flag("truncate", default=True),
        "attention_factor": attention,
    }


def _longrope(settings: Settings, trained: int) -> dict[str, Any]:
    short, long = settings.numbers("short_factor"), settings.numbers("long_factor")
    if short is None or long is None:
        raise ModelFileError("config: longrope needs short_factor and long_factor")
    if min(*short, *long) <= 0:
        raise ModelFileError("config: the factors of longrope must be above 0")
    reach = settings.integer("max_position_embeddings", default=trained)
    factor = settings.number("factor", default=reach / trained, above=0.0)
    attention = settings.optional_number("attention_factor", above=0.0)
    return {
        "factors": (tuple(short), tuple(long)),
        "factor": factor,
        "trained_length": trained,
        "attention_factor": attention,
    }
