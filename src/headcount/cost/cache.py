"""What a conversation remembers: KV bytes per token, per conversation, and split over tensor-parallel ranks.

    per token          b = sum over layers of K (H_k + H_v) p          (2 L K H p for one kind of layer)
    per conversation   sum over layers of tokens kept(n) x entry bytes; windows capped, states constant,
                       cross-attention once

"Per token" takes no window as full; ``marginal_bytes`` is what one more token costs at a given length.
"""

from __future__ import annotations

from headcount.spec.attention import (
    CompressedLatent,
    CrossAttention,
    FullAttention,
    HeadedAttention,
    LatentAttention,
    SharedCache,
    StateSpace,
)
from headcount.spec.kv_format import KV_FORMATS
from headcount.units import ceil_div

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.spec.attention import Mixer
    from headcount.spec.kv_format import KvFormat
    from headcount.spec.model import ModelSpec


def mixer_runs(model: ModelSpec) -> tuple[tuple[Mixer, int], ...]:
    """Return ``(mixer, layers that hold one)`` over distinct mixers, in order of first appearance."""
    if "mixer_runs" not in model.memo:
        counts: dict[Mixer, int] = {}
        for layer, times in model.layer_runs():
            for mixer in layer.mixers:
                counts[mixer] = counts.get(mixer, 0) + times
        model.memo["mixer_runs"] = tuple(counts.items())
    runs: tuple[tuple[Mixer, int], ...] = model.memo["mixer_runs"]
    return runs


def conversation_bytes(model: ModelSpec, context: int, kv: KvFormat) -> int:
    """Bytes one conversation of ``context`` tokens holds: the ideal, before any engine rounds or replicates."""
    return sum(times * mixer.kv_bytes(context, kv) for mixer, times in mixer_runs(model))


def token_bytes(model: ModelSpec, kv: KvFormat) -> int:
    """Bytes of one token in every layer that keeps tokens, windows not yet full: ``2 L K H p`` generalised.

    States, cross-attention and shared caches do not grow with tokens and count nothing; a compressed cache counts
    its share of an entry, rounded up.
    """
    total = 0
    for mixer, times in mixer_runs(model):
        if isinstance(mixer, StateSpace | CrossAttention | SharedCache):
            continue
        total += times * mixer.kv_bytes(1, kv)
    return total


def marginal_bytes(model: ModelSpec, context: int, kv: KvFormat) -> int:
    """Bytes that token number ``context + 1`` adds: full windows add nothing."""
    return conversation_bytes(model, context + 1, kv) - conversation_bytes(model, context, kv)


def bytes_by_kind(model: ModelSpec, context: int, kv: KvFormat) -> dict[str, tuple[int, int]]:
    """Return ``kind -> (layers, bytes of one conversation)``."""
    kinds: dict[str, tuple[int, int]] = {}
    for mixer, times in mixer_runs(model):
        layers, count = kinds.get(mixer.kind, (0, 0))
        kinds[mixer.kind] = (layers + times, count + times * mixer.kv_bytes(context, kv))
    return kinds


def rank_mixer(mixer: Mixer, tp: int) -> Mixer:
    """Return what one of ``tp`` ranks holds of ``mixer``.

    Key/value heads are whole: a rank holds ``max(1, K // T)`` of them, so beyond T = K every head is replicated. A
    latent has no heads: every rank holds all of it. States are divided by their heads.
    """
    if tp == 1:
        return mixer
    if isinstance(mixer, HeadedAttention):
        return mixer.replace(
            num_attention_heads=max(1, mixer.num_attention_heads // tp),
            num_key_value_heads=max(1, mixer.num_key_value_heads // tp),
        )
    if isinstance(mixer, LatentAttention | CompressedLatent):
        return mixer.replace(num_attention_heads=max(1, mixer.num_attention_heads // tp))
    if isinstance(mixer, StateSpace):
        return mixer.replace(
            conv_elements=ceil_div(mixer.conv_elements, tp),
            recurrent_elements=ceil_div(mixer.recurrent_elements, tp),
        )
    return mixer


def growing_attention(model: ModelSpec) -> HeadedAttention | LatentAttention | None:
    """The attention that decides the order of growth: the first full one, else the first of any kind."""
    first: HeadedAttention | LatentAttention | None = None
    for mixer, _ in mixer_runs(model):
        if isinstance(mixer, FullAttention | LatentAttention):
            return mixer
        if isinstance(mixer, HeadedAttention) and first is None:
            first = mixer
    return first


def format_fits(model: ModelSpec, kv: KvFormat) -> bool:
    """Whether every cached row is a whole number of this format's blocks."""
    from headcount.errors import UsageError

    try:
        conversation_bytes(model, 1, kv)
    except UsageError:
        return False
    return True


def fitting_formats(model: ModelSpec) -> list[KvFormat]:
    """The KV formats whose blocks this model's rows fill."""
    return [kv for kv in KV_FORMATS.values() if format_fits(model, kv)]
