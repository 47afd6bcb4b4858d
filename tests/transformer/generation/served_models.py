"""Small random decoders of several kinds of memory, and what they say without any cache."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from headcount.spec.huggingface.config import spec_from_config
from headcount.transformer.families.registry import build_network
from headcount.transformer.generation.reply import Asked
from headcount.transformer.generation.sampling import Sampling
from headcount.transformer.generation.uncached import generate_uncached
from headcount.transformer.weights.model import LoadedModel

VOCABULARY = 101
WIDE = {"vocab_size": VOCABULARY, "hidden_size": 48, "num_attention_heads": 6, "intermediate_size": 64}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {
        **WIDE,
        "num_hidden_layers": 3,
        "num_key_value_heads": 3,
        "head_dim": 8,
        "max_position_embeddings": 128,
    },
    "gpt2": {"vocab_size": VOCABULARY, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 128},
    "gemma3_text": {
        **WIDE,
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "sliding_window": 6,
        "max_position_embeddings": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "deepseek_v3": {
        **WIDE,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "max_position_embeddings": 128,
        "moe_intermediate_size": 24,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "n_shared_experts": 2,
        "first_k_dense_replace": 1,
        "n_group": 4,
        "topk_group": 2,
        "q_lora_rank": 24,
        "kv_lora_rank": 20,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 12,
        "v_head_dim": 10,
    },
    "bamba": {
        **WIDE,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "attn_layer_indices": [1],
        "mamba_n_heads": 6,
        "mamba_d_head": 16,
        "mamba_n_groups": 2,
        "mamba_d_state": 10,
        "mamba_chunk_size": 8,
    },
}
DRAWN = Sampling(temperature=0.9, top_k=40, top_p=0.95, seed=7)


@cache
def served(family: str) -> LoadedModel:
    """A network whose norms and biases are no constants."""
    spec = spec_from_config({"model_type": family, **FAMILIES[family]}, name="small", source="test")
    network = build_network(spec, seed=0).float()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=draw) * 0.1)
    return LoadedModel(spec, network, family)


def words(count: int, seed: int) -> list[int]:
    """A prompt."""
    found: list[int] = torch.randint(
        3, VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed)
    ).tolist()
    return found


def uncached(model: LoadedModel, prompt: list[int], asked: Asked, number: int = 0) -> list[int]:
    """The judge: the whole text computed again for every token."""
    return list(_uncached(model.path, tuple(prompt), asked, number))


@cache
def _uncached(family: str, prompt: tuple[int, ...], asked: Asked, number: int) -> tuple[int, ...]:
    return tuple(generate_uncached(served(family).network, prompt, asked, number=number))
