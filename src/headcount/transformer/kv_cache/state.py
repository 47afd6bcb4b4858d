"""Constant state: what a recurrent layer keeps, the same size after one token as after a million.

    conv       the last inputs of a causal convolution      ``conv_elements`` numbers
    recurrent  the state matrix                             ``recurrent_elements`` numbers

Both are flat vectors; a layer views them in its own shape. Their types are the spec's (``StateSpace.state_bytes``): those the
model fixes, else 32 bits in the format fp32 and 16 bits in every other: KV formats do not touch states.
"""

from __future__ import annotations

from copy import copy
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from headcount.errors import OperandError, UnsupportedModelError, UsageError
from headcount.spec.attention import StateSpace
from headcount.transformer.kv_cache.cache import Cache
from headcount.transformer.ops.operands import plain


class State(NamedTuple):
    """Views of the two vectors, in the types they are stored in; they change with the next ``write``."""

    conv: Tensor
    recurrent: Tensor


class StateCache(Cache):
    """One layer's state; zeros before the first token. ``half`` is the 16-bit type where the spec leaves it open."""

    kind = "state"

    def __init__(
        self, mixer: StateSpace, *, dtype_bytes: int, half: torch.dtype = torch.bfloat16, device: torch.device
    ) -> None:
        super().__init__()
        self.mixer, self.device = mixer, device
        self._bytes = mixer.state_bytes(dtype_bytes)
        types = {2: half, 4: torch.float32}
        sizes = (mixer.conv_dtype_bytes or dtype_bytes, mixer.recurrent_dtype_bytes or dtype_bytes)
        if any(size not in types for size in sizes):
            raise UnsupportedModelError(
                f"state cache: numbers of {sizes[0]} and {sizes[1]} bytes; only 2 and 4 are known"
            )
        with torch.inference_mode(False):
            self._state = State(
                torch.zeros(mixer.conv_elements, dtype=types[sizes[0]], device=device),
                torch.zeros(mixer.recurrent_elements, dtype=types[sizes[1]], device=device),
            )

    @property
    def nbytes(self) -> int:
        """``StateSpace.state_bytes`` from the first token on, 0 before: a conversation without tokens has no state."""
        return self._bytes if self._length and not self._released else 0

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the two vectors, which lie in memory from the start."""
        return sum(part.numel() * part.element_size() for part in self._state)

    def read(self) -> State:
        """Return the state after ``length`` tokens, flat; UsageError after ``release``."""
        self._alive("read")
        return self._state

    def write(self, conv: Float[Tensor, ...], recurrent: Float[Tensor, ...], *, tokens: int) -> None:
        """Replace the state by the one after ``tokens`` more tokens; any shape with the right count of numbers.

        Raises
        ------
        UsageError: after ``release``, fewer than 1 token, operands that require a gradient.
        OperandError: another count of numbers.
        """
        self._alive("write")
        if isinstance(tokens, bool) or tokens < 1:
            raise UsageError(f"state cache: a state is written after 1 or more tokens; given {tokens!r}")
        wanted = (self.mixer.conv_elements, self.mixer.recurrent_elements)
        if (conv.numel(), recurrent.numel()) != wanted:
            raise OperandError(
                f"state cache: conv holds {conv.numel():,} and recurrent {recurrent.numel():,} numbers; expected "
                f"{wanted[0]:,} and {wanted[1]:,}"
            )
        for name, part in (("conv", conv), ("recurrent", recurrent)):
            if part.device.type != self.device.type:
                raise OperandError(
                    f"state cache: {name} is {plain(part.dtype)} on {part.device}; the cache is on {self.device}"
                )
        if torch.is_grad_enabled() and (conv.requires_grad or recurrent.requires_grad):
            raise UsageError(
                "a cache keeps numbers, not gradients: write it under torch.no_grad() or inference_mode()"
            )
        self._state.conv.copy_(conv.reshape(-1))
        self._state.recurrent.copy_(recurrent.reshape(-1))
        self._length += tokens

    def fork(self) -> StateCache:
        """See ``Cache.fork``; the state is copied."""
        self._alive("fork")
        twin = copy(self)
        with torch.inference_mode(False):
            twin._state = State(*(torch.empty_like(part) for part in self._state))
        for new, old in zip(twin._state, self._state, strict=True):
            new.copy_(old)
        return twin

    def release(self) -> None:
        """See ``Cache.release``."""
        self._alive("release")
        self._state = State(*(part.new_empty(0) for part in self._state))
        self._released = True
