"""GGUF architectures with experts, ordinary or latent attention, as Hugging Face keys.

Expert widths and counts come from the stacked tensors (``ffn_down_exps``: E x D x F); metadata says how many
are used.
"""

from __future__ import annotations

from headcount.spec.gguf_decoder import (
    Mixture,
    attention_biases,
    dense_width,
    even_heads,
    heads,
    one_bias_flag,
    sizes,
    windows,
)
from headcount.spec.gguf_dense import PRE_NORMS, demand_norms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headcount.spec.gguf_facts import Facts


def _base(facts: Facts, model_type: str, norms: tuple[str, ...] = PRE_NORMS) -> dict[str, Any]:
    demand_norms(facts, norms)
    return {"model_type": model_type, **sizes(facts), **heads(facts)}


def mixtral(facts: Facts) -> dict[str, Any]:
    """Mixtral: experts in every layer, no biases."""
    mixture = Mixture(facts)
    mixture.everywhere(facts)
    return {
        **_base(facts, "mixtral"),
        "intermediate_size": mixture.width,
        "num_local_experts": mixture.experts,
        "num_experts_per_tok": mixture.top_k,
        "sliding_window": None,
    }


def qwen_moe(facts: Facts) -> dict[str, Any]:
    """Qwen 2 mixtures have biases and a gated shared expert, Qwen 3 mixtures have query/key norms."""
    old = facts.architecture == "qwen2moe"
    names = {"qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe", "qwen3vlmoe": "qwen3_vl_moe_text"}
    keys = _base(facts, names[facts.architecture])
    mixture = Mixture(facts)
    if mixture.dense_layers:
        raise facts.unsupported("dense layers among the mixtures")
    keys.update(
        # Where all layers are mixtures the dense width is a leftover of the config; it shapes no tensor.
        intermediate_size=facts.number("feed_forward_length", mixture.width) or mixture.width,
        num_experts=mixture.experts,
        num_experts_per_tok=mixture.top_k,
        moe_intermediate_size=mixture.width,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        use_sliding_window=False,
        sliding_window=None,
    )
    if old:
        qkv, output = attention_biases(facts)
        if output:
            raise facts.unsupported("a bias on the output projection")
        facts.demand("ffn_gate_inp_shexp.weight")
        even_heads(facts, keys)
        keys.update(qkv_bias=qkv, shared_expert_intermediate_size=mixture.shared_width)
    else:
        facts.demand("attn_q_norm.weight", "attn_k_norm.weight")
        mixture.everywhere(facts)
        keys["attention_bias"] = one_bias_flag(facts)
    return keys


def phimoe(facts: Facts) -> dict[str, Any]:
    """Phi-3.5-MoE: LayerNorms with biases."""
    keys = _base(facts, "phimoe")
    demand_norms(facts, PRE_NORMS, bias=True)
    mixture = Mixture(facts)
    mixture.everywhere(facts)
    even_heads(facts, keys)
    keys.update(
        intermediate_size=mixture.width,
        num_local_experts=mixture.experts,
        num_experts_per_tok=mixture.top_k,
        attention_bias=one_bias_flag(facts),
        lm_head_bias=facts.has_outside("output.bias"),
        sliding_window=facts.optional("attention.sliding_window") or None,
    )
    return keys


def olmoe(facts: Facts) -> dict[str, Any]:
    """OLMoE: norms over whole query and key projections."""
    keys = _base(facts, "olmoe")
    facts.demand("attn_q_norm.weight", "attn_k_norm.weight")
    mixture = Mixture(facts)
    mixture.everywhere(facts)
    even_heads(facts, keys)
    keys.update(
        intermediate_size=mixture.width,
        num_experts=mixture.experts,
        num_experts_per_tok=mixture.top_k,
        attention_bias=one_bias_flag(facts),
    )
    return keys


def _leading_dense(facts: Facts, mixture: Mixture) -> dict[str, Any]:
    """Keys of the DeepSeek-like mixtures: dense layers first, shared experts beside the routed ones."""
    first = mixture.leading_dense(facts)
    dense = mixture.dense_layers
    return {
        "intermediate_size": dense_width(facts, dense) if dense else facts.number("feed_forward_length"),
        "moe_intermediate_size": mixture.width,
        "n_routed_experts": mixture.experts,
        "n_shared_experts": mixture.shared_experts(facts),
        "num_experts_per_tok": mixture.top_k,
        "first_k_dense_replace": first,
    }


def glm4_moe(facts: Facts) -> dict[str, Any]:
    """GLM-4.5, and DeepSeek-MoE (the first), which has the same blocks without biases and query/key norms."""
    deepseek = facts.architecture == "deepseek"
    norms = PRE_NORMS if deepseek else ("attn_norm", "post_attention_norm")
    keys = _base(facts, "glm4_moe", norms)
    qkv, output = attention_biases(facts)
    if output:
        raise facts.unsupported("a bias on the output projection")
    keys.update(
        _leading_dense(facts, Mixture(facts)),
        attention_bias=qkv,
        use_qk_norm=facts.all_or_none(["attn_q_norm.weight", "attn_k_norm.weight"]),
    )
    return keys


def gpt_oss(facts: Facts) -> dict[str, Any]:
    """gpt-oss: sinks, biases on everything, even layers slide."""
    keys = _base(facts, "gpt_oss", ("attn_norm", "post_attention_norm"))
    mixture = Mixture(facts)
    mixture.everywhere(facts)
    facts.demand("attn_sinks.weight", "ffn_gate_inp.bias", "ffn_down_exps.bias", "ffn_up_exps.bias")
    facts.demand("ffn_gate_exps.bias")
    if not one_bias_flag(facts):
        raise facts.unsupported("biases are missing that the class always has")
    keys.update(
        intermediate_size=mixture.width,
        num_local_experts=mixture.experts,
        num_experts_per_tok=mixture.top_k,
        attention_bias=True,
        **windows(facts, period=2, window=facts.number("attention.sliding_window", minimum=1)),
    )
    return keys


def granitemoe(facts: Facts) -> dict[str, Any]:
    """Granite 3 mixtures, with or without a shared expert."""
    mixture = Mixture(facts)
    if mixture.dense_layers:
        raise facts.unsupported("dense layers among the mixtures")
    keys = _base(facts, "granitemoeshared" if mixture.shared_width else "granitemoe")
    even_heads(facts, keys)
    keys.update(
        intermediate_size=mixture.width,
        num_local_experts=mixture.experts,
        num_experts_per_tok=mixture.top_k,
        attention_bias=one_bias_flag(facts),
    )
    if mixture.shared_width:
        keys["shared_intermediate_size"] = mixture.shared_width
    return keys


def llama4(facts: Facts) -> dict[str, Any]:
    """Llama 4: a shared expert as wide as a routed one, chunks of 8192 tokens in three layers of four."""
    keys = _base(facts, "llama4_text")
    mixture = Mixture(facts)
    if mixture.shared_experts(facts) != 1:
        raise facts.unsupported(
            f"a shared expert of {mixture.shared_width} beside experts of {mixture.width}"
        )
    dense = mixture.dense_layers
    # The file states no chunk: llama.cpp fixes 8192, which all released models have; a window of 0 is off.
    chunk = None if facts.optional("attention.sliding_window") == 0 else 8192
    kinds = windows(facts, period=4, window=chunk)["layer_types"]
    keys.update(
        intermediate_size=mixture.width,
        intermediate_size_mlp=dense_width(facts, dense) if dense else facts.number("feed_forward_length"),
        num_local_experts=mixture.experts,
        num_experts_per_tok=mixture.top_k,
        moe_layers=mixture.layers,
        interleave_moe_layer_step=facts.number("interleave_moe_layer_step", minimum=1),
        attention_bias=one_bias_flag(facts),
        attention_chunk_size=chunk or 8192,
        layer_types=[kind.replace("sliding", "chunked") for kind in kinds],
    )
    return keys


def ernie45_moe(facts: Facts) -> dict[str, Any]:
    """ERNIE 4.5 mixtures: experts in every ``moe_layer_interval``-th layer of a range."""
    keys = _base(facts, "ernie4_5_moe")
    mixture = Mixture(facts)
    if one_bias_flag(facts):
        raise facts.unsupported("biases")
    first, last = mixture.layers[0], mixture.layers[-1]
    step = mixture.layers[1] - first if len(mixture.layers) > 1 else 1
    if mixture.layers != [i for i in range(first, last + 1) if (i + 1) % step == 0]:
        raise facts.unsupported("mixtures at irregular layers")
    dense = mixture.dense_layers
    keys.update(
        intermediate_size=dense_width(facts, dense) if dense else facts.number("feed_forward_length"),
        moe_num_experts=mixture.experts,
        moe_k=mixture.top_k,
        moe_intermediate_size=mixture.width,
        moe_num_shared_experts=mixture.shared_experts(facts),
        moe_layer_start_index=first,
        moe_layer_end_index=last,
        moe_layer_interval=step,
        use_bias=False,
    )
    return keys


def hunyuan_moe(facts: Facts) -> dict[str, Any]:
    """Hunyuan-A13B: query/key norms, one shared expert as wide as a routed one in every layer."""
    keys = _base(facts, "hunyuan_v1_moe")
    facts.demand("attn_q_norm.weight", "attn_k_norm.weight")
    mixture = Mixture(facts)
    if mixture.dense_layers or mixture.shared_experts(facts) != 1:
        raise facts.unsupported(
            f"{len(mixture.dense_layers)} dense layers, shared width {mixture.shared_width}"
        )
    keys.update(
        intermediate_size=mixture.width,
        num_experts=mixture.experts,
        moe_topk=mixture.top_k,
        attention_bias=one_bias_flag(facts),
    )
    return keys


def deepseek2(facts: Facts) -> dict[str, Any]:
    """DeepSeek V2, V3, V3.2 and Kimi K2: latent attention.

    r = kv_lora_rank, rope = rope.dimension_count. Newer files call the latent the key, key_length = r + rope,
    with key_length_mla = nope + rope; older ones have key_length = nope + rope and no ``_mla`` keys.
    """
    rope = facts.number("rope.dimension_count", minimum=1)
    rank = facts.number("attention.kv_lora_rank", minimum=1)
    key = facts.number("attention.key_length_mla", facts.number("attention.key_length", minimum=1))
    value = facts.number("attention.value_length_mla", facts.number("attention.value_length", minimum=1))
    query = facts.number("attention.head_count", minimum=1)
    low_rank = facts.has("attn_q_a.weight")
    query_rank = facts.number("attention.q_lora_rank", minimum=1) if low_rank else None
    _check_latent(facts, query=query, rank=rank, rope=rope, nope=key - rope, value=value)
    demand_norms(facts, (*PRE_NORMS, "attn_kv_a_norm", *(("attn_q_a_norm",) if low_rank else ())))
    mixture = Mixture(facts)
    sparse = facts.architecture == "deepseek32"
    # V2 routes by softmax, V3 by a sigmoid and a correction bias, which only V3's files hold.
    model_type = "deepseek_v32" if sparse else "deepseek_v3" if mixture.router_bias else "deepseek_v2"
    keys = {
        "model_type": model_type,
        **sizes(facts),
        "num_attention_heads": query,
        "num_key_value_heads": query,
        "q_lora_rank": query_rank,
        "kv_lora_rank": rank,
        "qk_rope_head_dim": rope,
        "qk_nope_head_dim": key - rope,
        "v_head_dim": value,
        "attention_bias": False,
        **_leading_dense(facts, mixture),
    }
    if sparse:
        keys.update(_indexer(facts))
    return keys


def _check_latent(facts: Facts, *, query: int, rank: int, rope: int, nope: int, value: int) -> None:
    """Compare the projections of latent attention with the stated widths."""
    expected = {"attn_kv_a_mqa.weight": (0, rank + rope), "attn_output.weight": (-1, query * value)}
    expected["attn_q_b.weight" if facts.has("attn_q_a.weight") else "attn_q.weight"] = (
        0,
        query * (nope + rope),
    )
    if facts.has("attn_kv_b.weight"):
        expected["attn_kv_b.weight"] = (0, query * (nope + value))
    else:
        expected.update({"attn_k_b.weight": (-1, nope), "attn_v_b.weight": (-2, value)})
    facts.allow("attn_k_b.weight", "attn_v_b.weight")  # some files carry both forms
    facts.demand(*expected)
    for name, (axis, width) in expected.items():
        stored = facts.extent(name, axis)
        if stored != width:
            raise facts.damaged(f"{name} is {stored} wide, the stated widths ask for {width}")


def _indexer(facts: Facts) -> dict[str, Any]:
    """Keys of DeepSeek-V3.2's sparse-attention indexer."""
    facts.demand("indexer.attn_k.weight", "indexer.attn_q_b.weight", "indexer.proj.weight")
    facts.demand("indexer.k_norm.weight", "indexer.k_norm.bias")
    return {
        "index_n_heads": facts.number("attention.indexer.head_count", minimum=1),
        "index_head_dim": facts.number("attention.indexer.key_length", minimum=1),
        "index_topk": facts.number("attention.indexer.top_k", minimum=1),
    }


TRANSLATIONS = {
    "qwen2moe": qwen_moe,
    "qwen3moe": qwen_moe,
    "qwen3vlmoe": qwen_moe,
    "phimoe": phimoe,
    "olmoe": olmoe,
    "deepseek": glm4_moe,
    "glm4moe": glm4_moe,
    "gpt-oss": gpt_oss,
    "granitemoe": granitemoe,
    "llama4": llama4,
    "ernie4_5-moe": ernie45_moe,
    "hunyuan-moe": hunyuan_moe,
    "deepseek2": deepseek2,
    "deepseek32": deepseek2,
}


def translate(facts: Facts) -> dict[str, Any]:
    """Return the Hugging Face config of one of these architectures."""
    return TRANSLATIONS[facts.architecture](facts)
