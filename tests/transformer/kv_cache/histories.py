"""What a test knows without a cache: every key and value ever appended, in plain lists of tensors joined by ``torch.cat``."""

from __future__ import annotations

import torch
from torch import Tensor

from headcount.spec.attention import (
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    LatentAttention,
    Mixer,
    SlidingWindow,
)

# Formats that store what they are given without loss when it is given in this type.
LOSSLESS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
CPU = torch.device("cpu")


class History:
    """Keys (K, n, H) and values (K, n, W) of n tokens."""

    def __init__(
        self, heads: int, key_width: int, value_width: int, *, seed: int, dtype: torch.dtype
    ) -> None:
        self.shape = (heads, key_width, value_width)
        self.random = torch.Generator().manual_seed(seed)
        self.keys = torch.empty(heads, 0, key_width, dtype=dtype)
        self.values = torch.empty(heads, 0, value_width, dtype=dtype)

    def __len__(self) -> int:
        return self.keys.shape[1]

    def draw(self, tokens: int) -> tuple[Tensor, Tensor]:
        """The next ``tokens`` keys and values, appended here as well."""
        heads, key_width, value_width = self.shape
        keys = torch.randn(heads, tokens, key_width, generator=self.random).to(self.keys.dtype)
        values = torch.randn(heads, tokens, value_width, generator=self.random).to(self.values.dtype)
        self.append(keys, values)
        return keys, values

    def append(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = torch.cat((self.keys, keys), 1), torch.cat((self.values, values), 1)

    def copy(self, *, seed: int) -> History:
        twin = History(*self.shape, seed=seed, dtype=self.keys.dtype)
        twin.keys, twin.values = self.keys, self.values
        return twin


def full(heads: int, key_width: int, value_width: int) -> FullAttention:
    return FullAttention(
        num_attention_heads=heads, num_key_value_heads=heads, head_dim=key_width, v_head_dim=value_width
    )


def sliding(heads: int, key_width: int, value_width: int, window: int) -> SlidingWindow:
    return SlidingWindow(
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=key_width,
        v_head_dim=value_width,
        window=window,
    )


def chunked(heads: int, key_width: int, value_width: int, chunk: int) -> ChunkedAttention:
    return ChunkedAttention(
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=key_width,
        v_head_dim=value_width,
        chunk=chunk,
    )


def cross(heads: int, key_width: int, value_width: int, source: int) -> CrossAttention:
    return CrossAttention(
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=key_width,
        v_head_dim=value_width,
        source_positions=source,
    )


def latent(width: int, rotary: int) -> LatentAttention:
    return LatentAttention(
        num_attention_heads=4,
        kv_lora_rank=width,
        qk_rope_head_dim=rotary,
        qk_nope_head_dim=8,
        v_head_dim=8,
    )


def first_visible(mixer: Mixer, length: int) -> int:
    """Position of the oldest token that the one at position ``length`` may look at, from the mask's own definition."""
    if isinstance(mixer, SlidingWindow):
        return max(0, length - mixer.window + 1)
    if isinstance(mixer, ChunkedAttention):
        return length // mixer.chunk * mixer.chunk
    return 0
