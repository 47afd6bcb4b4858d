"""What each serving engine reserves, rounds, shards and refuses. ``engine(name, version)`` is the door."""

from __future__ import annotations

import re
from importlib import import_module

from headcount.engines.base import Case, Engine, GpuBudget, Launch, Layout, Pool, Replica, Settings
from headcount.errors import UnknownNameError, UsageError

# Name on the command line -> (module of this package, class). Only the module of the engine that is asked is imported.
_CLASSES = {
    "vllm": ("vllm.engine", "Vllm"),
    "sglang": ("sglang.engine", "Sglang"),
    "llama.cpp": ("llamacpp.engine", "LlamaCpp"),
    "ollama": ("llamacpp.ollama", "Ollama"),
    "tensorrt-llm": ("tensorrt_llm", "TensorrtLlm"),
    "transformers": ("transformers", "Transformers"),
    "textbook": ("textbook", "Textbook"),
}
_ALIASES = {
    "llamacpp": "llama.cpp",
    "llama-cpp": "llama.cpp",
    "llama-server": "llama.cpp",
    "trtllm": "tensorrt-llm",
}
ENGINES = tuple(_CLASSES)
# A release goes into messages, images and command lines.
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,59}")


def engine(name: str, version: str | None = None) -> Engine:
    """Return the engine called ``name`` at ``version`` (its newest when None).

    Raises UnknownNameError with the nearest names, UsageError for a version that the engine has no rules for.
    """
    key = name.strip().lower()
    found = _CLASSES.get(_ALIASES.get(key, key))
    if found is None:
        raise UnknownNameError(what="engine", given=name, allowed=[*ENGINES, *_ALIASES])
    if version is not None and not _VERSION.fullmatch(version.strip()):
        raise UsageError(
            f"--engine-version {version!r:.60} is no release: letters, digits and . + - _, at most 60 of them"
        )
    made: Engine = getattr(import_module("headcount.engines." + found[0]), found[1])(version)
    return made


__all__ = [
    "ENGINES",
    "Case",
    "Engine",
    "GpuBudget",
    "Launch",
    "Layout",
    "Pool",
    "Replica",
    "Settings",
    "engine",
]
