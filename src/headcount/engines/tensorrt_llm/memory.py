"""What is gone before TensorRT-LLM sizes its cache, per GPU: weights, the profile run's peak, and all outside torch.

    free   = device total - weights - activations - outside torch
    cache  = free x free_gpu_memory_fraction                  the fraction is of what is LEFT, not of the card

    activations   = tokens x (3 F / T + 4 D) 2 + tokens x top_k (max(2 F_e / T, D) + max(F_e / T, D)) 2
    outside torch = CUDA context, loaded kernels, cuBLAS and NCCL buffers, CUDA graphs

The activation formula is the one vLLM's forward pass was fitted with. It gives 0.77 GiB for the one profile of this
engine that is at hand, 0.85 GiB (gpt-oss-120b, TensorRT-LLM 1.1.0rc3, 8,192 tokens, DGX Spark, 2025-12-20).

Outside torch no log of the PyTorch backend on a card with its own memory is at hand (on a DGX Spark the system's memory
is inside the figure). One B200 start of 1.0.0rc2's C++ runtime leaves 3.6 GiB unexplained (178.36 total, 136.23 free,
38.5 named: MLCommons inference v5.1, CoreWeave log_70B_serve.txt). So 2.0 GiB is a guess within 0.8 to 4.0.
"""

from __future__ import annotations

from headcount.cost.cache import mixer_runs
from headcount.cost.weights import nominal_scale, rank_weights, tensor_bytes, weight_format
from headcount.engines.base import even_stages
from headcount.engines.calibration import measured_terms
from headcount.engines.device import CUDA_KEEPS_SPREAD
from headcount.engines.tensorrt_llm.rules import DEFAULT_BATCHED_TOKENS
from headcount.record import Record
from headcount.spec.attention import LatentAttention
from headcount.spec.weight import EXPERTS
from headcount.units import GIB, ceil_div

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.cost.weights import WeightFormat
    from headcount.engines.base import Case
    from headcount.spec.model import ModelSpec

SOURCE = "one profile of TensorRT-LLM 1.1.0rc3, one B200 start of 1.0.0rc2; otherwise a guess"
OUTSIDE_TORCH = round(2.0 * GIB)
OUTSIDE_TORCH_LOW = round(0.8 * GIB)
OUTSIDE_TORCH_HIGH = round(4.0 * GIB)
# NCCL and all-reduce buffers: vLLM 0.19 logs of 2 and 4 GPUs charge 1.8 GiB more than of one; none of this engine.
COMMUNICATION = round(1.0 * GIB)
COMMUNICATION_HIGH = round(2.0 * GIB)
ACTIVATION_SPREAD = 0.3


class Reserve(Record):
    """Bytes that are neither weights nor cache, and how far they may be off; ``tokens`` of the profile run's batch."""

    activation: int
    outside: int
    low: int
    high: int
    tokens: int

    @property
    def total(self) -> int:
        """The best estimate."""
        return self.activation + self.outside


def reserve(case: Case, *, engine: str, version: str, card_known: bool) -> Reserve:
    """Predict what is gone beside the weights; a calibration that applies replaces a term and its spread."""
    tokens = case.settings.max_num_batched_tokens or DEFAULT_BATCHED_TOKENS
    activation = _activation(case.model, tokens, case.layout.tp)
    spread = round(activation * ACTIVATION_SPREAD)
    several = case.layout.tp * case.layout.pp > 1
    outside = OUTSIDE_TORCH + (COMMUNICATION if several else 0)
    least = OUTSIDE_TORCH_LOW
    most = OUTSIDE_TORCH_HIGH + (COMMUNICATION_HIGH if several else 0)
    measured = measured_terms(case, ("activation_bytes", "non_torch_bytes"), engine, version)
    if "activation_bytes" in measured:
        activation, spread = measured["activation_bytes"][0], 0
    if "non_torch_bytes" in measured:
        outside = least = most = measured["non_torch_bytes"][0]
    keeps = 0 if card_known else CUDA_KEEPS_SPREAD
    return Reserve(
        activation=activation,
        outside=outside,
        low=max(0, activation - spread) + least - keeps,
        high=activation + spread + most + keeps,
        tokens=tokens,
    )


def _activation(model: ModelSpec, tokens: int, tp: int) -> int:
    width, per_token = 0, 0
    for layer, _ in model.layer_runs():
        feed = layer.feed_forward
        if feed is None:
            continue
        width = max(width, feed.shared_width if feed.experts else feed.width)
        if feed.experts:
            wide = max(ceil_div(2 * feed.width, tp), model.hidden_size)
            narrow = max(ceil_div(feed.width, tp), model.hidden_size)
            per_token = max(per_token, feed.top_k * (wide + narrow))
    return tokens * (ceil_div(3 * width, tp) + 4 * model.hidden_size + per_token) * 2


def stage_weights(case: Case, *, attention_dp: bool) -> list[int]:
    """Bytes of weights of every stage's rank.

    Under attention data parallelism all but the experts is whole on every rank. Latent attention keeps a transposed
    copy of its key projection (``k_b_proj_trans``: N / T x r x d_nope; the value half is a view).
    """
    model, tp = case.model, case.layout.tp
    fmt = weight_format(model, case.settings.weights)
    numerator, denominator = nominal_scale(model, fmt)
    ranks = rank_weights(model, fmt, tp=1 if attention_dp else tp)
    copy = _transposed_bytes(model, 1 if attention_dp else tp)
    layers = len(model.layers)
    out = []
    for start, end in even_stages(layers, case.layout.pp):
        count = ranks.stage(start, end)
        if attention_dp:
            count -= _expert_saving(model, fmt, tp, start, end)
        out.append(ceil_div(count * numerator, denominator) + copy * (end - start) // layers)
    return out


def _expert_saving(model: ModelSpec, fmt: WeightFormat, tp: int, start: int, end: int) -> int:
    """Bytes that dividing the experts of layers ``start`` to ``end`` by ``tp`` saves."""
    return sum(
        tensor_bytes(model, weight, index, fmt, 1, 1) - tensor_bytes(model, weight, index, fmt, tp, 1)
        for index in range(start, end)
        for weight in model.layers[index].weights
        if weight.part == EXPERTS
    )


def _transposed_bytes(model: ModelSpec, tp: int) -> int:
    return sum(
        times * ceil_div(mixer.num_attention_heads, tp) * mixer.kv_lora_rank * mixer.qk_nope_head_dim * 2
        for mixer, times in mixer_runs(model)
        if isinstance(mixer, LatentAttention)
    )
