"""Gradients through whole networks: each family's loss, differentiated by our backward passes and by the reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from parity import disturb, loaded
from torch.nn import functional

pytestmark = [pytest.mark.reference]
LLAMA = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "pad_token_id": None,
}
GPT = {"vocab_size": 101, "n_embd": 48, "n_layer": 2, "n_head": 3}
OLD = {"vocab_size": 101, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6}
CASES: dict[str, dict[str, Any]] = {
    "Bloom": {"vocab_size": 101, "hidden_size": 48, "n_layer": 2, "n_head": 6},
    "Cohere": {**LLAMA, "use_qk_norm": True},
    "Cohere2": {**LLAMA, "sliding_window": 5, "sliding_window_pattern": 2},
    "Falcon": {**OLD, "new_decoder_architecture": True, "num_kv_heads": 2},
    "GPT2": GPT,
    "GPTBigCode": GPT,
    "GPTJ": {**GPT, "rotary_dim": 8},
    "GPTNeoX": {**OLD, "intermediate_size": 80},
    "Gemma": {**LLAMA, "head_dim": 10},
    "Gemma2": {**LLAMA, "head_dim": 10, "sliding_window": 5, "attn_logit_softcapping": 2.0},
    "Gemma3Text": {**LLAMA, "head_dim": 10, "sliding_window": 5, "sliding_window_pattern": 2},
    "Glm": {**LLAMA, "head_dim": 8},
    "Glm4": {**LLAMA, "head_dim": 8},
    "Granite": {**LLAMA, "residual_multiplier": 0.3, "logits_scaling": 2.0},
    "Llama": LLAMA,
    "Mistral": {**LLAMA, "sliding_window": 5},
    "Mpt": {"vocab_size": 101, "d_model": 48, "n_layers": 2, "n_heads": 6, "max_seq_len": 64},
    "OPT": {
        **OLD,
        "ffn_dim": 80,
        "do_layer_norm_before": False,
        "word_embed_proj_dim": 20,
        "pad_token_id": None,
    },
    "Olmo": {**LLAMA, "clip_qkv": 0.3},
    "Olmo2": LLAMA,
    "Olmo3": {**LLAMA, "sliding_window": 5},
    "Phi": {**LLAMA, "qk_layernorm": True, "partial_rotary_factor": 1.0},
    "Phi3": LLAMA,
    "Qwen2": LLAMA,
    "Qwen3": {**LLAMA, "head_dim": 10},
    "StableLm": {**LLAMA, "partial_rotary_factor": 0.5},
    "Starcoder2": LLAMA,
}


@pytest.mark.parametrize("family", CASES)
def test_embedding_gradient(family: str, tmp_path: Any) -> None:
    """The embedding's gradient has passed every layer backwards."""
    import transformers

    config = getattr(transformers, f"{family}Config")(**CASES[family])
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    disturb(model)
    ours = loaded(model, tmp_path).network
    ids = torch.randint(3, 101, (2, 16), generator=torch.Generator().manual_seed(1))

    def loss(logits: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    loss(ours(ids)).backward()
    loss(model(ids, use_cache=False).logits).backward()
    theirs = model.get_input_embeddings().weight.grad
    gap = (ours.embedding.weight.grad - theirs).abs().max() / theirs.abs().max()
    assert gap < 1e-5
    assert all(parameter.grad is not None for parameter in ours.parameters())
