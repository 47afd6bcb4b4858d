"""vLLM: a fraction of the device, minus weights, activations, communication and graphs; the rest cut into pages.

    requested = ceil(device total x utilization)
    cache     = requested - weights - activation - non-torch - graphs          (per GPU)
    blocks    = min over stages of floor(cache / bytes per block)
    replica   = floor((blocks - 1) / blocks one conversation holds)

Weights: vocabulary padded to 64 and divided by T, key/value heads max(1, K // T), latents and norms whole, absorbed
copies of latent attention. Pages: ``vllm_pages.py``. Reserves: ``vllm_memory.py``, predicted with an interval.
"""

from __future__ import annotations

from headcount.cost.weights import nominal_scale, rank_weights, weight_format
from headcount.engines import vllm_memory
from headcount.engines.base import (
    Case,
    Engine,
    GpuBudget,
    Layout,
    Replica,
    Settings,
    cut_layers,
    head_refusal,
)
from headcount.engines.vllm_cache import cache_setting, rank_layers
from headcount.engines.vllm_ledger import Stage, replica_ledger
from headcount.engines.vllm_pages import VERIFIED_VERSION, PagePlan, plan_stages, release, rules_for
from headcount.errors import LayoutError, UsageError
from headcount.spec.attention import ChunkedAttention, CrossAttention
from headcount.spec.kv_format import kv_format
from headcount.spec.weight import EXPERTS, KV, REPLICATED
from headcount.units import ceil_div, round_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headcount.hardware import Accelerator
    from headcount.spec.kv_format import KvFormat
    from headcount.spec.model import ModelSpec
    from headcount.spec.weight import Weight

VOCAB_MULTIPLE = 64
# Formats of kv_cache_dtype, and the name of ours that stores the same bytes (fp32 scales inside the page).
KV_FORMATS = {
    "fp16": "fp16",
    "bf16": "bf16",
    "fp8": "fp8",
    "int8_per_token_head": "int8_per_token_head_fp32",
    "fp8_per_token_head": "fp8_per_token_head_fp32",
    "int4_per_token_head": "int4_per_token_head_fp32",
    "nvfp4": "nvfp4",
}
# Last version that had the architecture (vllm/model_executor/models/registry.py of 0.33.0).
DROPPED = {
    "qwen": "0.23.0",
    "baichuan": "0.23.0",
    "dots1": "0.23.0",
    "bamba": "0.23.0",
    "minimax": "0.23.0",
    "persimmon": "0.25.0",
    "mpt": "0.28.0",
    "mllama_text_model": "0.10.2",
}
ABSENT = ("t5", "mt5", "umt5", "marian", "pegasus", "bart", "mbart", "recurrent_gemma")


class Vllm(Engine):
    """One version of vLLM; see the module."""

    name = "vllm"

    def __init__(self, version: str | None = None) -> None:
        self.version = (version or VERIFIED_VERSION).strip().removeprefix("v")
        self.rules = rules_for(self.version)

    def refusal(self, model: ModelSpec, layout: Layout) -> str | None:
        """What vLLM checks at start: architecture, heads, vocabulary, widths, packed groups, stages."""
        family = model.family
        if family in ABSENT:
            return f"vLLM {self.version} does not serve model type {family}"
        last = DROPPED.get(family)
        if last and release(self.version) > release(last):
            return f"vLLM dropped model type {family} after {last}"
        if layout.pp > len(model.layers):
            return f"{len(model.layers)} layers cannot make {layout.pp} stages"
        return head_refusal(model, layout.tp) or _width_refusal(model, layout.tp)

    def kv_format_name(self, model: ModelSpec, settings: Settings) -> str:
        """``auto``: what the checkpoint's KV scheme says, else the model's 16-bit type."""
        if settings.kv == "auto":
            if model.quantization is not None and model.quantization.kv_cache_bits == 8:
                return "fp8"
            return "bf16" if model.dtype == "fp32" else model.dtype
        asked = kv_format(settings.kv).name
        if asked not in KV_FORMATS:
            raise UsageError(
                f"vLLM has no KV cache format {settings.kv!r}; allowed: auto, {', '.join(KV_FORMATS)}"
            )
        return KV_FORMATS[asked]

    def usable_bytes(self, accelerator: Accelerator, settings: Settings) -> int:
        """``ceil(total x utilization)``."""
        memory = settings.memory_bytes or vllm_memory.device_bytes(accelerator)
        return ceil_div(memory * round(self._utilization(settings) * 10**6), 10**6)

    def _utilization(self, settings: Settings) -> float:
        if settings.utilization is not None:
            return settings.utilization
        return self.rules.default_utilization if settings.reserve is None else 1 - settings.reserve

    def replica(self, case: Case) -> Replica:
        """Plan the pages of every stage; the stage with the fewest blocks binds."""
        if not case.accelerator.modelled:
            raise LayoutError(f"vLLM is not modelled on {case.accelerator.name}")
        kv = kv_format(self.kv_format_name(case.model, case.settings))
        cuts = pipeline_stages(len(case.model.layers), case.layout.pp)
        setting = cache_setting(case.model, kv, case.layout.tp, case.context)
        chunked = any(
            isinstance(m, ChunkedAttention) for layer, _ in case.model.layer_runs() for m in layer.mixers
        )
        plans = plan_stages(
            [rank_layers(case.model, start, end, setting) for start, end in cuts],
            hybrid_manager=not chunked,
            mamba_cache_mode="align" if "align" in self.rules.mamba_modes else "none",
            engine_version=self.version,
        )
        charge = {"batches_in_flight": 2, "encoder_tokens": _source_tokens(case.model)}
        # Beyond max_num_seqs a request waits, however much cache is free.
        most_seqs = vllm_memory.batch_limits(case, self.rules)[1]
        held = plans[0].resident_blocks(case.context, **charge)
        stages = self._stages(case, cuts, plans, held=held, most_seqs=most_seqs)

        def hold(room: Callable[[Stage], int]) -> int:
            blocks = min(max(0, room(stage)) // stage.plan.bytes_per_block for stage in stages)
            return min(plans[0].live_conversations(blocks, case.context, **charge), most_seqs)

        worst = min(stages, key=lambda stage: stage.best // stage.plan.bytes_per_block)
        counts = (hold(lambda s: s.best), hold(lambda s: s.least), hold(lambda s: s.most))
        return self._answer(case, kv, worst, counts)

    def _stages(
        self,
        case: Case,
        cuts: list[tuple[int, int]],
        plans: tuple[PagePlan, ...],
        *,
        held: int,
        most_seqs: int,
    ) -> list[Stage]:
        """Every stage's memory. Stages of one length differ in their weights only, so reserves are predicted once."""
        model, tp, layers = case.model, case.layout.tp, len(case.model.layers)
        fmt = weight_format(model, case.settings.weights)
        ranks = rank_weights(model, fmt, tp=tp, vocab_multiple=VOCAB_MULTIPLE)
        numerator, denominator = nominal_scale(model, fmt)
        absorbed = vllm_memory.absorbed_bytes(model, tp)
        packed = fmt.packing is not None or (fmt.own and model.quantization is not None)
        requested = self.usable_bytes(case.accelerator, case.settings)
        reserves: dict[tuple[bool, int], vllm_memory.Overhead] = {}
        stages = []
        for (start, end), plan in zip(cuts, plans, strict=True):
            shape = (end == layers, end - start)
            if shape not in reserves:
                reserves[shape] = vllm_memory.overhead(
                    case, self.rules, last_stage=shape[0], stage_layers=shape[1], packed_experts=packed
                )
            extra = reserves[shape]
            weights = ceil_div(ranks.stage(start, end) * numerator, denominator)
            share = absorbed * (end - start) // layers
            room = requested - weights - share
            stages.append(
                Stage(
                    cut=(start, end),
                    plan=plan,
                    weights=weights,
                    absorbed=share,
                    overhead=extra,
                    requested=requested,
                    best=room - extra.total,
                    least=room - extra.high,
                    most=room - extra.low,
                    held=held,
                    most_seqs=most_seqs,
                )
            )
        return stages

    def _answer(self, case: Case, kv: KvFormat, stage: Stage, counts: tuple[int, int, int]) -> Replica:
        best, least, most = counts
        memory = case.settings.memory_bytes or vllm_memory.device_bytes(case.accelerator)
        overhead = [
            ("activations", stage.overhead.activation),
            ("communication and kernels", stage.overhead.non_torch),
            ("CUDA graphs", stage.overhead.graphs),
            ("absorbed latent projections", stage.absorbed),
        ]
        binding = "cache pages"
        if stage.best < 0:
            binding = "weights and reserves leave no memory for a cache"
        elif best == 0:
            binding = f"not one conversation of {case.context:,} tokens fits the cache"
        elif case.layout.pp > 1:
            binding = f"cache pages, on the fullest of {case.layout.pp} stages"
        if best == stage.most_seqs:
            binding = f"max_num_seqs: the engine runs {best:,} sequences at a time (--max-seqs)"
        budget = GpuBudget(
            memory=memory,
            reserved=memory - stage.requested,
            weights=stage.weights,
            overhead=tuple((name, count) for name, count in overhead if count),
            kv_budget=stage.best,
        )
        return Replica(
            conversations=best,
            low=least,
            high=most,
            budget=budget,
            kv_bytes_per_conversation_per_gpu=stage.held * stage.plan.bytes_per_block,
            binding=binding,
            make_ledger=lambda: replica_ledger(
                case,
                stage,
                budget,
                rules=self.rules,
                utilization=self._utilization(case.settings),
                kv=kv,
                count=best,
            ).replace(name=f"one GPU, layers {stage.cut[0]} to {stage.cut[1] - 1}"),
            warnings=self._warnings(case),
        )

    def _warnings(self, case: Case) -> tuple[str, ...]:
        warnings = []
        if self.rules.version != self.version:
            warnings.append(
                f"vLLM {self.version}: the rules of {self.rules.version} are used, the newest known before it"
            )
        if case.layout.tp > 1 and vllm_memory.absorbed_bytes(case.model, 1):
            warnings.append(
                f"a latent cache has no heads to divide: each of the {case.layout.tp} tensor-parallel ranks holds all of "
                "it; data-parallel attention, which divides it, is not modelled"
            )
        card = case.accelerator
        if case.settings.memory_bytes is None and card.reported_mib is None:
            warnings.append(f"{card.name}: {card.driver_bytes_source}")
        if card.vendor not in ("nvidia", "amd") or card.unified_memory:
            warnings.append(
                f"{card.name}: vLLM's reserves were measured on NVIDIA data-centre cards, not on this one"
            )
        return tuple(warnings)


def pipeline_stages(layers: int, stages: int) -> list[tuple[int, int]]:
    """Cut as vLLM does: the remainder goes one each to the stages counted back from the second-last."""
    base, extra = divmod(layers, stages)
    sizes = [base] * stages
    for i in range(extra):
        sizes[(stages - 2 - i) % stages] += 1
    return cut_layers(sizes)


def _source_tokens(model: ModelSpec) -> int:
    sources = [
        m.source_positions
        for layer, _ in model.layer_runs()
        for m in layer.mixers
        if isinstance(m, CrossAttention)
    ]
    return max(sources, default=0)


def _width_refusal(model: ModelSpec, tp: int) -> str | None:
    """Vocabulary (padded to 64) and every sharded width must divide; packed groups must stay whole."""
    if tp == 1:
        return None
    if round_up(model.vocab_size, VOCAB_MULTIPLE) % tp:
        return f"the vocabulary of {model.vocab_size:,} (padded to a multiple of 64) does not divide by {tp}"
    for layer, _ in model.layer_runs():
        for weight in layer.weights:
            reason = _weight_refusal(model, weight, tp)
            if reason:
                return reason
    return None


def _weight_refusal(model: ModelSpec, weight: Weight, tp: int) -> str | None:
    if not weight.linear or weight.shard in (REPLICATED, KV):
        return None
    short = weight.name.rsplit(".", 1)[-1]
    # Column-parallel layers divide their outputs, row-parallel ones their inputs; experts divide their own width.
    if weight.part == EXPERTS and model.hidden_size in weight.shape:
        width = weight.shape[0] if weight.shape[1] == model.hidden_size else weight.shape[1]
    else:
        width = weight.shape[1] if weight.shard == "row" else weight.shape[0]
    if width % tp:
        return f"width {width:,} of {short} does not divide by {tp}"
    packing = model.quantization.packing_of(weight, 0) if model.quantization is not None else None
    if packing is None:
        return None
    unit = packing.group if weight.shard != "column" else packing.block_rows
    if weight.part == EXPERTS:
        unit = max(packing.block_rows, packing.group if packing.block_rows > 1 else 1)
    if unit > 1 and (width // tp) % unit:
        return f"{width:,} / {tp} = {width // tp:,} columns of {short} are not whole groups of {unit} ({packing.name})"
    return None
