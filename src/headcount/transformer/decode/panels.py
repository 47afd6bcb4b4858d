"""Weights packed in the order in which the tiles read them (``tiles.py`` has the layouts), side by side in one run of memory.

int8: one scale per 32 numbers of a row, s = max |w| / 127 rounded to float16, and round(w / s): ggml's Q8_0. Weights that
were Q8_0 before come out as they went in.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

from headcount.errors import UnsupportedModelError
from headcount.transformer.decode.tiles import BF16, COLUMNS, FP32, INT8_BLOCK_BYTES, ROWS, group_bytes

# Groups that are converted at a time: bounds what packing needs beside its result.
GROUPS_AT_ONCE = 64
PAGE_BYTES = 2 << 20


class Arena:
    """Memory that lies still for as long as this object lives, given out piece by piece; large pages where there are any."""

    def __init__(self, capacity_bytes: int) -> None:
        size = -(-max(capacity_bytes, 1) // PAGE_BYTES) * PAGE_BYTES + PAGE_BYTES
        self._memory = mmap.mmap(-1, size)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._bytes = torch.frombuffer(self._memory, dtype=torch.uint8)
        self._next = -self._bytes.data_ptr() % 64
        self.nbytes = 0

    def take(self, count: int) -> Tensor:
        """The next ``count`` bytes, at a multiple of 64."""
        piece = self._bytes[self._next : self._next + count]
        self._next += -(-count // 64) * 64
        self.nbytes += count
        return piece


def packed_bytes(form: int, outputs: int, inputs: int) -> int:
    """Bytes of a packed weight (outputs, inputs)."""
    return -(-outputs // ROWS) * group_bytes(form, -(-inputs // COLUMNS))


def pack(form: int, weights: Sequence[Tensor], arena: Arena, *, gated: bool = False) -> tuple[int, int, int]:
    """Pack ``weights``, one below the other (or gate and up woven, 16 rows each); return address, groups, column blocks."""
    inputs = weights[0].shape[1]
    outputs = sum(weight.shape[0] for weight in weights)
    if gated:
        outputs = 2 * -(-weights[0].shape[0] // 16) * 16
    blocks, groups = -(-inputs // COLUMNS), -(-outputs // ROWS)
    place = arena.take(groups * group_bytes(form, blocks)).view(groups, group_bytes(form, blocks))
    for first in range(0, groups, GROUPS_AT_ONCE):
        last = min(first + GROUPS_AT_ONCE, groups)
        rows = torch.zeros((last - first) * ROWS, blocks * COLUMNS)
        if gated:
            for number, weight in enumerate(weights):
                part = weight[first * 16 : last * 16]
                own = rows.view(last - first, 2, 16, -1)[:, number]
                target = torch.zeros(own.shape[0] * 16, own.shape[2])
                target[: part.shape[0], :inputs] = part
                own.copy_(target.view(own.shape))
        else:
            _fill(rows, weights, first * ROWS)
        place[first:last].copy_(_laid_out(form, rows))
    return place.data_ptr(), groups, blocks


def _fill(rows: Tensor, weights: Sequence[Tensor], skip: int) -> None:
    """Rows ``skip`` ... of the stacked weights, as many as there are."""
    at = -skip
    for weight in weights:
        begin, end = max(at, 0), min(at + weight.shape[0], rows.shape[0])
        if begin < end:
            rows[begin:end, : weight.shape[1]] = weight[begin - at : end - at]
        at += weight.shape[0]


def _laid_out(form: int, rows: Tensor) -> Tensor:
    """(groups x 32, columns) float32 -> (groups, bytes)."""
    groups, columns = rows.shape[0] // ROWS, rows.shape[1]
    if form == FP32:
        return (
            rows.view(groups, ROWS, columns).transpose(1, 2).contiguous().view(torch.uint8).view(groups, -1)
        )
    if form == BF16:
        pairs = rows.to(torch.bfloat16).view(groups, ROWS, columns // 2, 2).transpose(1, 2).contiguous()
        return pairs.view(torch.uint8).view(groups, -1)
    blocks = rows.view(groups, ROWS, columns // COLUMNS, COLUMNS)
    scale = (blocks.abs().amax(-1) / 127).to(torch.float16)
    if not bool(scale.isfinite().all()):
        raise UnsupportedModelError(
            "int8: a weight is not finite or above 127 x 65504, the largest that a scale reaches"
        )
    wide = scale.float()[..., None]
    whole = torch.where(wide == 0, 0.0, blocks / wide).round().clamp_(-127, 127).add_(128).to(torch.uint8)
    out = torch.empty(groups, columns // COLUMNS, INT8_BLOCK_BYTES, dtype=torch.uint8)
    quads = whole.view(groups, ROWS, columns // COLUMNS, 8, 4).permute(0, 2, 3, 1, 4)
    out[..., :1024] = quads.reshape(groups, columns // COLUMNS, 1024)
    out[..., 1024:] = (
        scale.transpose(1, 2).contiguous().view(torch.uint8).view(groups, columns // COLUMNS, 64)
    )
    return out.view(groups, -1)
