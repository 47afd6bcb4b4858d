"""Recurrent and hybrid families: published totals, cache and state bytes by literal value, kinds, refusals.

Configs hold the size keys of the public ``config.json`` of the named Hugging Face repository. Totals are what
the model classes of transformers 5.24.0 hold for that config (tied heads once, buffers left out). Where the
published count differs, the difference is named: Qwen3-Next's files add a multi-token-prediction layer,
llama.cpp and the hub count the routers' balancing biases, which are buffers.
"""

from __future__ import annotations

from typing import Any

import pytest

from headcount.errors import ModelFileError, UnsupportedModelError, UsageError
from headcount.spec.attention import FullAttention, LatentAttention, SlidingWindow, StateSpace
from headcount.spec.huggingface.config import spec_from_config
from headcount.spec.kv_format import kv_format
from headcount.spec.model import LayerSpec, ModelSpec
from headcount.spec.weight import EXPERTS, ROUTER, SHARED_EXPERTS, STATE_SPACE

BF16, FP8 = kv_format("bf16"), kv_format("fp8")


def build(config: dict[str, Any], **changes: Any) -> ModelSpec:
    return spec_from_config({**config, **changes}, name="test", source="test")


def states(spec: ModelSpec) -> list[StateSpace]:
    return [m for layer in spec.layers for m in layer.mixers if isinstance(m, StateSpace)]


def growing_bytes(spec: ModelSpec, context: int) -> int:
    return sum(
        m.kv_bytes(context, BF16)
        for layer in spec.layers
        for m in layer.mixers
        if not isinstance(m, StateSpace)
    )


def kinds(spec: ModelSpec) -> dict[str, int]:
    found: dict[str, int] = {}
    for layer in spec.layers:
        for m in layer.mixers:
            found[m.kind] = found.get(m.kind, 0) + 1
    return found


def stored(layer: LayerSpec) -> int:
    return sum(weight.parameters for weight in layer.weights)


NEMOTRON_H_8B = {
    "model_type": "nemotron_h", "vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 21504,
    "num_hidden_layers": 52, "num_attention_heads": 32, "num_key_value_heads": 8, "attention_head_dim": 128,
    "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4,
    "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
}  # fmt: skip
NEMOTRON_3_NANO = {
    "model_type": "nemotron_h", "vocab_size": 131072, "hidden_size": 2688, "intermediate_size": 1856,
    "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "mamba_num_heads": 64,
    "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128, "n_routed_experts": 128,
    "num_experts_per_tok": 6, "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
}  # fmt: skip
NEMOTRON_3_SUPER = {
    "model_type": "nemotron_h", "vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 2688,
    "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "mamba_num_heads": 128,
    "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128, "moe_latent_size": 1024,
    "n_routed_experts": 512, "num_experts_per_tok": 22, "moe_intermediate_size": 2688,
    "moe_shared_expert_intermediate_size": 5376, "num_nextn_predict_layers": 1, "num_hidden_layers": 88,
    "hybrid_override_pattern": "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*"
    "EMEMEMEM*EMEMEMEME",
}  # fmt: skip
QWEN3_NEXT_80B = {
    "model_type": "qwen3_next", "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5120,
    "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
    "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_key_head_dim": 128,
    "linear_num_value_heads": 32, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
    "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}  # fmt: skip
QWEN3_5_9B = {
    "model_type": "qwen3_5_text", "vocab_size": 248320, "hidden_size": 4096, "intermediate_size": 12288,
    "num_hidden_layers": 32, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256,
    "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_key_head_dim": 128,
    "linear_num_value_heads": 32, "linear_value_head_dim": 128, "mamba_ssm_dtype": "float32",
    "mtp_num_hidden_layers": 1,
}  # fmt: skip
JAMBA = {
    "model_type": "jamba", "vocab_size": 65536, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "num_experts": 16,
    "num_experts_per_tok": 2, "mamba_d_state": 16, "mamba_expand": 2, "mamba_dt_rank": 256,
}  # fmt: skip
MAMBA_130M = {
    "model_type": "mamba", "vocab_size": 50280, "hidden_size": 768, "state_size": 16, "num_hidden_layers": 24,
}  # fmt: skip
FALCON_MAMBA_7B = {
    "model_type": "falcon_mamba", "vocab_size": 65024, "hidden_size": 4096, "state_size": 16,
    "num_hidden_layers": 64, "expand": 16, "intermediate_size": 8192, "tie_word_embeddings": False,
}  # fmt: skip
CODESTRAL_MAMBA = {
    "model_type": "mamba2", "vocab_size": 32768, "hidden_size": 4096, "state_size": 128, "n_groups": 8,
    "num_hidden_layers": 64, "num_heads": 128, "head_dim": 64,
}  # fmt: skip
KIMI_FULL = [4, 8, 12, 16, 20, 24, 27]
KIMI_LINEAR = {
    "model_type": "kimi_linear", "vocab_size": 163840, "hidden_size": 2304, "intermediate_size": 9216,
    "moe_intermediate_size": 1024, "num_hidden_layers": 27, "num_attention_heads": 32, "kv_lora_rank": 512,
    "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "num_experts": 256,
    "num_experts_per_token": 8, "num_shared_experts": 1, "first_k_dense_replace": 1,
    "linear_attn_config": {
        "full_attn_layers": KIMI_FULL, "kda_layers": [i for i in range(1, 28) if i not in KIMI_FULL],
        "head_dim": 128, "num_heads": 32, "short_conv_kernel_size": 4,
    },
}  # fmt: skip
LFM2_1B = {
    "model_type": "lfm2", "vocab_size": 65536, "hidden_size": 2048, "block_ff_dim": 12288,
    "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
    "full_attn_idxs": [2, 5, 8, 10, 12, 14],
}  # fmt: skip
LFM2_8B = {
    "model_type": "lfm2_moe", "vocab_size": 65536, "hidden_size": 2048, "intermediate_size": 7168,
    "moe_intermediate_size": 1792, "num_hidden_layers": 24, "num_attention_heads": 32,
    "num_key_value_heads": 8, "num_dense_layers": 2, "num_experts": 32, "num_experts_per_tok": 4,
    "layer_types": ["full_attention" if i in (2, 6, 10, 14, 18, 21) else "conv" for i in range(24)],
}  # fmt: skip
MINIMAX_01 = {
    "model_type": "minimax", "vocab_size": 200064, "hidden_size": 6144, "intermediate_size": 9216,
    "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
    "num_local_experts": 32, "num_experts_per_tok": 2, "attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1] * 10,
}  # fmt: skip
GRANITE_4_SMALL = {
    "model_type": "granitemoehybrid", "vocab_size": 100352, "hidden_size": 4096, "intermediate_size": 768,
    "shared_intermediate_size": 1536, "num_hidden_layers": 40, "num_attention_heads": 32,
    "num_key_value_heads": 8, "num_local_experts": 72, "num_experts_per_tok": 10, "mamba_n_heads": 128,
    "mamba_d_head": 64, "mamba_d_state": 128, "tie_word_embeddings": True,
    "layer_types": ["attention" if i in (5, 15, 25, 35) else "mamba" for i in range(40)],
}  # fmt: skip
FALCON_H1_500M = {
    "model_type": "falcon_h1", "vocab_size": 32784, "hidden_size": 1024, "intermediate_size": 2048,
    "num_hidden_layers": 36, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
    "mamba_d_ssm": 1536, "mamba_n_heads": 24, "mamba_d_head": 64, "mamba_d_state": 128,
}  # fmt: skip
BAMBA_9B = {
    "model_type": "bamba", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "mamba_n_heads": 128,
    "mamba_d_head": 64, "mamba_d_state": 128, "attn_layer_indices": [9, 18, 27],
}  # fmt: skip
ZAMBA2_1B = {
    "model_type": "zamba2", "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 8192,
    "num_hidden_layers": 38, "num_attention_heads": 32, "num_key_value_heads": 32, "n_mamba_heads": 64,
    "mamba_d_state": 128, "num_mem_blocks": 1, "use_shared_attention_adapter": True, "adapter_rank": 128,
    "layers_block_type": ["hybrid" if i in (5, 11, 17, 23, 29, 35) else "mamba" for i in range(38)],
}  # fmt: skip
RECURRENT_GEMMA_2B = {
    "model_type": "recurrent_gemma", "vocab_size": 256000, "hidden_size": 2560, "intermediate_size": 15360,
    "num_hidden_layers": 26, "num_attention_heads": 10, "num_key_value_heads": 1, "lru_width": 2560,
}  # fmt: skip
OLMO_HYBRID_7B = {"model_type": "olmo_hybrid"}


@pytest.mark.parametrize(
    ("config", "total"),
    [
        (MAMBA_130M, 129_135_360),
        (FALCON_MAMBA_7B, 7_272_665_088),
        (CODESTRAL_MAMBA, 7_285_403_648),
        (JAMBA, 51_570_323_328),
        (NEMOTRON_H_8B, 8_100_852_736),
        # llama.cpp and the hub say 31,577,940,288: with 128 balancing biases in each of 23 routers.
        (NEMOTRON_3_NANO, 31_577_940_288 - 23 * 128),
        (NEMOTRON_3_SUPER, 120_668_687_360),
        (QWEN3_NEXT_80B, 79_674_391_296),
        (QWEN3_5_9B, 8_953_803_264),
        # The hub says 49,122,681,728: with 256 balancing biases in each of 26 routers.
        (KIMI_LINEAR, 49_122_681_728 - 26 * 256),
        (LFM2_1B, 1_170_340_608),
        (LFM2_8B, 8_339_929_856),
        (MINIMAX_01, 456_089_655_296),
        (GRANITE_4_SMALL, 32_207_337_984),
        (FALCON_H1_500M, 521_411_104),
        (BAMBA_9B, 9_780_235_392),
        (ZAMBA2_1B, 1_215_064_704),
        (RECURRENT_GEMMA_2B, 2_682_862_080),
        (OLMO_HYBRID_7B, 7_430_870_688),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else None,
)
def test_published_totals(config: dict[str, Any], total: int) -> None:
    assert build(config).parameters == total


def test_qwen3_next_files_add_one_prediction_layer() -> None:
    """The hub's 81,324,862,720 is the model, one more full layer, a 2 D x D projection and three norms."""
    spec = build(QWEN3_NEXT_80B)
    assert spec.parameters + stored(spec.layers[3]) + 2 * 2048 * 2048 + 3 * 2048 == 81_324_862_720


def test_nemotron_h_8b_cache() -> None:
    spec = build(NEMOTRON_H_8B)
    assert kinds(spec) == {"state": 24, "full": 4}
    assert len(spec.layers) == 52
    assert growing_bytes(spec, 8192) == 134_217_728  # 0.125 GiB
    # (8192 + 2 x 8 x 128) x 3 inputs in bf16; 128 heads x 64 x 128 in float32 (the class default).
    assert {m.state_bytes(2) for m in states(spec)} == {61_440 + 4_194_304}
    assert {m.kv_bytes(n, BF16) for m in states(spec) for n in (1, 8192)} == {4_255_744}
    assert {m.family for m in states(spec)} == {"mamba2"}


def test_qwen3_next_cache() -> None:
    spec = build(QWEN3_NEXT_80B)
    assert kinds(spec) == {"state": 36, "full": 12}
    assert [i for i, layer in enumerate(spec.layers) if isinstance(layer.mixers[0], FullAttention)] == list(
        range(3, 48, 4)
    )
    assert growing_bytes(spec, 32_768) == 805_306_368  # 0.75 GiB
    state = states(spec)[0]
    assert (2 * state.conv_elements, 2 * state.recurrent_elements) == (49_152, 1_048_576)
    assert state.kv_bytes(32_768, BF16) == 1_097_728
    assert state.kv_bytes(32_768, FP8) == 1_097_728
    assert state.kv_bytes(0, BF16) == 0


def test_qwen3_next_gate_doubles_the_query_projection() -> None:
    shapes = {w.name: w.shape for w in build(QWEN3_NEXT_80B).layers[3].weights}
    assert shapes["model.layers.{i}.self_attn.q_proj"] == (2 * 16 * 256, 2048)
    assert shapes["model.layers.{i}.self_attn.o_proj"] == (2048, 16 * 256)
    assert shapes["model.layers.{i}.mlp.shared_expert_gate"] == (1, 2048)


@pytest.mark.parametrize(
    ("config", "family", "conv", "recurrent", "dtype_bytes"),
    [
        (MAMBA_130M, "mamba1", 1536 * 3, 1536 * 16, None),
        (FALCON_MAMBA_7B, "mamba1", 8192 * 3, 8192 * 16, None),
        (JAMBA, "mamba1", 8192 * 3, 8192 * 16, None),
        (CODESTRAL_MAMBA, "mamba2", 10_240 * 3, 8192 * 128, None),
        (BAMBA_9B, "mamba2", 8448 * 3, 8192 * 128, None),
        (FALCON_H1_500M, "mamba2", 1792 * 3, 1536 * 128, None),
        (ZAMBA2_1B, "mamba2", 4352 * 3, 4096 * 128, None),
        (QWEN3_5_9B, "gated_delta_net", 8192 * 3, 32 * 128 * 128, 4),
        (OLMO_HYBRID_7B, "gated_delta_net", (2 * 2880 + 5760) * 3, 30 * 96 * 192, None),
        (KIMI_LINEAR, "kimi_delta", 3 * 4096 * 3, 32 * 128 * 128, 4),
        (LFM2_1B, "short_conv", 2048 * 2, 0, None),
        (MINIMAX_01, "lightning", 0, 64 * 128 * 128, 4),
        (RECURRENT_GEMMA_2B, "rg_lru", 2560 * 3, 2560, 4),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else None,
)
def test_state_sizes(
    config: dict[str, Any], family: str, conv: int, recurrent: int, dtype_bytes: int | None
) -> None:
    """K - 1 columns of convolution inputs and the recurrent state, per layer."""
    found = {
        (m.family, m.conv_elements, m.recurrent_elements, m.recurrent_dtype_bytes)
        for m in states(build(config))
    }
    assert found == {(family, conv, recurrent, dtype_bytes)}


def test_kimi_lists_count_from_one() -> None:
    spec = build(KIMI_LINEAR)
    latent = [i + 1 for i, layer in enumerate(spec.layers) if isinstance(layer.mixers[0], LatentAttention)]
    assert latent == KIMI_FULL
    assert growing_bytes(spec, 1) == 7 * 1152
    assert spec.layers[0].feed_forward is not None and spec.layers[0].feed_forward.experts == 0
    assert spec.layers[1].feed_forward is not None and spec.layers[1].feed_forward.experts == 256


def test_falcon_h1_keeps_both_in_every_block() -> None:
    spec = build(FALCON_H1_500M)
    assert kinds(spec) == {"full": 36, "state": 36}
    assert all(len(layer.mixers) == 2 for layer in spec.layers)


def test_jamba_periods() -> None:
    spec = build(JAMBA)
    full = [i for i, layer in enumerate(spec.layers) if isinstance(layer.mixers[0], FullAttention)]
    assert full == [4, 12, 20, 28]
    moe = [i for i, layer in enumerate(spec.layers) if layer.feed_forward and layer.feed_forward.experts]
    assert moe == list(range(1, 32, 2))


def test_zamba2_stores_the_block_once_and_keeps_a_cache_per_call() -> None:
    spec = build(ZAMBA2_1B)
    assert kinds(spec) == {"state": 38, "full": 6}
    # 32 heads of 2 x 2048 / 32 = 128, keys and values, bf16, six calls.
    assert growing_bytes(spec, 1) == 6 * 2 * 32 * 128 * 2
    holders = [
        i
        for i, layer in enumerate(spec.layers)
        if any(w.name.endswith("shared_transformer.self_attn.q_proj") for w in layer.weights)
    ]
    assert holders == [5]
    query = next(w for w in spec.layers[5].weights if w.name.endswith("self_attn.q_proj"))
    assert (query.parameters, query.active_parameters) == (4096 * 4096, 6 * 4096 * 4096)


def test_recurrent_gemma_window() -> None:
    spec = build(RECURRENT_GEMMA_2B)
    assert kinds(spec) == {"state": 18, "sliding": 8}
    window = spec.layers[2].mixers[0]
    assert isinstance(window, SlidingWindow) and window.window == 2048
    assert growing_bytes(spec, 100_000) == growing_bytes(spec, 2048) == 8 * 2048 * 2 * 256 * 2


def test_minimax_and_lfm2_kinds() -> None:
    assert kinds(build(MINIMAX_01)) == {"state": 70, "full": 10}
    assert kinds(build(LFM2_1B)) == {"state": 10, "full": 6}
    assert kinds(build(LFM2_8B)) == {"state": 18, "full": 6}


def test_nemotron_words_and_letters_agree() -> None:
    words = {"M": "mamba", "-": "mlp", "*": "attention", "E": "moe"}
    pattern = str(NEMOTRON_3_NANO["hybrid_override_pattern"])
    by_words = build(
        {k: v for k, v in NEMOTRON_3_NANO.items() if k != "hybrid_override_pattern"},
        layers_block_type=[words[letter] for letter in pattern],
    )
    assert by_words.layers == build(NEMOTRON_3_NANO).layers


def test_nemotron_latent_experts() -> None:
    """Experts work 1024 wide, the router and the shared expert 4096; 22 of 512 run."""
    layer = build(NEMOTRON_3_SUPER).layers[1]
    by_part = {
        part: [w for w in layer.weights if w.part == part] for part in (EXPERTS, ROUTER, SHARED_EXPERTS)
    }
    assert [(w.shape, w.copies, w.active) for w in by_part[EXPERTS]] == [
        ((2688, 1024), 512, 22),
        ((1024, 2688), 512, 22),
    ]
    assert [w.shape for w in by_part[ROUTER]] == [(512, 4096)]
    assert [w.shape for w in by_part[SHARED_EXPERTS]] == [(5376, 4096), (4096, 5376)]


def test_state_dtype_follows_the_config() -> None:
    assert states(build(NEMOTRON_H_8B, mamba_ssm_cache_dtype="bfloat16"))[0].recurrent_dtype_bytes == 2
    assert states(build(NEMOTRON_H_8B, mamba_ssm_cache_dtype="auto"))[0].recurrent_dtype_bytes is None
    with pytest.raises(ModelFileError, match="mamba_ssm_cache_dtype 'int3'"):
        build(NEMOTRON_H_8B, mamba_ssm_cache_dtype="int3")


def test_prediction_layers_are_noted() -> None:
    assert any("multi-token-prediction" in note for note in build(QWEN3_5_9B).notes)
    assert any("multi-token-prediction" in note for note in build(NEMOTRON_3_SUPER).notes)


def test_recurrent_weights_have_their_part() -> None:
    for config in (MAMBA_130M, QWEN3_NEXT_80B, KIMI_LINEAR, LFM2_1B, MINIMAX_01, RECURRENT_GEMMA_2B):
        layer = build(config).layers[0]
        assert any(w.part == STATE_SPACE and w.linear for w in layer.weights)


@pytest.mark.parametrize(
    ("config", "changes", "word"),
    [
        (NEMOTRON_H_8B, {"hybrid_override_pattern": "MX*-"}, "'X'"),
        (NEMOTRON_H_8B, {"layers_block_type": ["mamba", "wavelet"]}, "'wavelet'"),
        (NEMOTRON_H_8B, {"block_configs": [{}]}, "block_configs"),
        (QWEN3_NEXT_80B, {"layer_types": ["retention"] * 48}, "'retention'"),
        (GRANITE_4_SMALL, {"layer_types": ["conv"] * 40}, "'conv'"),
        (ZAMBA2_1B, {"layers_block_type": ["attention"] * 38}, "'attention'"),
        (LFM2_1B, {"layer_types": ["linear_attention"] * 16}, "'linear_attention'"),
        (RECURRENT_GEMMA_2B, {"block_types": ["recurrent", "global"]}, "'global'"),
        (MINIMAX_01, {"attn_type_list": [2] * 80}, "attn_type_list"),
    ],
)
def test_unknown_kinds_are_refused_by_name(
    config: dict[str, Any], changes: dict[str, Any], word: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=word):
        build(config, **changes)


@pytest.mark.parametrize(
    ("config", "changes", "word"),
    [
        (CODESTRAL_MAMBA, {"head_dim": 100}, "do not fill the inner width 8192"),
        (JAMBA, {"attn_layer_offset": 8}, "attn_layer_offset 8 must be below"),
        (JAMBA, {"num_experts_per_tok": 17}, "17 experts per token out of 16"),
        (GRANITE_4_SMALL, {"num_experts_per_tok": 73}, "73 experts per token out of 72"),
        (ZAMBA2_1B, {"num_hidden_layers": 40}, "lists 38 layers; num_hidden_layers is 40"),
        (KIMI_LINEAR, {"num_hidden_layers": 28}, "must name each layer, 1 to 28"),
        (KIMI_LINEAR, {"linear_attn_config": {"full_attn_layers": KIMI_FULL}}, "must name each layer"),
        (LFM2_8B, {"layer_types": None}, "lacks layer_types"),
        (LFM2_1B, {"block_ffn_dim_multiplier": -1.0}, "block_ffn_dim_multiplier"),
        (NEMOTRON_H_8B, {"hybrid_override_pattern": ""}, "hybrid_override_pattern"),
        (NEMOTRON_H_8B, {"mamba_num_heads": 2.5}, "mamba_num_heads"),
        (MAMBA_130M, {"time_step_rank": "many"}, "time_step_rank"),
    ],
)
def test_contradictions_are_refused(config: dict[str, Any], changes: dict[str, Any], word: str) -> None:
    with pytest.raises(ModelFileError, match=word):
        build(config, **changes)


def test_kv_heads_what_if() -> None:
    def with_heads(config: dict[str, Any], heads: int) -> ModelSpec:
        return spec_from_config(config, name="test", source="test", overrides={"kv_heads": heads})

    assert growing_bytes(with_heads(NEMOTRON_H_8B, 4), 8192) == 67_108_864
    for config in (MAMBA_130M, CODESTRAL_MAMBA, KIMI_LINEAR):
        with pytest.raises(UsageError, match="does not apply"):
            with_heads(config, 1)
