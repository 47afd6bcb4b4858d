"""GGUF architectures whose blocks are all alike and dense, as Hugging Face keys: one ``Recipe`` each.

A recipe demands the tensors its class always has and turns optional ones (biases) into config flags. Rules
that the metadata leaves out (Gemma 3: every sixth layer full) are llama.cpp's, ``src/models/*.cpp``, 2026-11.
"""

from __future__ import annotations

from headcount.record import Record
from headcount.spec.gguf_decoder import (
    attention_biases,
    dense_width,
    even_heads,
    ffn_bias,
    heads,
    one_bias_flag,
    sizes,
    windows,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from headcount.spec.gguf_facts import Facts

PRE_NORMS = ("attn_norm", "ffn_norm")
POST_NORMS = ("post_attention_norm", "post_ffw_norm")
SANDWICH_NORMS = (*PRE_NORMS, *POST_NORMS)


def _nothing(facts: Facts) -> dict[str, Any]:
    return {}


class Recipe(Record):
    """What one architecture has besides grouped attention and a feed-forward.

    bias_key      config flag for biases on all four projections
    qkv_bias_key  config flag for biases on query, key and value only
    qkv_bias      the class always has those three
    mlp_bias_key  config flag for biases in the feed-forward
    even          the class computes H = D / N and has no key for another width
    layer_norm    norms have biases
    more          further keys
    """

    model_type: str
    bias_key: str | None = None
    qkv_bias_key: str | None = None
    qkv_bias: bool = False
    mlp_bias_key: str | None = None
    even: bool = False
    qk_norm: bool = False
    norms: tuple[str, ...] = PRE_NORMS
    layer_norm: bool = False
    gated: bool = True
    more: Callable[[Facts], dict[str, Any]] = _nothing


def follow(facts: Facts, recipe: Recipe) -> dict[str, Any]:
    """Return the config of a dense decoder; ModelFileError or UnsupportedModelError if the file differs."""
    keys = {"model_type": recipe.model_type, **sizes(facts), **heads(facts)}
    if recipe.even:
        even_heads(facts, keys)
    keys["intermediate_size"] = dense_width(facts, gated=recipe.gated)
    demand_norms(facts, recipe.norms, bias=recipe.layer_norm)
    if recipe.qk_norm:
        facts.demand("attn_q_norm.weight", "attn_k_norm.weight")
    if recipe.bias_key:
        keys[recipe.bias_key] = one_bias_flag(facts)
    elif recipe.qkv_bias or recipe.qkv_bias_key:
        qkv, output = attention_biases(facts)
        if output or (recipe.qkv_bias and not qkv):
            raise facts.unsupported("biases belong on queries, keys and values, and only there")
        if recipe.qkv_bias_key:
            keys[recipe.qkv_bias_key] = qkv
    if recipe.mlp_bias_key:
        bias = ffn_bias(facts, gated=recipe.gated)
        if recipe.mlp_bias_key == recipe.bias_key and bias != keys[recipe.mlp_bias_key]:
            raise facts.unsupported("biases in attention or feed-forward alone are not supported")
        keys[recipe.mlp_bias_key] = bias
    return {**keys, **recipe.more(facts)}


def demand_norms(facts: Facts, names: tuple[str, ...], *, bias: bool = False) -> None:
    """Demand the gains of the named norms in every layer, and their shifts when ``bias``."""
    facts.demand(*(f"{name}.weight" for name in names))
    if bias:
        facts.demand(*(f"{name}.bias" for name in names))
        facts.allow("output_norm.bias")


def _llama(facts: Facts) -> dict[str, Any]:
    """Llama, Mistral and Mixtral share one architecture name; experts make it Mixtral."""
    if facts.number("expert_count", 0):
        from headcount.spec.gguf_mixture import mixtral

        return mixtral(facts)
    keys = follow(facts, Recipe(model_type="llama", bias_key="attention_bias", mlp_bias_key="mlp_bias"))
    window = facts.number("attention.sliding_window", 0)
    if window:
        if keys.pop("attention_bias") or keys.pop("mlp_bias"):
            raise facts.unsupported("a sliding window beside biases is not supported")
        keys.update(model_type="mistral", sliding_window=window)
    return keys


def _no_window(facts: Facts) -> dict[str, Any]:
    """The class could have a window, the file carries none: every layer is full, as llama.cpp runs it."""
    return {"sliding_window": None}


def _qwen(facts: Facts) -> dict[str, Any]:
    return {"use_sliding_window": False, "sliding_window": None}


def _gemma2(facts: Facts) -> dict[str, Any]:
    # Files of mid-2024 lack the window; llama.cpp takes 4096, which every released Gemma 2 has.
    return windows(facts, period=2, window=facts.number("attention.sliding_window", 4096))


def _gemma3(facts: Facts) -> dict[str, Any]:
    return windows(facts, period=6, window=facts.optional("attention.sliding_window"))


def _phi3(facts: Facts) -> dict[str, Any]:
    """Phi-3 slides in every layer when the file has a window (4k: 2047)."""
    return {"sliding_window": facts.optional("attention.sliding_window") or None}


def _cohere2(facts: Facts) -> dict[str, Any]:
    return windows(facts, period=4, window=facts.number("attention.sliding_window"))


def _olmo2(facts: Facts) -> dict[str, Any]:
    """OLMo 3 is stored under the name of OLMo 2, with a window: three sliding layers, then a full one."""
    window = facts.number("attention.sliding_window", 0)
    return {"model_type": "olmo3", **windows(facts, period=4, window=window)} if window else {}


def _exaone4(facts: Facts) -> dict[str, Any]:
    # Early files lack the window: llama.cpp takes 4096 for the 64 layers of the 32B, none for the 1.2B.
    default = 4096 if facts.layer_count == 64 else 0
    return windows(facts, period=4, window=facts.number("attention.sliding_window", default))


def _command_r(facts: Facts) -> dict[str, Any]:
    """Command-R+ normalises queries and keys."""
    return {"use_qk_norm": facts.all_or_none(["attn_q_norm.weight", "attn_k_norm.weight"])}


_ALL = "attention_bias"
_GEMMA = Recipe(model_type="gemma", bias_key=_ALL)
_QWEN3 = Recipe(model_type="qwen3", bias_key=_ALL, qk_norm=True, more=_qwen)
RECIPES = {
    "mistral3": Recipe(model_type="ministral3", more=_no_window),
    # MiniCPM differs from Llama by three scale factors, which weigh nothing.
    "minicpm": Recipe(model_type="llama", bias_key=_ALL, mlp_bias_key="mlp_bias"),
    "qwen2": Recipe(model_type="qwen2", qkv_bias=True, even=True, more=_qwen),
    "qwen2vl": Recipe(model_type="qwen2_vl_text", qkv_bias=True, even=True, more=_qwen),
    "qwen3": _QWEN3,
    "qwen3vl": _QWEN3.replace(model_type="qwen3_vl_text"),
    "gemma": _GEMMA,
    "gemma2": _GEMMA.replace(model_type="gemma2", norms=SANDWICH_NORMS, more=_gemma2),
    "gemma3": _GEMMA.replace(model_type="gemma3_text", norms=SANDWICH_NORMS, qk_norm=True, more=_gemma3),
    "phi3": Recipe(model_type="phi3", even=True, more=_phi3),
    # StarCoder 2 was trained with a window of 4096; its files do not carry it, llama.cpp does not apply it.
    "starcoder2": Recipe(
        model_type="starcoder2",
        bias_key="use_bias",
        mlp_bias_key="use_bias",
        even=True,
        layer_norm=True,
        gated=False,
        more=_no_window,
    ),
    "command-r": Recipe(model_type="cohere", bias_key=_ALL, even=True, norms=("attn_norm",), more=_command_r),
    "cohere2": Recipe(model_type="cohere2", bias_key=_ALL, even=True, norms=("attn_norm",), more=_cohere2),
    "olmo": Recipe(model_type="olmo", bias_key=_ALL, even=True, norms=()),
    "olmo2": Recipe(
        model_type="olmo2", bias_key=_ALL, even=True, norms=POST_NORMS, qk_norm=True, more=_olmo2
    ),
    "glm4": Recipe(model_type="glm4", qkv_bias_key=_ALL, norms=SANDWICH_NORMS),
    "granite": Recipe(model_type="granite", bias_key=_ALL, mlp_bias_key="mlp_bias", even=True),
    "nemotron": Recipe(
        model_type="nemotron", bias_key=_ALL, mlp_bias_key="mlp_bias", layer_norm=True, gated=False
    ),
    "smollm3": Recipe(model_type="smollm3", bias_key=_ALL, mlp_bias_key="mlp_bias", even=True, more=_qwen),
    "exaone": Recipe(model_type="exaone", bias_key=_ALL),
    "exaone4": Recipe(model_type="exaone4", norms=POST_NORMS, qk_norm=True, more=_exaone4),
    "internlm2": Recipe(model_type="internlm2", bias_key="bias", even=True),
    "baichuan": Recipe(model_type="baichuan", even=True),
    "ernie4_5": Recipe(model_type="ernie4_5", bias_key="use_bias", mlp_bias_key="use_bias"),
    "hunyuan-dense": Recipe(model_type="hunyuan_v1_dense", bias_key=_ALL, qk_norm=True),
    "seed_oss": Recipe(model_type="seed_oss", qkv_bias_key=_ALL, norms=("attn_norm", "post_attention_norm")),
    "arcee": Recipe(model_type="arcee", bias_key=_ALL, mlp_bias_key="mlp_bias", gated=False),
    "apertus": Recipe(
        model_type="apertus", bias_key=_ALL, mlp_bias_key="mlp_bias", even=True, qk_norm=True, gated=False
    ),
}


def translate(facts: Facts) -> dict[str, Any]:
    """Return the Hugging Face config of a dense architecture."""
    if facts.architecture == "llama":
        return _llama(facts)
    keys = follow(facts, RECIPES[facts.architecture])
    if facts.number("expert_count", 0):
        raise facts.unsupported("experts are stated, dense layers are stored")
    return keys
