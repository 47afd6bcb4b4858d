"""Ollama: a scheduler around llama-server. What is allocated is llama.cpp's; what Ollama decides by is an estimate.

    n_ctx      = num_ctx x OLLAMA_NUM_PARALLEL                       -c and -np of the llama-server it starts
    num_ctx    = 262,144 from 47 GiB of GPU memory, 32,768 from 23 GiB, else 4,096; never past the trained length
    estimate   = file + 2 L K_min (D / N_max) n_ctx 2                what the scheduler compares with free memory

The estimate takes every layer as full attention of D / N wide heads in f16: states, windows, latents and wider heads are
not in it, nor is a quantised cache. Rules: ollama/ollama of 2026-08-21 (fb30760): llm/llama_server.go, server/sched.go.
"""

from __future__ import annotations

from headcount.engines.arguments import Argument, read_arguments
from headcount.engines.base import Launch
from headcount.engines.llamacpp.builds import build
from headcount.engines.llamacpp.engine import LlamaCpp
from headcount.engines.llamacpp.ollama_releases import NEWEST_RELEASE, carried, release_warnings
from headcount.engines.llamacpp.options import Options, cache_type, type_name
from headcount.engines.llamacpp.own_engine import had_own_engine, own_rules, tower_bytes
from headcount.engines.llamacpp.weights import placed_weights
from headcount.errors import UsageError
from headcount.ledger import Ledger, Term
from headcount.spec.attention import HeadedAttention, LatentAttention
from headcount.units import GIB, MIB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.engines.base import Case, Replica, Settings
    from headcount.engines.llamacpp.builds import Build
    from headcount.hardware import Accelerator
    from headcount.spec.model import ModelSpec

NEWEST_COMMIT, NEWEST_DATE = "fb30760", "2026-08-21"
_DEFAULT_BATCH, _DEFAULT_TARGET = 512, 1024 * MIB
_TYPES = ("f16", "q8_0", "q4_0")
_TIERS = ((47 * GIB, 262_144), (23 * GIB, 32_768), (0, 4_096))
_PORT = 11434
OLLAMA_ARGUMENTS = (
    Argument(
        name="num-parallel", kind="count", help="at most this many requests at a time (OLLAMA_NUM_PARALLEL)"
    ),
    Argument(name="num-batch", kind="count", default=_DEFAULT_BATCH, help="tokens of a batch"),
    Argument(name="num-gpu", kind="count", least=0, help="layers on the GPUs, counted from the end"),
    Argument(name="kv-cache-type", kind="choice", choices=_TYPES, help="OLLAMA_KV_CACHE_TYPE"),
    Argument(name="flash-attention", kind="flag", default=True, help="OLLAMA_FLASH_ATTENTION"),
    Argument(name="gpu-overhead", kind="bytes", help="left free on each GPU (OLLAMA_GPU_OVERHEAD)"),
    Argument(
        name="ollama-engine",
        kind="flag",
        default=False,
        help="the model runs on Ollama's own engine (OLLAMA_NEW_ENGINE, before 0.30)",
    ),
)


class Ollama(LlamaCpp):
    """One Ollama; ``version`` is a release, the commit fb30760 or a day: the llama.cpp that it carries gives the rules."""

    name = "ollama"
    arguments: tuple[Argument, ...] = OLLAMA_ARGUMENTS

    def __init__(self, version: str | None = None) -> None:
        text = (version or NEWEST_COMMIT).strip().lower().removeprefix("v")
        known = NEWEST_COMMIT.startswith(text) and len(text) >= 7
        found = carried(NEWEST_RELEASE if known else text)
        if found is None and not text[:4].isdigit():
            raise UsageError(
                f"Ollama version {version!r:.60} is not known; write a release like {NEWEST_RELEASE}, or give the day of "
                f"the release, such as 2025-01-15, or {NEWEST_COMMIT}"
            )
        self.rules = build(found or text)
        self.version = NEWEST_COMMIT if known else text

    def rules_of(self, settings: Settings) -> Build:
        """llama.cpp's, or those of Ollama's own engine where ``ollama-engine`` says that it runs the model."""
        given = read_arguments(settings.arguments, OLLAMA_ARGUMENTS, engine=self.name)
        own = given["ollama-engine"] and had_own_engine(self.version)
        return own_rules(self.rules, self.version) if own else self.rules

    def options(self, settings: Settings) -> Options:
        """The llama-server request that Ollama makes of ``settings``: f16, q8_0 or q4_0, keys and values alike."""
        given = read_arguments(settings.arguments, OLLAMA_ARGUMENTS, engine=self.name)
        kv = cache_type(str(given["kv-cache-type"] or settings.kv))
        if type_name(kv) not in _TYPES:
            raise UsageError(f"Ollama has no KV cache type {settings.kv!r}; allowed: {', '.join(_TYPES)}")
        slots = [count for count in (given["num-parallel"], settings.max_num_seqs) if count is not None]
        layers, overhead = given["num-gpu"], given["gpu-overhead"]
        batch = settings.max_num_batched_tokens or given["num-batch"]
        assert isinstance(batch, int)
        return Options(
            key=kv,
            value=kv,
            flash=bool(given["flash-attention"]),
            unified=not self.rules_of(settings).streams,
            ubatch=batch,
            batch=batch,
            slots=min((int(count) for count in slots), default=None),
            gpu_layers=None if layers is None else int(layers),
            fit_target=_DEFAULT_TARGET if overhead is None else int(overhead),
        )

    def loaded_bytes(self, case: Case) -> int:
        """As llama.cpp's, and the towers where the model's file holds them."""
        return super().loaded_bytes(case) + tower_bytes(case.model, self.rules_of(case.settings))

    def replica(self, case: Case) -> Replica:
        """llama.cpp's answer; the scheduler's estimate stands beside it as a term and, where it is larger, a warning."""
        found = super().replica(case)
        slots = max(1, found.conversations)
        n_ctx = case.context * slots
        estimate = estimated_bytes(case.model, n_ctx, case.settings.weights)
        free = (found.budget.memory - found.budget.reserved) * case.layout.pp
        own = self.rules_of(case.settings).own
        warnings = [*found.warnings, *release_warnings(self.version, own=own)]
        if estimate > free:
            warnings.append(
                f"Ollama's own estimate for {slots:,} x {case.context:,} tokens is {estimate / GIB:,.1f} GiB, more than the "
                f"{free / GIB:,.1f} GiB it sees: it may leave layers to the CPU although all would fit"
            )
        make = found.make_ledger
        return found.replace(
            warnings=tuple(warnings), make_ledger=lambda: _with_estimate(make(), case, n_ctx)
        )

    def launch(self, case: Case, *, model: str, concurrency: int) -> Launch:
        """``ollama serve`` with its environment; ``num_ctx`` is OLLAMA_CONTEXT_LENGTH, the model is pulled by name."""
        options = self.options(case.settings)
        if concurrency > self.rules.most_slots:
            raise UsageError(
                f"Ollama starts at most {self.rules.most_slots} slots; {concurrency:,} were asked"
            )
        environment = [
            ("OLLAMA_HOST", f"0.0.0.0:{_PORT}"),
            ("OLLAMA_CONTEXT_LENGTH", str(case.context)),
            ("OLLAMA_NUM_PARALLEL", str(concurrency)),
            ("OLLAMA_KV_CACHE_TYPE", type_name(options.key)),
            ("OLLAMA_FLASH_ATTENTION", "1" if options.flash else "0"),
            ("OLLAMA_MAX_LOADED_MODELS", "1"),
        ]
        if self.rules_of(case.settings).own:
            environment.append(("OLLAMA_NEW_ENGINE", "1"))
        if options.fit_target != _DEFAULT_TARGET:
            environment.append(("OLLAMA_GPU_OVERHEAD", str(options.fit_target)))
        is_release = carried(self.version) is not None
        return Launch(
            argv=("ollama", "serve"),
            image="docker.io/ollama/ollama" + (f":{self.version}" if is_release else ""),
            port=_PORT,
            environment=tuple(environment),
            health="/",
            metrics="",
        )


def default_context(accelerator: Accelerator, gpus: int = 1, trained: int = 0) -> int:
    """``num_ctx`` when nobody says it, by the memory of all GPUs; at most ``trained`` positions where that is known."""
    total = accelerator.driver_bytes * gpus
    length = next(tokens for least, tokens in _TIERS if total >= least)
    return min(length, trained) if trained else length


def estimated_bytes(model: ModelSpec, n_ctx: int, weights: str = "auto") -> int:
    """``file + 2 L K_min (D / N_max) n_ctx 2``: what the scheduler predicts a model to take [B].

    K_min is the smallest count of key/value heads of a layer that has any, N_max the largest of query heads.
    """
    file_bytes = placed_weights(model, weights).file_bytes
    keys, head = _estimated_heads(model)
    return file_bytes + 2 * len(model.layers) * keys * head * n_ctx * 2


def _estimated_heads(model: ModelSpec) -> tuple[int, int]:
    """``(K_min, D / N_max)``; (0, 0) without attention."""
    queries, keys = [], []
    for layer, _ in model.layer_runs():
        for mixer in layer.mixers:
            if isinstance(mixer, HeadedAttention):
                queries.append(mixer.num_attention_heads)
                keys.append(mixer.num_key_value_heads)
            elif isinstance(mixer, LatentAttention):
                queries.append(mixer.num_attention_heads)
                keys.append(1)
    return (min(keys), model.hidden_size // max(queries)) if queries else (0, 0)


def _with_estimate(ledger: Ledger, case: Case, n_ctx: int) -> Ledger:
    model, weights = case.model, case.settings.weights
    keys, head = _estimated_heads(model)
    file_bytes = placed_weights(model, weights).file_bytes
    term = Term(
        name="Ollama's own estimate of the whole model",
        symbol="E",
        value=estimated_bytes(model, n_ctx, weights),
        unit="B",
        formula="file + 2 L K_min (D / N_max) n_ctx 2",
        numbers=f"{file_bytes:,} + 2 x {len(model.layers)} x {keys} x {head} x {n_ctx:,} x 2",
        source=f"ollama {NEWEST_COMMIT} ({NEWEST_DATE}): llm/llama_server.go",
    )
    return ledger.replace(terms=(*ledger.terms, term))
