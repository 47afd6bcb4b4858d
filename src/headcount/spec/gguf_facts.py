"""Typed access to what a GGUF header says of a model: metadata under ``<architecture>.``, and tensor shapes.

Two witnesses are heard. Widths come from tensor shapes (what is stored), facts that no shape shows (heads,
experts used, windows) from metadata; where both speak and disagree, the file is refused. Tensors that a
translation never asked about are refused too, by ``refuse_unexplained``: every count would lack them.
"""

from __future__ import annotations

import re

from headcount.errors import ModelFileError, UnsupportedModelError
from headcount.spec.checkpoint import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from headcount.spec.checkpoint import Checkpoint

_BLOCK = re.compile(r"blk\.([0-9]{1,6})\.(.+)")
# Mixtral files of 2023 store one tensor per expert: blk.0.ffn_gate.7.weight
_ONE_EXPERT = re.compile(r"(ffn_gate|ffn_up|ffn_down)\.([0-9]{1,4})\.weight")
_STACKS = ("enc.", "dec.")
_LARGEST = 2**31
# Tables of rotary factors and scales of quantised tensors: stored, but not parameters of the model.
_NOT_PARAMETERS = (
    ".scale",
    ".input_scale",
    "attn_rot_embd",
    "attn_rot_embd.weight",
    "rope_freqs.weight",
    "rope_factors_long.weight",
    "rope_factors_short.weight",
)
ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_output")


KEYS_AND_VALUES = ("attn_k.weight", "attn_v.weight", "attn_k_norm.weight")
# The exception among scales: Gemma 4 learns one per router input and one per expert.
LEARNED_SCALES = ("ffn_gate_inp.scale", "ffn_down_exps.scale")


class Facts:
    """The metadata and shapes of one GGUF model; asking for a tensor marks it as explained."""

    def __init__(self, checkpoint: Checkpoint, *, stack: str = "", count_key: str = "block_count") -> None:
        self.metadata = checkpoint.metadata
        self.architecture = architecture_of(checkpoint)
        self.outside: dict[str, tuple[int, ...]] = {}
        self.blocks: dict[str, dict[int, tuple[int, ...]]] = {}
        self.explained: set[str] = set()
        self.block_count = self.number(count_key, minimum=1)
        self.layer_count = self.block_count - self.number("nextn_predict_layers", 0)
        for tensor in checkpoint.tensors:
            if not stack or tensor.name.startswith(stack) or not tensor.name.startswith(_STACKS):
                self._place(tensor.name.removeprefix(stack), tensor.shape)
        stored = {layer for layers in self.blocks.values() for layer in layers}
        # A lying count may be in the billions: stop at the first layer without tensors.
        missing = next((layer for layer in range(self.layer_count) if layer not in stored), None)
        if self.layer_count < 1 or missing is not None:
            raise self.damaged(
                f"{self.layer_count:,} layers announced, tensors for {len(stored):,}"
                + (f"; layer {missing} has none" if missing is not None else "")
            )

    def _place(self, name: str, shape: tuple[int, ...]) -> None:
        found = _BLOCK.fullmatch(name)
        if found is None:
            self.outside[name] = shape
            return
        layer, rest = int(found.group(1)), found.group(2)
        if layer >= self.block_count:
            raise self.damaged(f"tensor {shown(name)} is beyond the {self.block_count} layers announced")
        if layer >= self.layer_count:
            return  # multi-token-prediction layers follow the model's own and are loaded only to draft
        expert = _ONE_EXPERT.fullmatch(rest)
        if expert is not None:
            layers = self.blocks.setdefault(f"{expert.group(1)}_exps.weight", {})
            layers[layer] = (layers.get(layer, (0,))[0] + 1, *shape)
        else:
            self.blocks.setdefault(rest, {})[layer] = shape

    def damaged(self, problem: str) -> ModelFileError:
        """Return the error of a file that lacks or contradicts something."""
        return ModelFileError(f"GGUF {self.architecture}: {problem}")

    def unsupported(self, problem: str) -> UnsupportedModelError:
        """Return the error of a variant that no builder counts."""
        return UnsupportedModelError(f"GGUF {self.architecture}: {problem}")

    # metadata

    def value(self, key: str) -> Any:
        """Return the value of ``<architecture>.key``, or None."""
        return self.metadata.get(f"{self.architecture}.{key}")

    def number(self, key: str, default: int | None = None, *, minimum: int = 0) -> int:
        """Return a whole number; ``default`` when absent, ModelFileError when there is no default."""
        value = self.value(key)
        if value is None and default is not None:
            return default
        return self._whole(key, value, minimum)

    def optional(self, key: str) -> int | None:
        """Return a whole number, or None when absent."""
        value = self.value(key)
        return None if value is None else self._whole(key, value, 0)

    def per_layer(self, key: str, default: int | None = None) -> list[int]:
        """Return one whole number per layer of a value that is a number or an array of at least L numbers."""
        value = self.value(key)
        if not isinstance(value, tuple):
            return [self.number(key, default)] * self.layer_count
        if len(value) < self.layer_count:
            raise ModelFileError(
                f"GGUF key {self._full(key)} lists {len(value)} layers; the model has {self.layer_count}"
            )
        return [self._whole(key, item, 0) for item in value[: self.layer_count]]

    def flags(self, key: str) -> list[bool] | None:
        """Return one true/false per layer of an array, or None when absent or a single number."""
        value = self.value(key)
        if not isinstance(value, tuple):
            return None
        if len(value) < self.layer_count or any(item not in (0, 1) for item in value):
            raise ModelFileError(f"GGUF key {self._full(key)} must hold {self.layer_count} true/false values")
        return [bool(item) for item in value[: self.layer_count]]

    def true(self, key: str) -> bool:
        """Return a true/false value; absent is false."""
        value = self.value(key)
        if value is not None and not isinstance(value, bool):
            raise ModelFileError(f"GGUF key {self._full(key)} must be true or false; given {shown(value)}")
        return bool(value)

    def decimal(self, key: str) -> float | None:
        """Return a number, or None when absent."""
        value = self.value(key)
        if value is None:
            return None
        finite = isinstance(value, int | float) and abs(value) < 1e30  # false for NaN, too
        if isinstance(value, bool) or not finite:
            raise ModelFileError(f"GGUF key {self._full(key)} must be a number; given {shown(value)}")
        return float(value)

    def _full(self, key: str) -> str:
        return shown(f"{self.architecture}.{key}")

    def _whole(self, key: str, value: Any, minimum: int) -> int:
        if value is None:
            raise ModelFileError(f"GGUF: key {self._full(key)} is missing; the layout cannot be known")
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= _LARGEST:
            raise ModelFileError(
                f"GGUF key {self._full(key)} must be a whole number from {minimum}; given {shown(value)}"
            )
        return value

    # tensors

    def layers_with(self, name: str) -> list[int]:
        """Return the layers that hold tensor ``name`` (``attn_q.weight``), ascending."""
        self.explained.add(name)
        return sorted(self.blocks.get(name, {}))

    def has(self, name: str, layers: Iterable[int] | None = None) -> bool:
        """Whether the layers (all by default) hold ``name``; UnsupportedModelError when only some do."""
        wanted = set(range(self.layer_count) if layers is None else layers)
        held = wanted & set(self.layers_with(name))
        if held and held != wanted:
            raise self.unsupported(f"{len(held)} of {len(wanted)} layers hold {shown(name)}")
        return bool(held)

    def all_or_none(self, names: Iterable[str], layers: Iterable[int] | None = None) -> bool:
        """Whether the layers hold all of ``names``; UnsupportedModelError when only some are there."""
        chosen = list(range(self.layer_count) if layers is None else layers)
        held = {name: self.has(name, chosen) for name in names}
        if len(set(held.values())) > 1:
            lacking = next(name for name, there in held.items() if not there)
            raise self.unsupported(f"some layers lack {shown(lacking)}, which no class leaves out alone")
        return any(held.values())

    def demand(self, *names: str, layers: Iterable[int] | None = None) -> None:
        """Raise ModelFileError unless every layer holds every one of ``names``."""
        chosen = list(range(self.layer_count) if layers is None else layers)
        for name in names:
            if not self.has(name, chosen):
                raise self.damaged(f"tensor blk.*.{name} is missing")

    def allow(self, *names: str) -> None:
        """Mark tensors that the class always has and whose size follows from the widths (norms)."""
        self.explained.update(names)

    def extent(self, name: str, axis: int, layers: Iterable[int] | None = None) -> int:
        """Return the extent that ``name`` has along ``axis`` in every layer that holds it (at least one)."""
        held = self.blocks.get(name, {})
        self.explained.add(name)
        shapes = [held[layer] for layer in (sorted(held) if layers is None else layers) if layer in held]
        extents = {shape[axis] if -len(shape) <= axis < len(shape) else 0 for shape in shapes}
        if not extents:
            raise self.damaged(f"tensor blk.*.{name} is missing")
        if 0 in extents:
            raise self.damaged(f"tensor blk.*.{name} is empty or has no axis {axis}")
        if len(extents) > 1:
            raise self.unsupported(f"{shown(name)} has {len(extents)} different widths; one is supported")
        return extents.pop()

    def outside_extent(self, name: str, axis: int) -> int:
        """Return an extent of a tensor outside the layers; ModelFileError when it is missing."""
        self.explained.add(name)
        shape = self.outside.get(name, ())
        if not -len(shape) <= axis < len(shape) or not shape[axis]:
            raise self.damaged(f"tensor {name} is missing or empty")
        return shape[axis]

    def has_outside(self, name: str) -> bool:
        """Whether a tensor outside the layers exists."""
        self.explained.add(name)
        return name in self.outside

    def refuse_unexplained(self, *, varied: tuple[str, ...] = ()) -> None:
        """Raise UnsupportedModelError for a tensor that the translation knows nothing of.

        The same goes for one whose shape changes from layer to layer: only ``varied`` ones may do so, because
        one width was read for all layers.
        """
        for name in (*self.blocks, *self.outside):
            if name not in self.explained and not name.endswith(_NOT_PARAMETERS):
                raise self.unsupported(f"tensor {shown(name)} belongs to a variant that is not known")
        for name, layers in self.blocks.items():
            if len(set(layers.values())) > 1 and not name.startswith(varied):
                raise self.unsupported(f"{shown(name)} has several shapes; one is supported")


def architecture_of(checkpoint: Checkpoint) -> str:
    """Return ``general.architecture``; ModelFileError when it is missing or no short text."""
    value = checkpoint.metadata.get("general.architecture")
    if value is None:
        raise ModelFileError("GGUF: key general.architecture is missing")
    if not isinstance(value, str) or not value.isprintable() or not 1 <= len(value) <= 64:
        raise ModelFileError(f"GGUF key general.architecture must be a short text; given {shown(value)}")
    return value


def is_parameter(name: str, buffers: set[str], layer_count: int | None, own_caches: int | None) -> bool:
    """Whether a tensor is a parameter: no rotary table, no buffer, in no layer from ``layer_count`` on.

    Layers from ``own_caches`` on reuse keys and values; projections stored for them are never used. Scales
    belong to quantised tensors, except those of Gemma 4's router (``ffn_gate_inp``) and experts.
    """
    found = _BLOCK.fullmatch(name)
    rest = found.group(2) if found is not None else name
    if found is not None and layer_count is not None and int(found.group(1)) >= layer_count:
        return False
    if found is not None and own_caches is not None and int(found.group(1)) >= own_caches:
        buffers = buffers | set(KEYS_AND_VALUES)
    return rest not in buffers and (rest in LEARNED_SCALES or not rest.endswith(_NOT_PARAMETERS))
