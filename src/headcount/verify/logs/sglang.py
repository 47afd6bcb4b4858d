"""SGLang's start-up lines, 0.2 to 0.5.

Wordings: sglang/srt/model_executor/model_runner.py, pool_configurator.py, mem_cache/memory_pool.py, swa_memory_pool.py,
managers/scheduler.py, bench_one_batch.py (read in 0.2.15, 0.4.2, 0.5.3 to 0.5.23). Every "GB" is 1024**3 bytes
(memory_pool.py, ``get_available_gpu_memory``). 0.2 prints no pool; up to 0.4.2 pools print no tokens and "Load weight end" only
what is left, so that the weights are the difference to "Load weight begin".

Each rank prints its own pool. Sliding-window models print one line per pool and then ``SWAKVPool mem usage``, their sum; a
draft model prints its pool after the target's "Memory pool end". ``max_total_num_tokens`` is what the scheduler uses.

Arguments stand in the command line above the log, and, once resolved, in ``server_args=``: a record up to 0.5.15, a dict
from 0.5.20 on. The resolved ones hold, and their fraction is the one in force.
"""

from __future__ import annotations

import re

from headcount.verify.logs.dumps import named, number, read_dump, whole
from headcount.verify.logs.patterns import END, NUMBER, SIZE, WHOLE, Pattern, size_gib
from headcount.verify.logs.ranks import date_of
from headcount.verify.logs.reader import Reader
from headcount.verify.observation import Observation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from headcount.verify.logs.lines import Line
    from headcount.verify.logs.patterns import Figure
    from headcount.verify.logs.start import Start

_POOL = re.compile(
    rf"KV Cache is allocated\.(?: dtype: ([\w.]{{1,40}}),)?(?: #tokens: {WHOLE},)? "
    rf"(?:K size: {SIZE}, V size: {SIZE}|(?:KV|Cache) size: {SIZE})"
)
# A server's own command line; bench_serving and bench_one_batch_server are clients.
_COMMAND = re.compile(
    r"(?:-m sglang\.(?:launch_server|bench_one_batch|bench_latency|bench_offline_throughput)|\bsglang serve)(?= )"
)
# Lines that show how a command is written.
_EXPLAINS = ("usage:", "example:")
_FLAGS = {
    "model": "model_path",
    "tp": "tp_size",
    "tensor_parallel_size": "tp_size",
    "pp": "pp_size",
    "pipeline_parallel_size": "pp_size",
    "dp": "dp_size",
    "data_parallel_size": "dp_size",
    "ep": "ep_size",
    "cuda_graph_max_bs_decode": "cuda_graph_max_bs",
}
_TORCH_KV = {"float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2", "float4_e2m1fn_x2": "fp4_e2m1"}

_TABLE = (
    Pattern("Load weight begin", rf"Load weight begin\. avail mem={SIZE}", "before_gib"),
    Pattern(
        "Load weight end",
        rf"Load weight end\.[^\n]{{0,300}}?avail mem={SIZE}(?:, mem usage={SIZE}|(?=[^,]))",
        "after_gib",
        "weights_gib",
    ),
    Pattern(
        "full_layer_tokens=",
        rf"full_layer_tokens={WHOLE}, swa_layer_tokens={WHOLE}{END}",
        "whole_full",
        "whole_sliding",
    ),
    Pattern(
        " memory calculation: ",
        rf"DS[vV]4 memory calculation: [^\n]{{0,200}}?bytes_per_full_token={NUMBER}, available_bytes={SIZE}"
        rf"[^\n]{{0,300}}? full_token={WHOLE}{END}",
        "bytes_per_token",
        "compressed_gib",
        "whole_full",
    ),
    Pattern(
        "SWAKVPool mem usage",
        rf"SWAKVPool mem usage: {SIZE}, swa size: {WHOLE}, full size: {WHOLE}{END}",
        "pair_gib",
        "",
        "whole_full",
    ),
    Pattern("SWAKVPool mem usage", rf"SWAKVPool mem usage: {SIZE}", "pair_gib"),
    Pattern(
        "raph end",
        rf"Capture (?:[\w -]{{1,40}} )?(?:cuda|CUDA) graph end\.[^\n]{{0,600}}?mem usage={SIZE}",
        "graphs_gib",
    ),
    Pattern("max_total_num_tokens=", rf"max_total_num_tokens={WHOLE}{END}", "whole_total"),
    Pattern(
        "max_running_requests=",
        rf"max_running_requests={WHOLE}, context_len={WHOLE}{END}",
        "max_num_seqs",
        "max_model_len",
    ),
    Pattern(
        "KV cache allocated. dtype",
        rf"KV sizing: KV cache allocated\. dtype: [\w.]{{1,40}}, #tokens: {WHOLE}, KV size: {SIZE}",
        "whole_resized",
        "resized_gib",
    ),
    Pattern(
        "under --mem-fraction-static", rf"under --mem-fraction-static={NUMBER}{END}", "gpu_memory_utilization"
    ),
    Pattern("Using KV cache dtype", r"Using KV cache dtype: (?:torch\.)?([\w.]{1,40})\s", "kv_dtype"),
)
_SETTINGS = {
    "model_path": "model",
    "context_length": "max_model_len",
    "tp_size": "tensor_parallel",
    "pp_size": "pipeline_parallel",
    "dp_size": "data_parallel",
    "quantization": "quantization",
    "dtype": "dtype",
    "kv_cache_dtype": "kv_cache_dtype",
    "page_size": "block_size",
    "mem_fraction_static": "gpu_memory_utilization",
    "max_running_requests": "max_num_seqs",
}
_ARGUMENTS = frozenset(
    (
        "attention_backend",
        "attn_dp_size",
        "chunked_prefill_size",
        "cpu_offload_gb",
        "cuda_graph_max_bs",
        "disable_cuda_graph",
        "disable_overlap_schedule",
        "disable_hybrid_swa_memory",
        "disable_radix_cache",
        "enable_dp_attention",
        "ep_size",
        "mamba_full_memory_ratio",
        "mamba_ssm_dtype",
        "max_mamba_cache_size",
        "max_prefill_tokens",
        "max_total_tokens",
        "page_size",
        "speculative_algorithm",
        "speculative_num_draft_tokens",
        "swa_full_tokens_ratio",
    )
)
# Flags worth a look at a line that continues a command.
_SAID = ("model", "tp", "pp", "dp", *_SETTINGS, *sorted(_ARGUMENTS))
_REFUSALS = (
    (
        "Not enough memory. Please try to increase --mem-fraction-static",
        "start refused: no memory was left for the cache",
    ),
    ("leave no GPU memory for the KV cache", "start refused: the weights left no memory for the cache"),
    ("CUDA out of memory", "out of memory during the start"),
)


class SglangReader(Reader):
    """Reads SGLang."""

    engine = "sglang"
    patterns = tuple(_TABLE)
    openings = ("server_args=ServerArgs(", "server_args={")
    capacity = ("whole_total",)
    leading = ("pool",)
    identity = ("asked_model", "kv_dtype")
    evidence = ("weights_gib", "pool", "pair_gib", "whole_total", "whole_full")

    def __init__(self) -> None:
        super().__init__()
        # Whether the last line of a command ended in a backslash.
        self._continued = False

    @classmethod
    def words(cls) -> tuple[str, ...]:
        """The table's, and those read by hand."""
        extra = (
            "KV Cache is allocated.",
            "Memory pool end",
            "Mamba Cache is allocated",
            "-m sglang.",
            "sglang serve ",
            *(f"--{name.replace('_', '-')}" for name in _SAID),
            *(word for word, _ in _REFUSALS),
        )
        return (*super().words(), *extra)

    def read(self, line: Line) -> None:
        """Requests are logged with their prompts, which may quote anything: those lines are passed over."""
        if "GenerateReqInput(" not in line.text:
            super().read(line)

    def take(self, start: Start, figures: Sequence[tuple[str, Figure]], rank: str) -> None:
        """The weights of a line that prints only what is left are the difference to the line before loading."""
        super().take(start, figures, rank)
        said = dict(figures)
        before, after = start.values("before_gib", rank), said.get("after_gib")
        if after is None or not before or "weights_gib" in said:
            return
        taken = round(float(before[-1]) - float(after), 2)
        # Where another process gave memory back meanwhile, the difference says nothing.
        if taken > 0:
            start.add("weights_gib", taken, rank)

    def look(self, text: str, rank: str) -> None:
        """Pools, command lines, argument dumps and refusals."""
        if "KV Cache is allocated." in text and "VirtualKV" not in text:
            for match in _POOL.finditer(text):
                self._pool(match, text, rank)
        if "Memory pool end" in text:
            # What a rank allocates after this is a draft model's.
            self.current().add("pool_closed", "yes", rank)
        if "Mamba Cache is allocated" in text:
            self._states(text, rank)
        self._command(text, rank)
        for opening in self.openings:
            at = text.find(opening)
            if at >= 0:
                dump = read_dump(text[at + len(opening) :])
                # Printed once resolved: aiter's long-context factor is in the fraction already.
                if dump.get("attention_backend") == "aiter":
                    self.current().set_argument("aiter-honor-explicit-mem-fraction", "true")
                self._settings(dump)
        for word, remark in _REFUSALS:
            if word in text and self.current().has(*self.evidence):
                share = self.current().least("gpu_memory_utilization")
                asked = share is not None and remark.startswith("start refused")
                self.current().note(f"{remark} under --mem-fraction-static {share:g}" if asked else remark)

    def _pool(self, match: re.Match[str], text: str, rank: str) -> None:
        start = self._start_of(["pool"], text, rank)
        start.date = start.date or date_of(text)
        if rank and len(self.ranks) < 1024:
            self.ranks.add(rank)
        if start.said_by("pool_closed", rank):
            start.note("a draft model's pool was allocated after the target's: not counted")
            return
        dtype, tokens, keys, values, both = match.groups()
        size = size_gib(both) if both else size_gib(keys) + size_gib(values)
        start.add("pool", f"{(tokens or '0').replace(',', '')} {size!r}", rank)
        if dtype:
            start.add("kv_dtype", dtype.removeprefix("torch."), rank)

    def _states(self, text: str, rank: str) -> None:
        sizes = [size_gib(found) for found in re.findall(rf"_state(?:_cache)? size: {SIZE}", text)]
        if sizes:
            start = self.current()
            start.add("states_gib", sum(sizes), rank)
            start.note(f"recurrent states take {sum(sizes):.2f} GiB per rank beside the cache")

    def _command(self, text: str, rank: str) -> None:
        """The flags of a command line, one line or several; a word that the log's end cuts off is left out."""
        found = _COMMAND.search(text)
        said = text[found.end() :] if found else text
        continues = self._continued and said.lstrip().startswith("--")
        self._continued = False
        if not (found or continues) or any(word in text.lower() for word in _EXPLAINS):
            return
        words = said.split()
        if not text.endswith("\n") and not said[-1:].isspace():
            words = words[:-1]
        self._continued = words[-1:] == ["\\"]
        if found and (self._continued or "--" in said):
            self._open("", rank)
            if found[0] == "sglang serve" and words and not words[0].startswith("-"):
                words.insert(0, "--model-path")
        self._settings(_flags(words))

    def _settings(self, dump: dict[str, str]) -> None:
        start = self.current()
        for name, value in dump.items():
            if name in _SETTINGS and named(value):
                start.add("asked_" + _SETTINGS[name], value, "")
            if name in _ARGUMENTS and named(value) and value != "False":
                start.set_argument(name.replace("_", "-"), "true" if value == "True" else value[:300])

    def observe(self, start: Start) -> Observation:
        """The scheduler's token count, the smallest pool, the heaviest rank's weights (a draft's not included)."""
        weights = [
            float(first)
            for rank in start.ranks("weights_gib")
            if not isinstance(first := start.values("weights_gib", rank)[0], str)
        ]
        start.differ("weights_gib", "weights")
        if any(len(start.values("weights_gib", rank)) > 1 for rank in start.ranks("weights_gib")):
            start.note("more than one model was loaded: the first one's weights are read")
        graphs = [
            sum(value for value in start.values("graphs_gib", rank) if not isinstance(value, str))
            for rank in start.ranks("graphs_gib")
        ]
        tokens = _tokens(start)
        return Observation(
            engine=self.engine,
            date=start.date,
            model=named(start.text("asked_model")),
            tensor_parallel=whole(start.text("asked_tensor_parallel")),
            pipeline_parallel=whole(start.text("asked_pipeline_parallel")),
            data_parallel=whole(start.text("asked_data_parallel")),
            weight_dtype_or_quant=named(start.text("asked_quantization")) or named(start.text("asked_dtype")),
            kv_cache_dtype=_kv_dtype(start),
            block_size=whole(start.text("asked_block_size")),
            gpu_memory_utilization=number(start.text("asked_gpu_memory_utilization"))
            or start.least("gpu_memory_utilization"),
            max_model_len=start.count("max_model_len") or whole(start.text("asked_max_model_len")),
            max_num_seqs=start.count("max_num_seqs") or whole(start.text("asked_max_num_seqs")),
            weights_gib=max(weights, default=None),
            cuda_graphs_gib=max(graphs, default=None),
            kv_cache_memory_gib=_cache_memory(start),
            states_gib=start.greatest("states_gib"),
            free_before_gib=start.least("before_gib"),
            kv_cache_tokens=tokens,
            bytes_per_token=start.greatest("bytes_per_token"),
            arguments=start.arguments,
        )


def _flags(words: list[str]) -> dict[str, str]:
    """``--tp 4``, ``--tp-size=4`` and ``--disable-radix-cache`` as ServerArgs names them.

    A value that begins with another sign (``$MODEL``, ``<model>``, ``...``) is none.
    """
    said: dict[str, str] = {}
    for index, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, _, value = word[2:].partition("=")
        name = name.replace("-", "_")
        following = words[index + 1] if index + 1 < len(words) else "--"
        if not value:
            value = "True" if following.startswith(("--", "\\")) else following
        value = value.strip("'\"")
        if value and (value[0].isalnum() or value[0] in "/._~"):
            said[_FLAGS.get(name, name)] = value
    return said


def _kv_dtype(start: Start) -> str | None:
    said = start.text("kv_dtype")
    if said:
        return _TORCH_KV.get(said, said)
    return named(start.text("asked_kv_cache_dtype"))


def _cache_memory(start: Start) -> float | None:
    """The smallest rank's pools together: resized after capture, as printed by the pair of pools, or their sum.

    Of compressed attention: the bytes that its six pools are cut from. A pair of which one pool is shown is not summed.
    """
    for name in ("resized_gib", "pair_gib", "compressed_gib"):
        said = start.least(name)
        if said is not None:
            return said
    sums = []
    pair = start.count("whole_full") and start.count("whole_sliding")
    for pools in _pools(start):
        if pair and len(pools) < 2:
            start.note("one pool of two is shown: the cache memory is not read")
            continue
        sums.append(sum(size for _, size in pools))
        if len(pools) > 1:
            start.note(f"{len(pools)} pools of one rank are summed")
    if len(set(sums)) > 1:
        start.note(f"cache memory differs between {len(sums)} ranks: {min(sums):g} to {max(sums):g}")
    return min(sums, default=None)


def _pools(start: Start) -> list[list[tuple[int, float]]]:
    """Tokens (0: not said) and GiB of every rank's pools."""
    found = []
    for rank in start.ranks("pool"):
        pairs = (str(value).split() for value in start.values("pool", rank))
        found.append([(int(tokens), float(size)) for tokens, size in pairs])
    return found


def _tokens(start: Start) -> int | None:
    """What the scheduler admits; without its line, the smallest rank's pool."""
    pools = _pools(start)
    # Old releases print no tokens with a pool: 0 here. The sliding pool's are not those that requests are admitted by.
    found = {tokens for rank in pools for tokens, _ in rank} - {0, start.count("whole_sliding")}
    said = start.count("whole_total")
    for name in ("whole_resized", "whole_full"):
        if said is None:
            said = start.count(name)
    if said is not None:
        if found and said not in found:
            start.note(f"the pools print {min(found):,} tokens, the scheduler uses {said:,}")
        return said
    if any(len({tokens for tokens, _ in rank}) > 1 for rank in pools):
        start.note("pools of different lengths and no line that says which one counts: tokens not read")
        return None
    return min(found, default=None)
