"""transformers' continuous batching: a paged cache cut into sectors that full and sliding layers share.

    page      2 K H p x page_size                    one layer, 256 tokens
    block_g   layers of group g x page               g: full attention, sliding attention
    sector    lcm(block_full, block_sliding, 128)    tokens of a sector: those of the group that fits most
    available = (device total - used) x max_memory_percent         0.9
    fixed     = 2 sectors + requests (D a + 4 V)                   trash sectors, logits of each request
    token     = a (D + N H + 2 K H + peak H) + io (28 + 4 rows + groups x (4 table + 16))
    sectors   = (available - fixed - M token) // (sector + tokens x (peak H a + io groups 8)) - those the masks cost
    blocks    = sectors x sector // (L page)         what is logged; a request needs ceil(min(n, w) / page) of each group

a bytes of an activation, M tokens of a batch (8,192). With flash attention peak = 2 K, there is no mask, and batches are
double-buffered (io = 2); with sdpa keys and values are repeated (peak = 2 N + K) beside masks of M x (tokens + M).

Source: transformers 5.24.0 ``generation/continuous_batching/cache.py``, ``cache_allocators/``, ``initialization.py``.
"""

from __future__ import annotations

from math import lcm

from headcount.cost.cache import mixer_runs
from headcount.errors import UnsupportedModelError
from headcount.record import Record
from headcount.spec.attention import FullAttention, SlidingWindow
from headcount.units import ceil_div

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.spec.model import ModelSpec

DEFAULT_PAGE = 256
DEFAULT_BATCH_TOKENS = 8192
DEFAULT_REQUESTS = 1024
_TABLE_BLOCKS = 32


class Group(Record):
    """Layers of one attention type; ``window`` 0 keeps all tokens."""

    layers: int
    window: int


class PagedCache(Record):
    """The geometry of one rank's paged cache."""

    groups: tuple[Group, ...]
    heads: int
    head_dim: int
    query_heads: int
    hidden_size: int
    vocab_size: int
    value_bytes: int
    page_tokens: int
    flash: bool

    @property
    def page_bytes(self) -> int:
        """``2 K H p x page``: one layer's page."""
        return 2 * self.heads * self.head_dim * self.value_bytes * self.page_tokens

    @property
    def block_bytes(self) -> int:
        """A page of every layer: the block that is logged."""
        return sum(group.layers for group in self.groups) * self.page_bytes

    @property
    def sector_bytes(self) -> int:
        """What every group divides into blocks of its own."""
        return lcm(*(group.layers * self.page_bytes for group in self.groups), 128)

    @property
    def sector_tokens(self) -> int:
        """Tokens of a sector, if the group with the smallest block takes it."""
        return max(self._blocks_per_sector(group) for group in self.groups) * self.page_tokens

    def _blocks_per_sector(self, group: Group) -> int:
        return self.sector_bytes // (group.layers * self.page_bytes)

    def _peak_heads(self) -> int:
        return 2 * self.heads if self.flash else 2 * self.query_heads + self.heads

    def _io(self) -> int:
        return 2 if self.flash else 1

    def batch_token_bytes(self) -> int:
        """Bytes one token of a batch costs beside the cache."""
        peak = self._peak_heads() * self.head_dim
        attention = (
            self.hidden_size + self.query_heads * self.head_dim + 2 * self.heads * self.head_dim + peak
        )
        full_only = all(not group.window for group in self.groups)
        table = _TABLE_BLOCKS if self.flash and full_only else 0
        buffers = 28 + 4 + len(self.groups) * (4 * table + 16)
        return attention * self.value_bytes + self._io() * buffers

    def sector_cost(self) -> int:
        """A sector, and what reading it takes."""
        token = self._peak_heads() * self.head_dim * self.value_bytes + self._io() * len(self.groups) * 8
        return self.sector_bytes + self.sector_tokens * token

    def fixed_bytes(self, requests: int) -> int:
        """Two sectors that are never given out, and the logits of every request."""
        row = self.hidden_size * self.value_bytes + self.vocab_size * 4
        return 2 * self.sector_bytes + requests * row

    def _mask_bytes(self, batch_tokens: int, sectors: int) -> int:
        if self.flash:
            return 0
        masks = 2 if any(group.window for group in self.groups) else 1
        return masks * self.value_bytes * batch_tokens * (sectors * self.sector_tokens + batch_tokens)

    def sectors(self, available: int, *, batch_tokens: int, requests: int) -> int:
        """Sectors of ``available`` bytes; 0 when the rest takes them all."""
        room = available - self.fixed_bytes(requests) - batch_tokens * self.batch_token_bytes()
        count = room // self.sector_cost()
        masks = self._mask_bytes(batch_tokens, count)
        each = self._mask_bytes(batch_tokens, count + 1) - masks
        return max(0, count - ceil_div(masks, self.sector_cost() + each))

    def blocks(self, sectors: int) -> int:
        """Whole-model blocks, as logged."""
        return sectors * self.sector_bytes // self.block_bytes

    def _need(self, requests: int, context: int) -> int:
        """Sectors that ``requests`` conversations of ``context`` tokens take together."""
        total = 0
        for group in self.groups:
            tokens = min(context, group.window) if group.window else context
            blocks = requests * ceil_div(tokens, self.page_tokens)
            total += ceil_div(blocks, self._blocks_per_sector(group))
        return total

    def conversations(self, sectors: int, context: int, most: int) -> int:
        """The most conversations that fit, found by bisection."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._need(middle, context) <= sectors else (low, middle - 1)
        return low

    def conversation_bytes(self, context: int) -> int:
        """Bytes of the blocks that one conversation holds."""
        return sum(
            ceil_div(min(context, group.window) if group.window else context, self.page_tokens)
            * group.layers
            * self.page_bytes
            for group in self.groups
        )


def paged_cache(model: ModelSpec, value_bytes: int, tp: int, *, page_tokens: int, flash: bool) -> PagedCache:
    """The paged cache of ``model`` on one of ``tp`` ranks.

    Raises UnsupportedModelError for layers that continuous batching cannot cache: only full and sliding attention of
    one geometry and one window.
    """
    sizes: dict[int, int] = {}
    shapes = set()
    for mixer, times in mixer_runs(model):
        if not isinstance(mixer, FullAttention | SlidingWindow) or model.family in ("gpt_neo", "falcon"):
            raise UnsupportedModelError(
                f"transformers' continuous batching has no cache for {mixer.kind!r} layers of {model.family}"
            )
        window = mixer.window if isinstance(mixer, SlidingWindow) else 0
        sizes[window] = sizes.get(window, 0) + times
        shapes.add((mixer.num_attention_heads, mixer.num_key_value_heads, mixer.head_dim, mixer.v_head_dim))
    if len(shapes) != 1 or len(sizes) > 2 or (len(sizes) == 2 and 0 not in sizes):
        raise UnsupportedModelError(
            "transformers' continuous batching has one head geometry and one window; "
            f"{model.name} has {len(shapes)} and {len([w for w in sizes if w])}"
        )
    query_heads, heads, head_dim, v_head_dim = shapes.pop()
    if head_dim != v_head_dim:
        raise UnsupportedModelError("transformers' continuous batching has one width of keys and values")
    return PagedCache(
        groups=tuple(Group(layers=sizes[window], window=window) for window in sorted(sizes)),
        heads=heads // tp,
        head_dim=head_dim,
        query_heads=query_heads // tp,
        hidden_size=model.hidden_size,
        vocab_size=model.vocab_size,
        value_bytes=value_bytes,
        page_tokens=page_tokens,
        flash=flash,
    )
