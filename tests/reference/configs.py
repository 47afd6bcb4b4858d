"""Random configs of every model type: the class's own keys, redrawn within what makes a sensible model.

A rule is looked up by the key's name, so a type with new combinations of known keys needs nothing here. ``SHAPES``
holds the few types whose keys depend on each other. Sizes are small (the counts are exact at any size, and the
same configs run as real models in test_kv_cache.py); no two sizes that enter a product are tied to one another
except where the class demands it.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from typing import Any

from headcount.spec import huggingface

from .models import config_class, quiet, reference_config

# Class defaults that transformers itself cannot build, and what has to be stated to build them.
NEEDED = {
    "dbrx": {"attn_config": {"kv_n_heads": 1, "rope_theta": 10000.0}},
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
    # 2048 / 28 is no head width; the released model states 128.
    "qwen3_omni_moe_text": {"head_dim": 128},
}

# Flags that are not drawn.
FIXED_FLAGS = {
    ("dbrx", "tie_word_embeddings"): "the class refuses true",
    ("mpt", "no_bias"): "the class ignores it; headcount refuses false by name",
    ("mpt", "learned_pos_emb"): "the class ignores it: the released models use ALiBi",
    ("mt5", "tie_word_embeddings"): "the class ties whatever the config says; see test_untied_t5",
    ("t5", "tie_word_embeddings"): "the class ties whatever the config says; see test_untied_t5",
    ("umt5", "tie_word_embeddings"): "the class ties whatever the config says; see test_untied_t5",
    (
        "zamba2",
        "tie_word_embeddings",
    ): "untied, the class unties its shared blocks too; released models do not",
    ("mt5", "is_gated_act"): "computed from feed_forward_proj",
    ("t5", "is_gated_act"): "computed from feed_forward_proj",
    ("umt5", "is_gated_act"): "computed from feed_forward_proj",
}

# Keys that are not drawn although a rule below knows their name.
FIXED_KEYS = {
    ("gpt_bigcode", "num_key_value_heads"): "computed from multi_query",
    ("kimi_linear", "head_dim"): "computed from qk_rope_head_dim",
    ("falcon", "head_dim"): "computed from hidden_size; the class refuses it",
    ("olmoe", "head_dim"): "the norms of queries and keys are D / N wide whatever it says",
    **{
        (name, "head_dim"): "computed from qk_rope_head_dim"
        for name in (
            "deepseek_v2",
            "deepseek_v3",
            "deepseek_v32",
            "glm_moe_dsa",
            "kimi_k2",
            "longcat_flash",
            "youtu",
        )
    },
    ("mistral4", "head_dim"): "computed from the parts of the query",
    **{
        (name, "head_dim"): "its projections ignore what its rotary positions read: no such model runs"
        for name in ("glm4v_moe_text", "glm4v_text")
    },
    **{
        (name, "sliding_window"): "the class's attention ignores it; the class default is null"
        for name in ("qwen3_omni_moe_text", "qwen3_vl_moe_text")
    },
}


class Draw:
    """One random model: the sizes that several keys share, and the generator that the others come from."""

    def __init__(self, model_type: str, seed: int) -> None:
        self.name = f"{model_type}/{seed}"
        self.rng = random.Random(self.name)
        self.heads = self.rng.choice((4, 8))
        self.head_dim = self.rng.choice((8, 16, 32))
        self.hidden = self.heads * self.head_dim
        self.layers = self.rng.randint(2, 7)

    def start(self, key: str) -> Draw:
        """Give ``key`` a generator of its own: a new key elsewhere does not change what this one draws."""
        self.rng = random.Random(f"{self.name}/{key}")
        return self

    def one(self, *values: Any) -> Any:
        return self.rng.choice(values)

    def width(self) -> int:
        return 8 * self.rng.randint(2, 20)

    def kv_heads(self) -> int:
        return self.one(*(n for n in (1, 2, 4, 8) if self.heads % n == 0))


def _any(*values: Any) -> Callable[[Draw], Any]:
    return lambda draw: draw.one(*values)


def _named(names: str, rule: Callable[[Draw], Any]) -> dict[str, Callable[[Draw], Any]]:
    return dict.fromkeys(names.split(), rule)


RULES: dict[str, Callable[[Draw], Any]] = {
    **_named("hidden_size n_embd d_model", lambda d: d.hidden),
    **_named("num_attention_heads n_head n_heads num_heads", lambda d: d.heads),
    **_named("encoder_attention_heads decoder_attention_heads", lambda d: d.heads // d.one(1, 2)),
    **_named("num_key_value_heads num_kv_heads", lambda d: d.kv_heads()),
    **_named("num_hidden_layers n_layer n_layers num_layers", lambda d: d.layers),
    **_named("encoder_layers decoder_layers num_decoder_layers", lambda d: d.one(1, 2, 3)),
    **_named("head_dim d_kv", _any(8, 16, 24, 32)),
    **_named("vocab_size vocab_size_per_layer_input", lambda d: d.rng.randint(100, 300)),
    **_named(
        "intermediate_size ffn_dim d_ff ffn_hidden_size encoder_ffn_dim decoder_ffn_dim moe_intermediate_size "
        "shared_expert_intermediate_size expert_ffn_hidden_size intermediate_size_mlp "
        "moe_shared_expert_intermediate_size",
        lambda d: d.width(),
    ),
    **_named("shared_intermediate_size", lambda d: d.one(0, d.width())),
    **_named("n_inner prefix_dense_intermediate_size", lambda d: d.one(None, d.width())),
    **_named("n_routed_experts num_experts num_local_experts moe_num_experts", _any(4, 8)),
    **_named("num_experts_per_tok moe_k moe_topk num_experts_per_token", _any(1, 2)),
    **_named("n_shared_experts num_shared_experts moe_num_shared_experts", _any(1, 2)),
    **_named("n_group num_expert_group", _any(1, 2)),
    "topk_group": _any(1),
    **_named("first_k_dense_replace num_dense_layers moe_layer_start_index max_window_layers", _any(0, 1, 2)),
    **_named("decoder_sparse_step moe_layer_interval interleave_moe_layer_step", _any(1, 2)),
    "mlp_only_layers": lambda d: sorted(d.rng.sample(range(d.layers), d.one(0, 1))),
    "q_lora_rank": _any(16, 24),
    "kv_lora_rank": _any(16, 24),
    "qk_nope_head_dim": _any(8, 16),
    "qk_rope_head_dim": _any(4, 8),
    "v_head_dim": _any(8, 16, 24),
    "o_lora_rank": _any(8, 16),
    "o_groups": _any(2, 4),
    "hc_mult": _any(2, 3),
    "index_head_dim": _any(16, 32),
    "index_n_heads": _any(2, 4),
    "index_topk": _any(4),
    "zero_expert_num": _any(0, 2),
    "sliding_window": _any(4, 5, 6),
    **_named("attention_chunk_size attention_window_size window_size", _any(4, 5, 6)),
    **_named(
        "sliding_window_pattern _sliding_window_pattern prefix_dense_sliding_window_pattern", _any(2, 3, 4)
    ),
    "no_rope_layer_interval": _any(2, 3),
    **_named("max_position_embeddings n_positions max_seq_len max_source_positions", _any(64, 96)),
    "max_target_positions": _any(32, 48),
    **_named("rotary_dim", _any(4, 8)),
    **_named("conv_kernel mamba_d_conv linear_conv_kernel_dim conv1d_width conv_L_cache", _any(3, 4)),
    **_named("state_size mamba_d_state ssm_state_size", _any(8, 16)),
    **_named("n_groups mamba_n_groups mamba_ngroups", _any(1, 2)),
    **_named("linear_num_key_heads linear_num_heads", _any(2)),
    "linear_num_value_heads": _any(2, 4),
    **_named("linear_key_head_dim linear_value_head_dim linear_head_dim", _any(8, 16)),
    "num_mel_bins": _any(20, 40),
    "relative_attention_num_buckets": _any(8, 16),
    "feed_forward_proj": _any("relu", "gated-gelu"),
    "word_embed_proj_dim": lambda d: d.hidden // d.one(1, 2),
    "decoder_vocab_size": lambda d: d.rng.randint(100, 300),
    "laurel_rank": _any(8, 16),
    "altup_num_inputs": _any(2, 4),
    "hidden_size_per_layer_input": _any(8, 16),
    "adapter_rank": _any(4, 8),
    "num_mem_blocks": _any(1, 2),
    "expand": _any(2),
    "mamba_expand": _any(2),
    "lru_width": lambda d: d.heads * d.one(8, 16),
    **_named("chunk_size mamba_chunk_size", _any(8)),
    # Token numbers have to exist; which one does not matter.
    **_named("pad_token_id bos_token_id eos_token_id decoder_start_token_id", _any(0)),
}


def _mamba2(heads: str, width: str | None) -> Callable[[Draw, dict[str, Any]], dict[str, Any]]:
    """Heads times head width have to make twice the model's width."""

    def shape(draw: Draw, keys: dict[str, Any]) -> dict[str, Any]:
        count = draw.one(4, 8)
        return {heads: count, **({width: 2 * draw.hidden // count} if width else {})}

    return shape


def _kinds(draw: Draw, *kinds: str) -> list[str]:
    """Every kind at least once when there is room, in random order."""
    drawn = [*kinds, *(draw.one(*kinds) for _ in range(7))][: max(draw.layers, len(kinds))]
    draw.rng.shuffle(drawn)
    return drawn


def _bamba(draw: Draw, keys: dict[str, Any]) -> dict[str, Any]:
    attention = sorted(draw.rng.sample(range(draw.layers), 1))
    return {**_mamba2("mamba_n_heads", "mamba_d_head")(draw, keys), "attn_layer_indices": attention}


def _falcon(draw: Draw, keys: dict[str, Any]) -> dict[str, Any]:
    return {"num_ln_in_parallel_attn": draw.one(None, 1, 2)}


def _falcon_h1(draw: Draw, keys: dict[str, Any]) -> dict[str, Any]:
    heads, width = draw.one(4, 8), draw.one(8, 16)
    return {"mamba_n_heads": heads, "mamba_d_head": width, "mamba_d_ssm": heads * width}


def _granite_hybrid(draw: Draw, keys: dict[str, Any]) -> dict[str, Any]:
    kinds = _kinds(draw, "mamba", "attention")
    shape = _mamba2("mamba_n_heads", "mamba_d_head")(draw, keys)
    return {
        **shape,
        "layer_types": kinds,
        "num_hidden_layers": len(kinds),
        "num_local_experts": draw.one(0, 4),
    }


def _nemotron_h(draw: Draw, keys: dict[str, Any]) -> dict[str, Any]:
    kinds = _kinds(draw, "linear_attention", "moe", "full_attention", "mlp")
    heads = draw.one(4, 8)
    return {
        "layers_block_type": kinds,
        "num_hidden_layers": len(kinds),
        "mamba_num_heads": heads,
        "mamba_head_dim": draw.one(8, 16),
        "moe_latent_size": draw.one(None, 24),
    }


def _zamba2(draw: Draw, keys: dict[str, Any]) -> dict[str, Any]:
    layers = draw.rng.randint(4, 8)
    hybrid = sorted(draw.rng.sample(range(1, layers), 2))
    kinds = ["hybrid" if i in hybrid else "linear_attention" for i in range(layers)]
    return {"num_hidden_layers": layers, "layers_block_type": kinds, "n_mamba_heads": draw.one(4, 8)}


def _jamba(draw: Draw, keys: dict[str, Any]) -> dict[str, Any]:
    period = draw.one(2, 3)
    return {
        "attn_layer_period": period,
        "attn_layer_offset": draw.rng.randrange(period),
        "expert_layer_period": 2,
        "expert_layer_offset": draw.one(0, 1),
        "mamba_dt_rank": draw.one(4, 8),
    }


def _gemma3n(draw: Draw, keys: dict[str, Any]) -> dict[str, Any]:
    width, layers = draw.width(), 10
    period = draw.one(3, 5)
    kinds = ["sliding_attention" if (i + 1) % period else "full_attention" for i in range(layers)]
    return {
        "num_hidden_layers": layers,
        "layer_types": kinds,
        "intermediate_size": [width] * layers,
        "num_kv_shared_layers": draw.one(2, 4),
        "activation_sparsity_pattern": [0.0] * layers,
    }


def _gemma4(draw: Draw, keys: dict[str, Any]) -> dict[str, Any]:
    layers = draw.one(6, 8)
    experts = {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": draw.width()}
    kinds = [*(draw.one("sliding_attention", "full_attention") for _ in range(layers - 1)), "full_attention"]
    shared = draw.one(0, 2) if {"sliding_attention", "full_attention"} <= set(kinds[: layers - 2]) else 0
    return {
        **experts,
        "num_hidden_layers": layers,
        "layer_types": kinds,
        "num_kv_shared_layers": shared,
    }


def _lfm2_moe(draw: Draw, keys: dict[str, Any]) -> dict[str, Any]:
    kinds = _kinds(draw, "conv", "full_attention")
    return {"layer_types": kinds, "num_hidden_layers": len(kinds)}


def _deepseek_v4(draw: Draw, keys: dict[str, Any]) -> dict[str, Any]:
    kinds = _kinds(draw, "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention")
    rates = {"compressed_sparse_attention": 2, "heavily_compressed_attention": 4}
    return {"layer_types": kinds, "num_hidden_layers": len(kinds), "compress_rates": rates, "head_dim": 32}


def _mllama(draw: Draw, keys: dict[str, Any]) -> dict[str, Any]:
    return {"cross_attention_layers": sorted(draw.rng.sample(range(draw.layers), 1))}


def _dbrx(draw: Draw, keys: dict[str, Any]) -> dict[str, Any]:
    return {
        "attn_config": {"kv_n_heads": draw.kv_heads(), "rope_theta": 10000.0, "clip_qkv": 8.0},
        "ffn_config": {
            "hidden_size": draw.hidden,
            "ffn_hidden_size": draw.width(),
            "moe_num_experts": draw.one(4, 8),
            "moe_top_k": draw.one(1, 2),
        },
    }


def _gpt_neo(draw: Draw, keys: dict[str, Any]) -> dict[str, Any]:
    halves, rest = draw.one(1, 2), draw.one(0, 1)
    types = [[["global", "local"], halves], *([[["global"], rest]] if rest else [])]
    return {"attention_types": types, "num_layers": 2 * halves + rest}


def _helium(draw: Draw, keys: dict[str, Any]) -> dict[str, Any]:
    """The output projection is D x D whatever the heads say."""
    return {"head_dim": draw.hidden // draw.heads}


def _mimo(draw: Draw, keys: dict[str, Any]) -> dict[str, Any]:
    """Sliding layers have twice the key/value heads."""
    return {"num_key_value_heads": draw.one(1, 2, draw.heads // 2)}


def _latent(draw: Draw, keys: dict[str, Any]) -> dict[str, Any]:
    """Every query head has keys of its own, expanded from the latent."""
    return {"num_key_value_heads": draw.heads}


def _longcat(draw: Draw, keys: dict[str, Any]) -> dict[str, Any]:
    """The class's rotary table is as wide as ``head_dim`` says."""
    return {"num_key_value_heads": draw.heads, "head_dim": keys["qk_rope_head_dim"]}


def _image_positions(draw: Draw, keys: dict[str, Any]) -> dict[str, Any]:
    """Rotary positions of time, height and width: their sections have to fill half a head."""
    half = draw.hidden // draw.heads // 2
    sections = [half - 2 * (half // 4), half // 4, half // 4]
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": sections}
    return {"rope_parameters": {**rope, "partial_rotary_factor": 1.0}}


def _recurrent_gemma(draw: Draw, keys: dict[str, Any]) -> dict[str, Any]:
    return {"num_hidden_layers": draw.rng.randint(3, 7)}


SHAPES: dict[str, Callable[[Draw, dict[str, Any]], dict[str, Any]]] = {
    "bamba": _bamba,
    "dbrx": _dbrx,
    "deepseek_v4": _deepseek_v4,
    "falcon": _falcon,
    "falcon_h1": _falcon_h1,
    "gemma3n_text": _gemma3n,
    "gemma4_text": _gemma4,
    "gemma4_unified_text": _gemma4,
    "gpt_neo": _gpt_neo,
    "granitemoehybrid": _granite_hybrid,
    "jamba": _jamba,
    "lfm2_moe": _lfm2_moe,
    "mamba2": _mamba2("num_heads", "head_dim"),
    "helium": _helium,
    **dict.fromkeys(
        (
            "deepseek_v2",
            "deepseek_v3",
            "deepseek_v32",
            "glm4_moe_lite",
            "glm_moe_dsa",
            "kimi_k2",
            "kimi_linear",
        ),
        _latent,
    ),
    **dict.fromkeys(("mistral4", "youtu"), _latent),
    "longcat_flash": _longcat,
    **dict.fromkeys(("glm4v_moe_text", "glm4v_text", "qwen2_5_omni_text"), _image_positions),
    **dict.fromkeys(("qwen2_5_vl_text", "qwen2_vl_text"), _image_positions),
    "mimo_v2_flash": _mimo,
    "mllama_text_model": _mllama,
    "nemotron_h": _nemotron_h,
    "recurrent_gemma": _recurrent_gemma,
    "zamba2": _zamba2,
}


def _size_flags() -> dict[str, set[str]]:
    """The true/false keys of each type that decide sizes, as the product's table of class defaults lists them."""
    path = os.path.join(os.path.dirname(huggingface.__file__), "defaults.json")
    with open(path, encoding="utf-8") as file:
        table = json.load(file)["model_types"]
    return {
        name: {key for key, value in entry["defaults"].items() if isinstance(value, bool)}
        for name, entry in table.items()
    }


def random_keys(model_type: str, seed: int) -> dict[str, Any]:
    """Draw one config of ``model_type``: the keys it states, without ``model_type`` itself."""
    draw = Draw(model_type, seed)
    with quiet():
        known = reference_config(model_type, NEEDED.get(model_type, {})).to_dict()
    keys = {
        key: RULES[key](draw.start(key))
        for key in sorted(known)
        if key in RULES and (model_type, key) not in FIXED_KEYS
    }
    # Many classes read a head width that they do not declare; where it is another key's name it is not a size of its own.
    declared = "head_dim" in known or "head_dim" in config_class(model_type).attribute_map
    if (
        not declared
        and (model_type, "head_dim") not in FIXED_KEYS
        and draw.start("head_dim").one(False, False, True)
    ):
        keys["head_dim"] = draw.one(8, 16, 24)
    flags = _size_flags().get(model_type, set()) | {"tie_word_embeddings"}
    for flag in sorted(flags & set(known)):
        if (model_type, flag) not in FIXED_FLAGS:
            keys[flag] = draw.start(flag).one(True, False)
    if isinstance(known.get("layer_types"), list) and draw.start("layer_types").one(True, False):
        kinds = sorted(set(known["layer_types"]))
        keys["layer_types"] = [draw.one(*kinds) for _ in range(draw.layers)]
    if model_type in SHAPES:
        keys.update(SHAPES[model_type](draw.start("shape"), keys))
    return keys
