"""``Term`` and ``Ledger``: no number is printed that is not a term, and every term keeps how it came about.

    conversations = floor(cache budget / bytes per conversation)
                  = floor(58,000,000,000 / 536,870,912) = 108        [conversations]  source: textbook

A ``Ledger`` is a named, ordered tree: terms, then nested ledgers. ``--explain`` prints it, ``--json`` carries it.
"""

from __future__ import annotations

from headcount.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


class Term(Record):
    """One number with its formula in symbols, the same formula in numbers, its unit and its source.

    name      what it is, in words                 ``KV bytes per token``
    symbol    the letter other formulas use        ``b``
    formula   in symbols                           ``2 L K H p``
    numbers   the same with numbers put in         ``2 x 32 x 8 x 128 x 2``
    value     the result                           131072
    unit      ``B``, ``tokens``, ``GPUs``, ...
    source    where a constant or rule comes from; empty when it is arithmetic on the terms above
    """

    name: str
    symbol: str
    value: int | float
    unit: str
    formula: str = ""
    numbers: str = ""
    source: str = ""


class Ledger(Record):
    """A tree of terms: ``terms`` first, then ``parts``."""

    name: str
    terms: tuple[Term, ...] = ()
    parts: tuple[Ledger, ...] = ()

    def walk(self) -> Iterator[tuple[int, Ledger | Term]]:
        """Yield ``(depth, node)`` in reading order, this ledger first."""
        stack: list[tuple[int, Ledger | Term]] = [(0, self)]
        while stack:
            depth, node = stack.pop()
            yield depth, node
            if isinstance(node, Ledger):
                children: list[Ledger | Term] = [*node.terms, *node.parts]
                stack.extend((depth + 1, child) for child in reversed(children))

    def find(self, symbol: str) -> Term:
        """Return the first term with that symbol; KeyError when there is none."""
        for _, node in self.walk():
            if isinstance(node, Term) and node.symbol == symbol:
                return node
        raise KeyError(symbol)

    def as_dict(self) -> dict[str, object]:
        """Return the tree as plain dictionaries, ready for JSON; empty fields are left out."""
        terms = [{key: value for key, value in term.as_dict().items() if value != ""} for term in self.terms]
        out: dict[str, object] = {"name": self.name, "terms": terms}
        if self.parts:
            out["parts"] = [part.as_dict() for part in self.parts]
        return out
