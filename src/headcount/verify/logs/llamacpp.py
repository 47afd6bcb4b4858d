"""llama.cpp's lines, 2023 to 2026: llama-server, llama-cli, llama-cpp-python (verbose).

Wordings: src/llama-model.cpp, llama-context.cpp, llama-kv-cache.cpp (read in llama-cpp-python 0.3.36) and, for the older
ones (``KV self size``, ``kv self size ... MB``), the public threads in tests/verify/data/logs.

* Several ``llama_kv_cache: size`` lines of one context are its full-attention and its sliding cache: memory is their sum,
  tokens are those of the largest that holds a layer.
* ``4/2 seqs`` is 4 sequences in 2 streams; the cells printed are of one stream (llama-kv-cache.cpp; checked by running
  SmolLM2-135M with 4 streams: 1,024 cells and 90 MiB, four times the 22.5 MiB of one stream).
* Memory of weights and cache is summed over GPUs, as the totals of the engine are; host memory is left out of the weights
  unless nothing is on a GPU. Compute buffers are per device: the largest counts.
"""

from __future__ import annotations

import re

from headcount.engines.llamacpp.mixes import MIXES
from headcount.verify.logs.dumps import named
from headcount.verify.logs.patterns import END, SIZE, WHOLE, Pattern, size_gib
from headcount.verify.logs.reader import Reader
from headcount.verify.observation import Observation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from headcount.verify.logs.patterns import Figure
    from headcount.verify.logs.start import Start

_DEVICE = r"([\w().\[\]-]{1,40})"
# llama_kv_cache_unified (2025) and llama_kv_cache; without a name it is an excerpt's.
_POOL = re.compile(
    rf"(?:\bllama_kv_cache(?:_unified)?: |^|[;\n] ?)size = +{SIZE} "
    rf"\( *{WHOLE} cells, +{WHOLE} layers(?:, +{WHOLE}(?:/ *{WHOLE})? seqs)?\)"
    r"(?:, K \((\w{1,12})\): +[\d.]{1,20} MiB, V \((\w{1,12})\))?"
)
_CONTEXT = r"(?:llama_context: |llama_new_context_with_model: |llama_model_load_internal: |^|[;\n] ?)"

_TABLE = (
    Pattern(
        "self size",
        rf"KV self size += +{SIZE}(?:, K \((\w{{1,12}})\)[^\n]{{0,40}}?V \((\w{{1,12}})\))?",
        "kv_gib",
        "kv_k",
        "kv_v",
    ),
    Pattern("c^KV", rf"KV self size += +{SIZE}, c\^KV \((\w{{1,12}})\)", "", "kv_latent"),
    Pattern("self size", rf"\bkv self size += +{SIZE}", "kv_gib"),
    Pattern("llama_memory_recurrent: size", rf"llama_memory_recurrent: size = +{SIZE}", "states_gib"),
    Pattern(" KV buffer size", rf"{_DEVICE} KV buffer size = +{SIZE}", "device", "device_kv"),
    Pattern(
        "buffer size",
        rf"(?:load_tensors:|^|[;\n]) *{_DEVICE} (?:model )?buffer size = +{SIZE}",
        "device",
        "device_weights",
    ),
    Pattern(" compute buffer size", rf"{_DEVICE} compute buffer size = +{SIZE}", "device", "device_compute"),
    Pattern("compute buffer total size", rf"compute buffer total size = +{SIZE}", "compute_gib"),
    Pattern("VRAM used:", rf"VRAM used: +{SIZE}", "vram_gib"),
    Pattern("n_ctx ", rf"{_CONTEXT}n_ctx += +{WHOLE}{END}", "max_model_len"),
    Pattern("n_ctx_seq ", rf"\bn_ctx_seq += +{WHOLE}{END}", "whole_per_sequence"),
    Pattern("n_seq_max", rf"\bn_seq_max += +{WHOLE}{END}", "max_num_seqs"),
    Pattern("n_slots", rf"n_slots = {WHOLE}{END}", "whole_slots"),
    Pattern("n_ubatch", rf"\bn_ubatch += +{WHOLE}{END}", "whole_ubatch"),
    Pattern("n_batch", rf"\bn_batch += +{WHOLE}{END}", "whole_batch"),
    Pattern("flash_attn ", r"\bflash_attn += +(\w{1,12})\s", "flash"),
    Pattern("kv_unified ", r"\bkv_unified += +(\w{1,12})\s", "unified"),
    Pattern("file type", r"print_info: file type += +([\w .()-]{1,60})\n", "file_type"),
    Pattern("model ftype", r"model ftype += +([\w .()-]{1,60})\n", "file_type"),
    # llama_model_load_internal: ftype      = 2 (mostly Q4_0), in 2023
    Pattern(" ftype ", r"model_load_internal: ftype += +\d{1,4} \(([\w .-]{1,60})\)", "file_type"),
    Pattern("general.name", r"general\.name +(?:str +)?= +([^\n]{1,200})\n", "model"),
    Pattern("loaded meta data with", r"tensors from ([^\n]{1,500}?) \(version", "path"),
    Pattern("build", r"\bbuild(?:_info)?(?:: | = )b?(\d{1,6})[ -]", "build"),
    Pattern("Device ", r"Device \d{1,2}: ([^,\n]{1,80}), compute capability", "gpu"),
    Pattern("using device", r"using device (\w{1,20}) \(([^()\n]{1,80})\)", "used_device", "gpu"),
    Pattern("layers to GPU", rf"offloaded {WHOLE}/{WHOLE} layers to GPU", "whole_offloaded", "whole_layers"),
)
_HOST = ("CPU", "CUDA_Host", "ROCm_Host", "Vulkan_Host", "SYCL_Host", "BLAS")


class LlamaCppReader(Reader):
    """Reads llama.cpp. One observation per context: a draft model's or a second context's is one of its own."""

    engine = "llama.cpp"
    patterns: tuple[Pattern, ...] = tuple(_TABLE)
    openings = ("loaded meta data with",)
    capacity = ("pool", "kv_gib")
    identity: tuple[str, ...] = ("path", "file_type", "whole_offloaded")
    leading = ("max_model_len",)
    carried: tuple[str, ...] = (
        "weights on",
        "model",
        "path",
        "file_type",
        "build",
        "gpu",
        "whole_offloaded",
        "whole_layers",
    )
    evidence: tuple[str, ...] = ("pool", "kv_gib", "states_gib", "weights on", "compute on", "vram_gib")

    @classmethod
    def words(cls) -> tuple[str, ...]:
        """The table's, and the word of the cache lines."""
        return (*super().words(), " cells,")

    def take(self, start: Start, figures: Sequence[tuple[str, Figure]], rank: str) -> None:
        """Join a device and its buffer, which stand in one line."""
        values = dict(figures)
        device = str(values.pop("device", ""))
        for name, kept in (
            ("device_kv", "kv on"),
            ("device_weights", "weights on"),
            ("device_compute", "compute on"),
        ):
            if name in values and _is_device(device):
                start.add(kept, size_gib(str(values[name])), device)
        for name, value in values.items():
            if not name.startswith("device_"):
                start.add(name, value, rank)

    def look(self, text: str, rank: str) -> None:
        """The caches of one context."""
        if " cells," not in text:
            return
        for match in _POOL.finditer(text):
            size, cells, layers, _, streams, keys, values = match.groups()
            tokens = int(cells.replace(",", "")) * int((streams or "1").replace(",", ""))
            kinds = _kinds(keys, values) or ""
            self.current().add("pool", f"{size_gib(size)!r} {tokens} {layers} {kinds}", rank)

    def _open(self, lane: str, rank: str) -> None:
        super()._open(lane, rank)
        # A model that was looked at and loaded again (only its vocabulary the first time) is printed twice.
        self.current(lane).forget(("weights on", "compute on"))

    def observe(self, start: Start) -> Observation:
        """Totals over the GPUs, as the engine prints them."""
        memory, tokens, kinds = _cache(start)
        on_gpus = [device for device in start.ranks("weights on") if not device.startswith(_HOST)]
        weights = [
            float(start.values("weights on", device)[-1]) for device in on_gpus or start.ranks("weights on")
        ]
        _remarks(start, on_gpus)
        for name, argument in (("whole_ubatch", "ubatch-size"), ("whole_batch", "batch-size")):
            if start.has(name):
                start.set_argument(argument, str(start.count(name)))
        for name, argument in (("flash", "flash-attn"), ("unified", "kv-unified")):
            if start.text(name):
                said = str(start.text(name)).lower()
                start.set_argument(argument, _SWITCHES.get(said, said))
        build = start.text("build")
        return Observation(
            engine=self.engine,
            engine_version=f"b{build}" if build else None,
            date=start.date,
            model=_model(start),
            gpu=start.text("gpu"),
            gpu_count=len(on_gpus) or None,
            weight_dtype_or_quant=mix_of(start),
            kv_cache_dtype=kinds,
            max_model_len=start.count("max_model_len"),
            max_num_seqs=start.count("max_num_seqs") or start.count("whole_slots"),
            weights_gib=sum(weights) if weights else None,
            peak_activation_gib=_compute(start, on_gpus),
            kv_cache_memory_gib=memory,
            kv_cache_tokens=tokens,
            arguments=start.arguments,
        )


_SIZES = {"small": "_s", "medium": "_m", "large": "_l"}


def mix_of(start: Start) -> str | None:
    """``Q4_K - Medium`` -> ``q4_k_m``: the mix by the name that weights are asked for with; an unknown one as printed.

    llama.cpp prints ``mostly`` or ``all`` before it (to 2025) and ``(guessed)`` where the file does not say its type.
    """
    printed = named((start.text("file_type") or "").strip())
    if printed is None:
        return None
    bare = printed.replace("(guessed)", " ").strip().removeprefix("mostly ").removeprefix("all ").strip()
    if "(guessed)" in printed:
        start.note(f"the file does not say its type: llama.cpp guessed {bare} from its tensors")
    base, _, size = bare.lower().partition(" - ")
    base = base.replace(" ", "_")
    for name in (base + _SIZES.get(size, ""), base):
        # A size that is no part of the name: "Q2_K - Medium" is q2_k, "Q2_K - Small" is another mix.
        if name in MIXES and (name != base or size in ("", "medium")):
            return name
    return printed


_SWITCHES = {"enabled": "on", "disabled": "off", "1": "on", "0": "off"}


def _is_device(name: str) -> bool:
    """``CUDA0``, ``CPU_Mapped``, ``Metal``, ``MTL0_Mapped``: not a word of a sentence."""
    return name[:1].isupper() and name not in ("KV", "RS", "LoRA")


def _cache(start: Start) -> tuple[float | None, int | None, str | None]:
    """Memory, tokens and format of the key/value caches of one context."""
    pools = [str(value).split(" ", 3) for rank in start.ranks("pool") for value in start.values("pool", rank)]
    if not pools:
        memory = start.least("kv_gib")
        # The whole context is one pool of n_ctx cells in these versions; the line does not repeat it.
        tokens = start.count("max_model_len") if memory is not None else None
        return memory, tokens, start.text("kv_latent") or _kinds(start.text("kv_k"), start.text("kv_v"))
    tokens = max((int(cells) for _, cells, layers, _ in pools if layers != "0"), default=None)
    return sum(float(pool[0]) for pool in pools), tokens, pools[-1][3] or None


def _kinds(keys: str | None, values: str | None) -> str | None:
    if not keys or keys == values:
        return keys or None
    return f"K {keys}, V {values}"


def _compute(start: Start, on_gpus: list[str]) -> float | None:
    """The largest compute buffer of a GPU (of the host where all is there)."""
    found = {device: float(start.values("compute on", device)[-1]) for device in start.ranks("compute on")}
    gpus = [size for device, size in found.items() if not device.startswith(_HOST)]
    if gpus or on_gpus:
        return max(gpus, default=None)
    return max(found.values(), default=start.greatest("compute_gib"))


def _model(start: Start) -> str | None:
    name = named((start.text("model") or "").strip())
    if name and name != "n/a":
        return name
    path = start.text("path")
    return path.replace("\\", "/").rsplit("/", 1)[-1] if path else None


def _remarks(start: Start, on_gpus: list[str]) -> None:
    if start.has("states_gib"):
        start.note(f"recurrent states take {start.greatest('states_gib') or 0:.4g} GiB beside the cache")
    offloaded, layers = start.count("whole_offloaded"), start.count("whole_layers")
    if offloaded is not None and layers is not None and offloaded < layers:
        start.note(f"{offloaded} of {layers} layers are on GPUs, the others are computed on the host")
    if len(on_gpus) > 1:
        parts = ", ".join(
            f"{device} {float(start.values('weights on', device)[-1]):.2f}" for device in on_gpus[:16]
        )
        start.note(f"weights are summed over {len(on_gpus)} GPUs [GiB]: {parts}")
    caches = [device for device in start.ranks("kv on") if not device.startswith(_HOST)]
    if len(caches) > 1:
        parts = ", ".join(
            f"{device} {float(start.values('kv on', device)[-1]):.2f}" for device in caches[:16]
        )
        start.note(f"the cache is summed over {len(caches)} GPUs [GiB]: {parts}")
    per_sequence = start.count("whole_per_sequence")
    if per_sequence is not None and per_sequence != start.count("max_model_len"):
        start.note(f"one conversation may have {per_sequence:,} tokens (n_ctx_seq)")
