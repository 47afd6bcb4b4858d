"""Check what an operation is given: shapes by letter, one dtype, one device. The error names the letter that differs.

    sizes = bind("linear", x=(x, "... D"), weight=(weight, "F D"), bias=(bias, "F"))

``D`` must have one size in all operands; ``...`` stands for any leading dimensions; an operand of None is absent.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headcount.errors import OperandError


def bind(op: str, **operands: tuple[Tensor | None, str]) -> dict[str, int]:
    """Return the size of every letter.

    Raises
    ------
    OperandError: a rank or size that does not match, two floating dtypes, two devices.
    """
    sizes: dict[str, int] = {}
    first = None
    for name, (tensor, letters) in operands.items():
        if tensor is None:
            continue
        wanted = letters.split()
        shape = tensor.shape
        if wanted[0] == "...":
            wanted = wanted[1:]
            if len(shape) < len(wanted):
                raise OperandError(_wrong(op, name, tensor, letters, "too few dimensions"))
            shape = shape[len(shape) - len(wanted) :]
        elif len(shape) != len(wanted):
            raise OperandError(_wrong(op, name, tensor, letters, f"expected {len(wanted)} dimensions"))
        for letter, size in zip(wanted, shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                others = _shapes(operands, until=name)
                raise OperandError(
                    _wrong(op, name, tensor, letters, f"expected {letter} = {sizes[letter]} as in {others}")
                )
        if tensor.is_floating_point():
            if first is None:
                first = (name, tensor)
            elif tensor.dtype != first[1].dtype or tensor.device != first[1].device:
                raise OperandError(
                    f"{op}: {name} is {plain(tensor.dtype)} on {tensor.device}, {first[0]} is "
                    f"{plain(first[1].dtype)} on {first[1].device}; give both one dtype and one device"
                )
    return sizes


def plain(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def shape_text(tensor: Tensor, letters: str) -> str:
    """``(B=2, T=5, D=16)``; a dimension without a letter is shown as its size alone."""
    wanted = letters.split()
    shape = list(tensor.shape)
    if wanted and wanted[0] == "...":
        wanted = [""] * max(len(shape) - len(wanted) + 1, 0) + wanted[1:]
    if len(wanted) != len(shape):
        return "(" + ", ".join(map(str, shape)) + ")"
    parts = [f"{letter}={size}" if letter else str(size) for letter, size in zip(wanted, shape, strict=True)]
    return "(" + ", ".join(parts) + ")"


def _wrong(op: str, name: str, tensor: Tensor, letters: str, what: str) -> str:
    return f"{op}: {name} has shape {shape_text(tensor, letters)}, its letters are ({letters}); {what}"


def _shapes(operands: dict[str, tuple[Tensor | None, str]], *, until: str) -> str:
    shown = []
    for name, (tensor, letters) in operands.items():
        if name == until:
            break
        if tensor is not None:
            shown.append(f"{name} {shape_text(tensor, letters)}")
    return ", ".join(shown) or f"{until} itself"
