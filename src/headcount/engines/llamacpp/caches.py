"""The caches llama.cpp allocates at start: cells x rows, whole, for all slots (src/llama-kv-cache*.cpp of 0c1e57098).

    one stream     cells = rup(n_ctx, 256)                                 kv-unified, or builds before streams
    a slot each    cells = rup(rup(n_ctx, 256) / slots, 256), slots streams
    sliding        cells = rup(min(cells, window x (one stream ? slots : 1) + ubatch), 256), unless swa-full
    bytes          cells x streams x (row(K type, K H_k) + row(V type, K H_v))              per layer
    latent         K only, row(r + d_rope); files converted before 2025-04-15: full keys and values of N heads
    recurrent      slots x 4 x (conv + state)                                               per layer, f32
    Ollama's own   own_engine.py
    row(t, n)      n / block x block bytes

Layers that read another layer's cache have none. Without flash attention values lie transposed and every layer takes the
widest layer's row.
"""

from __future__ import annotations

from headcount.engines.llamacpp.builds import build
from headcount.engines.llamacpp.options import default_options
from headcount.engines.llamacpp.own_engine import kept_tokens, window_cells
from headcount.errors import UnsupportedModelError, UsageError
from headcount.record import Record
from headcount.spec.attention import (
    ChunkedAttention,
    FullAttention,
    HeadedAttention,
    LatentAttention,
    SharedCache,
    SlidingWindow,
    StateSpace,
)
from headcount.units import round_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.engines.llamacpp.builds import Build
    from headcount.engines.llamacpp.options import Options
    from headcount.spec.attention import Mixer
    from headcount.spec.kv_format import KvFormat
    from headcount.spec.model import ModelSpec

# Families whose sliding (or chunked) layers llama.cpp keeps in the small cache (swa_type set in src/models/*.cpp). All
# others attend, and cache, the whole context: mistral, qwen2, starcoder2; phi3's window is switched off in the source.
SLIDING_FAMILIES = (
    "cohere2",
    "cohere2_moe",
    "exaone4",
    "exaone_moe",
    "gemma2",
    "gemma3_text",
    "gemma3n_text",
    "gemma4_text",
    "gemma4_unified_text",
    "gpt_oss",
    "llama4_text",
    "mimo_v2_flash",
    "olmo3",
)
_EXAONE4_SLIDING_LAYERS = 64  # src/models/exaone4.cpp: the 32B model only
FULL, SLIDING, STATE, INDEXER = "KV", "sliding KV", "recurrent state", "indexer keys"
_ALIGNMENT = 128  # bytes, ggml-cuda buffers
_ROW_PADDING = 512  # elements, MATRIX_ROW_PADDING of ggml-cuda: a quantised tensor's row is padded to it once


class LayerRow(Record):
    """What one layer keeps of one token (or, for a state, of one slot).

    kind    which cache it lies in
    key, value   elements of a row: keys and values; convolution and state for a recurrent layer
    window  tokens, of a sliding layer
    """

    layer: int
    kind: str
    key: int
    value: int
    window: int = 0


class Cache(Record):
    """One cache as its ``size = ... MiB`` line prints it, over all devices.

    cells, streams   cells of one stream; a recurrent cache has one cell a slot
    layers           layers with rows in it
    key_bytes, value_bytes   K and V; for a recurrent cache R (convolution) and S (state)
    by_layer         ``(layer, bytes as a CUDA buffer holds them)``: tensors aligned, quantised rows padded
    """

    name: str
    cells: int
    streams: int
    layers: int
    key_bytes: int
    value_bytes: int
    by_layer: tuple[tuple[int, int], ...]

    @property
    def total_bytes(self) -> int:
        """K + V as printed."""
        return self.key_bytes + self.value_bytes

    def held(self, start: int, end: int) -> int:
        """Bytes of the buffer on a device that runs layers ``start`` to ``end`` (exclusive)."""
        return sum(size for layer, size in self.by_layer if start <= layer < end)


def cache_bytes(
    model: ModelSpec,
    n_ctx: int,
    slots: int = 1,
    *,
    options: Options | None = None,
    rules: Build | None = None,
) -> tuple[Cache, ...]:
    """Every cache of a context of ``n_ctx`` tokens in all and ``slots`` sequences; see the module for the equations.

    Raises UnsupportedModelError for a cache without a known rule, UsageError where a row is no whole number of blocks.
    """
    options = options or default_options()
    rules = rules or build()
    rows = layer_rows(model, rules)
    _check_heads(model, options)
    cells, streams = stream_cells(n_ctx, slots, options, rules)
    windows = {row.window for row in rows if row.kind == SLIDING}
    if len(windows) > 1:
        raise UnsupportedModelError(f"{model.name}: windows of {sorted(windows)} tokens; llama.cpp has one")
    window = max(windows, default=0)
    if rules.own:
        small = window_cells(model.family, cells, slots, window, options, rules)
    else:
        small = sliding_cells(cells, slots, window, options, rules)
    widest = max((row.value for row in rows if row.kind in (FULL, SLIDING)), default=0)
    caches = []
    for kind, length in ((FULL, cells), (SLIDING, small), (INDEXER, cells)):
        part = [row for row in rows if row.kind == kind]
        if not part:
            continue
        if not options.flash:
            part = [row.replace(value=widest) if row.value else row for row in part]
        caches.append(_attention_cache(kind, part, length, streams, options))
    states = [row for row in rows if row.kind == STATE]
    if states:
        caches.append(_state_cache(states, slots * (1 + rules.checkpoints)))
    return tuple(caches)


def total_cache_bytes(caches: tuple[Cache, ...]) -> int:
    """Sum of what the ``size =`` lines print."""
    return sum(cache.total_bytes for cache in caches)


def stream_cells(n_ctx: int, slots: int, options: Options, rules: Build) -> tuple[int, int]:
    """``(cells of one stream, streams)``."""
    multiple = rules.cell_multiple if options.flash else rules.cell_multiple_plain
    if options.unified or not rules.streams:
        return round_up(n_ctx, multiple), 1
    return round_up(max(1, round_up(n_ctx, multiple) // slots), multiple), slots


def sliding_cells(cells: int, slots: int, window: int, options: Options, rules: Build) -> int:
    """Cells of one stream of the sliding cache."""
    if options.swa_full:
        return cells
    multiple = rules.sliding_multiple
    if multiple is None:
        multiple = rules.cell_multiple if options.flash else rules.cell_multiple_plain
    sequences = slots if options.unified or not rules.streams else 1
    return round_up(min(cells, window * sequences + options.ubatch), multiple)


def layer_rows(model: ModelSpec, rules: Build) -> tuple[LayerRow, ...]:
    """What every layer caches, in layer order."""
    key = ("llamacpp rows", rules.sliding, rules.latent, rules.own)
    if key not in model.memo:
        latent = rules.latent and not _is_before_latent(model)
        found: list[LayerRow] = []
        for index, layer in enumerate(model.layers):
            for mixer in layer.mixers:
                window = _window_of(model, mixer, rules)
                found.extend(_rows_of(model, mixer, index, latent=latent, window=window))
        model.memo[key] = tuple(found)
    rows: tuple[LayerRow, ...] = model.memo[key]
    return rows


def keeps_windows(model: ModelSpec) -> bool:
    """Whether llama.cpp gives the model's sliding layers the small cache."""
    if model.family == "exaone4" and len(model.layers) != _EXAONE4_SLIDING_LAYERS:
        return False
    return model.family in SLIDING_FAMILIES


def _window_of(model: ModelSpec, mixer: Mixer, rules: Build) -> int:
    """Tokens that the small cache keeps of a conversation; 0 for a layer in the full one."""
    if not isinstance(mixer, SlidingWindow | ChunkedAttention):
        return 0
    window = mixer.window if isinstance(mixer, SlidingWindow) else mixer.chunk
    if rules.own:
        return kept_tokens(model.family, window)
    return window if rules.sliding and keeps_windows(model) else 0


def _is_before_latent(model: ModelSpec) -> bool:
    """A GGUF file without ``*.attention.key_length_mla`` was converted before the latent cache existed."""
    checkpoint = model.checkpoint
    if checkpoint is None or checkpoint.file_format != "gguf":
        return False
    return not any(name.endswith("attention.key_length_mla") for name in checkpoint.metadata)


def _rows_of(
    model: ModelSpec, mixer: Mixer, index: int, *, latent: bool, window: int
) -> tuple[LayerRow, ...]:
    if isinstance(mixer, SharedCache):
        return ()
    if isinstance(mixer, StateSpace):
        return (LayerRow(layer=index, kind=STATE, key=mixer.conv_elements, value=mixer.recurrent_elements),)
    if isinstance(mixer, LatentAttention):
        return _latent_rows(mixer, index, latent=latent)
    if isinstance(mixer, FullAttention | SlidingWindow | ChunkedAttention):
        heads = mixer.num_key_value_heads
        return (
            LayerRow(
                layer=index,
                kind=SLIDING if window else FULL,
                key=heads * mixer.head_dim,
                value=heads * mixer.v_head_dim,
                window=window,
            ),
        )
    raise UnsupportedModelError(
        f"{model.name}: llama.cpp's cache of {mixer.kind} attention ({type(mixer).__name__}) is not modelled"
    )


def _latent_rows(mixer: LatentAttention, index: int, *, latent: bool) -> tuple[LayerRow, ...]:
    if not latent:
        heads = mixer.num_attention_heads
        keys = heads * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim)
        return (LayerRow(layer=index, kind=FULL, key=keys, value=heads * mixer.v_head_dim),)
    own = LayerRow(layer=index, kind=FULL, key=mixer.latent_width, value=0)
    if not mixer.index_head_dim:
        return (own,)
    return (own, LayerRow(layer=index, kind=INDEXER, key=mixer.index_head_dim, value=0))


def _check_heads(model: ModelSpec, options: Options) -> None:
    """What llama.cpp refuses: a block that does not divide the head width, a latent with two types."""
    mixers = {mixer for layer, _ in model.layer_runs() for mixer in layer.mixers}
    if any(isinstance(mixer, LatentAttention) for mixer in mixers) and options.key != options.value:
        raise UsageError(
            f"llama.cpp refuses keys in {options.key.name} with values in {options.value.name} for latent attention: give "
            "one type"
        )
    for kv, part in ((options.key, "key"), (options.value, "value")):
        if kv.block == 1:
            continue
        for mixer in mixers:
            if isinstance(mixer, HeadedAttention) and not isinstance(mixer, SharedCache):
                width = mixer.head_dim if part == "key" else mixer.v_head_dim
                if width % kv.block:
                    raise UsageError(
                        f"llama.cpp refuses {kv.name} {part}s: blocks of {kv.block} do not divide heads of {width}"
                    )


def _attention_cache(kind: str, rows: list[LayerRow], cells: int, streams: int, options: Options) -> Cache:
    count = cells * streams
    keys = [count * options.key.row_bytes(1, row.key) for row in rows]
    values = [count * options.value.row_bytes(1, row.value) if row.value else 0 for row in rows]
    by_layer = tuple(
        (
            row.layer,
            _buffer_bytes(key, row.key, options.key) + _buffer_bytes(value, row.value, options.value),
        )
        for row, key, value in zip(rows, keys, values, strict=True)
    )
    return Cache(
        name=kind,
        cells=cells,
        streams=streams,
        layers=len(rows),
        key_bytes=sum(keys),
        value_bytes=sum(values),
        by_layer=by_layer,
    )


def _state_cache(rows: list[LayerRow], slots: int) -> Cache:
    return Cache(
        name=STATE,
        cells=slots,
        streams=1,
        layers=len(rows),
        key_bytes=sum(4 * slots * row.key for row in rows),
        value_bytes=sum(4 * slots * row.value for row in rows),
        by_layer=tuple(
            (
                row.layer,
                round_up(4 * slots * row.key, _ALIGNMENT) + round_up(4 * slots * row.value, _ALIGNMENT),
            )
            for row in rows
        ),
    )


def _buffer_bytes(size: int, row: int, kv: KvFormat) -> int:
    """One tensor in a CUDA buffer."""
    short = -row % _ROW_PADDING
    if size and kv.block > 1 and short:
        size += kv.row_bytes(1, short)
    return round_up(size, _ALIGNMENT)
