"""Bytes of the stored weights, in a 16- or 32-bit type or packed, whole or on one tensor-parallel rank.

    unpacked tensor          parameters x p                      p = 2 (fp16, bf16) or 4 (fp32)
    packed linear weight     see spec/quantization.py            scales and zero points included
    rank of a T-way split    rows or columns / T; key/value heads max(1, K // T) / K; norms and routers whole
    tower (vision, audio)    like the rest over the ranks that share it, or whole on every rank: the engine's rule

fp32 checkpoints are served in 16 bits unless ``--weights fp32`` asks otherwise (as engines do by default).
"""

from __future__ import annotations

from headcount.errors import UnknownNameError
from headcount.record import Record
from headcount.spec.quantization import RECIPES
from headcount.spec.weight import COLUMN, EXPERT, HEAD, KV, ROUTER, ROW, TOWER_PARTS, VOCAB
from headcount.units import ceil_div, round_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.spec.model import LayerSpec, ModelSpec
    from headcount.spec.quantization import Packing
    from headcount.spec.weight import Weight

PLAIN_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
_ALIASES = {"float32": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16", "auto": "auto"}


class WeightFormat(Record):
    """How a model's weights are served.

    name          what is shown: ``bf16``, ``fp8``, or the checkpoint's own quantisation method
    dtype_bytes   bytes of every number that is not packed
    packing       packs every linear weight but router, LM head and towers; None: the model's own quantisation, if any
    own           honour the model's own quantisation
    """

    name: str
    dtype_bytes: int
    packing: Packing | None = None
    own: bool = True


def weight_format(model: ModelSpec, name: str = "auto") -> WeightFormat:
    """Return the format called ``name`` for this model: ``auto`` is what the checkpoint holds.

    Raises UnknownNameError listing the nearest names.
    """
    key = _ALIASES.get(name.strip().lower(), name.strip().lower())
    if key == "auto":
        served = "bf16" if model.dtype == "fp32" else model.dtype
        label = model.quantization.method if model.quantization else served
        return WeightFormat(name=label, dtype_bytes=2)
    if key in PLAIN_BYTES:
        return WeightFormat(name=key, dtype_bytes=PLAIN_BYTES[key], own=False)
    if key in RECIPES:
        return WeightFormat(name=key, dtype_bytes=2, packing=RECIPES[key], own=False)
    raise UnknownNameError(
        what="weight format", given=name, allowed=["auto", *PLAIN_BYTES, *RECIPES, *_ALIASES]
    )


def stored_name(model: ModelSpec) -> str:
    """What the weights are stored in, in a word: the packing, or the type that most bytes of a file have."""
    if model.checkpoint is not None and model.checkpoint.file_format == "gguf":
        return next(iter(model.checkpoint.bytes_by_dtype()), "auto").lower()
    return weight_format(model).name


def packing_of(model: ModelSpec, weight: Weight, layer: int, fmt: WeightFormat) -> Packing | None:
    """How ``weight`` of layer ``layer`` is packed in this format; None: it is stored in ``fmt.dtype_bytes``."""
    if fmt.own:
        return model.quantization.packing_of(weight, layer) if model.quantization else None
    # Published quantised checkpoints of multimodal models leave the towers in 16 bits.
    if fmt.packing is None or not weight.linear or weight.part in (ROUTER, HEAD, *TOWER_PARTS):
        return None
    return fmt.packing


def shard_of(weight: Weight, tp: int, vocab_multiple: int = 1) -> Weight:
    """Return the part of ``weight`` that one of ``tp`` ranks stores (the largest one when it does not divide).

    ``vocab_multiple``: vocabulary rows are padded to it before they are divided (vLLM: 64).
    """
    if weight.shard == VOCAB:
        rows = ceil_div(round_up(weight.shape[0], vocab_multiple), tp)
        return weight.replace(shape=(rows, *weight.shape[1:]))
    if tp == 1:
        return weight
    if weight.shard == COLUMN:
        return weight.replace(shape=(ceil_div(weight.shape[0], tp), *weight.shape[1:]))
    if weight.shard == ROW:
        return weight.replace(shape=(weight.shape[0], ceil_div(weight.shape[1], tp)))
    if weight.shard == KV:
        heads = max(1, weight.heads // tp)
        return weight.replace(shape=(weight.shape[0] // weight.heads * heads, *weight.shape[1:]))
    return weight


def tensor_bytes(
    model: ModelSpec, weight: Weight, layer: int, fmt: WeightFormat, tp: int, vocab_multiple: int
) -> int:
    """Bytes that one rank stores of ``weight`` in layer ``layer``."""
    packing = packing_of(model, weight, layer, fmt)
    part = shard_of(weight, tp, vocab_multiple)
    if packing is not None and len(part.shape) == 2:
        count = part.copies * packing.matrix_bytes(part.shape[0], part.shape[1])
    else:
        count = part.parameters * fmt.dtype_bytes
    # An expert is cut across its width, or whole experts are dealt out: a T-th of the bytes either way.
    return ceil_div(count, tp) if weight.shard == EXPERT else count


class RankWeights(Record):
    """Bytes one tensor-parallel rank stores, by place, so that pipeline stages can be summed.

    layers   one entry per decoder block
    first    embeddings and positions (first stage)
    last     final norm and LM head (last stage); a tied head repeats the embedding when the stages differ
    tied     bytes of the tied table
    encoder  the encoder's
    tower    the vision and audio towers' (first stage), projectors included
    """

    layers: tuple[int, ...]
    first: int
    last: int
    tied: int
    encoder: int
    tower: int = 0

    @property
    def total(self) -> int:
        """All of it on one rank."""
        return sum(self.layers) + self.first + self.last + self.encoder + self.tower

    def stage(self, start: int, end: int) -> int:
        """Bytes of a pipeline stage that runs layers ``start`` to ``end`` (exclusive)."""
        count = sum(self.layers[start:end])
        if start == 0:
            count += self.first + self.encoder + self.tower
        if end == len(self.layers):
            count += self.last + (self.tied if start else 0)
        return count


def rank_weights(
    model: ModelSpec, fmt: WeightFormat, *, tp: int = 1, vocab_multiple: int = 1, tower_tp: int | None = None
) -> RankWeights:
    """Return what one of ``tp`` ranks stores. With tp = 1 and vocab_multiple = 1, ``total`` is the whole model.

    ``tower_tp``: ranks that share one copy of the vision and audio towers; 1: every rank has its own; None: ``tp``.
    """
    shared = tp if tower_tp is None else tower_tp
    key = ("rank_weights", fmt, tp, vocab_multiple, shared)
    if key not in model.memo:
        tower = sum(
            tensor_bytes(model, weight, 0, fmt, shared, 1) for item in model.towers for weight in item.weights
        )
        model.memo[key] = _count_rank(model, fmt, tp, vocab_multiple).replace(tower=tower)
    found: RankWeights = model.memo[key]
    return found


def _count_rank(model: ModelSpec, fmt: WeightFormat, tp: int, vocab_multiple: int) -> RankWeights:

    def of(weight: Weight, layer: int) -> int:
        return tensor_bytes(model, weight, layer, fmt, tp, vocab_multiple)

    per_layer = fmt.own and model.quantization is not None and model.quantization.depends_on_layer
    known: dict[object, int] = {}

    def layer_bytes(layer: LayerSpec, index: int) -> int:
        key = index if per_layer else id(layer)
        if key not in known:
            known[key] = sum(of(weight, index) for weight in layer.weights)
        return known[key]

    first = last = tied = 0
    for weight in model.outside:
        if weight.part == "embedding":
            first += of(weight, 0)
            if model.tied_embeddings and len(weight.shape) == 2 and weight.shard == VOCAB:
                tied = max(tied, of(weight, 0))
        else:
            last += of(weight, 0)
    encoder = 0
    if model.encoder is not None:
        encoder = sum(of(w, i) for i, layer in enumerate(model.encoder.layers) for w in layer.weights)
        encoder += sum(of(w, 0) for w in model.encoder.outside)
    layers = tuple(layer_bytes(layer, i) for i, layer in enumerate(model.layers))
    return RankWeights(layers=layers, first=first, last=last, tied=tied, encoder=encoder)


def weight_bytes(model: ModelSpec, name: str = "auto") -> int:
    """Bytes of the whole model in format ``name``.

    ``auto`` with a file header at hand is the exact sum of its tensors. A nominal count (``--params``) replaces the
    exact parameters at the same bytes per parameter.
    """
    fmt = weight_format(model, name)
    if fmt.own and model.checkpoint is not None and model.nominal_parameters is None:
        return model.checkpoint.total_bytes
    exact = rank_weights(model, fmt).total
    if model.nominal_parameters is None:
        return exact
    return round(exact * model.nominal_parameters / (model.parameters + model.tower_parameters))


def nominal_scale(model: ModelSpec, fmt: WeightFormat) -> tuple[int, int]:
    """Return ``(numerator, denominator)`` by which exact per-rank bytes are scaled: a header's or nominal total."""
    exact = rank_weights(model, fmt).total
    if model.nominal_parameters is not None:
        stored = model.parameters + model.tower_parameters
        return round(exact * model.nominal_parameters / stored), exact
    if fmt.own and model.checkpoint is not None:
        return model.checkpoint.total_bytes, exact
    return 1, 1
