"""``Weight``: one stored tensor of a model, the unit that parameters, bytes, FLOPs and sharding are all counted in.

parameters = copies x prod(shape)            matmul MACs per token = active x out x in   (``linear`` only)
"""

from __future__ import annotations

from headcount.record import Record

# How tensor parallelism of size T treats a tensor (Megatron-LM, arXiv 1909.08053, section 3):
COLUMN = "column"  # output features divided by T
ROW = "row"  # input features divided by T
KV = "kv"  # output features are key/value heads: divided by min(T, heads), replicated beyond
VOCAB = "vocab"  # rows are vocabulary entries: padded, then divided by T
EXPERT = "expert"  # each expert's width divided by T, or whole experts spread over T ranks (same bytes)
REPLICATED = "replicated"  # a full copy on every rank

EMBEDDING = "embedding"
ATTENTION = "attention"
CROSS_ATTENTION = "cross_attention"
STATE_SPACE = "state_space"
FEED_FORWARD = "feed_forward"
EXPERTS = "experts"
SHARED_EXPERTS = "shared_experts"
ROUTER = "router"
NORM = "norm"
HEAD = "lm_head"
OTHER = "other"
# Encoders of images and sound beside a language model, and what maps their output into it.
VISION = "vision"
AUDIO = "audio"
PROJECTOR = "projector"
TOWER_PARTS = (VISION, AUDIO, PROJECTOR)


class Weight(Record):
    """One tensor: ``copies`` equal tensors of ``shape`` (output features first).

    name     module path as in the Hugging Face checkpoint, ``{i}`` standing for the layer index
    part     which part of the model it belongs to (``attention``, ``experts``, ...)
    shard    how tensor parallelism treats it
    active   copies that one token multiplies by (mixture of experts); None means all of them
    linear   a matrix product per token: it costs FLOPs, and weight quantisers pack it
    heads    number of heads its output is made of, where sharding depends on it (``KV``)
    """

    name: str
    part: str
    shape: tuple[int, ...]
    shard: str = REPLICATED
    copies: int = 1
    active: int | None = None
    linear: bool = False
    heads: int = 0

    @property
    def parameters(self) -> int:
        """Stored numbers: ``copies x prod(shape)``."""
        count = self.copies
        for extent in self.shape:
            count *= extent
        return count

    @property
    def active_parameters(self) -> int:
        """Numbers one token is multiplied by: ``active x prod(shape)``."""
        if self.active is None:
            return self.parameters
        return self.parameters // self.copies * self.active


def matrix(
    name: str, part: str, shape: tuple[int, int], shard: str, *, bias: bool = False, heads: int = 0
) -> tuple[Weight, ...]:
    """Return a linear layer of ``shape = (out, in)``: its matrix and, when ``bias``, its vector of ``out``."""
    weights = [Weight(name=name, part=part, shape=shape, shard=shard, linear=True, heads=heads)]
    if bias:
        # A row-parallel layer adds its bias after the all-reduce: every rank keeps it whole.
        bias_shard = REPLICATED if shard == ROW else shard
        weights.append(
            Weight(name=name + ".bias", part=part, shape=(shape[0],), shard=bias_shard, heads=heads)
        )
    return tuple(weights)


def vector(name: str, part: str, *shape: int, shard: str = REPLICATED) -> Weight:
    """Return a small tensor that is not a matrix product: a norm, a bias, a decay, a sink."""
    return Weight(name=name, part=part, shape=shape, shard=shard)


def norm(name: str, width: int, *, bias: bool = False) -> tuple[Weight, ...]:
    """Return a normalisation's gain of ``width`` and, for LayerNorm with bias, its shift."""
    gain = vector(name, NORM, width)
    return (gain, vector(name + ".bias", NORM, width)) if bias else (gain,)
