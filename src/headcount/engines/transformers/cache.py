"""What transformers' cache classes hold of one conversation of n tokens, in bytes of real tensors.

    full attention        n K (H_k + H_v) p                      Falcon's new architecture: N heads instead of K
    latent                n (r + d_rope) p, an indexer's key n d_i p beside it
    sliding, chunked      min(n, w - 1) tokens after a step; the tensor they are a view of has min(n, w)
    states                conv: K columns in the model's type; recurrent: float32

At the end of a prompt of n tokens read in one pass every attention layer, sliding ones too, still has all n: the kept
window is a view of them until the next step. Read in chunks of c it is w - 1 + c.

Growing by ``torch.cat``: old and new stand side by side, in one layer at a time; keys and values in turn where all
tokens are kept, both at once in a sliding layer.

Source: transformers 5.24.0 ``cache_utils.py``; every figure is compared with the tensors of that release, in bf16, on
the CPU (tests/engines/test_transformers_reference.py). GPU kernels may keep a state in another type.
"""

from __future__ import annotations

from headcount.cost.cache import mixer_runs
from headcount.errors import UnsupportedModelError
from headcount.record import Record
from headcount.spec.attention import (
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    HeadedAttention,
    LatentAttention,
    SharedCache,
    SlidingWindow,
    StateSpace,
)
from headcount.units import ceil_div

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.spec.attention import Mixer
    from headcount.spec.model import ModelSpec

# Layer kinds that keep something of their own in a form that was not compared.
_UNKNOWN = {
    "deepseek_v4": "buffers uncompressed entries beside its compressed ones, in a cache that is not modelled",
    "minimax": "keeps its states in a list beside the cache",
    "recurrent_gemma": "keeps its states on the modules, not in the cache",
}
_QUANTO_GROUP = 64
_QUANTO_RESIDUAL = 128


class Layer(Record):
    """``times`` equal layers as the cache sees them.

    token_bytes   bytes of one kept entry, keys and values; the larger of the two in ``larger_bytes``
    window        entries that can be attended to; 0: all tokens
    fixed_bytes   states
    """

    times: int
    token_bytes: int = 0
    larger_bytes: int = 0
    window: int = 0
    fixed_bytes: int = 0

    def kept(self, tokens: int) -> int:
        """Bytes of the cache's tensors after a step that reached ``tokens``."""
        # A slice [-window + 1 :] of window 1 is [0:]: everything.
        entries = min(tokens, self.window - 1) if self.window > 1 else tokens
        return entries * self.token_bytes + self.fixed_bytes

    def held(self, tokens: int) -> int:
        """Bytes of the storage behind those tensors after a step of one token."""
        entries = min(tokens, self.window) if self.window > 1 else tokens
        return entries * self.token_bytes + self.fixed_bytes

    def after_prompt(self, tokens: int, chunk: int) -> int:
        """The same at the end of a prompt that was read ``chunk`` tokens at a time."""
        entries = min(tokens, self.window - 1 + chunk) if self.window > 1 else tokens
        return entries * self.token_bytes + self.fixed_bytes

    def static(self, tokens: int) -> int:
        """Bytes of a StaticCache with room for ``tokens``."""
        entries = min(tokens, self.window) if self.window else tokens
        return entries * self.token_bytes + self.fixed_bytes

    def transient(self, tokens: int) -> int:
        """Old tensors that stand beside the new ones while this layer grows."""
        if self.window > 1:
            return min(tokens, self.window - 1) * self.token_bytes
        return tokens * self.larger_bytes


def cache_layers(model: ModelSpec, value_bytes: int, tp: int = 1) -> tuple[Layer, ...]:
    """The cache layers of ``model`` on one of ``tp`` ranks, numbers of ``value_bytes`` bytes.

    Raises UnsupportedModelError for a layer whose cache was not compared with transformers.
    """
    if model.family in _UNKNOWN:
        raise UnsupportedModelError(f"transformers: {model.family} {_UNKNOWN[model.family]}")
    return tuple(
        _layer(model, mixer, times, value_bytes, tp)
        for mixer, times in mixer_runs(model)
        if not isinstance(mixer, SharedCache)
    )


def _layer(model: ModelSpec, mixer: Mixer, times: int, p: int, tp: int) -> Layer:
    if isinstance(mixer, StateSpace):
        conv = mixer.conv_elements
        if mixer.conv_columns:
            conv = conv // mixer.conv_columns * (mixer.conv_columns + 1)
        return Layer(times=times, fixed_bytes=conv * p + mixer.recurrent_elements * 4)
    if isinstance(mixer, LatentAttention):
        width = mixer.latent_width + mixer.index_head_dim
        return Layer(times=times, token_bytes=width * p, larger_bytes=mixer.kv_lora_rank * p)
    if isinstance(mixer, HeadedAttention) and not isinstance(mixer, CrossAttention):
        return _headed(model, mixer, times, p, tp)
    raise UnsupportedModelError(f"transformers: no rule for layer kind {mixer.kind!r}")


def _headed(model: ModelSpec, mixer: HeadedAttention, times: int, p: int, tp: int) -> Layer:
    heads = ceil_div(_stored_heads(model, mixer), tp)
    window = 0
    # GPT-Neo's local layers keep every token: their window is a mask.
    if model.family != "gpt_neo":
        window = mixer.window if isinstance(mixer, SlidingWindow) else 0
        window = mixer.chunk if isinstance(mixer, ChunkedAttention) else window
    return Layer(
        times=times,
        token_bytes=heads * (mixer.head_dim + mixer.v_head_dim) * p,
        larger_bytes=heads * max(mixer.head_dim, mixer.v_head_dim) * p,
        window=window,
    )


def _stored_heads(model: ModelSpec, mixer: HeadedAttention) -> int:
    """K, but N in Falcon's new architecture, which broadcasts keys and values before they are stored."""
    if model.family != "falcon":
        return mixer.num_key_value_heads
    new = model.config.get("new_decoder_architecture")
    if new is None:
        # The old architecture has one key/value head, or as many as queries.
        new = mixer.num_key_value_heads not in (1, mixer.num_attention_heads)
    return mixer.num_attention_heads if new else mixer.num_key_value_heads


class Quantised(Record):
    """A QuantizedCache: the backend's codes and scales, and a residual in the model's type.

        fp8      1 byte a number, one float32 scale for keys and one for values (a layer; counted with every row)
        quanto   bits / 8 a number, a scale and a shift in the model's type for each group of 64 numbers;
                 the newest tokens, fewer than 128, in the model's type

    Source: transformers 5.24.0 ``cache_utils.py``; optimum-quanto 0.2.7 ``grouped.py``, ``packed.py``.
    """

    backend: str
    bits: int
    value_bytes: int

    def conversation_bytes(self, model: ModelSpec, tokens: int, tp: int) -> int:
        """Most bytes while a conversation grows to ``tokens``: the residual one short of being packed."""
        return sum(
            times * self._layer_bytes(mixer, model, tokens, tp) for mixer, times in _full_layers(model)
        )

    def _layer_bytes(self, mixer: HeadedAttention, model: ModelSpec, tokens: int, tp: int) -> int:
        heads = ceil_div(_stored_heads(model, mixer), tp)
        if self.backend == "fp8":
            return tokens * heads * (mixer.head_dim + mixer.v_head_dim) + 8
        residual = min(tokens - 1, _QUANTO_RESIDUAL - 1)
        return sum(
            self._packed_bytes((tokens - residual) * heads * width)
            + residual * heads * width * self.value_bytes
            for width in (mixer.head_dim, mixer.v_head_dim)
        )

    def _packed_bytes(self, numbers: int) -> int:
        if numbers % _QUANTO_GROUP:
            raise UnsupportedModelError(
                f"quanto packs groups of {_QUANTO_GROUP} numbers; {numbers:,} are no whole groups"
            )
        groups = numbers // _QUANTO_GROUP
        return ceil_div(groups, 8 // self.bits) * _QUANTO_GROUP + groups * 2 * self.value_bytes

    def transient(self, model: ModelSpec, tokens: int, tp: int) -> int:
        """One layer unpacked: fp8 through float32; quanto unpacked, then joined with the residual."""
        most = 0
        for mixer, _ in _full_layers(model):
            heads = ceil_div(_stored_heads(model, mixer), tp)
            keys, values = tokens * heads * mixer.head_dim, tokens * heads * mixer.v_head_dim
            if self.backend == "fp8":
                most = max(most, keys * self.value_bytes + values * (8 + self.value_bytes))
            else:
                most = max(most, 2 * (keys + values) * self.value_bytes)
        return most


def _full_layers(model: ModelSpec) -> list[tuple[HeadedAttention, int]]:
    """The layers of a model that a QuantizedCache takes: all of them keep every token of their own."""
    found: list[tuple[HeadedAttention, int]] = []
    for mixer, times in mixer_runs(model):
        if not isinstance(mixer, FullAttention):
            raise UnsupportedModelError(
                f"transformers' QuantizedCache takes full attention only; {model.name} has {mixer.kind!r} layers"
            )
        found.append((mixer, times))
    return found
