"""At which context length attention starts to cost more than the feed-forward: five answers to one question.

Per layer and n tokens, in multiply-adds:

    scores and values   q n^2         q = N (H + H')         halved when the causal half alone is computed
    projections         a n           a = linear weights of attention
    feed-forward        f n           f = m D F (experts: top_k of them)

    1  q n^2       = f n     ->  n = f / q
    2  q n^2 + a n = f n     ->  n = (f - a) / q
    3  q n^2       = (f+a) n ->  n = (f + a) / q
    4, 5 (and 6): 1, 2 (and 3) with q / 2

With MHA, H = D / N and a plain F = 4 D: 4 D, 2 D, 6 D, 8 D, 4 D. These are crossovers of FLOPs; attention is bound
by memory traffic, so the crossover in time comes earlier (docs/notation.md).
"""

from __future__ import annotations

from headcount.cost.flops import pair_macs
from headcount.spec.attention import HeadedAttention, LatentAttention

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.spec.model import LayerSpec, ModelSpec

NAMES = (
    "quad_eq_ffn",
    "quad_plus_proj_eq_ffn",
    "quad_eq_all_linear",
    "causal_quad_eq_ffn",
    "causal_quad_plus_proj_eq_ffn",
    "causal_quad_eq_all_linear",
)


def crossovers(*, pair: int, projections: int, feed_forward: int) -> dict[str, int | None]:
    """Return the crossing lengths, rounded down; None where attention is dearer at every length."""

    def crossing(numerator: int, divisor: int) -> int | None:
        return numerator // divisor if numerator > 0 and divisor else None

    numerators = (feed_forward, feed_forward - projections, feed_forward + projections)
    whole = [crossing(numerator, pair) for numerator in numerators]
    causal = [crossing(2 * numerator, pair) for numerator in numerators]
    return dict(zip(NAMES, [*whole, *causal], strict=True))


def textbook_crossovers(hidden_size: int) -> dict[str, int | None]:
    """The chapter's block of this width: MHA, plain feed-forward of four widths."""
    d = hidden_size
    return crossovers(pair=2 * d, projections=4 * d * d, feed_forward=8 * d * d)


def _representative(model: ModelSpec) -> LayerSpec | None:
    """The most frequent block that holds attention and a feed-forward."""
    best: tuple[int, LayerSpec] | None = None
    for layer, times in model.layer_runs():
        attends = any(isinstance(mixer, HeadedAttention | LatentAttention) for mixer in layer.mixers)
        if attends and layer.feed_forward is not None and (best is None or times > best[0]):
            best = (times, layer)
    return best[1] if best else None


def model_crossovers(model: ModelSpec) -> dict[str, int | None] | None:
    """The same for this model's own widths; None when no block holds both attention and a feed-forward."""
    layer = _representative(model)
    if layer is None:
        return None
    projections = feed_forward = 0
    for weight in layer.weights:
        if not weight.linear:
            continue
        if weight.part == "attention":
            projections += weight.active_parameters
        elif weight.part in ("feed_forward", "experts", "shared_experts"):
            feed_forward += weight.active_parameters
    pair = max(pair_macs(mixer) for mixer in layer.mixers)
    return crossovers(pair=pair, projections=projections, feed_forward=feed_forward)
