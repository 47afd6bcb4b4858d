"""PyTorch's own counter on running mixtures, latent attention and state-space layers against ``cost/flops.py``: equal."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from headcount.cost.flops import decode_step, prefill
from headcount.spec.huggingface.config import spec_from_config
from headcount.transformer.families.registry import build_network
from headcount.transformer.kv_cache.call import Call
from headcount.transformer.kv_cache.conversation import Conversation

SMALL: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "num_local_experts": 5,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "mamba_n_heads": 6,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 10,
}
LATENT = {
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
    "q_lora_rank": 24,
    "kv_lora_rank": 20,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "mixtral": {"sliding_window": 6},
    "qwen2_moe": {"shared_expert_intermediate_size": 32, "decoder_sparse_step": 2},
    "qwen3_moe": {"head_dim": 10},
    "gpt_oss": {"head_dim": 16, "sliding_window": 6},
    "deepseek_v2": {**LATENT, "q_lora_rank": None},
    "deepseek_v3": LATENT,
    "bamba": {"attn_layer_indices": [1]},
    "granitemoehybrid": {"shared_intermediate_size": 20, "layer_types": ["mamba", "attention", "mamba"]},
}


@pytest.mark.parametrize("model_type", CONFIGS)
def test_counted_equals_stated(model_type: str) -> None:
    spec = spec_from_config(
        {"model_type": model_type, **SMALL, **CONFIGS[model_type]}, name="x", source="test"
    )
    network = build_network(spec, seed=0)
    network.use_kernel("rows")
    conversation, ids = Conversation(spec), torch.randint(3, 99, (1, 13))
    with torch.no_grad():
        with FlopCounterMode(display=False) as counter:
            network(ids[:, :11], call=Call([(conversation, 11)]), rows=torch.tensor([10]))
        assert counter.get_total_flops() == prefill(spec, 11).flops
        for context in (12, 13):
            with FlopCounterMode(display=False) as counter:
                network(ids[:, context - 1 : context], call=Call([(conversation, 1)]))
            assert counter.get_total_flops() == decode_step(spec, context).flops
