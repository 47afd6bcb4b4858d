"""Ollama's server log: its own key=value lines around those of its llama.cpp runner.

Wordings: ollama/llm/memory.go and server.go (``offload``, up to 2025: an estimate before loading), ollama/ml/device.go
(``model weights``, ``kv cache``, ``compute graph`` per device, from 2025), and the public threads in tests/verify/data/logs.
Sizes are KiB, MiB, GiB (format.HumanBytes2). What the runner allocated outranks what the server estimated. Newer models run
on an engine of Ollama's own (runner/ollamarunner), whose backend (ml/backend/ggml/ggml.go) prints in place of llama.cpp.
"""

from __future__ import annotations

import re

from headcount.verify.logs.dumps import named, whole
from headcount.verify.logs.llamacpp import LlamaCppReader, flash_of, on_host
from headcount.verify.logs.patterns import END, SIZE, WHOLE, Pattern, size_gib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from headcount.verify.logs.patterns import Figure
    from headcount.verify.logs.start import Start
    from headcount.verify.observation import Observation

_TABLE = (
    Pattern("memory.required.kv=", rf'memory\.required\.kv="{SIZE}"', "estimated_kv_gib"),
    Pattern("memory.weights.total=", rf'memory\.weights\.total="{SIZE}"', "estimated_weights_gib"),
    Pattern("projector.weights=", rf'projector\.weights="{SIZE}"', "estimated_projector_gib"),
    Pattern("projector.graph=", rf'projector\.graph="{SIZE}"', "projector_graph_gib"),
    Pattern("memory.available=", r'memory\.available="\[([^\]\n]{1,400})\]"', "available"),
    Pattern(
        'msg="model weights"',
        rf'msg="model weights" (?:device|buffer)=(\w{{1,20}}) size="{SIZE}"',
        "device",
        "ollama_weights",
    ),
    Pattern('msg="kv cache"', rf'msg="kv cache" device=(\w{{1,20}}) size="{SIZE}"', "device", "ollama_kv"),
    Pattern(
        'msg="compute graph"',
        rf'msg="compute graph" (?:device|backend)=(\w{{1,20}}) [^\n]{{0,60}}?size="{SIZE}"',
        "device",
        "ollama_compute",
    ),
    Pattern(
        "inference compute", rf'msg="inference compute"[^\n]{{0,400}}? total="{SIZE}"', "gpu_total_memory_gib"
    ),
    Pattern(
        "inference compute",
        r'msg="inference compute"[^\n]{0,300}? (?:name|description)="([^"\n]{1,80})"',
        "ollama_gpu",
    ),
    # msg="" architecture=gemma3 file_type=Q4_K_M name="Gemma 3" description="" num_tensors=883 (ml/backend/ggml/ggml.go)
    Pattern("file_type=", r" file_type=(\w{1,20}) name=", "file_type"),
    Pattern("file_type=", r' file_type=\w{1,20} name=("[^"\n]{1,200}"|[^"\s]{1,200}) ', "ollama_model"),
    Pattern("--ctx-size", rf"--ctx-size {WHOLE}{END}", "asked_context"),
    Pattern("--parallel", rf"--parallel {WHOLE}{END}", "asked_parallel"),
    Pattern("--kv-cache-type", r"--kv-cache-type (\w{1,12})[\s\"]", "asked_kv"),
    Pattern(" KvSize:", rf"\bKvSize:{WHOLE}{END}", "asked_context"),
    Pattern("{Operation:", rf"\bParallel:{WHOLE}{END}", "asked_parallel"),
    Pattern("{Commit:", rf"\bParallel:{WHOLE}{END}", "asked_parallel"),
    Pattern(" KvCacheType:", r"\bKvCacheType:(\w{1,12}) ", "asked_kv"),
    Pattern("(version ", r"Listening on [^\n]{1,60} \(version ([\w.+-]{1,40})\)", "ollama_version"),
)
_LOADS = ("msg=offload", 'msg="offload to', 'msg="starting runner"', 'msg="loading model"')
_STARTED = ("starting llama server", 'msg="starting runner"')
_REQUEST = "msg=load request="
_OWN_ENGINE = ("--ollama-engine", "starting ollama engine")
# A runner's command (up to 0.24 the bare flag, from 0.30 on with its value) and a load request.
_BATCH = re.compile(r"(?: --batch-size |\bBatchSize:)(\d{1,9})\b")
_FLASH_SAID = re.compile(r"(?: --flash-attn (?=o[nf]|auto)|\bFlashAttention:)(\w{1,12})\b")
_SIZES = ("ollama weights on", "ollama kv on", "ollama compute on")
# What a bare flag, a load request and the runner call it.
_FLASH = {
    "true": "true",
    "enabled": "true",
    "on": "true",
    "false": "false",
    "disabled": "false",
    "off": "false",
}


class OllamaReader(LlamaCppReader):
    """Reads Ollama, llama.cpp's lines included. ``own`` tells whether a line of Ollama's own was seen."""

    engine = "ollama"
    patterns = (*LlamaCppReader.patterns, *_TABLE)
    capacity = ("pool", "kv_gib", "kv on")
    identity = ("asked_context", "available", "ollama_version", "ollama_gpu")
    evidence = (
        *LlamaCppReader.evidence,
        "estimated_kv_gib",
        "estimated_weights_gib",
        "ollama weights on",
        "ollama kv on",
    )
    carried = (*LlamaCppReader.carried, "gpu_total_memory_gib", "ollama_gpu", "ollama_version")

    def __init__(self) -> None:
        super().__init__()
        self.own = False

    @classmethod
    def words(cls) -> tuple[str, ...]:
        """The table's, and those that tell one load from the next."""
        return (*super().words(), *_LOADS, *_STARTED, *_OWN_ENGINE, _REQUEST)

    def take(self, start: Start, figures: Sequence[tuple[str, Figure]], rank: str) -> None:
        """Ollama's device lines as llama.cpp's; the same device again replaces what it said."""
        values = dict(figures)
        device = str(values.get("device", ""))
        # What was asked for may stand in llama-server's own arguments.
        self.own = self.own or any(name.startswith(("ollama_", "estimated_")) for name in values)
        for name, kept in (
            ("ollama_weights", "ollama weights on"),
            ("ollama_kv", "ollama kv on"),
            ("ollama_compute", "ollama compute on"),
        ):
            if name in values:
                if start.has("laid out anew"):
                    # Layouts are tried until one fits; each prints its sizes, the last one holds.
                    start.forget((*_SIZES, "laid out anew"))
                start.add(kept, size_gib(str(values[name])), device)
                return
        super().take(start, figures, rank)

    def turn(self, text: str, rank: str) -> None:
        """Where the server turns to another model, or lays the same one out anew."""
        super().turn(text, rank)
        start = self.current()
        if any(word in text for word in _LOADS):
            self.own = True
            if start.has("launched") and start.has(*self.capacity, "estimated_kv_gib", "ollama kv on"):
                start = self._following(start)
        if _REQUEST in text:
            self.own = True
            if start.has("committed") and start.has("ollama kv on"):
                start = self._following(start)
            # The sizes may stand before the request: those of its layout replace them, where it prints any.
            start.add("laid out anew", "yes", "")
            if "{Operation:commit" in text or "{Commit:true" in text:
                start.add("committed", "yes", "")
        if any(word in text for word in _STARTED):
            self.own = True
            start.add("launched", "yes", "")
        if text.endswith("\n"):
            _ask(start, text)

    def _following(self, start: Start) -> Start:
        following = self._new(start.lane)
        following.inherit(start, ("gpu_total_memory_gib", "ollama_gpu", "ollama_version"))
        return following

    def observe(self, start: Start) -> Observation:
        """The runner's figures where there are some, else the server's."""
        found = super().observe(start)
        if found.kv_cache_memory_gib is None and (start.has("estimated_kv_gib") or _runs_llama_cpp(start)):
            start.note("weights and cache are the server's estimate before loading")
        context = whole(start.text("asked_context"))
        weights = found.weights_gib
        for other in (_sum_on(start, "ollama weights on"), _estimated_weights(start)):
            weights = other if weights is None else weights
        cache = found.kv_cache_memory_gib
        for other in (_cache_on(start), start.least("estimated_kv_gib")):
            cache = other if cache is None else cache
        graph = start.greatest("projector_graph_gib")
        if graph and start.has("own engine"):
            start.note(f"of the compute buffer up to {graph:.4g} GiB is the projector's graph")
        available = start.text("available")
        return found.replace(
            engine=self.engine,
            model=found.model or named((start.text("ollama_model") or "").strip('"')),
            engine_version=start.text("ollama_version") or found.engine_version,
            gpu=found.gpu or start.text("ollama_gpu"),
            gpu_count=found.gpu_count or (available.count("iB") or None if available else None),
            gpu_total_memory_gib=start.least("gpu_total_memory_gib"),
            kv_cache_dtype=found.kv_cache_dtype or start.text("asked_kv"),
            max_model_len=found.max_model_len or context,
            max_num_seqs=found.max_num_seqs or whole(start.text("asked_parallel")),
            weights_gib=weights,
            peak_activation_gib=_largest(start, found.peak_activation_gib),
            kv_cache_memory_gib=cache,
            # The runner's cache has --ctx-size cells, all slots together.
            kv_cache_tokens=found.kv_cache_tokens or (context if cache is not None else None),
            arguments=start.arguments,
        )

    def _settle(self, start: Start, kinds: str | None) -> None:
        """By the names that Ollama's settings have: the runner's word, else what was asked of it."""
        flash = _FLASH.get((flash_of(start) or start.text("asked_flash") or "").lower())
        batch = start.count("whole_ubatch") or whole(start.text("asked_batch"))
        said = (("flash-attention", flash), ("num-batch", batch), ("ollama-engine", start.text("own engine")))
        for argument, value in said:
            if value is not None:
                start.set_argument(argument, str(value))


def _ask(start: Start, text: str) -> None:
    """What a whole line asks of the runner; a command without the flag asks for no flash attention."""
    batch, flash = _BATCH.search(text), _FLASH_SAID.search(text)
    if any(word in text for word in (*_STARTED, _REQUEST)):
        if batch is not None:
            start.add("asked_batch", batch[1], "")
        if flash is not None:
            start.add("asked_flash", flash[1], "")
        elif "--ctx-size" in text:
            start.add("asked_flash", "on" if "--flash-attn" in text else "off", "")
    words = ('msg="offload', 'msg="model weights"', 'msg="compute graph"')
    backend = "source=ggml.go" in text and any(word in text for word in words)
    if backend or any(word in text for word in _OWN_ENGINE):
        start.add("own engine", "true", "")


def _on_gpus(start: Start, name: str) -> list[float]:
    """The figures of ``name`` on GPUs; those of the host where there is no other."""
    found = {device: float(start.values(name, device)[-1]) for device in start.ranks(name)}
    gpus = [size for device, size in found.items() if not on_host(device)]
    return gpus or list(found.values())


def _sum_on(start: Start, name: str) -> float | None:
    """All devices together, the host too."""
    found = [float(start.values(name, device)[-1]) for device in start.ranks(name)]
    return sum(found) if found else None


def _estimated_weights(start: Start) -> float | None:
    """The server's estimate; its own engine loads the projector with the model, llama.cpp's runner beside it."""
    weights, projector = start.greatest("estimated_weights_gib"), start.greatest("estimated_projector_gib")
    if weights is None or projector is None:
        return weights
    if start.has("own engine"):
        return weights + projector
    start.note(f"a projector of {projector:.4g} GiB is loaded beside the model")
    return weights


def _cache_on(start: Start) -> float | None:
    """The cache on all devices together, as llama.cpp's own total is; a note where a part is on the host."""
    found = {
        device: float(start.values("ollama kv on", device)[-1]) for device in start.ranks("ollama kv on")
    }
    if not found:
        return None
    if len(found) > 1:
        parts = ", ".join(f"{device} {size:.3g}" for device, size in list(found.items())[:16])
        start.note(f"the cache is summed over {len(found)} devices [GiB]: {parts}")
    return sum(found.values())


def _runs_llama_cpp(start: Start) -> bool:
    """Whether llama.cpp loads the model: then the server's lines are its estimate, made before."""
    return start.has("ollama kv on") and start.has("path", "weights on", "max_model_len")


def _largest(start: Start, runner: float | None) -> float | None:
    if runner is not None or _runs_llama_cpp(start):
        return runner
    return max(_on_gpus(start, "ollama compute on"), default=None)
