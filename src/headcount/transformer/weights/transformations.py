"""What a name table may do to a tensor on its way from a file to a parameter: one function per name.

    transpose                      rows k of n        rows a:b         columns k of n      columns a:b
    heads k of n by H              halves by H        interleave k of n                    interleave columns k of n
    reshape N H D                  add 1              minus 1

Rows are the dimension before the last (the only one of a vector): the outputs of a stored linear weight. Columns are the
last. Sizes are whole numbers, letters of the network (``N``, ``H``, ``D``, ...), products written side by side (``NH``,
``2F``), and sums or differences of these (``NH+KH``). All but ``add`` and ``minus`` give views where PyTorch can.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from torch import Tensor

from headcount.errors import ModelFileError, UnknownNameError, UsageError
from headcount.transformer.ops.precision import widen

_TERM = re.compile(r"([+-]?)(\d*)([A-Za-z]*)")


def size(text: str, letters: Mapping[str, int]) -> int:
    """The whole number that ``text`` stands for: ``NH+KH`` is N H + K H.

    Raises
    ------
    UsageError: it is not such an expression, or a letter has no size.
    """
    total, at = 0, 0
    while at < len(text):
        found = _TERM.match(text, at)
        if (
            found is None
            or not found.group(0)
            or not (found.group(2) or found.group(3))
            or (at and not found.group(1))
        ):
            raise UsageError(f"name table: {text!r} is not a size (whole numbers, letters, + and -)")
        sign, number, product = found.groups()
        value = int(number or 1) * _product(product, letters)
        total += -value if sign == "-" else value
        at = found.end()
    if not text:
        raise UsageError("name table: a size is missing")
    return total


def _product(letters_text: str, letters: Mapping[str, int]) -> int:
    value = 1
    for letter in letters_text:
        if letter not in letters:
            raise UsageError(
                f"name table: letter {letter!r} has no size; given: {', '.join(sorted(letters)) or 'none'}"
            )
        value *= letters[letter]
    return value


def transpose(x: Tensor, words: list[str], letters: Mapping[str, int]) -> Tensor:
    """``transpose``: the last two dimensions change places (GPT-2 stores (inputs, outputs))."""
    if words or x.ndim < 2:
        raise UsageError(
            f"name table: transpose takes no words and a matrix; given {words} and {x.ndim} dimensions"
        )
    return x.transpose(-1, -2)


def rows(x: Tensor, words: list[str], letters: Mapping[str, int]) -> Tensor:
    """``rows k of n``: the k-th of n equal blocks of rows; ``rows a:b``: rows a to b - 1."""
    return _part(x, _row_dimension(x), words, letters)


def columns(x: Tensor, words: list[str], letters: Mapping[str, int]) -> Tensor:
    """``columns k of n``, ``columns a:b``: the same along the last dimension."""
    return _part(x, x.ndim - 1, words, letters)


def heads(x: Tensor, words: list[str], letters: Mapping[str, int]) -> Tensor:
    """``heads k of n by H``: rows are groups of n heads of H rows; the k-th (or ``a:b``) head of every group, in order.

    Fused projections that store query, key and value head by head: (N, 3, H, D) in GPT-NeoX and BLOOM (``heads 1 of 3
    by H`` is the key), (K, G+2, H, D) in Falcon (``heads 0:G of G+2 by H`` is the query, ``heads G of G+2 by H`` the key).
    """
    if len(words) != 5 or words[1] != "of" or words[3] != "by":
        raise UsageError(f"name table: heads {' '.join(words)!r} is not 'k of n by H'")
    count, width = size(words[2], letters), size(words[4], letters)
    dim = _row_dimension(x)
    first, last = _range(words[0], letters)
    if count < 1 or width < 1 or x.shape[dim] % (count * width) or not 0 <= first < last <= count:
        raise ModelFileError(
            f"heads {' '.join(words)}: {x.shape[dim]:,} rows are not groups of {count:,} heads of {width:,}"
        )
    parted = _split(x, dim, -1, count, width)
    return parted.narrow(dim + 1, first, last - first).flatten(dim, dim + 2)


def halves(x: Tensor, words: list[str], letters: Mapping[str, int]) -> Tensor:
    """``halves by H``: in every head of H rows, rows 0, 2, 4, ... then 1, 3, 5, ...

    Rotary embedding turns pairs: stored side by side (interleaved) they are rows 2j, 2j + 1; in two halves, rows j and
    j + H/2. This goes from the first layout, which llama.cpp's converter writes for Llama, to the second.
    """
    if len(words) != 2 or words[0] != "by":
        raise UsageError(f"name table: halves {' '.join(words)!r} is not 'by H'")
    width, dim = size(words[1], letters), _row_dimension(x)
    if width < 2 or width % 2 or x.shape[dim] % width:
        raise ModelFileError(
            f"halves by {words[1]}: {x.shape[dim]:,} rows are not heads of {width:,}, an even number"
        )
    return _split(x, dim, -1, width // 2, 2).transpose(dim + 1, dim + 2).flatten(dim, dim + 2)


def interleave(x: Tensor, words: list[str], letters: Mapping[str, int]) -> Tensor:
    """``interleave k of n``: every n-th row from the k-th (gpt-oss keeps gate and up so); ``interleave columns k of n``."""
    along_columns = words[:1] == ["columns"]
    dim = x.ndim - 1 if along_columns else _row_dimension(x)
    k, n = _counted(words[1:] if along_columns else words, letters)
    if x.shape[dim] % n:
        raise ModelFileError(f"interleave {' '.join(words)}: {x.shape[dim]:,} does not divide by {n:,}")
    return _split(x, dim, -1, n).select(dim + 1, k)


def reshape(x: Tensor, words: list[str], letters: Mapping[str, int]) -> Tensor:
    """``reshape N H D``: the same numbers in another shape (a view)."""
    shape = [size(word, letters) for word in words]
    count = 1
    for extent in shape:
        count *= extent
    if count != x.numel():
        raise ModelFileError(f"reshape {' '.join(words)}: {tuple(x.shape)} does not hold {count:,} numbers")
    return x.reshape(shape)


def add(x: Tensor, words: list[str], letters: Mapping[str, int]) -> Tensor:
    """``add 1``: x + 1, in float32 when x is narrower."""
    return widen(x) + _single(words)


def minus(x: Tensor, words: list[str], letters: Mapping[str, int]) -> Tensor:
    """``minus 1``: x - 1, in float32 when x is narrower (Gemma's norms in GGUF files hold 1 + w)."""
    return widen(x) - _single(words)


TRANSFORMATIONS: dict[str, Callable[[Tensor, list[str], Mapping[str, int]], Tensor]] = {
    "transpose": transpose,
    "rows": rows,
    "columns": columns,
    "heads": heads,
    "halves": halves,
    "interleave": interleave,
    "reshape": reshape,
    "add": add,
    "minus": minus,
}
ARITHMETIC = ("add", "minus")


def transform(x: Tensor, how: tuple[str, ...], letters: Mapping[str, int]) -> Tensor:
    """Apply the transformations in order. Works on the meta device too, where it gives shapes without reading anything.

    Raises
    ------
    UnknownNameError, UsageError: the table is wrong.    ModelFileError: the tensor does not fit it.
    """
    for step in how:
        name, *words = step.split()
        if name not in TRANSFORMATIONS:
            raise UnknownNameError(what="transformation", given=name, allowed=TRANSFORMATIONS)
        x = TRANSFORMATIONS[name](x, words, letters)
    return x


def _row_dimension(x: Tensor) -> int:
    if x.ndim == 0:
        raise ModelFileError("a single number has no rows")
    return max(x.ndim - 2, 0)


def _split(x: Tensor, dim: int, *sizes: int) -> Tensor:
    """``x`` with one dimension split into several, a view."""
    return x.reshape(*x.shape[:dim], *sizes, *x.shape[dim + 1 :])


def _part(x: Tensor, dim: int, words: list[str], letters: Mapping[str, int]) -> Tensor:
    extent = x.shape[dim]
    if len(words) == 1 and ":" in words[0]:
        first, last = _range(words[0], letters)
        if not 0 <= first <= last <= extent:
            raise ModelFileError(f"{words[0]} is {first:,}:{last:,}, beyond the {extent:,} there are")
        return x.narrow(dim, first, last - first)
    k, n = _counted(words, letters)
    if extent % n:
        raise ModelFileError(f"{' '.join(words)}: {extent:,} does not divide by {n:,}")
    return x.narrow(dim, k * (extent // n), extent // n)


def _counted(words: list[str], letters: Mapping[str, int]) -> tuple[int, int]:
    if len(words) != 3 or words[1] != "of":
        raise UsageError(f"name table: {' '.join(words)!r} is neither 'k of n' nor 'a:b'")
    k, n = size(words[0], letters), size(words[2], letters)
    if not 0 <= k < n:
        raise UsageError(f"name table: part {k} of {n} does not exist (they count from 0)")
    return k, n


def _range(text: str, letters: Mapping[str, int]) -> tuple[int, int]:
    """``a:b`` as it is, ``k`` as ``k:k+1``; an absent a is 0."""
    first, colon, last = text.partition(":")
    start = size(first, letters) if first or not colon else 0
    return start, size(last, letters) if colon else start + 1


def _single(words: list[str]) -> float:
    if len(words) != 1 or not re.fullmatch(r"\d+(\.\d+)?", words[0]):
        raise UsageError(f"name table: add and minus take one number; given {' '.join(words)!r}")
    return float(words[0])
