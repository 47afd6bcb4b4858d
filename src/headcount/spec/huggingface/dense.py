"""Dense decoders of the Llama family: one ``Style`` per ``model_type``.

Sources: the model classes of transformers 5.24.0; every count is tested against
those classes built without allocating weights (tests/reference/test_parameters.py).
"""

from __future__ import annotations

from headcount.errors import ModelFileError
from headcount.spec.huggingface.keys import Keys
from headcount.spec.huggingface.parts import LAYER, SANDWICH_NORMS, HeadShape, layer_kinds, window_of
from headcount.spec.huggingface.style import Style, after_max_window_layers, all_sliding, build, every
from headcount.spec.model import ModelSpec
from headcount.spec.weight import Weight, vector

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def _exaone4_kinds(keys: Keys, count: int) -> list[str]:
    """One full layer in ``sliding_window_pattern`` (a number, or a word such as ``LLLG`` with G global)."""
    pattern = keys.value("sliding_window_pattern")
    sliding = window_of(keys) > 0
    if isinstance(pattern, str) and pattern:
        word = pattern.upper()
        return layer_kinds(
            keys, count, fallback=lambda i: "full" if word[i % len(word)] == "G" or not sliding else "sliding"
        )
    period = 4 if pattern is None else keys.checked("sliding_window_pattern", pattern)
    return layer_kinds(
        keys, count, fallback=lambda i: "full" if not sliding or (i + 1) % period == 0 else "sliding"
    )


def _smollm3_kinds(keys: Keys, count: int) -> list[str]:
    """Layers with rotary positions slide, and only when ``use_sliding_window``; released models are all full."""
    sliding = keys.flag("use_sliding_window") and window_of(keys) > 0
    rope = keys.integers("no_rope_layers")
    period = keys.integer("no_rope_layer_interval", default=4)
    has_rope = [bool(flag) for flag in rope] if rope else [(i + 1) % period != 0 for i in range(count)]
    if len(has_rope) < count:
        raise ModelFileError(
            f"config key no_rope_layers lists {len(has_rope)} layers; num_hidden_layers is {count}"
        )
    return layer_kinds(keys, count, fallback=lambda i: "sliding" if sliding and has_rope[i] else "full")


def _gemma3_kinds(keys: Keys, count: int) -> list[str]:
    """Every sixth layer full; old configs say ``sliding_window_pattern``, new ones ``_sliding_window_pattern``."""
    period = keys.optional_integer("sliding_window_pattern", "_sliding_window_pattern") or 6
    return layer_kinds(keys, count, fallback=lambda i: "full" if (i + 1) % period == 0 else "sliding")


def _ministral_kinds(keys: Keys, count: int) -> list[str]:
    kind = "sliding" if window_of(keys) else "full"
    return layer_kinds(keys, count, fallback=lambda i: kind)


def _cohere_norms(keys: Keys, shape: HeadShape) -> tuple[Weight, ...]:
    """Command-R+ normalises queries and keys per head with a gain for each head."""
    if not keys.flag("use_qk_norm"):
        return ()
    path = LAYER + "self_attn."
    return (
        vector(path + "q_norm", "norm", shape.q, shape.d),
        vector(path + "k_norm", "norm", shape.kv, shape.d),
    )


def _apertus_extra(keys: Keys, shape: HeadShape) -> tuple[Weight, ...]:
    """The xIELU activation learns two scalars per layer (arXiv 2411.13010)."""
    return (
        vector(LAYER + "mlp.act_fn.alpha_p", "other", 1),
        vector(LAYER + "mlp.act_fn.alpha_n", "other", 1),
    )


_BIAS = "attention_bias"
_QWEN2 = Style(qkv_bias=True, kinds=after_max_window_layers)
_GEMMA = Style(qkv_bias=_BIAS, o_bias=_BIAS, head_dim=256)
_LLAMA = Style(qkv_bias=_BIAS, o_bias=_BIAS, ffn_bias="mlp_bias")
_OLMO2_NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")

STYLES: dict[str, Style] = {
    "llama": _LLAMA,
    "mistral": Style(kinds=all_sliding),
    "ministral": Style(kinds=_ministral_kinds),
    "ministral3": Style(kinds=all_sliding),
    "qwen2": _QWEN2,
    "qwen2_vl_text": _QWEN2.replace(ignores_head_dim=True),
    "qwen2_5_vl_text": _QWEN2.replace(ignores_head_dim=True),
    "qwen2_5_omni_text": _QWEN2,
    "qwen3": Style(qkv_bias=_BIAS, o_bias=_BIAS, qk_norm="head", head_dim=128, kinds=after_max_window_layers),
    "qwen3_vl_text": Style(qkv_bias=_BIAS, o_bias=_BIAS, qk_norm="head", head_dim=128),
    "seed_oss": Style(qkv_bias=_BIAS, o_bias="attention_out_bias", ffn_bias="mlp_bias"),
    "smollm3": _LLAMA.replace(kinds=_smollm3_kinds),
    "ernie4_5": Style(qkv_bias="use_bias", o_bias="use_bias", ffn_bias="use_bias"),
    "internlm3": Style(qkv_bias="qkv_bias", o_bias="bias", ffn_bias="bias"),
    "internlm2": Style(qkv_bias="bias", o_bias="bias"),
    "glm": Style(qkv_bias=_BIAS),
    "glm4": Style(qkv_bias=_BIAS, norm_names=SANDWICH_NORMS),
    "glm4v_text": Style(qkv_bias=True, norm_names=SANDWICH_NORMS, ignores_head_dim=True),
    "helium": Style(qkv_bias=_BIAS, ffn_bias="mlp_bias", square_output=True),
    "exaone": Style(qkv_bias=_BIAS, o_bias=_BIAS, ffn_bias="mlp_bias"),
    "exaone4": Style(qk_norm="head", norm_names=_OLMO2_NORMS, kinds=_exaone4_kinds),
    "granite": _LLAMA.replace(),
    "cwm": Style(ffn_bias="mlp_bias", kinds=every(4, first=True)),
    "arcee": Style(qkv_bias=_BIAS, o_bias=_BIAS, ffn_bias="mlp_bias", matrices=2),
    "nemotron": Style(qkv_bias=_BIAS, o_bias=_BIAS, ffn_bias="mlp_bias", matrices=2, norm_bias=True),
    "apertus": Style(
        qkv_bias=_BIAS,
        o_bias=_BIAS,
        ffn_bias="mlp_bias",
        matrices=2,
        qk_norm="head",
        layer_extra=_apertus_extra,
    ),
    "hunyuan_v1_dense": Style(qkv_bias=_BIAS, o_bias=_BIAS, qk_norm="head"),
    "gemma": _GEMMA,
    "gemma2": _GEMMA.replace(norm_names=SANDWICH_NORMS, kinds=every(2)),
    "gemma3_text": _GEMMA.replace(norm_names=SANDWICH_NORMS, qk_norm="head", kinds=_gemma3_kinds),
    "vaultgemma": _GEMMA.replace(kinds=every(2)),
    "phi3": Style(kinds=all_sliding),
    "starcoder2": Style(
        qkv_bias="use_bias",
        o_bias="use_bias",
        ffn_bias="use_bias",
        bias_default=True,
        matrices=2,
        norm_bias=True,
        kinds=all_sliding,
    ),
    # OLMo 1 normalises without any parameter.
    "olmo": Style(qkv_bias=_BIAS, o_bias=_BIAS, norm_names=()),
    "olmo2": Style(qkv_bias=_BIAS, o_bias=_BIAS, qk_norm="full", norm_names=_OLMO2_NORMS),
    "olmo3": Style(
        qkv_bias=_BIAS,
        o_bias=_BIAS,
        qk_norm="full",
        norm_names=_OLMO2_NORMS,
        kinds=every(4),
    ),
    # Command-R is a parallel block: one norm feeds attention and feed-forward.
    "cohere": Style(
        qkv_bias=_BIAS,
        o_bias=_BIAS,
        norm_names=("input_layernorm",),
        layer_extra=_cohere_norms,
    ),
    "cohere2": Style(
        qkv_bias=_BIAS,
        o_bias=_BIAS,
        norm_names=("input_layernorm",),
        kinds=every(4, key="sliding_window_pattern"),
    ),
}


def _qwen1(keys: Keys) -> ModelSpec:
    """Qwen 1 (remote code): no grouped heads; the config's intermediate_size is twice the real width."""
    config = {
        **keys.config,
        "intermediate_size": keys.divided("intermediate_size", keys.integer("intermediate_size"), 2),
    }
    config.pop("num_key_value_heads", None)
    if keys.value("kv_channels") is not None:
        config["head_dim"] = keys.integer("kv_channels")
    return build(_with(keys, config), Style(qkv_bias=True))


def _baichuan(keys: Keys) -> ModelSpec:
    """Baichuan 1 and 2 (remote code): one fused W_pack of 3 D, no grouped heads, no biases."""
    config = {**keys.config}
    config.pop("num_key_value_heads", None)
    return build(_with(keys, config), Style())


def _chatglm(keys: Keys) -> ModelSpec:
    """ChatGLM 2 and 3, GLM-4-9B (remote code): own key names, grouped heads in ``multi_query_group_num``."""
    q = keys.integer("num_attention_heads")
    grouped = keys.flag("multi_query_attention")
    bias = keys.flag("add_bias_linear")
    config = {
        **keys.config,
        "num_hidden_layers": keys.layer_count("num_layers", "num_hidden_layers"),
        "num_key_value_heads": keys.integer("multi_query_group_num")
        if grouped
        else keys.integer("num_key_value_heads", default=q),
        "intermediate_size": keys.integer("ffn_hidden_size", "intermediate_size"),
        "vocab_size": keys.integer("padded_vocab_size", "vocab_size"),
        "max_position_embeddings": keys.integer("seq_length", "max_position_embeddings", default=32768),
    }
    if keys.value("kv_channels") is not None:
        config["head_dim"] = keys.integer("kv_channels")
    style = Style(qkv_bias=keys.flag("add_qkv_bias") or bias, o_bias=bias, ffn_bias=bias)
    return build(_with(keys, config), style)


def _with(keys: Keys, config: dict[str, object]) -> Keys:
    """The same keys over a translated config."""
    return keys.over(config)


def _styled(style: Style) -> Callable[[Keys], ModelSpec]:
    return lambda keys: build(keys, style)


BUILDERS: dict[str, Callable[[Keys], ModelSpec]] = {
    **{model_type: _styled(style) for model_type, style in STYLES.items()},
    "qwen": _qwen1,
    "baichuan": _baichuan,
    "chatglm": _chatglm,
}
