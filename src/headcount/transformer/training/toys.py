"""Sequence-to-sequence toys: small enough to learn in a minute, and learnt or not beyond doubt (exact match).

    copy      fdacb    -> fdacb
    reverse   fdacb    -> bcadf
    sort      fdacb    -> abcdf
    addition  37+485   -> 522

Held out: every source whose CRC-32 is a multiple of 10. Membership is a property of the string alone, so a held-out
string cannot turn up in training, whatever the seed and however long it runs.
"""

from __future__ import annotations

import random
import string
import zlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headcount.errors import UnknownNameError, UsageError
from headcount.record import Record
from headcount.transformer.training.batch import IGNORED, Batch

PAD, START, END = 0, 1, 2
LETTERS = string.ascii_lowercase[:16]
SYMBOLS = string.ascii_lowercase + string.digits + "+"
ID = {symbol: 3 + index for index, symbol in enumerate(SYMBOLS)}
HELD_OUT_SHARE = 10


def _letters(draw: random.Random, length: int) -> str:
    return "".join(draw.choices(LETTERS, k=draw.randint(1, length)))


def _sum(draw: random.Random, length: int) -> str:
    digits = (length - 1) // 2
    return "+".join(str(draw.randrange(10 ** draw.randint(1, digits))) for _ in range(2))


# Name -> (draw a source of at most so many symbols, answer it).
TOYS: dict[str, tuple[Callable[[random.Random, int], str], Callable[[str], str]]] = {
    "copy": (_letters, lambda source: source),
    "reverse": (_letters, lambda source: source[::-1]),
    "sort": (_letters, lambda source: "".join(sorted(source))),
    "addition": (_sum, lambda source: str(sum(int(number) for number in source.split("+")))),
}


def is_held_out(source: str) -> bool:
    """Whether a source belongs to the strings that are never trained on."""
    return zlib.crc32(source.encode()) % HELD_OUT_SHARE == 0


class Toy(Record):
    """One of ``TOYS`` with sources of 1 to ``length`` symbols (addition: numbers of up to (length - 1) // 2 digits)."""

    name: str
    length: int = 12
    seed: int = 0

    def _check(self) -> None:
        if self.name not in TOYS:
            raise UnknownNameError(what="task", given=self.name, allowed=TOYS)
        if not 3 <= self.length <= 512:
            raise UsageError(f"task {self.name}: length must be 3 to 512 symbols; given {self.length}")

    @property
    def vocabulary(self) -> int:
        """Padding, start, end, and the symbols."""
        return 3 + len(SYMBOLS)

    def answer(self, source: str) -> str:
        """What the model should write."""
        return TOYS[self.name][1](source)

    def batch(self, rows: int, number: int) -> Batch:
        """Sources that are not held out, their answers shifted right as input and whole as target."""
        return self.encode(self._draw(f"train {number}", rows, held_out=False))

    def describe(self) -> dict[str, Any]:
        """Name, length and seed."""
        return self.as_dict()

    def held_out(self, count: int) -> list[str]:
        """``count`` distinct held-out sources, fewer where the task has no more."""
        drawn = self._draw("held out", 4 * count, held_out=True)
        return list(dict.fromkeys(drawn))[:count]

    def _draw(self, stream: str, count: int, *, held_out: bool) -> list[str]:
        # A string as seed goes through SHA-512: the same numbers on every machine, and no two streams alike.
        draw = random.Random(f"{self.name} {self.seed} {stream}")
        make = TOYS[self.name][0]
        found: list[str] = []
        while len(found) < count:
            source = make(draw, self.length)
            if is_held_out(source) == held_out:
                found.append(source)
        return found

    def encode(self, sources: list[str]) -> Batch:
        """Sources and answers as ids, padded on the right to the longest."""
        answers = [self.answer(source) for source in sources]
        source_BS = _rows([[*_ids(source), END] for source in sources], PAD)
        inputs_BT = _rows([[START, *_ids(answer)] for answer in answers], PAD)
        targets_BT = _rows([[*_ids(answer), END] for answer in answers], IGNORED)
        return Batch((source_BS, inputs_BT, source_BS != PAD), targets_BT)

    def decode(self, ids: list[int]) -> str:
        """Ids up to the end token as symbols; a special token in between is shown as ``?``."""
        if END in ids:
            ids = ids[: ids.index(END)]
        return "".join(SYMBOLS[index - 3] if index >= 3 else "?" for index in ids)


def _ids(text: str) -> list[int]:
    return [ID[symbol] for symbol in text]


def _rows(rows: list[list[int]], filler: int) -> Tensor:
    longest = max(len(row) for row in rows)
    return torch.tensor([row + [filler] * (longest - len(row)) for row in rows])
