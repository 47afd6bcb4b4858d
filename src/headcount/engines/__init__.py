"""What each serving engine reserves, rounds, shards and refuses. ``engine(name, version)`` is the door."""

from __future__ import annotations

from headcount.engines.base import Case, Engine, GpuBudget, Layout, Replica, Settings
from headcount.errors import UnknownNameError, UsageError

ENGINES = ("vllm", "textbook")
# Named by the interface; their accounting is not written yet, and a guess would be worse than a refusal.
PLANNED = ("sglang", "llama.cpp", "tensorrt-llm")


def engine(name: str, version: str | None = None) -> Engine:
    """Return the engine called ``name`` at ``version`` (its newest when None).

    Raises UnknownNameError with the nearest names, UsageError for an engine that is not modelled yet.
    """
    key = name.strip().lower()
    if key == "textbook":
        from headcount.engines.textbook import Textbook

        if version not in (None, Textbook.version):
            raise UsageError(f"the textbook engine has no version {version!r}; leave --engine-version out")
        return Textbook()
    if key == "vllm":
        from headcount.engines.vllm import Vllm

        return Vllm(version)
    if key in PLANNED:
        raise UsageError(f"engine {key!r} is not modelled yet; allowed: {', '.join(ENGINES)}")
    raise UnknownNameError(what="engine", given=name, allowed=[*ENGINES, *PLANNED])


__all__ = ["ENGINES", "PLANNED", "Case", "Engine", "GpuBudget", "Layout", "Replica", "Settings", "engine"]
