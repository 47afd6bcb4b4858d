"""Hugging Face transformers as it is used without a server: ``generate`` on one batch, or continuous batching.

    batch       B = floor((device total - weights - fixed) / e),   e = k + t
                k = cache at n tokens,   t = what a conversation takes beside it at its peak:
                e = max(k' + growth of one layer, cache after the prompt + activations of the prompt) + logits
                k' = k and the allocator's gaps
    paged       see ``paged.py``: the release's own sizing, exact once the free memory is known

The whole context may come as the prompt, which all conversations of a batch read in one pass: that is what is charged.
``prefill-chunk-size`` reads it in pieces. What the cache holds: ``cache.py``. What stands beside it: ``memory.py``.
"""

from __future__ import annotations

from headcount.engines.arguments import Argument, read_arguments
from headcount.engines.base import Case, Engine, GpuBudget, Layout, Pool, Replica, Settings
from headcount.engines.calibration import measured_terms
from headcount.engines.device import CUDA_KEEPS_SPREAD, device_bytes
from headcount.engines.transformers import memory
from headcount.engines.transformers.cache import Layer, Quantised, cache_layers
from headcount.engines.transformers.ledger import BESIDE, VERIFIED_VERSION, Cost, batch_ledger, paged_ledger
from headcount.engines.transformers.paged import (
    DEFAULT_BATCH_TOKENS,
    DEFAULT_PAGE,
    DEFAULT_REQUESTS,
    PagedCache,
    paged_cache,
)
from headcount.engines.transformers.plans import layout_refusal
from headcount.errors import LayoutError, UnknownNameError, UsageError
from headcount.spec.kv_format import kv_format

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.hardware import Accelerator
    from headcount.spec.model import ModelSpec

DEFAULT_MEMORY_PERCENT = 0.9
_ARGUMENTS = (
    Argument(
        name="cache",
        kind="choice",
        help="the cache class; paged is continuous batching",
        default="dynamic",
        choices=("dynamic", "static", "quantized", "paged"),
    ),
    Argument(
        name="backend",
        kind="choice",
        help="of a quantized cache",
        default="quanto",
        choices=("quanto", "fp8"),
    ),
    Argument(name="nbits", kind="choice", help="of quanto", default="4", choices=("2", "4")),
    Argument(name="prefill-chunk-size", kind="count", help="tokens of a prompt read in one pass; all of it"),
    Argument(
        name="attn-implementation",
        kind="choice",
        help="of continuous batching: flash attention is taken where it is installed",
        default="flash_attention_2",
        choices=("flash_attention_2", "sdpa"),
    ),
    Argument(name="page-size", kind="count", help="tokens of a page", default=DEFAULT_PAGE, least=4),
)


class Transformers(Engine):
    """One release of transformers; see the module."""

    name = "transformers"
    arguments = _ARGUMENTS

    def __init__(self, version: str | None = None) -> None:
        self.version = (version or VERIFIED_VERSION).strip().removeprefix("v")
        if not self.version.startswith("5."):
            raise UnknownNameError(
                what="transformers version",
                given=self.version,
                allowed=[VERIFIED_VERSION],
                hint="caches of 5.24.0 are modelled; 4.x keeps others",
            )

    def refusal(self, model: ModelSpec, layout: Layout) -> str | None:
        """No pipeline, no encoder; tensor parallelism only where the release's plan divides whole heads."""
        return layout_refusal(model, layout)

    def kv_format_name(self, model: ModelSpec, settings: Settings) -> str:
        """The type of the activations; fp8 in a quantized cache of that backend."""
        values = self._values(settings)
        quantised = values["cache"] == "quantized"
        own = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}.get(
            settings.weights, settings.weights
        )
        if own not in ("fp16", "bf16", "fp32"):
            own = model.dtype
        if quantised and values["backend"] == "fp8":
            own = "fp8"
        if settings.kv != "auto" and kv_format(settings.kv).name != own:
            raise UsageError(
                f"transformers caches keys and values in the type they are computed in ({own}), not {settings.kv}; "
                "--engine-arg cache=quantized packs them"
            )
        return own

    def usable_bytes(self, accelerator: Accelerator, settings: Settings) -> int:
        """The device's total, or the fraction of it that was asked for."""
        total = settings.memory_bytes or device_bytes(accelerator)
        return int(total * self._fraction(settings, 1.0))

    def loaded_bytes(self, case: Case) -> int:
        """This rank's tensors in the checkpoint's own type."""
        return self._measured("weight_bytes", case) or memory.loaded_bytes(case)

    def pool(self, case: Case, cache_bytes: int) -> Pool:
        """Paged: blocks and tokens as logged. Otherwise whole conversations in that many bytes."""
        values = self._values(case.settings)
        if values["cache"] == "paged":
            cache = self._paged(case)
            sectors = max(0, cache_bytes) // cache.sector_bytes
            blocks = cache.blocks(sectors)
            return Pool(
                tokens=blocks * cache.page_tokens,
                bytes_per_token=cache.block_bytes / cache.page_tokens,
                blocks=blocks,
                block_tokens=cache.page_tokens,
                concurrency=cache.conversations(sectors, case.context, DEFAULT_REQUESTS),
                needed_bytes=cache.conversation_bytes(case.context),
            )
        each = self._cache_bytes(case, case.context)
        before = self._cache_bytes(case, max(1, case.context - 1))
        held = max(0, cache_bytes) // each if each else 0
        return Pool(
            tokens=held * case.context,
            bytes_per_token=each - before,
            concurrency=held,
            needed_bytes=each,
        )

    def replica(self, case: Case) -> Replica:
        """The module's equations: expected, and at both ends of the stated uncertainty."""
        card = case.accelerator
        if not card.modelled:
            raise LayoutError(f"transformers is not modelled on {card.name}")
        if self._values(case.settings)["cache"] == "paged":
            return self._paged_replica(case)
        return self._batch_replica(case)

    # One batch -----------------------------------------------------------------------------------

    def _cache_bytes(self, case: Case, tokens: int) -> int:
        """Bytes of one conversation's cache when it has reached ``tokens``."""
        values, p, tp = self._values(case.settings), memory.value_bytes(case), case.layout.tp
        if values["cache"] == "quantized":
            packed = Quantised(backend=str(values["backend"]), bits=int(values["nbits"] or 0), value_bytes=p)
            return packed.conversation_bytes(case.model, tokens, tp)
        layers = self._layers(case)
        if values["cache"] == "static":
            return sum(layer.times * layer.static(tokens) for layer in layers)
        return sum(layer.times * layer.held(tokens) for layer in layers)

    def _layers(self, case: Case) -> tuple[Layer, ...]:
        return cache_layers(case.model, memory.value_bytes(case), case.layout.tp)

    def _cost(self, case: Case, share: memory.Share, *, with_prompt: bool = True) -> Cost:
        values, p, tp = self._values(case.settings), memory.value_bytes(case), case.layout.tp
        context = case.context
        chunk = min(context, int(values["prefill-chunk-size"] or context))
        cache = self._cache_bytes(case, context)
        if values["cache"] == "quantized":
            packed = Quantised(backend=str(values["backend"]), bits=int(values["nbits"] or 0), value_bytes=p)
            growth = packed.transient(case.model, context, tp)
            prompt = cache + growth
        else:
            layers = self._layers(case)
            growth = max(layer.transient(context) for layer in layers)
            prompt = cache
            if values["cache"] == "dynamic":
                prompt = sum(layer.times * layer.after_prompt(context, chunk) for layer in layers)
        activations = chunk * memory.activation_numbers(case.model, tp) * p * share.activation_percent // 100
        allocator = 100 + share.allocator_percent
        return Cost(
            kept=cache,
            cache=cache * allocator // 100,
            prompt_cache=prompt * allocator // 100 if with_prompt else 0,
            prompt_activations=activations if with_prompt else 0,
            growth=growth,
            logits=memory.logit_bytes(case.model, p, share),
        )

    def _batch_replica(self, case: Case) -> Replica:
        total, known = self._total(case)
        usable = int(total * self._fraction(case.settings, 1.0))
        weights = self.loaded_bytes(case)
        keeps = 0 if known else CUDA_KEEPS_SPREAD
        most = case.settings.max_num_seqs or NO_LIMIT
        room = usable - weights - self._context(case, memory.EXPECTED)
        tight = usable - weights - self._context(case, memory.MOST) - keeps
        wide = usable - weights - self._context(case, memory.LEAST) + keeps
        cost = self._cost(case, memory.EXPECTED)
        dear, cheap = self._cost(case, memory.MOST), self._cost(case, memory.LEAST, with_prompt=False)
        count = min(most, max(0, room) // cost.total)
        least = min(most, max(0, tight) // dear.total)
        highest = min(most, max(0, wide) // cheap.total)
        if room < 0:
            binding = "the weights do not fit"
        elif not count:
            binding = f"not one conversation of {case.context:,} tokens fits beside its temporaries"
        elif count == most:
            binding = f"the batch was limited to {most:,} (--max-seqs)"
        elif cost.prompt_binds:
            binding = "memory while the batch reads its prompts in one pass"
        else:
            binding = "cache memory"
        # What stands beside the caches grows with the batch: it is that of the planned one.
        planned = max(1, count)
        budget = GpuBudget(
            memory=total,
            reserved=total - usable,
            weights=weights,
            overhead=(
                ("context and kernels", self._context(case, memory.EXPECTED)),
                (BESIDE, planned * cost.beside),
            ),
            kv_budget=room - planned * cost.beside,
            kv_low=tight - planned * dear.beside,
            kv_high=wide - planned * cheap.beside,
        )
        return Replica(
            conversations=count,
            low=least,
            high=highest,
            budget=budget,
            kv_bytes_per_conversation_per_gpu=cost.kept,
            binding=binding,
            make_ledger=lambda: batch_ledger(case, budget, cost, count, self._origins(case)),
            warnings=(
                f"transformers {self.version}: context, allocator and activations are counted, not measured; the low "
                "and expected figures read the whole context as the prompt, the high one reads none",
            ),
        )

    # Continuous batching -------------------------------------------------------------------------

    def _paged(self, case: Case) -> PagedCache:
        values = self._values(case.settings)
        return paged_cache(
            case.model,
            memory.value_bytes(case),
            case.layout.tp,
            page_tokens=int(values["page-size"] or 0),
            flash=values["attn-implementation"] == "flash_attention_2",
        )

    def _paged_replica(self, case: Case) -> Replica:
        cache, settings = self._paged(case), case.settings
        total, known = self._total(case)
        weights = self.loaded_bytes(case)
        fraction = self._fraction(settings, DEFAULT_MEMORY_PERCENT)
        batch = settings.max_num_batched_tokens or DEFAULT_BATCH_TOKENS
        requests = settings.max_num_seqs or DEFAULT_REQUESTS
        keeps = 0 if known else CUDA_KEEPS_SPREAD
        fixed = self._context(case, memory.EXPECTED)

        def size(taken: int) -> tuple[int, int]:
            available = int(max(0, total - weights - taken) * fraction)
            sectors = cache.sectors(available, batch_tokens=batch, requests=requests)
            return sectors, cache.conversations(sectors, case.context, min(requests, batch))

        (sectors, best), (low_sectors, least), (high_sectors, highest) = (
            size(fixed),
            size(self._context(case, memory.MOST) + keeps),
            size(self._context(case, memory.LEAST) - keeps),
        )
        pool = sectors * cache.sector_bytes
        free = total - weights - fixed
        available = int(max(0, free) * fraction)
        buffers = available - pool if sectors else 0
        budget = GpuBudget(
            memory=total,
            reserved=max(0, free) - available,
            weights=weights,
            overhead=(
                ("context and kernels", fixed),
                ("batch tensors, logits, cache reads, trash sectors", buffers),
            ),
            kv_budget=pool if sectors else min(free, available),
            kv_low=low_sectors * cache.sector_bytes,
            kv_high=high_sectors * cache.sector_bytes,
        )
        binding = (
            "cache sectors" if best else f"not one conversation of {case.context:,} tokens fits the cache"
        )
        if best == min(requests, batch):
            binding = f"max_requests_per_batch: {best:,} requests at a time (--max-seqs)"
        return Replica(
            conversations=best,
            low=least,
            high=highest,
            budget=budget,
            kv_bytes_per_conversation_per_gpu=cache.conversation_bytes(case.context),
            binding="the weights do not fit" if free < 0 else binding,
            make_ledger=lambda: paged_ledger(case, budget, cache, (sectors, best), self._origins(case)),
            warnings=(
                f"transformers {self.version}: the context's {fixed:,} B are not measured; flash attention is "
                "assumed unless --engine-arg attn-implementation=sdpa",
            ),
        )

    # Shared --------------------------------------------------------------------------------------

    def _values(self, settings: Settings) -> dict[str, int | float | bool | str | None]:
        return read_arguments(settings.arguments, self.arguments, engine=self.name)

    def _fraction(self, settings: Settings, default: float) -> float:
        """Of the card (one batch), or of what is free after loading (continuous batching: max_memory_percent)."""
        if settings.utilization is not None:
            return settings.utilization
        return default if settings.reserve is None else 1 - settings.reserve

    def _measured(self, name: str, case: Case) -> int | None:
        return measured_terms(case, (name,), self.name, self.version).get(name, (None, ""))[0]

    def _context(self, case: Case, share: memory.Share) -> int:
        """Context, kernels and communication: as measured, else the estimate's side."""
        measured = self._measured("non_torch_bytes", case)
        return share.fixed(case.layout.tp) if measured is None else measured

    def _origins(self, case: Case) -> dict[str, str]:
        """The measured terms that are in force, by symbol, each with the calibration's file or origin."""
        symbols = {"weight_bytes": "W", "non_torch_bytes": "X"}
        if not case.settings.memory_bytes:
            symbols["device_bytes"] = "M"
        found = measured_terms(case, symbols, self.name, self.version)
        return {symbols[name]: where for name, (_, where) in found.items()}

    def _total(self, case: Case) -> tuple[int, bool]:
        known = case.settings.memory_bytes or self._measured("device_bytes", case)
        return known or device_bytes(case.accelerator), known is not None


# A batch of a model that keeps nothing is limited by nothing that is counted here.
NO_LIMIT = 10**9
