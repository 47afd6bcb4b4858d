"""llama.cpp's lines, 2023 to 2026: llama-server, llama-cli, llama-cpp-python (verbose).

Wordings: src/llama-model.cpp, llama-context.cpp, llama-kv-cache.cpp (read in llama-cpp-python 0.3.36) and, for the older
ones (``KV self size``, ``kv self size ... MB``), the public threads in tests/verify/data/logs.

* Several ``llama_kv_cache: size`` lines of one context are its full-attention and its sliding cache, be they equal: memory
  is their sum, tokens are those of the largest that holds a layer. Without such a line it is the sum of the devices'.
* ``4/2 seqs`` is 4 sequences in 2 streams; the cells printed are of one stream (llama-kv-cache.cpp; checked by running
  SmolLM2-135M with 4 streams: 1,024 cells and 90 MiB, four times the 22.5 MiB of one stream).
* Weights are all tensors once, those in the host's memory included: ``file size``, else the sum of the buffers. Buffers in
  which tensors are laid out anew (``CPU_REPACK``) hold what the mapped file holds already. A tied table lies on the host and
  on a GPU, and a mapped buffer spans what lies between its tensors: where ``file size`` is missing, the sum may be too large.
* Compute buffers are per device: the largest counts.
* A drafter's context (``creating MTP draft context``, ``loading draft model``) follows the target's: it is no start of its own.
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

# RPC[10.0.0.2:50052] is another machine's device.
_DEVICE = r"([\w().:\[\]-]{1,60})"
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
    # llm_load_print_meta: model size = ... (to 2025) and print_info: file size = ...: every tensor of the file once.
    Pattern("e size ", rf"(?:print_info: file|llm_load_print_meta: model) size +=\s+{SIZE}", "file_gib"),
    Pattern("compute buffer total size", rf"compute buffer total size = +{SIZE}", "compute_gib"),
    Pattern("VRAM used:", rf"VRAM used: +{SIZE}", "vram_gib"),
    Pattern("n_ctx ", rf"{_CONTEXT}n_ctx += +{WHOLE}{END}", "max_model_len"),
    Pattern("n_ctx_seq ", rf"\bn_ctx_seq += +{WHOLE}{END}", "whole_per_sequence"),
    Pattern("n_seq_max", rf"\bn_seq_max += +{WHOLE}{END}", "max_num_seqs"),
    Pattern("n_slots", rf"n_slots = {WHOLE}{END}", "whole_slots"),
    Pattern("n_ubatch", rf"\bn_ubatch += +{WHOLE}{END}", "whole_ubatch"),
    Pattern("n_batch", rf"\bn_batch += +{WHOLE}{END}", "whole_batch"),
    # The server's own arguments, where the log shows them and the context's lines are cut out.
    Pattern("--ubatch-size", rf"--ubatch-size {WHOLE}{END}", "whole_ubatch"),
    Pattern("flash_attn ", r"\bflash_attn += +(\w{1,12})\s", "flash"),
    Pattern("Flash Attention was auto", r"Flash Attention was auto, set to (\w{1,12})\s", "flash"),
    Pattern("using full-size SWA cache", r"(using full-size SWA cache)", "swa_full"),
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
# Words of older builds and the last day that had them: changed in ggml-org/llama.cpp #13194 (2025-05-20), #11174 (2025-01-12)
# and with GGUF, #2398 (2023-08-21). The sources that ollama/ollama carried agree: 0.5.12 (of 2025-01-08) and 0.11.4 (of
# 2025-05-12) have them, 0.5.13 and 0.11.5 have not.
_WORDINGS = (
    ("llama_model_load_internal: ", "2023-08-20"),
    ("llm_load_", "2025-01-11"),
    ("llama_new_context_with_model: ", "2025-01-11"),
    ("KV self size", "2025-05-19"),
)
_DRAFTS = ("creating MTP draft context", "loading draft model")


def on_host(device: str) -> bool:
    """``CPU``, ``CPU_Mapped``, ``CUDA_Host``, ``CANN_Host``: not a device's own memory."""
    return device.startswith(("CPU", "BLAS")) or device.endswith("_Host")


class LlamaCppReader(Reader):
    """Reads llama.cpp. One observation per context: a draft model's or a second context's is one of its own."""

    engine = "llama.cpp"
    patterns: tuple[Pattern, ...] = tuple(_TABLE)
    openings = ("loaded meta data with",)
    capacity: tuple[str, ...] = ("pool", "kv_gib", "kv on")
    identity: tuple[str, ...] = ("path", "file_type", "whole_offloaded")
    leading = ("max_model_len",)
    carried: tuple[str, ...] = (
        "weights on",
        "file_gib",
        "worded",
        "model",
        "path",
        "file_type",
        "build",
        "gpu",
        "whole_offloaded",
        "whole_layers",
    )
    evidence: tuple[str, ...] = (
        "pool",
        "kv_gib",
        "kv on",
        "states_gib",
        "weights on",
        "compute on",
        "vram_gib",
    )

    @classmethod
    def words(cls) -> tuple[str, ...]:
        """The table's, the word of the cache lines, and those of a drafter."""
        return (*super().words(), " cells,", *_DRAFTS, *(word for word, _ in _WORDINGS))

    def turn(self, text: str, rank: str) -> None:
        """Set a drafter's lines apart; the age of a wording tells that of the build."""
        super().turn(text, rank)
        for word, day in _WORDINGS:
            if word in text:
                self.current().add("worded", day, "")
        if any(word in text for word in _DRAFTS):
            target = self._target()
            self._new(target.lane).drafts_for = target

    def _target(self) -> Start:
        """The start whose server speaks: not its drafter's."""
        start = self.current()
        return start.drafts_for or start

    def observations(self) -> list[tuple[Start, Observation]]:
        """Those of targets; what a drafter takes beside one is a note."""
        for start in self.starts:
            if start.drafts_for is not None and start.has(*self.evidence):
                start.drafts_for.note(_draft_words(start))
        return [(start, found) for start, found in super().observations() if start.drafts_for is None]

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
                # A full and a sliding cache of one device may be equally large.
                start.add(kept, size_gib(str(values[name])), device, each=name == "device_kv")
        for name, value in values.items():
            if name == "whole_slots":
                # The server's slots are the target's, though they are said after the drafter was loaded.
                self._target().add(name, value, rank)
            elif not name.startswith("device_"):
                start.add(name, value, rank)

    def look(self, text: str, rank: str) -> None:
        """The caches of one context."""
        if " cells," not in text:
            return
        for match in _POOL.finditer(text):
            size, cells, layers, sequences, streams, keys, values = match.groups()
            tokens = int(cells.replace(",", "")) * int((streams or "1").replace(",", ""))
            kinds = _kinds(keys, values) or ""
            start = self.current()
            start.add("pool", f"{size_gib(size)!r} {tokens} {layers} {kinds}", rank, each=True)
            if sequences is not None:
                start.add("whole_sequences", int(sequences.replace(",", "")), rank)
            if streams == "1" and sequences != "1":
                start.add("one stream", "true", rank)

    def _open(self, lane: str, rank: str) -> None:
        super()._open(lane, rank)
        # A model that was looked at and loaded again (only its vocabulary the first time) is printed twice.
        self.current(lane).forget(("weights on", "compute on"))

    def observe(self, start: Start) -> Observation:
        """Totals over the devices, as the engine prints them."""
        memory, tokens, kinds = _cache(start)
        on_gpus = [device for device in start.ranks("weights on") if not on_host(device)]
        _remarks(start, on_gpus)
        self._settle(start, kinds)
        build = start.text("build")
        version = f"b{build}" if build else _worded(start)
        return Observation(
            engine=self.engine,
            engine_version=version,
            date=start.date,
            model=_model(start),
            gpu=start.text("gpu"),
            gpu_count=len(on_gpus) or None,
            weight_dtype_or_quant=mix_of(start),
            kv_cache_dtype=kinds,
            max_model_len=start.count("max_model_len") or _context(start),
            max_num_seqs=start.count("max_num_seqs")
            or start.count("whole_slots")
            or start.count("whole_sequences"),
            weights_gib=_weights(start, on_gpus),
            peak_activation_gib=_compute(start, on_gpus),
            kv_cache_memory_gib=memory,
            kv_cache_tokens=tokens,
            arguments=start.arguments,
        )

    def _settle(self, start: Start, kinds: str | None) -> None:
        """Hand over what the log says of the engine's own arguments."""
        for name, argument in (("whole_ubatch", "ubatch-size"), ("whole_batch", "batch-size")):
            if start.has(name):
                start.set_argument(argument, str(start.count(name)))
        flash = flash_of(start)
        if flash is None and (kinds or "").rpartition(" ")[2].startswith(("q", "iq")):
            # Values in blocks are read by flash attention only.
            flash = "on"
        unified = _switch(start.text("unified")) or start.text("one stream")
        for argument, value in (("flash-attn", flash), ("kv-unified", unified)):
            if value is not None:
                start.set_argument(argument, value)
        if start.has("swa_full"):
            start.set_argument("swa-full", "true")


def _worded(start: Start) -> str | None:
    """The last day on which all wordings were in use, where the log is not of an earlier one."""
    day = min((str(day) for day in start.values("worded", "")), default=None)
    # A fork (ik_llama.cpp) keeps the old words and has rules of its own for latents.
    if day is None or start.has("kv_latent") or (start.date is not None and start.date <= day):
        return None
    start.note(f"its wording is llama.cpp's up to {day}")
    return day


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


def _switch(said: str | None) -> str | None:
    return None if said is None else _SWITCHES.get(said.lower(), said.lower())


def flash_of(start: Start) -> str | None:
    """``on``, ``off`` or ``auto``; None where the log does not say whether flash attention is used."""
    return _switch(start.text("flash"))


def _is_device(name: str) -> bool:
    """``CUDA0``, ``CPU_Mapped``, ``Metal``, ``MTL0_Mapped``: not a word of a sentence."""
    return name[:1].isupper() and name not in ("KV", "RS", "LoRA")


def _pools(start: Start) -> list[list[str]]:
    """``[GiB, cells, layers, types]`` of every cache line."""
    return [str(value).split(" ", 3) for rank in start.ranks("pool") for value in start.values("pool", rank)]


def _cache(start: Start) -> tuple[float | None, int | None, str | None]:
    """Memory, tokens and format of the key/value caches of one context."""
    pools = _pools(start)
    if not pools:
        memory = start.least("kv_gib")
        if memory is None and start.has("kv on"):
            memory = sum(sum(sizes) for sizes in _by_device(start, "kv on").values())
        # The whole context is one pool of n_ctx cells in these versions; the line does not repeat it.
        tokens = start.count("max_model_len") if memory is not None else None
        return memory, tokens, start.text("kv_latent") or _kinds(start.text("kv_k"), start.text("kv_v"))
    tokens = max((int(cells) for _, cells, layers, _ in pools if layers != "0"), default=None)
    return sum(float(pool[0]) for pool in pools), tokens, pools[-1][3] or None


def _context(start: Start) -> int | None:
    """``n_ctx`` where only caches are printed: the cells of the longest, in all its streams; padding is in it."""
    return max((int(cells) for _, cells, _, _ in _pools(start)), default=None)


def _kinds(keys: str | None, values: str | None) -> str | None:
    if not keys or keys == values:
        return keys or None
    return f"K {keys}, V {values}"


def _by_device(start: Start, name: str) -> dict[str, list[float]]:
    return {device: [float(size) for size in start.values(name, device)] for device in start.ranks(name)}


# Notes on what the weights are where no file size was printed.
ON_GPUS = "the weights are those on GPUs: the log shows no buffer of the host, where the table lies"
SUMMED = "the weights are the sum of the devices' buffers, which hold a tied table twice"


def _weights(start: Start, on_gpus: list[str]) -> float | None:
    """All tensors once: as the file's size says, else the sum over the devices; see the module."""
    whole = start.least("file_gib")
    if whole is not None:
        return whole
    sizes = {device: found[-1] for device, found in _by_device(start, "weights on").items()}
    mapped = any(device.endswith("_Mapped") for device in sizes)
    kept = [size for device, size in sizes.items() if not (mapped and device == "CPU_REPACK")]
    if len(on_gpus) == len(sizes) and sizes:
        start.note(ON_GPUS)
    elif on_gpus:
        start.note(SUMMED)
    return sum(kept) if kept else None


def _compute(start: Start, on_gpus: list[str]) -> float | None:
    """The largest compute buffer of a GPU (of the host where all is there)."""
    found = {device: float(start.values("compute on", device)[-1]) for device in start.ranks("compute on")}
    gpus = [size for device, size in found.items() if not on_host(device)]
    if gpus or on_gpus:
        return max(gpus, default=None)
    return max(found.values(), default=start.greatest("compute_gib"))


# 8B, 0.6b, 270M, 8x7B: the word that tells one size of a family from another.
_SIZE_WORD = re.compile(r"(?<![a-z0-9.])(?:\d{1,3}x)?\d{1,4}(?:\.\d{1,2})?[bm](?![a-z0-9])", re.IGNORECASE)


def _model(start: Start) -> str | None:
    """The name in the file; the file's own where the name says no size (``Llama Hf``) and that does."""
    name = named((start.text("model") or "").strip())
    name = None if name == "n/a" else name
    path = start.text("path")
    file = path.replace("\\", "/").rsplit("/", 1)[-1] if path else None
    if name and not (file and _SIZE_WORD.search(file.replace("_", " ")) and not _SIZE_WORD.search(name)):
        return name
    return file


def _draft_words(start: Start) -> str:
    memory, _, _ = _cache(start)
    parts = [(memory, "cache"), (_compute(start, []), "compute buffer")]
    said = " and ".join(f"{size:.4g} GiB of {what}" for size, what in parts if size)
    return f"a drafter beside it is left out: {said or 'its figures'}"


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
    caches = {
        device: sum(sizes) for device, sizes in _by_device(start, "kv on").items() if not on_host(device)
    }
    if len(caches) > 1:
        parts = ", ".join(f"{device} {size:.2f}" for device, size in list(caches.items())[:16])
        start.note(f"the cache is summed over {len(caches)} GPUs [GiB]: {parts}")
    per_sequence = start.count("whole_per_sequence")
    if per_sequence is not None and per_sequence != start.count("max_model_len"):
        start.note(f"one conversation may have {per_sequence:,} tokens (n_ctx_seq)")
