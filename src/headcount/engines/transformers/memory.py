"""What stands beside the cache in transformers, per GPU. Nothing here was measured on a GPU: the intervals are wide.

    fixed       CUDA context, kernels, cuBLAS workspaces: 0.6 GiB within 0.3 and 1.2
                NCCL's buffers between several GPUs: 1.0 GiB within 0.2 and 2.2
    activations tokens of one pass x max(3 F + 4 D, 3 D + 2 N H + 2 K H, 4 D + top_k (2 D + 3 F_e) + 3 F_s) p
    logits      V (p + 8) a conversation: the last token's row, its float32 copy and one more for sampling
    allocator   3 % of the cache within 0 and 10 %: freed tensors of growing size leave gaps

NCCL's bounds: vLLM 0.11 and 0.19 logs of several GPUs charge 0.4 and 1.8 to 2.0 GiB more than of one.
The context's order is that of the 0.5 GiB named in transformers' own continuous-batching code, and of the 0.13 to 0.26
GiB that vLLM's start-up logs charge outside torch on one H100. The activation formula counts the tensors alive at once
in a gated block; it is not fitted.
"""

from __future__ import annotations

from headcount.cost.cache import mixer_runs
from headcount.cost.weights import nominal_scale, rank_weights, weight_format
from headcount.record import Record
from headcount.spec.attention import HeadedAttention
from headcount.units import GIB, ceil_div

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.engines.base import Case
    from headcount.spec.model import ModelSpec

SOURCE = "counted from the layers, not measured"


class Share(Record):
    """One side of the estimate: fixed bytes, factors on activations and cache, bytes of a logit."""

    context: int
    communication: int
    activation_percent: int
    allocator_percent: int
    logit_extra_bytes: int

    def fixed(self, tp: int) -> int:
        """Bytes that are gone whatever the batch, on one of ``tp`` GPUs."""
        return self.context + (self.communication if tp > 1 else 0)


EXPECTED = Share(
    context=round(0.6 * GIB),
    communication=round(1.0 * GIB),
    activation_percent=100,
    allocator_percent=3,
    logit_extra_bytes=8,
)
LEAST = Share(
    context=round(0.3 * GIB),
    communication=round(0.2 * GIB),
    activation_percent=70,
    allocator_percent=0,
    logit_extra_bytes=4,
)
MOST = Share(
    context=round(1.2 * GIB),
    communication=round(2.2 * GIB),
    activation_percent=160,
    allocator_percent=10,
    logit_extra_bytes=16,
)


def activation_numbers(model: ModelSpec, tp: int) -> int:
    """Numbers alive at once for each token of a pass, on one rank."""
    hidden = model.hidden_size
    most = 4 * hidden
    for layer, _ in model.layer_runs():
        feed = layer.feed_forward
        if feed is None:
            continue
        if feed.experts:
            wide = feed.top_k * (2 * hidden + ceil_div(3 * feed.width, tp))
            most = max(most, 4 * hidden + wide + ceil_div(3 * feed.shared_width, tp))
        else:
            most = max(most, 4 * hidden + ceil_div(feed.matrices * feed.width, tp))
    for mixer, _ in mixer_runs(model):
        if isinstance(mixer, HeadedAttention):
            heads = 2 * mixer.num_attention_heads + 2 * mixer.num_key_value_heads
            most = max(most, 3 * hidden + ceil_div(heads * mixer.head_dim, tp))
    return most


def logit_bytes(model: ModelSpec, value_bytes: int, share: Share) -> int:
    """Bytes of one conversation's logits."""
    return model.vocab_size * (value_bytes + share.logit_extra_bytes)


def served_weights(case: Case) -> str:
    """``auto`` is the checkpoint's own type: transformers 5 loads float32 as float32."""
    settings, model = case.settings, case.model
    if settings.weights == "auto" and model.dtype == "fp32" and model.quantization is None:
        return "fp32"
    return settings.weights


def value_bytes(case: Case) -> int:
    """Bytes of an activation and of a cached number."""
    return weight_format(case.model, served_weights(case)).dtype_bytes


def loaded_bytes(case: Case) -> int:
    """This rank's tensors: the plans of transformers divide the blocks and an untied head, not the embeddings."""
    model, tp = case.model, case.layout.tp
    fmt = weight_format(model, served_weights(case))
    ranks = rank_weights(model, fmt, tp=tp)
    count = sum(ranks.layers) + rank_weights(model, fmt).first + ranks.last + ranks.encoder
    numerator, denominator = nominal_scale(model, fmt)
    return ceil_div(count * numerator, denominator)
