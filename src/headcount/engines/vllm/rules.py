"""What each vLLM release does differently: versions as data, every change at the first release that has it.

Read in the published source distributions 0.4.0 to 0.33.0, all releases but post releases and 0.15.1 (0.4.0 and 0.15.0:
in their wheels). ``_CHANGES`` names the file of each change; ``EngineRules.version`` says whose rules were used.
"""

from __future__ import annotations

from headcount.engines.versions import release
from headcount.errors import UnknownNameError
from headcount.record import Record
from headcount.units import GIB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    RULES: dict[str, EngineRules]

# The last release whose own engine was V0.
LAST_V0 = "0.7.3"
VERIFIED_VERSION = "0.33.0"
MAMBA_CACHE_MODES = ("none", "align", "all")
# The last release whose "GPU KV cache size" is blocks // groups x smallest block.
LAST_WITH_BLOCK_TOKENS = "0.20.0"
# Model types that could cache every recurrent state (mode "all") while that mode existed.
ALL_STATES_MODELS = (
    "bamba",
    "falcon_h1",
    "granitemoehybrid",
    "jamba",
    "mamba",
    "mamba2",
    "nemotron_h",
    "zamba2",
)


class EngineRules(Record):
    """What one vLLM release does, read in the released packages; only 0.33.0 is checked against its planner.

    generation               V0 or V1: the engine that runs by default
    v0_below                 NVIDIA cards below this compute capability run V0 all the same
    default_utilization      gpu_memory_utilization when it is not given, a fraction of the device's total
    requested_rounding       of total x utilization: truncated (cache bytes are cut at the end) or ceil
    free_checked             the start is refused when less than that is free
    charged_memory           bytes outside weights and tensors that reduce the cache
    charged_by_free_memory   weights and growth are one figure, free memory before less after (else summed apart); the
                             printed peak activation holds the CUDA graphs' estimate
    rocm_prints_used_memory  on AMD "Model loading took" is what the device lost, not what PyTorch allocated
    cublas_charged           cuBLAS handles are made after the first snapshot, so they are growth
    cuda_graphs_counted      no, opt-in or yes: whether graph memory is taken off the cache
    largest_graph            largest batch captured; ``largest_graph_sm100`` on compute capability 10
    graph_step               distance of captured sizes from 256 on; 8 below
    graph_seqs_factor        no batch above this x max_num_seqs is captured; 0 no such limit
    hybrid_manager           sliding layers free the blocks behind the window; else every layer is full
    chunked_freed            so do layers with chunked attention
    pages_unified            layers with different pages can be brought to one page
    widen_below              a group is as large as the largest bucket if that is < this x the smallest; 0 never
    concurrency_per_group    blocks of a request are rounded up group by group, else over their sum
    in_flight_batches        tokens in flight count every concurrent batch, else one batch
    null_block_reserved      the start-up check leaves one block out
    tokens_from_concurrency  KV tokens = int(concurrency x n), else blocks // groups x smallest block
    packed_layout            of DeepSeek-V4's pages: "" unknown model; slots: windows' pages padded to a compressed page, a
                             block is a slot for every page; overlaid: a block is as wide as the widest group; fitted:
                             the same, groups cut so that they fit it
    latent_cache             latent attention (DeepSeek-V2 on): "" unknown model; 256: all heads, K and V both padded
                             to 256; query: all heads, K and V both as wide as the query; latent: the latent itself
    sparse_plain_heads       compute capability 10 keeps a sparse model's fp8 cache as plain fp8 up to this many query
                             heads a rank, if keys are ``sparse_plain_widths`` wide without rotation; else packed
    sparse_sm120             sparse attention runs on compute capability 12, always on a packed cache
    shared_indexers          a layer that takes another's selection has no indexer of its own
    mamba_rule               "" unknown; one: 1 block; length: cdiv(n, block); mode: by mamba_cache_mode
    mamba_modes              mamba_cache_mode values
    mamba_default            mode by default: of ``ALL_STATES_MODELS``, of the others
    mamba_all_speculative    mode "all" adds the speculative blocks
    mamba_checkpoints        mode "align" adds the prefill checkpoint blocks
    hybrid_prefix_caching    prefix caching is on by default for models with recurrent states
    async_scheduling         on by default
    large_device             what gives the larger batch defaults: "" nothing, name (H100, H200) or memory (70 GiB)
    a100_is_large            an A100-80GB takes the batch defaults of devices of 70 GiB and more
    tier_160_gib             batch defaults have a tier for devices of 160 GiB and more
    small_device_seqs        max_num_seqs of a device that is not large
    seqs_capped_by_tokens    default max_num_seqs <= max_num_batched_tokens
    tokens_capped_by_seqs    default max_num_batched_tokens <= max_num_seqs x max_model_len
    chunk_tokens             V0: max_num_batched_tokens with chunked prefill (0: as without); else max(max_model_len, 2048)
    chunked_above            V0: chunked prefill is on for a max_model_len above this; 0 never
    swap_space               host blocks are set aside for preempted requests
    mxfp4_multiples          what an MXFP4 expert's width on a rank and the hidden width are rounded up to on Hopper
    moe_workspace_kept       the buffers of 16-bit experts stay allocated while the sampler runs
    sampler                  of the profile run: sort (PyTorch), triton, or none
    logit_bytes              bytes per (row, vocabulary entry) alive at once there; see ``bytes_per_logit``
    sampler_rows_buffer      Triton's buffer, 4 bytes x vocabulary x min(multiprocessors, rows), stays allocated
    sampler_hidden_copies    copies of the sampled rows' hidden states alive with the logits
    first_rank_samples       only tensor rank 0 has logits; else every rank has all of them
    flashinfer_sampler       no, old (older than 0.2.3, if installed), installed, opt-in or default
    flashinfer_logit_bytes   ``logit_bytes`` where FlashInfer samples
    table_bytes              bytes per (max_num_seqs, vocabulary entry) of penalty tables, allocated for good
    v2_runner                models that model runner V2 runs by default: "" none, plain, listed, dense, all
    v2_architectures         the listed ones
    v2_logit_bytes           ``logit_bytes`` of that runner; ``v2_table_bytes`` its ``table_bytes``
    """

    version: str
    generation: str = "V0"
    v0_below: float = 0.0
    default_utilization: float = 0.90
    requested_rounding: str = "truncated"
    free_checked: bool = False
    charged_memory: str = "growth of the reserved memory since before NCCL set-up"
    charged_by_free_memory: bool = False
    rocm_prints_used_memory: bool = True
    cublas_charged: bool = True
    cuda_graphs_counted: str = "no"
    largest_graph: int = 256
    largest_graph_sm100: int = 256
    graph_step: int = 8
    graph_seqs_factor: int = 0
    hybrid_manager: bool = False
    chunked_freed: bool = False
    pages_unified: bool = False
    widen_below: float = 0.0
    concurrency_per_group: bool = False
    in_flight_batches: bool = False
    null_block_reserved: bool = False
    tokens_from_concurrency: bool = False
    packed_layout: str = ""
    latent_cache: str = ""
    sparse_plain_heads: int = 0
    sparse_plain_widths: tuple[int, ...] = ()
    sparse_sm120: bool = False
    shared_indexers: bool = False
    mamba_rule: str = ""
    mamba_modes: tuple[str, ...] = ()
    mamba_default: tuple[str, str] = ("none", "none")
    mamba_all_speculative: bool = False
    mamba_checkpoints: bool = False
    hybrid_prefix_caching: bool = False
    async_scheduling: bool = False
    large_device: str = ""
    a100_is_large: bool = False
    tier_160_gib: bool = False
    small_device_seqs: int = 256
    seqs_capped_by_tokens: bool = False
    tokens_capped_by_seqs: bool = False
    chunk_tokens: int = 0
    chunked_above: int = 0
    swap_space: bool = True
    mxfp4_multiples: tuple[int, int] = (1, 1)
    moe_workspace_kept: bool = False
    sampler: str = "sort"
    logit_bytes: int = 30
    sampler_rows_buffer: bool = False
    sampler_hidden_copies: int = 1
    first_rank_samples: bool = True
    flashinfer_sampler: str = "no"
    flashinfer_logit_bytes: int = 0
    table_bytes: float = 0.0
    v2_runner: str = ""
    v2_architectures: tuple[str, ...] = ()
    v2_logit_bytes: int = 0
    v2_table_bytes: float = 0.0


_MOE_ON_V2 = ("DeepseekV2ForCausalLM", "GraniteMoeForCausalLM", "Qwen2MoeForCausalLM")
_MORE_ON_V2 = (
    *_MOE_ON_V2,
    "InklingForCausalLM",
    "InklingForConditionalGeneration",
    "LongcatFlashNgramForCausalLM",
)
# One int32 count and one prompt bit per (max_num_seqs, vocabulary entry): v1/worker/gpu/sample/penalties.py.
_PENALTY_TABLES = 4.125

# Widths of the two MXFP4 kernels that Hopper can run. Triton's: 64 in mxfp4.py, and its layout (triton_kernels
# hopper_value.py) aligns bytes along the inner axis to 64 and the outer axis to 256, 0.6 % less than 64 and 256 on
# gpt-oss. Marlin's: 128 and 256 in mxfp4.py. Which one ran is not printed; it is inferred from five starts of gpt-oss on
# H100 (llm-d-planner PR 205): 2026-02, +0.65 and +3.61 GiB beside the tensors of 20b and 120b, here 0.63 and 3.78; 0.19,
# +0.82 (TP 1) and +0.60 (TP 2), here 0.86 and 0.65. Not exact, so the kernels do something that is not known.
MXFP4_TRITON = (64, 256)
MXFP4_MARLIN = (128, 256)

# Oldest first. The logit bytes are counted under ``bytes_per_logit``.
_CHANGES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("0.4.0", {}),
    ("0.4.1", {"chunk_tokens": 768}),  # config.py SchedulerConfig
    ("0.4.2", {"chunk_tokens": 512}),  # config.py SchedulerConfig
    # config.py ModelConfig.get_head_size, model_executor/models/deepseek_v2.py
    ("0.5.1", {"latent_cache": "256"}),
    ("0.5.3", {"chunked_above": 32768}),  # engine/arg_utils.py create_engine_config
    ("0.5.5", {"logit_bytes": 40}),  # model_executor/layers/sampler.py: float32 copy, inverse index
    ("0.6.2", {"logit_bytes": 38}),  # model_executor/layers/sampler.py: scatter, no inverse index
    ("0.6.4", {"charged_memory": "every byte on the device"}),  # worker/worker.py
    (
        "0.6.5",  # worker/worker.py with utils.py memory_profiling, config.py SchedulerConfig, VllmConfig
        {
            "charged_memory": "growth since before NCCL set-up",
            "chunk_tokens": 2048,
            "largest_graph": 512,
            "largest_graph_sm100": 512,
        },
    ),
    ("0.7.0", {"latent_cache": "query"}),  # config.py ModelConfig.get_head_size
    ("0.7.1", {"latent_cache": "latent"}),  # config.py ModelConfig.use_mla, envs.py VLLM_MLA_DISABLE
    (
        "0.8.0",  # envs.py VLLM_USE_V1, engine/arg_utils.py _set_default_args_v1, v1/worker/gpu_worker.py
        {
            "generation": "V1",
            "v0_below": 8.0,
            "charged_memory": "every byte on the device",
            "large_device": "name",
            "small_device_seqs": 1024,
            "first_rank_samples": False,
            "flashinfer_sampler": "old",
            "flashinfer_logit_bytes": 10,
        },
    ),
    ("0.8.4", {"small_device_seqs": 256}),  # engine/arg_utils.py _set_default_args_v1
    ("0.8.5", {"large_device": "memory", "a100_is_large": True}),  # the same
    (
        "0.9.0",  # the same; v1/worker/gpu_model_runner.py and v1/sample/ops/topk_topp_sampler.py
        {
            "a100_is_large": False,
            "sampler_hidden_copies": 2,
            "flashinfer_sampler": "installed",
            "flashinfer_logit_bytes": 14,
        },
    ),
    (
        "0.9.1",  # v1/core/kv_cache_utils.py get_kv_cache_config, v1/worker/gpu_worker.py
        {
            "hybrid_manager": True,
            "charged_memory": "growth since before NCCL set-up",
            "free_checked": True,
        },
    ),
    ("0.10.0", {"chunked_freed": True, "graph_seqs_factor": 2}),  # v1/kv_cache_interface.py, config.py
    # config/__init__.py VllmConfig (VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE), engine/arg_utils.py
    (
        "0.10.1",
        {"chunked_freed": False, "seqs_capped_by_tokens": True, "mxfp4_multiples": MXFP4_TRITON},
    ),
    # engine/arg_utils.py _is_v1_supported_oracle, v1/kv_cache_interface.py MambaSpec
    # engine/arg_utils.py _is_v1_supported_oracle
    ("0.10.2", {"mamba_rule": "one", "mamba_modes": ("none",), "v0_below": 0.0}),
    ("0.11.0", {"charged_memory": "growth since after NCCL set-up"}),  # v1/worker/gpu_worker.py init_device
    (
        "0.11.1",  # v1/kv_cache_interface.py, engine/arg_utils.py, config/vllm.py, topk_topp_sampler.py
        {
            "mamba_rule": "length",
            "tokens_capped_by_seqs": True,
            "graph_step": 16,
            "flashinfer_sampler": "opt-in",
        },
    ),
    ("0.12.0", {"widen_below": 1.25, "pages_unified": True}),  # v1/core/kv_cache_utils.py
    (
        "0.14.0",  # config/scheduler.py, v1/worker/utils.py request_memory, unquantized_fused_moe_method.py
        {"async_scheduling": True, "requested_rounding": "ceil", "moe_workspace_kept": True},
    ),
    ("0.15.0", {"mamba_rule": "mode", "mamba_modes": MAMBA_CACHE_MODES}),  # v1/kv_cache_interface.py
    (
        "0.17.0",  # v1/sample/ops/topk_topp_triton.py; platforms/cuda.py, mla/flashinfer_mla_sparse.py
        {
            "sampler": "triton",
            "logit_bytes": 14,
            "sampler_rows_buffer": True,
            "sparse_plain_heads": 16,
            "sparse_plain_widths": (128,),
        },
    ),
    # v1/core/kv_cache_utils.py, v1/worker/gpu_worker.py and envs.py, config/cache.py
    ("0.18.0", {"widen_below": 1.5, "cuda_graphs_counted": "opt-in", "swap_space": False}),
    (
        "0.19.0",  # fused_moe/oracle/mxfp4.py; platforms/cuda.py, mla/flashinfer_mla_sparse.py
        {"mxfp4_multiples": MXFP4_MARLIN, "sparse_plain_heads": 2**20, "sparse_plain_widths": (128, 192)},
    ),
    (
        "0.20.0",  # config/cache.py, envs.py; v1/core/kv_cache_utils.py _get_kv_cache_config_deepseek_v4
        {"default_utilization": 0.92, "cuda_graphs_counted": "yes", "packed_layout": "slots"},
    ),
    ("0.20.1", {"tokens_from_concurrency": True}),  # v1/core/kv_cache_utils.py _report_kv_cache_config
    # envs.py VLLM_USE_FLASHINFER_SAMPLER; platforms/rocm.py get_current_memory_usage
    ("0.21.0", {"flashinfer_sampler": "default", "rocm_prints_used_memory": False}),
    (
        "0.22.0",  # v1/kv_cache_interface.py MambaSpec; config/vllm.py use_v2_model_runner
        {
            "mamba_all_speculative": True,
            "v2_runner": "plain",
            "v2_architectures": ("Qwen3ForCausalLM",),
            "v2_logit_bytes": 6,
            "v2_table_bytes": _PENALTY_TABLES,
        },
    ),
    ("0.23.0", {"v2_architectures": ("LlamaForCausalLM", "MistralForCausalLM", "Qwen3ForCausalLM")}),
    (
        "0.24.0",  # config/vllm.py; models/deepseek_v2.py, mla/flashinfer_mla_sparse_sm120.py
        {
            "sparse_sm120": True,
            "shared_indexers": True,
            "v2_runner": "listed",
            "v2_architectures": (
                *_MOE_ON_V2,
                "LlamaForCausalLM",
                "MistralForCausalLM",
                "Qwen3ForCausalLM",
            ),
        },
    ),
    ("0.25.0", {"v2_runner": "dense", "v2_architectures": _MOE_ON_V2}),
    (
        "0.26.0",  # config/vllm.py max_in_flight_tokens, config/model.py, v1/worker/gpu/sample/sampler.py
        {
            "in_flight_batches": True,
            "mamba_default": ("all", "align"),
            "v2_architectures": _MORE_ON_V2,
            "v2_logit_bytes": 2,
        },
    ),
    (
        "0.27.0",  # v1/core/kv_cache_utils.py, utils/mem_utils.py memory_profiling, config/vllm.py
        {
            "concurrency_per_group": True,
            "packed_layout": "overlaid",
            "charged_by_free_memory": True,
            "v2_architectures": (*_MORE_ON_V2, "KimiK3ForConditionalGeneration"),
        },
    ),
    (
        "0.28.0",  # engine/arg_utils.py get_batch_defaults, config/vllm.py, model_executor/models/config.py
        {
            "tier_160_gib": True,
            "hybrid_prefix_caching": True,
            "largest_graph_sm100": 1024,
            "mamba_default": ("align", "align"),
            "v2_architectures": (*_MORE_ON_V2, "KimiK3ForConditionalGeneration", "DeepseekV4ForCausalLM"),
        },
    ),
    (
        "0.29.0",  # v1/core/kv_cache_utils.py, v1/kv_cache_interface.py; config/vllm.py: runner V2 for all models
        {
            "null_block_reserved": True,
            "packed_layout": "fitted",
            "mamba_checkpoints": True,
            "v2_runner": "all",
            "v2_architectures": (),
            "sampler": "none",
            "logit_bytes": 2,
            "table_bytes": _PENALTY_TABLES,
            "sampler_rows_buffer": False,
            "sampler_hidden_copies": 1,
            "flashinfer_sampler": "no",
            "flashinfer_logit_bytes": 0,
        },
    ),
    ("0.32.0", {"mamba_modes": ("none", "align")}),  # config/cache.py MambaCacheMode
    (
        "0.33.0",  # v1/worker/gpu/model_runner.py _dummy_sampler_run, gpu_worker.py, arg_utils.py
        {
            "cublas_charged": False,
            "sampler": "triton",
            "logit_bytes": 14,
            "v2_logit_bytes": 14,
            "flashinfer_sampler": "default",
            "flashinfer_logit_bytes": 14,
        },
    ),
)

_MADE: dict[str, EngineRules] = {}


def _made(version: str) -> EngineRules:
    """The rules of a release in ``_CHANGES``, made when asked for: a start-up needs one of them."""
    if version not in _MADE:
        fields: dict[str, Any] = {}
        for first, changes in _CHANGES:
            fields.update(changes)
            if first == version:
                break
        _MADE[version] = EngineRules(version=version, **fields)
    return _MADE[version]


def __getattr__(name: str) -> object:
    """``RULES``: every release that changed something, newest first."""
    if name == "RULES":
        return {version: _made(version) for version, _ in reversed(_CHANGES)}
    raise AttributeError(name)


def rules_for(engine_version: str) -> EngineRules:
    """Return the rules in force: of the newest release in ``RULES`` that is not newer than ``engine_version``.

    A pre-release or development build (``0.20.2rc1.dev129``) gets those of the release before its number: such builds
    are cut from the main branch before that release, and its name does not say which changes it has.
    Raises UnknownNameError for text that is no version and for releases older than 0.4.0.
    """
    wanted = release(engine_version)
    early = is_prerelease(engine_version)
    for version, _ in reversed(_CHANGES):
        known = release(version)
        if wanted and (known < wanted or (known == wanted and not early)):
            return _made(version)
    names = [version for version, _ in reversed(_CHANGES)]
    raise UnknownNameError(
        what="vLLM version",
        given=engine_version,
        allowed=names,
        hint=f"rules are known from {names[-1]} to {names[0]}, and taken as those of {names[0]} after it",
    )


def is_prerelease(engine_version: str) -> bool:
    """Whether the text names a build before a release: ``0.20.2rc1``, ``0.20.2.dev3``, ``0.9.0a1``."""
    digits = engine_version.strip().removeprefix("v").split("+")[0].replace("post", "")
    return any(sign.isalpha() for sign in digits)


# Day on which the first file of each release was published on PyPI (https://pypi.org/project/vllm/#history).
_PUBLISHED = """
0.4.0 2024-03-31  0.4.0.post1 2024-04-03  0.4.1 2024-04-24  0.4.2 2024-05-05  0.4.3 2024-06-01
0.5.0 2024-06-11  0.5.0.post1 2024-06-14  0.5.1 2024-07-06  0.5.2 2024-07-15  0.5.3 2024-07-23
0.5.3.post1 2024-07-23  0.5.4 2024-08-05  0.5.5 2024-08-23  0.6.0 2024-09-05  0.6.1 2024-09-11
0.6.1.post1 2024-09-13  0.6.1.post2 2024-09-13  0.6.2 2024-09-25  0.6.3 2024-10-14
0.6.3.post1 2024-10-17  0.6.4 2024-11-15  0.6.4.post1 2024-11-15  0.6.5 2024-12-18  0.6.6 2024-12-27
0.6.6.post1 2024-12-27  0.7.0 2025-01-27  0.7.1 2025-02-01  0.7.2 2025-02-06  0.7.3 2025-02-20
0.8.0 2025-03-18  0.8.1 2025-03-19  0.8.2 2025-03-25  0.8.3 2025-04-06  0.8.4 2025-04-15
0.8.5 2025-04-28  0.8.5.post1 2025-05-02  0.9.0 2025-05-28  0.9.0.1 2025-05-30  0.9.1 2025-06-10
0.9.2 2025-07-08  0.10.0 2025-07-25  0.10.1 2025-08-19  0.10.1.1 2025-08-20  0.10.2 2025-09-13
0.11.0 2025-10-04  0.11.1 2025-11-19  0.11.2 2025-11-20  0.12.0 2025-12-03  0.13.0 2025-12-19
0.14.0 2026-01-20  0.14.1 2026-01-24  0.15.0 2026-01-29  0.15.1 2026-02-05  0.16.0 2026-02-26
0.17.0 2026-03-07  0.17.1 2026-03-11  0.18.0 2026-03-20  0.18.1 2026-03-31  0.19.0 2026-04-03
0.19.1 2026-04-18  0.20.0 2026-04-27  0.20.1 2026-05-03  0.20.2 2026-05-10  0.21.0 2026-05-15
0.22.0 2026-05-29  0.22.1 2026-06-05  0.23.0 2026-06-13  0.24.0 2026-06-30  0.25.0 2026-07-11
0.25.1 2026-07-14  0.26.0 2026-07-25  0.27.0 2026-08-10  0.27.1 2026-08-11  0.28.0 2026-08-26
0.29.0 2026-09-09  0.30.0 2026-09-22  0.31.0 2026-10-05  0.32.0 2026-10-18  0.33.0 2026-11-02
"""
RELEASED: dict[str, str] = dict(zip(_PUBLISHED.split()[::2], _PUBLISHED.split()[1::2], strict=True))


def release_on(day: str) -> str:
    """Return the newest release published on ``day`` (``2026-02-11``) or before; a month or year means its last day.

    Raises UnknownNameError for a day before 0.4.0.
    """
    known = [version for version, out in RELEASED.items() if out <= day or out.startswith(day)]
    if not day or not known:
        raise UnknownNameError(
            what="day of a vLLM release",
            given=day,
            allowed=list(RELEASED.values()),
            hint=f"the first known release is {next(iter(RELEASED))} of {next(iter(RELEASED.values()))}",
        )
    return known[-1]


def runs_v2(
    rules: EngineRules,
    *,
    architecture: str,
    experts: bool = False,
    quantized: bool = False,
    hybrid: bool = False,
) -> bool:
    """Whether model runner V2 runs a text generation model by default; ``hybrid``: it has recurrent states.

    Without features that runner lacks (most speculative methods, custom logits processors). Source: config/vllm.py
    use_v2_model_runner, _is_default_v2_model_runner_model, _get_v2_model_runner_unsupported_features.
    """
    named = architecture in rules.v2_architectures
    if rules.v2_runner == "plain":
        return named and not (experts or quantized or hybrid)
    if rules.v2_runner == "dense":
        return named or not (experts or hybrid)
    return rules.v2_runner == "all" or (rules.v2_runner == "listed" and named)


# A float32 sort by PyTorch of fewer rows sorts all of them at once: 50 bytes in place of 38 (bfloat16: 40 of 30).
_SORTED_TOGETHER = 128
_WHOLE_SORT_EXTRA = {30: 10, 38: 12, 40: 10}


def bytes_per_logit(rules: EngineRules, *, rows: int, flashinfer: bool = False, v2: bool = False) -> int:
    """Bytes per (row, vocabulary entry) alive at the peak of the profile run's sampler, for 16-bit logits.

    Counted from the tensors that ``_dummy_sampler_run`` (V0: the sampler of the dummy batch) holds at once:

        sort, float32     2 logits + 4 float32 copy + 4 sorted + 8 indices + 8 reverse indices + 12 sort buffers = 38
        sort, 0.5.5-0.6.1 2 + 4 + 4 + 8 + 2 masks + 4 probabilities + 4 sums + 8 inverse + 4 result            = 40
        sort, 16 bits     2 logits + 2 sorted + 8 + 8 + 10 sort buffers                                        = 30
        triton            2 logits + 4 float32 copy + 4 probabilities + 4 noise                                = 14
        FlashInfer        2 logits + 4 float32 copy + 4 masked + 4 probabilities                               = 14
        FlashInfer < 0.2.3                2 logits + 4 float32 copy + 4 probabilities                          = 10
        V2, 0.22-0.25     2 logits + 4 float32 copy, then a fused kernel                                       =  6
        V2, 0.26-0.32     2 logits: the dummy requests are greedy and nothing is copied                        =  2
        V2 from 0.33      a second run with top-k and top-p: as FlashInfer                                     = 14

    The sort's buffers are PyTorch's (ATen/native/cuda/SortStable.cu and cub's segmented radix sort); 128 rows or more.
    A float32 model has no copy (the logits themselves are 4 bytes). From 0.9.0 to 0.11.0 an installed FlashInfer is
    used (``flashinfer``), in the container images it is. Measured: ``tests/engines/test_vllm_rules.py``.
    """
    if v2 and rules.v2_runner:
        return rules.v2_logit_bytes
    if flashinfer and rules.flashinfer_logit_bytes:
        return rules.flashinfer_logit_bytes
    if rules.sampler == "sort" and rows < _SORTED_TOGETHER:
        return rules.logit_bytes + _WHOLE_SORT_EXTRA[rules.logit_bytes]
    return rules.logit_bytes


# What PyTorch's allocator gives cuBLAS: 32 MiB on compute capability 9.0, 8.125 MiB below (ATen CublasHandlePool.cpp).
CUBLAS_BYTES_SM90 = 32 * 2**20
CUBLAS_BYTES = 8 * 2**20 + 2**17


def sampler_peak_bytes(
    per_logit: int,
    rules: EngineRules,
    *,
    rows: int,
    vocabulary: int,
    tokens: int,
    hidden: int,
    multiprocessors: int = 132,
) -> int:
    """Bytes of activation at the profile run's sampler, for ``per_logit`` = ``bytes_per_logit``; cuBLAS not included.

        rows x V x per_logit + 4 V min(multiprocessors, rows) [Triton's buffer] + (tokens + copies x rows) x D x 2

    rows = min(max_num_seqs, max_num_batched_tokens); D hidden width, ``tokens`` of the profile run: its last hidden
    states stay alive. 16-bit experts (``moe_workspace_kept``) and an encoder's inputs and outputs come on top.
    Source: v1/worker/gpu_model_runner.py profile_run, _dummy_sampler_run; v1/sample/ops/topk_topp_triton.py.
    """
    logits = rows * vocabulary * per_logit
    buffer = 4 * vocabulary * min(multiprocessors, rows) if rules.sampler_rows_buffer else 0
    return logits + buffer + (tokens + rules.sampler_hidden_copies * rows) * hidden * 2


def batch_defaults(
    rules: EngineRules, *, device_bytes: int, device_name: str, server: bool, max_model_len: int
) -> tuple[int, int]:
    """Default ``(max_num_batched_tokens, max_num_seqs)`` of a text model on an NVIDIA or AMD device.

    ``server``: the API server, else the LLM class. V0: max(max_model_len, 2048) tokens, or ``chunk_tokens`` once
    max_model_len is above ``chunked_above`` (not with a sliding window). Source: engine/arg_utils.py.
    """
    if rules.generation == "V0":
        chunked = rules.chunked_above and max_model_len > rules.chunked_above
        return (rules.chunk_tokens if chunked else max(max_model_len, 2048)), rules.small_device_seqs
    name = device_name.lower()
    if rules.large_device == "name":
        large = "h100" in name or "h200" in name
    else:
        # A GB10's driver does not tell its memory, which counts as none; 0.33, which asks elsewhere, bars it by name.
        barred = "gb10" in name or ("a100" in name and not rules.a100_is_large)
        large = device_bytes >= 70 * GIB and not barred
    if rules.tier_160_gib and device_bytes >= 160 * GIB:
        tokens, seqs = 16384, 1024
    elif large:
        tokens, seqs = 8192 if server else 16384, 1024
    else:
        tokens, seqs = 2048 if server else 8192, rules.small_device_seqs
    if rules.tokens_capped_by_seqs:
        tokens = min(tokens, seqs * max_model_len)
    return tokens, min(seqs, tokens) if rules.seqs_capped_by_tokens else seqs
