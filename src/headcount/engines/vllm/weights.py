"""Bytes of weights on one vLLM rank after loading: sharded, padded, and with the copies that are made.

vocabulary padded to 64, then divided by T; key/value heads max(1, K // T); norms, routers, latents whole
tensors of 16 and 8 bits count as the allocator counts them (engines/allocator.py)
multi-token prediction drafts with layers like the model's last attention layer, and a projection of 2 D x D each
latent attention keeps absorbed copies W_UK and W_UV in 16 bits: N/T r (d_nope + d_v) 2 a layer
"""

from __future__ import annotations

from headcount.cost.cache import mixer_runs
from headcount.cost.weights import nominal_scale, packing_of, rank_weights, weight_format
from headcount.engines.allocator import blocks_of, layer_sizes, tensor_sizes
from headcount.engines.arguments import read_arguments
from headcount.engines.rotary import rotary_numbers, several_axes
from headcount.engines.versions import release
from headcount.engines.vllm.options import VLLM_ARGUMENTS, mtp_layers
from headcount.engines.vllm.refusals import VOCAB_MULTIPLE
from headcount.engines.vllm.rules import MXFP4_MARLIN, MXFP4_TRITON, rules_for
from headcount.record import Record
from headcount.spec.attention import CompressedLatent, FullAttention, LatentAttention
from headcount.spec.weight import EMBEDDING, EXPERTS
from headcount.units import ceil_div, round_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from headcount.cost.weights import RankWeights, WeightFormat
    from headcount.engines.base import Case
    from headcount.spec.model import ModelSpec
    from headcount.spec.weight import Weight

_BYTE_BITS = 8


class StageWeights(Record):
    """Bytes of weights on one rank of a pipeline stage: sharded tensors, rotary tables, kernels' padding, what the
    allocator leaves unused in their blocks, absorbed copies, a drafter's layers.

    ``unsure``: bytes more where another kernel may have been taken. ``measured`` replaces all of it: what a calibration saw.
    """

    tensors: int
    tables: int = 0
    padding: int = 0
    unused: int = 0
    absorbed: int = 0
    drafter: int = 0
    unsure: int = 0
    measured: bool = False

    @property
    def loaded(self) -> int:
        """Without the absorbed copies, which are listed apart."""
        return self.tensors + self.tables + self.padding + self.unused + self.drafter

    @property
    def total(self) -> int:
        """What the engine logs after loading."""
        return self.loaded + self.absorbed

    def words(self) -> str:
        """The sum in numbers."""
        parts = (
            (self.tables, "rotary tables"),
            (self.padding, "padding"),
            (self.unused, "unused in blocks"),
            (self.absorbed, "absorbed copies"),
            (self.drafter, "drafter"),
        )
        return " + ".join([f"{self.tensors:,}", *(f"{count:,} {name}" for count, name in parts if count)])


def stage_weights(case: Case, cuts: list[tuple[int, int]], version: str) -> list[StageWeights]:
    """The weights of one rank of every pipeline stage."""
    model, tp, layers = case.model, case.layout.tp, len(case.model.layers)
    fmt = weight_format(model, case.settings.weights)
    found = case.settings.calibration
    measured = None if found is None else found.measured("weight_bytes", case, "vllm", version)
    if measured is not None and len(cuts) == 1:
        return [StageWeights(tensors=measured, measured=True)]
    ranks = rank_weights(model, fmt, tp=tp, vocab_multiple=VOCAB_MULTIPLE)
    numerator, denominator = nominal_scale(model, fmt)
    # Padding is not in a file, tables are in none either: both come after the nominal scale.
    tables, absorbed = rotary_bytes(model, version), absorbed_bytes(case)
    multiples = rules_for(version).mxfp4_multiples
    padding = padded_expert_bytes(case, multiples)
    # Triton's kernels are a package of their own; without it Marlin's are taken (mxfp4.py get_mxfp4_backend).
    unsure = padded_expert_bytes(case, MXFP4_MARLIN) - padding if multiples == MXFP4_TRITON else 0
    drafter = _drafter_bytes(case, ranks, absorbed)
    return [
        StageWeights(
            tensors=ceil_div(ranks.stage(start, end) * numerator, denominator),
            tables=tables,
            padding=padding * (end - start) // layers,
            unused=_unused_bytes(case, start, end),
            absorbed=absorbed * (end - start) // layers,
            drafter=drafter if end == layers else 0,
            unsure=unsure * (end - start) // layers,
        )
        for start, end in cuts
    ]


def _drafter_bytes(case: Case, ranks: RankWeights, absorbed: int) -> int:
    """Layers of multi-token prediction on one rank, all that the config states; table and head are the model's own.

    Another drafter is a checkpoint that the question does not name.
    """
    given = read_arguments(case.settings.arguments, VLLM_ARGUMENTS, engine="vllm")
    if given["speculative-method"] != "mtp":
        return 0
    model = case.model
    kinds = (FullAttention, LatentAttention, CompressedLatent)
    last = max(i for i, layer in enumerate(model.layers) if any(isinstance(m, kinds) for m in layer.mixers))
    projection = 2 * model.hidden_size**2 * _PROJECTION_BYTES
    return mtp_layers(model) * (ranks.layers[last] + absorbed // len(model.layers) + projection)


# Hidden state and embedding, 2 D wide, to D: whole on every rank, in 16 bits.
_PROJECTION_BYTES = 2
# Positions of several axes: a table of four times as many, for videos; from 0.32 not for these, unless video tokens are pruned.
_AXES_FACTOR = 4
_FIRST_PLAIN, _PLAIN = "0.32.0", ("qwen3_vl", "qwen3_5")
_TABLE_BYTES = 2


def rotary_bytes(model: ModelSpec, version: str) -> int:
    """Tables of cosines and sines, which vLLM counts as weights, in 16 bits (DeepSeek-V4's in 32).

    Qwen2.5-VL-72B: 128,000 x 4 x 128 x 2 B. Source: layers/rotary_embedding/mrope.py and deepseek_scaling_rope.py;
    models/qwen3_vl.py (0.32).
    """
    plain = release(version) >= release(_FIRST_PLAIN) and model.family.startswith(_PLAIN)
    factor = _AXES_FACTOR if several_axes(model) and not plain else 1
    wide = any(isinstance(m, CompressedLatent) for layer, _ in model.layer_runs() for m in layer.mixers)
    return rotary_numbers(model) * factor * (2 * _TABLE_BYTES if wide else _TABLE_BYTES)


def _unused_bytes(case: Case, start: int, end: int) -> int:
    """What the allocator counts beyond the tensors; 0 where it is not known: 4-bit kernels make theirs anew while loading."""
    model, tp = case.model, case.layout.tp
    fmt = weight_format(model, case.settings.weights)
    key = ("unused_bytes", fmt, tp, start, end)
    if key not in model.memo:
        sizes = _sizes(model, fmt, tp, start, end) if _made_once(model, fmt, start, end) else []
        model.memo[key] = blocks_of(sizes).counted - sum(sizes)
    found: int = model.memo[key]
    return found


def _made_once(model: ModelSpec, fmt: WeightFormat, start: int, end: int) -> bool:
    """Whether all weights have 16 or 8 bits, so that the tensors made at first are those that stay."""
    if fmt.dtype_bytes != 2 or (fmt.packing is not None and fmt.packing.bits != _BYTE_BITS):
        return False
    if not fmt.own or model.quantization is None:
        return True
    every = range(start, end) if model.quantization.depends_on_layer else (start,)
    packings = (
        packing_of(model, weight, index, fmt)
        for index in every
        for weight in (w for layer, _ in model.layer_runs() for w in layer.weights)
    )
    return all(packing is None or packing.bits == _BYTE_BITS for packing in packings)


def _sizes(model: ModelSpec, fmt: WeightFormat, tp: int, start: int, end: int) -> list[int]:
    """Bytes of the tensors of one rank, in the order in which they are made."""

    def sizes_of(weights: Iterable[Weight]) -> list[int]:
        return tensor_sizes(model, weights, 0, fmt, lambda _: tp, vocab_multiple=VOCAB_MULTIPLE)

    sizes = []
    if start == 0:
        sizes += sizes_of(weight for tower in model.towers for weight in tower.weights)
        sizes += sizes_of(weight for weight in model.outside if weight.part == EMBEDDING)
    sizes += layer_sizes(model, (start, end), fmt, lambda _: tp, vocab_multiple=VOCAB_MULTIPLE)
    if end == len(model.layers):
        sizes += sizes_of(weight for weight in model.outside if weight.part != EMBEDDING)
    return sizes


def padded_expert_bytes(case: Case, multiples: tuple[int, int]) -> int:
    """Bytes that MXFP4 expert kernels add on one rank by rounding widths up.

        per expert and matrix: (round(F / T, a) round(D, b) - (F / T) D) (4 + 8 / 32) / 8

    a, b: ``multiples`` that the kernel wants. gpt-oss-20b, H100: 13.47 GiB logged where its tensors are 12.82 (0.11),
    13.64 (0.19); gpt-oss-120b, H100, 0.10.1: 65.97 GiB with Marlin's kernels (vLLM issue 23278).
    """
    model, tp = case.model, case.layout.tp
    if model.quantization is None or not weight_format(model, case.settings.weights).own:
        return 0
    inner, outer = multiples
    added = 0
    for layer, times in model.layer_runs():
        ffn = layer.feed_forward
        packed = any(
            weight.part == EXPERTS
            and getattr(model.quantization.packing_of(weight, 0), "name", "") == "mxfp4"
            for weight in layer.weights
        )
        if ffn is None or not ffn.experts or not packed:
            continue
        width = ceil_div(ffn.width, tp)
        extra = round_up(width, inner) * round_up(model.hidden_size, outer) - width * model.hidden_size
        added += times * ffn.experts * ffn.matrices * extra
    return added * 17 // 32


def absorbed_bytes(case: Case) -> int:
    """Bytes of the absorbed copies W_UK and W_UV on one rank; see the module."""
    model, tp = case.model, case.layout.tp
    fmt = weight_format(model, case.settings.weights)
    if fmt.packing is None and not (fmt.own and model.quantization is not None):
        return 0
    return sum(
        times
        * mixer.num_attention_heads
        // tp
        * mixer.kv_lora_rank
        * (mixer.qk_nope_head_dim + mixer.v_head_dim)
        * 2
        for mixer, times in mixer_runs(model)
        if isinstance(mixer, LatentAttention)
    )
