"""Gemma 3n and 4 in GGUF, as Hugging Face keys: shared caches, per-layer embeddings, two head widths."""

from __future__ import annotations

from headcount.spec.gguf_decoder import Mixture, dense_width, heads, one_bias_flag, sizes, windows
from headcount.spec.gguf_dense import SANDWICH_NORMS, demand_norms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headcount.spec.gguf_facts import Facts

PER_LAYER = ("inp_gate.weight", "proj.weight", "post_norm.weight")


def _per_layer_embeddings(facts: Facts) -> dict[str, Any]:
    """Width and vocabulary of the per-layer embeddings (``per_layer_token_embd``: V x L P)."""
    width = facts.number("embedding_length_per_layer_input", 0)
    if not width:
        return {"hidden_size_per_layer_input": 0}
    facts.demand(*PER_LAYER)
    for name in ("per_layer_model_proj.weight", "per_layer_proj_norm.weight"):
        facts.outside_extent(name, 0)
    if facts.outside_extent("per_layer_token_embd.weight", -1) != width * facts.layer_count:
        raise facts.damaged(f"per_layer_token_embd is not {facts.layer_count} x {width} wide")
    return {
        "hidden_size_per_layer_input": width,
        "vocab_size_per_layer_input": facts.outside_extent("per_layer_token_embd.weight", 0),
    }


def _own_cache(facts: Facts, shared: int) -> list[int]:
    """Return the layers that store keys and values; the last ``shared`` may only reuse them.

    Some converters drop the projections that these layers never use, others keep them.
    """
    if shared >= facts.layer_count:
        raise facts.damaged(f"{shared} of {facts.layer_count} layers share caches")
    return list(range(facts.layer_count - shared))


def gemma3n(facts: Facts) -> dict[str, Any]:
    """Gemma 3n: AltUp streams, LAuReL, the last layers reuse earlier caches."""
    # llama.cpp fixes 20 storing layers; newer files state how many share.
    shared = facts.number("attention.shared_kv_layers", max(facts.layer_count - 20, 0))
    keys = {"model_type": "gemma3n_text", **sizes(facts), **heads(facts, _own_cache(facts, shared))}
    demand_norms(facts, (*SANDWICH_NORMS, "altup_router_norm", "laurel_post_norm"))
    facts.demand("attn_q.weight", "attn_q_norm.weight", "attn_output.weight")
    facts.allow("attn_k_norm.weight")
    facts.demand("altup_correct_coef.weight", "altup_predict_coef.weight", "altup_router.weight")
    facts.demand("altup_correct_scale.weight", "laurel_l.weight", "laurel_r.weight")
    streams = facts.number("altup.num_inputs", minimum=2)
    for name in ("altup_proj.weight", "altup_unembd_proj.weight"):
        if facts.outside_extent(name, 0) != streams - 1:
            raise facts.damaged(f"{name} is not made for {streams} streams")
    keys.update(
        intermediate_size=dense_width(facts),
        num_kv_shared_layers=shared,
        altup_num_inputs=streams,
        laurel_rank=facts.extent("laurel_l.weight", 0),
        **_per_layer_embeddings(facts),
        **windows(facts, period=5, window=facts.number("attention.sliding_window", minimum=1)),
    )
    return keys


def gemma4(facts: Facts) -> dict[str, Any]:
    """Gemma 4: full layers have wider heads, maybe fewer key/value heads, and values that are the keys."""
    kinds = windows(facts, period=6, window=facts.number("attention.sliding_window", minimum=1))
    full = [i for i, kind in enumerate(kinds["layer_types"]) if kind == "full_attention"]
    shared = facts.number("attention.shared_kv_layers", 0)
    own = set(_own_cache(facts, shared))
    wide = facts.number("attention.key_length", minimum=1)
    narrow = facts.number("attention.key_length_swa", minimum=1)
    query = facts.number("attention.head_count", minimum=1)
    stated = facts.per_layer("attention.head_count_kv", query)
    widths = [wide if i in set(full) else narrow for i in range(facts.layer_count)]
    facts.demand("attn_q.weight", "attn_q_norm.weight", "attn_output.weight")
    facts.allow("attn_k_norm.weight", "layer_output_scale.weight")
    without_values = sorted(own - set(facts.layers_with("attn_v.weight")))
    for i in range(facts.layer_count):
        _check_rows(facts, i, query * widths[i], stated[i] * widths[i] if i in own else 0)
    keys: dict[str, Any] = {
        "model_type": "gemma4_text",
        **sizes(facts),
        "num_attention_heads": query,
        "num_key_value_heads": _kv_heads(
            facts, stated, [i for i in range(len(stated)) if i not in set(full)]
        ),
        "head_dim": narrow,
        "global_head_dim": wide,
        "num_kv_shared_layers": shared,
        "attention_bias": one_bias_flag(facts, sorted(own)),
        "attention_k_eq_v": bool(without_values),
        **kinds,
        **_per_layer_embeddings(facts),
    }
    if without_values:
        if without_values != [i for i in full if i in own]:
            raise facts.unsupported("keys that serve as values in other than the full layers")
        keys["num_global_key_value_heads"] = _kv_heads(facts, stated, full)
    elif len(set(stated)) > 1:
        raise facts.unsupported("full layers with their own key/value heads and values")
    demand_norms(facts, SANDWICH_NORMS)
    return {**keys, **_gemma4_feed_forward(facts, shared)}


def _kv_heads(facts: Facts, stated: list[int], layers: list[int]) -> int:
    distinct = {stated[i] for i in layers}
    if len(distinct) != 1 or 0 in distinct:
        raise facts.unsupported(f"{len(distinct)} counts of key/value heads in layers of one kind")
    return distinct.pop()


def _check_rows(facts: Facts, layer: int, query_rows: int, key_rows: int) -> None:
    for name, rows in (("attn_q.weight", query_rows), ("attn_k.weight", key_rows)):
        if rows and facts.extent(name, 0, [layer]) != rows:
            raise facts.damaged(f"blk.{layer}.{name} has not the {rows} rows that the head counts ask for")


def _gemma4_feed_forward(facts: Facts, shared: int) -> dict[str, Any]:
    """Dense part (twice as wide in cache-sharing layers of some sizes) and the experts beside it."""
    own = _own_cache(facts, shared)
    width = dense_width(facts, own)
    sharing = list(range(len(own), facts.layer_count))
    double = bool(sharing) and dense_width(facts, sharing) == 2 * width
    if sharing and not double and dense_width(facts, sharing) != width:
        raise facts.unsupported("feed-forwards of several widths")
    keys: dict[str, Any] = {
        "intermediate_size": width,
        "use_double_wide_mlp": double,
        "enable_moe_block": facts.number("expert_count", 0) > 0,
    }
    if keys["enable_moe_block"]:
        mixture = Mixture(facts)
        if mixture.dense_layers or mixture.shared_width:
            raise facts.unsupported("layers without experts")
        demand_norms(facts, ("post_ffw_norm_1", "post_ffw_norm_2", "pre_ffw_norm_2"))
        keys.update(
            num_experts=mixture.experts, top_k_experts=mixture.top_k, moe_intermediate_size=mixture.width
        )
    return keys


TRANSLATIONS = {"gemma3n": gemma3n, "gemma4": gemma4}


def translate(facts: Facts) -> dict[str, Any]:
    """Return the Hugging Face config of one of these architectures."""
    return TRANSLATIONS[facts.architecture](facts)
