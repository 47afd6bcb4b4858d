"""Read GGUF primitives from a file of known size, in bounded memory: numbers, texts, arrays.

    text   u64 length, bytes            array   u32 element type, u64 count, elements
    value  one of 13 types (u8 ... f64, bool, text, array)

Every length is compared with what is left of the file before anything is read. Long arrays (token lists) and
long texts are skipped and only counted. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct

from headcount.errors import ModelFileError
from headcount.record import Record
from headcount.spec.checkpoint import shown
from headcount.units import KIB, MIB, human_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

# id: (name, struct code); little endian
NUMBER_TYPES = {
    0: ("uint8", "B"),
    1: ("int8", "b"),
    2: ("uint16", "H"),
    3: ("int16", "h"),
    4: ("uint32", "I"),
    5: ("int32", "i"),
    6: ("float32", "f"),
    7: ("bool", "B"),
    10: ("uint64", "Q"),
    11: ("int64", "q"),
    12: ("float64", "d"),
}
BOOL, TEXT, ARRAY = 7, 8, 9
KEPT_NUMBERS = 4096  # per-layer head counts and window patterns are arrays; token types and scores are longer
KEPT_TEXTS = 256
KEPT_TEXT_BYTES = 64 * KIB
ARRAY_DEPTH = 4
# No published header is near this (the largest vocabularies take 30 MiB); it bounds a hostile one's time.
HEADER_LIMIT = 128 * MIB
# What kept values may cost in Python objects, about 40 bytes per number.
KEPT_COST_LIMIT = 64 * MIB
_CHUNK = 256 * KIB
_U64 = struct.Struct("<Q")


class ArrayInfo(Record):
    """An array that was skipped: element type (``string``, ``float32``, ..., ``array``) and count."""

    type: str
    count: int


class TextInfo(Record):
    """A text that was skipped because it is long (an embedded tokenizer): its bytes."""

    nbytes: int


class Cursor:
    """A position in a file; every read is checked against the bytes that are left."""

    def __init__(self, handle: BinaryIO, size: int, name: str) -> None:
        self.handle = handle
        self.size = size
        self.name = name
        self.position = 0
        self.kept_cost = 0

    def fault(self, problem: str) -> ModelFileError:
        """Return an error that names the file and the position."""
        return ModelFileError(f"{shown(self.name)}, byte {self.position:,}: {problem}")

    def require(self, count: int, what: str) -> None:
        """Raise ModelFileError unless ``count`` more bytes of header exist."""
        if count > self.size - self.position:
            raise ModelFileError(
                f"{shown(self.name)} is truncated or damaged: {what} needs {count:,} bytes at byte "
                f"{self.position:,}, {count - (self.size - self.position):,} more than the file has"
            )
        if self.position + count > HEADER_LIMIT:
            raise self.fault(
                f"the header is larger than {human_bytes(HEADER_LIMIT)}, more than any honest one"
            )

    def take(self, count: int, what: str) -> bytes:
        """Read exactly ``count`` bytes."""
        self.require(count, what)
        raw = self.handle.read(count)
        if len(raw) != count:
            raise self.fault(f"{what}: the file shrank while it was read")
        self.position += count
        return raw

    def skip(self, count: int, what: str) -> None:
        """Move on by ``count`` bytes without reading them."""
        self.require(count, what)
        self.position += count
        self.handle.seek(self.position)

    def u32(self, what: str) -> int:
        """Read an unsigned 32-bit number."""
        return int.from_bytes(self.take(4, what), "little")

    def u64(self, what: str) -> int:
        """Read an unsigned 64-bit number."""
        return int.from_bytes(self.take(8, what), "little")

    def keep(self, cost: int) -> None:
        """Charge ``cost`` bytes of memory for something kept; refuse a header that hoards."""
        self.kept_cost += cost
        if self.kept_cost > KEPT_COST_LIMIT:
            raise self.fault("more metadata than any honest header holds")

    def name_text(self, what: str, limit: int) -> str:
        """Read a key or tensor name: 1 to ``limit`` bytes of valid text."""
        length = self.u64(what)
        if not 1 <= length <= limit:
            raise self.fault(f"{what} of {length:,} bytes; allowed: 1 to {limit:,}")
        raw = self.take(length, what)
        self.keep(length + 100)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self.fault(f"{what} {shown(raw)} is not valid text") from None


def read_value(cursor: Cursor, type_id: int, key: str) -> Any:
    """Read one value: a number, bool, text or tuple; ``ArrayInfo`` or ``TextInfo`` for what is too long."""
    if type_id == ARRAY:
        return _read_array(cursor, key, depth=1)
    if type_id == TEXT:
        return _read_text(cursor, key)
    if type_id not in NUMBER_TYPES:
        raise cursor.fault(f"key {shown(key)} has unknown value type {type_id}; known: 0 to 12")
    cursor.keep(40)
    return _read_numbers(cursor, type_id, 1, key)[0]


def _read_numbers(cursor: Cursor, type_id: int, count: int, key: str) -> tuple[Any, ...]:
    code = NUMBER_TYPES[type_id][1]
    raw = cursor.take(count * struct.calcsize("<" + code), f"value of {shown(key)}")
    values = struct.unpack(f"<{count}{code}", raw)
    if type_id != BOOL:
        return values
    if any(value > 1 for value in values):
        raise cursor.fault(f"key {shown(key)} holds a bool that is neither 0 nor 1")
    return tuple(value == 1 for value in values)


def _read_text(cursor: Cursor, key: str) -> str | TextInfo:
    length = cursor.u64(f"length of {shown(key)}")
    if length > KEPT_TEXT_BYTES:
        cursor.skip(length, f"text of {shown(key)}")
        return TextInfo(nbytes=length)
    # Texts are only displayed, and some converters cut them at a byte count: a broken letter is no error.
    cursor.keep(4 * length + 100)
    return cursor.take(length, f"text of {shown(key)}").decode("utf-8", "replace")


def _read_array(cursor: Cursor, key: str, depth: int) -> Any:
    what = f"array {shown(key)}"
    type_id, count = cursor.u32(what), cursor.u64(what)
    if type_id in NUMBER_TYPES:
        name, code = NUMBER_TYPES[type_id]
        if count <= KEPT_NUMBERS and depth == 1:
            cursor.keep(40 * count)
            return _read_numbers(cursor, type_id, count, key)
        cursor.skip(count * struct.calcsize("<" + code), what)
        return ArrayInfo(type=name, count=count)
    if type_id == TEXT:
        if count <= KEPT_TEXTS and depth == 1:
            return _read_short_texts(cursor, key, count)
        _skip_texts(cursor, count, what)
        return ArrayInfo(type="string", count=count)
    if type_id != ARRAY:
        raise cursor.fault(f"{what} has unknown element type {type_id}; known: 0 to 12")
    if depth == ARRAY_DEPTH:
        raise cursor.fault(f"{what} is nested more than {ARRAY_DEPTH} deep")
    cursor.require(12 * count, what)
    cursor.keep(256 * count)
    for _ in range(count):
        _read_array(cursor, key, depth + 1)
    return ArrayInfo(type="array", count=count)


def _read_short_texts(cursor: Cursor, key: str, count: int) -> Any:
    cursor.require(8 * count, f"array {shown(key)}")
    texts = tuple(_read_text(cursor, key) for _ in range(count))
    return texts if all(isinstance(text, str) for text in texts) else ArrayInfo(type="string", count=count)


def _skip_texts(cursor: Cursor, count: int, what: str) -> None:
    """Walk over ``count`` texts in chunks: a vocabulary has 250,000, too many for one read each."""
    cursor.require(8 * count, what)
    unpack = _U64.unpack_from
    while count:
        cursor.require(8, what)
        chunk = cursor.handle.read(min(_CHUNK, cursor.size - cursor.position))
        at, last = 0, len(chunk) - 8
        while count and at <= last:
            at += 8 + unpack(chunk, at)[0]
            count -= 1
        if not at:
            raise cursor.fault(f"{what}: the file shrank while it was read")
        cursor.skip(at, what)
