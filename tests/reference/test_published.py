"""Parameters of released models against recalled counts: old spellings, untied heads, types without a class.

The configs and most counts are general knowledge of the published files, not re-read from them; flan-t5-base and
flan-t5-xxl were also worked out from a closed form. Check a count against its hub page before citing it as sourced.
"""

from __future__ import annotations

from typing import Any

import pytest

from headcount.spec.attention import CrossAttention, FullAttention
from headcount.spec.huggingface.config import spec_from_config
from headcount.spec.model import ModelSpec

GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "vocab_size": 32128, "d_kv": 64}
WHISPER = {"model_type": "whisper", "vocab_size": 51865}

RELEASED: dict[str, tuple[int, dict[str, Any]]] = {
    # First releases: another model_type, GPT-2's spellings, no new_decoder_architecture.
    "falcon-7b": (
        6_921_720_704,
        {
            "model_type": "RefinedWebModel", "alibi": False, "bias": False, "hidden_size": 4544, "multi_query": True,
            "n_head": 71, "n_layer": 32, "parallel_attn": True, "vocab_size": 65024,
        },
    ),
    "falcon-40b": (
        41_303_293_952,
        {
            "model_type": "RefinedWeb", "alibi": False, "bias": False, "hidden_size": 8192, "n_head": 128,
            "n_head_kv": 8, "n_layer": 60, "parallel_attn": True, "vocab_size": 65024,
        },
    ),
    "gpt2": (124_439_808, {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_ctx": 1024}),
    "bloom": (
        176_247_271_424,
        {"model_type": "bloom", "n_embed": 14336, "n_layer": 70, "num_attention_heads": 112, "vocab_size": 250880},
    ),
    "gpt-j-6b": (6_050_882_784, {"model_type": "gptj"}),
    "gpt-neo-1.3B": (1_315_575_808, {"model_type": "gpt_neo"}),
    "pythia-6.9b": (
        6_857_302_016,
        {
            "model_type": "gpt_neox", "hidden_size": 4096, "intermediate_size": 16384, "num_attention_heads": 32,
            "num_hidden_layers": 32, "vocab_size": 50432,
        },
    ),
    "codegen-350M-mono": (
        356_712_448,
        {"model_type": "codegen", "n_embd": 1024, "n_head": 16, "n_layer": 20, "vocab_size": 51200},
    ),
    "opt-350m": (
        331_196_416,
        {
            "model_type": "opt", "do_layer_norm_before": False, "ffn_dim": 4096, "hidden_size": 1024,
            "num_attention_heads": 16, "num_hidden_layers": 24, "word_embed_proj_dim": 512,
        },
    ),
    "phi-2": (
        2_779_683_840,
        {"model_type": "phi", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 32},
    ),
    "mpt-7b": (
        6_649_286_656,
        {"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "vocab_size": 50432},
    ),
    "starcoder": (
        15_517_456_384,
        {
            "model_type": "gpt_bigcode", "multi_query": True, "n_embd": 6144, "n_head": 48, "n_inner": 24576,
            "n_layer": 40, "n_positions": 8192, "vocab_size": 49152,
        },
    ),
    # Encoder-decoders; the 1.1 checkpoints hold a head of their own.
    "t5-small": (60_506_624, {"model_type": "t5"}),
    "flan-t5-base": (
        247_577_856,
        {"model_type": "t5", **GATED, "d_model": 768, "d_ff": 2048, "num_heads": 12, "num_layers": 12},
    ),
    "flan-t5-xxl": (
        11_135_332_352,
        {"model_type": "t5", **GATED, "d_model": 4096, "d_ff": 10240, "num_heads": 64, "num_layers": 24},
    ),
    "mt5-small": (300_176_768, {"model_type": "mt5", "tie_word_embeddings": False}),
    "bart-large": (406_291_456, {"model_type": "bart"}),
    "mbart-large-50": (610_879_488, {"model_type": "mbart", "vocab_size": 250054}),
    "whisper-tiny": (37_760_640, WHISPER),
    "whisper-large-v2": (
        1_543_304_960,
        {
            **WHISPER, "d_model": 1280, "decoder_attention_heads": 20, "decoder_ffn_dim": 5120, "decoder_layers": 32,
            "encoder_attention_heads": 20, "encoder_ffn_dim": 5120, "encoder_layers": 32,
        },
    ),
    # Types whose code lives in the model's own repository: no class to compare with.
    "Baichuan2-7B-Base": (
        7_505_973_248,
        {
            "model_type": "baichuan", "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32,
            "num_hidden_layers": 32, "vocab_size": 125696,
        },
    ),
    "chatglm2-6b": (
        6_243_584_000,
        {
            "model_type": "chatglm", "add_bias_linear": False, "add_qkv_bias": True, "ffn_hidden_size": 13696,
            "hidden_size": 4096, "kv_channels": 128, "multi_query_attention": True, "multi_query_group_num": 2,
            "num_attention_heads": 32, "num_layers": 28, "padded_vocab_size": 65024,
        },
    ),
    "internlm2-7b": (
        7_737_708_544,
        {
            "model_type": "internlm2", "bias": False, "hidden_size": 4096, "intermediate_size": 14336,
            "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 92544,
        },
    ),
    "Qwen-7B": (
        7_721_324_544,
        {
            "model_type": "qwen", "hidden_size": 4096, "intermediate_size": 22016, "kv_channels": 128,
            "num_attention_heads": 32, "num_hidden_layers": 32, "vocab_size": 151936,
        },
    ),
}  # fmt: skip


def build(config: dict[str, Any], **overrides: int) -> ModelSpec:
    return spec_from_config(config, name="test", source="test", overrides=overrides or None)


@pytest.mark.parametrize("name", RELEASED)
def test_parameters_as_published(name: str) -> None:
    published, config = RELEASED[name]
    assert build(config).parameters == published


def test_untied_t5() -> None:
    """Google's T5 1.1 checkpoints: the head is V x D on top of the tied count."""
    untied = RELEASED["flan-t5-base"][1]
    tied = build({**untied, "tie_word_embeddings": True}).parameters
    assert build(untied).parameters - tied == 32128 * 768


def test_key_value_heads_of_the_first_falcons() -> None:
    """One head in the 7B (multi-query), eight in the 40B (model cards)."""
    for name, heads in (("falcon-7b", 1), ("falcon-40b", 8)):
        (mixer,) = build(RELEASED[name][1]).layers[0].mixers
        assert isinstance(mixer, FullAttention)
        assert mixer.num_key_value_heads == heads


def test_whisper_remembers_1500_source_positions() -> None:
    """30 seconds of audio, one position every 20 ms (arXiv 2212.04356, section 2.2)."""
    own, cross = build(RELEASED["whisper-tiny"][1]).layers[0].mixers
    assert isinstance(own, FullAttention)
    assert isinstance(cross, CrossAttention)
    assert cross.tokens_kept(1) == cross.tokens_kept(448) == 1500


def test_fewer_heads_change_the_decoder_of_t5_only() -> None:
    """GQA leaves the encoder as it is (arXiv 2305.13245, section 3.1): 4 D (N - K) H less in each decoder layer."""
    config = {"model_type": "t5"}
    grouped, full = build(config, kv_heads=2), build(config)
    assert grouped.encoder == full.encoder
    assert full.parameters - grouped.parameters == 6 * 4 * 512 * (8 - 2) * 64
