"""llama.cpp's server: everything is allocated at start, for a fixed number of slots.

    offered   = CUDA's total - fit target (1024 MiB)
    slots     = largest n with  weights + context + compute buffer(n) + caches(n) <= offered       on every GPU
    replica   = slots, each of the asked context, at most what the build can have (256; 64 before 2025-09)

Several GPUs take layers in order (``pp``). A split of rows is refused: it divides the weights, not the caches, by rules
that are not modelled. Caches: ``caches.py``. Weights: ``weights.py``. Compute buffer: ``compute.py``, an interval.
"""

from __future__ import annotations

from headcount.engines.base import Case, Engine, GpuBudget, Launch, Layout, Pool, Replica, Settings
from headcount.engines.llamacpp import device
from headcount.engines.llamacpp.builds import build
from headcount.engines.llamacpp.caches import STATE, cache_bytes, total_cache_bytes
from headcount.engines.llamacpp.ledger import stage_ledger
from headcount.engines.llamacpp.options import ARGUMENTS, read_options, type_name
from headcount.engines.llamacpp.refusals import llamacpp_refusal
from headcount.engines.llamacpp.stages import BEST, LEAST, MOST, Stage, case_stages, most_slots
from headcount.engines.llamacpp.weights import placed_weights, weight_mix
from headcount.errors import LayoutError, UsageError
from headcount.units import MIB, ceil_div

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.engines.arguments import Argument
    from headcount.engines.llamacpp.builds import Build
    from headcount.engines.llamacpp.compute import ComputeBuffer
    from headcount.engines.llamacpp.options import Options
    from headcount.hardware import Accelerator
    from headcount.spec.model import ModelSpec

_PORT = 8080
# Tags of the public images, by vendor, and the first build seen with a tag of its own. Images are made once a day
# (.github/workflows/docker.yml), so not every build has one.
_IMAGES = {
    "nvidia": ("ghcr.io/ggml-org/llama.cpp:server-cuda", 5000),
    "amd": ("ghcr.io/ggml-org/llama.cpp:server-rocm", 8840),
}
_MOST_CELLS = 2**32

# Day on which ``server`` became ``llama-server`` (pull request 7809).
_RENAMED = "2024-06-13"


class LlamaCpp(Engine):
    """One build of llama.cpp; see the module."""

    name = "llama.cpp"
    splits_layers = True
    arguments: tuple[Argument, ...] = ARGUMENTS

    def __init__(self, version: str | None = None) -> None:
        self.rules = build(version)
        self.version = self.rules.name

    def rules_of(self, settings: Settings) -> Build:
        """The rules that hold for ``settings``; Ollama has two sets."""
        return self.rules

    def options(self, settings: Settings) -> Options:
        """The request that ``settings`` make, checked."""
        return read_options(settings, self.rules, engine=self.name)

    def refusal(self, model: ModelSpec, layout: Layout) -> str | None:
        """Architectures that are not converted, caches that are not modelled, any split but by layers."""
        return llamacpp_refusal(model, layout)

    def kv_format_name(self, model: ModelSpec, settings: Settings) -> str:
        """``auto`` is f16, whatever the model is stored in. Where keys and values differ, the format of the keys."""
        return self.options(settings).key.name

    def usable_bytes(self, accelerator: Accelerator, settings: Settings) -> int:
        """``M - R - X``: total, less what stays free, less the process's own context."""
        total = device.device_bytes(accelerator, settings)
        return total - device.reserved_bytes(total, settings, self.options(settings)) - device.CONTEXT

    def weights_name(self, model: ModelSpec, settings: Settings) -> str:
        """The GGUF mix: as asked, the file's own, else what the converter writes."""
        own = settings.weights == "auto" and model.checkpoint is not None
        return "auto" if own else weight_mix(model, settings.weights)

    def stored_bytes(self, model: ModelSpec, settings: Settings) -> int:
        """Tensors of the GGUF file."""
        return total_weight_bytes(model, settings.weights)

    def loaded_bytes(self, case: Case) -> int:
        """All tensors of the file, wherever they lie: what the log's buffers add up to and ``file size`` says."""
        return placed_weights(case.model, case.settings.weights).file_bytes

    def replica(self, case: Case) -> Replica:
        """The largest number of slots that every GPU holds."""
        if not case.accelerator.modelled:
            raise LayoutError(f"llama.cpp is not modelled on {case.accelerator.name}")
        options = self.options(case.settings)
        stages = self._stages(case)
        limit = min(options.slots or self.rules.most_slots, self.rules.most_slots)
        limit = min(limit, max(1, _MOST_CELLS // case.context - 1))
        best, least, most = (most_slots(stages, limit, bound) for bound in (BEST, LEAST, MOST))
        planned = max(1, best)
        worst = min(stages, key=lambda stage: stage.budget(planned) - stage.cached(planned))
        return self._answer(worst, (best, least, most), limit)

    def _stages(self, case: Case) -> list[Stage]:
        options = self.options(case.settings)
        rules = self.rules_of(case.settings)
        return case_stages(case, options, rules, engine=self.name, version=self.version)

    def _answer(self, stage: Stage, counts: tuple[int, int, int], limit: int) -> Replica:
        best, least, most = counts
        planned = max(1, best)
        budget = GpuBudget(
            memory=stage.total,
            reserved=stage.reserved,
            weights=stage.weights,
            overhead=(
                ("CUDA context and kernels", stage.contexts[0]),
                *_buffer_terms(stage.compute(planned)),
            ),
            kv_budget=stage.budget(planned),
            kv_low=stage.budget(planned, LEAST),
            kv_high=stage.budget(planned, MOST),
        )
        return Replica(
            conversations=best,
            low=least,
            high=most,
            budget=budget,
            kv_bytes_per_conversation_per_gpu=ceil_div(stage.cached(planned), planned),
            binding=self._binding(stage, budget, best, limit),
            make_ledger=lambda: stage_ledger(stage, budget, best),
            warnings=self._warnings(stage),
        )

    def _binding(self, stage: Stage, budget: GpuBudget, best: int, limit: int) -> str:
        if budget.kv_budget < 0:
            return "weights and compute buffer leave no memory for a cache"
        if not best:
            return f"not one conversation of {stage.case.context:,} tokens fits the cache"
        if best == limit:
            return f"slots: {limit:,} at a time (--parallel; the build has at most {self.rules.most_slots})"
        where = f", on the fullest of {stage.case.layout.pp} GPUs" if stage.case.layout.pp > 1 else ""
        return "cache memory" + where

    def _warnings(self, stage: Stage) -> tuple[str, ...]:
        case, options = stage.case, stage.options
        warnings = []
        if case.settings.weights == "auto" and case.model.checkpoint is None:
            mix = weight_mix(case.model, "auto")
            warnings.append(
                f"no GGUF file was given: weights are counted as the converter writes them, {mix}"
            )
        if options.gpu_layers is not None and options.gpu_layers <= len(case.model.layers):
            warnings.append(
                f"n-gpu-layers={options.gpu_layers}: the other layers and their caches lie in the host's memory, which "
                "is not counted"
            )
        if not options.kv_offload:
            warnings.append("no-kv-offload: the caches lie in the host's memory, which is not counted")
        if case.model.towers and not stage.rules.own:
            warnings.append(
                "the vision and audio towers are a file of their own (--mmproj) and are not counted"
            )
        card = case.accelerator
        if case.settings.memory_bytes is None and card.reported_mib is None:
            warnings.append(f"{card.name}: {card.driver_bytes_source}")
        if card.vendor != "nvidia" or card.unified_memory:
            warnings.append(f"{card.name}: llama.cpp's context was measured on NVIDIA cards, not on this one")
        return tuple(warnings)

    def pool(self, case: Case, cache_bytes: int) -> Pool:
        """The largest ``n_ctx`` whose caches (``size = ... MiB`` over all devices) fit; 0 tokens when none does.

        Slots: ``parallel`` or ``max_num_seqs``, else one.
        """
        options, rules = self.options(case.settings), self.rules_of(case.settings)
        slots = options.slots or 1

        def size(n_ctx: int) -> int:
            return self._printed_bytes(case, n_ctx, slots, options)

        multiple = rules.cell_multiple if options.flash else rules.cell_multiple_plain
        step = multiple * (1 if options.unified else slots)
        high = max(1, _MOST_CELLS // step)
        low = 0
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if size(middle * step) <= cache_bytes else (low, middle - 1)
        needed = self._printed_bytes(case, case.context, 1, options)
        far = 64 * step * (1 + self._window(case) // step)
        growth = (size(far + 64 * step) - size(far)) / (64 * step)
        return Pool(
            tokens=low * step,
            bytes_per_token=growth,
            block_tokens=multiple,
            concurrency=low * step / case.context,
            needed_bytes=needed,
        )

    def printed_tokens(self, case: Case, printed_bytes: int) -> int:
        """The ``n_ctx`` whose "KV buffer size" lines come nearest to ``printed_bytes``.

        States have lines of their own, but for Ollama's own engine, whose "kv cache" lines count them.
        """
        options, rules = self.options(case.settings), self.rules_of(case.settings)
        slots = options.slots or 1
        multiple = rules.cell_multiple if options.flash else rules.cell_multiple_plain
        step = multiple * (1 if options.unified else slots)

        def size(steps: int) -> int:
            return self._printed_bytes(case, steps * step, slots, options, states=rules.own)

        low, high = 1, max(1, _MOST_CELLS // step)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if size(middle) >= printed_bytes else (middle + 1, high)
        below = max(low - 1, 1)
        return (below if abs(size(below) - printed_bytes) < abs(size(low) - printed_bytes) else low) * step

    def _printed_bytes(
        self, case: Case, n_ctx: int, slots: int, options: Options, *, states: bool = True
    ) -> int:
        rules = self.rules_of(case.settings)
        caches = cache_bytes(case.model, n_ctx, slots, options=options, rules=rules)
        return total_cache_bytes(tuple(cache for cache in caches if states or cache.name != STATE))

    def _window(self, case: Case) -> int:
        """Tokens after which the sliding caches no longer grow."""
        windows = [
            getattr(mixer, "window", 0) or getattr(mixer, "chunk", 0)
            for layer, _ in case.model.layer_runs()
            for mixer in layer.mixers
        ]
        options = self.options(case.settings)
        return max(windows, default=0) * (options.slots or 1) + options.ubatch

    def launch(self, case: Case, *, model: str, concurrency: int) -> Launch:
        """``llama-server`` with every figure of the plan said; ``model`` is a GGUF file, or a repository of such files
        as ``org/name[:quant]``.

        Raises UsageError for more slots than the build has.
        """
        if concurrency > self.rules.most_slots:
            raise UsageError(
                f"llama.cpp {self.version} has at most {self.rules.most_slots} slots; {concurrency:,} were asked"
            )
        if self.rules.date < _RENAMED:
            raise UsageError(
                f"llama.cpp {self.version} is of {self.rules.date}: launch lines are for builds since {_RENAMED}, which call "
                "the program llama-server"
            )
        options = self.options(case.settings)
        is_file = model.lower().endswith(".gguf")
        argv = ["llama-server", "-m" if is_file else "-hf", model]
        argv += ["-c", str(case.context * concurrency), "-np", str(concurrency)]
        argv += ["-ngl", str(999 if options.gpu_layers is None else options.gpu_layers)]
        argv += ["-b", str(options.batch), "-ub", str(options.ubatch)]
        argv += ["-ctk", type_name(options.key), "-ctv", type_name(options.value)]
        # Before flash attention became the default, -fa took no value.
        argv += ["-fa", "on" if options.flash else "off"] if self.rules.flash else ["-fa"] * options.flash
        # Before streams all slots shared the cells, and there was no such flag.
        argv += ["--kv-unified"] if options.unified and self.rules.streams else []
        argv += ["--swa-full"] if options.swa_full else []
        argv += [] if options.kv_offload else ["--no-kv-offload"]
        argv += ["--fit-target", str(options.fit_target // MIB)] if options.fit_target != 1024 * MIB else []
        argv += ["-sm", "layer"] if case.layout.pp > 1 else []
        argv += ["--host", "0.0.0.0", "--port", str(_PORT), "--metrics"]
        return Launch(argv=tuple(argv), image=self._image(case.accelerator), port=_PORT)

    def _image(self, card: Accelerator) -> str:
        """The public image, pinned to the build where builds have tags; "" where there is none for the vendor."""
        image, first = _IMAGES.get(card.vendor, ("", 0))
        number = self.version.removeprefix("b")
        tagged = bool(image) and self.version.startswith("b") and number.isdigit() and int(number) >= first
        return f"{image}-{self.version}" if tagged else image


def _buffer_terms(buffer: ComputeBuffer) -> tuple[tuple[str, int], ...]:
    beside = buffer.expected - buffer.printed
    copies = (("f16 copies of the cache, in CUDA's pool", beside),) if beside else ()
    return (("compute buffer", buffer.printed), *copies)


def total_weight_bytes(model: ModelSpec, name: str = "auto") -> int:
    """Bytes of all tensors once, as a GGUF file holds them (header and vocabulary left out)."""
    return placed_weights(model, name).file_bytes
