"""Lines out of a pasted log: bounded memory, whatever the bytes are.

A log reaches us through ``tee``, docker, Kubernetes, journald, a PowerShell redirection or a mail client. This module
turns the bytes into plain text lines and drops, before anything else looks at them, the lines that hold none of the
words a reader asks for. Nothing larger than one piece and one line is kept.
"""

from __future__ import annotations

import codecs
import json
import re

from headcount.errors import UsageError
from headcount.record import Record
from headcount.units import human_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import BinaryIO

PIECE_BYTES = 1 << 18
# The longest honest line is a dump of arguments (vLLM's config: about 5 kB, SGLang's server_args: about 15 kB).
LONGEST_LINE = 1 << 16
# An endless pipe ends here, after a few minutes; start-up lines stand far before.
MOST_BYTES = 4 << 30

_MAGIC = (
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"BZh", "bzip2"),
    (b"PK\x03\x04", "zip"),
    (b"\x04\x22\x4d\x18", "lz4"),
)
_DOCKER = b'{"log":'
_ESCAPE = re.compile(rb"\x1b\[[0-9;:?]{0,32}[A-Za-z]")


class Line(Record):
    """``text`` without its end. ``whole`` is False where the end was cut off: a figure there may be half a figure."""

    text: str
    whole: bool


class LineSource:
    """The lines of ``stream`` that hold one of ``words``, as text.

    ``lines_read`` and ``lines_cut`` (longer than 64 KiB) are right once the source is exhausted. ``refusal`` says why
    nothing was read (compressed, or no text). ``stopped`` says that the stream went on after ``most_bytes``.
    """

    def __init__(
        self,
        stream: BinaryIO | Iterable[bytes],
        words: Sequence[str],
        *,
        name: str,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.lines_read = 0
        self.stopped = ""
        self.lines_cut = 0
        self.refusal = ""
        self._words = tuple(word.encode() for word in words)
        self._pieces = self._bounded(_pieces(stream, name), most_bytes)
        self._decoder: codecs.IncrementalDecoder | None = None

    def __iter__(self) -> Iterator[Line]:
        """Yield each interesting line once."""
        first = True
        carry = b""
        cut = False
        for piece in self._pieces:
            if first and piece:
                first = False
                piece = self._open(piece)
                if self.refusal:
                    return
            block = carry + self._plain(piece, final=False)
            end = block.rfind(b"\n")
            carry = block[end + 1 :]
            if end >= 0:
                yield from self._lines(block[:end], skip_first=cut)
                cut = False
            if len(carry) > LONGEST_LINE:
                if not cut:
                    self.lines_cut += 1
                    yield from self._interesting(carry[:LONGEST_LINE], whole=False)
                # What follows in this line is passed over until its end.
                carry, cut = b"", True
        carry += self._plain(b"", final=True)
        if carry and not cut:
            self.lines_read += 1
            yield from self._interesting(carry[:LONGEST_LINE], whole=False)
        elif cut:
            self.lines_read += 1

    def _bounded(self, pieces: Iterator[bytes], most_bytes: int) -> Iterator[bytes]:
        left = most_bytes
        for piece in pieces:
            if left <= 0:
                self.stopped = f"the log goes on after {human_bytes(most_bytes)}: what follows was not read"
                return
            left -= len(piece)
            yield piece

    def _open(self, piece: bytes) -> bytes:
        """Look at the first bytes: encoding, or a reason to read no further."""
        for magic, kind in _MAGIC:
            if piece.startswith(magic):
                self.refusal = f"{kind}-compressed, not text; unpack it and pipe it in (--log -)"
                return b""
        if piece.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            little = piece.startswith(codecs.BOM_UTF16_LE)
            self._decoder = _utf16(little=little)
            return piece[2:]
        head = piece[:4096]
        even, odd = head[0::2].count(0), head[1::2].count(0)
        if even + odd > len(head) // 5:
            # ASCII in UTF-16 has a zero in every second byte; a file with zeros in both places is no text.
            if min(even, odd) > max(even, odd) // 20:
                self.refusal = "binary, not a text log"
                return b""
            self._decoder = _utf16(little=odd > even)
            return piece
        return piece.removeprefix(codecs.BOM_UTF8)

    def _plain(self, piece: bytes, *, final: bool) -> bytes:
        """UTF-8 bytes, progress bars as lines of their own."""
        if self._decoder is not None:
            piece = self._decoder.decode(piece, final=final).encode("utf-8", "replace")
        return piece.replace(b"\r", b"\n") if b"\r" in piece else piece

    def _lines(self, block: bytes, *, skip_first: bool) -> Iterator[Line]:
        self.lines_read += block.count(b"\n") + 1
        hidden = b"\x1b" in block or _DOCKER in block
        if not hidden and not any(word in block for word in self._words):
            return
        lines = block.split(b"\n")
        for raw in lines[1:] if skip_first else lines:
            if len(raw) > LONGEST_LINE:
                self.lines_cut += 1
                yield from self._interesting(raw[:LONGEST_LINE], whole=False)
            elif raw:
                yield from self._interesting(raw, whole=True)

    def _interesting(self, raw: bytes, *, whole: bool) -> Iterator[Line]:
        if raw.startswith(_DOCKER):
            raw = _unwrapped(raw)
        if b"\x1b" in raw:
            raw = _ESCAPE.sub(b"", raw)
        if any(word in raw for word in self._words):
            yield Line(text=raw.decode("utf-8", "replace"), whole=whole)


def _utf16(*, little: bool) -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-16-le" if little else "utf-16-be")(errors="replace")


def _unwrapped(raw: bytes) -> bytes:
    """The message of one line of docker's json-file driver; a damaged one as it is."""
    try:
        entry = json.loads(raw)
    except (ValueError, RecursionError):
        return raw
    message = entry.get("log")
    return message.rstrip("\n").encode("utf-8", "replace") if isinstance(message, str) else raw


def _pieces(stream: BinaryIO | Iterable[bytes], name: str) -> Iterator[bytes]:
    """The stream in pieces of at most ``PIECE_BYTES``."""
    read = getattr(stream, "read", None)
    if read is not None:
        while piece := read(PIECE_BYTES):
            yield _checked(piece, name)
        return
    for piece in stream:
        data = _checked(piece, name)
        for start in range(0, len(data), PIECE_BYTES):
            yield data[start : start + PIECE_BYTES]


def _checked(piece: object, name: str) -> bytes:
    if isinstance(piece, bytes):
        return piece
    raise UsageError(f"{name}: a log is read as bytes; given {type(piece).__name__} (open it in mode 'rb')")
