"""Name tables: which tensor of a file fills which parameter, and what is done to it on the way.

Two columns, ours and theirs, and an optional third saying how (``transformations.py``), steps separated by ``;``:

    embedding.weight                  model.embed_tokens.weight
    layers.{i}.mixer.query.weight     model.layers.{i}.self_attn.q_proj.weight
    layers.{i}.mixer.query.weight     transformer.h.{i}.attn.c_attn.weight          transpose; rows 0 of 3
    layers.{i}.feed_forward.gate      model.layers.{i}.mlp.experts.{e}.w1.weight    expert {e}

``{i}`` is the layer. ``{e}`` is the expert: the tensors of experts 0 to E - 1, each transformed, are stacked into one
(``expert {e}`` in the third column says so and does nothing more). When a parameter has several rows, the first whose
tensors the file holds is used. Text from ``#`` on is a remark.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from headcount.errors import UnknownNameError, UsageError
from headcount.transformer.weights.transformations import TRANSFORMATIONS

LAYER, EXPERT = "{i}", "{e}"
_STACKED = "expert {e}"
_INDEX = re.compile(r"(?<=\.)\d+(?=\.)")


class Row(NamedTuple):
    """One line of a name table."""

    ours: str
    theirs: str
    how: tuple[str, ...] = ()


def read_names(text: str) -> list[Row]:
    """Parse a name table.

    Raises
    ------
    UsageError, UnknownNameError: a line is not ``ours theirs [how]``, or names no transformation there is.
    """
    found = []
    for line in text.splitlines():
        columns = line.partition("#")[0].split(None, 2)
        if not columns:
            continue
        if len(columns) < 2:
            raise UsageError(
                f"name table: {line.strip()!r} has one column; it needs ours, theirs and perhaps how"
            )
        steps = [" ".join(step.split()) for step in columns[2].split(";")] if len(columns) == 3 else []
        how = tuple(step for step in steps if step != _STACKED)
        for step in how:
            if step.partition(" ")[0] not in TRANSFORMATIONS:
                raise UnknownNameError(
                    what="transformation", given=step, allowed=[*TRANSFORMATIONS, _STACKED]
                )
        if (_STACKED in steps and EXPERT not in columns[1]) or EXPERT in columns[0]:
            raise UsageError(
                f"name table: {line.strip()!r}: {EXPERT} belongs into the second column, and only there"
            )
        if LAYER in columns[1] and LAYER not in columns[0]:
            raise UsageError(f"name table: {line.strip()!r}: {LAYER} is in theirs and not in ours")
        found.append(Row(columns[0], columns[1], how))
    return found


def rows_of(parameter: str, rows: dict[str, list[Row]]) -> tuple[list[Row], str]:
    """The rows that may fill ``parameter`` and its layer index (``""`` for one outside the layers)."""
    if parameter in rows:
        return rows[parameter], ""
    index = _INDEX.search(parameter)
    if index is None:
        return [], ""
    return rows.get(parameter[: index.start()] + LAYER + parameter[index.end() :], []), index.group(0)


def by_parameter(rows: list[Row]) -> dict[str, list[Row]]:
    """Rows grouped by their first column, order kept."""
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        grouped.setdefault(row.ours, []).append(row)
    return grouped
