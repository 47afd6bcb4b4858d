"""Where the FLOPs go: prefill of n tokens and one decode step, by part. FLOPs = 2 x MACs; both are given.

    projections     n x (linear weights of attention and state-space mixers)
    scores, values  N (H + H') x number of (query, key) pairs; causal: n (n + 1) / 2, a window: sum of min(i, w)
    feed_forward    n x m D F                       experts: n x top_k x m D F_e
    router          n x D E
    lm_head         V D per row of logits: one row per sequence, as serving engines do
    state           2 MACs per element of a recurrent state and token (update and read; 3 with the delta rule, 1 for
                    RG-LRU, see ``StateSpace``), and K per channel of a causal convolution of K taps

Left out: norms, softmax, rotary positions, activations, embedding look-ups. They are a few per cent of the time and
below 1 % of the FLOPs. Latent attention is counted expanded in prefill, absorbed in decode (DeepSeek-V2, section 2.1).
"""

from __future__ import annotations

from headcount.record import Record
from headcount.spec.attention import (
    ChunkedAttention,
    CompressedLatent,
    CrossAttention,
    HeadedAttention,
    LatentAttention,
    SharedCache,
    SlidingWindow,
    StateSpace,
)
from headcount.spec.weight import CROSS_ATTENTION, EXPERTS, HEAD, KV, ROUTER, SHARED_EXPERTS, STATE_SPACE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.spec.attention import Mixer
    from headcount.spec.model import ModelSpec
    from headcount.spec.weight import Weight

_PROJECTIONS = ("attention", STATE_SPACE, CROSS_ATTENTION)


class MacCount(Record):
    """Multiply-adds by part; ``flops`` is twice ``macs``."""

    parts: dict[str, int]

    @property
    def macs(self) -> int:
        """Total multiply-adds."""
        return sum(self.parts.values())

    @property
    def flops(self) -> int:
        """Total FLOPs, two per multiply-add."""
        return 2 * self.macs


def _window_pairs(n: int, window: int) -> int:
    w = min(n, window)
    return w * (w + 1) // 2 + (n - w) * w


def score_pairs(mixer: Mixer, n: int) -> int:
    """Number of (query, key) pairs one sequence of ``n`` tokens computes in this layer, causally and exactly."""
    if isinstance(mixer, StateSpace):
        return 0
    if isinstance(mixer, CrossAttention):
        return n * mixer.source_positions
    if isinstance(mixer, SlidingWindow):
        return _window_pairs(n, mixer.window)
    if isinstance(mixer, SharedCache):
        return _window_pairs(n, mixer.window or n)
    if isinstance(mixer, ChunkedAttention):
        whole, rest = divmod(n, mixer.chunk)
        return whole * (mixer.chunk * (mixer.chunk + 1) // 2) + rest * (rest + 1) // 2
    if isinstance(mixer, CompressedLatent):
        q, r = divmod(n, mixer.rate) if mixer.rate else (0, 0)
        compressed = mixer.rate * (q * (q - 1) // 2) + q * (r + 1) if q else 0
        return _window_pairs(n, mixer.window) + compressed
    return n * (n + 1) // 2


def pair_macs(mixer: Mixer, *, absorbed: bool = False) -> int:
    """Multiply-adds of one (query, key) pair over all heads: score and value."""
    if isinstance(mixer, HeadedAttention):
        return mixer.num_attention_heads * (mixer.head_dim + mixer.v_head_dim)
    if isinstance(mixer, CompressedLatent):
        return mixer.num_attention_heads * 2 * mixer.head_dim
    if isinstance(mixer, LatentAttention):
        if absorbed:
            return mixer.num_attention_heads * (2 * mixer.kv_lora_rank + mixer.qk_rope_head_dim)
        return mixer.num_attention_heads * (
            mixer.qk_nope_head_dim + mixer.qk_rope_head_dim + mixer.v_head_dim
        )
    return 0


def _part_of(weight: Weight) -> str:
    if weight.part in _PROJECTIONS:
        return "projections"
    if weight.part in (EXPERTS, SHARED_EXPERTS, ROUTER, HEAD):
        return {EXPERTS: "experts", SHARED_EXPERTS: "shared_experts", ROUTER: "router", HEAD: "lm_head"}[
            weight.part
        ]
    return "feed_forward"


def _token_macs(model: ModelSpec) -> dict[str, int]:
    """Multiply-adds one token costs in the linear weights of all blocks; keys and values of a source excluded."""
    parts: dict[str, int] = {}
    for layer, times in model.layer_runs():
        for weight in layer.weights:
            if not weight.linear or (weight.part == CROSS_ATTENTION and weight.shard == KV):
                continue
            part = _part_of(weight)
            parts[part] = parts.get(part, 0) + times * weight.active_parameters
    return parts


def _state_macs(model: ModelSpec) -> int:
    return sum(
        times
        * (
            sum(
                mixer.passes * mixer.recurrent_elements
                for mixer in layer.mixers
                if isinstance(mixer, StateSpace)
            )
            + sum(weight.parameters for weight in layer.weights if _is_convolution(weight))
        )
        for layer, times in model.layer_runs()
    )


def _is_convolution(weight: Weight) -> bool:
    """One filter per channel, stored as (channels, 1, taps): each tap is multiplied once per token."""
    return (
        weight.part == STATE_SPACE and not weight.linear and len(weight.shape) == 3 and weight.shape[1] == 1
    )


def _head_macs(model: ModelSpec) -> int:
    return model.vocab_size * model.hidden_size


def prefill(model: ModelSpec, n: int) -> MacCount:
    """Multiply-adds to read a prompt of ``n`` tokens and give one row of logits; an encoder runs as well."""
    parts = {part: n * macs for part, macs in _token_macs(model).items()}
    parts["scores_values"] = sum(
        times * score_pairs(mixer, n) * pair_macs(mixer)
        for layer, times in model.layer_runs()
        for mixer in layer.mixers
    )
    state = n * _state_macs(model)
    if state:
        parts["state"] = state
    parts["lm_head"] = _head_macs(model)
    if model.encoder is not None:
        parts["encoder"] = encoder_macs(model)
    return MacCount(parts=parts)


def decode_step(model: ModelSpec, context: int) -> MacCount:
    """Multiply-adds of one new token after ``context - 1`` earlier ones: it attends to ``context`` keys."""
    parts = dict(_token_macs(model))
    parts["scores_values"] = sum(
        times * mixer.scores(context) * pair_macs(mixer, absorbed=True)
        for layer, times in model.layer_runs()
        for mixer in layer.mixers
    )
    state = _state_macs(model)
    if state:
        parts["state"] = state
    parts["lm_head"] = _head_macs(model)
    return MacCount(parts=parts)


def encoder_macs(model: ModelSpec) -> int:
    """Multiply-adds of the encoder over its longest source, and of the decoder's keys and values of that source."""
    encoder = model.encoder
    if encoder is None:
        return 0
    n = encoder.max_source_positions
    count = sum(n * w.active_parameters for layer in encoder.layers for w in layer.weights if w.linear)
    count += sum(n * n * pair_macs(mixer) for layer in encoder.layers for mixer in layer.mixers)
    for layer, times in model.layer_runs():
        count += sum(
            times * n * w.parameters
            for w in layer.weights
            if w.linear and w.part == CROSS_ATTENTION and w.shard == KV
        )
    return count


def materialised_score_bytes(model: ModelSpec, n: int, dtype_bytes: int = 2) -> int:
    """Bytes of one layer's score matrix if it were stored: ``N n^2 p``. Online softmax (FlashAttention) stores none."""
    heads = 0
    for layer, _ in model.layer_runs():
        for mixer in layer.mixers:
            if isinstance(mixer, HeadedAttention | LatentAttention):
                heads = max(heads, mixer.num_attention_heads)
    return heads * n * n * dtype_bytes
