"""What vLLM refuses: architectures a release does not have, and layouts that its checks at start reject."""

from __future__ import annotations

from math import gcd

from headcount.engines.base import head_refusal, sharded_width, width_refusal
from headcount.engines.versions import release
from headcount.engines.vllm.options import indexed_mixers
from headcount.spec.weight import EXPERTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.engines.base import Layout
    from headcount.engines.vllm.rules import EngineRules
    from headcount.hardware import Accelerator
    from headcount.spec.model import ModelSpec

VOCAB_MULTIPLE = 64
# Last version that had the architecture (vllm/model_executor/models/registry.py of 0.33.0).
DROPPED = {
    "qwen": "0.23.0",
    "baichuan": "0.23.0",
    "dots1": "0.23.0",
    "bamba": "0.23.0",
    "minimax": "0.23.0",
    "persimmon": "0.25.0",
    "mpt": "0.28.0",
    "mllama_text_model": "0.10.2",
}
# From this release blocks of fp8 experts that a rank's width would cut are refined (fused_moe/oracle/fp8.py
# refine_fp8_moe_block_shape).
_REFINED_SINCE, _LEAST_BLOCK = "0.29.0", 32
ABSENT = ("t5", "mt5", "umt5", "marian", "pegasus", "bart", "mbart", "recurrent_gemma")


def vllm_refusal(model: ModelSpec, layout: Layout, version: str) -> str | None:
    """Why vLLM ``version`` cannot run ``layout``: architecture, heads, vocabulary, widths, packed groups, stages."""
    family = model.family
    if family in ABSENT:
        return f"vLLM {version} does not serve model type {family}"
    last = DROPPED.get(family)
    if last and release(version) > release(last):
        return f"vLLM dropped model type {family} after {last}"
    if layout.pp > len(model.layers):
        return f"{len(model.layers)} layers cannot make {layout.pp} stages"
    return (
        head_refusal(model, layout.tp)
        or width_refusal(model, layout.tp, vocab_multiple=VOCAB_MULTIPLE)
        or _group_refusal(model, layout.tp, refined=release(version) >= release(_REFINED_SINCE))
    )


def card_refusal(model: ModelSpec, accelerator: Accelerator, rules: EngineRules, version: str) -> str | None:
    """Sparse attention (DeepSeek-V3.2 on) has kernels for Hopper and Blackwell only."""
    capability = accelerator.compute_capability
    if not indexed_mixers(model) or capability is None or accelerator.vendor != "nvidia":
        return None
    allowed = ("9", "10", "12") if rules.sparse_sm120 else ("9", "10")
    if capability.partition(".")[0] in allowed:
        return None
    return (
        f"vLLM {version} has no sparse attention for compute capability {capability} ({accelerator.name}); "
        f"it has for {', '.join(allowed)}"
    )


def _group_refusal(model: ModelSpec, tp: int, *, refined: bool) -> str | None:
    """Packed groups and blocks must stay whole on a rank; ``refined``: experts' blocks may be cut to 32 or more."""
    if tp == 1 or model.quantization is None:
        return None
    for layer, _ in model.layer_runs():
        for weight in layer.weights:
            width, packing = sharded_width(model, weight), model.quantization.packing_of(weight, 0)
            if not width or packing is None:
                continue
            unit = packing.group if weight.shard != "column" else packing.block_rows
            if weight.part == EXPERTS:
                unit = max(packing.block_rows, packing.group if packing.block_rows > 1 else 1)
                if refined and packing.block_rows > 1:
                    smaller = gcd(packing.block_rows, packing.group, width // tp, model.hidden_size)
                    unit = smaller if smaller >= _LEAST_BLOCK else unit
            # A matrix narrower than one group was never packed in groups, whatever list its config leaves out.
            if width >= unit > 1 and (width // tp) % unit:
                short = weight.name.rsplit(".", 1)[-1]
                return (
                    f"{width:,} / {tp} = {width // tp:,} columns of {short} are not whole groups of {unit} "
                    f"({packing.name})"
                )
    return None
