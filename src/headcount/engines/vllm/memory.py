"""What vLLM keeps from the cache, per GPU: predicted from measured start-up logs, each with its spread.

    requested  = ceil(device total x utilization)
    cache      = requested - weights - activation - non_torch - graphs

vLLM measures the last three at start-up; they follow from no formula of the model. The constants here were fitted to
start-up logs of one H100 80GB with vLLM 0.17 to 0.19, 8192 batched tokens and 1024 sequences (llm-d-planner pull
request 205, 2026-04); ``tests/engines/test_vllm_memory.py`` prints the error on each of them.

    activation = max(forward + workspaces, logits + workspaces if they are kept)
    logits     = rows x V x c + tokens x D x 2 + ...              the sampler's copies, by release (``rules.py``)
    forward    = tokens x (3 F / T + 4 D) x 2
    workspaces = tokens x top_k x (max(2 F_e / T, D) + max(F_e / T, D)) x 2, for experts that are not packed
    towers     = tokens x D x 2 + 0.12 GiB                      encoder outputs kept, and the encoder's activations
    graphs     = 0.0205 GiB x layers x capture sizes / 51       (1.15 GiB in place of it with experts)
"""

from __future__ import annotations

from headcount.cost.weights import packing_of, weight_format
from headcount.engines.base import Case
from headcount.engines.device import CUDA_KEEPS_SPREAD, device_bytes
from headcount.engines.versions import release
from headcount.engines.vllm.options import measured_device
from headcount.engines.vllm.rules import (
    CUBLAS_BYTES_SM90,
    EngineRules,
    bytes_per_logit,
    runs_v2,
    sampler_peak_bytes,
)
from headcount.record import Record
from headcount.spec.attention import StateSpace
from headcount.spec.weight import EXPERTS
from headcount.units import GIB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.engines.vllm.options import Setup
    from headcount.spec.model import ModelSpec

# Packings whose kernels work without such buffers.
_FLOAT4 = ("mxfp4", "nvfp4")
_LOGS = "vLLM 0.19 start-up logs on H100 80GB, llm-d-planner PR 205"


class Overhead(Record):
    """Bytes that are neither weights nor cache, with the interval they are expected in.

    ``words`` and ``measured``: of each of the three, its numbers, and whether a calibration measured it.
    """

    activation: int
    non_torch: int
    graphs: int
    low: int
    high: int
    words: tuple[str, str, str] = ("", "", "")
    measured: tuple[bool, bool, bool] = (False, False, False)

    @property
    def total(self) -> int:
        """The best estimate."""
        return self.activation + self.non_torch + self.graphs


def overhead(
    case: Case, setup: Setup, rules: EngineRules, *, first_stage: bool, last_stage: bool, stage_layers: int
) -> Overhead:
    """Predict activation, non-torch and graph bytes of one GPU; see the module for the equations and their origin.

    A term that a calibration measured for this case is taken as it is, and its spread is dropped.
    """
    activation = _activation(case, setup, rules, first_stage=first_stage, last_stage=last_stage)
    terms = (
        ("activation_bytes", activation),
        ("non_torch_bytes", _non_torch(case, setup, rules)),
        ("graph_bytes", _graphs(case, setup, rules, stage_layers)),
    )
    settled = [_settled(case, setup, name, term) for name, term in terms]
    card = 0 if _device_known(case) else CUDA_KEEPS_SPREAD
    return Overhead(
        activation=settled[0].expected,
        non_torch=settled[1].expected,
        graphs=settled[2].expected,
        low=max(0, sum(term.expected - term.less for term in settled) - card),
        high=sum(term.expected + term.more for term in settled) + card,
        words=(settled[0].words, settled[1].words, settled[2].words),
        measured=(settled[0].measured, settled[1].measured, settled[2].measured),
    )


class Spread(Record):
    """A predicted number of bytes: between ``expected - less`` and ``expected + more``."""

    expected: int
    less: int
    more: int
    words: str = ""
    measured: bool = False


def _settled(case: Case, setup: Setup, name: str, term: Spread) -> Spread:
    """The measured value where a calibration has one for this case."""
    found = case.settings.calibration
    measured = None if found is None else found.measured(name, case, "vllm", setup.version)
    return term if measured is None else Spread(expected=measured, less=0, more=0, measured=True)


def _device_known(case: Case) -> bool:
    """Whether the device's total was said (with the question or by a calibration) rather than inferred."""
    return (
        case.settings.memory_bytes is not None or measured_device(case.accelerator, case.settings) is not None
    )


def _activation(
    case: Case, setup: Setup, rules: EngineRules, *, first_stage: bool, last_stage: bool
) -> Spread:
    model, tp = case.model, case.layout.tp
    tokens = setup.batched_tokens
    width, _ = _widths(model)
    # Gate, up and their product, and the residual stream; V1's compiled graph holds one buffer of D more (logs of both).
    residuals = 3 if rules.generation == "V0" else 4
    forward = tokens * (3 * width // tp + residuals * model.hidden_size) * 2
    sampled, unsure = _sampler(case, setup, rules)
    workspace, possible = _workspaces(case, tokens)
    peak = forward + workspace
    if last_stage:
        # Since 0.14 the experts' buffers stay allocated while the sampler runs.
        peak = max(peak, sampled + (workspace if rules.moe_workspace_kept else 0))
    tables = 0
    if last_stage:
        # Tables of penalties are allocated once, for all sequences.
        each = rules.v2_table_bytes if _on_v2(case, rules) else rules.table_bytes
        tables = round(setup.seqs * model.vocab_size * each)
    cublas = 0 if setup.on_cpu or not rules.cublas_charged else CUBLAS_BYTES_SM90
    base = peak
    peak += tables + cublas
    spread = 0.08 * peak + 0.08 * GIB
    if first_stage and setup.towers and model.towers:
        # The cache of encoder outputs, as many as a batch has tokens, and the encoder's own activations.
        kept = tokens * model.hidden_size * 2
        peak += kept
        if any_resolution(model):
            # The encoder runs first, and its activations are gone when the language model runs.
            peak = max(peak, kept + LARGE_IMAGE + TOWER_ACTIVATION)
            spread += LARGE_IMAGE
        else:
            peak += TOWER_ACTIVATION
        spread += TOWER_ACTIVATION
    if not _on_measured_ground(case, rules):
        spread += 0.12 * peak + 0.1 * GIB
    more = (unsure if last_stage else 0) + possible
    words = f"max({forward:,} + {workspace:,}, {sampled:,})"
    beside = ((tables, "tables"), (cublas, "cuBLAS"), (peak - base - tables - cublas, "towers"))
    words += "".join(f" + {count:,} {name}" for count, name in beside if count)
    return Spread(expected=peak, less=round(spread), more=round(spread) + more, words=words)


def _sampler(case: Case, setup: Setup, rules: EngineRules) -> tuple[int, int]:
    """``(bytes at the peak of the sampler's dummy run, bytes more if FlashInfer is not installed)``."""
    model, rows = case.model, setup.seqs
    runner = _on_v2(case, rules)
    flashinfer = rules.flashinfer_sampler in ("old", "installed", "default")
    peaks = [
        sampler_peak_bytes(
            bytes_per_logit(rules, rows=rows, flashinfer=used, v2=runner),
            rules.replace(sampler_rows_buffer=rules.sampler_rows_buffer and not used and not runner),
            rows=rows,
            vocabulary=model.vocab_size,
            tokens=setup.batched_tokens,
            hidden=model.hidden_size,
        )
        for used in (flashinfer, False)
    ]
    return peaks[0], max(0, peaks[1] - peaks[0])


def _on_v2(case: Case, rules: EngineRules) -> bool:
    """Whether model runner V2 runs this model."""
    model = case.model
    stated = model.config.get("architectures")
    architectures = stated if isinstance(stated, list) and stated else [stated or ""]
    return runs_v2(
        rules,
        architecture=str(architectures[0]),
        experts=_widths(model)[1] is not None,
        quantized=model.quantization is not None,
        hybrid=any(isinstance(m, StateSpace) for layer, _ in model.layer_runs() for m in layer.mixers),
    )


# Encoder of images at its budget: 0.0 to 0.2 GiB over the six multimodal 0.19 logs, encoder cache taken off.
TOWER_ACTIVATION = round(0.12 * GIB)
# The system and the process's own host memory lie in the same memory, and what they take meanwhile is charged: 1.7 to 6.0 GiB
# (median 2.7) are left over in six starts on a GB10 with vLLM 0.11 to 0.27, from public repositories' logs.
UNIFIED_BYTES = round(2.7 * GIB)
UNIFIED_MORE = 6 * GIB
# Towers that take images of any size are profiled at the largest, 16,384 tokens for Qwen's: 65,536 patches of some 30 KB. A
# Qwen2.5-VL-7B on a 24 GB card was left 2,400 tokens by it (0.8.4, gpustack #1800).
LARGE_IMAGE = round(1.5 * GIB)
_ANY_RESOLUTION = (
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "qwen3_5",
    "qwen2_5_omni",
    "qwen3_omni",
    "glm4v",
    "kimi_vl",
)


def any_resolution(model: ModelSpec) -> bool:
    """Whether the model's tower takes images of any size, so that its profile depends on limits that are not modelled."""
    return any(tower.family.startswith(_ANY_RESOLUTION) for tower in model.towers)


# Estimated by vLLM at start-up, 31 logs of 0.19 (51 capture sizes): 0.017 to 0.026 GiB per layer without experts (TP 1
# to 4), and 1.04 to 1.30 GiB with experts at 24 to 48 layers.
GRAPH_BYTES_PER_LAYER = 0.0205 * GIB
GRAPH_BYTES_WITH_EXPERTS = 1.15 * GIB
GRAPH_SIZES_LOGGED = 51
# Capturing any graph at all: a private pool and the kernels it loads.
GRAPH_FLOOR = round(0.06 * GIB)


def capture_sizes(case: Case, setup: Setup, rules: EngineRules) -> int:
    """How many batch sizes graphs are captured for: 1, 2, 4, then 8 to 255 by 8 and from 256 on by the release's step.

    The largest is min(2 x sequences x (1 + drafted tokens), the release's largest, batched tokens).
    """
    newest = (case.accelerator.compute_capability or "").startswith("10.")
    largest = min(rules.largest_graph_sm100 if newest else rules.largest_graph, setup.batched_tokens)
    if rules.graph_seqs_factor:
        largest = min(largest, rules.graph_seqs_factor * setup.seqs * (1 + setup.draft_tokens))
    small = sum(size <= largest for size in (1, 2, 4))
    return small + len(range(8, min(largest, 255) + 1, 8)) + len(range(256, largest + 1, rules.graph_step))


def _graphs(case: Case, setup: Setup, rules: EngineRules, layers: int) -> Spread:
    if rules.cuda_graphs_counted != "yes" or setup.eager:
        return Spread(expected=0, less=0, more=0)
    whole = GRAPH_BYTES_PER_LAYER * layers
    if _widths(case.model)[1] is not None:
        whole = max(whole, GRAPH_BYTES_WITH_EXPERTS * layers / len(case.model.layers))
    sizes = capture_sizes(case, setup, rules)
    expected = round(whole * sizes / GRAPH_SIZES_LOGGED) + GRAPH_FLOOR
    words = f"{round(whole):,} x {sizes} / {GRAPH_SIZES_LOGGED} + {GRAPH_FLOOR:,}"
    return Spread(expected=expected, less=round(0.6 * expected), more=round(0.6 * expected), words=words)


def _non_torch(case: Case, setup: Setup, rules: EngineRules) -> Spread:
    """Communication buffers and kernel modules that are charged.

    One GPU: 0.24 to 0.26 GiB in 0.19 logs (once 0.46), 0.13 to 0.14 in 0.11; 0.30 to 0.35 where every byte on the device was
    charged (0.6.4, 0.8), and 1.8 to 5.2 when other processes held some. Several H100: 0.54 GiB in 0.11 and 2.06 to 2.21 in 0.19;
    without fast links 0.25 to 0.30 (RTX 4090, L40S, 2025), and 0.6 to 2.4 is what five starts on pairs of RTX 3090 leave
    over (0.22 to 0.27; drafters among it). From 0.29 on no log with several GPUs is at hand, and the
    interval reaches up to what was seen before.
    """
    tp, pp = case.layout.tp, case.layout.pp
    newer = release(rules.version) >= release("0.29.0")
    older = release(rules.version) < release("0.17.0")
    if setup.on_cpu:
        return Spread(expected=0, less=0, more=0)
    if rules.charged_memory == "every byte on the device":
        expected, more = (0.35, 5.0) if tp == 1 else (0.6, 5.0)
    elif tp == 1:
        expected, more = (0.13 if older else 0.25 if pp == 1 else 0.1), 0.25
    elif (case.accelerator.link_gb_s_per_direction or 0) < _FAST_LINK:
        expected, more = (0.3, 1.5) if older else (0.35 if newer else 1.3, 1.5)
    elif newer:
        expected, more = 0.35, 1.8
    else:
        expected, more = (0.54, 1.5) if older else (2.1, 0.25)
    shared = case.accelerator.unified_memory
    return Spread(
        expected=round(expected * GIB) + (UNIFIED_BYTES if shared else 0),
        less=round(min(0.7 * expected, 1.0) * GIB) + (UNIFIED_BYTES if shared else 0),
        more=round(more * GIB) + (UNIFIED_MORE if shared else 0),
    )


# NVLink generations of data-centre cards; NCCL sets up more channels and multicast buffers there [10^9 B/s].
_FAST_LINK = 150


def _on_measured_ground(case: Case, rules: EngineRules) -> bool:
    """Whether logs of such a release on such a card are behind the constants: NVIDIA data-centre cards, 0.11 to 0.20."""
    card = case.accelerator
    measured = release("0.11.0") <= release(rules.version) < release("0.21.0")
    return measured and card.vendor == "nvidia" and not card.unified_memory and device_bytes(card) >= 40 * GIB


def _workspaces(case: Case, tokens: int) -> tuple[int, int]:
    """Bytes of the experts' buffers: ``(certainly there, there with some kernels)``.

    Triton's and Marlin's kernels need them for packed experts too, others do not, and which runs is not known: a start of
    MiniMax-M2.5 in fp8 (0.19, Triton) shows them, GLM-5.1 and Qwen3-235B in fp8 do not. Those for 4-bit floats need none.
    Source: vLLM 0.19.1 fused_moe/fused_moe.py (TritonExperts.workspace_shapes), fused_marlin_moe.py.
    """
    model, tp = case.model, case.layout.tp
    _, expert = _widths(model)
    if expert is None:
        return 0, 0
    width, top_k = expert
    columns = max(2 * width // tp, model.hidden_size) + max(width // tp, model.hidden_size)
    buffers = tokens * top_k * columns * 2
    packed = _expert_packing(case)
    if packed.startswith(_FLOAT4):
        return 0, 0
    return (0, buffers) if packed else (buffers, 0)


def _expert_packing(case: Case) -> str:
    """The name of the experts' packing; "" for experts of 16 bits."""
    fmt = weight_format(case.model, case.settings.weights)
    for layer, _ in case.model.layer_runs():
        for weight in layer.weights:
            packing = packing_of(case.model, weight, 0, fmt) if weight.part == EXPERTS else None
            if packing is not None:
                return packing.name
    return ""


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


SOURCE = _LOGS
ACTIVATION_SOURCE = "tensors of the profile run, counted in the released sources; checked on 0.6 to 0.19 logs"
