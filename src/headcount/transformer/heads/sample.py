"""The text that heads are judged by: its tokens, cut into a part to measure on and a part held out.

measured    the first n tokens: statistics, roles, importance
held out    the next n, or as many as there are: perplexity, so that no head is judged by the text that chose it
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from headcount.errors import ModelFileError, UsageError
from headcount.spec.checkpoint import file_size, read_start

ORDINARY = os.path.join(os.path.dirname(__file__), "ordinary.txt")
LEAST_TOKENS = 64
_LARGEST_FILE = 8 << 20


class Sample(NamedTuple):
    """``name`` says which text it is; ids (T) of both parts."""

    name: str
    measured_T: Tensor
    held_out_T: Tensor

    def sequences(self, tokens: int) -> Int[Tensor, "B T"]:
        """The measured part in sequences of this length (a rest is left out); one shorter sequence if there is no more."""
        length = min(tokens, len(self.measured_T))
        count = len(self.measured_T) // length
        return self.measured_T[: count * length].view(count, length)


def read_sample(tokenizer: Any, *, path: str | None = None, tokens: int = 512) -> Sample:
    """Tokens of a text file (None: the one of this package), as the model's tokenizer cuts it.

    Raises UsageError when the file cannot be read as text or is too short for both parts.
    """
    text, name = _read(ORDINARY if path is None else path), "ordinary.txt (prose about a refrigerator)"
    if path is None:
        text = "\n".join(line for line in text.splitlines() if not line.startswith("#")).strip()
    else:
        name = os.path.basename(path)
    ids = torch.tensor(tokenizer.encode(text), dtype=torch.long)
    measured = min(tokens, len(ids) - LEAST_TOKENS)
    if tokens < LEAST_TOKENS or measured < LEAST_TOKENS:
        raise UsageError(
            f"heads are judged by {LEAST_TOKENS} tokens or more and as many held out; {name} has {len(ids):,}, "
            f"asked for {tokens:,}"
        )
    if measured < tokens:
        # Never judge by less than half of what could be held out.
        measured = min(tokens, len(ids) // 2)
    return Sample(name=name, measured_T=ids[:measured], held_out_T=ids[measured : measured + tokens])


def _read(path: str) -> str:
    try:
        # Of a regular file alone: a pipe or a device has no end.
        if file_size(path) > _LARGEST_FILE:
            raise UsageError(f"--text {path[:120]!r} is larger than 8 MiB")
        return read_start(path, _LARGEST_FILE).decode("utf-8")
    except ModelFileError as error:
        raise UsageError(f"--text: {error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"--text {path[:120]!r} cannot be read: not UTF-8 text") from None
