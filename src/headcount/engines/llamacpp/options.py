"""What llama-server is asked for: its own arguments, read and checked into one record.

The names are llama-server's long options. ``--kv`` sets both cache types; ``cache-type-k`` and ``cache-type-v`` override
it. ``ctx-size`` is not among them: it is the planned context times the slots.
"""

from __future__ import annotations

from headcount.engines.arguments import Argument, read_arguments
from headcount.errors import UsageError
from headcount.record import Record
from headcount.spec.kv_format import KV_FORMATS, kv_format
from headcount.units import MIB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.engines.base import Settings
    from headcount.engines.llamacpp.builds import Build
    from headcount.spec.kv_format import KvFormat

# llama.cpp's name of a cache type -> ours.
CACHE_TYPES = {
    "f32": "fp32",
    "f16": "fp16",
    "bf16": "bf16",
    "q8_0": "q8_0",
    "q4_0": "q4_0",
    "q4_1": "q4_1",
    "q5_0": "q5_0",
    "q5_1": "q5_1",
    "iq4_nl": "iq4_nl",
}
_TYPES = tuple(CACHE_TYPES)
ARGUMENTS = (
    Argument(name="parallel", kind="count", help="at most this many slots (-np)"),
    Argument(name="kv-unified", kind="flag", default=False, help="one stream of cells for all slots"),
    Argument(name="ubatch-size", kind="count", default=512, help="tokens of a micro-batch (-ub)"),
    Argument(name="batch-size", kind="count", default=2048, help="tokens of a batch (-b)"),
    Argument(name="cache-type-k", kind="choice", choices=_TYPES, help="type of cached keys (-ctk)"),
    Argument(name="cache-type-v", kind="choice", choices=_TYPES, help="type of cached values (-ctv)"),
    Argument(name="flash-attn", kind="choice", choices=("auto", "on", "off"), default="auto", help="-fa"),
    Argument(name="swa-full", kind="flag", default=False, help="sliding layers keep every cell"),
    Argument(
        name="n-gpu-layers", kind="count", least=0, help="layers on the GPUs, counted from the end (-ngl)"
    ),
    Argument(name="no-kv-offload", kind="flag", default=False, help="caches stay in the host's memory"),
    Argument(name="fit-target", kind="count", least=0, default=1024, help="MiB that stay free on each GPU"),
)


class Options(Record):
    """A checked request; ``slots`` and ``gpu_layers`` None: as many as fit, all layers."""

    key: KvFormat
    value: KvFormat
    flash: bool = True
    unified: bool = False
    ubatch: int = 512
    batch: int = 2048
    swa_full: bool = False
    slots: int | None = None
    gpu_layers: int | None = None
    kv_offload: bool = True
    fit_target: int = 1024 * MIB

    def _check(self) -> None:
        if self.value.block > 1 and not self.flash:
            raise UsageError(
                f"values in {self.value.name} need flash attention (llama.cpp refuses them without): set flash-attn=on "
                "or cache-type-v=f16"
            )


def default_options(*, kv: str = "fp16", **changes: object) -> Options:
    """The defaults with one KV format for keys and values, then ``changes``."""
    both = kv_format(kv)
    return Options(key=both, value=both).replace(**changes)


def read_options(settings: Settings, rules: Build, *, engine: str = "llama.cpp") -> Options:
    """Read ``settings``; ``max_num_seqs`` and ``max_num_batched_tokens`` stand for slots and micro-batch.

    Raises UsageError or UnknownNameError for what llama-server would not take.
    """
    given = read_arguments(settings.arguments, ARGUMENTS, engine=engine)
    both = cache_type(settings.kv)
    flash = given["flash-attn"]
    slots = [count for count in (given["parallel"], settings.max_num_seqs) if count is not None]
    ubatch = settings.max_num_batched_tokens or given["ubatch-size"]
    layers = given["n-gpu-layers"]
    target, batch = given["fit-target"], given["batch-size"]
    assert isinstance(ubatch, int) and isinstance(batch, int) and isinstance(target, int)
    return Options(
        key=cache_type(str(given["cache-type-k"])) if given["cache-type-k"] else both,
        value=cache_type(str(given["cache-type-v"])) if given["cache-type-v"] else both,
        flash=rules.flash if flash == "auto" else flash == "on",
        unified=bool(given["kv-unified"]) or not rules.streams,
        ubatch=min(ubatch, batch),
        batch=batch,
        swa_full=bool(given["swa-full"]),
        slots=min((int(count) for count in slots), default=None),
        gpu_layers=None if layers is None else int(layers),
        kv_offload=not given["no-kv-offload"],
        fit_target=target * MIB,
    )


def cache_type(name: str) -> KvFormat:
    """The format llama.cpp stores under ``name``, or under our name of it; ``auto`` is f16."""
    key = name.strip().lower()
    if key == "auto":
        return KV_FORMATS["fp16"]
    found = CACHE_TYPES.get(key) or kv_format(key).name
    if found not in CACHE_TYPES.values():
        raise UsageError(f"llama.cpp has no KV cache type {name!r}; allowed: {', '.join(CACHE_TYPES)}")
    return KV_FORMATS[found]


def type_name(kv: KvFormat) -> str:
    """llama.cpp's name of a format."""
    return next(name for name, ours in CACHE_TYPES.items() if ours == kv.name)
