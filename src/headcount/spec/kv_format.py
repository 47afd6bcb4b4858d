"""How one key or value vector is stored in a cache: bytes per head, with the scales that a format carries.

    row bytes (h heads of width d) = h d / block x block_bytes + h x scale_bytes

``block`` values share one scale inside ``block_bytes`` (ggml formats); ``scale_bytes`` is kept once per token and
head (token-head formats). A per-tensor fp8 scale is a parameter of the layer and weighs nothing per token.
"""

from __future__ import annotations

from headcount.errors import UnknownNameError, UsageError
from headcount.record import Record


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
    if key not in KV_FORMATS:
        raise UnknownNameError(what="KV format", given=name, allowed=[*KV_FORMATS, *_ALIASES])
    return KV_FORMATS[key]
