"""KV format names -> codecs. The names, and the bytes they must come to, are ``headcount.spec.kv_format``'s."""

from __future__ import annotations

from collections.abc import Callable

import torch

from headcount.errors import UnsupportedModelError
from headcount.spec.attention import HeadedAttention, LatentAttention, Mixer
from headcount.spec.kv_format import KvFormat, kv_format
from headcount.transformer.kv_cache.codec import FloatRows, RowCodec
from headcount.transformer.kv_cache.entry import Entry, HeadedEntry
from headcount.transformer.kv_cache.latent import LatentEntry
from headcount.transformer.kv_cache.quantised import Fp8Rows, Q4Rows, Q8Rows, TokenHeadRows

CODECS: dict[str, Callable[[int, int], RowCodec]] = {
    "fp32": lambda heads, width: FloatRows(heads, width, torch.float32),
    "fp16": lambda heads, width: FloatRows(heads, width, torch.float16),
    "bf16": lambda heads, width: FloatRows(heads, width, torch.bfloat16),
    "fp8": Fp8Rows,
    "int8_per_token_head": lambda heads, width: TokenHeadRows(heads, width, bits=8),
    "int4_per_token_head": lambda heads, width: TokenHeadRows(heads, width, bits=4),
    "fp8_per_token_head": lambda heads, width: Fp8Rows(heads, width, scale=torch.float16),
    "int8_per_token_head_fp32": lambda heads, width: TokenHeadRows(heads, width, bits=8, scale=torch.float32),
    "int4_per_token_head_fp32": lambda heads, width: TokenHeadRows(heads, width, bits=4, scale=torch.float32),
    "fp8_per_token_head_fp32": lambda heads, width: Fp8Rows(heads, width, scale=torch.float32),
    "q8_0": Q8Rows,
    "q4_0": Q4Rows,
}


def row_codec(name: str, heads: int, width: int) -> RowCodec:
    """Return the codec of KV format ``name`` for ``heads`` rows of ``width`` numbers.

    Raises
    ------
    UnknownNameError: no KV format has this name.
    UnsupportedModelError: the format is counted by the planner but not stored here.
    UsageError: rows that are no whole number of the format's blocks.
    """
    fmt = kv_format(name)
    # The count is the same, the numbers are not: a spec has one ``fp8``, a cache must store the one that was asked for.
    if name.strip().lower() == "fp8_e5m2":
        return Fp8Rows(heads, width, kind=torch.float8_e5m2)
    if fmt.name not in CODECS:
        raise UnsupportedModelError(
            f"the running cache does not store KV format {fmt.name}; it stores {', '.join(CODECS)}"
        )
    return CODECS[fmt.name](heads, width)


def entry_of(mixer: Mixer, name: str) -> Entry:
    """Return what one token leaves behind in ``mixer``, in KV format ``name``; errors as ``row_codec``.

    UnsupportedModelError: a mixer that keeps no entries per token, or an indexer beside them.
    """
    label = codec_label(kv_format(name), name)
    if isinstance(mixer, HeadedAttention):
        keys = row_codec(name, mixer.num_key_value_heads, mixer.head_dim)
        values = row_codec(name, mixer.num_key_value_heads, mixer.v_head_dim)
        return HeadedEntry(keys, values, format=label)
    if isinstance(mixer, LatentAttention):
        if mixer.index_head_dim:
            raise UnsupportedModelError(
                "latent attention with an indexer (DeepSeek-V3.2) keeps a third key per token; the running cache does not"
            )
        return LatentEntry(row_codec(name, 1, mixer.latent_width), mixer.kv_lora_rank, format=label)
    raise UnsupportedModelError(
        f"{type(mixer).__name__} ({mixer.kind}) keeps no entry per token in the running cache"
    )


def codec_label(fmt: KvFormat, given: str) -> str:
    """The name under which caches may share pages: the format's own, e5m2 apart from e4m3."""
    return "fp8_e5m2" if given.strip().lower() == "fp8_e5m2" else fmt.name
