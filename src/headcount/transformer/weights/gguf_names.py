"""GGUF's tensor names: one table for all architectures, and what each one's converter did to the numbers.

    llama                   query and key rows of every head are stored in rotary pairs          halves by H
    gemma, gemma2, gemma3   norms are stored as 1 + w, ours (and the original files) hold w      minus 1
    falcon, bloom           heads of the fused projection are put together: all queries, all keys, all values
    phi3                    gate and up are one tensor, gate first
    gpt2                    (inputs, outputs) is turned into (outputs, inputs)

Source: the tensor names of gguf 0.19 (``tensor_mapping.py``) and llama.cpp's converter (``convert_hf_to_gguf.py``, 2026-11).
An architecture that is not listed is refused: names alone do not say what its converter did.

``rope_freqs.weight`` (Llama 3.1's frequency factors) and ``rope_factors_long/short.weight`` (Phi-3) are no parameters:
``gguf_settings.py`` reads them.
"""

from __future__ import annotations

from headcount.errors import UnsupportedModelError, nearest
from headcount.spec.checkpoint import shown
from headcount.transformer.weights.names import Row, read_names

COMMON = """
embedding.weight                            token_embd.weight
embedding_norm.weight                       token_embd_norm.weight
embedding_norm.bias                         token_embd_norm.bias
positions.weight                            position_embd.weight
norm.weight                                 output_norm.weight
norm.bias                                   output_norm.bias
head.weight                                 output.weight
head.bias                                   output.bias

layers.{i}.norms.mixer.weight               blk.{i}.attn_norm.weight
layers.{i}.norms.mixer.bias                 blk.{i}.attn_norm.bias
layers.{i}.norms.shared.weight              blk.{i}.attn_norm.weight
layers.{i}.norms.shared.bias                blk.{i}.attn_norm.bias
layers.{i}.norms.feed_forward.weight        blk.{i}.ffn_norm.weight
layers.{i}.norms.feed_forward.bias          blk.{i}.ffn_norm.bias
layers.{i}.norms.mixer_out.weight           blk.{i}.post_attention_norm.weight
layers.{i}.norms.feed_forward_out.weight    blk.{i}.post_ffw_norm.weight

layers.{i}.mixer.query.weight               blk.{i}.attn_q.weight
layers.{i}.mixer.query.bias                 blk.{i}.attn_q.bias
layers.{i}.mixer.key.weight                 blk.{i}.attn_k.weight
layers.{i}.mixer.key.bias                   blk.{i}.attn_k.bias
layers.{i}.mixer.value.weight               blk.{i}.attn_v.weight
layers.{i}.mixer.value.bias                 blk.{i}.attn_v.bias
layers.{i}.mixer.query.weight               blk.{i}.attn_qkv.weight         rows :NH
layers.{i}.mixer.query.bias                 blk.{i}.attn_qkv.bias           columns :NH
layers.{i}.mixer.key.weight                 blk.{i}.attn_qkv.weight         rows NH:NH+KH
layers.{i}.mixer.key.bias                   blk.{i}.attn_qkv.bias           columns NH:NH+KH
layers.{i}.mixer.value.weight               blk.{i}.attn_qkv.weight         rows NH+KH:NH+KH+KW
layers.{i}.mixer.value.bias                 blk.{i}.attn_qkv.bias           columns NH+KH:NH+KH+KW
layers.{i}.mixer.output.weight              blk.{i}.attn_output.weight
layers.{i}.mixer.output.bias                blk.{i}.attn_output.bias
layers.{i}.mixer.query_norm.weight          blk.{i}.attn_q_norm.weight
layers.{i}.mixer.key_norm.weight            blk.{i}.attn_k_norm.weight

layers.{i}.feed_forward.gate.weight         blk.{i}.ffn_gate.weight
layers.{i}.feed_forward.gate.bias           blk.{i}.ffn_gate.bias
layers.{i}.feed_forward.up.weight           blk.{i}.ffn_up.weight
layers.{i}.feed_forward.up.bias             blk.{i}.ffn_up.bias
layers.{i}.feed_forward.down.weight         blk.{i}.ffn_down.weight
layers.{i}.feed_forward.down.bias           blk.{i}.ffn_down.bias

layers.{i}.feed_forward.router.weight       blk.{i}.ffn_gate_inp.weight
layers.{i}.feed_forward.gate                blk.{i}.ffn_gate_exps.weight
layers.{i}.feed_forward.up                  blk.{i}.ffn_up_exps.weight
layers.{i}.feed_forward.down                blk.{i}.ffn_down_exps.weight
layers.{i}.feed_forward.shared.gate.weight  blk.{i}.ffn_gate_shexp.weight
layers.{i}.feed_forward.shared.up.weight    blk.{i}.ffn_up_shexp.weight
layers.{i}.feed_forward.shared.down.weight  blk.{i}.ffn_down_shexp.weight
layers.{i}.feed_forward.shared_gate.weight  blk.{i}.ffn_gate_inp_shexp.weight    reshape 1 D
"""

_PAIRS = """
layers.{i}.mixer.query.weight               blk.{i}.attn_q.weight           halves by H
layers.{i}.mixer.query.bias                 blk.{i}.attn_q.bias             halves by H
layers.{i}.mixer.key.weight                 blk.{i}.attn_k.weight           halves by H
layers.{i}.mixer.key.bias                   blk.{i}.attn_k.bias             halves by H
"""
_ONE_MORE = """
norm.weight                                 output_norm.weight                    minus 1
layers.{i}.norms.mixer.weight               blk.{i}.attn_norm.weight              minus 1
layers.{i}.norms.feed_forward.weight        blk.{i}.ffn_norm.weight               minus 1
layers.{i}.norms.mixer_out.weight           blk.{i}.post_attention_norm.weight    minus 1
layers.{i}.norms.feed_forward_out.weight    blk.{i}.post_ffw_norm.weight          minus 1
layers.{i}.mixer.query_norm.weight          blk.{i}.attn_q_norm.weight            minus 1
layers.{i}.mixer.key_norm.weight            blk.{i}.attn_k_norm.weight            minus 1
"""
_GATE_AND_UP = """
layers.{i}.feed_forward.gate.weight         blk.{i}.ffn_up.weight           rows 0 of 2
layers.{i}.feed_forward.up.weight           blk.{i}.ffn_up.weight           rows 1 of 2
"""
# Falcon-40B norms attention and feed-forward apart and calls attention's the second; Falcon-7B has one norm for both.
_TWO_NORMS = """
layers.{i}.norms.mixer.weight               blk.{i}.attn_norm_2.weight
layers.{i}.norms.mixer.bias                 blk.{i}.attn_norm_2.bias
layers.{i}.norms.mixer.weight               blk.{i}.attn_norm.weight
layers.{i}.norms.mixer.bias                 blk.{i}.attn_norm.bias
layers.{i}.norms.feed_forward.weight        blk.{i}.attn_norm.weight
layers.{i}.norms.feed_forward.bias          blk.{i}.attn_norm.bias
"""
# What an architecture does differently replaces the common rows of the same parameters.
CONVENTIONS = {
    "bloom": "",
    "falcon": _TWO_NORMS,
    "gemma": _ONE_MORE,
    "gemma2": _ONE_MORE,
    "gemma3": _ONE_MORE,
    "gpt2": "",
    "llama": _PAIRS,
    "phi3": _GATE_AND_UP,
    "qwen2": "",
    "qwen2moe": "",
    "qwen3": "",
    "qwen3moe": "",
    "stablelm": "",
    "starcoder2": "",
}


def gguf_names(architecture: str) -> list[Row]:
    """The name table of a GGUF architecture (``general.architecture``).

    Raises
    ------
    UnsupportedModelError: the architecture is not in ``CONVENTIONS``.
    """
    if architecture not in CONVENTIONS:
        close = ", ".join(nearest(architecture, CONVENTIONS)) or ", ".join(CONVENTIONS)
        raise UnsupportedModelError(
            f"weights of GGUF architecture {shown(architecture)} cannot be loaded; known: {close}"
        )
    special = read_names(CONVENTIONS[architecture])
    replaced = {row.ours for row in special}
    return [row for row in read_names(COMMON) if row.ours not in replaced] + special
