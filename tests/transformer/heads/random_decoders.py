"""Small random decoders, with values everywhere that a fresh network has constants, and whole numbers to feed them."""

from __future__ import annotations

from typing import Any

import torch

from headcount.spec.huggingface.config import spec_from_config
from headcount.transformer.families.registry import build_network

VOCABULARY = 101
LLAMA = {
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}


def random_decoder(*, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> tuple[Any, Any]:
    """``(network, spec)`` of a Llama-like config."""
    spec = spec_from_config({**LLAMA, **changes}, name="small", source="test")
    network = build_network(spec, seed=seed).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(
                torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(dtype) * 0.1
            )
    return network, spec


def random_ids(batch: int, tokens: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (batch, tokens), generator=torch.Generator().manual_seed(seed))
