"""MXFP4: 32 numbers of four bits share one exponent. Released gpt-oss experts are stored so, in two tensors of bytes:

    NAME_blocks  (..., R, C / 32, 16)   two codes per byte, the lower four bits first
    NAME_scales  (..., R, C / 32)       exponents plus 127

    x = 2^(scale - 127) (-1)^sign m,      m in 0, 0.5, 1, 1.5, 2, 3, 4, 6        (sign 1 bit, exponent 2, mantissa 1)

``OpenedSource`` shows each pair as the one tensor it stands for, (..., C, R): the blocks run along the inputs of a weight that
the unpacked checkpoint stores as (inputs, outputs). Every value is exact in bfloat16 while the exponent is in its range.
Source: OCP Microscaling Formats (MX) Specification 1.0, 2023, 5.3.3 and 6.3.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headcount.errors import ModelFileError
from headcount.spec.checkpoint import shown
from headcount.transformer.weights.source import TensorSource

BLOCK = 32
_BLOCKS, _SCALES = "_blocks", "_scales"
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# The scale 255 stands for "not a number"; a weight that is none would poison every logit in silence.
_NOT_A_NUMBER = 255


def open_blocks(blocks: Tensor, scales: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """``(..., R, C)`` from the bytes of both tensors.

    Raises
    ------
    ModelFileError: a scale that stands for "not a number".
    """
    if bool((scales == _NOT_A_NUMBER).any()):
        raise ModelFileError("MXFP4: a block's scale is 255, which stands for 'not a number'")
    values = torch.tensor([*_MAGNITUDES, *(-m for m in _MAGNITUDES)], dtype=dtype)
    out = torch.empty(*blocks.shape[:-2], blocks.shape[-2] * BLOCK, dtype=dtype)
    paired = out.view(*blocks.shape, 2)
    # One matrix at a time: the codes of all experts as indices would take sixteen times the bytes of the file.
    for at in range(len(blocks)):
        exponent = scales[at].to(torch.int32)[..., None] - 127
        paired[at, ..., 0] = torch.ldexp(values[(blocks[at] & 15).int()], exponent)
        paired[at, ..., 1] = torch.ldexp(values[(blocks[at] >> 4).int()], exponent)
    return out


class OpenedSource(TensorSource):
    """A source whose MXFP4 pairs are shown as the tensors they stand for; everything else is the source's own."""

    def __init__(self, source: TensorSource) -> None:
        """Raises ModelFileError for a pair whose halves do not fit together."""
        self.path, self.source = source.path, source
        present = set(source.names())
        packed = [name.removesuffix(_BLOCKS) for name in source.names() if name.endswith(_BLOCKS)]
        self._pairs = {name for name in packed if name + _SCALES in present and name not in present}
        for name in self._pairs:
            blocks, scales = source.shape(name + _BLOCKS), source.shape(name + _SCALES)
            stored = (source.dtype(name + _BLOCKS), source.dtype(name + _SCALES))
            if len(blocks) < 4 or blocks[-1] != BLOCK // 2 or blocks[:-1] != scales or set(stored) != {"U8"}:
                raise ModelFileError(
                    f"{shown(name)}: MXFP4 blocks {blocks} of {shown(stored[0])} and scales {scales} of {shown(stored[1])} "
                    f"do not fit together; blocks (..., {BLOCK // 2}) and one scale each, all U8, do"
                )

    @property
    def metadata(self) -> dict[str, Any]:
        """See ``TensorSource.metadata``."""
        return self.source.metadata

    def names(self) -> list[str]:
        """See ``TensorSource.names``; a pair counts as one."""
        halves = {name + _SCALES for name in self._pairs}
        return [self._whole(name) for name in self.source.names() if name not in halves]

    def shape(self, name: str) -> tuple[int, ...]:
        """See ``TensorSource.shape``."""
        if name not in self._pairs:
            return self.source.shape(name)
        *outer, rows, count, _ = self.source.shape(name + _BLOCKS)
        return (*outer, count * BLOCK, rows)

    def dtype(self, name: str) -> str:
        """See ``TensorSource.dtype``: what the numbers are opened to."""
        return "BF16" if name in self._pairs else self.source.dtype(name)

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """See ``TensorSource.tensor``; bfloat16 unless told otherwise."""
        if name not in self._pairs:
            return self.source.tensor(name, dtype)
        blocks, scales = self.source.tensor(name + _BLOCKS), self.source.tensor(name + _SCALES)
        return open_blocks(blocks, scales, dtype or torch.bfloat16).mT

    def _whole(self, name: str) -> str:
        base = name.removesuffix(_BLOCKS)
        return base if base in self._pairs else name


def open_mxfp4(source: TensorSource) -> TensorSource:
    """The source itself when it holds no MXFP4 pairs."""
    opened = OpenedSource(source)
    return opened if opened._pairs else source
