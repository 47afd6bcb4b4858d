"""Choose how an answer is written: one JSON object, the ledger, or the console report."""

from __future__ import annotations

import json
import sys

from headcount.errors import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from headcount.planner.plan import Plan


def emit_json(document: dict[str, object]) -> None:
    """Print one JSON object on stdout; signs that no terminal should see, or no encoding has, are escaped."""
    text = json.dumps(document, ensure_ascii=False)
    sys.stdout.write((text if text.isprintable() else json.dumps(document)) + "\n")


def emit_plan(plan: Plan, args: argparse.Namespace) -> None:
    """Print a plan in the asked form; warnings are in the JSON object, else on stderr."""
    if args.json:
        from headcount.report.json_form import plan_document

        emit_json(plan_document(plan))
        return
    from headcount.cli.options import wants_colour
    from headcount.report.console import Page
    from headcount.report.plan_page import write_plan
    from headcount.report.text import ledger_lines

    page = Page(colour=wants_colour())
    write_plan(page, plan)
    if args.explain:
        page.blank()
        for line in ledger_lines(plan.ledger):
            page.line(line)
    sys.stdout.write(page.text())
    sys.stdout.flush()
    for warning in plan.warnings:
        if warning.startswith("too close to call"):
            continue  # said on the page
        sys.stderr.write(f"warning: {printable(warning)}\n")
