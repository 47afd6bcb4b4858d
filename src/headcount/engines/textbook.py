"""The textbook engine: datasheet gigabytes, a reserve fraction, weights, cache; nothing else.

    budget         = datasheet GB x 10^9 x (1 - reserve) - weights / (T P)
    conversations  = min over stages of floor(budget / bytes of one conversation on that GPU)

It is what the chapters compute, made honest in three ways: conversations are whole, weights are copied to every
replica, and key/value heads are whole (max(1, K // T) on a rank; a latent is not divided).
"""

from __future__ import annotations

from headcount.cost.cache import conversation_bytes, mixer_runs, rank_mixer
from headcount.cost.weights import nominal_scale, rank_weights, weight_format
from headcount.engines.arguments import read_arguments
from headcount.engines.base import (
    Case,
    Engine,
    GpuBudget,
    Layout,
    Pool,
    Replica,
    Settings,
    even_stages,
    head_refusal,
    stage_model,
)
from headcount.errors import UsageError
from headcount.ledger import Ledger, Term
from headcount.spec.kv_format import kv_format
from headcount.units import ceil_div

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.hardware import Accelerator
    from headcount.spec.kv_format import KvFormat
    from headcount.spec.model import ModelSpec


class Textbook(Engine):
    """See the module."""

    name = "textbook"
    version = "1"

    def __init__(self, version: str | None = None) -> None:
        if version not in (None, self.version):
            raise UsageError(f"the textbook engine has no version {version!r}; leave --engine-version out")

    def refusal(self, model: ModelSpec, layout: Layout) -> str | None:
        """Heads are whole, and a pipeline has no more stages than blocks."""
        if layout.pp > len(model.layers):
            return f"{len(model.layers)} layers cannot make {layout.pp} stages"
        return head_refusal(model, layout.tp)

    def kv_format_name(self, model: ModelSpec, settings: Settings) -> str:
        """``auto`` is 16 bits."""
        return "fp16" if settings.kv == "auto" else kv_format(settings.kv).name

    def usable_bytes(self, accelerator: Accelerator, settings: Settings) -> int:
        """``memory x (1 - reserve)``."""
        memory = settings.memory_bytes or accelerator.datasheet_bytes
        return memory - _reserved(memory, settings)

    def loaded_bytes(self, case: Case) -> int:
        """The heaviest stage's weights / T."""
        cuts = even_stages(len(case.model.layers), case.layout.pp)
        return max(_stage_weights(case, start, end) for start, end in cuts)

    def pool(self, case: Case, cache_bytes: int) -> Pool:
        """``tokens = whole conversations x context``; bytes of a token on the fullest stage."""
        kv = kv_format(self.kv_format_name(case.model, case.settings))
        cuts = even_stages(len(case.model.layers), case.layout.pp)
        parts = [stage_model(case.model, start, end) for start, end in cuts]
        each = max(_rank_conversation_bytes(part, case.context, kv, case.layout.tp) for part in parts)
        token = max(
            _rank_conversation_bytes(part, case.context, kv, case.layout.tp)
            - _rank_conversation_bytes(part, case.context - 1, kv, case.layout.tp)
            for part in parts
        )
        held = _whole(cache_bytes, each)
        return Pool(tokens=held * case.context, bytes_per_token=token, concurrency=held, needed_bytes=each)

    def replica(self, case: Case) -> Replica:
        """The module's two equations, on the stage that holds the fewest conversations."""
        read_arguments(case.settings.arguments, (), engine=self.name)
        if case.settings.max_num_seqs is not None or case.settings.max_num_batched_tokens is not None:
            raise UsageError(
                "the textbook engine has no batches: leave --max-seqs and --max-batched-tokens out"
            )
        kv = kv_format(self.kv_format_name(case.model, case.settings))
        stages = [
            self._stage(case, kv, start, end)
            for start, end in even_stages(len(case.model.layers), case.layout.pp)
        ]
        worst = min(stages, key=lambda stage: stage.conversations)
        if case.layout.pp > 1:
            worst = worst.replace(binding=f"{worst.binding}, on the fullest of {case.layout.pp} stages")
        return worst

    def _stage(self, case: Case, kv: KvFormat, start: int, end: int) -> Replica:
        model, layout, settings = case.model, case.layout, case.settings
        memory = settings.memory_bytes or case.accelerator.datasheet_bytes
        reserved = _reserved(memory, settings)
        weights = _stage_weights(case, start, end)
        budget = memory - reserved - weights
        each = _rank_conversation_bytes(stage_model(model, start, end), case.context, kv, layout.tp)
        count = _whole(budget, each)
        gpu = GpuBudget(
            memory=memory,
            reserved=reserved,
            weights=weights,
            overhead=(),
            kv_budget=budget,
            kv_low=budget,
            kv_high=budget,
        )
        return Replica(
            conversations=count,
            low=count,
            high=count,
            budget=gpu,
            kv_bytes_per_conversation_per_gpu=each,
            binding="the weights do not fit" if budget < 0 else "cache memory",
            make_ledger=lambda: Ledger(
                name=f"one GPU, layers {start} to {end - 1}",
                terms=_terms(case, kv, gpu, each=each, cut=(start, end)),
            ),
        )


def _terms(case: Case, kv: KvFormat, gpu: GpuBudget, *, each: int, cut: tuple[int, int]) -> tuple[Term, ...]:
    return (
        Term(
            name="card memory, as sold",
            symbol="M",
            value=gpu.memory,
            unit="B",
            formula="datasheet GB x 10^9" if case.settings.memory_bytes is None else "--memory",
            numbers=f"{case.accelerator.datasheet_gb:g} x 10^9" if case.settings.memory_bytes is None else "",
            source=case.accelerator.name,
        ),
        Term(
            name="reserved",
            symbol="R",
            value=gpu.reserved,
            unit="B",
            formula="M x reserve",
            numbers=f"{gpu.memory:,} x {_reserve(case.settings):g}",
            source="textbook engine: a fraction, nothing else",
        ),
        Term(
            name="weights on this GPU",
            symbol="W",
            value=gpu.weights,
            unit="B",
            formula="weight bytes of the stage / T",
            numbers=f"layers {cut[0]} to {cut[1] - 1}, T = {case.layout.tp}",
        ),
        Term(
            name="cache budget",
            symbol="C",
            value=gpu.kv_budget,
            unit="B",
            formula="M - R - W",
            numbers=f"{gpu.memory:,} - {gpu.reserved:,} - {gpu.weights:,}",
        ),
        Term(
            name="one conversation on this GPU",
            symbol="c",
            value=each,
            unit="B",
            formula="sum over layers of tokens kept x bytes",
            numbers=f"layers {cut[0]} to {cut[1] - 1}, {case.context:,} tokens, {kv.name}, T = {case.layout.tp}",
        ),
        Term(
            name="conversations per replica",
            symbol="N_conv",
            value=_whole(gpu.kv_budget, each),
            unit="conversations",
            formula="floor(C / c)",
            numbers=f"floor({gpu.kv_budget:,} / {each:,})",
        ),
    )


def _stage_weights(case: Case, start: int, end: int) -> int:
    """``ceil(weight bytes of the stage / T)``."""
    fmt = weight_format(case.model, case.settings.weights)
    numerator, denominator = nominal_scale(case.model, fmt)
    stage = ceil_div(rank_weights(case.model, fmt).stage(start, end) * numerator, denominator)
    return ceil_div(stage, case.layout.tp)


def _reserve(settings: Settings) -> float:
    """The fraction kept free: as asked, else what is not utilised, else none."""
    if settings.utilization is not None:
        return 1 - settings.utilization
    return settings.reserve or 0.0


def _reserved(memory: int, settings: Settings) -> int:
    return round(memory * _reserve(settings))


def _rank_conversation_bytes(model: ModelSpec, context: int, kv: KvFormat, tp: int) -> int:
    if tp == 1:
        return conversation_bytes(model, context, kv)
    return sum(times * rank_mixer(mixer, tp).kv_bytes(context, kv) for mixer, times in mixer_runs(model))


def _whole(budget: int, each: int) -> int:
    """Whole conversations. A stage that caches nothing limits nothing: then the cache is not what binds."""
    if budget < 0:
        return 0
    return budget // each if each else NO_LIMIT


# A pipeline stage without attention (or a model without a cache) never runs out of cache.
NO_LIMIT = 10**9
