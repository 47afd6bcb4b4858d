"""vLLM: a fraction of the device, minus weights, activations, communication and graphs; the rest cut into pages.

    requested = ceil(device total x utilization)
    cache     = requested - weights - activation - non-torch - graphs          (per GPU)
    blocks    = min over stages of floor(cache / bytes per block)
    replica   = floor((blocks - 1) / blocks one conversation holds)

Weights: vocabulary padded to 64 and divided by T, key/value heads max(1, K // T), latents and norms whole, absorbed
copies of latent attention. Pages: ``pages.py``. Reserves: ``memory.py``, predicted with an interval.
"""

from __future__ import annotations

from headcount.engines.arguments import read_arguments
from headcount.engines.base import (
    Case,
    Engine,
    GpuBudget,
    Launch,
    Layout,
    Pool,
    Replica,
    Settings,
    cut_layers,
)
from headcount.engines.versions import release
from headcount.engines.vllm import memory
from headcount.engines.vllm.formats import KV_FORMATS, KV_SINCE, SPARSE_NVFP4_SINCE
from headcount.engines.vllm.layers import cache_setting, rank_layers
from headcount.engines.vllm.ledger import Stage, replica_ledger
from headcount.engines.vllm.options import (
    VLLM_ARGUMENTS,
    Setup,
    batch_limits,
    indexed_mixers,
    resolve,
    total_bytes,
    utilization,
)
from headcount.engines.vllm.pages import PagePlan, plan_stages
from headcount.engines.vllm.refusals import card_refusal, vllm_refusal
from headcount.engines.vllm.rules import LAST_V0, VERIFIED_VERSION, is_prerelease, rules_for
from headcount.engines.vllm.weights import stage_weights
from headcount.errors import LayoutError, UsageError
from headcount.spec.attention import CompressedLatent, CrossAttention, LatentAttention
from headcount.spec.kv_format import kv_format
from headcount.units import ceil_div

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headcount.hardware import Accelerator
    from headcount.spec.model import ModelSpec


class Vllm(Engine):
    """One version of vLLM; see the module."""

    name = "vllm"
    arguments = VLLM_ARGUMENTS
    calibrated = (
        "device_bytes",
        "weight_bytes",
        "activation_bytes",
        "non_torch_bytes",
        "graph_bytes",
        "cache_bytes",
    )

    calibrated_arguments = (
        "enforce-eager",
        "speculative-method",
        "num-speculative-tokens",
        "decode-context-parallel-size",
        "enable-expert-parallel",
        "language-model-only",
    )

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
        # The 16-bit names came late, for types that a cache had always had.
        first = "" if asked in ("fp16", "bf16") else KV_SINCE[asked]
        if asked == "nvfp4" and indexed_mixers(model):
            first = SPARSE_NVFP4_SINCE
        if first and release(self.version) < release(first) and not is_prerelease(self.version):
            raise UsageError(
                f"vLLM {self.version} has no {asked} cache for {model.name}; {first} is the first release with it"
            )
        return KV_FORMATS[asked]

    def usable_bytes(self, accelerator: Accelerator, settings: Settings) -> int:
        """``ceil(total x utilization)``."""
        total = total_bytes(accelerator, settings)
        return ceil_div(total * round(utilization(settings, self.rules) * 10**6), 10**6)

    def _running(self, case: Case) -> Vllm:
        """The engine that runs on this card: V0, as of its last release, where the release keeps older cards to it."""
        card = case.accelerator
        older = card.vendor == "nvidia" and float(card.compute_capability or "inf") < self.rules.v0_below
        return Vllm(LAST_V0) if older else self

    def replica(self, case: Case) -> Replica:
        """Plan the pages of every stage; the stage with the fewest blocks binds."""
        if (running := self._running(case)) is not self:
            return running.replica(case)
        if not case.accelerator.modelled:
            raise LayoutError(f"vLLM is not modelled on {case.accelerator.name}")
        if reason := card_refusal(case.model, case.accelerator, self.rules, self.version):
            raise LayoutError(reason)
        setup = self._setup(case)
        cuts, plans = self._plans(case, setup)
        charge = {"batches_in_flight": setup.in_flight_batches, "encoder_tokens": _source_tokens(case.model)}
        held = plans[0].resident_blocks(case.context, **charge)
        words = plans[0].resident_words(case.context, **charge)
        stages = [
            stage.replace(held_words=words) for stage in self._stages(case, setup, cuts, plans, held=held)
        ]

        def hold(room: Callable[[Stage], int]) -> int:
            blocks = setup.blocks or min(
                max(0, room(stage)) // stage.plan.bytes_per_block for stage in stages
            )
            # Beyond max_num_seqs a request waits, however much cache is free.
            return min(plans[0].live_conversations(blocks, case.context, **charge), setup.seqs)

        worst = min(stages, key=lambda stage: stage.best // stage.plan.bytes_per_block)
        counts = (hold(lambda s: s.best), hold(lambda s: s.least), hold(lambda s: s.most))
        return self._answer(case, setup, worst, counts)

    def _setup(self, case: Case) -> Setup:
        return resolve(case, self.rules, self.kv_format_name(case.model, case.settings), self.version)

    def _plans(self, case: Case, setup: Setup) -> tuple[list[tuple[int, int]], tuple[PagePlan, ...]]:
        """Cut the layers into stages and plan the pages of each."""
        cuts = pipeline_stages(len(case.model.layers), case.layout.pp)
        setting = cache_setting(case.model, setup, case.layout.tp)
        packed = any(
            isinstance(m, CompressedLatent) for layer, _ in case.model.layer_runs() for m in layer.mixers
        )
        plans = plan_stages(
            [rank_layers(case.model, start, end, setting) for start, end in cuts],
            hybrid_manager=setup.hybrid_manager,
            mamba_cache_mode=setup.mamba_mode,
            engine_version=self.version,
            block_outermost=packed,
            context_shards=setup.context_shards,
        )
        return cuts, plans

    def holds(
        self, case: Case, *, tokens: int | None, blocks: int | None, cache_bytes: int | None
    ) -> int | None:
        """From the blocks, else the cache's bytes, else the tokens: whole conversations of resident blocks."""
        if (running := self._running(case)) is not self:
            return running.holds(case, tokens=tokens, blocks=blocks, cache_bytes=cache_bytes)
        setup = self._setup(case)
        _, plans = self._plans(case, setup)
        source = _source_tokens(case.model)
        if blocks is None and cache_bytes is not None:
            blocks = min(plan.num_blocks(cache_bytes) for plan in plans)
        if blocks is None and tokens is not None:
            blocks = plans[0].blocks_of_tokens(
                tokens, setup.longest, setup.in_flight_tokens, encoder_tokens=source
            )
        if blocks is None:
            return None
        held = plans[0].live_conversations(
            blocks, case.context, batches_in_flight=setup.in_flight_batches, encoder_tokens=source
        )
        return min(held, case.settings.max_num_seqs or held)

    def batches(self, case: Case) -> tuple[int, int]:
        """``(max_num_batched_tokens, max_num_seqs)``, on which activations and graphs depend."""
        given = read_arguments(case.settings.arguments, VLLM_ARGUMENTS, engine="vllm")
        longest = int(given["max-model-len"] or case.context)
        return batch_limits(case, self._running(case).rules, longest)

    def calibrated_case(self, case: Case) -> Case:
        """See ``Engine.calibrated_case``. Graphs that this release does not charge are no term, however large they were;
        the cache is another one at another utilization.
        """
        case = super().calibrated_case(case)
        found = case.settings.calibration
        if found is None:
            return case
        charged = self._running(case).rules.cuda_graphs_counted == "yes"
        same = found.utilization == utilization(case.settings, self.rules)
        found = found.replace(
            graph_bytes=found.graph_bytes if charged else None,
            cache_bytes=found.cache_bytes if same else None,
        )
        return case.replace(settings=case.settings.replace(calibration=found))

    def default_utilization(self, case: Case) -> float | None:
        """gpu_memory_utilization: as asked, else the release's default."""
        return utilization(case.settings, self.rules)

    def loaded_bytes(self, case: Case) -> int:
        """The heaviest stage's share of the tensors, and its absorbed copies."""
        cuts = pipeline_stages(len(case.model.layers), case.layout.pp)
        loaded = stage_weights(case, cuts, self.version)
        return max(stage.total for stage in loaded)

    def pool(self, case: Case, cache_bytes: int) -> Pool:
        """Blocks, "GPU KV cache size", "Maximum concurrency" and what one longest request needs."""
        if (running := self._running(case)) is not self:
            return running.pool(case, cache_bytes)
        setup = self._setup(case)
        _, plans = self._plans(case, setup)
        blocks = setup.blocks or min(plan.num_blocks(cache_bytes) for plan in plans)
        source, longest, flight = _source_tokens(case.model), setup.longest, setup.in_flight_tokens
        plan = plans[0]
        block = min(group.block_size for group in plan.groups)
        return Pool(
            tokens=plan.kv_tokens(blocks, longest, flight, encoder_tokens=source),
            bytes_per_token=max(each.bytes_per_token for each in plans),
            blocks=blocks,
            block_tokens=block,
            concurrency=plan.concurrency(blocks, longest, flight, encoder_tokens=source),
            needed_bytes=max(each.needed_bytes(longest, flight, encoder_tokens=source) for each in plans),
        )

    def _stages(
        self, case: Case, setup: Setup, cuts: list[tuple[int, int]], plans: tuple[PagePlan, ...], *, held: int
    ) -> list[Stage]:
        """Every stage's memory. Stages of one length differ in their weights only, so reserves are predicted once."""
        layers = len(case.model.layers)
        requested = self.usable_bytes(case.accelerator, case.settings)
        loaded = stage_weights(case, cuts, self.version)
        reserves: dict[tuple[bool, bool, int], memory.Overhead] = {}
        stages = []
        for (start, end), plan, weights in zip(cuts, plans, loaded, strict=True):
            shape = (start == 0, end == layers, end - start)
            if shape not in reserves:
                reserves[shape] = memory.overhead(
                    case, setup, self.rules, first_stage=shape[0], last_stage=shape[1], stage_layers=shape[2]
                )
            extra = reserves[shape]
            room = requested - weights.total
            best, least, most = room - extra.total, room - extra.high - weights.unsure, room - extra.low
            given, why = self._given_cache(case, setup, plan)
            if given is not None:
                best = least = most = given
            stages.append(
                Stage(
                    cut=(start, end),
                    plan=plan,
                    weights=weights,
                    overhead=extra,
                    requested=requested,
                    best=best,
                    least=least,
                    most=most,
                    held=held,
                    most_seqs=setup.seqs,
                    given=why,
                )
            )
        return stages

    def launch(self, case: Case, *, model: str, concurrency: int) -> Launch:
        """``vllm serve`` with every figure of the plan as a flag."""
        from headcount.engines.vllm.launch import vllm_launch

        rules = self._running(case).rules
        return vllm_launch(self, case, rules, model=model, concurrency=concurrency)

    def _given_cache(self, case: Case, setup: Setup, plan: PagePlan) -> tuple[int | None, str]:
        """A cache that is said, not left over, and by what."""
        if setup.cache_bytes is not None:
            return setup.cache_bytes, "kv-cache-memory-bytes"
        if setup.blocks is not None:
            return setup.blocks * plan.bytes_per_block, "num-gpu-blocks-override"
        measured = self._measured_cache(case)
        return measured, "" if measured is None else "measured"

    def _measured_cache(self, case: Case) -> int | None:
        """The cache a calibration saw on a server that was started as this case asks."""
        found = case.settings.calibration
        if found is None or found.utilization != utilization(case.settings, self.rules):
            return None
        return found.measured("cache_bytes", case, self.name, self.version)

    def _answer(self, case: Case, setup: Setup, stage: Stage, counts: tuple[int, int, int]) -> Replica:
        best, least, most = counts
        total = total_bytes(case.accelerator, case.settings)
        overhead = [
            ("activations", stage.overhead.activation),
            ("communication and kernels", stage.overhead.non_torch),
            ("CUDA graphs", stage.overhead.graphs),
            ("absorbed latent projections", stage.weights.absorbed),
        ]
        rest = stage.requested - stage.weights.total - stage.overhead.total - stage.best
        # A cache that is said need not be what is left over; the budget adds up all the same.
        overhead.append(("measured beside the terms", max(rest, 0) if stage.given == "measured" else 0))
        taken = stage.weights.loaded + sum(count for _, count in overhead) + stage.best
        if taken > total and stage.given:
            raise LayoutError(
                f"{stage.given} {stage.best:,} B, weights and reserves take {taken:,} B of the card's {total:,} B"
            )
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
            reserved=total - taken,
            weights=stage.weights.loaded,
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
                utilization=utilization(case.settings, self.rules),
                kv=setup.kv,
                count=best,
            ).replace(name=f"one GPU, layers {stage.cut[0]} to {stage.cut[1] - 1}"),
            warnings=self._warnings(case),
        )

    def _warnings(self, case: Case) -> tuple[str, ...]:
        warnings = []
        if release(self.version) > release(VERIFIED_VERSION):
            warnings.append(
                f"vLLM {self.version} is newer than the newest rules known, those of {VERIFIED_VERSION}"
            )
        elif is_prerelease(self.version):
            warnings.append(
                f"vLLM {self.version}: a build before a release has the rules of the release before it"
            )
        latent = any(
            isinstance(m, LatentAttention) for layer, _ in case.model.layer_runs() for m in layer.mixers
        )
        if case.layout.tp > 1 and latent:
            warnings.append(
                f"a latent cache has no heads to divide: each of the {case.layout.tp} tensor-parallel ranks holds all of "
                "it; data-parallel attention, which divides it, is not modelled"
            )
        method = self._setup(case).drafter
        if method in ("eagle", "eagle3"):
            warnings.append(
                f"{method}: the drafter is a checkpoint of its own, and its weights are not counted; its cache is taken as "
                "one more layer like the model's"
            )
        if memory.any_resolution(case.model):
            warnings.append(
                f"{case.model.name}: start-up encodes images of the largest size that is allowed; that peak is uncertain "
                "by 1.5 GiB and more (limit the pixels, or --engine-arg language-model-only)"
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
