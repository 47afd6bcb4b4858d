"""A decode program beside something that is known: the reference's logits, or the network itself, one token at a time."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from headcount.spec.huggingface.config import spec_from_config
from headcount.transformer.decode.program import Program, compile_program
from headcount.transformer.families.registry import build_network
from headcount.transformer.kv_cache.call import Call
from headcount.transformer.kv_cache.conversation import Conversation
from headcount.transformer.weights.model import load_model

SMALL = {
    "model_type": "llama",
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 640,
    "tie_word_embeddings": True,
}


def made(**changes: Any) -> Any:
    """A small random network and its spec."""
    spec = spec_from_config({**SMALL, **changes}, name="small", source="test")
    return build_network(spec, seed=0), spec


def disturb(model: Any, seed: int = 0) -> None:
    """Random values for what starts at a constant (norms, biases): an error in them must show."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)


def random_ids(rows: int, tokens: int, vocabulary: int = 101) -> torch.Tensor:
    return torch.randint(3, vocabulary, (rows, tokens), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def worst_gap(
    program: Program, network: Any, spec: Any, ids: torch.Tensor, wanted: torch.Tensor, format: str = "fp32"
) -> float:
    """Two conversations decoded together, the second five tokens ahead (read by the network): the largest difference."""
    first, second = Conversation(spec, format=format), Conversation(spec, format=format)
    for t in range(5):
        network(ids[1:, t : t + 1], call=Call([(second, 1)]))
    worst = 0.0
    for t in range(ids.shape[1] - 5):
        found = program.step([int(ids[0, t]), int(ids[1, t + 5])], [first, second])
        for row, position in ((0, t), (1, t + 5)):
            worst = max(worst, (found[row] - wanted[row, position]).abs().max().item())
    assert first.length == ids.shape[1] - 5 and second.length == ids.shape[1]
    return worst


@torch.no_grad()
def check_reference(config: Any, folder: Any, *, threads: int = 2, tokens: int = 36) -> None:
    """A random model of the reference, loaded as a user would, compiled in float32: logits within 1e-5."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        disturb(model)
        model.save_pretrained(folder, safe_serialization=True)
        ours = load_model(str(folder), dtype=torch.float32)
    ids = random_ids(2, tokens)
    wanted = model(ids, use_cache=False).logits
    assert wanted.std() > 0.01, "logits so small prove nothing"
    program = compile_program(ours.network, weights="fp32", threads=threads)
    gap = worst_gap(program, ours.network, ours.spec, ids, wanted)
    assert gap <= 1e-5, f"logits differ by {gap:.2e}"
