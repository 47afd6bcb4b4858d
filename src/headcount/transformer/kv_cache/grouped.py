"""Keys per channel, values per token, the newest tokens in 16 bits (KIVI, Liu et al. 2024, arXiv 2402.02750).

A few channels of the keys are large in every token. A scale per token must span them and leaves the small channels no steps; a
scale per channel does not. But the scale of a channel can be chosen only when all tokens that share it are there: the newest
tokens wait in a 16-bit tail, and a group of g = 32 is quantised when all of it is older than the newest R = 128.

    least = min x      s = (max x - least) / (2^b - 1)      q = round((x - least) / s)      x' = least + s q

    keys    one (s, least) for g tokens of one channel of one head
    values  one (s, least) for g numbers of one token, along its row

Bytes: ``GroupedKvFormat``. ``extend`` answers before it quantises: the queries of a prompt see their own keys in 16 bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headcount.errors import UsageError
from headcount.spec.kv_format import GroupedKvFormat
from headcount.transformer.kv_cache.cache import EntryCache, Kept
from headcount.transformer.kv_cache.codec import FloatRows, Part, RowCodec, as_heads, as_rows, cut
from headcount.transformer.kv_cache.entry import HeadedEntry
from headcount.transformer.kv_cache.horizon import Everything
from headcount.transformer.kv_cache.quantised import divided
from headcount.transformer.kv_cache.rows import Rows


def pack(codes: Tensor, bits: int) -> Tensor:
    """(..., n) numbers of ``bits`` bits -> (..., n bits / 8) bytes, the first in the lowest bits."""
    each = 8 // bits
    lanes = cut(codes.to(torch.uint8), codes.shape[-1] // each, each)
    packed = lanes[..., 0].clone()
    for place in range(1, each):
        packed |= lanes[..., place] << (bits * place)
    return packed


def unpack(packed: Tensor, bits: int) -> Tensor:
    """The inverse of ``pack``, as uint8."""
    codes = torch.stack([(packed >> shift) & (2**bits - 1) for shift in range(0, 8, bits)], dim=-1)
    return codes.flatten(-2)


def spread(x: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return codes, scale and least value of every group along the last dimension; scale and least are rounded first."""
    least = x.amin(-1, keepdim=True).to(torch.float16)
    scale = ((x.amax(-1, keepdim=True) - least.float()) / (2**bits - 1)).to(torch.float16)
    codes = divided(x - least.float(), scale.float()).round_().nan_to_num_(0.0).clamp_(0, 2**bits - 1)
    return codes, scale, least


class ValueRows(RowCodec):
    """Values of one token: groups of g numbers along the row of K W."""

    def __init__(self, heads: int, width: int, *, bits: int, group: int) -> None:
        super().__init__(heads, width)
        self.bits, self.group = bits, group
        numbers = heads * width
        if numbers % group:
            raise UsageError(
                f"values in groups of {group}: {heads} heads x {width} = {numbers} is no multiple"
            )
        self.groups = numbers // group
        scales = Part(1, self.groups, torch.float16)
        self.parts = (Part(1, numbers * bits // 8, torch.uint8), scales, scales)

    def encode(self, x_KTH: Tensor) -> tuple[Tensor, ...]:
        """Codes, scales, least values."""
        codes, scale, least = spread(cut(as_rows(x_KTH), self.groups, self.group), self.bits)
        return pack(codes.flatten(-2), self.bits)[None], scale[None, ..., 0], least[None, ..., 0]

    def decode(self, parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """least + s q."""
        codes, scale, least = (part[0] for part in parts)
        groups = cut(unpack(codes, self.bits).float(), self.groups, self.group)
        values = groups * scale.float()[..., None] + least.float()[..., None]
        return as_heads(values.flatten(-2), self.heads, dtype)


class KeyGroups(RowCodec):
    """Keys of g tokens as one row: the codec of a group, not of a token. T counts tokens in, groups inside."""

    def __init__(self, heads: int, width: int, *, bits: int, group: int) -> None:
        super().__init__(heads, width)
        self.bits, self.group = bits, group
        scales = Part(heads, width, torch.float16)
        self.parts = (Part(heads, width * group * bits // 8, torch.uint8), scales, scales)

    def encode(self, x_KTH: Tensor) -> tuple[Tensor, ...]:
        """(K, n g, H) -> parts of n groups."""
        heads, tokens, width = x_KTH.shape
        groups = x_KTH.float().reshape(heads, tokens // self.group, self.group, width)
        channels = groups.transpose(2, 3)  # (K, n, H, g)
        codes, scale, least = spread(channels, self.bits)
        return pack(codes.flatten(-2), self.bits), scale[..., 0], least[..., 0]

    def decode(self, parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """Parts of n groups -> (K, n g, H)."""
        codes, scale, least = parts
        channels = cut(unpack(codes, self.bits).float(), self.width, self.group)
        keys = channels * scale.float()[..., None] + least.float()[..., None]
        return keys.transpose(2, 3).flatten(1, 2).to(dtype)


class GroupedCache(EntryCache):
    """One conversation in a ``GroupedKvFormat``: groups of keys, rows of values, and the tail. ``extend``: see ``Cache``."""

    kind = "grouped"

    def __init__(
        self,
        fmt: GroupedKvFormat,
        *,
        heads: int,
        key_width: int,
        value_width: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        # The tail is 16 bits wide whatever is computed in; where that is 16 bits, in the same type.
        half = dtype if dtype in (torch.float16, torch.bfloat16) else torch.float16
        tail = HeadedEntry(
            FloatRows(heads, key_width, half), FloatRows(heads, value_width, half), format=fmt.name
        )
        super().__init__(tail, Everything(), dtype=dtype, device=device)
        self.format = fmt
        self._keys = KeyGroups(heads, key_width, bits=fmt.bits, group=fmt.block)
        self._values = ValueRows(heads, value_width, bits=fmt.bits, group=fmt.block)
        self._key_groups = Rows(self._keys.parts, device)
        self._value_rows = Rows(self._values.parts, device)
        self._tail = Rows(tail.parts, device)
        self._reserved = 0

    @property
    def nbytes(self) -> int:
        """Groups, value rows and the tail, as they fill their tensors."""
        if self._released:
            return 0
        filled = ((self._key_groups, self._keys), (self._value_rows, self._values), (self._tail, self.entry))
        return sum((rows.end - rows.begin) * codec.nbytes for rows, codec in filled)

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(rows.allocated_bytes for rows in (self._key_groups, self._value_rows, self._tail))

    def reserve(self, tokens: int) -> None:
        """See ``Cache.reserve``. Exact at ``tokens`` tokens; on the way there the tail is longer than at the end."""
        super().reserve(tokens)
        self._reserved = tokens
        old = self.format.quantised_tokens(max(tokens, self._length))
        group = self.format.block
        for rows, capacity in ((self._key_groups, old // group), (self._value_rows, old)):
            if capacity != rows.capacity:
                rows.rehouse(rows.end, max(capacity, rows.end))
        self._trim_tail()

    def fork(self) -> GroupedCache:
        """See ``Cache.fork``; everything is copied."""
        self._alive("fork")
        entry = self.entry
        twin = GroupedCache(
            self.format,
            heads=entry.heads,
            key_width=entry.key_width,
            value_width=entry.value_width,
            dtype=self.dtype,
            device=self.device,
        )
        twin._key_groups, twin._value_rows = self._key_groups.copy(), self._value_rows.copy()
        twin._tail, twin._length, twin._reserved = self._tail.copy(), self._length, self._reserved
        return twin

    def release(self) -> None:
        """See ``Cache.release``."""
        self._alive("release")
        for rows in (self._key_groups, self._value_rows, self._tail):
            rows.clear()
        self._released = True

    def _append(self, encoded: Sequence[Tensor], tokens: int) -> Kept:
        tail = self._tail
        waiting = tail.end - tail.begin
        tail.open(tokens, keep=waiting)
        tail.write(encoded, tokens)
        self._length += tokens
        shown = self._show(self._length)
        self._quantise()
        if self._length == self._reserved:
            self._trim_tail()
        return shown

    def _quantise(self) -> None:
        """Move the groups that are now older than the newest R tokens out of the tail."""
        tail, group = self._tail, self.format.block
        count = self.format.quantised_tokens(self._length) - self._value_rows.end
        if not count:
            return
        keys, values = tail.view(tail.begin, tail.begin + count)
        self._key_groups.open(count // group, keep=self._key_groups.end)
        self._key_groups.write(self._keys.encode(keys), count // group)
        self._value_rows.open(count, keep=self._value_rows.end)
        self._value_rows.write(self._values.encode(values), count)
        tail.begin += count
        if tail.capacity > 2 * (self.format.tail + group):
            # A long prompt passed through: its room is not needed again.
            tail.rehouse(tail.end - tail.begin, self.format.tail + group)

    def _trim_tail(self) -> None:
        """Give the tail exactly the rows it holds, once the reserved length is reached."""
        waiting = self._tail.end - self._tail.begin
        if self._length >= self._reserved and self._tail.capacity != waiting:
            self._tail.rehouse(waiting, waiting)

    def _show(self, count: int) -> Kept:
        tail_keys, tail_values = self.entry.decode(
            self._tail.view(self._tail.begin, self._tail.end), self.dtype
        )
        keys = self._keys.decode(self._key_groups.view(0, self._key_groups.end), self.dtype)
        values = self._values.decode(self._value_rows.view(0, self._value_rows.end), self.dtype)
        shown = Kept(torch.cat((keys, tail_keys), 1), torch.cat((values, tail_values), 1), 0)
        skipped = self._length - count
        return shown if not skipped else Kept(shown.keys[:, skipped:], shown.values[:, skipped:], skipped)
