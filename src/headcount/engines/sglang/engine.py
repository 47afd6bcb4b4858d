"""SGLang: what was free before the weights, times a fraction, minus the weights; cut into pools of tokens and states.

    cache         = (card - taken) x mem_fraction_static - weights            (per GPU)
    tokens        = floor(cache / bytes of a token), whole pages              (two pools where layers have windows)
    replica       = groups x min(tokens // ceil to pages(n), sliding pool, state slots // q, max_running_requests)

Activations and CUDA graphs are not measured: they live in what the fraction leaves. Weights: vocabulary padded to 64 and
divided by T, key/value heads max(1, K // T), latents whole. Pools: ``pools.py``. Fraction: ``fraction.py``.
"""

from __future__ import annotations

from headcount.engines.base import Case, Engine, GpuBudget, Launch, Layout, Pool, Replica, Settings
from headcount.engines.sglang import memory, pools
from headcount.engines.sglang.fraction import Request, capacity, default_fraction
from headcount.engines.sglang.launch import sglang_launch
from headcount.engines.sglang.ledger import Binding, replica_ledger
from headcount.engines.sglang.options import SGLANG_ARGUMENTS, Setup, has_latent, resolve, total_bytes
from headcount.engines.sglang.refusals import FALLBACK, sglang_refusal
from headcount.engines.sglang.rules import VERIFIED_VERSION, rules_for
from headcount.errors import LayoutError, UsageError
from headcount.spec.kv_format import kv_format
from headcount.units import MIB, gib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.engines.sglang.memory import StageMemory
    from headcount.engines.sglang.pools import Pools, StagePool
    from headcount.hardware import Accelerator
    from headcount.spec.model import ModelSpec

KV_FORMATS = ("bf16", "fp16", "fp8", "nvfp4")


class Sglang(Engine):
    """One version of SGLang; see the module."""

    name = "sglang"
    arguments = SGLANG_ARGUMENTS
    calibrated_arguments = ("attn-dp-size", "enable-dp-attention", "language-model-only")

    def __init__(self, version: str | None = None) -> None:
        self.version = (version or VERIFIED_VERSION).strip().removeprefix("v")
        self.rules = rules_for(self.version)

    def refusal(self, model: ModelSpec, layout: Layout) -> str | None:
        """What SGLang checks at start: model type, heads, vocabulary, widths, stages."""
        return sglang_refusal(model, layout)

    def kv_format_name(self, model: ModelSpec, settings: Settings) -> str:
        """``auto``: fp8 if the checkpoint's KV scheme says so, else the 16-bit type that the model is served in.

        Sparse latent attention is served in fp8 on Blackwell cards: the card decides, and the ledger says.
        """
        served = _served_type(model, settings)
        if settings.kv == "auto":
            if model.quantization is not None and model.quantization.kv_cache_bits == 8:
                return "fp8"
            return served
        asked = kv_format(settings.kv).name
        if asked not in KV_FORMATS:
            raise UsageError(
                f"SGLang has no KV cache format {settings.kv!r}; allowed: auto, {', '.join(KV_FORMATS)}"
            )
        if asked == "fp16" and served != "fp16":
            raise UsageError(
                "SGLang stores fp16 keys and values only of a model served in fp16: add --weights fp16"
            )
        return asked

    def usable_bytes(self, accelerator: Accelerator, settings: Settings) -> int:
        """``total x fraction``, at the fraction of one GPU when it is not given."""
        total = total_bytes(accelerator, settings.memory_bytes)
        fraction = settings.utilization
        if fraction is None and settings.reserve is not None:
            fraction = 1 - settings.reserve
        if fraction is None:
            found = capacity(total // MIB, 1)
            request = Request(
                chunk=found.chunk, graph_batch=found.graph_batch, prefill=0, gpus=1, groups=1, latent=False
            )
            fraction = default_fraction(total // MIB, request)
        return int(total * fraction)

    def loaded_bytes(self, case: Case) -> int:
        """What loading takes on the heaviest stage."""
        return max(weights.total for weights in memory.stage_weights(case, self._setup(case)))

    def pool(self, case: Case, cache_bytes: int) -> Pool:
        """max_total_num_tokens of ``cache_bytes`` of keys and values, as SGLang prints them (K size + V size, KV size,
        SWAKVPool mem usage); a state pool is apart, and printed apart.
        """
        setup = self._setup(case)
        stages = self._stage_pools(case, setup)
        found = pools.token_pools(stages, [cache_bytes] * len(stages), setup)
        return Pool(
            tokens=found.tokens,
            bytes_per_token=found.cell,
            blocks=found.tokens // setup.page,
            block_tokens=setup.page,
        )

    def replica(self, case: Case) -> Replica:
        """Size the pools of every stage; the stage with the fewest tokens binds, times the attention groups."""
        card = case.accelerator
        if not card.modelled or card.vendor not in ("nvidia", "amd"):
            raise LayoutError(f"SGLang is not modelled on {card.name}")
        setup = self._setup(case)
        parts = self._stage_pools(case, setup)
        stages = memory.stage_memory(case, setup, self.version)
        found = pools.solve(parts, [stage.best for stage in stages], setup)
        count, limit = pools.held(found, parts, setup)
        least = pools.held(pools.solve(parts, [stage.least for stage in stages], setup), parts, setup)[0]
        most = pools.held(pools.solve(parts, [stage.most for stage in stages], setup), parts, setup)[0]
        at = min(range(len(stages)), key=lambda i: _room_in_tokens(stages[i], parts[i]))
        bound = Binding(memory=stages[at], pool=parts[at], pools=found, count=count, limit=limit)
        return Replica(
            conversations=count * setup.groups,
            low=least * setup.groups,
            high=most * setup.groups,
            budget=_budget(stages[at], setup),
            kv_bytes_per_conversation_per_gpu=pools.conversation_bytes(parts[at], setup),
            binding=_binding(bound, case, setup),
            make_ledger=lambda: replica_ledger(case, setup, bound),
            warnings=self._warnings(case, setup, found, stages[at]),
        )

    def default_utilization(self, case: Case) -> float | None:
        """``mem_fraction_static``: as asked, else the table's for this card, layout and model."""
        return self._setup(case).fraction

    def launch(self, case: Case, *, model: str, concurrency: int) -> Launch:
        """``python -m sglang.launch_server`` and its image."""
        return sglang_launch(
            case, self._setup(case), model=model, concurrency=concurrency, version=self.version
        )

    def _setup(self, case: Case) -> Setup:
        return resolve(case, self.rules, self.kv_format_name(case.model, case.settings))

    def _stage_pools(self, case: Case, setup: Setup) -> list[StagePool]:
        cuts = memory.stages_of(len(case.model.layers), case.layout.pp)
        return [pools.stage_pool(case.model, start, end, setup) for start, end in cuts]

    def _warnings(self, case: Case, setup: Setup, found: Pools, stage: StageMemory) -> tuple[str, ...]:
        card, warnings = case.accelerator, []
        if self.rules.version != ".".join(self.version.split(".")[:3]):
            warnings.append(f"SGLang {self.version}: the pool rules of {self.rules.version} are used")
        if self.rules.version != VERIFIED_VERSION and case.settings.utilization is None:
            warnings.append(
                f"mem_fraction_static is the default of SGLang {VERIFIED_VERSION}, not of {self.version}"
            )
        if case.model.family in FALLBACK:
            warnings.append(
                f"SGLang has no class for {case.model.family}: transformers' code is assumed to serve it"
            )
        if setup.attention_tp > 1 and has_latent(case.model):
            warnings.append(
                f"a latent cache has no heads to divide: each of the {setup.attention_tp} ranks holds all of it; "
                f"--engine-arg attn-dp-size={case.layout.tp} gives every GPU a cache of its own"
            )
        if pools.ignored_window(case.model, case.context):
            layers = len(case.model.layers)
            warnings.append(
                f"SGLang has no sliding pool for {case.model.family}: it keeps every token in all {layers} layers"
            )
        if memory.tower_is_left_out(case.model) and setup.tower:
            warnings.append("the vision or audio tower is not counted in the weights")
        if case.settings.memory_bytes is None and card.reported_mib is None:
            warnings.append(f"{card.name}: {card.driver_bytes_source}")
        if card.vendor == "amd" or card.unified_memory:
            warnings.append(f"{card.name}: what is taken before the weights was read from very few logs")
        table = (pools.most_requests(found, setup) + 1) * (case.context + 4) * 4
        slack = int(stage.free_before * (1 - setup.fraction))
        if table > slack // 4:
            warnings.append(
                f"the table of token places takes {gib(table)} of the {gib(slack)} that the fraction leaves: "
                "fewer --max-seqs shrink it"
            )
        return tuple(warnings)


def _served_type(model: ModelSpec, settings: Settings) -> str:
    """The 16-bit type of activations: as asked with ``--weights``, else the checkpoint's; fp32 is served in fp16."""
    asked = settings.weights.strip().lower()
    if asked in ("fp16", "bf16"):
        return asked
    return "fp16" if model.dtype == "fp32" else model.dtype


def _room_in_tokens(stage: StageMemory, part: StagePool) -> float:
    """Tokens the stage could hold, for finding the one that binds."""
    each = part.full + part.sliding
    return stage.best / each if each else float("inf")


def _budget(stage: StageMemory, setup: Setup) -> GpuBudget:
    """``memory = slack of the fraction + taken + weights + buffers + cache``."""
    overhead = [
        ("driver, context and communication", stage.taken.expected),
        ("rotary tables", stage.weights.tables),
        ("allocator's rounding of weights", stage.weights.rounding),
        ("absorbed latent projections", stage.weights.absorbed),
        ("images or sound", stage.tower_buffers),
    ]
    parts = tuple((name, count) for name, count in overhead if count)
    spent = stage.weights.tensors + sum(count for _, count in parts) + stage.best
    return GpuBudget(
        memory=stage.total,
        reserved=stage.total - spent,
        weights=stage.weights.tensors,
        overhead=parts,
        kv_budget=stage.best,
        kv_low=stage.least,
        kv_high=stage.most,
    )


def _binding(bound: Binding, case: Case, setup: Setup) -> str:
    if bound.memory.best <= 0:
        return "weights leave no memory for a cache under mem_fraction_static"
    if bound.count == 0:
        return f"not one conversation of {case.context:,} tokens fits the cache"
    words = bound.limit
    if setup.groups > 1:
        words += f", in each of {setup.groups} attention groups"
    return words if case.layout.pp == 1 else f"{words}, on the fullest of {case.layout.pp} stages"
