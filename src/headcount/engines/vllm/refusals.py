"""What vLLM refuses: architectures a release does not have, and layouts that its checks at start reject."""

from __future__ import annotations

from headcount.engines.base import head_refusal
from headcount.engines.vllm.rules import release
from headcount.spec.weight import EXPERTS, KV, REPLICATED
from headcount.units import round_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.engines.base import Layout
    from headcount.spec.model import ModelSpec
    from headcount.spec.weight import Weight

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
    return head_refusal(model, layout.tp) or _width_refusal(model, layout.tp)


def _width_refusal(model: ModelSpec, tp: int) -> str | None:
    """Vocabulary (padded to 64) and every sharded width must divide; packed groups must stay whole."""
    if tp == 1:
        return None
    if round_up(model.vocab_size, VOCAB_MULTIPLE) % tp:
        return f"the vocabulary of {model.vocab_size:,} (padded to a multiple of 64) does not divide by {tp}"
    for layer, _ in model.layer_runs():
        for weight in layer.weights:
            reason = _weight_refusal(model, weight, tp)
            if reason:
                return reason
    return None


def _weight_refusal(model: ModelSpec, weight: Weight, tp: int) -> str | None:
    if not weight.linear or weight.shard in (REPLICATED, KV):
        return None
    short = weight.name.rsplit(".", 1)[-1]
    # Column-parallel layers divide their outputs, row-parallel ones their inputs; experts divide their own width.
    if weight.part == EXPERTS and model.hidden_size in weight.shape:
        width = weight.shape[0] if weight.shape[1] == model.hidden_size else weight.shape[1]
    else:
        width = weight.shape[1] if weight.shard == "row" else weight.shape[0]
    if width % tp:
        return f"width {width:,} of {short} does not divide by {tp}"
    packing = model.quantization.packing_of(weight, 0) if model.quantization is not None else None
    if packing is None:
        return None
    unit = packing.group if weight.shard != "column" else packing.block_rows
    if weight.part == EXPERTS:
        unit = max(packing.block_rows, packing.group if packing.block_rows > 1 else 1)
    if unit > 1 and (width // tp) % unit:
        return f"{width:,} / {tp} = {width // tp:,} columns of {short} are not whole groups of {unit} ({packing.name})"
    return None
