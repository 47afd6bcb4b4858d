"""``headcount accuracy``: the published engine starts beside what the rules predict, error by error."""

from __future__ import annotations

import sys

from headcount.cli.options import Parser
from headcount.cli.output import emit_json
from headcount.errors import HeadcountError, UsageError, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from headcount.report.console import Page
    from headcount.verify.accuracy import Outcome
    from headcount.verify.observation import Observation

DESCRIPTION = """Run the table of engine starts that ships with headcount (public logs with their
sources) and print the error of every prediction: pool from its bytes, weights, memory
balance, and the cache end to end from model, card, release and settings alone."""
EPILOG = """examples
  headcount accuracy
  headcount accuracy --rows --engine vllm
  headcount accuracy --logs kv_logs.jsonl --configs configs/ --json
  headcount accuracy --planner-cases vllm_planner_cases.jsonl"""


def make_parser() -> Parser:
    """Options of ``accuracy``."""
    parser = Parser(prog="headcount accuracy", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument(
        "--logs", metavar="FILE", help="a JSON Lines file of rows, in place of the shipped table"
    )
    parser.add_argument(
        "--configs", metavar="DIR", help="the folder of config files that the rows of --logs name"
    )
    parser.add_argument(
        "--planner-cases", metavar="FILE", help="layer mixes and the answers of vLLM's own planner"
    )
    parser.add_argument("--engine", metavar="NAME", help="only rows of this engine")
    parser.add_argument(
        "--rows", action="store_true", help="list what is not reproduced or left out, with its reason"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def run(args: argparse.Namespace) -> int:
    """Judge, print, return 0."""
    if args.planner_cases is not None:
        if args.logs is not None or args.configs is not None:
            raise UsageError("--planner-cases and --logs are two questions; ask one at a time")
        return _planner_cases(args)
    if args.configs is not None and args.logs is None:
        raise UsageError("--configs belongs to --logs FILE, which is missing")
    from headcount.report.accuracy_page import accuracy_document, write_accuracy
    from headcount.verify.accuracy import DEFECT, judge, public_table, read_table, refused, score

    if args.logs is None:
        rows, configs = public_table()
        found: list[tuple[Observation, dict[str, Any] | str | None]] = [
            (row, configs.get(row.config or "")) for row in rows
        ]
    else:
        if args.configs is None:
            raise UsageError("--logs needs --configs DIR, the folder of config files that its rows name")
        found = [(row, _config(args.configs, row.config)) for row in read_table(args.logs)]
    if not found:
        raise UsageError(f"{args.logs}: no row in it")
    if args.engine is not None:
        found = [(row, config) for row, config in found if row.engine == args.engine.strip().lower()]
        if not found:
            raise UsageError(f"no row of engine {args.engine!r} in the table")
    outcomes: list[Outcome] = []
    for row, config in found:
        # A config that cannot be read is that row's reason; the other rows are judged all the same.
        outcomes += [refused(row, config)] if isinstance(config, str) else judge(row, config)
    scores = score(outcomes)
    if args.json:
        emit_json(accuracy_document(outcomes, scores))
    else:
        page = _page()
        write_accuracy(page, outcomes, scores, listing=args.rows)
        sys.stdout.write(page.text())
    defects = [outcome for outcome in outcomes if outcome.reason.startswith(DEFECT)]
    for outcome in defects:
        sys.stderr.write(f"headcount: {printable(outcome.row.id)}: {printable(outcome.reason)}\n")
    return 70 if defects else 0


def _config(folder: str, name: str | None) -> dict[str, Any] | str | None:
    """The config of a row; None when the row names none, and why where it cannot be read."""
    from headcount.verify.accuracy import read_config

    if not name:
        return None
    try:
        return read_config(folder, name)
    except HeadcountError as error:
        return str(error)


def _planner_cases(args: argparse.Namespace) -> int:
    from headcount.report.accuracy_page import planner_document, write_planner_cases
    from headcount.verify.accuracy import read_objects
    from headcount.verify.planner_cases import judge_case

    outcomes = [judge_case(case, where) for where, case in read_objects(args.planner_cases)]
    if not outcomes:
        raise UsageError(f"{args.planner_cases}: no case in it")
    if args.json:
        emit_json(planner_document(outcomes))
    else:
        page = _page()
        write_planner_cases(page, outcomes)
        sys.stdout.write(page.text())
    return 0


def _page() -> Page:
    from headcount.cli.options import wants_colour
    from headcount.report.console import Page

    return Page(colour=wants_colour())
