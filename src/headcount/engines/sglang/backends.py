"""Which attention kernels SGLang takes on a card, and what they decide: the page and the layout of fp8 rows.

    kernels                       page                  taken by default on
    fa3, flashinfer, triton          1                  Hopper; other cards
    aiter                            1                  AMD; there triton for Gemma 4, OLMo 2, EXAONE 4 with windows, and
                                                        for latent attention with other than 16 or 128 heads on a rank
    trtllm_mha                    16 to 128, else 64    Blackwell data-centre cards (10.x)
    trtllm_mla                    32 or 64, else 64     the same, DeepSeek-V3 and Kimi-K2
    fa4                           128                   the same, keys and values of different widths
    dsa                           64                    sparse latent attention everywhere

Source: sglang 0.5.23 (PyPI, 2026-10-30), srt/arg_groups/model_override_base.py, overrides.py and model_overrides/.
"""

from __future__ import annotations

from headcount.errors import UsageError
from headcount.spec.attention import HeadedAttention, LatentAttention, SlidingWindow

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
# Past so many tokens the aiter kernels keep 15 % of the fraction for their workspace (attention_hook.py).
LONG_CONTEXT = 8192
LONG_CONTEXT_FACTOR = 0.85
# Heads of latent attention on a rank that aiter's kernels read; triton's are taken for any other number.
_AITER_LATENT_HEADS = (16, 128)
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
    model: ModelSpec, card: Accelerator, *, tp: int, backend: str | None, page: int | None
) -> tuple[str, int]:
    """``(kernels, tokens of a page)``: as asked where the kernels allow it, else what they need."""
    found = backend or default_backend(model, card, tp)
    allowed = _PAGES.get(found)
    if found == "fa4" and generation(card) == 10 and not _latent(model):
        return found, 128
    if allowed is not None:
        return found, page if page in allowed else 64
    return found, page or 1


def default_backend(model: ModelSpec, card: Accelerator, tp: int) -> str:
    """The kernels that SGLang takes when none are named; ``tp`` ranks share the heads (attention groups do not count)."""
    if is_sparse(model):
        return "dsa"
    if card.vendor == "amd":
        return "aiter" if _aiter_serves(model, tp) else "triton"
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


def _aiter_serves(model: ModelSpec, tp: int) -> bool:
    """Whether aiter is the default on AMD (model_override_base.py, model_overrides/gemma4.py, olmo2.py, exaone.py)."""
    mixers = [mixer for layer, _ in model.layer_runs() for mixer in layer.mixers]
    heads = [max(1, m.num_attention_heads // tp) for m in mixers if isinstance(m, LatentAttention)]
    if heads:
        return heads[0] in _AITER_LATENT_HEADS
    if model.family.startswith("exaone4"):
        return not any(isinstance(mixer, SlidingWindow) for mixer in mixers)
    return not model.family.startswith(("gemma4", "olmo2"))


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
