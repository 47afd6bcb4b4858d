"""GGUF quantisations by name: which type every tensor of a mix gets (src/llama-quant.cpp of 0c1e57098), and its bytes.

    tensor bytes = rows x columns / block x block bytes          a type whose block does not divide the columns falls back
    more(i, n)   = i < n/8  or  i >= 7n/8  or  (i - n/8) mod 3 = 2         layers that get more bits, integer divisions

    mix      base   attention values       feed-forward down         attention output
    q8_0     Q8_0   -                      -                         -
    q6_k     Q6_K   -                      -                         -
    q5_k_m   Q5_K   Q6_K where more        Q6_K where more           -
    q4_k_m   Q4_K   Q6_K where more        Q6_K where more           -
    q4_k_s   Q4_K   Q5_K for i < 4         Q5_K for i < n/8          -
    q3_k_m   Q3_K   Q5_K for i < 2, Q4_K   Q5_K for i < n/16, Q4_K   Q4_K
    q2_k     Q2_K   Q4_K or Q3_K           Q3_K                      Q3_K
    mxfp4_moe  experts MXFP4, all else Q8_0

Output (or a tied embedding) Q6_K, Q8_0 where the base is Q8_0; vectors and routers F32. A fused query-key-value matrix
counts as attention values. 70B models: values in Q5_K instead of Q3_K or Q4_K. Models of 8 experts: keys and values Q8_0,
attention output Q5_K below 5 bits. No importance matrix is assumed.
"""

from __future__ import annotations

from headcount.errors import UnknownNameError
from headcount.record import Record
from headcount.spec.gguf_types import GGML_TYPES
from headcount.spec.weight import EMBEDDING, EXPERTS, FEED_FORWARD, HEAD, ROUTER, SHARED_EXPERTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.spec.model import ModelSpec
    from headcount.spec.weight import Weight

_BLOCKS = {name: (block, size) for name, block, size in GGML_TYPES.values()}
MIXES = {
    "f32": "F32",
    "f16": "F16",
    "bf16": "BF16",
    "q8_0": "Q8_0",
    "q6_k": "Q6_K",
    "q5_k_m": "Q5_K",
    "q5_k_s": "Q5_K",
    "q4_k_m": "Q4_K",
    "q4_k_s": "Q4_K",
    "q3_k_m": "Q3_K",
    "q2_k": "Q2_K",
    "q5_0": "Q5_0",
    "q5_1": "Q5_1",
    "q4_0": "Q4_0",
    "q4_1": "Q4_1",
    "mxfp4_moe": "Q8_0",
}
_ALIASES = {"fp32": "f32", "fp16": "f16", "float16": "f16", "bfloat16": "bf16", "float32": "f32"}
_PLAIN = ("F32", "F16", "BF16")
_FALLBACK = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
# Families whose GGUF files hold one attn_qkv matrix (conversion/*.py of 0c1e57098).
_FUSED = (
    "phi3",
    "gpt2",
    "bloom",
    "falcon",
    "mpt",
    "gpt_neox",
    "gpt_bigcode",
    "dbrx",
    "chatglm",
    "phi",
    "codegen",
)
_VALUES, _KEYS, _OUTPUT, _DOWN, _OTHER = "attn_v", "attn_k", "attn_output", "ffn_down", "other"
_70B_LAYERS = 80


class MixFacts(Record):
    """What the rules ask of a model: ``group`` query heads share a key/value head."""

    layers: int
    attention_layers: int
    group: int
    experts: int
    is_70b: bool
    fused: bool
    falcon: bool


def mix_name(name: str) -> str:
    """The mix called ``name``; UnknownNameError lists the nearest."""
    key = name.strip().lower().replace("-", "_")
    key = _ALIASES.get(key, key)
    if key not in MIXES:
        raise UnknownNameError(what="GGUF quantisation", given=name, allowed=[*MIXES, *_ALIASES])
    return key


def mix_facts(model: ModelSpec) -> MixFacts:
    """Read them off the layers."""
    from headcount.spec.attention import HeadedAttention

    experts = max((layer.feed_forward.experts for layer in model.layers if layer.feed_forward), default=0)
    heads = [mixer for layer in model.layers for mixer in layer.mixers if isinstance(mixer, HeadedAttention)]
    group = heads[0].num_attention_heads // heads[0].num_key_value_heads if heads else 1
    with_values = sum(
        any(role(weight, fused=model.family in _FUSED) == _VALUES for weight in layer.weights)
        for layer in model.layers
    )
    return MixFacts(
        layers=len(model.layers),
        attention_layers=with_values,
        group=group,
        experts=experts,
        is_70b=len(model.layers) == _70B_LAYERS and model.family in ("llama", "qwen2") and group > 1,
        fused=model.family in _FUSED,
        falcon=model.family == "falcon",
    )


def role(weight: Weight, *, fused: bool) -> str:
    """What llama-quant takes the tensor for, by its module path."""
    last = weight.name.rsplit(".", 1)[-1]
    if weight.part == "attention":
        if last in ("v_proj", "v") or (fused and last in ("q", "k", "q_proj", "k_proj", "Wqkv")):
            return _VALUES
        if last in ("k_proj", "k"):
            return _KEYS
        if last in ("o_proj", "out_proj", "dense", "c_proj"):
            return _OUTPUT
    elif weight.part in (FEED_FORWARD, EXPERTS, SHARED_EXPERTS) and last in (
        "down_proj",
        "w2",
        "output_linear",
        "fc2",
        "c_proj",
        "dense_4h_to_h",
    ):
        return _DOWN
    return _OTHER


def layer_type(mix: str, weight: Weight, layer: int, attention: int, facts: MixFacts) -> str:
    """The GGUF type of a matrix of block ``layer``, which is the ``attention``-th with attention values."""
    base = MIXES[mix]
    if base in _PLAIN:
        return base
    if mix == "mxfp4_moe":
        return "MXFP4" if weight.part == EXPERTS else base
    kind = role(weight, fused=facts.fused)
    if kind == _VALUES:
        return _values_type(mix, base, attention, facts)
    if kind == _KEYS:
        return "Q8_0" if facts.experts == 8 else base
    if kind == _DOWN:
        return _down_type(mix, base, layer, facts)
    if kind == _OUTPUT:
        return _output_type(mix, base, facts)
    return base


def more_bits(index: int, count: int) -> bool:
    """``more(i, n)`` of the module."""
    return index < count // 8 or index >= 7 * count // 8 or (index - count // 8) % 3 == 2


def _values_type(mix: str, base: str, index: int, facts: MixFacts) -> str:
    found = base
    if mix == "q2_k":
        found = "Q4_K" if facts.group >= 4 else "Q3_K"
    elif mix == "q3_k_m":
        found = "Q5_K" if index < 2 else "Q4_K"
    elif mix in ("q4_k_m", "q5_k_m") and more_bits(index, facts.attention_layers):
        found = "Q6_K"
    elif mix == "q4_k_s" and index < 4:
        found = "Q5_K"
    if facts.is_70b and found in ("Q3_K", "Q4_K"):
        found = "Q5_K"
    return "Q8_0" if facts.experts == 8 else found


def _down_type(mix: str, base: str, layer: int, facts: MixFacts) -> str:
    count = facts.layers
    more = more_bits(layer, count)
    if mix == "q2_k":
        return "Q3_K"
    if mix == "q3_k_m":
        if layer < count // 16:
            return "Q5_K"
        return "Q4_K" if not facts.falcon or more else "Q3_K"
    if mix == "q4_k_m" and facts.falcon:
        return "Q6_K" if layer < count // 16 else "Q5_K" if more else "Q4_K"
    if mix in ("q4_k_m", "q5_k_m") and more:
        return "Q6_K"
    if mix == "q4_k_s" and not facts.falcon and layer < count // 8:
        return "Q5_K"
    return base


def _output_type(mix: str, base: str, facts: MixFacts) -> str:
    if facts.falcon:
        return base
    if facts.experts == 8:
        return "Q5_K" if mix in ("q2_k", "q3_k_m", "q4_k_s", "q4_k_m") else base
    return {"q2_k": "Q3_K", "q3_k_m": "Q4_K"}.get(mix, base)


def outside_type(mix: str, weight: Weight, *, tied: bool, columns: int, falcon: bool = False) -> str:
    """The type of the output matrix or of a token embedding."""
    base = MIXES[mix]
    if base in _PLAIN or weight.part not in (EMBEDDING, HEAD):
        return base
    if weight.part == EMBEDDING and not tied:
        return base
    block = _BLOCKS[base][0]
    if mix == "mxfp4_moe" or falcon or columns % block or base == "Q8_0":
        return "Q8_0"
    return "Q6_K"


def fit_type(ggml_type: str, columns: int) -> str:
    """``ggml_type`` where a row is a whole number of its blocks, else its fallback, else F16."""
    if columns % _BLOCKS[ggml_type][0] == 0:
        return ggml_type
    second = _FALLBACK.get(ggml_type, ggml_type)
    return second if columns % _BLOCKS[second][0] == 0 else "F16"


def typed_bytes(elements: int, ggml_type: str) -> int:
    """Bytes of ``elements`` values in whole blocks."""
    block, size = _BLOCKS[ggml_type]
    return elements // block * size


def stays_f32(weight: Weight) -> bool:
    """Vectors, routers, norms and short convolutions are never quantised."""
    last = weight.name.rsplit(".", 1)[-1]
    return (
        len(weight.shape) < 2
        or weight.part in (ROUTER, "norm")
        or last in ("A_log", "ape")
        or "conv1d" in last
        or weight.name.endswith(("_bias", ".bias", "conv.conv"))
    )
