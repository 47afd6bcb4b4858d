"""How a table of figures is written: one ``Pattern`` per wording.

    Pattern("GPU KV cache size", rf"GPU KV cache size: {WHOLE} tokens", "kv_cache_tokens")

The first entry is a plain piece of the line: a line without it costs one substring search. A figure that no unit or
sign closes must end in ``END``, so that half a number at the cut end of a log is not read as a number. Expressions have
no quantifier inside a quantifier, apart from the groups of three digits: every one is linear in the line.
"""

from __future__ import annotations

import re

from headcount.errors import UsageError
from headcount.units import GIB
from headcount.verify.observation import WHOLE_FIELDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# Something must follow, and not more of the number. A whole line is searched with its newline.
END = r"(?=[^\d,.]|[,.][^\d])"
WHOLE = r"(\d{1,3}(?:,\d{3})+|\d{1,18})"
NUMBER = r"(-?\d{1,15}\.\d{1,17}|-?\d{1,15})"
SIZE = r"(-?\d{1,15}(?:\.\d{1,9})? ?(?:[KMGT]i?B|bytes|B))\b"

# vLLM up to 0.8.1 ("Loading model weights took %.4f GB" of bytes / 2**30, vllm/worker/model_runner.py; 0.8.3 says GiB), SGLang
# (GB = 1024**3; sglang/srt/mem_cache/memory_pool.py), TensorRT-LLM (cpp/tensorrt_llm/runtime/memoryCounters.cpp divides by 1024)
# and llama.cpp up to 2023 (MB of bytes / 1024 / 1024) print binary units under decimal names. Ollama's memory lines
# print KiB, MiB and GiB (format.HumanBytes2). So a G is 2**30 in every log read here.
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

WHOLE_FIGURES = frozenset(WHOLE_FIELDS)
NUMBER_FIGURES = frozenset(("gpu_memory_utilization", "max_concurrency", "bytes_per_token"))


class Pattern:
    """One wording: ``word`` must be in the line, then ``regex``; one figure name per group, "" for a group that is not kept.

    A name ending in ``_gib`` is a size with its unit, one in ``WHOLE_FIGURES`` or starting with ``whole_`` an int, one in
    ``NUMBER_FIGURES`` a float, any other is text.
    """

    __slots__ = ("figures", "regex", "word")

    def __init__(self, word: str, regex: str, *figures: str) -> None:
        self.word = word
        self.regex = re.compile(regex)
        self.figures = figures
        if self.regex.groups != len(figures):
            raise UsageError(f"log pattern {word!r}: {self.regex.groups} groups, {len(figures)} names")

    def find(self, text: str) -> Iterator[list[tuple[str, Figure]]]:
        """Every occurrence in ``text`` as ``(name, value)`` pairs; groups that took no part are left out."""
        if self.word not in text:
            return
        for match in self.regex.finditer(text):
            pairs = zip(self.figures, match.groups(), strict=True)
            yield [(name, read_figure(name, found)) for name, found in pairs if name and found is not None]


if TYPE_CHECKING:
    Figure = int | float | str


def read_figure(name: str, text: str) -> Figure:
    """Turn the text of figure ``name`` into its value: a size into GiB, a count into an int."""
    if name.endswith("_gib"):
        return size_gib(text)
    if name in WHOLE_FIGURES or name.startswith("whole_"):
        return int(text.replace(",", ""))
    if name in NUMBER_FIGURES:
        return float(text)
    return text


def size_gib(text: str) -> float:
    """``896.0 MiB`` -> 0.875, ``14.9888 GB`` -> 14.9888: bytes / 2**30, a decimal name read as a binary one."""
    number = text.rstrip("BKMGTibytes ")
    unit = text[len(number) :].strip()[:1]
    return float(number) * _UNITS.get(unit, 1) / GIB
