"""``Checkpoint``: what the header of a weight file states, tensor by tensor. No weight is ever read.

total bytes = sum of nbytes over tensors          (data only: header, padding and vocabulary are left out)
"""

from __future__ import annotations

import os
import re
import stat

from headcount.errors import ModelFileError
from headcount.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# ``name-00002-of-00005``: DeepSeek writes ``-00001-of-000163``, so the two numbers need not be equally wide.
_PART = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5,6})-of-(?P<total>[0-9]{5,6})")


class TensorInfo(Record):
    """One stored tensor.

    dtype    type name as the file format spells it: ``BF16``, ``F8_E4M3``, ``Q4_K``
    shape    extents as in PyTorch, outermost first; ``()`` is a scalar
    nbytes   bytes of its data, block scales included
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int

    @property
    def elements(self) -> int:
        """Number of values: the product of ``shape``."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count


class Checkpoint(Record):
    """All tensors of a model as its file headers state them.

    path         what was asked for: a file or a directory
    file_format  ``safetensors`` or ``gguf``
    metadata     key/value pairs of the header; long arrays and texts are only summarised
    files        every file whose header was read, in order
    """

    path: str
    file_format: str
    tensors: tuple[TensorInfo, ...]
    metadata: dict[str, Any]
    files: tuple[str, ...]

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors: what must be loaded."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def bytes_by_dtype(self) -> dict[str, int]:
        """Bytes per stored type, largest first."""
        totals: dict[str, int] = {}
        for tensor in self.tensors:
            totals[tensor.dtype] = totals.get(tensor.dtype, 0) + tensor.nbytes
        return dict(sorted(totals.items(), key=lambda item: (-item[1], item[0])))


def shown(text: object, *, limit: int = 80) -> str:
    """Quote something from a file for an error message: escaped and cut to ``limit`` characters."""
    quoted = ascii(text[: 2 * limit] if isinstance(text, str | list) else text)
    return quoted if len(quoted) <= limit else quoted[: limit - 3] + "..."


def file_size(path: str) -> int:
    """Return the size of a regular file in bytes; ModelFileError when there is none that can be read."""
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        raise ModelFileError(f"cannot read {shown(path, limit=200)}: {_reason(error)}") from None
    if not stat.S_ISREG(status.st_mode):
        raise ModelFileError(f"{shown(path, limit=200)} is not a regular file")
    return status.st_size


def read_start(path: str, count: int) -> bytes:
    """Return the first ``count`` bytes of a file, or all of a shorter one; ModelFileError when unreadable."""
    try:
        with open(path, "rb") as handle:
            return handle.read(count)
    except (OSError, ValueError) as error:
        raise ModelFileError(f"cannot read {shown(path, limit=200)}: {_reason(error)}") from None


def list_directory(path: str) -> list[str]:
    """Return the sorted names in a directory; ModelFileError when it cannot be read."""
    try:
        return sorted(os.listdir(path))
    except (OSError, ValueError) as error:
        raise ModelFileError(f"cannot read directory {shown(path, limit=200)}: {_reason(error)}") from None


def all_parts(path: str, suffix: str) -> list[str]:
    """Return the paths of the whole set that ``path`` belongs to; ``[path]`` if it is not named ``-k-of-n``.

    ``suffix`` is the file ending with its dot. Raises ModelFileError when the number is outside 1..n or a
    part is missing beside it: a sum over some parts would look plausible and be wrong.
    """
    folder, name = os.path.split(path)
    found = _PART.fullmatch(name.removesuffix(suffix)) if name.endswith(suffix) else None
    if found is None:
        return [path]
    stem, number, total = found.group("stem"), found.group("number"), found.group("total")
    count = int(total)
    if not 1 <= int(number) <= count:
        raise ModelFileError(f"{shown(name)}: part {int(number)} of {count} does not exist")
    names = [f"{stem}-{i:0{len(number)}d}-of-{total}{suffix}" for i in range(1, count + 1)]
    present = set(list_directory(folder or os.curdir))
    missing = [part for part in names if part not in present]
    if missing:
        raise ModelFileError(f"{len(missing):,} of {count:,} parts are missing: {name_some(missing)}")
    return [os.path.join(folder, part) for part in names]


def part_number(path: str, suffix: str) -> tuple[int, int] | None:
    """Return ``(k, n)`` of a file named ``...-k-of-n<suffix>``; None for any other name."""
    found = _PART.fullmatch(os.path.basename(path).removesuffix(suffix))
    return (int(found.group("number")), int(found.group("total"))) if found else None


def name_some(names: list[str], *, count: int = 3) -> str:
    """Name the first ``count`` of ``names`` for an error message, and say how many more there are."""
    some = ", ".join(shown(name) for name in names[:count])
    return some + (f" and {len(names) - count:,} more" if len(names) > count else "")


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
