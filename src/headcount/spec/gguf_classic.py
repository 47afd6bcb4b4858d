"""GGUF architectures with keys of their own: GPT-2, GPT-NeoX, Falcon, BLOOM, MPT, Phi, StableLM, ChatGLM.

Their Hugging Face classes spell sizes differently (``n_embd``, ``d_model``), so each has its own translation.
"""

from __future__ import annotations

from headcount.spec.gguf_decoder import (
    attention_biases,
    dense_width,
    even_heads,
    ffn_bias,
    heads,
    one_bias_flag,
    sizes,
)
from headcount.spec.gguf_dense import PRE_NORMS, demand_norms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headcount.spec.gguf_facts import Facts


def _plain(facts: Facts, *, gated: bool = False) -> dict[str, Any]:
    """Sizes, even heads and feed-forward width."""
    keys = {**sizes(facts), **heads(facts)}
    even_heads(facts, keys)
    keys["intermediate_size"] = dense_width(facts, gated=gated)
    return keys


def _demand_biases(facts: Facts, *, gated: bool = False) -> None:
    """Attention and feed-forward must have all their biases: the class has no switch for them."""
    if not (one_bias_flag(facts) and ffn_bias(facts, gated=gated)):
        raise facts.unsupported("biases are missing that the class always has")


def _four_times(facts: Facts, keys: dict[str, Any]) -> None:
    if keys["intermediate_size"] != 4 * keys["hidden_size"]:
        raise facts.unsupported(
            f"a feed-forward of {keys['intermediate_size']}; the class has 4 x {keys['hidden_size']}"
        )


def gpt2(facts: Facts) -> dict[str, Any]:
    """GPT-2, and StarCoder 1 (GPT-BigCode), which shares one key/value head among all queries."""
    keys = _plain(facts)
    demand_norms(facts, PRE_NORMS, bias=True)
    _demand_biases(facts)
    out = {
        "model_type": "gpt2",
        "vocab_size": keys["vocab_size"],
        "n_embd": keys["hidden_size"],
        "n_layer": keys["num_hidden_layers"],
        "n_head": keys["num_attention_heads"],
        "n_positions": facts.outside_extent("position_embd.weight", 0),
        "n_inner": keys["intermediate_size"],
        "tie_word_embeddings": keys["tie_word_embeddings"],
    }
    kv, query = keys["num_key_value_heads"], keys["num_attention_heads"]
    if kv not in ((1, query) if facts.architecture == "starcoder" else (query,)):
        raise facts.unsupported(f"{kv} key/value heads for {query} query heads")
    if facts.architecture == "starcoder":
        out.update(model_type="gpt_bigcode", multi_query=kv == 1 and query > 1)
    return out


def gptneox(facts: Facts) -> dict[str, Any]:
    """GPT-NeoX and Pythia."""
    keys = {"model_type": "gpt_neox", **_plain(facts)}
    demand_norms(facts, PRE_NORMS, bias=True)
    keys["attention_bias"] = one_bias_flag(facts)
    if not ffn_bias(facts, gated=False):
        raise facts.unsupported("biases are missing that the class always has")
    if keys.pop("num_key_value_heads") != keys["num_attention_heads"]:
        raise facts.unsupported("grouped key/value heads")
    keys["use_parallel_residual"] = facts.true("use_parallel_residual")
    return keys


def falcon(facts: Facts) -> dict[str, Any]:
    """Falcon 7B (one key/value head), 40B and 180B (grouped, two norms), 11B (grouped, one norm)."""
    keys = {"model_type": "falcon", **_plain(facts)}
    demand_norms(facts, ("attn_norm",), bias=True)
    two_norms = facts.all_or_none(["attn_norm_2.weight", "attn_norm_2.bias"])
    kv, query = keys.pop("num_key_value_heads"), keys["num_attention_heads"]
    grouped = two_norms or kv not in (1, query)
    biased = one_bias_flag(facts)
    if biased != ffn_bias(facts, gated=False):
        raise facts.unsupported("biases in attention or feed-forward alone are not supported")
    keys.update(
        ffn_hidden_size=keys.pop("intermediate_size"),
        new_decoder_architecture=grouped,
        num_kv_heads=kv,
        multi_query=grouped or kv == 1,  # grouped models state it too, without effect
        parallel_attn=True,
        bias=biased,
        alibi=False,
        tie_word_embeddings=True,  # older files store the table twice; the class ties it all the same
    )
    if grouped:
        keys["num_ln_in_parallel_attn"] = 2 if two_norms else 1
    return keys


def bloom(facts: Facts) -> dict[str, Any]:
    """BLOOM: positions by slopes, a norm after the embedding, a feed-forward of 4 D."""
    keys = _plain(facts)
    _four_times(facts, keys)
    demand_norms(facts, PRE_NORMS, bias=True)
    _demand_biases(facts)
    for name in ("token_embd_norm.weight", "token_embd_norm.bias"):
        facts.outside_extent(name, 0)
    return {
        "model_type": "bloom",
        "vocab_size": keys["vocab_size"],
        "hidden_size": keys["hidden_size"],
        "n_layer": keys["num_hidden_layers"],
        "n_head": keys["num_attention_heads"],
        "seq_length": keys["max_position_embeddings"],
        "tie_word_embeddings": True,  # as for Falcon
    }


def mpt(facts: Facts) -> dict[str, Any]:
    """MPT: no biases, positions by slopes, a feed-forward of 4 D."""
    keys = _plain(facts)
    _four_times(facts, keys)
    demand_norms(facts, PRE_NORMS)
    if keys["num_key_value_heads"] != keys["num_attention_heads"]:
        raise facts.unsupported("grouped key/value heads")
    return {
        "model_type": "mpt",
        "vocab_size": keys["vocab_size"],
        "d_model": keys["hidden_size"],
        "n_layers": keys["num_hidden_layers"],
        "n_heads": keys["num_attention_heads"],
        "max_seq_len": keys["max_position_embeddings"],
        "expansion_ratio": 4,
        "tie_word_embeddings": keys["tie_word_embeddings"],
    }


def phi2(facts: Facts) -> dict[str, Any]:
    """Phi 1 to 2: one LayerNorm for attention and feed-forward in parallel, biases everywhere."""
    keys = {"model_type": "phi", **_plain(facts)}
    demand_norms(facts, ("attn_norm",), bias=True)
    _demand_biases(facts)
    facts.outside_extent("output.bias", 0)
    return {**keys, "qk_layernorm": False}


def stablelm(facts: Facts) -> dict[str, Any]:
    """StableLM: whether residuals are parallel shows in the missing second norm."""
    keys = {"model_type": "stablelm", **_plain(facts, gated=True)}
    demand_norms(facts, ("attn_norm",), bias=True)
    second = facts.all_or_none(["ffn_norm.weight", "ffn_norm.bias"])
    qkv, output = attention_biases(facts)
    if output:
        raise facts.unsupported("a bias on the output projection")
    keys.update(
        use_qkv_bias=qkv,
        use_parallel_residual=not second,
        qk_layernorm=facts.all_or_none(["attn_q_norm.weight", "attn_k_norm.weight"]),
    )
    return keys


def chatglm(facts: Facts) -> dict[str, Any]:
    """ChatGLM 2 and 3, GLM-4-9B: the config of the remote code that these files are made from."""
    keys = {**sizes(facts), **heads(facts)}
    demand_norms(facts, PRE_NORMS)
    qkv, output = attention_biases(facts)
    if output or ffn_bias(facts):
        raise facts.unsupported("biases beyond queries, keys and values")
    return {
        "model_type": "chatglm",
        "num_layers": keys["num_hidden_layers"],
        "hidden_size": keys["hidden_size"],
        "ffn_hidden_size": dense_width(facts),
        "num_attention_heads": keys["num_attention_heads"],
        "kv_channels": keys["head_dim"],
        "multi_query_attention": True,
        "multi_query_group_num": keys["num_key_value_heads"],
        "padded_vocab_size": keys["vocab_size"],
        "seq_length": keys["max_position_embeddings"],
        "add_qkv_bias": qkv,
        "add_bias_linear": False,
        "tie_word_embeddings": keys["tie_word_embeddings"],
    }


TRANSLATIONS = {
    "gpt2": gpt2,
    "starcoder": gpt2,
    "gptneox": gptneox,
    "falcon": falcon,
    "bloom": bloom,
    "mpt": mpt,
    "phi2": phi2,
    "stablelm": stablelm,
    "chatglm": chatglm,
}


def translate(facts: Facts) -> dict[str, Any]:
    """Return the Hugging Face config of one of these architectures."""
    return TRANSLATIONS[facts.architecture](facts)
