"""What the caller asked of a topic: the example, the what-ifs, the model, the seed."""

from __future__ import annotations

from headcount.errors import UnknownNameError
from headcount.explain.examples import SCALES, Example, WhatIf, find_example, read_cell
from headcount.record import Record


class Asked(Record):
    """Options as they were typed, each with its default; a topic reads those it declares (``topics/__init__.py``)."""

    example: str | None = None
    cells: tuple[str, ...] = ()
    causal: bool = False
    scale: str = "sqrt"
    model: str | None = None
    context: int | None = None
    seed: int = 0
    collapse: tuple[str, ...] = ()

    def worked_example(self, default: str) -> tuple[Example, WhatIf]:
        """The example and what is changed on it."""
        example = find_example(self.example or default)
        if self.scale not in SCALES:
            raise UnknownNameError(what="scale", given=self.scale, allowed=SCALES)
        cells = tuple(read_cell(text, example) for text in self.cells)
        return example, WhatIf(cells=cells, causal=self.causal, scale=self.scale)
