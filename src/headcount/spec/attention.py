"""What one layer remembers of a conversation: one frozen class per kind, each answering its own KV bytes.

    class            tokens kept of a context n          bytes of one kept token (p = bytes per number)
    FullAttention    n                                   K (H_k + H_v) p        K key/value heads
    SlidingWindow    min(n, window)                      the same
    ChunkedAttention min(n, chunk)                       the same
    LatentAttention  n                                   (r + d_rope) p         one latent, no heads (MLA)
    CompressedLatent n / rate entries, plus a window     d p
    CrossAttention   the source length, once             K (H_k + H_v) p
    StateSpace       a constant                          conv and recurrent state
    SharedCache      0                                   another layer's cache is read

These are the ideal counts, what the mathematics must remember. What an engine really charges (pages, padded pools,
windows plus tokens in flight) is in ``engines/``.
"""

from __future__ import annotations

from abc import abstractmethod

from headcount.record import Record
from headcount.units import ceil_div

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.spec.kv_format import KvFormat


class Mixer(Record):
    """Base: anything that mixes tokens and therefore remembers some of them."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """A word for tables: ``full``, ``sliding``, ``latent``, ``state``, ..."""

    @abstractmethod
    def words(self) -> str:
        """Its geometry in the letters of docs/notation.md, for ledgers."""

    @abstractmethod
    def tokens_kept(self, context: int) -> int:
        """How many cache entries a conversation of ``context`` tokens holds in this layer."""

    @abstractmethod
    def entry_bytes(self, kv: KvFormat) -> int:
        """Bytes of one kept entry in format ``kv``."""

    def kv_bytes(self, context: int, kv: KvFormat) -> int:
        """Bytes that a conversation of ``context`` tokens holds in this layer."""
        return self.tokens_kept(context) * self.entry_bytes(kv)

    def scores(self, position: int) -> int:
        """Keys that the query at ``position`` (1-based, causal) is compared with."""
        return self.tokens_kept(position)


class HeadedAttention(Mixer):
    """Attention with N query heads over K key/value heads: MHA (K = N), GQA, MQA (K = 1) are one class.

    ``head_dim`` is the width of a key (and query), ``v_head_dim`` of a value; they may differ.
    """

    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    v_head_dim: int

    def kv_bytes(self, context: int, kv: KvFormat) -> int:
        """Bytes of the kept tokens; a format whose scales are shared between tokens counts them together."""
        return kv.kept_bytes(
            self.tokens_kept(context), self.num_key_value_heads, self.head_dim, self.v_head_dim
        )

    def words(self) -> str:
        """``N`` query heads over ``K`` key/value heads, their widths."""
        widths = (
            f"H = {self.head_dim}"
            if self.head_dim == self.v_head_dim
            else f"H = {self.head_dim}, H' = {self.v_head_dim}"
        )
        return f"N = {self.num_attention_heads}, K = {self.num_key_value_heads}, {widths}"

    def entry_bytes(self, kv: KvFormat) -> int:
        """``K (H_k + H_v) p``: keys and values of all K heads, scales included."""
        return kv.pair_bytes(self.num_key_value_heads, self.head_dim, self.v_head_dim)


class FullAttention(HeadedAttention):
    """Every earlier token is kept."""

    @property
    def kind(self) -> str:
        """See ``Mixer.kind``."""
        return "full"

    def tokens_kept(self, context: int) -> int:
        """All of them."""
        return context


class SlidingWindow(HeadedAttention):
    """Only the last ``window`` tokens can be attended to, so no more need be kept."""

    window: int

    @property
    def kind(self) -> str:
        """See ``Mixer.kind``."""
        return "sliding"

    def words(self) -> str:
        """Heads, and the window."""
        return f"{super().words()}, window {self.window:,}"

    def tokens_kept(self, context: int) -> int:
        """``min(context, window)``."""
        return min(context, self.window)


class ChunkedAttention(HeadedAttention):
    """Tokens attend within their own chunk of ``chunk`` tokens (Llama 4): at most one chunk is kept."""

    chunk: int

    def words(self) -> str:
        """Heads, and the chunk."""
        return f"{super().words()}, chunk {self.chunk:,}"

    @property
    def kind(self) -> str:
        """See ``Mixer.kind``."""
        return "chunked"

    def tokens_kept(self, context: int) -> int:
        """At worst one whole chunk: ``min(context, chunk)``."""
        return min(context, self.chunk)

    def scores(self, position: int) -> int:
        """Position within its chunk: ``(position - 1) mod chunk + 1``."""
        return (position - 1) % self.chunk + 1


class LatentAttention(Mixer):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): one compressed latent and one rotary key a token.

    r = kv_lora_rank, d_rope = qk_rope_head_dim. Neither has heads, so tensor parallelism cannot divide the cache.
    ``index_head_dim`` > 0 adds the key of a sparse-attention indexer (DeepSeek-V3.2), kept in fp8 with one fp32
    scale per ``128`` values.
    """

    num_attention_heads: int
    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int
    index_head_dim: int = 0

    @property
    def kind(self) -> str:
        """See ``Mixer.kind``."""
        return "latent"

    def words(self) -> str:
        """Latent and rotary widths."""
        indexer = f", indexer {self.index_head_dim}" if self.index_head_dim else ""
        return f"N = {self.num_attention_heads}, latent {self.kv_lora_rank} + rotary {self.qk_rope_head_dim}{indexer}"

    @property
    def latent_width(self) -> int:
        """``r + d_rope``."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def indexer_bytes(self) -> int:
        """Bytes of one indexer key: ``index_head_dim + 4`` for each 128 values; 0 without an indexer."""
        return self.index_head_dim + 4 * ceil_div(self.index_head_dim, 128) if self.index_head_dim else 0

    def tokens_kept(self, context: int) -> int:
        """All of them."""
        return context

    def entry_bytes(self, kv: KvFormat) -> int:
        """``(r + d_rope) p``, plus the indexer's key where there is one."""
        return kv.row_bytes(1, self.latent_width) + self.indexer_bytes


class CompressedLatent(Mixer):
    """Compressed attention (DeepSeek-V4): a window of recent entries and one entry for every ``rate`` older tokens.

    One tensor of ``head_dim`` serves as key and value. ``rate`` 0 means the window alone. ``index_head_dim`` > 0
    adds an indexer key beside each compressed entry.
    """

    num_attention_heads: int
    head_dim: int
    window: int
    rate: int
    index_head_dim: int = 0

    @property
    def kind(self) -> str:
        """See ``Mixer.kind``."""
        return "compressed" if self.rate else "sliding"

    def words(self) -> str:
        """Width, window and rate."""
        rate = f", one entry per {self.rate} tokens" if self.rate else ""
        return f"N = {self.num_attention_heads}, H = {self.head_dim}, window {self.window:,}{rate}"

    def tokens_kept(self, context: int) -> int:
        """``min(n, window) + floor(n / rate)``."""
        return min(context, self.window) + (context // self.rate if self.rate else 0)

    def entry_bytes(self, kv: KvFormat) -> int:
        """``d p``: keys and values are the same tensor."""
        return kv.row_bytes(1, self.head_dim)

    def kv_bytes(self, context: int, kv: KvFormat) -> int:
        """Entries, plus an fp8 indexer key (with its fp32 scale) for each compressed entry."""
        indexer = self.index_head_dim + 4 * ceil_div(self.index_head_dim, 128) if self.index_head_dim else 0
        compressed = context // self.rate if self.rate else 0
        return self.tokens_kept(context) * self.entry_bytes(kv) + compressed * indexer


class CrossAttention(HeadedAttention):
    """Keys and values of the encoder's output (or of an image): computed once, constant while text grows."""

    source_positions: int

    @property
    def kind(self) -> str:
        """See ``Mixer.kind``."""
        return "cross"

    def tokens_kept(self, context: int) -> int:
        """The source length, whatever the context."""
        return self.source_positions


class StateSpace(Mixer):
    """A recurrent layer (Mamba, gated delta net, linear attention, short convolution): a constant per conversation.

    conv_elements       the last K - 1 inputs of the causal convolution
    recurrent_elements  the state matrix
    *_bytes             bytes of one number of each; None: the model's own 16- or 32-bit type, see ``state_bytes``
    conv_columns        K - 1, so that an engine that keeps more columns can count them; 0 without a convolution
    passes              multiply-adds of one element and token: 2, decay and add, then read (Mamba, linear attention);
                        3 with the delta rule, which first reads what the state holds of the key; 1 where the state
                        itself is the output (RG-LRU)
    """

    family: str
    conv_elements: int
    recurrent_elements: int
    recurrent_dtype_bytes: int | None = None
    conv_dtype_bytes: int | None = None
    conv_columns: int = 0
    passes: int = 2

    @property
    def kind(self) -> str:
        """See ``Mixer.kind``."""
        return "state"

    def words(self) -> str:
        """Family and state sizes."""
        return f"{self.family}: {self.conv_elements:,} + {self.recurrent_elements:,} numbers"

    def tokens_kept(self, context: int) -> int:
        """One state, whatever the context (none before the first token)."""
        return 1 if context else 0

    def state_bytes(self, dtype_bytes: int) -> int:
        """Bytes of the state; ``dtype_bytes`` is used where the model does not fix a type."""
        conv = self.conv_elements * (self.conv_dtype_bytes or dtype_bytes)
        return conv + self.recurrent_elements * (self.recurrent_dtype_bytes or dtype_bytes)

    def entry_bytes(self, kv: KvFormat) -> int:
        """The state's bytes. KV quantisation does not touch states: 8-bit and smaller formats leave them 16-bit."""
        return self.state_bytes(4 if kv.name == "fp32" else 2)

    def scores(self, position: int) -> int:
        """No scores: the cost of a step does not depend on the position."""
        return 0


class SharedCache(HeadedAttention):
    """The layer reads the cache of ``source_layer`` and stores nothing (Gemma 3n, Gemma 4); it still computes scores."""

    source_layer: int
    window: int = 0

    @property
    def kind(self) -> str:
        """See ``Mixer.kind``."""
        return "shared"

    def tokens_kept(self, context: int) -> int:
        """Nothing of its own."""
        return 0

    def scores(self, position: int) -> int:
        """As many keys as the source layer shows."""
        return min(position, self.window) if self.window else position
