"""Mixtures of experts, latent attention, per-layer models: published totals, cache bytes, kinds, refusals.

Configs hold the size keys of the public ``config.json`` of the named Hugging Face repository. Totals are the
counts that the hub's safetensors metadata or the model card states, less what the class keeps as a buffer
(the routers' balancing biases: 58 x 256 numbers in DeepSeek-V3, 60 x 384 in Kimi K2).
"""

from __future__ import annotations

from typing import Any

import pytest

from headcount.errors import ModelFileError, UnsupportedModelError, UsageError
from headcount.spec.attention import CompressedLatent, LatentAttention, SharedCache
from headcount.spec.huggingface.config import spec_from_config
from headcount.spec.kv_format import kv_format
from headcount.spec.model import ModelSpec
from headcount.spec.weight import EXPERTS, ROUTER, SHARED_EXPERTS

BF16 = kv_format("bf16")


def build(config: dict[str, Any], **changes: Any) -> ModelSpec:
    return spec_from_config({**config, **changes}, name="test", source="test")


def without(config: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != key}


def kv_bytes(spec: ModelSpec, context: int) -> int:
    return sum(mixer.kv_bytes(context, BF16) for layer in spec.layers for mixer in layer.mixers)


def kinds(spec: ModelSpec) -> dict[str, int]:
    found: dict[str, int] = {}
    for layer in spec.layers:
        for mixer in layer.mixers:
            found[mixer.kind] = found.get(mixer.kind, 0) + 1
    return found


# mistralai/Mixtral-8x7B-v0.1
MIXTRAL = {
    "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_key_value_heads": 8, "num_hidden_layers": 32, "num_local_experts": 8, "num_experts_per_tok": 2,
    "vocab_size": 32000, "sliding_window": None, "tie_word_embeddings": False,
}  # fmt: skip
# openai/gpt-oss-20b, openai/gpt-oss-120b
GPT_OSS_20B = {
    "model_type": "gpt_oss", "attention_bias": True, "head_dim": 64, "hidden_size": 2880,
    "intermediate_size": 2880, "layer_types": ["sliding_attention", "full_attention"] * 12,
    "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24,
    "num_key_value_heads": 8, "num_local_experts": 32,
    "sliding_window": 128, "vocab_size": 201088,
}  # fmt: skip
GPT_OSS_120B = {
    **GPT_OSS_20B, "layer_types": ["sliding_attention", "full_attention"] * 18, "num_hidden_layers": 36,
    "num_local_experts": 128,
}  # fmt: skip
# Qwen/Qwen3-30B-A3B, Qwen/Qwen3-Coder-480B-A35B-Instruct
QWEN3_30B = {
    "model_type": "qwen3_moe", "decoder_sparse_step": 1, "head_dim": 128, "hidden_size": 2048,
    "intermediate_size": 6144, "max_window_layers": 48, "mlp_only_layers": [], "moe_intermediate_size": 768,
    "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
    "num_key_value_heads": 4, "tie_word_embeddings": False, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
QWEN3_CODER = {
    **QWEN3_30B, "hidden_size": 6144, "moe_intermediate_size": 2560, "num_attention_heads": 96,
    "num_experts": 160, "num_hidden_layers": 62, "num_key_value_heads": 8,
}  # fmt: skip
# deepseek-ai/DeepSeek-V3, deepseek-ai/DeepSeek-V2-Lite, deepseek-ai/deepseek-moe-16b-base
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "first_k_dense_replace": 3, "hidden_size": 7168, "intermediate_size": 18432,
    "kv_lora_rank": 512, "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61,
    "num_nextn_predict_layers": 1, "num_key_value_heads": 128, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280, "tie_word_embeddings": False,
    "moe_layer_freq": 1,
}  # fmt: skip
DEEPSEEK_V2_LITE = {
    "model_type": "deepseek_v2", "first_k_dense_replace": 1, "hidden_size": 2048, "intermediate_size": 10944,
    "kv_lora_rank": 512, "moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2,
    "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27, "q_lora_rank": None,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 102400,
}  # fmt: skip
DEEPSEEK_MOE_16B = {
    "model_type": "deepseek", "first_k_dense_replace": 1, "hidden_size": 2048, "intermediate_size": 10944,
    "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_routed_experts": 64, "n_shared_experts": 2,
    "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 28, "num_key_value_heads": 16,
    "vocab_size": 102400,
}  # fmt: skip
# moonshotai/Kimi-K2-Instruct
KIMI_K2 = {
    **without(DEEPSEEK_V3, "num_nextn_predict_layers"), "model_type": "kimi_k2", "first_k_dense_replace": 1,
    "n_routed_experts": 384, "num_attention_heads": 64, "vocab_size": 163840,
}  # fmt: skip
# deepseek-ai/DeepSeek-V3.2-Exp, deepseek-ai/DeepSeek-V4-Flash, zai-org/GLM-5.2
DEEPSEEK_V32 = {
    **DEEPSEEK_V3, "model_type": "deepseek_v32", "index_head_dim": 128, "index_n_heads": 64,
    "index_topk": 2048,
}  # fmt: skip
DEEPSEEK_V4_FLASH = {
    "model_type": "deepseek_v4", "head_dim": 512, "hidden_size": 4096, "index_head_dim": 128,
    "index_n_heads": 64, "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_attention_heads": 64, "num_experts_per_tok": 6, "num_hidden_layers": 43,
    "num_key_value_heads": 1, "q_lora_rank": 1024,
    "qk_rope_head_dim": 64, "sliding_window": 128, "vocab_size": 129280,
    "compress_ratios": [0, 0, *([4, 128] * 20), 4, 0],
}  # fmt: skip
GLM_5_2 = {
    "model_type": "glm_moe_dsa", "first_k_dense_replace": 3, "hidden_size": 6144, "index_head_dim": 128,
    "index_n_heads": 32, "intermediate_size": 12288, "kv_lora_rank": 512, "moe_intermediate_size": 2048,
    "n_routed_experts": 256, "n_shared_experts": 1, "num_attention_heads": 64, "num_experts_per_tok": 8,
    "num_hidden_layers": 78, "q_lora_rank": 2048, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64,
    "v_head_dim": 256, "vocab_size": 154880,
    "indexer_types": ["full", "full", *(["full", "shared", "shared", "shared"] * 19)],
    "layer_types": ["deepseek_sparse_attention"] * 78,
}  # fmt: skip
# meta-llama/Llama-4-Scout-17B-16E-Instruct (text)
LLAMA4_SCOUT = {
    "model_type": "llama4_text", "attention_chunk_size": 8192, "head_dim": 128, "hidden_size": 5120,
    "interleave_moe_layer_step": 1, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
    "num_attention_heads": 40, "num_experts_per_tok": 1, "num_hidden_layers": 48, "num_key_value_heads": 8,
    "num_local_experts": 16, "vocab_size": 202048,
}  # fmt: skip
# XiaomiMiMo/MiMo-V2-Flash
MIMO = {
    "model_type": "mimo_v2_flash", "num_hidden_layers": 48, "hidden_size": 4096, "num_attention_heads": 64,
    "num_key_value_heads": 4, "head_dim": 192, "v_head_dim": 128, "intermediate_size": 16384,
    "vocab_size": 152576, "sliding_window": 128, "sliding_window_size": 128, "swa_num_key_value_heads": 8,
    "swa_head_dim": 192, "swa_v_head_dim": 128,
    "hybrid_layer_pattern": [0, 1, 1, 1, 1, 0, *([1, 1, 1, 1, 1, 0] * 7)],
    "moe_layer_freq": [0] + [1] * 47, "moe_intermediate_size": 2048, "n_routed_experts": 256,
    "n_shared_experts": None, "num_experts_per_tok": 8,
}  # fmt: skip
# allenai/OLMoE-1B-7B-0924, microsoft/Phi-3.5-MoE-instruct, Qwen/Qwen1.5-MoE-A2.7B
OLMOE = {
    "model_type": "olmoe", "hidden_size": 2048, "intermediate_size": 1024, "num_hidden_layers": 16,
    "num_attention_heads": 16, "num_key_value_heads": 16, "num_experts": 64, "num_experts_per_tok": 8,
    "vocab_size": 50304,
}  # fmt: skip
PHI_MOE = {
    "model_type": "phimoe", "hidden_size": 4096, "intermediate_size": 6400, "num_attention_heads": 32,
    "num_key_value_heads": 8, "num_hidden_layers": 32, "num_local_experts": 16, "num_experts_per_tok": 2,
    "vocab_size": 32064, "attention_bias": True, "lm_head_bias": True, "sliding_window": 131072,
}  # fmt: skip
QWEN15_MOE = {
    "model_type": "qwen2_moe", "hidden_size": 2048, "intermediate_size": 5632, "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632, "num_hidden_layers": 24, "num_attention_heads": 16,
    "num_key_value_heads": 16, "num_experts": 60, "num_experts_per_tok": 4, "vocab_size": 151936,
}  # fmt: skip
# google/gemma-4-26B-A4B (text)
GEMMA4_26B = {
    "model_type": "gemma4_text", "attention_k_eq_v": True, "enable_moe_block": True, "global_head_dim": 512,
    "head_dim": 256, "hidden_size": 2816, "hidden_size_per_layer_input": 0, "intermediate_size": 2112,
    "layer_types": [*(["sliding_attention"] * 5), "full_attention"] * 5, "moe_intermediate_size": 704,
    "num_attention_heads": 16, "num_experts": 128, "num_global_key_value_heads": 2, "num_hidden_layers": 30,
    "num_key_value_heads": 8, "num_kv_shared_layers": 0, "sliding_window": 1024, "top_k_experts": 8,
    "vocab_size": 262144,
}  # fmt: skip
GEMMA3N = {"model_type": "gemma3n_text"}
MLLAMA = {"model_type": "mllama_text_model"}
LONGCAT = {"model_type": "longcat_flash"}
DBRX = {
    "model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "max_seq_len": 32768,
    "vocab_size": 100352, "attn_config": {"kv_n_heads": 8},
    "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "total"),
    [
        (MIXTRAL, 46_702_792_704),
        (GPT_OSS_20B, 20_914_757_184),
        (GPT_OSS_120B, 116_829_156_672),
        (QWEN3_30B, 30_532_122_624),
        (QWEN3_CODER, 480_154_875_392),
        (DEEPSEEK_V3, 671_026_419_200 - 58 * 256),
        (DEEPSEEK_V2_LITE, 15_706_484_224),
        (DEEPSEEK_MOE_16B, 16_375_728_128),
        (KIMI_K2, 1_026_408_232_448 - 60 * 384),
        (OLMOE, 6_919_161_856),
        (PHI_MOE, 41_873_153_344),
        (QWEN15_MOE, 14_315_784_192),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_published_parameter_totals(config: dict[str, Any], total: int) -> None:
    assert build(config).parameters == total


@pytest.mark.parametrize(
    ("config", "billions", "active_billions"),
    [
        (DEEPSEEK_V4_FLASH, 284, 13),
        (GLM_5_2, 744, 40),
        (LONGCAT, 560, None),
        (DBRX, 132, 36),
        (MIMO, 309, 15),
        (LLAMA4_SCOUT, 108, 17),  # 109 with the vision encoder
        (GEMMA4_26B, 25.2, 3.8),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_model_card_figures(config: dict[str, Any], billions: float, active_billions: float | None) -> None:
    """Rounded figures of the model cards; active counts include the embedding where the card's do."""
    spec = build(config)
    assert spec.parameters == pytest.approx(billions * 1e9, rel=0.005)
    if active_billions:
        active = sum(w.active_parameters * times for w, times in spec.all_weights())
        embedding = sum(w.parameters * times for w, times in spec.all_weights() if w.part == "embedding")
        assert (
            active - embedding <= (active_billions + 0.55) * 1e9 and active >= (active_billions - 0.55) * 1e9
        )


def test_deepseek_v3_active_parameters() -> None:
    """README_WEIGHTS: 36.6 B activated, input embedding not counted, output head counted."""
    active = sum(
        w.active_parameters * times for w, times in build(DEEPSEEK_V3).all_weights() if w.part != "embedding"
    )
    assert active == 36_625_603_584


@pytest.mark.parametrize(
    ("config", "context", "expected"),
    [
        (DEEPSEEK_V3, 1, 70_272),
        # 132 B of fp8 indexer key and scale per layer (vLLM 0.33 gives the indexer a 132-byte state).
        (DEEPSEEK_V32, 1, 70_272 + 61 * 132),
        # 21 of the 78 layers have an indexer.
        (GLM_5_2, 1, 78 * 1_152 + 21 * 132),
        (GPT_OSS_20B, 32_768, 808_452_096),
        (MIXTRAL, 1, 131_072),
        (QWEN3_30B, 1, 98_304),
        # 36 layers keep one chunk of 8,192 tokens, 12 keep everything, 4,096 B an entry.
        (LLAMA4_SCOUT, 32_768, 4_096 * (36 * 8_192 + 12 * 32_768)),
        # vLLM 0.33: pages of 16 tokens hold 40,960 B on full layers and 81,920 B on sliding ones.
        (MIMO, 1, 9 * 2_560 + 39 * 5_120),
        (MIMO, 32_768, 9 * 2_560 * 32_768 + 39 * 5_120 * 128),
        # Two window layers, 21 CSA (rate 4, indexer), 20 HCA (rate 128); entries of 1,024 B.
        (
            DEEPSEEK_V4_FLASH,
            32_768,
            1_024 * (43 * 128 + 21 * 8_192 + 20 * 256) + 21 * 8_192 * 132,
        ),
        # 25 sliding layers of 8 heads x 256, 5 full layers of 2 heads x 512; keys and values are both stored.
        (GEMMA4_26B, 32_768, 25 * 1_024 * 8_192 + 5 * 32_768 * 4_096),
        # 56 attentions in 28 blocks.
        (LONGCAT, 1, 56 * 1_152),
        (DBRX, 1, 40 * 4_096),
    ],
)
def test_kv_bytes(config: dict[str, Any], context: int, expected: int) -> None:
    assert kv_bytes(build(config), context) == expected


def test_mistral4_token_matches_the_log() -> None:
    """vLLM reports 22.5 GiB for 1,048,576 tokens of Mistral-Small-4: 23,040 B a token."""
    assert kv_bytes(build({"model_type": "mistral4"}), 1_048_576) == 22.5 * 2**30


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (MIXTRAL, {"full": 32}),
        ({**MIXTRAL, "sliding_window": 4096}, {"sliding": 32}),
        (GPT_OSS_20B, {"sliding": 12, "full": 12}),
        (QWEN3_30B, {"full": 48}),
        (LLAMA4_SCOUT, {"chunked": 36, "full": 12}),
        ({**LLAMA4_SCOUT, "attention_chunk_size": None}, {"full": 48}),
        (MIMO, {"full": 9, "sliding": 39}),
        (DEEPSEEK_V3, {"latent": 61}),
        (DEEPSEEK_MOE_16B, {"full": 28}),
        (DEEPSEEK_V4_FLASH, {"sliding": 2, "compressed": 41}),
        (GEMMA4_26B, {"sliding": 25, "full": 5}),
        (GEMMA3N, {"sliding": 16, "full": 4, "shared": 15}),
        (MLLAMA, {"full": 32, "cross": 8}),
        (LONGCAT, {"latent": 56}),
        ({"model_type": "cohere2_moe"}, {"sliding": 30, "full": 10}),
        ({"model_type": "exaone_moe"}, {"sliding": 24, "full": 8}),
        ({"model_type": "glm4_moe_lite"}, {"latent": 47}),
    ],
)
def test_layer_kinds(config: dict[str, Any], expected: dict[str, int]) -> None:
    assert kinds(build(config)) == expected


def test_indexers_are_where_the_config_puts_them() -> None:
    spec = build(GLM_5_2)
    indexed = [
        i
        for i, layer in enumerate(spec.layers)
        if isinstance(layer.mixers[0], LatentAttention) and layer.mixers[0].index_head_dim
    ]
    assert indexed == [0, 1, *range(2, 78, 4)]
    # The same layers, as index_topk_freq 4 with index_skip_topk_offset 3 and as a pattern say it.
    plain = without(GLM_5_2, "indexer_types")
    pattern = build(plain, index_topk_pattern="FF" + "FSSS" * 19)
    counted = build(plain, index_topk_freq=4, index_skip_topk_offset=3)
    assert pattern.layers == spec.layers == counted.layers


def test_compression_rates_by_layer() -> None:
    mixers = [layer.mixers[0] for layer in build(DEEPSEEK_V4_FLASH).layers]
    assert all(isinstance(mixer, CompressedLatent) for mixer in mixers)
    assert [mixer.rate for mixer in mixers] == [0, 0, *([4, 128] * 20), 4]  # type: ignore[attr-defined]


def test_shared_caches_read_the_last_layer_of_their_kind() -> None:
    shared = [layer.mixers[0] for layer in build(GEMMA3N).layers[20:]]
    assert all(isinstance(mixer, SharedCache) for mixer in shared)
    # Layers 18 and 19 are the last sliding and the last full layer that keep a cache.
    assert [mixer.source_layer for mixer in shared] == [18, 18, 18, 18, 19] * 3  # type: ignore[attr-defined]
    names = {weight.name for weight in build(GEMMA3N).layers[20].weights}
    assert not any("k_proj" in name or "v_proj" in name for name in names)


def test_cross_attention_holds_one_image() -> None:
    spec = build(MLLAMA)
    cross = [m for layer in spec.layers for m in layer.mixers if m.kind == "cross"]
    assert {mixer.kv_bytes(1, BF16) for mixer in cross} == {6_404 * 8 * 256 * 2}
    assert any("6,404 vision tokens" in note for note in spec.notes)


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (MIXTRAL, {"model.layers.{i}.block_sparse_moe.experts.*.w1"}),
        (GPT_OSS_20B, {f"model.layers.{{i}}.mlp.experts.{n}" for n in ("gate_up_proj", "down_proj_bias")}),
        (QWEN3_30B, {"model.layers.{i}.mlp.experts.*.gate_proj"}),
        (LLAMA4_SCOUT, {"model.layers.{i}.feed_forward.experts.gate_up_proj"}),
        (DEEPSEEK_V4_FLASH, {"layers.{i}.ffn.experts.*.w2"}),
    ],
)  # fmt: skip
def test_experts_carry_checkpoint_names_and_counts(config: dict[str, Any], names: set[str]) -> None:
    spec = build(config)
    experts = [w for w in spec.layers[0].weights if w.part == EXPERTS]
    ffn = spec.layers[0].feed_forward
    assert ffn is not None and names <= {w.name for w in experts}
    assert {(w.copies, w.active) for w in experts} == {(ffn.experts, ffn.top_k)}
    # An output bias is as wide as the model: no rank can leave a part of it out.
    assert all(w.shard == ("replicated" if w.name.endswith("down_proj_bias") else "expert") for w in experts)
    assert sum(w.parameters for w in spec.layers[0].weights if w.part == ROUTER and w.linear) > 0


def test_dense_prefix_and_shared_expert() -> None:
    spec = build(DEEPSEEK_V3)
    parts = [{w.part for w in layer.weights} for layer in spec.layers]
    assert [EXPERTS in part for part in parts] == [False] * 3 + [True] * 58
    assert [SHARED_EXPERTS in part for part in parts] == [False] * 3 + [True] * 58
    assert len({id(layer) for layer in spec.layers}) == 2


def test_prediction_layers_are_left_out_and_said_so() -> None:
    spec = build(DEEPSEEK_V3)
    assert any(note.startswith("1 multi-token-prediction layer is not counted") for note in spec.notes)
    assert build(without(DEEPSEEK_V3, "num_nextn_predict_layers")).notes == ()


def test_missing_top_k_is_said() -> None:
    spec = build(GEMMA4_26B, top_k_experts=None)
    assert any("top_k_experts is not stated" in note for note in spec.notes)


def test_kv_heads_what_if() -> None:
    spec = spec_from_config(MIXTRAL, name="t", source="t", overrides={"kv_heads": 1})
    assert kv_bytes(spec, 1) == 131_072 // 8
    with pytest.raises(UsageError, match="--kv-heads does not apply to model type 'deepseek_v3'"):
        spec_from_config(DEEPSEEK_V3, name="t", source="t", overrides={"kv_heads": 8})


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (GPT_OSS_20B, {"layer_types": ["sliding_attention", "mystery"] * 12}, "layer kind 'mystery'"),
        (DEEPSEEK_V32, {"layer_types": ["full_attention"] * 61}, "layer kind 'full_attention'"),
        (GLM_5_2, {"indexer_types": ["full", "half"] * 39}, "layer kind 'half'"),
        (DEEPSEEK_V3, {"mlp_layer_types": ["sparse", "hash"] * 31}, "layer kind 'hash'"),
        (DEEPSEEK_V4_FLASH, {"compress_ratios": [8] * 43}, "ratio 8 in compress_ratios"),
        (DEEPSEEK_V4_FLASH, {"mlp_layer_types": ["dense"] * 43}, "layer kind 'dense'"),
        (GEMMA4_26B, {"per_layer_config": {"5": {"num_attention_heads": 8}}}, "'num_attention_heads'"),
        (GEMMA4_26B, {"use_bidirectional_attention": "all"}, "an encoder keeps no cache"),
        ({"model_type": "hunyuan_v1_moe"}, {"use_cla": True}, "use_cla"),
        ({"model_type": "hunyuan_v1_moe"}, {"moe_topk": [1] * 31 + [2], "num_experts": 4}, "moe_topk"),
    ],
)
def test_unknown_kinds_are_refused_by_name(
    config: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        build(config, **changes)


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (MIXTRAL, {"num_experts_per_tok": 9}, "9 experts per token out of 8 is not possible"),
        (DBRX, {"ffn_config": {"moe_num_experts": 4, "moe_top_k": 5}}, "5 experts per token out of 4"),
        (DEEPSEEK_V3, {"n_routed_experts": 4}, "8 experts per token out of 4"),
        (GPT_OSS_20B, {"layer_types": ["full_attention"] * 23}, "lists 23 layers; num_hidden_layers is 24"),
        (MIMO, {"hybrid_layer_pattern": [0] * 47}, "hybrid_layer_pattern lists 47 layers"),
        (MIMO, {"moe_layer_freq": [0] * 47}, "moe_layer_freq lists 47 layers"),
        (DEEPSEEK_V4_FLASH, {"compress_ratios": [4] * 42}, "compress_ratios lists 42 layers"),
        (GLM_5_2, {"indexer_types": ["shared"] * 78}, "there is no layer before it"),
        (GEMMA3N, {"intermediate_size": [8192] * 34}, "lists 34 layers; num_hidden_layers is 35"),
        (GEMMA3N, {"num_kv_shared_layers": 35}, "leaves none of 35 layers"),
        (GEMMA3N, {"num_kv_shared_layers": 31}, "no earlier full layer keeps one"),
        (GEMMA4_26B, {"per_layer_config": {"30": {"head_dim": 512}}}, "'30' is not a layer of 30"),
        (DEEPSEEK_V3, {"kv_lora_rank": None}, "lacks kv_lora_rank"),
        (KIMI_K2, {"v_head_dim": None}, "config of type 'kimi_k2' lacks v_head_dim"),
        (DEEPSEEK_MOE_16B, {"n_routed_experts": None}, "config of type 'deepseek' lacks n_routed_experts"),
        (QWEN3_30B, {"num_experts": "128"}, "num_experts must be a whole number"),
        (MIXTRAL, {"num_key_value_heads": 5}, "32 query heads are not a multiple of 5"),
        (DBRX, {"n_heads": 47}, "6144 does not divide by 47 heads"),
    ],
)
def test_impossible_values_are_refused(config: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        build(config, **changes)


@pytest.mark.parametrize("key", ["q_lora_rank", "kv_lora_rank", "n_routed_experts", "first_k_dense_replace"])
def test_kimi_k2_must_state_its_sizes(key: str) -> None:
    with pytest.raises(ModelFileError, match=key):
        build(without(KIMI_K2, key))


def test_without_latent_attention_the_cache_has_heads() -> None:
    """``use_mla: false`` (DeepSeek-VL2-Tiny, DeepSeek-OCR) is DeepSeekMoE with a newer name."""
    plain = build(DEEPSEEK_MOE_16B, model_type="deepseek_v2", use_mla=False, kv_lora_rank=None)
    assert plain.parameters == 16_375_728_128
    assert kv_bytes(plain, 1) == 28 * 2 * 2048 * 2
