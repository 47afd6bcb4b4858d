"""Cache bytes -> blocks -> tokens -> conversations, on one rank.

    bytes per token   b = 2 sum over layers ceil(K / T) H p        latent: (r + d_rope) p a layer, whole on every rank
                      nvfp4: n values take ceil(n / 2) + n / 16 bytes (one fp8 scale for 16 values)
    blocks            P = tokens / M,  tokens = budget // b,  at most max_tokens;  M = 32 tokens of a block
    conversation      ceil(n / M) blocks: all of a request is set aside when it is admitted (GUARANTEED_NO_EVICT)

With windows in pools of their own each of the W distinct windows gets budget / W, counted with the bytes of its own
layers, and ``max_tokens`` is ignored. A sequence holds ceil(min(n, w) / M) blocks there, one more while a block slides
out.
"""

from __future__ import annotations

from headcount.engines.base import even_stages
from headcount.errors import LayoutError
from headcount.record import Record
from headcount.spec.attention import HeadedAttention, LatentAttention, SlidingWindow
from headcount.units import ceil_div

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.engines.base import Case
    from headcount.spec.attention import Mixer

NVFP4_GROUP = 16
_VALUE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1}


class WindowPool(Record):
    """The blocks of layers with one window (0: none) on one rank.

    values   cached numbers of one token in those layers
    """

    window: int
    values: int
    kv: str

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token in those layers; UsageError when nvfp4 groups are not filled."""
        if self.kv != "nvfp4":
            return self.values * _VALUE_BYTES[self.kv]
        if self.values % NVFP4_GROUP:
            raise LayoutError(f"nvfp4 scales {NVFP4_GROUP} values; {self.values} a token are no whole groups")
        return ceil_div(self.values, 2) + self.values // NVFP4_GROUP

    def blocks_of(self, context: int, block_tokens: int) -> int:
        """Blocks that one conversation holds."""
        if not self.window or context <= self.window:
            return ceil_div(context, block_tokens)
        return min(ceil_div(context, block_tokens), ceil_div(self.window, block_tokens) + 1)


class PoolPlan(Record):
    """All pools of one stage, and how their budget is rounded."""

    pools: tuple[WindowPool, ...]
    block_tokens: int
    max_tokens: int | None
    rounds_up: bool

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token over all pools, no window full."""
        return sum(pool.bytes_per_token for pool in self.pools)

    def blocks(self, budget: int) -> tuple[int, ...]:
        """Blocks of each pool for ``budget`` bytes left after loading, as the engine rounds them."""
        return tuple(self._blocks(pool, budget, rounds_up=self.rounds_up) for pool in self.pools)

    def allocated_blocks(self, cache_bytes: int) -> tuple[int, ...]:
        """Whole blocks in ``cache_bytes`` that are allocated already."""
        return tuple(self._blocks(pool, cache_bytes, rounds_up=False) for pool in self.pools)

    def _blocks(self, pool: WindowPool, budget: int, *, rounds_up: bool) -> int:
        tokens = max(0, budget) // (len(self.pools) * pool.bytes_per_token)
        if self.max_tokens is not None and len(self.pools) == 1:
            tokens = min(tokens, self.max_tokens)
        return ceil_div(tokens, self.block_tokens) if rounds_up else tokens // self.block_tokens

    def conversations(self, blocks: tuple[int, ...], context: int) -> int:
        """Whole conversations of ``context`` tokens: the pool that runs out first."""
        return min(
            count // pool.blocks_of(context, self.block_tokens)
            for pool, count in zip(self.pools, blocks, strict=True)
        )

    def conversation_bytes(self, context: int) -> int:
        """Bytes of the blocks that one conversation holds."""
        tokens = self.block_tokens
        return sum(pool.blocks_of(context, tokens) * tokens * pool.bytes_per_token for pool in self.pools)


def plan_pools(
    case: Case, kv: str, values: dict[str, int | float | bool | str | None], *, rounds_up: bool
) -> list[tuple[tuple[int, int], PoolPlan]]:
    """Return ``((start, end), plan)`` for every pipeline stage."""
    tp = 1 if values["enable-attention-dp"] else case.layout.tp
    limit = values["max-tokens"]
    plans = []
    for start, end in even_stages(len(case.model.layers), case.layout.pp):
        sizes: dict[int, int] = {}
        for layer in case.model.layers[start:end]:
            for mixer in layer.mixers:
                window = _window(mixer, case.context) if values["max-attention-window"] == "model" else 0
                sizes[window] = sizes.get(window, 0) + _values(mixer, tp)
        plan = PoolPlan(
            pools=tuple(WindowPool(window=window, values=sizes[window], kv=kv) for window in sorted(sizes)),
            block_tokens=int(values["tokens-per-block"] or 0),
            max_tokens=None if limit is None else int(limit),
            rounds_up=rounds_up,
        )
        plans.append(((start, end), plan))
    return plans


def _window(mixer: Mixer, context: int) -> int:
    """The mixer's window where it cuts the longest request, else 0."""
    return mixer.window if isinstance(mixer, SlidingWindow) and mixer.window < context else 0


def _values(mixer: Mixer, tp: int) -> int:
    """Cached numbers of one token: ``2 ceil(K / T) H``, or the latent's width."""
    if isinstance(mixer, LatentAttention):
        return mixer.latent_width
    assert isinstance(mixer, HeadedAttention)
    return 2 * ceil_div(mixer.num_key_value_heads, tp) * mixer.head_dim
