"""``model_type`` -> the family file that builds its network and maps its checkpoint's names."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

import torch

from headcount.errors import UnsupportedModelError, nearest
from headcount.spec.model import ModelSpec

# Every file of this room that states MODEL_TYPES, build(spec) and NAMES.
FAMILIES = (
    "bamba",
    "bert",
    "bloom",
    "cohere",
    "deepseek",
    "falcon",
    "gemma",
    "glm",
    "gpt2",
    "gpt_bigcode",
    "gpt_neox",
    "gpt_oss",
    "gptj",
    "granite",
    "granite_moe",
    "llama",
    "marian",
    "mixtral",
    "mpt",
    "olmo",
    "olmoe",
    "opt",
    "phi",
    "phi3",
    "qwen",
    "qwen_moe",
    "stablelm",
    "starcoder2",
    "t5",
)


def families() -> dict[str, ModuleType]:
    """Every model type the transformer runs."""
    found: dict[str, ModuleType] = {}
    for name in FAMILIES:
        module = import_module("headcount.transformer.families." + name)
        for model_type in module.MODEL_TYPES:
            found[model_type] = module
    return found


def family_of(spec: ModelSpec) -> ModuleType:
    """The family file of a spec; UnsupportedModelError names the nearest type that runs."""
    known = families()
    if spec.family not in known:
        near = nearest(spec.family, known) or sorted(known)[:8]
        raise UnsupportedModelError(
            f"the transformer does not run model type {spec.family!r} (fit, book and show count it); "
            f"nearest that runs: {', '.join(near)}"
        )
    return known[spec.family]


def build_network(spec: ModelSpec, *, device: str = "meta", seed: int | None = None) -> Any:
    """The network of a spec. On ``meta`` (the default) it holds shapes and no bytes, ready for its weights.

    ``seed`` fills it with random weights instead: the same numbers for the same seed.
    """
    family = family_of(spec)
    if seed is not None:
        torch.manual_seed(seed)
        device = "cpu" if device == "meta" else device
    with torch.device(device):
        network = family.build(spec)
    return network.eval()
