"""vLLM's own arguments that change memory, and everything a case resolves to before pages are counted: ``Setup``."""

from __future__ import annotations

from headcount.engines.arguments import Argument, read_arguments
from headcount.engines.device import device_bytes
from headcount.engines.vllm.formats import DS_MLA
from headcount.engines.vllm.rules import ALL_STATES_MODELS, EngineRules, batch_defaults
from headcount.errors import LayoutError, UsageError
from headcount.record import Record
from headcount.spec.attention import ChunkedAttention, HeadedAttention, LatentAttention, StateSpace
from headcount.spec.kv_format import kv_format

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headcount.engines.base import Case, Settings
    from headcount.hardware import Accelerator
    from headcount.spec.kv_format import KvFormat
    from headcount.spec.model import ModelSpec

SPECULATIVE = ("none", "mtp", "eagle", "eagle3", "ngram")
STATE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
VLLM_ARGUMENTS = (
    Argument(name="block-size", kind="count", help="tokens of a page"),
    Argument(name="max-model-len", kind="count", help="longest request; default: --context"),
    Argument(name="enforce-eager", kind="flag", default=False, help="no CUDA graphs"),
    Argument(name="enable-prefix-caching", kind="flag", help="keeps pages of common prompts"),
    Argument(
        name="mamba-cache-mode", kind="choice", choices=("none", "align", "all"), help="states kept a request"
    ),
    Argument(
        name="mamba-ssm-cache-dtype",
        kind="choice",
        choices=("auto", *STATE_BYTES),
        default="auto",
        help="type of recurrent states",
    ),
    Argument(name="disable-hybrid-kv-cache-manager", kind="flag", default=False, help="windows kept whole"),
    Argument(
        name="decode-context-parallel-size",
        kind="count",
        default=1,
        help="ranks that share a request's tokens",
    ),
    Argument(name="enable-expert-parallel", kind="flag", default=False, help="whole experts on a rank"),
    Argument(name="speculative-method", kind="choice", choices=SPECULATIVE, default="none", help="drafter"),
    Argument(name="num-speculative-tokens", kind="count", default=0, least=0, help="tokens drafted a step"),
    Argument(
        name="kv-cache-memory-bytes", kind="bytes", help="cache of a GPU; the utilization is then not used"
    ),
    Argument(name="num-gpu-blocks-override", kind="count", help="pages of the pool"),
    Argument(name="no-async-scheduling", kind="flag", default=False, help="one batch in flight"),
    Argument(name="language-model-only", kind="flag", default=False, help="no vision or audio tower"),
)
CPU_VENDOR = "cpu"


class Setup(Record):
    """What one case means to one release.

    version            the engine's, as asked
    kv                 format of the cache
    longest            max_model_len: the longest request the server takes [tokens]
    batched_tokens, seqs   max_num_batched_tokens, max_num_seqs
    block_size         tokens of a page when it was given, else None
    windows            sliding layers are planned as such; V0 planned every layer whole
    latent             how latent attention is cached, see ``EngineRules.latent_cache``
    packed_latent      bytes of a token's latent in a sparse model's packed cache (DeepSeek-V3.2 on); 0: plain rows
    shared_indexers    layers that take another's selection have no indexer
    hybrid_manager     pages by kind of layer; off: windows and chunks are kept whole
    mamba_mode         none, align or all
    states_cached      states are kept at the ends of blocks, for prefix caching; else one state of the whole request
    state_bytes        bytes of a recurrent state's numbers when they were given, else None
    context_shards     ranks that share the tokens of one request (decode context parallelism)
    drafter            speculative method, and ``draft_tokens`` a step
    in_flight_batches  batches scheduled but not settled
    cache_bytes        cache of a GPU when it was given, else None; ``blocks`` the same in pages
    """

    version: str
    kv: KvFormat
    longest: int
    batched_tokens: int
    seqs: int
    block_size: int | None
    eager: bool
    windows: bool
    latent: str
    packed_latent: int
    shared_indexers: bool
    hybrid_manager: bool
    mamba_mode: str
    states_cached: bool
    state_bytes: int | None
    context_shards: int
    drafter: str
    draft_tokens: int
    in_flight_batches: int
    cache_bytes: int | None
    blocks: int | None
    expert_parallel: bool
    towers: bool
    on_cpu: bool

    @property
    def in_flight_tokens(self) -> int:
        """F, which a window is charged beside itself."""
        return self.in_flight_batches * self.batched_tokens


def resolve(case: Case, rules: EngineRules, kv_name: str, version: str) -> Setup:
    """Read the arguments of ``case`` and fill in the release's defaults.

    Raises UsageError for values that contradict each other or that the release does not have.
    """
    given = read_arguments(case.settings.arguments, VLLM_ARGUMENTS, engine="vllm")
    on_cpu = case.accelerator.vendor == CPU_VENDOR
    drafter, drafts = str(given["speculative-method"]), int(given["num-speculative-tokens"] or 0)
    if (drafter == "none") != (drafts == 0):
        raise UsageError("speculative-method and num-speculative-tokens are given together or not at all")
    if drafter == "mtp" and not mtp_layers(case.model):
        raise UsageError(f"{case.model.name} has no multi-token-prediction layers that its config states")
    if drafts > _MOST_DRAFTS:
        raise UsageError(f"num-speculative-tokens {drafts:,} is more than any drafter's {_MOST_DRAFTS}")
    longest = int(given["max-model-len"] or case.context)
    if longest < case.context:
        raise UsageError(
            f"max-model-len {longest:,} is shorter than the conversation's {case.context:,} tokens"
        )
    _check_card(case, kv_name)
    block = _optional(given["block-size"])
    if block is not None and block % (8 if rules.generation == "V0" else 16):
        raise UsageError(f"block-size {block} is no multiple of 16, which the attention kernels need")
    tokens, seqs = batch_limits(case, rules, longest)
    if (
        rules.generation == "V0"
        and tokens < longest
        and not (rules.chunked_above and longest > rules.chunked_above)
    ):
        raise UsageError(
            f"without chunked prefill max_num_batched_tokens {tokens:,} must reach the longest request, {longest:,}"
        )
    asynchronous = rules.async_scheduling and not given["no-async-scheduling"] and not on_cpu
    state, mode = str(given["mamba-ssm-cache-dtype"]), _mamba_mode(case.model, given, rules)
    return Setup(
        version=version,
        kv=kv_format(kv_name),
        longest=longest,
        batched_tokens=tokens,
        seqs=seqs,
        block_size=block,
        eager=bool(given["enforce-eager"]) or on_cpu,
        windows=rules.generation != "V0",
        latent=rules.latent_cache,
        packed_latent=_packed_latent(case, rules, kv_name),
        shared_indexers=rules.shared_indexers,
        hybrid_manager=_hybrid_manager(case.model, given, rules, on_cpu=on_cpu),
        mamba_mode=mode,
        states_cached=mode != "none" or _states_by_length(case.model, given, rules),
        state_bytes=STATE_BYTES.get(state),
        context_shards=_context_shards(case, int(given["decode-context-parallel-size"] or 1)),
        drafter=drafter,
        draft_tokens=drafts,
        in_flight_batches=_batches(rules, case.layout.pp, asynchronous=asynchronous),
        cache_bytes=_optional(given["kv-cache-memory-bytes"]),
        blocks=_optional(given["num-gpu-blocks-override"]),
        expert_parallel=bool(given["enable-expert-parallel"]),
        towers=not given["language-model-only"],
        on_cpu=on_cpu,
    )


def indexed_mixers(model: ModelSpec) -> list[LatentAttention]:
    """The latent attention that selects by an indexer (DeepSeek-V3.2 on), one for each run of layers."""
    return [
        mixer
        for layer, _ in model.layer_runs()
        for mixer in layer.mixers
        if isinstance(mixer, LatentAttention) and mixer.index_head_dim
    ]


def _packed_latent(case: Case, rules: EngineRules, kv_name: str) -> int:
    """Bytes of one packed latent, by the sparse attention that the release picks for the card; 0: plain."""
    indexed = indexed_mixers(case.model)
    if not indexed:
        return 0
    generation = (case.accelerator.compute_capability or "").partition(".")[0]
    if generation == "12" and rules.sparse_sm120 and kv_name in ("bf16", "fp8"):
        return DS_MLA["fp8"]
    heads, width = indexed[0].num_attention_heads // case.layout.tp, indexed[0].qk_nope_head_dim
    if generation == "10" and kv_name == "fp8" and width in rules.sparse_plain_widths:
        return DS_MLA["fp8"] if heads > rules.sparse_plain_heads else 0
    return DS_MLA.get(kv_name, 0)


# No drafter proposes more at a time; a larger number is a slip of the pen.
_MOST_DRAFTS = 64


def _check_card(case: Case, kv_name: str) -> None:
    """4-bit floating-point caches need Blackwell's tensor cores."""
    capability = case.accelerator.compute_capability
    if kv_name == "nvfp4" and capability and float(capability) < 10:
        raise UsageError(
            f"vLLM's nvfp4 cache needs compute capability 10; {case.accelerator.name} has {capability}"
        )


def mtp_layers(model: ModelSpec) -> int:
    """Multi-token-prediction layers that the config states."""
    text = (
        model.config.get("text_config") if isinstance(model.config.get("text_config"), dict) else model.config
    )
    for name in ("num_nextn_predict_layers", "mtp_num_hidden_layers"):
        found = (text or {}).get(name, model.config.get(name))
        if isinstance(found, int) and found > 0:
            return found
    return 0


def _optional(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _batches(rules: EngineRules, stages: int, *, asynchronous: bool) -> int:
    """B: stages + 1 with asynchronous scheduling, else the stages; one before the sliding charge counted them."""
    if not rules.in_flight_batches:
        return 1
    return stages + 1 if asynchronous else stages


def _hybrid_manager(model: ModelSpec, given: dict[str, Any], rules: EngineRules, *, on_cpu: bool) -> bool:
    """Off when asked, in releases without it, on platforms that are no GPU, and for chunked attention (Llama 4)."""
    if given["disable-hybrid-kv-cache-manager"] or on_cpu or not rules.hybrid_manager:
        return False
    mixers = (mixer for layer, _ in model.layer_runs() for mixer in layer.mixers)
    return rules.chunked_freed or not any(isinstance(mixer, ChunkedAttention) for mixer in mixers)


def _mamba_mode(model: ModelSpec, given: dict[str, Any], rules: EngineRules) -> str:
    """As asked; else none without prefix caching, and with it the release's mode for this type of model."""
    asked = given["mamba-cache-mode"]
    if asked is not None:
        return str(asked)
    has_states = any(isinstance(m, StateSpace) for layer, _ in model.layer_runs() for m in layer.mixers)
    caching = given["enable-prefix-caching"]
    if not has_states or not (rules.hybrid_prefix_caching if caching is None else caching):
        return "none"
    every = model.family in ALL_STATES_MODELS
    mode = rules.mamba_default[0 if every else 1]
    if mode == "none":
        mode = "all" if every else "align"
    return mode if mode in rules.mamba_modes else "none"


def _states_by_length(model: ModelSpec, given: dict[str, Any], rules: EngineRules) -> bool:
    """Before the modes, prefix caching kept a state for every block, of the models that had it, when it was asked for."""
    asked = bool(given["enable-prefix-caching"]) and model.family in ALL_STATES_MODELS
    return rules.mamba_rule == "length" and asked


def _context_shards(case: Case, shards: int) -> int:
    """Decode context parallelism: T > K, shards divide T / K and the query heads of a key/value head."""
    if shards == 1:
        return 1
    tp = case.layout.tp
    for layer, _ in case.model.layer_runs():
        for mixer in layer.mixers:
            if isinstance(mixer, HeadedAttention):
                heads = mixer.num_key_value_heads
            elif isinstance(mixer, LatentAttention):
                heads = 1
            else:
                continue
            if tp // heads < shards or (tp // heads) % shards:
                raise LayoutError(
                    f"decode-context-parallel-size {shards} needs TP / key-value heads = {tp} / {heads} to be a "
                    "multiple of it"
                )
    return shards


def batch_limits(case: Case, rules: EngineRules, longest: int) -> tuple[int, int]:
    """``(max_num_batched_tokens, max_num_seqs)``: as asked, else the API server's defaults by card, release and ``longest``."""
    card, settings = case.accelerator, case.settings
    if card.vendor == CPU_VENDOR:
        ranks = case.layout.tp * case.layout.pp
        tokens, seqs = 2048 * ranks, 128 * ranks
    else:
        tokens, seqs = batch_defaults(
            rules,
            device_bytes=total_bytes(card, settings),
            device_name=card.name.replace("dgx-spark", "gb10"),
            server=True,
            max_model_len=max(longest, 1),
        )
    if rules.tokens_capped_by_seqs and settings.max_num_seqs is not None:
        tokens = min(tokens, settings.max_num_seqs * max(longest, 1))
    tokens = settings.max_num_batched_tokens or tokens
    return tokens, min(settings.max_num_seqs or seqs, tokens)


def measured_device(accelerator: Accelerator, settings: Settings) -> int | None:
    """The device's total that a calibration of this card measured."""
    found = settings.calibration
    same = found is not None and found.engine == "vllm" and found.gpu == accelerator.name
    return found.device_bytes if found is not None and same else None


def total_bytes(accelerator: Accelerator, settings: Settings) -> int:
    """The device's total: as asked, as measured, else what CUDA is expected to report."""
    return settings.memory_bytes or measured_device(accelerator, settings) or device_bytes(accelerator)


def utilization(settings: Settings, rules: EngineRules) -> float:
    """As asked, else what is not reserved, else the release's default."""
    if settings.utilization is not None:
        return settings.utilization
    return rules.default_utilization if settings.reserve is None else 1 - settings.reserve
