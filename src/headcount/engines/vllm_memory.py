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
from headcount.errors import UnknownNameError
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


class Rules(Record):
    """What changed between versions and moves the answer (release notes and packages of each version).

    since             first version the rules hold for
    utilization       default gpu_memory_utilization
    graphs_counted    whether CUDA graphs come out of the cache
    logit_bytes       bytes per (row, vocabulary entry) of the sampler's dummy run
    big_card_tier     whether cards of 160 GiB and more batch 16384 tokens
    in_flight_steps   batches in flight that a window is charged for
    """

    since: str
    utilization: float
    graphs_counted: bool
    logit_bytes: float
    big_card_tier: bool
    in_flight_steps: int


RULES = (
    Rules(since="0.8.5", utilization=0.90, graphs_counted=False, logit_bytes=38.6, big_card_tier=False, in_flight_steps=1),
    Rules(since="0.17.0", utilization=0.90, graphs_counted=False, logit_bytes=14.0, big_card_tier=False, in_flight_steps=1),
    Rules(since="0.21.0", utilization=0.92, graphs_counted=True, logit_bytes=14.0, big_card_tier=False, in_flight_steps=1),
    Rules(since="0.29.0", utilization=0.92, graphs_counted=True, logit_bytes=14.0, big_card_tier=True, in_flight_steps=2),
)
NEWEST = "0.33.0"


def parse_version(text: str) -> tuple[int, ...]:
    """``0.19.1`` -> (0, 19, 1); UnknownNameError for anything else."""
    parts = text.strip().lstrip("v").split(".")
    if not 2 <= len(parts) <= 4 or not all(part.isdigit() and len(part) < 6 for part in parts):
        raise UnknownNameError(what="vLLM version", given=text, allowed=[rules.since for rules in RULES] + [NEWEST])
    return tuple(int(part) for part in parts)


def rules_of(version: str) -> Rules:
    """The rules in force at ``version``: the newest that are not newer. Before 0.8.5 and after 0.33 is refused."""
    asked = parse_version(version)
    if asked < parse_version(RULES[0].since) or asked[:2] > parse_version(NEWEST)[:2]:
        raise UnknownNameError(
            what="vLLM version",
            given=version,
            allowed=[rules.since for rules in RULES] + [NEWEST],
            hint=f"modelled: {RULES[0].since} to {NEWEST}",
        )
    return [rules for rules in RULES if parse_version(rules.since) <= asked][-1]


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


def batch_limits(case: Case, rules: Rules) -> tuple[int, int]:
    """``(max_num_batched_tokens, max_num_seqs)``: as asked, else the API server's defaults by card size."""
    memory = case.settings.memory_bytes or device_bytes(case.accelerator)
    if rules.big_card_tier and memory >= 160 * GIB:
        tokens, seqs = 16384, 1024
    elif memory >= 70 * GIB and not case.accelerator.name.startswith(("a100", "dgx-spark")):
        tokens, seqs = 8192, 1024
    else:
        tokens, seqs = 2048, 256
    asked = case.settings.max_num_batched_tokens
    return asked or tokens, min(case.settings.max_num_seqs or seqs, asked or tokens)


def overhead(case: Case, rules: Rules, *, last_stage: bool, stage_layers: int, packed_experts: bool) -> Overhead:
    """Predict activation, non-torch and graph bytes of one GPU; see the module for the equations and their origin."""
    model, tp = case.model, case.layout.tp
    tokens, rows = batch_limits(case, rules)
    width, expert = _widths(model)
    forward = tokens * (3 * width // tp + 4 * model.hidden_size) * 2
    logits = round(rows * model.vocab_size * rules.logit_bytes + tokens * model.hidden_size * 2 + 0.12 * GIB)
    activation = max(forward, logits) if last_stage else forward
    if expert is not None and not packed_experts:
        expert_width, top_k = expert
        columns = max(2 * expert_width // tp, model.hidden_size) + max(expert_width // tp, model.hidden_size)
        activation += tokens * top_k * columns * 2
    # Measured on the same machine: NCCL buffers appear with the second GPU.
    non_torch = round((2.1 if tp > 1 else 0.1 if case.layout.pp > 1 else 0.25) * GIB)
    graphs = 0
    if rules.graphs_counted:
        graphs = round((0.022 * stage_layers + (0.6 if expert is not None else 0.0)) * GIB)
    spread = round(0.12 * activation + 0.4 * graphs + 0.1 * GIB + (0.1 * GIB if tp > 1 else 0)) + CUDA_KEEPS_SPREAD
    total = activation + non_torch + graphs
    return Overhead(
        activation=activation, non_torch=non_torch, graphs=graphs, low=max(0, total - spread), high=total + spread
    )


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
        times * mixer.num_attention_heads // tp * mixer.kv_lora_rank * (mixer.qk_nope_head_dim + mixer.v_head_dim) * 2
        for mixer, times in mixer_runs(model)
        if isinstance(mixer, LatentAttention)
    )


SOURCE = _LOGS
