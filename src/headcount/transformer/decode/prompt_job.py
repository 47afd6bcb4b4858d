"""A call of prompt attention as numbers: places of int64 in one table, byte offsets as in ``instructions.py``."""

from __future__ import annotations

# Addresses and byte strides: per sequence, per head, per row.
Q, Q_BATCH, Q_HEAD, Q_ROW = 0, 8, 16, 24
K, K_BATCH, K_HEAD, K_ROW = 32, 40, 48, 56
V, V_BATCH, V_HEAD, V_ROW = 64, 72, 80, 88
OUT, OUT_BATCH, OUT_HEAD, OUT_ROW = 96, 104, 112, 120
BATCH, HEADS, KV_HEADS, QUERIES, KEYS, HEAD_WIDTH, VALUE_WIDTH = 128, 136, 144, 152, 160, 168, 176
# The mask: the position of the first query; causal 0 or 1; the window and the chunk, 0 for none.
START, CAUSAL, WINDOW, CHUNK = 184, 192, 200, 208
# float64 bits; a cap of 0 is none. Sinks: the address of N float32, 0 for none.
SCALE, CAP, SINKS = 216, 224, 232
PACKED_KEYS, PACKED_VALUES = 240, 248
PRIVATE, PRIVATE_BYTES = 256, 264
# Counters that threads share, a cache line each: the next unit of work, packing units done.
NEXT, PACKED = 320, 384
JOB_NUMBERS = 56

PANEL = 32
TILE_ROWS = 8
QUERY_BLOCK = 64
KEY_BLOCK = 512
# Panels of 32 keys that one unit packs.
PACK_PANELS = 16
