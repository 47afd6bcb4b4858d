"""T5 in GGUF, as Hugging Face keys: two stacks, ``enc.blk.*`` and ``dec.blk.*``."""

from __future__ import annotations

from headcount.spec.gguf_decoder import dense_width, ffn_bias
from headcount.spec.gguf_facts import Facts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headcount.spec.checkpoint import Checkpoint

_SELF = (
    "attn_q.weight",
    "attn_k.weight",
    "attn_v.weight",
    "attn_o.weight",
    "attn_norm.weight",
    "ffn_norm.weight",
)
_CROSS = tuple(f"cross_attn_{name}.weight" for name in ("q", "k", "v", "o", "norm"))


def translate(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the config of T5, FLAN-T5 or UMT5 (whose every layer has its own relative positions)."""
    has_count = checkpoint.metadata.get("t5.decoder_block_count") is not None
    encoder = Facts(checkpoint, stack="enc.")
    decoder = Facts(checkpoint, stack="dec.", count_key="decoder_block_count" if has_count else "block_count")
    heads = encoder.number("attention.head_count", minimum=1)
    width = encoder.number("attention.key_length", minimum=1)
    for stack in (encoder, decoder):
        stack.demand(*_SELF)
        if stack.extent("attn_q.weight", 0) != heads * width or ffn_bias(stack):
            raise stack.damaged(f"attn_q is not {heads} heads of {width}, or a feed-forward has biases")
        stack.outside_extent("output_norm.weight", 0)
    decoder.demand(*_CROSS)
    gated = [stack.has("ffn_gate.weight") for stack in (encoder, decoder)]
    widths = {dense_width(stack, gated=one) for stack, one in zip((encoder, decoder), gated, strict=True)}
    positions = [len(stack.layers_with("attn_rel_b.weight")) for stack in (encoder, decoder)]
    every_layer = positions == [encoder.layer_count, decoder.layer_count] and encoder.layer_count > 1
    if len(widths) > 1 or gated[0] != gated[1] or not (every_layer or positions == [1, 1]):
        raise encoder.unsupported("encoder and decoder differ in feed-forward or relative positions")
    keys = {
        "model_type": "umt5" if every_layer else "t5",
        "d_model": encoder.outside_extent("token_embd.weight", -1),
        "vocab_size": encoder.outside_extent("token_embd.weight", 0),
        "d_kv": width,
        "d_ff": widths.pop(),
        "num_heads": heads,
        "num_layers": encoder.layer_count,
        "num_decoder_layers": decoder.layer_count,
        "n_positions": encoder.number("context_length", minimum=1),
        "relative_attention_num_buckets": encoder.number("attention.relative_buckets_count", minimum=1),
        "feed_forward_proj": "gated-gelu" if gated[0] else "relu",
        "is_gated_act": gated[0],
        "tie_word_embeddings": not encoder.has_outside("output.weight"),
    }
    decoder.has_outside("output.weight")
    decoder.outside_extent("token_embd.weight", 0)
    encoder.refuse_unexplained()
    decoder.refuse_unexplained()
    return keys
