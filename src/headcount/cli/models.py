"""``headcount models [TEXT]``: the catalogue."""

from __future__ import annotations

import sys

from headcount.cli.options import Parser
from headcount.cli.output import emit_json
from headcount.errors import UnknownNameError
from headcount.units import human_count

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any


def make_parser() -> Parser:
    """Options of ``models``."""
    parser = Parser(prog="headcount models", description="List or search the model catalogue.")
    parser.add_argument(
        "search", nargs="*", metavar="TEXT", help="words that a name, an alias or the family must hold"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def run(args: argparse.Namespace) -> int:
    """Print the matching models, return 0; UnknownNameError when nothing matches."""
    from headcount.spec import catalogue

    words = [word.lower() for word in args.search]
    rows = [model for model in catalogue.index() if _matches(model, words)]
    if not rows:
        raise UnknownNameError(what="model", given=" ".join(args.search), allowed=catalogue.names())
    if args.json:
        emit_json({"models": rows})
        return 0
    from headcount.cli.options import wants_colour
    from headcount.report.console import Page

    page = Page(colour=wants_colour())
    table = [
        (
            model["name"],
            human_count(model["parameters"]),
            f"{model['kv_bytes_per_token']:,}",
            f"{model['max_positions']:,}" if model["max_positions"] else "-",
            model["family"],
        )
        for model in rows
    ]
    page.table(("name", "parameters", "KV B/token", "positions", "family"), table, right={1, 2, 3})
    page.blank()
    page.line(f"{len(rows)} models; KV bytes per token in 16 bits while no window is full", "dim")
    sys.stdout.write(page.text())
    return 0


def _matches(model: dict[str, Any], words: list[str]) -> bool:
    text = " ".join([model["name"], model["family"], *model["aliases"]]).lower()
    return all(word in text for word in words)
