"""The contract of a serving engine: what it refuses, what it reserves, how it shards, what one replica can hold.

Planner and simulator ask an ``Engine``; every quirk (page rounding, reserved memory, replication, padding) lives in
its module. An engine is keyed by version, and its rules may differ by layer kind: it sees whole ``LayerSpec`` objects.

    Engine.refusal(model, layout)   -> None, or why this engine cannot run the layout
    Engine.replica(case)            -> Replica: conversations, what binds, the ledger of one GPU
    Engine.loaded_bytes(case)       -> bytes of weights on the GPU that binds, as the engine logs them
    Engine.pool(case, cache_bytes)  -> Pool: what the engine prints of a cache of that many bytes
    Engine.launch(case, ...)        -> Launch: the server's command line that makes the plan true
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import accumulate

from headcount.engines.arguments import read_arguments
from headcount.errors import HeadcountError, UsageError
from headcount.record import Record
from headcount.spec.weight import EXPERTS, KV, REPLICATED, ROW
from headcount.units import round_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headcount.engines.arguments import Argument
    from headcount.engines.calibration import Calibration
    from headcount.hardware import Accelerator
    from headcount.ledger import Ledger
    from headcount.spec.model import ModelSpec
    from headcount.spec.weight import Weight


class Layout(Record):
    """Tensor parallel x pipeline parallel x data parallel. A replica is one copy of the model on tp x pp GPUs."""

    tp: int = 1
    pp: int = 1
    dp: int = 1

    @property
    def gpus(self) -> int:
        """``tp x pp x dp``."""
        return self.tp * self.pp * self.dp

    def words(self) -> str:
        """Short text: ``TP 4``, ``PP 3``, ``TP 2 x PP 2``; replicas are said elsewhere."""
        parts = [f"TP {self.tp}"] if self.tp > 1 or self.pp == 1 else []
        return " x ".join([*parts, *([f"PP {self.pp}"] if self.pp > 1 else [])])


class Settings(Record):
    """What the user asked of the engine; None means the engine's default for its version.

    reserve       fraction of the card kept free (textbook)
    utilization   fraction of the card the engine may use, in the engine's own meaning: vLLM's gpu_memory_utilization,
                  SGLang's mem_fraction_static, TensorRT-LLM's free_gpu_memory_fraction
    memory_bytes  replaces what the card has
    arguments     the engine's own arguments by their own names, ``("block-size", "32")``; the engine reads them
                  (``arguments.py``)
    calibration   what was measured on a server, in place of what the engine's rules predict
    """

    weights: str = "auto"
    kv: str = "auto"
    reserve: float | None = None
    utilization: float | None = None
    memory_bytes: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    arguments: tuple[tuple[str, str], ...] = ()
    calibration: Calibration | None = None

    def _check(self) -> None:
        if self.reserve is not None and self.utilization is not None:
            raise UsageError("--reserve and --utilization say the same thing; give one of them")


class Case(Record):
    """One model in one layout on one card, every conversation ``context`` tokens long."""

    model: ModelSpec
    accelerator: Accelerator
    layout: Layout
    context: int
    settings: Settings


class GpuBudget(Record):
    """Where one GPU's memory goes, in bytes: ``memory = reserved + weights + overhead + kv_budget``.

    memory     what the card has (or what was said with ``--memory``)
    reserved   kept out of the engine's reach
    weights    this rank's share of the model
    overhead   activations, graphs, communication buffers: ``(name, bytes)``
    kv_budget  what is left for conversations; negative when the weights do not fit
    kv_low     the same at the low and at the high end of the stated uncertainty (equal to it where all is exact)
    kv_high
    """

    memory: int
    reserved: int
    weights: int
    overhead: tuple[tuple[str, int], ...]
    kv_budget: int
    kv_low: int
    kv_high: int


class Pool(Record):
    """What an engine makes of a number of cache bytes on one GPU, in its own printed figures.

    tokens             the capacity it prints; 0 when nothing fits
    bytes_per_token    cache bytes of one more token of one conversation on this GPU (fixed states not included)
    blocks             pages of the pool, where the engine has them
    block_tokens       tokens of the smallest page
    concurrency        requests of ``case.context`` tokens, where the engine prints that
    needed_bytes       what one request of ``case.context`` tokens is charged, where the engine checks it at start
    """

    tokens: int
    bytes_per_token: float
    blocks: int | None = None
    block_tokens: int | None = None
    concurrency: float | None = None
    needed_bytes: int | None = None


class Launch(Record):
    """How the planned server is started.

    argv         the command line, program first
    environment  variables it needs
    image        a public container image of that version
    port         where it listens
    health       path that answers 200 once it is ready
    metrics      path of its Prometheus metrics, "" for none
    """

    argv: tuple[str, ...]
    image: str
    port: int
    environment: tuple[tuple[str, str], ...] = ()
    health: str = "/health"
    metrics: str = "/metrics"


class Replica(Record):
    """What one replica holds.

    conversations  whole conversations of the asked length; low and high: the stated uncertainty
    budget         of the GPU that binds
    kv_bytes_per_conversation_per_gpu  on that GPU, as the engine charges it
    binding        what limits, in words
    """

    conversations: int
    low: int
    high: int
    budget: GpuBudget
    kv_bytes_per_conversation_per_gpu: int
    binding: str
    make_ledger: Callable[[], Ledger]
    warnings: tuple[str, ...] = ()

    @property
    def ledger(self) -> Ledger:
        """The arithmetic of that GPU. Made when asked for: a search weighs thousands of replicas and explains one."""
        return self.make_ledger()


class Engine(ABC):
    """One engine at one version."""

    name: str
    version: str
    # The engine's own arguments that change memory, beyond those every engine has an option for.
    arguments: tuple[Argument, ...] = ()
    # The terms of a calibration that this engine's plan has.
    calibrated: tuple[str, ...] = ("device_bytes", "weight_bytes", "non_torch_bytes")
    # Several GPUs share a model layer by layer as a matter of course, so that stages need not be asked for.
    splits_layers: bool = False
    # Those of its own arguments that change one of these terms.
    calibrated_arguments: tuple[str, ...] = ()

    @abstractmethod
    def refusal(self, model: ModelSpec, layout: Layout) -> str | None:
        """Why the engine cannot run ``layout`` (one clause: ``32 query heads do not divide by 3``); None when it can."""

    @abstractmethod
    def replica(self, case: Case) -> Replica:
        """What one replica of ``case`` holds. The layout must not be refused."""

    @abstractmethod
    def usable_bytes(self, accelerator: Accelerator, settings: Settings) -> int:
        """Bytes of one card that weights and cache may use together, for the pooled lower bound."""

    @abstractmethod
    def kv_format_name(self, model: ModelSpec, settings: Settings) -> str:
        """The KV format in force: ``auto`` resolved by the engine's rule."""

    def weights_name(self, model: ModelSpec, settings: Settings) -> str:
        """The weight format in force, as shown: ``auto`` resolved."""
        from headcount.cost.weights import weight_format

        return weight_format(model, settings.weights).name

    def stored_bytes(self, model: ModelSpec, settings: Settings) -> int:
        """Bytes of the whole model once in that format, as a checkpoint for this engine holds them."""
        from headcount.cost.weights import weight_bytes

        return weight_bytes(model, settings.weights)

    @abstractmethod
    def loaded_bytes(self, case: Case) -> int:
        """Bytes of weights on the GPU that holds most of them, as the engine counts them after loading."""

    def batches(self, case: Case) -> tuple[int, int] | None:
        """``(batched tokens, sequences)`` in force, where a term that a calibration measures depends on them."""
        return None

    def calibrated_case(self, case: Case) -> Case:
        """``case`` with its calibration compared setting by setting: what is not said is this engine's default."""
        found = case.settings.calibration
        if found is None:
            return case
        compared = found.replace(mismatch=self._mismatch(case, found))
        return case.replace(settings=case.settings.replace(calibration=compared))

    def _mismatch(self, case: Case, found: Calibration) -> str:
        """The first setting that changes a term and is another one on the server that was measured; "" for none."""
        # A batch's default may follow the longest request.
        there = case.replace(
            context=found.context or case.context,
            settings=case.settings.replace(
                weights=found.weights,
                kv=found.kv,
                max_num_batched_tokens=found.max_num_batched_tokens,
                max_num_seqs=found.max_num_seqs,
                arguments=tuple(pair for pair in found.arguments if pair[0] in self.calibrated_arguments),
            ),
        )
        try:
            theirs, ours = self._changing(there), self._changing(case)
        except HeadcountError as error:
            return f"its settings are not to be read: {error}"
        return next(
            (
                f"{name} is {theirs[name]} there, {ours[name]} here"
                for name in ours
                if theirs[name] != ours[name]
            ),
            "",
        )

    def _changing(self, case: Case) -> dict[str, object]:
        """The settings in force that change a term of a calibration."""
        given = read_arguments(case.settings.arguments, self.arguments, engine=self.name)
        batches = zip(("max_num_batched_tokens", "max_num_seqs"), self.batches(case) or (), strict=False)
        return {
            "the weights' format": self.weights_name(case.model, case.settings),
            "the cache's format": self.kv_format_name(case.model, case.settings),
            **{name: given[name] for name in self.calibrated_arguments},
            **dict(batches),
        }

    @abstractmethod
    def pool(self, case: Case, cache_bytes: int) -> Pool:
        """What the engine prints when ``cache_bytes`` are left for its cache on every GPU.

        Raises UnsupportedModelError for a cache that it has no known rule for.
        """

    def printed_tokens(self, case: Case, printed_bytes: int) -> int:
        """The token figure that belongs to ``printed_bytes`` of cache, as ``pool`` gives it.

        An engine that is told its tokens and prints the bytes that they take overrides it.
        """
        return self.pool(case, printed_bytes).tokens

    def holds(
        self, case: Case, *, tokens: int | None, blocks: int | None, cache_bytes: int | None
    ) -> int | None:
        """Conversations of ``case.context`` tokens that a pool with these printed figures holds; None without a figure.

        ``floor(tokens / context)``; an engine whose pool is more than tokens overrides it.
        """
        if tokens is None:
            tokens = None if cache_bytes is None else self.printed_tokens(case, cache_bytes)
        return None if tokens is None else tokens // case.context

    def default_utilization(self, case: Case) -> float | None:
        """The fraction in force for ``case``, in the engine's own meaning; None for an engine that has none."""
        return case.settings.utilization

    def launch(self, case: Case, *, model: str, concurrency: int) -> Launch:
        """The server's command line for ``case``, with ``model`` as its name and ``concurrency`` sequences at a time.

        Raises UsageError for an engine that is no server.
        """
        raise UsageError(f"the {self.name} engine is arithmetic, not a server: there is nothing to launch")


def head_refusal(model: ModelSpec, tp: int) -> str | None:
    """Heads are whole: T must divide the query heads, and divide or be a multiple of the key/value heads."""
    from headcount.cost.cache import mixer_runs
    from headcount.spec.attention import CompressedLatent, HeadedAttention, LatentAttention

    if tp == 1:
        return None
    for mixer, _ in mixer_runs(model):
        if not isinstance(mixer, HeadedAttention | LatentAttention | CompressedLatent):
            continue
        if mixer.num_attention_heads % tp:
            return f"{mixer.num_attention_heads} query heads do not divide by {tp}"
        if isinstance(mixer, HeadedAttention):
            heads = mixer.num_key_value_heads
            if heads % tp and tp % heads:
                return f"{heads} key/value heads neither divide by {tp} nor divide {tp}"
    return None


def width_refusal(model: ModelSpec, tp: int, *, vocab_multiple: int) -> str | None:
    """The vocabulary (padded to ``vocab_multiple``) and every sharded width must divide by T."""
    if tp == 1:
        return None
    if round_up(model.vocab_size, vocab_multiple) % tp:
        return f"the vocabulary of {model.vocab_size:,} (padded to a multiple of {vocab_multiple}) does not divide by {tp}"
    for layer, _ in model.layer_runs():
        for weight in layer.weights:
            width = sharded_width(model, weight)
            if width % tp:
                return f"width {width:,} of {weight.name.rsplit('.', 1)[-1]} does not divide by {tp}"
    return None


def sharded_width(model: ModelSpec, weight: Weight) -> int:
    """Outputs of a column-parallel matrix, inputs of a row-parallel one, an expert's own width; 0 when it is whole."""
    if not weight.linear or weight.shard in (REPLICATED, KV):
        return 0
    if weight.part == EXPERTS and model.hidden_size in weight.shape:
        return weight.shape[0] if weight.shape[1] == model.hidden_size else weight.shape[1]
    return weight.shape[1] if weight.shard == ROW else weight.shape[0]


def even_stages(layers: int, stages: int) -> list[tuple[int, int]]:
    """Cut ``layers`` into ``stages`` runs, the first ones one layer longer: 32 in 3 is 11, 11, 10."""
    base, extra = divmod(layers, stages)
    return cut_layers([base + (1 if stage < extra else 0) for stage in range(stages)])


def cut_layers(sizes: list[int]) -> list[tuple[int, int]]:
    """Turn stage sizes into ``(start, end)`` ranges of layers: 11, 11, 10 is (0, 11), (11, 22), (22, 32)."""
    ends = list(accumulate(sizes))
    return list(zip([0, *ends[:-1]], ends, strict=True))


def stage_model(model: ModelSpec, start: int, end: int) -> ModelSpec:
    """The part of ``model`` that a pipeline stage caches: layers ``start`` to ``end``."""
    return model if (start, end) == (0, len(model.layers)) else model.replace(layers=model.layers[start:end])
