"""Compiled decode steps of every decoder family against the reference's own logits."""

from __future__ import annotations

from typing import Any

import pytest
from stepwise import check_reference

pytestmark = [pytest.mark.reference]
SMALL: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
GEMMA = {**SMALL, "num_attention_heads": 4, "head_dim": 10, "num_hidden_layers": 4, "sliding_window": 5}
GPT = {"vocab_size": 101, "n_embd": 48, "n_layer": 3, "n_head": 3, "n_positions": 40}
NEOX = {key: value for key, value in SMALL.items() if key not in ("num_key_value_heads", "pad_token_id")}
OPT = {
    "vocab_size": 101,
    "hidden_size": 48,
    "ffn_dim": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "max_position_embeddings": 40,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
    "rope_theta": 10000.0,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", SMALL),
    "llama with biases, tied": (
        "LlamaConfig", {**SMALL, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}
    ),
    "llama stretched": ("LlamaConfig", {**SMALL, "rope_parameters": LLAMA3}),
    "wide heads": ("LlamaConfig", {**SMALL, "hidden_size": 64, "num_attention_heads": 4, "head_dim": 80}),
    "one key head": ("LlamaConfig", {**SMALL, "num_key_value_heads": 1}),
    "mistral, window": ("MistralConfig", {**SMALL, "sliding_window": 5}),
    "gemma": ("GemmaConfig", {key: value for key, value in GEMMA.items() if key != "sliding_window"}),
    "gemma 2, caps": (
        "Gemma2Config",
        {**GEMMA, "query_pre_attn_scalar": 20, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 1.5},
    ),
    "gemma 3, two rotaries": ("Gemma3TextConfig", {**GEMMA, "sliding_window_pattern": 2}),
    "starcoder 2": ("Starcoder2Config", {**SMALL, "sliding_window": 5}),
    "granite, multipliers": (
        "GraniteConfig",
        {
            **SMALL,
            "embedding_multiplier": 6.0,
            "residual_multiplier": 0.3,
            "attention_multiplier": 0.2,
            "logits_scaling": 0.5,
        },
    ),
    "olmo, clip": ("OlmoConfig", {**SMALL, "clip_qkv": 0.3, "attention_bias": True}),
    "olmo 2, norms over all heads": ("Olmo2Config", SMALL),
    "olmo 3": ("Olmo3Config", {**SMALL, "sliding_window": 5}),
    "cohere, parallel": ("CohereConfig", {**SMALL, "logit_scale": 1.0}),
    "glm": ("GlmConfig", {**SMALL, "head_dim": 16}),
    "glm 4, sandwich": ("Glm4Config", {**SMALL, "head_dim": 16}),
    "gpt-2": ("GPT2Config", GPT),
    "gpt-2, scales per layer": ("GPT2Config", {**GPT, "scale_attn_by_inverse_layer_idx": True}),
    "bigcode": ("GPTBigCodeConfig", {**GPT, "multi_query": True}),
    "neox, beside": ("GPTNeoXConfig", {**NEOX, "use_parallel_residual": True}),
    "neox, pre": ("GPTNeoXConfig", {**NEOX, "use_parallel_residual": False}),
    "gpt-j, interleaved": ("GPTJConfig", {**GPT, "rotary_dim": 8}),
    "bloom, slopes": ("BloomConfig", {"vocab_size": 101, "hidden_size": 48, "n_layer": 2, "n_head": 6}),
    "bloom, through": (
        "BloomConfig",
        {
            "vocab_size": 101,
            "hidden_size": 48,
            "n_layer": 2,
            "n_head": 4,
            "apply_residual_connection_post_layernorm": True,
        },
    ),
    "mpt": (
        "MptConfig",
        {"vocab_size": 101, "d_model": 48, "n_layers": 2, "n_heads": 6, "attn_config": {"clip_qkv": 0.2}},
    ),
    "falcon": (
        "FalconConfig", {"vocab_size": 101, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6}
    ),
    "opt": ("OPTConfig", OPT),
    "opt-350m, post, narrow": ("OPTConfig", {**OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 20}),
    "galactica": ("OPTConfig", {**OPT, "enable_bias": False, "layer_norm_elementwise_affine": False}),
    "phi-3": ("Phi3Config", {**SMALL, "sliding_window": 5}),
    "phi": ("PhiConfig", SMALL),
    "stablelm": ("StableLmConfig", SMALL),
    "qwen 2, window from a layer on": (
        "Qwen2Config", {**SMALL, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
    ),
    "qwen 3, head norms": ("Qwen3Config", {**SMALL, "head_dim": 10}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_family(name: str, tmp_path: Any) -> None:
    import transformers

    kind, switches = CASES[name]
    check_reference(getattr(transformers, kind)(**switches), tmp_path)


@pytest.mark.parametrize("threads", [1, 3, 4])
def test_threads(threads: int, tmp_path: Any) -> None:
    """More threads than conversations, heads or processors."""
    from transformers import LlamaConfig

    check_reference(LlamaConfig(**SMALL), tmp_path, threads=threads, tokens=16)


def test_many_layers_of_rows(tmp_path: Any) -> None:
    """Widths that are no multiple of the 32 rows and columns of a tile."""
    from transformers import LlamaConfig

    odd = {**SMALL, "vocab_size": 107, "hidden_size": 54, "intermediate_size": 71, "head_dim": 6}
    check_reference(LlamaConfig(**odd), tmp_path)
