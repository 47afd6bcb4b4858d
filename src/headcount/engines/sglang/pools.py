"""From bytes to SGLang's pools: tokens of the full and of the sliding pool, slots of the state pool, conversations.

    one token, full pool      f = sum over layers of h (d_k + d_v) p, or r + d_rope numbers, + 132 B per indexer
    one token, sliding pool   s = the same over windowed layers (only of models with a sliding pool)
    tokens                    N = floor(C / (f + ratio s)), whole pages;   sliding tokens = floor(ratio N), whole pages
    state slots               S = floor((C q / (1 + q) - e) / e)           q: mamba_full_memory_ratio, e: bytes of one slot
                              C of the token pools = C - (S + 1) e

h = max(1, K // T) heads; a latent is whole on every rank. Layers that read another layer's cache have their own rows all
the same. A pipeline takes the smallest N of its stages, and e of the stage with most states.

A conversation of n tokens holds ceil(n / page) pages of the full pool, and of the sliding pool its window, one eviction
interval and two pages (at most what it has); prefills in flight need up to two chunks more. Source: sglang 0.5.23 (PyPI,
2026-10-30), srt/model_executor/pool_configurator.py, srt/mem_cache/kv_cache_configurator.py.
"""

from __future__ import annotations

from headcount.cost.cache import rank_mixer
from headcount.engines.sglang.backends import is_sparse
from headcount.engines.sglang.options import Setup
from headcount.errors import UnsupportedModelError
from headcount.record import Record
from headcount.spec.attention import (
    ChunkedAttention,
    CompressedLatent,
    CrossAttention,
    HeadedAttention,
    LatentAttention,
    SharedCache,
    SlidingWindow,
    StateSpace,
)
from headcount.spec.weight import ROW, STATE_SPACE
from headcount.units import ceil_div, round_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.spec.attention import Mixer
    from headcount.spec.model import LayerSpec, ModelSpec

SOURCE = "sglang 0.5.23, srt/model_executor/pool_configurator.py"
# model_type of models whose windowed layers have a pool of their own; all others keep every token in every layer.
WINDOWED = ("gpt_oss", "llama4_text", "gemma4_text", "gemma4_unified_text", "mimo_v2_flash")
_SCALED_BLOCK = 128
_EVICTION_INTERVAL = 128  # SGLANG_SWA_EVICTION_INTERVAL
_STATE_BYTES = 4  # recurrent states are float32 unless the model's config or --mamba-ssm-dtype says otherwise
_CONV_BYTES = 2  # SGLANG_MAMBA_CONV_DTYPE: bfloat16


class StagePool(Record):
    """Bytes on one rank of one stage: a token in the full and in the sliding pool, one state slot; ``window`` [tokens]."""

    full: int
    sliding: int
    state: int
    window: int


class Pools(Record):
    """What was made of the bytes: tokens of both pools (0: there is none), slots; ``cell`` bytes per token printed."""

    tokens: int
    sliding_tokens: int
    slots: int
    cell: float


def stage_pool(model: ModelSpec, start: int, end: int, setup: Setup) -> StagePool:
    """What one token and one state weigh in decoder blocks ``start`` to ``end``.

    Raises UnsupportedModelError for layer kinds whose pools are not known.
    """
    key = (
        "sglang",
        start,
        end,
        setup.kv,
        setup.attention_tp,
        setup.scaled_rows,
        setup.state_bytes,
        setup.rules,
    )
    if key not in model.memo:
        model.memo[key] = _count(model, start, end, setup)
    found: StagePool = model.memo[key]
    return found


def _count(model: ModelSpec, start: int, end: int, setup: Setup) -> StagePool:
    windowed, sparse = model.family in WINDOWED, is_sparse(model)
    full = sliding = state = window = 0
    for layer in model.layers[start:end]:
        for mixer in layer.mixers:
            if isinstance(mixer, StateSpace):
                state += _state_bytes(mixer, layer, setup)
                continue
            count = _token_bytes(mixer, setup, sparse=sparse)
            reach = _window(mixer) if windowed else 0
            window = max(window, reach)
            if reach:
                sliding += count
            else:
                full += count
    return StagePool(full=full, sliding=sliding, state=state, window=window)


def ignored_window(model: ModelSpec, context: int) -> int:
    """The shortest window below ``context`` of a model whose windowed layers keep every token all the same; else 0."""
    if model.family in WINDOWED:
        return 0
    reaches = [_window(mixer) for layer, _ in model.layer_runs() for mixer in layer.mixers]
    return min((reach for reach in reaches if 0 < reach < context), default=0)


def _window(mixer: Mixer) -> int:
    """Tokens a windowed layer looks back; 0 for a full one."""
    if isinstance(mixer, SlidingWindow | SharedCache):
        return mixer.window
    return mixer.chunk if isinstance(mixer, ChunkedAttention) else 0


def _token_bytes(mixer: Mixer, setup: Setup, *, sparse: bool) -> int:
    if isinstance(mixer, LatentAttention):
        return _latent_bytes(mixer, setup, sparse=sparse)
    if isinstance(mixer, CompressedLatent):
        raise UnsupportedModelError(
            "compressed attention (DeepSeek-V4) has six pools in SGLang that are not modelled; "
            "--engine textbook counts its ideal cache"
        )
    if isinstance(mixer, CrossAttention):
        raise UnsupportedModelError(
            "how SGLang stores cross-attention (Whisper, Llama 3.2 Vision) is not modelled; "
            "--engine textbook counts its ideal cache"
        )
    if isinstance(mixer, HeadedAttention):
        part = rank_mixer(mixer, setup.attention_tp)
        assert isinstance(part, HeadedAttention)
        return part.entry_bytes(setup.kv)
    raise UnsupportedModelError(f"no SGLang cache rule for layer kind {mixer.kind!r}")


def _latent_bytes(mixer: LatentAttention, setup: Setup, *, sparse: bool) -> int:
    """``(r + d_rope) p``; with scales ``r + 4 r / 128 + 2 d_rope``; and the indexer's key."""
    if sparse and setup.scaled_rows:
        rank = mixer.kv_lora_rank
        count = rank + rank // _SCALED_BLOCK * 4 + mixer.qk_rope_head_dim * 2
    else:
        count = setup.kv.row_bytes(1, mixer.latent_width)
    return count + (mixer.indexer_bytes if setup.rules.indexer_counted else 0)


def _state_bytes(mixer: StateSpace, layer: LayerSpec, setup: Setup) -> int:
    """``K - 1`` columns of the convolution in bfloat16 and the recurrent state, on one rank."""
    part = rank_mixer(mixer, setup.attention_tp)
    assert isinstance(part, StateSpace)
    each = setup.state_bytes or mixer.recurrent_dtype_bytes or _STATE_BYTES
    convolution = part.conv_elements + _group_copies(mixer, layer, setup.attention_tp)
    return convolution * _CONV_BYTES + part.recurrent_elements * each


def _group_copies(mixer: StateSpace, layer: LayerSpec, tp: int) -> int:
    """Numbers that a rank keeps twice: Mamba-2 groups that ``T`` does not divide are copied, ``G + (T - G)`` in all.

    The convolution is ``inner + 2 G S`` wide and the state ``inner x S``; ``inner`` is the width that the row-parallel
    projection takes in.
    """
    if mixer.family != "mamba2" or tp == 1 or not mixer.conv_columns:
        return 0
    inner = max(w.shape[1] for w in layer.weights if w.part == STATE_SPACE and w.shard == ROW)
    width, state = mixer.conv_elements // mixer.conv_columns, mixer.recurrent_elements // inner
    groups = (width - inner) // (2 * state)
    if groups % tp == 0:
        return 0
    return ((inner + 2 * tp * state) // tp - ceil_div(width, tp)) * mixer.conv_columns


def state_slots(stages: list[StagePool], cache_bytes: int, setup: Setup) -> tuple[int, int]:
    """``(slots, bytes of one slot)`` when ``cache_bytes`` are left on the fullest stage; (0, 0) without states."""
    each = max(stage.state for stage in stages)
    if not each:
        return 0, 0
    if setup.states is not None:
        return setup.states, each
    if not setup.radix and setup.max_requests is not None:
        return setup.max_requests, each
    budget = cache_bytes * setup.state_ratio / (1 + setup.state_ratio)
    spare = each if setup.rules.padding_slot else 0
    return max(0, int((budget - spare) // each)), each


def solve(stages: list[StagePool], room: list[int], setup: Setup) -> Pools:
    """Size the pools of a replica's stages from the bytes that each has left after its weights."""
    slots, each = state_slots(stages, min(room), setup)
    taken = (slots + setup.rules.padding_slot) * each
    if each and not slots:
        return Pools(tokens=0, sliding_tokens=0, slots=0, cell=_cell(stages, setup))
    return token_pools(stages, [count - taken for count in room], setup).replace(slots=slots)


def token_pools(stages: list[StagePool], room: list[int], setup: Setup) -> Pools:
    """Size the token pools alone: ``room`` is what is left for them, states already taken off."""
    page, cell = setup.page, _cell(stages, setup)
    capped = _sliding_cap(stages, setup)
    counts = [
        _tokens(stage, max(0, count), setup, capped)
        for stage, count in zip(stages, room, strict=True)
        if stage.full or stage.sliding
    ]
    # A model without attention gets as many tokens as its longest request has, unless more are asked for.
    tokens = min(counts) if counts else (setup.max_tokens or setup.context) // page * page
    if setup.max_tokens is not None:
        tokens = min(tokens, setup.max_tokens // page * page)
    if not any(stage.sliding for stage in stages):
        return Pools(tokens=tokens, sliding_tokens=0, slots=0, cell=cell)
    if not any(stage.full for stage in stages):
        sliding = tokens
    elif capped:
        sliding = min(capped, tokens)
    else:
        sliding = int(tokens * setup.window_ratio) // page * page
    # A server whose sliding pool cannot admit one request refuses to start.
    if max(stage.window for stage in stages) + page >= sliding:
        tokens = sliding = 0
    return Pools(tokens=tokens, sliding_tokens=sliding, slots=0, cell=cell)


def _tokens(stage: StagePool, room: int, setup: Setup, capped: int) -> int:
    if capped and stage.full:
        count = max(0, room - capped * stage.sliding) // stage.full
    elif not stage.full:
        count = room // stage.sliding
    else:
        count = int(room // (stage.full + setup.window_ratio * stage.sliding))
    return count // setup.page * setup.page


def _cell(stages: list[StagePool], setup: Setup) -> float:
    """Bytes per printed token on the stage where one weighs most."""
    return max(
        float(stage.full + setup.window_ratio * stage.sliding) if stage.full else float(stage.sliding)
        for stage in stages
    )


def _sliding_cap(stages: list[StagePool], setup: Setup) -> int:
    """Without reuse of prompts and with a stated number of requests, the sliding pool holds just those; else 0."""
    if setup.radix or setup.max_requests is None or not any(stage.full for stage in stages):
        return 0
    window = max(stage.window for stage in stages)
    if not window:
        return 0
    return round_up(setup.max_requests * live_window(window, setup) + in_flight(setup), setup.page)


def live_window(window: int, setup: Setup) -> int:
    """Sliding tokens of one request while it answers: window, eviction interval, two pages."""
    return window + _EVICTION_INTERVAL + 2 * setup.page


def in_flight(setup: Setup) -> int:
    """Sliding tokens of prefills in flight: a chunk per batch, and a page."""
    return (2 if setup.overlap else 1) * setup.chunk + setup.page


def most_requests(pools: Pools, setup: Setup) -> int:
    """``max_running_requests`` of one attention group: as asked, else 2,048 to 4,096; at most half the tokens."""
    limit = setup.max_requests
    if limit is None:
        limit = max(2048, min(int(pools.tokens / setup.context * 512), 4096))
    return min(limit, pools.tokens // 2)


def held(pools: Pools, stages: list[StagePool], setup: Setup) -> tuple[int, str]:
    """``(conversations of context tokens, what limits them)`` in one attention group."""
    each = round_up(setup.context, setup.page)
    limits = [(pools.tokens // each, "tokens of the full pool")]
    if pools.sliding_tokens:
        window = max(stage.window for stage in stages)
        limits.append(
            (sliding_conversations(pools.sliding_tokens, window, each, setup), "sliding-window pool")
        )
    if any(stage.state for stage in stages):
        limits.append((pools.slots // setup.states_per_request, "state slots"))
    requests = most_requests(pools, setup)
    limits.append((requests, f"max_running_requests: {requests:,} at a time (--max-seqs)"))
    return min(limits, key=lambda limit: limit[0])


def sliding_conversations(tokens: int, window: int, each: int, setup: Setup) -> int:
    """The most that fit: all their tokens, or their windows with the prefills in flight."""
    live = min(each, round_up(live_window(window, setup), setup.page))
    return max(tokens // each, max(0, tokens - in_flight(setup)) // live)


def conversation_bytes(stage: StagePool, setup: Setup) -> int:
    """Bytes one conversation holds on one GPU of ``stage``: pages, live window, state slots."""
    each = round_up(setup.context, setup.page)
    live = min(each, round_up(live_window(stage.window, setup), setup.page)) if stage.sliding else 0
    return each * stage.full + live * stage.sliding + setup.states_per_request * stage.state
