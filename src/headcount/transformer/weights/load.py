"""Fill a network from a file, tensor by tensor: first every name and shape is compared, then anything is read.

The network is built on the meta device, where parameters take no memory, and each parameter is replaced. A tensor that is
stored as the wanted type becomes a view of the mapped file; everything else is converted one tensor at a time. So the
peak is the network itself and one tensor, never a second copy of the model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from headcount.errors import ModelFileError, UsageError
from headcount.spec.checkpoint import name_some, shown
from headcount.transformer.ops.precision import HALVES
from headcount.transformer.weights.names import EXPERT, LAYER, Row, by_parameter, rows_of
from headcount.transformer.weights.source import TensorSource
from headcount.transformer.weights.transformations import ARITHMETIC, transform

# What files carry that is no parameter: rotary tables, causal masks, position counters. Each can be recomputed exactly.
IGNORED = (
    r"(.*\.)?rotary_emb\.inv_freq",
    r"(.*\.)?(attn|attention)\.(masked_)?bias",
    r"(.*\.)?position_ids",
)
# Integers and 8-bit floats are packed weights: without their scales they would give plausible wrong numbers.
_PACKED = re.compile(r"BOOL|[IU]\d+|F[468]_.*|F4|C64")


class _Fill(NamedTuple):
    """How one parameter is filled: the tensors (several are stacked), what is done to each, with which sizes."""

    parameter: str
    tensors: tuple[str, ...]
    how: tuple[str, ...]
    stacked: bool
    letters: Mapping[str, int]


Letters = Mapping[str, int] | Callable[[str], Mapping[str, int]]


def load_network(
    network: nn.Module,
    source: TensorSource,
    rows: list[Row],
    letters: Letters,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    ignored: Iterable[str] = (),
) -> nn.Module:
    """Replace every parameter and every persistent buffer of ``network`` by what ``source`` holds; return the network.

    rows     the name table (``read_names``)
    letters  the sizes its expressions use (``E`` counts stacked experts), or a function of the layer's index that gives them
    dtype    of all floating parameters; None keeps each as stored. Buffers (a router's correction) are not rounded to 16 bits
    ignored  more names (regular expressions, whole match) that may be in the file without being used

    Raises
    ------
    ModelFileError: tensors missing, left over, of another shape or packed: all in one message, nothing having been read.
    UsageError: a table that cannot be applied.
    """
    plan = _plan(network, source, _respelled(rows, source.names()), letters, (*IGNORED, *ignored))
    reader = _Reader(source)
    for fill in plan:
        module_name, _, leaf = fill.parameter.rpartition(".")
        module = network.get_submodule(module_name)
        old = getattr(module, leaf)
        learned = isinstance(old, nn.Parameter)
        with torch.no_grad():
            value = reader.read(fill, dtype if learned or dtype not in HALVES else torch.float32).to(device)
        trained = old.requires_grad and value.is_floating_point()
        setattr(module, leaf, nn.Parameter(value, requires_grad=trained) if learned else value)
    return network


class _Reader:
    """Reads fills; keeps the last tensor, because the parts of a fused projection come one after another."""

    def __init__(self, source: TensorSource) -> None:
        self.source = source
        self.last: tuple[str, torch.dtype | None, Tensor] | None = None

    def read(self, fill: _Fill, dtype: torch.dtype | None) -> Tensor:
        """The value of one parameter."""
        parts = (self._one(name, fill, dtype) for name in fill.tensors)
        if not fill.stacked:
            return next(parts)
        first = next(parts)
        stack = torch.empty((len(fill.tensors), *first.shape), dtype=first.dtype)
        stack[0] = first
        for number, part in enumerate(parts, start=1):
            stack[number] = part
        return stack

    def _one(self, name: str, fill: _Fill, dtype: torch.dtype | None) -> Tensor:
        # Arithmetic happens before anything is rounded to the wanted type.
        exact = any(step.startswith(ARITHMETIC) for step in fill.how)
        wanted = None if exact else dtype
        if self.last is None or self.last[:2] != (name, wanted):
            self.last = (name, wanted, self.source.tensor(name, wanted))
        value = transform(self.last[2], fill.how, fill.letters)
        if dtype is not None and value.dtype != dtype:
            value = value.to(dtype)
        return value.contiguous()


def _plan(
    network: nn.Module,
    source: TensorSource,
    rows: list[Row],
    letters: Letters,
    ignored: tuple[str, ...],
) -> list[_Fill]:
    """Find the tensors of every parameter; report everything that does not fit at once."""
    present, grouped = set(source.names()), by_parameter(rows)
    fills: list[_Fill] = []
    missing, misfits = [], []
    for parameter, tensor in (*network.named_parameters(), *_kept_buffers(network)):
        fill = _find(parameter, grouped, present, letters)
        if isinstance(fill, str):
            missing.append(fill)
            continue
        fills.append(fill)
        problem = _misfit(fill, source, tuple(tensor.shape))
        if problem:
            misfits.append(problem)
    used = {name for fill in fills for name in fill.tensors}
    pattern = re.compile("|".join(f"(?:{text})" for text in ignored))
    extra = [name for name in source.names() if name not in used and not pattern.fullmatch(name)]
    extra = [name for name in extra if not _is_tied_copy(name, source, grouped, fills)]
    problems = [
        f"{len(found):,} {word}: {name_some(found)}"
        for found, word in ((missing, "missing"), (extra, "left over"))
        if found
    ]
    if misfits:
        problems.append(
            f"{len(misfits):,} of another shape or type: {'; '.join(misfits[:3])}" + _more(len(misfits) - 3)
        )
    if problems:
        raise ModelFileError(
            f"{shown(source.path, limit=200)} does not fit the network: {', '.join(problems)}"
        )
    return fills


def _kept_buffers(network: nn.Module) -> list[tuple[str, Tensor]]:
    """Buffers that a checkpoint stores: a router's correction, not a table that is computed."""
    kept = network.state_dict(keep_vars=True)
    return [(name, buffer) for name, buffer in network.named_buffers() if name in kept]


def _more(count: int) -> str:
    return f" and {count:,} more" if count > 0 else ""


def _find(parameter: str, grouped: dict[str, list[Row]], present: set[str], letters: Letters) -> _Fill | str:
    """The fill of a parameter, or the name of the first tensor that is missing for it."""
    rows, index = rows_of(parameter, grouped)
    if not rows:
        raise UsageError(f"name table: no row for parameter {shown(parameter)}")
    sizes, absent = letters(index) if callable(letters) else letters, []
    for row in rows:
        theirs = row.theirs.replace(LAYER, index)
        stacked = EXPERT in theirs
        if stacked and "E" not in sizes:
            raise UsageError(f"name table: {shown(theirs)} needs E, the count of experts, among the letters")
        names = tuple(theirs.replace(EXPERT, str(e)) for e in range(sizes["E"])) if stacked else (theirs,)
        lacking = [name for name in names if name not in present]
        if not lacking:
            return _Fill(parameter, names, row.how, stacked, sizes)
        absent.append(lacking[0])
    return absent[0]


def _misfit(fill: _Fill, source: TensorSource, wanted: tuple[int, ...]) -> str:
    """What is wrong with a fill, judged from names, types and shapes alone; empty when nothing is."""
    for name in fill.tensors:
        stored = source.dtype(name)
        if _PACKED.fullmatch(stored):
            return f"{shown(name)} is stored as {stored}, packed weights, which need scales"
        try:
            shape = tuple(
                transform(torch.empty(source.shape(name), device="meta"), fill.how, fill.letters).shape
            )
        except ModelFileError as error:
            return f"{shown(name)}: {error}"
        if fill.stacked:
            shape = (len(fill.tensors), *shape)
        if shape != wanted:
            return f"{shown(name)} gives {shape}, {fill.parameter} is {wanted}"
    return ""


def _is_tied_copy(name: str, source: TensorSource, grouped: dict[str, list[Row]], fills: list[_Fill]) -> bool:
    """Whether ``name`` is an output head that the network ties to its embedding, and holds the same numbers."""
    if all(row.theirs != name for row in grouped.get("head.weight", [])):
        return False
    embedding = next((fill for fill in fills if fill.parameter == "embedding.weight"), None)
    if embedding is None or any(fill.parameter == "head.weight" for fill in fills):
        return False
    other = embedding.tensors[0]
    if source.shape(name) != source.shape(other) or source.dtype(name) != source.dtype(other):
        return False
    return torch.equal(source.tensor(name), source.tensor(other))


def _respelled(rows: list[Row], names: list[str]) -> list[Row]:
    """The table in the file's spelling: bare models lack the first word, vision models put one before.

    ``model.layers`` may be ``layers`` (saved without its head) or ``model.language_model.layers``,
    ``language_model.model.layers`` (the language half of a larger model). The spelling that fits most rows is taken.
    """

    def spelled(theirs: str, number: int) -> str:
        first, _, rest = theirs.partition(".")
        if first not in ("model", "transformer", "gpt_neox"):
            return f"language_model.{theirs}" if number == 2 else theirs
        return (theirs, rest, f"language_model.{theirs}", f"{first}.language_model.{rest}")[number]

    present = set(names)
    counts = [
        sum(spelled(row.theirs, k).replace(LAYER, "0").replace(EXPERT, "0") in present for row in rows)
        for k in range(4)
    ]
    best = counts.index(max(counts))
    return [row._replace(theirs=spelled(row.theirs, best)) for row in rows] if best else rows
