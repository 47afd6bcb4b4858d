"""What vLLM keeps from the cache, per GPU: predicted from measured start-up logs, each with its spread.

    requested  = ceil(device total x utilization)
    cache      = requested - weights - activation - non_torch - graphs

vLLM measures the last three at start-up; they follow from no formula of the model. The constants here were fitted to
start-up logs of one H100 80GB with vLLM 0.17 to 0.19, 8192 batched tokens and 1024 sequences (llm-d-planner pull
request 205, 2026-04); ``tests/engines/test_vllm_memory.py`` prints the error on each of them.

    activation = max(forward, logits) + expert workspaces
    logits     = rows x V x c + tokens x D x 2 + 0.12 GiB       c = 14 B (38.6 B before 0.17): the sampler's copies
    forward    = tokens x (3 F / T + 4 D) x 2
    workspaces = tokens x top_k x (max(2 F_e / T, D) + max(F_e / T, D)) x 2, for experts that are not packed
"""

from __future__ import annotations

from headcount.cost.cache import mixer_runs
from headcount.engines.base import Case
from headcount.engines.vllm.rules import EngineRules, release
from headcount.record import Record
from headcount.spec.attention import LatentAttention
from headcount.units import GIB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.hardware import Accelerator
    from headcount.spec.model import ModelSpec

_LOGS = "vLLM 0.19 start-up logs on H100 80GB, llm-d-planner PR 205"
# CUDA shows a process less than nvidia-smi's total: 79.19 GiB of 81559 MiB (H100), 23.58 of 24576 (RTX 3090), 39.39
# of 40960 (A100), 44.42 of 46068 (L40S), 178.36 of 183359 (B200): 0.35 to 0.70 GiB.
CUDA_KEEPS = round(0.5 * GIB)
CUDA_KEEPS_SPREAD = round(0.2 * GIB)


# Bytes per (row, vocabulary entry) of the sampler's dummy run: 38.4 to 39.6 in every 0.11 to 0.16 log, 14.8 to 16.2
# (hidden states included) from 0.17 on.
_LOGIT_BYTES = (38.6, 14.0)
_SAMPLER_CHANGED = "0.17.1"


class Overhead(Record):
    """Bytes that are neither weights nor cache, with the interval they are expected in."""

    activation: int
    non_torch: int
    graphs: int
    low: int
    high: int

    @property
    def total(self) -> int:
        """The best estimate."""
        return self.activation + self.non_torch + self.graphs


def device_bytes(accelerator: Accelerator) -> int:
    """What CUDA reports as the device's total."""
    return accelerator.driver_bytes - (CUDA_KEEPS if accelerator.vendor == "nvidia" else 0)


def batch_limits(case: Case, rules: EngineRules) -> tuple[int, int]:
    """``(max_num_batched_tokens, max_num_seqs)``: as asked, else the API server's defaults by card size."""
    memory = case.settings.memory_bytes or device_bytes(case.accelerator)
    if rules.tier_160_gib and memory >= 160 * GIB:
        tokens, seqs = 16384, 1024
    elif memory >= 70 * GIB and not case.accelerator.name.startswith(_small_batches(rules)):
        tokens, seqs = 8192, 1024
    else:
        tokens, seqs = 2048, 256
    asked = case.settings.max_num_batched_tokens
    return asked or tokens, min(case.settings.max_num_seqs or seqs, asked or tokens)


def _small_batches(rules: EngineRules) -> tuple[str, ...]:
    """Large cards that get the small card's batches all the same."""
    return ("dgx-spark",) if rules.a100_is_large else ("a100", "dgx-spark")


def overhead(
    case: Case, rules: EngineRules, *, last_stage: bool, stage_layers: int, packed_experts: bool
) -> Overhead:
    """Predict activation, non-torch and graph bytes of one GPU; see the module for the equations and their origin."""
    model, tp = case.model, case.layout.tp
    tokens, rows = batch_limits(case, rules)
    width, expert = _widths(model)
    forward = tokens * (3 * width // tp + 4 * model.hidden_size) * 2
    logit_bytes = _LOGIT_BYTES[release(rules.version) >= release(_SAMPLER_CHANGED)]
    logits = round(rows * model.vocab_size * logit_bytes + tokens * model.hidden_size * 2 + 0.12 * GIB)
    activation = max(forward, logits) if last_stage else forward
    if expert is not None and not packed_experts:
        expert_width, top_k = expert
        columns = max(2 * expert_width // tp, model.hidden_size) + max(expert_width // tp, model.hidden_size)
        activation += tokens * top_k * columns * 2
    non_torch, late = _non_torch(rules, tp=tp, pp=case.layout.pp)
    graphs = 0
    if rules.cuda_graphs_counted == "yes":
        graphs = round(GRAPH_BYTES_PER_LAYER * stage_layers)
        graphs = max(graphs, GRAPH_BYTES_WITH_EXPERTS) if expert is not None else graphs
    spread = round(0.12 * activation + 0.4 * graphs + 0.1 * GIB) + CUDA_KEEPS_SPREAD
    total = activation + non_torch + graphs
    return Overhead(
        activation=activation,
        non_torch=non_torch,
        graphs=graphs,
        low=max(0, total - spread),
        high=total + spread + late,
    )


# vLLM's own estimate at start-up, 31 logs of 0.19: 0.017 to 0.026 GiB per layer without experts (TP 1 to 4), and 1.04
# to 1.30 GiB with experts at 24 to 48 layers.
GRAPH_BYTES_PER_LAYER = 0.0205 * GIB
GRAPH_BYTES_WITH_EXPERTS = round(1.15 * GIB)


def _non_torch(rules: EngineRules, *, tp: int, pp: int) -> tuple[int, int]:
    """``(bytes expected, bytes more that were once measured)`` of communication buffers and kernel modules.

    One GPU: 0.24 to 0.26 GiB in 0.19 logs, 0.13 in 0.11. Several: 0.54 GiB in 0.11 and 2.06 to 2.21 in 0.19. From
    0.33 on the snapshot is taken after NCCL and the cuBLAS handles exist, so only late growth is charged; no log of
    such a version with several GPUs is at hand, and the interval reaches up to what 0.19 showed.
    """
    newer = release(rules.version) >= release("0.29.0")
    older = release(rules.version) < release("0.17.1")
    if tp == 1:
        return round((0.13 if older else 0.25 if pp == 1 else 0.1) * GIB), 0
    if newer:
        return round(0.35 * GIB), round(1.8 * GIB)
    return (round(0.54 * GIB), round(1.5 * GIB)) if older else (round(2.1 * GIB), 0)


def _widths(model: ModelSpec) -> tuple[int, tuple[int, int] | None]:
    """``(widest dense feed-forward, (expert width, top_k) or None)``."""
    dense, expert = 0, None
    for layer, _ in model.layer_runs():
        if layer.feed_forward is None:
            continue
        if layer.feed_forward.experts:
            expert = (layer.feed_forward.width, layer.feed_forward.top_k)
            dense = max(dense, layer.feed_forward.shared_width)
        else:
            dense = max(dense, layer.feed_forward.width)
    return dense or model.hidden_size, expert


def absorbed_bytes(model: ModelSpec, tp: int) -> int:
    """Bytes of the absorbed copies W_UK and W_UV that latent attention keeps: ``N/T r (d_nope + d_v) 2`` a layer."""
    return sum(
        times
        * mixer.num_attention_heads
        // tp
        * mixer.kv_lora_rank
        * (mixer.qk_nope_head_dim + mixer.v_head_dim)
        * 2
        for mixer, times in mixer_runs(model)
        if isinstance(mixer, LatentAttention)
    )


SOURCE = _LOGS
