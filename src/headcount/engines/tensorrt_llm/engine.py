"""TensorRT-LLM's PyTorch backend (``trtllm-serve``), with its V1 cache manager.

    free          = device total - weights - activations - outside torch
    budget        = free x free_gpu_memory_fraction            0.9 of what is LEFT after loading
    blocks        = min over stages of budget // b, in blocks of 32 tokens
    replica       = floor(blocks / ceil(n / 32)), at most max_batch_size

Pools: ``pools.py``. Reserves: ``memory.py``, with a wide interval. Releases and refusals: ``rules.py``.

Every layer is charged all tokens unless ``max-attention-window`` says otherwise: up to 1.2 the windows of a config are
not read (gpt-oss-120b under 1.1.0rc3 prints 73,728 bytes a token = 36 layers, half of which have windows of 128).
"""

from __future__ import annotations

from headcount.cost.weights import weight_format
from headcount.engines.arguments import read_arguments
from headcount.engines.base import Case, Engine, GpuBudget, Launch, Layout, Pool, Replica, Settings
from headcount.engines.calibration import measured_terms
from headcount.engines.device import device_bytes
from headcount.engines.tensorrt_llm import memory
from headcount.engines.tensorrt_llm.ledger import Answer, Stage, stage_ledger
from headcount.engines.tensorrt_llm.pools import PoolPlan, plan_pools
from headcount.engines.tensorrt_llm.rules import (
    ARGUMENTS,
    DEFAULT_BATCH,
    DEFAULT_BATCHED_TOKENS,
    DEFAULT_FRACTION,
    cache_refusal,
    layout_refusal,
    release_rules,
)
from headcount.errors import LayoutError, UnsupportedModelError, UsageError
from headcount.spec.attention import LatentAttention, SlidingWindow
from headcount.spec.kv_format import kv_format
from headcount.units import ceil_div

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.hardware import Accelerator
    from headcount.spec.model import ModelSpec


class TensorrtLlm(Engine):
    """One release of TensorRT-LLM; see the module."""

    name = "tensorrt-llm"
    calibrated = (*Engine.calibrated, "activation_bytes")
    calibrated_arguments = ("enable-attention-dp",)
    arguments = ARGUMENTS

    def __init__(self, version: str | None = None) -> None:
        self.release = release_rules(version)
        self.version = self.release.version

    def refusal(self, model: ModelSpec, layout: Layout) -> str | None:
        """Caches that are not modelled, heads that do not divide, more stages than blocks."""
        return layout_refusal(model, layout)

    def kv_format_name(self, model: ModelSpec, settings: Settings) -> str:
        """``auto``: the checkpoint's KV scheme, else the model's 16-bit type. Also fp8 and nvfp4."""
        own = "bf16" if model.dtype == "fp32" else model.dtype
        scheme = (
            None
            if model.quantization is None
            else {8: "fp8", 4: "nvfp4"}.get(model.quantization.kv_cache_bits or 0)
        )
        if settings.kv == "auto":
            return scheme or own
        asked = kv_format(settings.kv).name
        if asked in ("fp8", "nvfp4"):
            return asked
        if asked in ("fp16", "bf16") and scheme is None:
            return own
        raise UsageError(
            f"TensorRT-LLM's PyTorch backend has no KV cache {settings.kv!r} for this model; "
            f"allowed: auto (here {scheme or own}), fp8, nvfp4"
        )

    def usable_bytes(self, accelerator: Accelerator, settings: Settings) -> int:
        """All of the card: the fraction is of what is left, so weights and cache together are bounded by nothing less."""
        return settings.memory_bytes or device_bytes(accelerator)

    def batches(self, case: Case) -> tuple[int, int]:
        """``(max_num_tokens, max_batch_size)``, on which activations depend."""
        settings = case.settings
        return (
            settings.max_num_batched_tokens or DEFAULT_BATCHED_TOKENS,
            settings.max_num_seqs or DEFAULT_BATCH,
        )

    def loaded_bytes(self, case: Case) -> int:
        """The heaviest stage's weights on one rank."""
        measured = self._measured("weight_bytes", case)
        values = self._values(case)
        return measured or max(memory.stage_weights(case, attention_dp=bool(values["enable-attention-dp"])))

    def pool(self, case: Case, cache_bytes: int) -> Pool:
        """Blocks and tokens of ``cache_bytes`` as allocated (the log's "Allocated ... GiB for max tokens")."""
        reason = cache_refusal(case.model)
        if reason:
            raise UnsupportedModelError(reason)
        plans = [plan for _, plan in self._plans(case)]
        counts = [plan.allocated_blocks(cache_bytes) for plan in plans]
        block = plans[0].block_tokens
        pairs = list(zip(plans, counts, strict=True))
        blocks = min(min(count) for count in counts)
        concurrency = min(plan.conversations(count, case.context) for plan, count in pairs)
        return Pool(
            tokens=blocks * block,
            bytes_per_token=max(plan.bytes_per_token for plan in plans),
            blocks=blocks,
            block_tokens=block,
            concurrency=concurrency,
            needed_bytes=max(plan.conversation_bytes(case.context) for plan in plans),
        )

    def replica(self, case: Case) -> Replica:
        """The module's four equations, on the stage that holds the fewest conversations."""
        self._check(case)
        values = self._values(case)
        fraction = self._fraction(case.settings)
        # Under attention data parallelism each rank serves requests of its own.
        shards = case.layout.tp if values["enable-attention-dp"] else 1
        most = (case.settings.max_num_seqs or DEFAULT_BATCH) * shards
        stages = self._stages(case)

        def held(stage: Stage, taken: int) -> int:
            budget = max(0, int(stage.free(taken) * fraction))
            count = stage.plan.conversations(stage.plan.blocks(budget), case.context)
            return min(count * shards, most)

        worst = min(stages, key=lambda stage: held(stage, stage.reserve.total))
        counts = (
            held(worst, worst.reserve.total),
            min(held(stage, stage.reserve.high) for stage in stages),
            min(held(stage, stage.reserve.low) for stage in stages),
        )
        return self._answer(case, worst, counts, most=most, shards=shards)

    def launch(self, case: Case, *, model: str, concurrency: int) -> Launch:
        """``trtllm-serve serve``; what has no flag of its own is written to a file that ``--extra_llm_api_options`` reads."""
        import json
        import shlex

        settings, layout = case.settings, case.layout
        # Under attention data parallelism the batch is one rank's.
        ranks = layout.tp if self._values(case)["enable-attention-dp"] else 1
        batch = ceil_div(min(concurrency, (settings.max_num_seqs or concurrency) * ranks), ranks)
        argv = [
            *("trtllm-serve", "serve", model, "--backend", "pytorch"),
            *("--tp_size", str(layout.tp), "--pp_size", str(layout.pp)),
            *("--max_batch_size", str(batch)),
            *("--max_num_tokens", str(settings.max_num_batched_tokens or DEFAULT_BATCHED_TOKENS)),
            *("--max_seq_len", str(case.context)),
            *("--kv_cache_free_gpu_memory_fraction", f"{self._fraction(settings):g}"),
            *("--host", "0.0.0.0", "--port", "8000"),
        ]
        options = self._extra_options(case)
        if options:
            path = "/tmp/headcount_extra_llm_api_options.yaml"
            line = shlex.join([*argv, "--extra_llm_api_options", path])
            # JSON is YAML; the shell writes the file so that the one command is the whole server.
            argv = ["sh", "-c", f"printf %s {shlex.quote(json.dumps(options))} > {path} && exec {line}"]
        image = f"nvcr.io/nvidia/tensorrt-llm/release:{self.version}"
        # /metrics of trtllm-serve is JSON, not Prometheus.
        return Launch(argv=tuple(argv), image=image, port=8000, metrics="")

    def _extra_options(self, case: Case) -> dict[str, object]:
        values = self._values(case)
        cache: dict[str, object] = {}
        if case.settings.kv != "auto":
            kv = self.kv_format_name(case.model, case.settings)
            # A 16-bit cache is what auto makes of the model's own type.
            cache["dtype"] = kv if kv in ("fp8", "nvfp4") else "auto"
        if values["tokens-per-block"] != 32:
            cache["tokens_per_block"] = values["tokens-per-block"]
        if values["max-tokens"] is not None:
            cache["max_tokens"] = values["max-tokens"]
        if values["max-attention-window"] == "model":
            cache["max_attention_window"] = _windows(case)
        options: dict[str, object] = {"kv_cache_config": cache} if cache else {}
        if cache:
            # The file's kv_cache_config replaces the one that the flag made.
            cache["free_gpu_memory_fraction"] = self._fraction(case.settings)
        if values["enable-attention-dp"]:
            options["enable_attention_dp"] = True
        return options

    def _values(self, case: Case) -> dict[str, int | float | bool | str | None]:
        values = read_arguments(case.settings.arguments, self.arguments, engine=self.name)
        if values["max-attention-window"] == "model" and not self.release.window_pools:
            raise UsageError(
                f"TensorRT-LLM {self.version}: how windows share the pool is not known before 1.2; leave "
                "max-attention-window out"
            )
        return values

    def _plans(self, case: Case) -> list[tuple[tuple[int, int], PoolPlan]]:
        kv = self.kv_format_name(case.model, case.settings)
        return plan_pools(case, kv, self._values(case), rounds_up=self.release.rounds_blocks_up)

    def _check(self, case: Case) -> None:
        if not self.release.pytorch_default:
            raise LayoutError(
                f"TensorRT-LLM {self.version} runs compiled engines, whose workspace is not modelled; 1.0 and later are"
            )
        card = case.accelerator
        if not card.modelled or card.vendor != "nvidia":
            raise LayoutError(f"TensorRT-LLM is not modelled on {card.name}")
        weight_format(case.model, case.settings.weights)

    def _fraction(self, settings: Settings) -> float:
        fraction = DEFAULT_FRACTION if settings.reserve is None else 1 - settings.reserve
        if settings.utilization is not None:
            fraction = settings.utilization
        if not 0 < fraction < 1:
            raise UsageError(f"free_gpu_memory_fraction is above 0 and below 1; given {fraction:g}")
        return fraction

    def _measured(self, name: str, case: Case) -> int | None:
        return measured_terms(case, (name,), self.name, self.version).get(name, (None, ""))[0]

    def _origins(self, case: Case) -> dict[str, str]:
        """The measured terms that are in force, each with the calibration's file or origin."""
        names = [name for name in self.calibrated if name != "device_bytes" or not case.settings.memory_bytes]
        found = measured_terms(case, names, self.name, self.version)
        return {name: where for name, (_, where) in found.items()}

    def _stages(self, case: Case) -> list[Stage]:
        known = case.settings.memory_bytes or self._measured("device_bytes", case)
        total = known or device_bytes(case.accelerator)
        taken = memory.reserve(case, engine=self.name, version=self.version, card_known=known is not None)
        values = self._values(case)
        measured = self._measured("weight_bytes", case)
        weights = memory.stage_weights(case, attention_dp=bool(values["enable-attention-dp"]))
        return [
            Stage(cut=cut, plan=plan, total=total, weights=measured or share, reserve=taken)
            for (cut, plan), share in zip(self._plans(case), weights, strict=True)
        ]

    def _answer(
        self, case: Case, stage: Stage, counts: tuple[int, int, int], *, most: int, shards: int
    ) -> Replica:
        best, least, highest = counts
        fraction = self._fraction(case.settings)
        free = stage.free(stage.reserve.total)
        # A fraction of what is free; of what is missing all is missing.
        cache, low, high = (
            int(room * fraction) if room > 0 else room
            for room in (free, stage.free(stage.reserve.high), stage.free(stage.reserve.low))
        )
        if free < 0:
            binding = "weights and reserves leave no memory for a cache"
        elif best == 0:
            binding = f"not one conversation of {case.context:,} tokens fits the cache"
        elif best == most:
            binding = f"max_batch_size: the engine runs {most:,} sequences at a time (--max-seqs)"
        else:
            binding = "cache blocks" + (
                f", on the fullest of {case.layout.pp} stages" if case.layout.pp > 1 else ""
            )
        budget = GpuBudget(
            memory=stage.total,
            reserved=max(0, free) - max(0, cache),
            weights=stage.weights,
            overhead=(
                ("activations at the profile run", stage.reserve.activation),
                ("context, kernels, communication, graphs", stage.reserve.outside),
            ),
            kv_budget=cache,
            kv_low=low,
            kv_high=high,
        )
        return Replica(
            conversations=best,
            low=least,
            high=highest,
            budget=budget,
            kv_bytes_per_conversation_per_gpu=stage.plan.conversation_bytes(case.context),
            binding=binding,
            make_ledger=lambda: stage_ledger(
                case,
                stage,
                budget,
                Answer(
                    version=self.version,
                    count=best,
                    most=most,
                    fraction=fraction,
                    shards=shards,
                    measured=self._origins(case),
                ),
            ),
            warnings=self._warnings(case),
        )

    def _warnings(self, case: Case) -> tuple[str, ...]:
        warnings = [
            "TensorRT-LLM's memory outside torch was never seen on a card like this one: 2.0 GiB within 0.8 to 4.0 is a guess"
        ]
        windows = any(isinstance(m, SlidingWindow) for run, _ in case.model.layer_runs() for m in run.mixers)
        values = self._values(case)
        if windows and values["max-attention-window"] == "none":
            warnings.append(
                "windows are not read from the config: every layer keeps all tokens "
                "(--engine-arg max-attention-window=model sets them)"
            )
        latent = any(isinstance(m, LatentAttention) for run, _ in case.model.layer_runs() for m in run.mixers)
        if latent and case.layout.tp > 1 and not values["enable-attention-dp"]:
            warnings.append(
                f"a latent cache has no heads to divide: each of the {case.layout.tp} tensor-parallel ranks holds all "
                "of it (--engine-arg enable-attention-dp=true divides the requests instead)"
            )
        card = case.accelerator
        if card.unified_memory:
            warnings.append(f"{card.name}: what the system uses of the unified memory is not known here")
        return tuple(warnings)


def _windows(case: Case) -> list[int]:
    """One window a layer, ``max_seq_len`` where there is none."""
    return [
        min([case.context, *(m.window for m in layer.mixers if isinstance(m, SlidingWindow))])
        for layer in case.model.layers
    ]
