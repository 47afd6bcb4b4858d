"""A text file to learn: bytes as they are, or byte-pair tokens learnt from its own training part.

The last tenth of the file is held out. Its cost is reported per byte, so that texts cut into different tokens compare:

    bits per byte = sum of -log2 p(token) / bytes
    perplexity    = exp(mean of -ln p(token))
    baseline      = the bits per byte of the tokens' frequencies alone: p(token) = (count + 1) / (tokens + vocabulary)

A model below its baseline has learnt something of the order. Byte-pair tokens start lower than bytes: the tokeniser has
learnt from the training part already.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from headcount.errors import UnknownNameError, UsageError
from headcount.transformer.ops.cross_entropy import cross_entropy
from headcount.transformer.training.batch import Batch

TOKENS = ("bytes", "bpe")
MERGES = 1024
HELD_OUT_SHARE = 10


class Text:
    """Windows of ``length`` tokens from one file; ``read`` makes it."""

    def __init__(self, name: str, parts: tuple[bytes, bytes], *, tokens: str, length: int, seed: int) -> None:
        self.name = name
        self.length = length
        self.seed = seed
        self.held_out_bytes = len(parts[1])
        self.digest = _digest(b"".join(parts))
        self.tokenizer = _learn(parts[0]) if tokens == "bpe" else None
        self.train_M, self.held_out_M = (self.encode(part) for part in parts)
        if len(self.train_M) <= length or len(self.held_out_M) < 2:
            raise UsageError(
                f"{name}: {len(self.train_M):,} tokens to train on and {len(self.held_out_M):,} held out; "
                f"more than {length:,} are needed to fill a window of that length (--length)"
            )

    def describe(self) -> dict[str, Any]:
        """Digests of the text and of its tokens, not the path: the file may move."""
        tokens = "bytes" if self.tokenizer is None else _digest(self.tokenizer.to_str().encode())
        return {"text": self.digest, "tokens": tokens, "length": self.length, "seed": self.seed}

    @property
    def vocabulary(self) -> int:
        """256 bytes, or the size the tokens came to."""
        return 256 if self.tokenizer is None else self.tokenizer.get_vocab_size()

    def encode(self, part: bytes) -> Tensor:
        """Bytes to ids."""
        if self.tokenizer is None:
            return (
                torch.frombuffer(bytearray(part), dtype=torch.uint8).long() if part else torch.zeros(0).long()
            )
        return torch.tensor(self.tokenizer.encode(part.decode()).ids, dtype=torch.long)

    def decode(self, ids: list[int]) -> str:
        """Ids to text; bytes that are not UTF-8 become the replacement sign."""
        if self.tokenizer is None:
            return bytes(ids).decode(errors="replace")
        return str(self.tokenizer.decode(ids))

    def batch(self, rows: int, number: int) -> Batch:
        """Random windows of the training part, and the same windows one token later."""
        draw = torch.Generator().manual_seed(_mix(self.seed, number))
        starts_B1 = torch.randint(len(self.train_M) - self.length, (rows, 1), generator=draw)
        window_BT = self.train_M[starts_B1 + torch.arange(self.length + 1)]
        return Batch((window_BT[:, :-1],), window_BT[:, 1:])

    def held_out_cost(
        self, model: Callable[[Tensor], Tensor], *, most: int = 65_536
    ) -> dict[str, int | float]:
        """Bits per byte and perplexity of (the first ``most`` tokens of) the held-out part, window after window."""
        ids = self.held_out_M[: most + 1]
        predicted = len(ids) - 1
        whole = predicted // self.length
        starts = torch.arange(whole)[:, None] * self.length
        groups = (
            [ids[rows + torch.arange(self.length + 1)] for rows in torch.split(starts, 32)] if whole else []
        )
        if whole * self.length < predicted:
            groups.append(ids[None, whole * self.length :])
        with torch.no_grad():
            nats = sum(
                float(cross_entropy(model(ids_BT[:, :-1]), ids_BT[:, 1:])) * ids_BT[:, 1:].numel()
                for ids_BT in groups
            )
        measured_bytes = self.held_out_bytes * predicted / len(self.held_out_M)
        counts_V = torch.bincount(self.train_M, minlength=self.vocabulary).double() + 1
        by_frequency = -float((counts_V / counts_V.sum()).log2()[ids[1:]].sum())
        return {
            "tokens": predicted,
            "bits_per_byte": nats / math.log(2) / measured_bytes,
            "baseline_bits_per_byte": by_frequency / measured_bytes,
            "perplexity": math.exp(nats / predicted),
        }


def read(path: str, *, tokens: str = "bytes", length: int = 128, seed: int = 0) -> Text:
    """Read a file, split it, learn its tokens.

    Raises
    ------
    UnknownNameError: ``tokens`` is neither bytes nor bpe.
    UsageError: a file that cannot be read, is too short, or is not UTF-8 (for bpe).
    """
    if tokens not in TOKENS:
        raise UnknownNameError(what="kind of tokens", given=tokens, allowed=TOKENS)
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
    if tokens == "bpe":
        _check_text(content, path)
    cut = len(content) - len(content) // HELD_OUT_SHARE
    while cut < len(content) and content[cut] & 0xC0 == 0x80:
        # Inside a UTF-8 character: move to the next one, so that both parts are text.
        cut += 1
    return Text(path, (content[:cut], content[cut:]), tokens=tokens, length=length, seed=seed)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _check_text(content: bytes, name: str) -> None:
    try:
        content.decode()
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{name}: not UTF-8 at byte {error.start:,}; byte-pair tokens need text, take --tokens bytes"
        ) from None


def _learn(part: bytes) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=MERGES, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(part.decode().splitlines(keepends=True), trainer)
    return tokenizer


def _mix(seed: int, number: int) -> int:
    """One 63-bit seed of two numbers; neighbours land far apart (multipliers of SplitMix64)."""
    x = (seed * 0x9E3779B97F4A7C15 + number * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) & (2**64 - 1)
    return (x ^ (x >> 31)) >> 1
