"""The default of ``mem_fraction_static``: what SGLang keeps for activations and graphs, from rules of thumb in MiB.

    reserved  = 512 + 1.5 max(chunk, 2048) + (T P / 8) 1024 + graphs                    at least 10,240 on cards over 60 GiB
    graphs    = 2 b + 3 b A (+ 1.5 b A when b > 300) + prefill graphs        b: largest decode graph, A: groups of attention
    prefill   = 8 x captured sizes, or 1,536 for latent attention                       NVIDIA, one pipeline stage
    fraction  = round((M - reserved) / M, 3)                                            M: MiB that nvidia-smi reports
    vision    x 0.95 x clamp(1 - 0.1 (L_v D_v^2 / (24 x 1024^2) - 1), 0.8, 1.05)

Nothing of it is measured when a server starts: it must fit in what the fraction leaves. Source: sglang 0.5.23 (PyPI,
2026-10-30), srt/arg_groups/memory_hook.py and cuda_graph_hook.py.
"""

from __future__ import annotations

from bisect import bisect_right

from headcount.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.spec.model import ModelSpec, TowerSpec

SOURCE = "sglang 0.5.23, srt/arg_groups/memory_hook.py"
# Below so many MiB: chunked_prefill_size, largest decode graph at T < 4, at T >= 4.
_TIERS = (
    (20 * 1024, 2048, 8, 8),
    (35 * 1024, 4096, 48, 160),
    (60 * 1024, 4096, 32, 160),
    (90 * 1024, 8192, 256, 512),
    (160 * 1024, 8192, 256, 512),
)
_LARGEST = (16384, 512, 512)
_LEAST_ON_LARGE_CARDS = 10 * 1024
_LARGE_CARD = 60 * 1024
_LLAMA_2_LIMIT = 4096
# Multimodal models whose prefill is captured all the same, by the model_type of their language part.
_CAPTURED = ("qwen3_5_text", "qwen3_5_moe_text", "kimi_k2")
# Vision configs that call their layers ``depth``: SGLang reads num_hidden_layers, finds none, and takes 24.
_DEPTH = ("qwen", "glm4v")


class Capacity(Record):
    """What a card's memory decides: tokens of a prefill chunk and the largest batch with a decode graph."""

    chunk: int
    graph_batch: int


def capacity(mib: int, tp: int) -> Capacity:
    """The table's row for a card of ``mib`` MiB at tensor-parallel size ``tp``."""
    row = next((tier[1:] for tier in _TIERS if mib < tier[0]), _LARGEST)
    return Capacity(chunk=row[0], graph_batch=row[1] if tp < 4 else row[2])


def _capture_sizes() -> list[int]:
    steps = (
        (4, 32, 4),
        (48, 256, 16),
        (288, 512, 32),
        (576, 1024, 64),
        (1280, 4096, 256),
        (4608, 2**20, 512),
    )
    return [size for first, last, step in steps for size in range(first, last + 1, step)]


_SIZES: list[int] = []


def captured_sizes(limit: int) -> int:
    """How many token counts of a prefill are captured as graphs, up to ``limit`` tokens."""
    if not _SIZES:
        _SIZES.extend(_capture_sizes())
    return bisect_right(_SIZES, limit)


class Request(Record):
    """What the reserve depends on besides the card.

    chunk          chunked_prefill_size before attention groups divide it
    graph_batch    largest decode graph; 0 without graphs
    prefill        the longest prefill that is captured as a graph [tokens]; 0 without graphs
    gpus           T P
    groups         attention groups (1: none)
    latent         latent attention
    """

    chunk: int
    graph_batch: int
    prefill: int
    gpus: int
    groups: int
    latent: bool


def reserved_mib(mib: int, asked: Request) -> float:
    """MiB kept for activations and graphs; see the module for the equation."""
    reserved = 512 + 1.5 * max(asked.chunk, 2048) + asked.gpus / 8 * 1024 + 2.0 * asked.graph_batch
    if asked.groups > 1:
        each = 3 if asked.graph_batch <= 300 else 4.5
        reserved += each * asked.graph_batch * asked.groups
    if asked.prefill:
        reserved += 1536 if asked.latent else 8 * captured_sizes(asked.prefill)
    return max(reserved, _LEAST_ON_LARGE_CARDS) if mib > _LARGE_CARD else reserved


def default_fraction(mib: int, asked: Request, model: ModelSpec | None = None) -> float:
    """``mem_fraction_static`` when it is not given; with ``model``, reduced for its vision tower."""
    fraction = round((mib - reserved_mib(mib, asked)) / mib, 3)
    return fraction if model is None else fraction * multimodal_factor(model)


def multimodal_factor(model: ModelSpec) -> float:
    """What the default is multiplied by for the model's vision tower; 1 without one."""
    if not is_multimodal(model):
        return 1.0
    tower = vision_tower(model)
    return 1.0 if tower is None and model.towers else vision_factor(tower)


def vision_tower(model: ModelSpec) -> TowerSpec | None:
    """The encoder of images, if one is known."""
    return next((tower for tower in model.towers if tower.kind == "vision"), None)


def vision_factor(tower: TowerSpec | None) -> float:
    """``0.95 clamp(1 - 0.1 (complexity - 1), 0.8, 1.05)``; a tower that is not known counts as ViT-L/14."""
    layers, width = 24, 1024
    if tower is not None:
        layers = 24 if tower.family.startswith(_DEPTH) else tower.layers
        width = tower.hidden_size
    complexity = layers * width**2 / (24 * 1024**2)
    return 0.95 * max(0.8, min(1.05, 1 - 0.1 * (complexity - 1)))


def is_multimodal(model: ModelSpec) -> bool:
    """Whether the checkpoint has a tower: a known one, or one that the reader names in a note and leaves out."""
    return bool(model.towers) or any("vision or audio encoder" in note for note in model.notes)


def longest_captured_prefill(model: ModelSpec, chunk: int, *, nvidia: bool, pp: int) -> int:
    """Tokens of the longest prefill captured as a graph by default; 0 where prefill is not captured.

    Captured on NVIDIA without a pipeline, but not for Kimi's gated delta attention nor for most multimodal models; at
    most one chunk, and 4,096 for models called Llama-2.
    """
    if not nvidia or pp > 1 or model.family == "kimi_linear":
        return 0
    if is_multimodal(model) and model.family not in _CAPTURED:
        return 0
    return min(chunk, _LLAMA_2_LIMIT) if "llama-2" in model.name.lower() else chunk
