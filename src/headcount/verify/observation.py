"""What a real engine said about its memory: one start, as a log, a server or a public table gives it.

The public table (``public_logs.jsonl``), the log readers (``logs/``) and the live servers (``servers/``) all produce an
``Observation``; ``comparison.py`` sets the engine's rules beside it.
"""

from __future__ import annotations

from headcount.errors import UsageError
from headcount.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Observation(Record):
    """One engine start; None where it was not said. Field names are those of the public table.

    engine                   vllm, sglang, llama.cpp, ollama, tensorrt-llm, transformers, or another's own name
    date                     of the log, ``2026-04-18``: stands for the release when the version was not said
    release_hint             the newest release whose wording the log uses, when it prints no release of its own; stands
                             below a stated release and a date
    gpu_memory_utilization   the engine's own fraction: vLLM's utilization, SGLang's mem_fraction_static, TensorRT-LLM's
                             fraction of free memory
    weights_gib .. kv_cache_memory_gib   per GPU [GiB]; llama.cpp and Ollama print sums over devices: all tensors once, the
                             host's among them, and all caches (a compute buffer is the largest of one device)
    kv_cache_tokens, num_gpu_blocks, max_concurrency   as printed; max_concurrency is of requests of
                             ``max_concurrency_tokens`` (else ``max_model_len``) tokens
    states_gib               recurrent states beside the cache, where the engine prints them apart (SGLang)
    free_before_gib          free on the device before the weights (SGLang), whose share the fraction is
    kv_needed_gib            one request of max_model_len tokens, as a refusal prints it
    estimated_max_len        the longest length that fits, as a refusal prints it
    check                    what the row is meant for (public table)
    circular                 the row's model or shape was inferred from its own figures: no test
    arguments                the engine's own arguments that the log shows, ``("enforce-eager", "true")``
    arguments_shown          it shows every argument that is not the default
    """

    id: str = ""
    source_url: str = ""
    date: str | None = None
    engine: str
    engine_version: str | None = None
    release_hint: str | None = None
    model: str | None = None
    gpu: str | None = None
    gpu_count: int | None = None
    gpu_total_memory_gib: float | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    data_parallel: int | None = None
    weight_dtype_or_quant: str | None = None
    kv_cache_dtype: str | None = None
    block_size: int | None = None
    gpu_memory_utilization: float | None = None
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    weights_gib: float | None = None
    peak_activation_gib: float | None = None
    non_torch_gib: float | None = None
    cuda_graphs_gib: float | None = None
    kv_cache_memory_gib: float | None = None
    states_gib: float | None = None
    free_before_gib: float | None = None
    num_gpu_blocks: int | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    max_concurrency_tokens: int | None = None
    estimated_max_len: int | None = None
    kv_needed_gib: float | None = None
    bytes_per_token: float | None = None
    check: tuple[str, ...] = ()
    notes: str = ""
    raw: str = ""
    config: str | None = None
    circular: bool = False
    arguments: tuple[tuple[str, str], ...] = ()
    arguments_shown: bool = False

    def _check(self) -> None:
        """Raise UsageError for what no engine can have: a log is not to be believed in everything."""
        for name in WHOLE_FIELDS:
            value = getattr(self, name)
            least, most = _LIMITS.get(name, (0, 2**50))
            if value is not None and not least <= value <= most:
                raise UsageError(f"{name} is {value}, which is not possible ({least:,} to {most:,})")
        share = self.gpu_memory_utilization
        if share is not None and not 0 < share <= 1:
            raise UsageError(
                f"gpu_memory_utilization is {share:g}, which is not possible (above 0, at most 1)"
            )
        for name in ("gpu_total_memory_gib", "weights_gib", "kv_cache_memory_gib", "peak_activation_gib"):
            value = getattr(self, name)
            # A cache is negative where the weights did not fit; vLLM prints it so.
            least_gib = -1e5 if name == "kv_cache_memory_gib" else 0
            if value is not None and not least_gib <= value <= 1e6:
                raise UsageError(f"{name} is {value:g}, which is not possible")


# Least and most of whole fields that become sizes of something.
_LIMITS = {
    "tensor_parallel": (1, 4096),
    "pipeline_parallel": (1, 4096),
    "data_parallel": (1, 2**20),
    "gpu_count": (0, 2**20),
    "block_size": (1, 2**31),
    "max_model_len": (1, 2**40),
    "max_num_batched_tokens": (1, 2**31),
    "max_num_seqs": (1, 2**31),
    "max_concurrency_tokens": (1, 2**40),
}
_TEXT = (
    "id",
    "source_url",
    "date",
    "engine",
    "engine_version",
    "release_hint",
    "model",
    "gpu",
    "weight_dtype_or_quant",
    "kv_cache_dtype",
    "notes",
    "raw",
    "config",
)
# Fields that are whole numbers.
WHOLE_FIELDS = (
    "gpu_count",
    "tensor_parallel",
    "pipeline_parallel",
    "data_parallel",
    "block_size",
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_seqs",
    "num_gpu_blocks",
    "kv_cache_tokens",
    "max_concurrency_tokens",
    "estimated_max_len",
)


def read_observation(row: dict[str, Any], *, where: str) -> Observation:
    """Turn one row of a table into an ``Observation``; entries it does not know are left out.

    Raises UsageError for a row that is no object, has no engine, or holds a value of the wrong type. ``where`` names the
    row in messages.
    """
    if not isinstance(row, dict):
        raise UsageError(f"{where}: not a JSON object")
    values: dict[str, Any] = {}
    for name in Observation._fields:
        if row.get(name) is not None:
            values[name] = _value(name, row[name], where)
    if not values.get("engine"):
        raise UsageError(f"{where}: no 'engine'")
    try:
        return Observation(**values)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None


def _value(name: str, value: object, where: str) -> Any:
    if name in _TEXT:
        if isinstance(value, str):
            return value
    elif name == "check":
        if isinstance(value, list) and all(isinstance(word, str) for word in value):
            return tuple(value)
    elif name == "arguments":
        if isinstance(value, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in value):
            return tuple((str(key), str(text)) for key, text in value)
    elif name == "circular":
        if isinstance(value, bool):
            return value
    elif isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18:
        if name not in WHOLE_FIELDS:
            return float(value)
        if value == int(value):
            return int(value)
    raise UsageError(f"{where}: {name} is {value!r:.60}, which is not possible")


class Comparison(Record):
    """One figure of an observation beside what the engine's rules say.

    quantity   weights, activation, non-torch, CUDA graphs, cache memory, blocks, tokens, concurrency,
               bytes per token, needed, longest length
    check      how it was predicted: ``weights``; ``balance`` (from the other printed terms); ``tokens_from_kv_memory`` (from
               the printed cache memory); ``bytes_per_token``; ``end_to_end`` (from model, card and settings alone);
               ``term`` (one term of the memory, predicted)
    low, high  the stated interval, where the prediction has one
    reported   None where the log did not say
    reason     why there is no prediction, or what explains a gap
    """

    quantity: str
    check: str
    unit: str
    predicted: float | None = None
    low: float | None = None
    high: float | None = None
    reported: float | None = None
    reason: str = ""

    @property
    def difference(self) -> float | None:
        """``predicted - reported``."""
        if self.predicted is None or self.reported is None:
            return None
        return self.predicted - self.reported

    @property
    def relative_error(self) -> float | None:
        """``(predicted - reported) / reported``; None where the reported figure is 0."""
        if self.predicted is None or not self.reported:
            return None
        return (self.predicted - self.reported) / self.reported
