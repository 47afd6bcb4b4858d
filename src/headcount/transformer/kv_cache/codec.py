"""How the keys (or values) of one token become stored numbers and come back: a codec knows nothing of where rows lie.

    encode(x_KTH) -> one tensor per part, (lanes, T, width)
    decode(parts) -> x_KTH in the compute dtype

A part is a tensor with tokens on its middle axis: fp16 has one part (K, T, H); int8 with a scale per head has two, the codes
(K, T, H) and the scales (K, T, 1); ggml's blocks run along the whole row, (1, T, bytes). So a place (contiguous, rolling, pages)
moves parts about and every codec works in every place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from headcount.transformer.layers import positive


class Part(NamedTuple):
    """One stored tensor of a codec, for T tokens (lanes, T, width)."""

    lanes: int
    width: int
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of one token."""
        return self.lanes * self.width * self.dtype.itemsize

    def empty(self, rows: int, device: torch.device) -> Tensor:
        """Uninitialised room for ``rows`` tokens, usable in and outside of inference mode."""
        with torch.inference_mode(False):
            return torch.empty(self.lanes, rows, self.width, dtype=self.dtype, device=device)


class RowCodec(ABC):
    """Base of the codecs; ``heads`` rows of ``width`` numbers per token."""

    parts: tuple[Part, ...]

    def __init__(self, heads: int, width: int) -> None:
        positive("KV codec", heads=heads, width=width)
        self.heads, self.width = heads, width

    @property
    def nbytes(self) -> int:
        """Bytes of one token."""
        return sum(part.nbytes for part in self.parts)

    @abstractmethod
    def encode(self, x_KTH: Tensor) -> tuple[Tensor, ...]:
        """Return one tensor (lanes, T, width) per part."""

    @abstractmethod
    def decode(self, parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """Return (K, T, H) in ``dtype``; a view of the part where nothing has to be computed."""


class FloatRows(RowCodec):
    """Numbers as they are, rounded to ``dtype`` once: fp32, fp16, bf16."""

    def __init__(self, heads: int, width: int, dtype: torch.dtype) -> None:
        super().__init__(heads, width)
        self.parts = (Part(heads, width, dtype),)

    def encode(self, x_KTH: Tensor) -> tuple[Tensor, ...]:
        """The operand itself: storing it rounds it."""
        return (x_KTH,)

    def decode(self, parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """The storage itself when the dtypes agree."""
        return parts[0] if parts[0].dtype == dtype else parts[0].to(dtype)


def cut(x: Tensor, *sizes: int) -> Tensor:
    """Split the last dimension into ``sizes``."""
    return x.reshape(*x.shape[:-1], *sizes)


def as_rows(x_KTH: Tensor) -> Tensor:
    """(K, T, H) -> (T, K H) in float32: the row of each token, heads one after the other."""
    heads, tokens, width = x_KTH.shape
    return x_KTH.permute(1, 0, 2).reshape(tokens, heads * width).float()


def as_heads(rows: Tensor, heads: int, dtype: torch.dtype) -> Tensor:
    """(T, K H) -> (K, T, H): the inverse of ``as_rows``."""
    tokens, numbers = rows.shape
    return rows.to(dtype).view(tokens, heads, numbers // heads).permute(1, 0, 2)
