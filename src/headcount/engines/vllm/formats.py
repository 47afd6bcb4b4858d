"""Cache formats of ``--kv-cache-dtype``: what stores the same bytes here, and since which release (config/cache.py)."""

from __future__ import annotations

from headcount.spec.kv_format import PAIRED_FORMATS

# Formats of kv_cache_dtype, and the name of ours that stores the same bytes (fp32 scales inside the page).
KV_FORMATS = {
    "fp16": "fp16",
    "bf16": "bf16",
    "fp8": "fp8",
    "int8_per_token_head": "int8_per_token_head_fp32",
    "fp8_per_token_head": "fp8_per_token_head_fp32",
    "int4_per_token_head": "int4_per_token_head_fp32",
    "nvfp4": "nvfp4",
    **{name: name for name in PAIRED_FORMATS},
}
# First release that has the name of our format; nightly builds had them before.
KV_SINCE = {
    "fp16": "0.18.0",
    "bf16": "0.11.0",
    "fp8": "0.4.1",
    "int8_per_token_head": "0.20.0",
    "fp8_per_token_head": "0.20.0",
    "int4_per_token_head": "0.25.0",
    "nvfp4": "0.20.0",
    **dict.fromkeys(PAIRED_FORMATS, "0.20.0"),
}
# Of a sparse model, as nvfp4_ds_mla.
SPARSE_NVFP4_SINCE = "0.30.0"
# Bytes of a latent's row in a sparse model's packed cache. fp8_ds_mla: 512 fp8 values, 4 fp32 scales, 64 bf16 rotary values;
# nvfp4_ds_mla packs the latent in 4 bits.
DS_MLA = {"fp8": 656, "nvfp4": 352}
