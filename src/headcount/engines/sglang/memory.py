"""What SGLang finds free on a GPU, and what the weights leave of it.

    free before the weights   F = card total - taken            taken: driver, CUDA context, communication buffers
    cache                     C = F fraction - weights - 0.1 GiB (images or sound, from 0.5.20 on)

``taken`` is measured by SGLang when it starts ("Load weight begin. avail mem"); it follows from no formula. Here: the
total of nvidia-smi minus that line, in public logs of 2025-01 to 2026-10 (GiB). Most of them print no card; those marked *
were told from the memory alone, so that single figures are uncertain and only the spread is used:

    one GPU       H100* 0.84 (2025-01), 1.22* (2026-02), H100 NVL* 1.08, L40S 0.97 (2026-07), H20* 0.95 (2025-09), B200* 1.49
    several       A100* 1.23 (T 2), H100* 2.17 to 2.48 (T 2 to 16), H800 1.90 (T 16),
                  H200* 3.11 (T 8, sgl-project/sglang#11716), H200 2.50 (T 8, SemiAnalysisAI/InferenceX#2128) and
                  2.31* (T 16), B200* 3.72 (T 4)
    over PCIe     RTX 4090 1.06 (T 2, 2026-04), 0.91 (T 4, 2026-06): no buffers of NVLink
    AMD           MI355X* 4.02 to 4.50 (T 8, 2026-02)
    unified       DGX Spark 7.8 to 10.2 of 121.7 (2026-08 to 2026-09): what the system uses

Weights: tensors, rotary tables and what PyTorch's allocator leaves between them (``loading.py``). 66 of 83 weights printed by
vLLM and SGLang logs lie within 2 % of the sum of tensors; the interval is that.
"""

from __future__ import annotations

from headcount.cost.weights import WeightFormat, nominal_scale, rank_weights, tensor_bytes, weight_format
from headcount.engines.base import Case, cut_layers
from headcount.engines.calibration import measured_terms
from headcount.engines.sglang.fraction import is_multimodal
from headcount.engines.sglang.loading import absorbed_bytes, rounding_bytes, table_bytes
from headcount.engines.sglang.options import Setup, loads_tower, total_bytes
from headcount.engines.sglang.refusals import VOCAB_MULTIPLE
from headcount.record import Record
from headcount.spec.weight import ATTENTION, EMBEDDING, STATE_SPACE
from headcount.units import GIB, MIB, ceil_div

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.spec.model import ModelSpec
    from headcount.spec.weight import Weight

# Bytes taken before the weights, GiB: (low, expected, high); see the module.
_ONE_GPU = (0.8, 1.1, 1.5)
_SEVERAL = (1.0, 2.3, 3.7)
# The upper end is that of the smallest NVLink figures: two logs of one card are few.
_OVER_PCIE = (0.8, 1.0, 2.2)
_AMD = (2.0, 4.3, 5.0)
_UNIFIED = (7.7, 9.2, 10.3)
_WEIGHT_SPREAD = 0.02
# SGLANG_VLM_CACHE_SIZE_MB: the cache of image embeddings, allocated after the pools.
_TOWER_BUFFERS = 100 * MIB
SOURCE = "'Load weight begin. avail mem' of public SGLang logs, 2025-01 to 2026-10"


class Taken(Record):
    """Bytes of one GPU that are gone before the weights are loaded, with their interval."""

    low: int
    expected: int
    high: int


class StageWeights(Record):
    """What loading takes on one rank: tensors, rotary tables, what the allocator leaves between them, absorbed copies."""

    tensors: int
    tables: int = 0
    rounding: int = 0
    absorbed: int = 0

    @property
    def total(self) -> int:
        """What SGLang logs after loading."""
        return self.tensors + self.tables + self.rounding + self.absorbed

    def words(self) -> str:
        """The sum in numbers."""
        parts = (
            (self.tables, "rotary tables"),
            (self.rounding, "allocator's rounding"),
            (self.absorbed, "absorbed copies"),
        )
        return " + ".join([f"{self.tensors:,}", *(f"{count:,} {name}" for count, name in parts if count)])


class StageMemory(Record):
    """One stage's GPU: bytes left for its pools at best, least and most.

    measured   terms that a calibration gave, with the calibration's file or origin
    """

    cut: tuple[int, int]
    total: int
    taken: Taken
    weights: StageWeights
    tower_buffers: int
    best: int
    least: int
    most: int
    measured: tuple[tuple[str, str], ...] = ()

    @property
    def free_before(self) -> int:
        """What SGLang finds free before it loads the weights."""
        return self.total - self.taken.expected


def taken_bytes(case: Case, version: str) -> Taken:
    """What the driver, the context and the communication buffers take; measured bytes of a calibration replace it."""
    measured = _measured(case, "non_torch_bytes", version)
    if measured is not None:
        return Taken(low=measured, expected=measured, high=measured)
    card, layout = case.accelerator, case.layout
    if card.unified_memory:
        found = _UNIFIED
    elif card.vendor == "amd":
        found = _AMD
    else:
        several = _OVER_PCIE if card.link.startswith("PCIe") else _SEVERAL
        found = _ONE_GPU if layout.tp * layout.pp == 1 else several
    low, expected, high = (round(count * GIB) for count in found)
    return Taken(low=low, expected=expected, high=high)


def stages_of(layers: int, count: int) -> list[tuple[int, int]]:
    """Cut as SGLang does: the last stages are one layer longer; 32 in 3 is 10, 11, 11."""
    base, extra = divmod(layers, count)
    return cut_layers([base + (1 if stage >= count - extra else 0) for stage in range(count)])


def stage_weights(case: Case, setup: Setup) -> list[StageWeights]:
    """What loading takes on one rank of every stage: vocabulary padded to 64, attention divided by its group's ranks."""
    model = case.model
    fmt = weight_format(model, case.settings.weights)
    tp, tower_tp = case.layout.tp, setup.attention_tp
    ranks = rank_weights(model, fmt, tp=tp, vocab_multiple=VOCAB_MULTIPLE, tower_tp=tower_tp)
    numerator, denominator = nominal_scale(model, fmt)
    counts = []
    for start, end in stages_of(len(model.layers), case.layout.pp):
        count = ranks.stage(start, end) - (ranks.tower if start == 0 and not setup.tower else 0)
        if setup.groups > 1:
            count += _whole_attention(model, start, end, fmt, tp=tp, attention_tp=setup.attention_tp)
        counts.append(
            StageWeights(
                tensors=ceil_div(count * numerator, denominator),
                tables=table_bytes(model, setup),
                rounding=rounding_bytes(model, (start, end), fmt, setup, tp=tp),
                absorbed=absorbed_bytes(model, start, end, setup.attention_tp),
            )
        )
    return counts


def _whole_attention(
    model: ModelSpec, start: int, end: int, fmt: WeightFormat, *, tp: int, attention_tp: int
) -> int:
    """Bytes that attention groups add to a rank: attention, states and embedding are divided by fewer ranks."""

    def more(weight: Weight, layer: int) -> int:
        few = tensor_bytes(model, weight, layer, fmt, attention_tp, VOCAB_MULTIPLE)
        return few - tensor_bytes(model, weight, layer, fmt, tp, VOCAB_MULTIPLE)

    count = 0
    for index in range(start, end):
        for weight in model.layers[index].weights:
            if weight.part in (ATTENTION, STATE_SPACE):
                count += more(weight, index)
    if start == 0:
        count += sum(more(weight, 0) for weight in model.outside if weight.part == EMBEDDING)
    return count


def stage_memory(case: Case, setup: Setup, version: str) -> list[StageMemory]:
    """Every stage's memory with the interval of what was taken before the weights, and of the weights.

    What a calibration measured on the same machine (or the same model and release) replaces what is predicted.
    """
    total = total_bytes(case.accelerator, case.settings.memory_bytes)
    if not case.settings.memory_bytes:
        total = _measured(case, "device_bytes", version) or total
    taken, weighed = taken_bytes(case, version), _measured(case, "weight_bytes", version)
    buffers = _TOWER_BUFFERS if setup.rules.tower_buffers and loads_tower(case.model, setup) else 0

    def left(gone: int, loaded: int) -> int:
        return int((total - gone) * setup.fraction) - loaded - buffers

    stages = []
    cuts = stages_of(len(case.model.layers), case.layout.pp)
    for cut, weights in zip(cuts, stage_weights(case, setup), strict=True):
        spread = round(weights.total * _WEIGHT_SPREAD)
        if weighed is not None:
            weights, spread = StageWeights(tensors=weighed), 0
        loaded = weights.total
        stages.append(
            StageMemory(
                cut=cut,
                total=total,
                taken=taken,
                weights=weights,
                tower_buffers=buffers,
                best=left(taken.expected, loaded),
                least=left(taken.high, loaded + spread),
                most=left(taken.low, loaded - spread),
                measured=_origins(case, version),
            )
        )
    return stages


def _measured(case: Case, name: str, version: str) -> int | None:
    """What a calibration says of ``name`` where it holds for this case; None without one."""
    return measured_terms(case, (name,), "sglang", version).get(name, (None, ""))[0]


def _origins(case: Case, version: str) -> tuple[tuple[str, str], ...]:
    """The measured terms that are in force, each with where it was measured; what the question says itself is not."""
    names = ["non_torch_bytes", "weight_bytes", *([] if case.settings.memory_bytes else ["device_bytes"])]
    return tuple((name, where) for name, (_, where) in measured_terms(case, names, "sglang", version).items())


def tower_is_left_out(model: ModelSpec) -> bool:
    """Whether the checkpoint has a tower that the reader could not count."""
    return is_multimodal(model) and not model.towers
