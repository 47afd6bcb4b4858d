"""How one key or value vector is stored in a cache: bytes per head, with the scales that a format carries.

    row bytes (h heads of width d) = h d / block x block_bytes + h x scale_bytes

``block`` values share one scale inside ``block_bytes`` (ggml formats); ``scale_bytes`` is kept once per token and
head (token-head formats). A per-tensor fp8 scale is a parameter of the layer and weighs nothing per token.

Per-channel formats share the scales of keys between tokens, and keep the newest tokens in 16 bits, so that their bytes
are no number per token: ``GroupedKvFormat``.
"""

from __future__ import annotations

from headcount.errors import UnknownNameError, UsageError
from headcount.record import Record
from headcount.units import ceil_div


class KvFormat(Record):
    """One storage format of cached keys and values; see the module for the equation."""

    name: str
    block: int
    block_bytes: int
    scale_bytes: int = 0
    note: str = ""
    source: str = ""

    def row_bytes(self, heads: int, width: int) -> int:
        """Bytes of one token's keys (or values): ``heads`` heads of ``width`` numbers.

        Raises UsageError when a row is not a whole number of blocks, as llama.cpp does.
        """
        blocks, rest = divmod(heads * width, self.block)
        if rest:
            raise UsageError(
                f"KV format {self.name} stores blocks of {self.block} values; "
                f"{heads} heads x {width} = {heads * width} is not a multiple of {self.block}"
            )
        return blocks * self.block_bytes + heads * self.scale_bytes

    def bits_per_value(self, width: int) -> float:
        """Bits one cached number takes at head width ``width``, scales included."""
        return 8 * self.row_bytes(self.block, width) / (self.block * width)

    def pair_bytes(self, heads: int, key_width: int, value_width: int) -> int:
        """Bytes of one token's keys and values."""
        return self.row_bytes(heads, key_width) + self.row_bytes(heads, value_width)

    def kept_bytes(self, tokens: int, heads: int, key_width: int, value_width: int) -> int:
        """Bytes of the keys and values of ``tokens`` kept tokens: ``n (key row + value row)``."""
        return tokens * self.pair_bytes(heads, key_width, value_width)


class PairedKvFormat(KvFormat):
    """TurboQuant as vLLM packs it: a head's key and value lie in one slot of an even number of bytes.

    slot = even(K + V),  K = ceil(d_k b_k / 8) + 2 (a fp16 norm; fp8 keys: d_k),  V = ceil(d_v b_v / 8) + 4 (scale, zero)
    """

    key_bits: int
    value_bits: int

    def row_bytes(self, heads: int, width: int) -> int:
        """Raise UsageError: a key and its value share one slot; ask ``pair_bytes``."""
        raise UsageError(f"KV format {self.name} packs a key with its value: there is no row of keys alone")

    def pair_bytes(self, heads: int, key_width: int, value_width: int) -> int:
        """See the class."""
        key = key_width if self.key_bits == 8 else ceil_div(key_width * self.key_bits, 8) + 2
        slot = key + ceil_div(value_width * self.value_bits, 8) + 4
        return heads * (slot + slot % 2)


class GroupedKvFormat(KvFormat):
    """KIVI (Liu et al. 2024, arXiv 2402.02750): keys quantised per channel, values per token, the newest tokens in 16 bits.

    Of n tokens kept, b bits, groups of g = 32 and a tail of R = 128 tokens:

        q = g floor(max(n - R, 0) / g)        quantised tokens: whole groups, all older than the newest R
        codes         q h (d_k + d_v) b / 8
        key scales    (q / g) h d_k 4         an fp16 scale and an fp16 least value per channel and group of g tokens
        value scales  q (h d_v / g) 4         the same per token and group of g numbers along its row
        tail          (n - q) h (d_k + d_v) 2

    A quantised number takes b + 32 / g bits: 5 for b = 4, 3 for b = 2 (KIVI's own figures), and with the tail 3.41 at
    n = 4,096 and b = 2.
    """

    bits: int
    tail: int

    def row_bytes(self, heads: int, width: int) -> int:
        """Raise UsageError: the bytes of one token depend on how many follow it; ask ``kept_bytes``."""
        raise UsageError(
            f"KV format {self.name} keeps the newest {self.tail} tokens in 16 bits and shares scales between "
            f"{self.block} older ones: it has no bytes per token, and is not counted here"
        )

    def quantised_tokens(self, tokens: int) -> int:
        """``q = g floor(max(n - R, 0) / g)``."""
        return max(tokens - self.tail, 0) // self.block * self.block

    def kept_bytes(self, tokens: int, heads: int, key_width: int, value_width: int) -> int:
        """Bytes of ``tokens`` kept tokens; UsageError when a value row is not a whole number of groups."""
        groups, rest = divmod(heads * value_width, self.block)
        if rest:
            raise UsageError(
                f"KV format {self.name} stores values in groups of {self.block}; "
                f"{heads} heads x {value_width} = {heads * value_width} is not a multiple of {self.block}"
            )
        old = self.quantised_tokens(tokens)
        numbers = heads * (key_width + value_width)
        scales = old // self.block * heads * key_width + old * groups
        return old * numbers * self.bits // 8 + scales * 4 + (tokens - old) * numbers * 2


_GGML = "ggml block layout, llama.cpp ggml-common.h"
_VLLM = "vLLM 0.33 kv_cache_dtype: two fp32 scales per head and token"
_FORMATS = (
    KvFormat(name="fp32", block=1, block_bytes=4),
    KvFormat(name="fp16", block=1, block_bytes=2),
    KvFormat(name="bf16", block=1, block_bytes=2),
    KvFormat(
        name="fp8",
        block=1,
        block_bytes=1,
        note="one scale per tensor, kept with the layer: no bytes per token",
    ),
    KvFormat(name="int8", block=1, block_bytes=1, note="scales weigh nothing: a lower bound"),
    KvFormat(
        name="int8_per_token_head",
        block=1,
        block_bytes=1,
        scale_bytes=2,
        note="one fp16 scale per token and head",
    ),
    KvFormat(
        name="fp8_per_token_head",
        block=1,
        block_bytes=1,
        scale_bytes=2,
        note="one fp16 scale per token and head",
    ),
    KvFormat(
        name="int4_per_token_head",
        block=2,
        block_bytes=1,
        scale_bytes=2,
        note="one fp16 scale per token and head",
    ),
    KvFormat(name="int8_per_token_head_fp32", block=1, block_bytes=1, scale_bytes=4, source=_VLLM),
    KvFormat(name="fp8_per_token_head_fp32", block=1, block_bytes=1, scale_bytes=4, source=_VLLM),
    KvFormat(name="int4_per_token_head_fp32", block=2, block_bytes=1, scale_bytes=4, source=_VLLM),
    KvFormat(
        name="nvfp4",
        block=16,
        block_bytes=9,
        note="16 x 4 bits and one fp8 scale",
        source="vLLM 0.33 nvfp4 cache",
    ),
    KvFormat(name="q8_0", block=32, block_bytes=34, note="32 x 8 bits and one fp16 scale", source=_GGML),
    KvFormat(name="q5_1", block=32, block_bytes=24, source=_GGML),
    KvFormat(name="q5_0", block=32, block_bytes=22, source=_GGML),
    KvFormat(name="q4_1", block=32, block_bytes=20, source=_GGML),
    KvFormat(name="q4_0", block=32, block_bytes=18, note="32 x 4 bits and one fp16 scale", source=_GGML),
    KvFormat(name="iq4_nl", block=32, block_bytes=18, source=_GGML),
)
KV_FORMATS: dict[str, KvFormat] = {fmt.name: fmt for fmt in _FORMATS}
_KIVI = "KIVI, arXiv 2402.02750: group 32, residual 128"
# Apart from KV_FORMATS, whose members all have bytes per token: tables and plans list those.
GROUPED_FORMATS: dict[str, GroupedKvFormat] = {
    f"int{bits}_per_channel": GroupedKvFormat(
        name=f"int{bits}_per_channel",
        block=32,
        block_bytes=32 * bits // 8 + 4,
        bits=bits,
        tail=128,
        note="keys per channel, values per token, newest 128 tokens in 16 bits",
        source=_KIVI,
    )
    for bits in (4, 2)
}
_TURBO = {"k8v4": (8, 4), "4bit_nc": (4, 4), "k3v4_nc": (3, 4), "3bit_nc": (3, 3)}
# Only vLLM has them (0.20 on); apart from KV_FORMATS, since a row alone has no bytes.
PAIRED_FORMATS: dict[str, PairedKvFormat] = {
    f"turboquant_{name}": PairedKvFormat(
        name=f"turboquant_{name}",
        block=1,
        block_bytes=1,
        key_bits=key_bits,
        value_bits=value_bits,
        source="vLLM 0.33 model_executor/layers/quantization/turboquant/config.py",
    )
    for name, (key_bits, value_bits) in _TURBO.items()
}
_ALIASES = {
    "float32": "fp32",
    "f32": "fp32",
    "float16": "fp16",
    "f16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "fp8_e4m3fn": "fp8",
}


def kv_format(name: str) -> KvFormat:
    """Return the KV format called ``name`` (``fp16``, ``fp8``, ``q8_0``, ...); UnknownNameError lists the nearest."""
    key = name.strip().lower()
    key = _ALIASES.get(key, key)
    if key in GROUPED_FORMATS:
        return GROUPED_FORMATS[key]
    if key in PAIRED_FORMATS:
        return PAIRED_FORMATS[key]
    if key not in KV_FORMATS:
        raise UnknownNameError(
            what="KV format", given=name, allowed=[*KV_FORMATS, *GROUPED_FORMATS, *PAIRED_FORMATS, *_ALIASES]
        )
    return KV_FORMATS[key]
