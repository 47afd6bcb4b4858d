"""A small random model of the reference, checked in every way of running it, and its parameters counted twice.

The network is laid out from geometry and constants; the spec counts the tensors of the family's class. Both counts must agree.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from parity import check_decoder, close, disturb

from headcount.spec.huggingface.config import spec_from_config
from headcount.transformer.families.registry import build_network
from headcount.transformer.weights.model import load_model


def check(config: Any, folder: Any, *, kernel: str = "eager", **options: Any) -> Any:
    """Parity of a random model of ``config`` with our network, and the exact count; ``kernel`` is the reference's."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = AutoModelForCausalLM.from_config(config, attn_implementation=kernel)
        ours = check_decoder(model, folder, **options)
    assert count(ours.network) == ours.spec.parameters == count(model)
    return ours


def count(network: Any) -> int:
    """Trainable numbers, shared ones once."""
    return sum(parameter.numel() for parameter in network.parameters())


def check_default_count(model_type: str) -> None:
    """The network of a config that states nothing but its type, laid out on no memory."""
    spec = spec_from_config({"model_type": model_type}, name=model_type, source="class defaults")
    assert count(build_network(spec)) == spec.parameters


def reloaded_with(config: Any, folder: Any, respell: Any) -> None:
    """Parity of the reference's model with what we load after ``respell`` rewrote its ``config.json``."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    disturb(model)
    model.save_pretrained(folder, safe_serialization=True)
    respell(folder / "config.json")
    ours = load_model(str(folder), dtype=torch.float32)
    ids = torch.randint(3, 101, (2, 24), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        close(ours.network(ids), model(ids, use_cache=False).logits, "respelled")
