"""Bytes of weights on one vLLM rank after loading: sharded, padded, and with the copies that are made.

vocabulary padded to 64, then divided by T; key/value heads max(1, K // T); norms, routers, latents whole
tensors of 16 and 8 bits count as the allocator counts them (allocator.py)
latent attention keeps absorbed copies W_UK and W_UV in 16 bits: N/T r (d_nope + d_v) 2 a layer
"""

from __future__ import annotations

from headcount.cost.cache import mixer_runs
from headcount.cost.weights import nominal_scale, rank_weights, weight_format
from headcount.engines.vllm.allocator import rank_sizes, unused_bytes
from headcount.engines.vllm.refusals import VOCAB_MULTIPLE
from headcount.engines.vllm.rotary import rotary_bytes
from headcount.engines.vllm.rules import MXFP4_MARLIN, MXFP4_TRITON, rules_for
from headcount.record import Record
from headcount.spec.attention import LatentAttention
from headcount.spec.weight import EXPERTS
from headcount.units import ceil_div, round_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.engines.base import Case


class StageWeights(Record):
    """Bytes of weights on one rank of a pipeline stage: sharded tensors, rotary tables, kernels' padding, what the
    allocator leaves unused in their blocks, absorbed copies.

    ``unsure``: bytes more where another kernel may have been taken. ``measured`` replaces all of it: what a calibration saw.
    """

    tensors: int
    tables: int = 0
    padding: int = 0
    unused: int = 0
    absorbed: int = 0
    unsure: int = 0
    measured: bool = False

    @property
    def loaded(self) -> int:
        """Without the absorbed copies, which are listed apart."""
        return self.tensors + self.tables + self.padding + self.unused

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
    tables, absorbed = rotary_bytes(model), absorbed_bytes(case)
    multiples = rules_for(version).mxfp4_multiples
    padding = padded_expert_bytes(case, multiples)
    # Triton's kernels are a package of their own; without it Marlin's are taken (mxfp4.py get_mxfp4_backend).
    unsure = padded_expert_bytes(case, MXFP4_MARLIN) - padding if multiples == MXFP4_TRITON else 0
    return [
        StageWeights(
            tensors=ceil_div(ranks.stage(start, end) * numerator, denominator),
            tables=tables,
            padding=padding * (end - start) // layers,
            unused=_unused_bytes(case, start, end),
            absorbed=absorbed * (end - start) // layers,
            unsure=unsure * (end - start) // layers,
        )
        for start, end in cuts
    ]


def _unused_bytes(case: Case, start: int, end: int) -> int:
    """What the allocator counts beyond the tensors, where that is known."""
    model, tp = case.model, case.layout.tp
    fmt = weight_format(model, case.settings.weights)
    key = ("unused_bytes", fmt, tp, start, end)
    if key not in model.memo:
        sizes = None
        if fmt.dtype_bytes == 2:
            sizes = rank_sizes(model, fmt, tp, start, end, vocab_multiple=VOCAB_MULTIPLE)
        model.memo[key] = 0 if sizes is None else unused_bytes(sizes)
    found: int = model.memo[key]
    return found


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
