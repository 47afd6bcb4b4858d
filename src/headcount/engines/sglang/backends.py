"""Which attention kernels SGLang takes on a card, and what they decide: the page and the layout of fp8 rows.

    kernels                       page                  taken by default on
    fa3, flashinfer, triton, aiter   1                  Hopper; other cards; AMD
    trtllm_mha                    16 to 128, else 64    Blackwell data-centre cards (10.x)
    trtllm_mla                    32 or 64, else 64     the same, DeepSeek-V3 and Kimi-K2
    fa4                           128                   the same, keys and values of different widths
    dsa                           64                    sparse latent attention everywhere

Source: sglang 0.5.23 (PyPI, 2026-10-30), srt/arg_groups/model_override_base.py, overrides.py and model_overrides/.
"""

from __future__ import annotations

from headcount.errors import UsageError
from headcount.spec.attention import HeadedAttention, LatentAttention

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.engines.sglang.rules import SglangRules
    from headcount.hardware import Accelerator
    from headcount.spec.kv_format import KvFormat
    from headcount.spec.model import ModelSpec

BACKENDS = (
    "triton",
    "flashinfer",
    "fa3",
    "fa4",
    "flashmla",
    "cutlass_mla",
    "cutedsl_mla",
    "trtllm_mha",
    "trtllm_mla",
    "dsa",
    "aiter",
    "torch_native",
    "flex_attention",
)
SPARSE_BACKENDS = ("trtllm", "flashmla_kv", "flashmla_sparse", "flashinfer_sparse_mla", "fa3", "tilelang")
# Sparse kernels that read fp8 rows without scales.
_RAW = ("trtllm", "tilelang")
# model_type of models whose default on Blackwell data-centre cards is trtllm_mla.
_TRTLLM_LATENT = ("deepseek_v3", "kimi_k2", "longcat_flash")
# Hybrid models whose states may be tracked in extra slots (their default since then).
TRACKED_STATES = (
    "qwen3_next",
    "qwen3_5_text",
    "qwen3_5_moe_text",
    "nemotron_h",
    "falcon_h1",
    "granitemoehybrid",
    "kimi_linear",
)
AMD_LONG_CONTEXT = 8192
AMD_LONG_CONTEXT_FACTOR = 0.85
_PAGES = {
    "flashmla": (64,),
    "trtllm_mla": (32, 64),
    "cutedsl_mla": (32, 64),
    "trtllm_mha": (16, 32, 64, 128),
    "dsa": (64,),
}


def generation(card: Accelerator) -> int:
    """CUDA major version of the card: 9 Hopper, 10 Blackwell, 12 its workstation cards; 0 for other vendors or unknown."""
    text = card.compute_capability or ""
    head = text.split(".")[0]
    return int(head) if card.vendor == "nvidia" and head.isdigit() else 0


def is_sparse(model: ModelSpec) -> bool:
    """Sparse latent attention: some layers keep the keys of an indexer (DeepSeek-V3.2, GLM-5)."""
    return any(
        isinstance(m, LatentAttention) and m.index_head_dim
        for layer, _ in model.layer_runs()
        for m in layer.mixers
    )


def attention(
    model: ModelSpec, card: Accelerator, *, backend: str | None, page: int | None
) -> tuple[str, int]:
    """``(kernels, tokens of a page)``: as asked where the kernels allow it, else what they need."""
    found = backend or default_backend(model, card)
    allowed = _PAGES.get(found)
    if found == "fa4" and generation(card) == 10 and not _latent(model):
        return found, 128
    if allowed is not None:
        return found, page if page in allowed else 64
    return found, page or 1


def default_backend(model: ModelSpec, card: Accelerator) -> str:
    """The kernels that SGLang takes when none are named."""
    if is_sparse(model):
        return "dsa"
    if card.vendor == "amd":
        return "aiter"
    major = generation(card)
    if _latent(model):
        if major == 9:
            return "fa3"
        if major == 10:
            return "trtllm_mla" if model.family in _TRTLLM_LATENT else "flashinfer"
        return "triton"
    if major == 10:
        return "fa4" if _uneven(model) else "trtllm_mha"
    if model.family.startswith("gemma4"):
        return "triton"
    return "fa3" if major == 9 else "flashinfer"


def _latent(model: ModelSpec) -> bool:
    return any(isinstance(m, LatentAttention) for layer, _ in model.layer_runs() for m in layer.mixers)


def _uneven(model: ModelSpec) -> bool:
    return any(
        isinstance(m, HeadedAttention) and m.head_dim != m.v_head_dim
        for layer, _ in model.layer_runs()
        for m in layer.mixers
    )


def kv_in_force(model: ModelSpec, card: Accelerator, name: str, asked: str) -> str:
    """The format on this card: sparse latent attention is fp8 by default from Blackwell on; nvfp4 needs Blackwell.

    Raises UsageError for nvfp4 on a card for which its scales and workspaces are not known.
    """
    if asked == "auto" and is_sparse(model):
        return "fp8" if generation(card) >= 10 else "bf16"
    if name == "nvfp4" and generation(card) != 10:
        raise UsageError(
            f"SGLang's nvfp4 cache is counted on Blackwell data-centre cards (10.x) only, not on {card.name}"
        )
    return name


def scaled_rows(
    model: ModelSpec, card: Accelerator, kv: KvFormat, rules: SglangRules, *, asked: str | None
) -> bool:
    """Whether fp8 rows of sparse latent attention carry scales and a 16-bit rotary part (656 bytes instead of 576)."""
    if not is_sparse(model) or kv.name != "fp8":
        return False
    if asked is not None:
        return asked not in _RAW
    if card.vendor == "amd":
        return False
    if model.family == "glm_moe_dsa" and generation(card) == 12:
        return True
    return not (rules.raw_rows_on_blackwell and generation(card) >= 10)
