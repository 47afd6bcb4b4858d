"""``headcount show MODEL [--context N]``: parameters, bytes per token, FLOPs, crossovers."""

from __future__ import annotations

import sys

from headcount.cli.options import (
    Parser,
    add_model_options,
    add_output_options,
    head_change_warning,
    optional_count,
    read_asked_model,
)
from headcount.cli.output import emit_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse


def make_parser() -> Parser:
    """Options of ``show``."""
    parser = Parser(
        prog="headcount show", description="A model's parameters, bytes per token, FLOPs and crossovers."
    )
    add_model_options(parser)
    parser.add_argument(
        "--context", metavar="N", help="tokens of a conversation (default 4096, or the model's positions)"
    )
    add_output_options(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Answer, print, return 0."""
    from headcount.cost.profile import profile

    asked = optional_count(args.context, what="--context", maximum=2**31)
    model = read_asked_model(args)
    context = asked or min(4096, model.max_positions or 4096)
    warnings = [*head_change_warning(args, model), *model.notes]
    if model.max_positions and context > model.max_positions:
        warnings.append(f"context {context:,} is past the {model.max_positions:,} positions of {model.name}")
    if not model.parameters_known and model.nominal_parameters is None:
        warnings.append(
            "ffn, vocab or hidden not given: parameters, weights and FLOPs are not known, only the cache is"
        )
    found = profile(model, context=context, weights=args.weights, kv=args.kv)
    if args.json:
        emit_json(found.as_document(warnings))
        return 0
    from headcount.cli.options import wants_colour
    from headcount.report.console import Page
    from headcount.report.show_page import write_profile
    from headcount.report.text import ledger_lines

    page = Page(colour=wants_colour())
    write_profile(page, found)
    if args.explain:
        page.blank()
        for line in ledger_lines(found.ledger):
            page.line(line)
    sys.stdout.write(page.text())
    sys.stdout.flush()
    for warning in warnings:
        sys.stderr.write(f"warning: {warning}\n")
    return 0
