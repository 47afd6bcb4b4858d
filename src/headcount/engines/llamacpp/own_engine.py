"""Ollama's own engine, which ran newer models from 0.6 to 0.24: where its caches are other than llama.cpp's.

    cells     rup(slots x capacity, multiple)                            capacity = n_ctx / slots; all slots in one stream
    window    rup(slots x kept + batch, multiple) where kept < capacity, else as above
    kept      the window; 4,096 in gpt-oss and Gemma 4; from 0.12.4 one token more with several slots
    chunked   whole
    states    slots x (1 + checkpoints) x 4 x (conv + state)             per layer, f32
    multiple  256 with flash attention; without, 32 before 0.13.2

Read in the tags of ollama/ollama: kvcache/causal.go and recurrent.go, model/models/*/model.go, ml/backend/ggml/ggml.go.
"""

from __future__ import annotations

from headcount.engines.llamacpp.ollama_releases import FIRST_WITH_LLAMA_SERVER
from headcount.engines.versions import release
from headcount.units import round_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.engines.llamacpp.builds import Build
    from headcount.engines.llamacpp.options import Options
    from headcount.spec.model import ModelSpec

# Families with a window cache (NewSWACache, NewSWAMemCache), and the tokens that it keeps when those are more than the window.
_WINDOWS = {
    "gemma2": 0,
    "gemma3_text": 0,
    "gemma3n_text": 0,
    "gemma4_text": 4096,
    "gemma4_unified_text": 4096,
    "gpt_oss": 4096,
    "olmo3": 0,
}
# (first release, day of its tag, what it changed), oldest first.
_CHANGES: tuple[tuple[str, str, dict[str, object]], ...] = (
    ("0.12.4", "2025-10-09", {"kept_more": 1}),
    ("0.13.2", "2025-12-07", {"cell_multiple_plain": 256}),
    ("0.15.5", "2026-02-05", {"checkpoints": 32}),
    ("0.17.1", "2026-02-25", {"checkpoints": 24}),
)


def own_rules(rules: Build, version: str) -> Build:
    """``rules`` as Ollama's own engine of ``version`` (a release, a day, else the newest that had it) has them."""
    found = rules.replace(
        name=version,
        own=True,
        sliding=True,
        sliding_multiple=None,
        streams=False,
        cell_multiple=256,
        cell_multiple_plain=32,
    )
    wanted = release(version)
    day = version if version[:4].isdigit() and not wanted else ""
    for first, since, change in _CHANGES:
        if (day >= since) if day else (not wanted or wanted >= release(first)):
            found = found.replace(**change)
    return found


def had_own_engine(version: str) -> bool:
    """Whether the release still had it; yes where ``version`` is no release number."""
    wanted = release(version)
    return not wanted or wanted < FIRST_WITH_LLAMA_SERVER


def kept_tokens(family: str, window: int) -> int:
    """Tokens of a conversation that a window layer keeps; 0 where it keeps all."""
    return max(window, _WINDOWS[family]) if family in _WINDOWS else 0


def kept_per_slot(family: str, kept: int, slots: int, rules: Build) -> int:
    """Tokens that a window layer keeps of each of ``slots`` conversations."""
    return kept + (rules.kept_more if slots > 1 and not _WINDOWS.get(family) else 0)


def window_cells(family: str, cells: int, slots: int, kept: int, options: Options, rules: Build) -> int:
    """Cells of the window cache beside ``cells`` of a full one; see the module."""
    capacity = cells // slots
    kept = kept_per_slot(family, kept, slots, rules)
    # Until the release that keeps one more, a window as long as the capacity was still given the batch beside it.
    if kept > capacity or (kept == capacity and rules.kept_more):
        return cells
    multiple = rules.cell_multiple if options.flash else rules.cell_multiple_plain
    return round_up(slots * kept + options.ubatch, multiple)


def tower_bytes(model: ModelSpec, rules: Build) -> int:
    """Vision and audio towers in the model's own file, in 16 bits (gemma3:27b: projector.weights="795.9 MiB")."""
    return 2 * model.tower_parameters if rules.own else 0
