"""``headcount gpus [TEXT]``: the accelerators, what they are sold as and what the driver reports."""

from __future__ import annotations

import sys

from headcount.cli.options import Parser
from headcount.cli.output import emit_json
from headcount.errors import UnknownNameError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse


def make_parser() -> Parser:
    """Options of ``gpus``."""
    parser = Parser(prog="headcount gpus", description="List or search the accelerators.")
    parser.add_argument("search", nargs="?", metavar="TEXT", help="part of a name or vendor")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def run(args: argparse.Namespace) -> int:
    """Print the table, return 0; UnknownNameError when nothing matches."""
    from headcount.hardware import accelerators, price

    cards = accelerators()
    if args.search:
        word = args.search.lower()
        cards = tuple(
            c for c in cards if any(word in text for text in (c.name, c.vendor.lower(), *c.aliases))
        )
        if not cards:
            raise UnknownNameError(what="GPU", given=args.search, allowed=[c.name for c in accelerators()])
    if args.json:
        emit_json({"gpus": [card.as_dict() for card in cards]})
        return 0
    from headcount.cli.options import wants_colour
    from headcount.report.console import Page

    page = Page(colour=wants_colour())
    rows = []
    for card in cards:
        found = price(card.name)
        rows.append(
            (
                card.name,
                f"{card.datasheet_gb:g}",
                "-" if card.reported_mib is None else f"{card.reported_mib:,}",
                f"{card.bandwidth_gb_s:,.0f}",
                f"{card.dense_tflops['bf16']:,.0f}" if "bf16" in card.dense_tflops else "-",
                "-" if found is None else f"{found.usd_per_hour:.2f}",
                "" if card.verified else "unverified",
            )
        )
    page.table(
        ("name", "GB sold", "MiB seen", "GB/s", "bf16 TFLOP/s", "USD/h", ""), rows, right={1, 2, 3, 4, 5}
    )
    sys.stdout.write(page.text())
    return 0
