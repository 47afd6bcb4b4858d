"""One pasted log -> what its engine said at start: an observation for every start in it."""

from __future__ import annotations

from headcount.record import Record
from headcount.verify.logs.lines import MOST_BYTES, LineSource
from headcount.verify.logs.llamacpp import LlamaCppReader
from headcount.verify.logs.ollama import OllamaReader
from headcount.verify.logs.others import FORKS, OTHERS
from headcount.verify.logs.ranks import first_alone, pipeline_ranks, tensor_ranks
from headcount.verify.logs.sglang import SglangReader
from headcount.verify.logs.tensorrt_llm import TensorRtLlmReader
from headcount.verify.logs.vllm import VllmReader
from headcount.verify.observation import Observation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import BinaryIO

    from headcount.verify.logs.reader import Reader

_READERS = (VllmReader, SglangReader, TensorRtLlmReader, LlamaCppReader, OllamaReader)
_WANTED = {
    "vllm": '"Model loading took", "Available KV cache memory", "GPU KV cache size"',
    "sglang": '"Load weight end", "KV Cache is allocated", "max_total_num_tokens="',
    "tensorrt-llm": '"Allocated .. for max tokens in paged KV cache"',
    "llama.cpp": '"model buffer size", "llama_kv_cache: size" (or "KV self size")',
    "ollama": 'msg="offload ..." or msg="kv cache"',
}


class LogReading(Record):
    """What one log held.

    observations   one for every engine start that said something about memory
    engine         the engine of the first of them, or the one that was recognised; None when none was
    lines          lines in the log
    ranks          processes that said something, by the names they print
    notes          what was ambiguous, cut off, differs between ranks, or is an estimate
    refusals       why there is no observation, one sentence each; empty when there is one
    """

    observations: tuple[Observation, ...]
    engine: str | None
    lines: int
    ranks: tuple[str, ...]
    notes: tuple[str, ...]
    refusals: tuple[str, ...]


def read_log(stream: BinaryIO | Iterable[bytes], *, name: str, most_bytes: int = MOST_BYTES) -> LogReading:
    """Read the start-up log of a serving engine; ``name`` stands for it in messages.

    One pass over at most ``most_bytes`` (4 GiB), memory bounded by one line and the figures of at most 200 starts. Text
    may be UTF-8 or UTF-16, coloured, prefixed, interleaved by rank, damaged or cut off; a figure whose unit or closing
    sign was cut off is not read.
    Sizes are GiB (2**30 bytes), as every engine here means them. Raises UsageError for a stream that is not bytes.
    """
    readers: list[Reader] = [kind() for kind in _READERS]
    others = tuple(word for _, words in OTHERS for word in words)
    wanted = dict.fromkeys((*(word for reader in readers for word in reader.words()), *others))
    source = LineSource(stream, tuple(wanted), name=name, most_bytes=most_bytes)
    recognised: dict[str, None] = {}
    for line in source:
        for reader in readers:
            reader.read(line)
        for other, words in OTHERS:
            if other not in recognised and any(word in line.text for word in words):
                recognised[other] = None
    if source.refusal:
        return LogReading(
            observations=(),
            engine=None,
            lines=source.lines_read,
            ranks=(),
            notes=(),
            refusals=(source.refusal,),
        )
    return _reading(_meant(readers), source, tuple(recognised))


def _meant(readers: list[Reader]) -> list[Reader]:
    """Ollama's log holds llama.cpp's lines: of the two, the one that is meant."""
    ours = any(isinstance(reader, OllamaReader) and reader.own for reader in readers)
    left_out = LlamaCppReader if ours else OllamaReader
    return [reader for reader in readers if type(reader) is not left_out]


def _reading(readers: list[Reader], source: LineSource, others: tuple[str, ...]) -> LogReading:
    forks = [other for other in others if other in FORKS]
    found: list[Observation] = []
    notes: list[str] = []
    engines: dict[str, None] = {}
    ranks: dict[str, None] = {}
    for reader in readers:
        if forks and isinstance(reader, VllmReader):
            continue
        pairs = reader.observations()
        for index, (start, observation) in enumerate(pairs, 1):
            label = f"start {index}: " if len(pairs) > 1 else ""
            lane = f"{start.lane}: " if start.lane else ""
            notes += [label + lane + note for note in start.notes]
            # With several starts in one file the labels may be another start's.
            if len(pairs) == 1:
                observation = _placed(observation, reader.ranks, notes)
            found.append(observation.replace(notes="; ".join(start.notes)))
            engines[reader.engine] = None
        if pairs:
            ranks.update(dict.fromkeys(sorted(reader.ranks)))
        if reader.overflow:
            notes.append(f"more than 200 starts of {reader.engine}: the further ones are not read")
    if len(engines) > 1:
        notes.append(f"the log holds lines of {len(engines)} engines: {', '.join(engines)}")
    if source.lines_cut:
        notes.append(f"{source.lines_cut:,} lines longer than 64 KiB were read up to there")
    if source.stopped:
        notes.append(source.stopped)
    engine = next(iter(engines), None)
    refusals = () if found else ("; ".join(filter(None, (_refusal(readers, others), source.stopped))),)
    return LogReading(
        observations=tuple(found),
        engine=engine or _seen(readers, forks),
        lines=source.lines_read,
        ranks=tuple(ranks),
        notes=tuple(notes),
        refusals=refusals,
    )


def _placed(observation: Observation, ranks: set[str], notes: list[str]) -> Observation:
    """With the parallel sizes that the labels of the ranks tell, where the log did not state them."""
    alone = first_alone(ranks)
    if observation.tensor_parallel is None:
        observation = observation.replace(tensor_parallel=tensor_ranks(ranks))
        if "TP0" in alone:
            notes.append("of the tensor-parallel ranks only TP0 is shown: how many there are is not said")
    if observation.pipeline_parallel is None:
        observation = observation.replace(pipeline_parallel=pipeline_ranks(ranks))
        if "PP0" in alone:
            notes.append("of the pipeline stages only PP0 is shown: how many there are is not said")
    return observation


def _seen(readers: list[Reader], forks: list[str]) -> str | None:
    """The engine that printed something, be it no figure of memory."""
    for reader in readers:
        if any(start.has(*reader.identity, *reader.evidence) for start in reader.starts):
            return None if forks and isinstance(reader, VllmReader) else reader.engine
    return None


def _refusal(readers: list[Reader], others: tuple[str, ...]) -> str:
    if others:
        return f"this looks like {others[0]}, whose logs are not read; read are {', '.join(_WANTED)}"
    engine = _seen(readers, [])
    if engine is not None:
        return f"{engine} printed it, but no line of its start-up memory: needed are {_WANTED[engine]}"
    wanted = "; ".join(f"{engine}: {lines}" for engine, lines in _WANTED.items())
    return f"no engine's start-up lines; wanted is one of {wanted}"
