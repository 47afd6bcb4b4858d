"""``headcount engines [NAME]``: the engines, their releases, and the arguments that ``--engine-arg`` takes."""

from __future__ import annotations

import sys

from headcount.cli.options import Parser, wants_colour
from headcount.cli.output import emit_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from headcount.engines.base import Engine

# Where the help of an argument begins.
_COLUMN = 38


def make_parser() -> Parser:
    """Options of ``engines``."""
    parser = Parser(prog="headcount engines", description="Engines, their releases and their own arguments.")
    parser.add_argument("name", metavar="NAME", nargs="?", help="one engine, such as vllm")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def run(args: argparse.Namespace) -> int:
    """List, return 0; UnknownNameError for an engine that is not known."""
    from headcount.engines import ENGINES, engine

    found = [engine(name) for name in ([args.name] if args.name else ENGINES)]
    if args.json:
        emit_json({"engines": [_document(each) for each in found]})
        return 0
    from headcount.report.console import Page

    page = Page(colour=wants_colour())
    for each in found:
        page.blank()
        page.pair(each.name, f"release {each.version} unless --engine-version says another")
        for argument in each.arguments:
            default = "" if argument.default in (None, False, "none") else f" (default {argument.default})"
            values = (
                "|".join(argument.choices)
                if argument.choices
                else ""
                if argument.kind == "flag"
                else argument.kind.upper()
            )
            label = f"{argument.name}={values}" if values else argument.name
            text = argument.help
            if len(label) + 3 > _COLUMN:
                label, text = f"{argument.name}=NAME", f"{text}: {', '.join(argument.choices)}"
            page.wrapped(f"{text}{default}", indent=2, hanging=_COLUMN, label=label + " ")
        if not each.arguments:
            page.line("  no arguments of its own")
    sys.stdout.write(page.text())
    return 0


def _document(each: Engine) -> dict[str, object]:
    arguments = [
        {
            "name": argument.name,
            "kind": argument.kind,
            "choices": list(argument.choices),
            "default": argument.default,
            "help": argument.help,
        }
        for argument in each.arguments
    ]
    return {"name": each.name, "version": each.version, "arguments": arguments}
