"""vLLM's KV-cache pages: how many blocks the pool has, what a request is charged, how many requests fit.

    blocks      = available // bytes_per_block
    R           = sum over groups of the blocks one request of n tokens is charged
    concurrency = blocks / R                            "Maximum concurrency for n tokens per request"
    KV tokens   = int(concurrency x n)                  "GPU KV cache size"
    needed      = R x bytes_per_block                   refused at start when > available - bytes_per_block
    live        = (blocks - 1) // R_resident            conversations of exactly n cached tokens, at run time

The first five are vLLM's start-up figures, with n = max_model_len. They charge a sliding layer for the
tokens in flight during a prefill; ``live`` charges what a decoding request holds
(``PagePlan.resident_blocks``). One block of the pool, the null block, is never given out.

Source: vLLM 0.33.0 (Apache-2.0), v1/core/kv_cache_planning.py, v1/core/kv_cache_utils.py,
v1/kv_cache_interface.py, v1/core/single_type_kv_cache_manager.py, platforms/interface.py. ``RULES`` says
what older releases did otherwise.
"""

from __future__ import annotations

from math import lcm

from headcount.engines.vllm.groups import (
    CacheLayer,
    block_bytes,
    form_groups,
    slot_bytes,
    tally_layers,
    tuple_bytes,
)
from headcount.engines.vllm.rules import (
    MAMBA_CACHE_MODES,
    VERIFIED_VERSION,
    EngineRules,
    rules_for,
)
from headcount.errors import LayoutError, UnknownNameError, UnsupportedModelError
from headcount.record import Record
from headcount.units import ceil_div

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from headcount.engines.vllm.groups import Group, Runs

ATTENTION_KINDS = ("full", "sliding", "chunked", "cross")


class PageGroup(Record):
    """One block table on one rank; ``page_bytes`` is one layer's page, the sum of them for kind ``uniform``."""

    kind: str
    layer_count: int
    block_size: int
    page_bytes: int


class PagePlan(Record):
    """The pool of one rank; equations in the module.

    charges       (layer, groups that follow its rule)
    weighed       (layer, bytes of its group's pages): DeepSeek-V4 before 0.27, whose R is cdiv(sum of blocks x bytes, first
                  group's bytes)
    charged_block bytes that the start-up check takes for a block where they are not ``bytes_per_block``; else 0
    """

    groups: tuple[PageGroup, ...]
    bytes_per_block: int
    charges: tuple[tuple[CacheLayer, int], ...]
    mamba_cache_mode: str
    context_shards: int
    rules: EngineRules
    weighed: tuple[tuple[CacheLayer, int], ...] = ()
    charged_block: int = 0

    def num_blocks(self, available_bytes: int) -> int:
        """Blocks in ``available_bytes`` of cache memory on this rank, the null block among them.

        With pipeline stages every rank uses the smallest number of its stages. A model that keeps no cache
        has 1.
        """
        return max(0, available_bytes) // self.bytes_per_block if self.groups else 1

    def blocks_per_request(self, tokens: int, max_in_flight_tokens: int, *, encoder_tokens: int = 0) -> int:
        """R: blocks that one request of ``tokens`` tokens is charged at start and at admission.

        full, mla   cdiv(cdiv(n, context shards), block)
        sliding     cdiv(min(window - 1 + retained + F, n), block) + 1     F = max_in_flight_tokens
        chunked     cdiv(min(chunk + F, n), block)
        mamba       by version and mode: none 1 + speculative, align 2 + speculative + checkpoints
        ring        1
        cross       cdiv(encoder_tokens, block), the encoder budget
        """
        flight = max_in_flight_tokens
        if self.weighed:
            total = sum(
                self._charged(layer, tokens, flight, encoder_tokens) * width for layer, width in self.weighed
            )
            return ceil_div(total, self.weighed[0][1])
        return self._summed(tokens, flight, encoder_tokens)

    def _summed(self, tokens: int, flight: int, encoder_tokens: int) -> int:
        return sum(
            times * self._charged(layer, tokens, flight, encoder_tokens) for layer, times in self.charges
        )

    def _charged(self, layer: CacheLayer, tokens: int, flight: int, encoder_tokens: int) -> int:
        """Blocks of one group; see ``blocks_per_request``."""
        block = layer.block_size
        if layer.kind in ("sliding", "sliding_mla"):
            kept = layer.window - 1 + layer.retained_tokens + flight
            return ceil_div(min(kept, tokens), block) + 1
        if layer.kind == "chunked":
            return ceil_div(min(layer.chunk + flight, tokens), block)
        if layer.kind == "mamba":
            return self._state_blocks(layer, tokens, prefill=True)
        return self._steady_blocks(layer, tokens, encoder_tokens)

    @property
    def bytes_per_token(self) -> float:
        """What one more token of one request takes: blocks of the groups that keep every token, by their tokens."""
        grown = sum(
            times / (layer.block_size * (self.context_shards if layer.context_sharded else 1))
            for layer, times in self.charges
            if layer.kind in ("full", "mla")
        )
        return grown * self.bytes_per_block

    def resident_blocks(self, tokens: int, *, batches_in_flight: int = 1, encoder_tokens: int = 0) -> int:
        """Blocks that a decoding request with ``tokens`` cached tokens holds at most.

        full, mla   cdiv(cdiv(n, context shards), block)
        sliding     min(cdiv(n, block), cdiv(s - 1, block) + 1): the most blocks that s consecutive tokens touch;
                    s = window - 1 + retained + batches_in_flight, since blocks wholly behind the window of
                    the oldest unfinished step are freed (1 batch in flight, 2 with asynchronous scheduling)
        chunked     cdiv(min(n, chunk), block): blocks of earlier chunks are freed
        mamba       none 1 + speculative, align 2 + speculative (no prefill checkpoints)

        A prefill holds more for its duration, up to ``blocks_per_request``.
        """
        total = 0
        for layer, times in self.charges:
            block = layer.block_size
            if layer.kind in ("sliding", "sliding_mla"):
                span = layer.window - 1 + layer.retained_tokens + batches_in_flight
                total += times * min(ceil_div(tokens, block), ceil_div(span - 1, block) + 1)
            elif layer.kind == "chunked":
                total += times * ceil_div(min(tokens, layer.chunk), block)
            elif layer.kind == "mamba":
                total += times * self._state_blocks(layer, tokens, prefill=False)
            else:
                total += times * self._steady_blocks(layer, tokens, encoder_tokens)
        return total

    def resident_words(self, tokens: int, *, batches_in_flight: int = 1, encoder_tokens: int = 0) -> str:
        """The sum of ``resident_blocks`` in numbers: ``2,000 full + 5 x 65 sliding``."""
        parts = []
        for layer, times in self.charges:
            one = self.replace(charges=((layer, 1),))
            blocks = one.resident_blocks(
                tokens, batches_in_flight=batches_in_flight, encoder_tokens=encoder_tokens
            )
            parts.append(f"{f'{times} x ' if times > 1 else ''}{blocks:,} {layer.kind}")
        return " + ".join(parts)

    def _steady_blocks(self, layer: CacheLayer, tokens: int, encoder_tokens: int) -> int:
        if layer.kind == "ring":
            return 1
        if layer.kind == "cross":
            return ceil_div(encoder_tokens, layer.block_size)
        shards = self.context_shards if layer.context_sharded else 1
        return ceil_div(ceil_div(tokens, shards), layer.block_size)

    def _state_blocks(self, layer: CacheLayer, tokens: int, *, prefill: bool) -> int:
        rules = self.rules
        if rules.mamba_rule == "one":
            return 1
        if rules.mamba_rule == "length":
            return ceil_div(tokens, layer.block_size)
        if self.mamba_cache_mode == "all":
            extra = layer.speculative_blocks if rules.mamba_all_speculative else 0
            return ceil_div(tokens, layer.block_size) + extra
        if self.mamba_cache_mode == "align":
            checkpoints = layer.checkpoint_blocks if prefill and rules.mamba_checkpoints else 0
            return 2 + layer.speculative_blocks + checkpoints
        return 1 + layer.speculative_blocks

    def needed_bytes(self, tokens: int, max_in_flight_tokens: int, *, encoder_tokens: int = 0) -> int:
        """Bytes that one request of ``tokens`` tokens is charged: R x bytes_per_block (or ``charged_block``)."""
        if self.charged_block:
            return self._summed(tokens, max_in_flight_tokens, encoder_tokens) * self.charged_block
        charged = self.blocks_per_request(tokens, max_in_flight_tokens, encoder_tokens=encoder_tokens)
        return charged * self.bytes_per_block

    def fits(
        self,
        available_bytes: int,
        tokens: int,
        max_in_flight_tokens: int,
        *,
        encoder_tokens: int = 0,
    ) -> bool:
        """Whether vLLM starts with max_model_len = ``tokens``: one request must fit beside the null block."""
        usable = available_bytes - (self.bytes_per_block if self.rules.null_block_reserved else 0)
        needed = self.needed_bytes(tokens, max_in_flight_tokens, encoder_tokens=encoder_tokens)
        return not self.groups or (usable > 0 and needed <= usable)

    def longest_request(
        self,
        available_bytes: int,
        limit: int,
        max_in_flight_tokens: int,
        *,
        encoder_tokens: int = 0,
    ) -> int:
        """Largest max_model_len up to ``limit`` that starts (vLLM's automatic fit, -1); 0 when none does."""
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.fits(available_bytes, middle, max_in_flight_tokens, encoder_tokens=encoder_tokens):
                low = middle
            else:
                high = middle - 1
        return low

    def concurrency(
        self, num_blocks: int, tokens: int, max_in_flight_tokens: int, *, encoder_tokens: int = 0
    ) -> float:
        """vLLM's start-up figure: ``num_blocks / R`` requests, with max_model_len = ``tokens``.

        Raises UnsupportedModelError when the model keeps no cache, so that the cache limits nothing.
        """
        charged = self.blocks_per_request(tokens, max_in_flight_tokens, encoder_tokens=encoder_tokens)
        return num_blocks / self._not_zero(charged)

    def kv_tokens(
        self, num_blocks: int, tokens: int, max_in_flight_tokens: int, *, encoder_tokens: int = 0
    ) -> int:
        """vLLM's start-up figure "GPU KV cache size": int(concurrency x tokens), since 0.20.1.

        Before: num_blocks // groups x smallest block size x context shards. Raises UnsupportedModelError without a cache.
        """
        if self.rules.tokens_from_concurrency:
            requests = self.concurrency(
                num_blocks, tokens, max_in_flight_tokens, encoder_tokens=encoder_tokens
            )
            return int(requests * tokens)
        blocks_per_group = num_blocks // self._not_zero(len(self.groups))
        return blocks_per_group * min(group.block_size for group in self.groups) * self.context_shards

    def blocks_of_tokens(
        self, tokens: int, longest: int, max_in_flight_tokens: int, *, encoder_tokens: int = 0
    ) -> int:
        """Blocks of the pool that prints ``tokens`` (``kv_tokens`` turned round, to the nearest block)."""
        if self.rules.tokens_from_concurrency:
            charged = self.blocks_per_request(longest, max_in_flight_tokens, encoder_tokens=encoder_tokens)
            return round(tokens * charged / longest)
        block = min(group.block_size for group in self.groups) * self.context_shards
        return tokens // block * len(self.groups)

    def live_conversations(
        self, num_blocks: int, tokens: int, *, batches_in_flight: int = 1, encoder_tokens: int = 0
    ) -> int:
        """Conversations of exactly ``tokens`` cached tokens that can be resident: (blocks - 1) // R_resident.

        ``tokens`` at least 1. Raises UnsupportedModelError when the model keeps no cache.
        """
        held = self.resident_blocks(
            tokens, batches_in_flight=batches_in_flight, encoder_tokens=encoder_tokens
        )
        return max(0, num_blocks - 1) // self._not_zero(held)

    def _not_zero(self, blocks: int) -> int:
        if not blocks:
            raise UnsupportedModelError(
                "a request needs no cache block here: the cache limits no concurrency"
            )
        return blocks


def plan_pages(
    layers: Runs,
    *,
    hybrid_manager: bool,
    mamba_cache_mode: str,
    engine_version: str = VERIFIED_VERSION,
    block_outermost: bool = False,
    context_shards: int = 1,
) -> PagePlan:
    """Plan the pool of one rank that holds all ``layers``: (layer, count) runs in layer order.

    hybrid_manager    off: sliding and chunked layers beside full ones allocate like full ones
    mamba_cache_mode  none or align (with prefix caching)
    block_outermost   the KV layout packs pages of different size side by side (DeepSeek-V4)
    context_shards    decode context parallel size

    Raises LayoutError where vLLM refuses the mix, UnknownNameError for an unknown version or mode,
    UnsupportedModelError for a layer that the version has no known rule for.
    """
    return plan_stages(
        [layers],
        hybrid_manager=hybrid_manager,
        mamba_cache_mode=mamba_cache_mode,
        engine_version=engine_version,
        block_outermost=block_outermost,
        context_shards=context_shards,
    )[0]


def plan_stages(
    stages: Sequence[Runs],
    *,
    hybrid_manager: bool,
    mamba_cache_mode: str,
    engine_version: str = VERIFIED_VERSION,
    block_outermost: bool = False,
    context_shards: int = 1,
) -> tuple[PagePlan, ...]:
    """Plan the pool of every pipeline stage; the arguments and errors of ``plan_pages``.

    vLLM forms the groups over the whole model and then keeps each stage's own layers, so R is the same on
    every stage and a group may be empty on one. Every rank gets the smallest ``num_blocks`` of the stages.
    """
    rules = rules_for(engine_version)
    tally = tally_layers(stages)
    _check_states(tally, mamba_cache_mode, rules)
    groups = form_groups(
        tally,
        hybrid_manager=hybrid_manager,
        block_outermost=block_outermost,
        widen_below=rules.widen_below,
        packed=rules.packed_layout,
    )
    # Several groups of pages side by side, as releases before 0.29 laid them out.
    older = block_outermost and len(groups) > 1 and rules.packed_layout in ("slots", "overlaid")
    slots = older and rules.packed_layout == "slots"
    if context_shards > 1 and any(
        group.layer.kind in ("sliding", "sliding_mla") and group.layer.context_sharded for group in groups
    ):
        raise LayoutError("vLLM refuses decode context parallelism with sliding-window layers")
    charges: dict[CacheLayer, int] = {}
    for group in groups:
        charges[group.layer] = charges.get(group.layer, 0) + 1
    plans: list[PagePlan] = []
    for stage in range(len(stages)):
        width = (
            slot_bytes(groups, stage)
            if slots
            else block_bytes(groups, stage, block_outermost=block_outermost)
            if groups
            else 0
        )
        if groups and not width:
            raise LayoutError(f"pipeline stage {stage} has no cache layer; vLLM cannot size its pool")
        plans.append(
            PagePlan(
                groups=tuple(_page_group(group, stage) for group in groups),
                bytes_per_block=width,
                charges=tuple(charges.items()),
                mamba_cache_mode=mamba_cache_mode,
                context_shards=context_shards,
                rules=rules,
                weighed=tuple((group.layer, _whole_width(group)) for group in groups) if slots else (),
                charged_block=tuple_bytes(groups) if older else 0,
            )
        )
    return tuple(plans)


def _whole_width(group: Group) -> int:
    return sum(page * sum(row) for page, _, row in group.parts)


def _page_group(group: Group, stage: int) -> PageGroup:
    count = sum(row[stage] for _, _, row in group.parts)
    page = group.layer.page_bytes
    if group.kind == "uniform":
        # vLLM keeps the whole container's description on a stage that has none of its layers.
        page = sum(part * (row[stage] if count else sum(row)) for part, _, row in group.parts)
    return PageGroup(kind=group.kind, layer_count=count, block_size=group.layer.block_size, page_bytes=page)


def _check_states(layers: dict[CacheLayer, tuple[int, ...]], mode: str, rules: EngineRules) -> None:
    if mode not in MAMBA_CACHE_MODES:
        raise UnknownNameError(what="mamba cache mode", given=mode, allowed=MAMBA_CACHE_MODES)
    if not any(layer.kind == "mamba" for layer in layers):
        return
    if not rules.mamba_rule:
        raise UnsupportedModelError(
            f"vLLM {rules.version} kept recurrent states outside this pool; no rule is known"
        )
    if mode not in rules.mamba_modes:
        raise UnknownNameError(
            what=f"mamba cache mode of vLLM {rules.version}", given=mode, allowed=rules.mamba_modes
        )


def in_flight_tokens(
    max_num_batched_tokens: int,
    *,
    pipeline_stages: int = 1,
    async_scheduling: bool = True,
    runner_v2: bool = True,
    engine_version: str = VERIFIED_VERSION,
) -> int:
    """F: tokens scheduled but not yet settled = B x max_num_batched_tokens.

    B = stages + 1 with asynchronous scheduling and model runner V2; 2 with it and runner V1 on one stage;
    else the stages. Before 0.29 the sliding charge counts one batch. Source: vLLM 0.33.0 config/vllm.py.
    """
    if not rules_for(engine_version).in_flight_batches:
        return max_num_batched_tokens
    batches = pipeline_stages
    if async_scheduling and (runner_v2 or pipeline_stages == 1):
        batches += 1
    return batches * max_num_batched_tokens


class HybridBlock(Record):
    """Attention block in tokens and the page in bytes that attention and states then share."""

    block_size: int
    page_bytes: int


def align_hybrid_block(
    *,
    attention_bytes_per_token: int,
    state_bytes: int,
    kernel_block: int,
    block_size: int,
    latent: bool = False,
    checkpoint_alignment: int = 1,
    backend_alignment: int = 1,
) -> HybridBlock:
    """Lengthen the attention block until one attention page holds one recurrent state.

        k     = max(kernel_block, block_size), at least 128 beside latent attention;
                lcm with checkpoint_alignment (mode align)
        block = k x cdiv(s, k x a), rounded up to backend_alignment;  page = block x a

    a: attention bytes per token and layer on this rank; s: bytes of the largest state of one layer on this
    rank; kernel_block: the backend's smallest; backend_alignment: lcm of all backends' smallest blocks. The
    mamba page is padded to ``page``; its block is ``block`` in mode align, max_model_len otherwise. Source:
    vLLM 0.33.0 platforms/interface.py; Qwen3-Next-80B logs 544 tokens (a = 2,048, s = 1,097,728).
    """
    if state_bytes:
        step = max(kernel_block, block_size, 128 if latent else 1)
        step = lcm(step, checkpoint_alignment)
        block_size = step * ceil_div(state_bytes, step * attention_bytes_per_token)
        block_size = backend_alignment * ceil_div(block_size, backend_alignment)
    return HybridBlock(block_size=block_size, page_bytes=block_size * attention_bytes_per_token)


def attention_layer(
    kind: str,
    *,
    block_size: int,
    heads: int,
    widths: tuple[int, int],
    token_bytes: int,
    dtype: str = "",
    reach: int = 0,
) -> CacheLayer:
    """Return a full, sliding, chunked or cross layer: page = block_size x token_bytes.

    ``heads`` on this rank, ``widths`` of K and V, ``token_bytes`` of one token's K and V on this rank with
    any scales, ``reach`` the window or chunk in tokens. Raises UnsupportedModelError for another kind.
    """
    if kind not in ATTENTION_KINDS:
        raise UnsupportedModelError(f"attention layer kind {kind!r}; known: {', '.join(ATTENTION_KINDS)}")
    return CacheLayer(
        kind=kind,
        block_size=block_size,
        page_bytes=block_size * token_bytes,
        window=reach if kind == "sliding" else 0,
        chunk=reach if kind == "chunked" else 0,
        heads=heads,
        key_width=widths[0],
        value_width=widths[1],
        dtype=dtype,
    )


def latent_layer(
    *, block_size: int, width: int, token_bytes: int, dtype: str = "", window: int = 0, identity: str = ""
) -> CacheLayer:
    """Return a latent (MLA) layer, whole on every tensor-parallel rank: page = block_size x token_bytes."""
    return CacheLayer(
        kind="sliding_mla" if window else "mla",
        block_size=block_size,
        page_bytes=block_size * token_bytes,
        window=window,
        heads=1,
        key_width=width,
        dtype=dtype,
        identity=identity,
    )


def state_layer(
    *,
    block_size: int,
    state_bytes: int,
    page_bytes: int = 0,
    speculative_blocks: int = 0,
    checkpoint_blocks: int = 0,
    identity: str = "",
) -> CacheLayer:
    """Return a layer with a constant state per request (SSM, GDN, KDA, short convolution, linear attention).

    ``page_bytes`` is the page the state is padded to, 0 for none. ``block_size`` is max_model_len without
    prefix caching and the attention block with it. Raises UsageError when the page is smaller than the
    state.
    """
    return CacheLayer(
        kind="mamba",
        block_size=block_size,
        page_bytes=page_bytes or state_bytes,
        content_page_bytes=0 if page_bytes in (0, state_bytes) else state_bytes,
        speculative_blocks=speculative_blocks,
        checkpoint_blocks=checkpoint_blocks,
        identity=identity,
        context_sharded=False,
    )
