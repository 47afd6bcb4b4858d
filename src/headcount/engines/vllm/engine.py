"""vLLM: a fraction of the device, minus weights, activations, communication and graphs; the rest cut into pages.

    requested = ceil(device total x utilization)
    cache     = requested - weights - activation - non-torch - graphs          (per GPU)
    blocks    = min over stages of floor(cache / bytes per block)
    replica   = floor((blocks - 1) / blocks one conversation holds)

Weights: vocabulary padded to 64 and divided by T, key/value heads max(1, K // T), latents and norms whole, absorbed
copies of latent attention. Pages: ``pages.py``. Reserves: ``memory.py``, predicted with an interval.
"""

from __future__ import annotations

from headcount.cost.weights import nominal_scale, rank_weights, weight_format
from headcount.engines.base import (
    Case,
    Engine,
    GpuBudget,
    Layout,
    Pool,
    Replica,
    Settings,
    cut_layers,
)
from headcount.engines.vllm import memory
from headcount.engines.vllm.layers import cache_setting, rank_layers
from headcount.engines.vllm.ledger import Stage, replica_ledger
from headcount.engines.vllm.pages import PagePlan, in_flight_tokens, plan_stages
from headcount.engines.vllm.refusals import VOCAB_MULTIPLE, vllm_refusal
from headcount.engines.vllm.rules import VERIFIED_VERSION, rules_for
from headcount.errors import LayoutError, UsageError
from headcount.spec.attention import ChunkedAttention, CrossAttention
from headcount.spec.kv_format import kv_format
from headcount.units import ceil_div

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headcount.hardware import Accelerator
    from headcount.spec.kv_format import KvFormat
    from headcount.spec.model import ModelSpec

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


class Vllm(Engine):
    """One version of vLLM; see the module."""

    name = "vllm"

    def __init__(self, version: str | None = None) -> None:
        self.version = (version or VERIFIED_VERSION).strip().removeprefix("v")
        self.rules = rules_for(self.version)

    def refusal(self, model: ModelSpec, layout: Layout) -> str | None:
        """What vLLM checks at start: architecture, heads, vocabulary, widths, packed groups, stages."""
        return vllm_refusal(model, layout, self.version)

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
        total = settings.memory_bytes or memory.device_bytes(accelerator)
        return ceil_div(total * round(self._utilization(settings) * 10**6), 10**6)

    def _utilization(self, settings: Settings) -> float:
        if settings.utilization is not None:
            return settings.utilization
        return self.rules.default_utilization if settings.reserve is None else 1 - settings.reserve

    def replica(self, case: Case) -> Replica:
        """Plan the pages of every stage; the stage with the fewest blocks binds."""
        if not case.accelerator.modelled:
            raise LayoutError(f"vLLM is not modelled on {case.accelerator.name}")
        kv = kv_format(self.kv_format_name(case.model, case.settings))
        cuts, plans = self._plans(case)
        charge = {"batches_in_flight": 2, "encoder_tokens": _source_tokens(case.model)}
        # Beyond max_num_seqs a request waits, however much cache is free.
        most_seqs = memory.batch_limits(case, self.rules)[1]
        held = plans[0].resident_blocks(case.context, **charge)
        stages = self._stages(case, cuts, plans, held=held, most_seqs=most_seqs)

        def hold(room: Callable[[Stage], int]) -> int:
            blocks = min(max(0, room(stage)) // stage.plan.bytes_per_block for stage in stages)
            return min(plans[0].live_conversations(blocks, case.context, **charge), most_seqs)

        worst = min(stages, key=lambda stage: stage.best // stage.plan.bytes_per_block)
        counts = (hold(lambda s: s.best), hold(lambda s: s.least), hold(lambda s: s.most))
        return self._answer(case, kv, worst, counts)

    def _plans(self, case: Case) -> tuple[list[tuple[int, int]], tuple[PagePlan, ...]]:
        """Cut the layers into stages and plan the pages of each."""
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
        return cuts, plans

    def loaded_bytes(self, case: Case) -> int:
        """The heaviest stage's share of the tensors, and its absorbed copies."""
        model, tp, layers = case.model, case.layout.tp, len(case.model.layers)
        fmt = weight_format(model, case.settings.weights)
        ranks = rank_weights(model, fmt, tp=tp, vocab_multiple=VOCAB_MULTIPLE)
        numerator, denominator = nominal_scale(model, fmt)
        absorbed = memory.absorbed_bytes(model, tp)
        return max(
            ceil_div(ranks.stage(start, end) * numerator, denominator) + absorbed * (end - start) // layers
            for start, end in pipeline_stages(layers, case.layout.pp)
        )

    def pool(self, case: Case, cache_bytes: int) -> Pool:
        """Blocks, "GPU KV cache size", "Maximum concurrency" and what one longest request needs."""
        _, plans = self._plans(case)
        blocks = min(plan.num_blocks(cache_bytes) for plan in plans)
        flight = in_flight_tokens(
            memory.batch_limits(case, self.rules)[0],
            pipeline_stages=case.layout.pp,
            async_scheduling=self.rules.async_scheduling,
            engine_version=self.version,
        )
        source = _source_tokens(case.model)
        plan = plans[0]
        return Pool(
            tokens=plan.kv_tokens(blocks, case.context, flight, encoder_tokens=source),
            bytes_per_token=max(each.bytes_per_block for each in plans)
            / min(group.block_size for group in plan.groups),
            blocks=blocks,
            block_tokens=min(group.block_size for group in plan.groups),
            concurrency=plan.concurrency(blocks, case.context, flight, encoder_tokens=source),
            needed_bytes=max(
                each.needed_bytes(case.context, flight, encoder_tokens=source) for each in plans
            ),
        )

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
        absorbed = memory.absorbed_bytes(model, tp)
        packed = fmt.packing is not None or (fmt.own and model.quantization is not None)
        requested = self.usable_bytes(case.accelerator, case.settings)
        reserves: dict[tuple[bool, int], memory.Overhead] = {}
        stages = []
        for (start, end), plan in zip(cuts, plans, strict=True):
            shape = (end == layers, end - start)
            if shape not in reserves:
                reserves[shape] = memory.overhead(
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
        total = case.settings.memory_bytes or memory.device_bytes(case.accelerator)
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
            memory=total,
            reserved=total - stage.requested,
            weights=stage.weights,
            overhead=tuple((name, count) for name, count in overhead if count),
            kv_budget=stage.best,
            kv_low=stage.least,
            kv_high=stage.most,
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
        if case.layout.tp > 1 and memory.absorbed_bytes(case.model, 1):
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
