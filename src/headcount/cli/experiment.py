"""``headcount experiment [NAME]``: test the chapters' claims; without a name, list the experiments."""

from __future__ import annotations

import sys

from headcount.cli.options import Parser, missing_extra, optional_count, wants_colour
from headcount.cli.output import emit_json
from headcount.errors import UsageError
from headcount.experiments import registry
from headcount.experiments.registry import EXPERIMENTS, MOST_REPEATS, MOST_SEED, experiment
from headcount.units import parse_count

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import NoReturn

_EPILOG = (
    "examples\n  headcount experiment gradients --widths 64,1024\n  headcount experiment heads --quick --json"
)


class ExperimentParser(Parser):
    """The parser of a command that takes one NAME."""

    def error(self, message: str) -> NoReturn:
        """As ``Parser``, with NAME in place of MODEL."""
        word = message.removeprefix("unrecognized arguments: ").split()[0]
        if message.startswith("unrecognized arguments: ") and not word.startswith("-"):
            raise UsageError(
                f"unexpected argument {word[:60]!r}; {self.prog} takes one NAME ({self.prog} --help)"
            )
        super().error(message)


def make_parser() -> Parser:
    """Options of ``experiment``: those of every experiment, each named after what takes it."""
    parser = ExperimentParser(
        prog="headcount experiment",
        description="Test the chapters' claims by experiment. Without NAME: list the experiments.",
        epilog=_EPILOG,
    )
    parser.add_argument("experiment", metavar="NAME", nargs="?", help=", ".join(EXPERIMENTS))
    parser.add_argument("--seed", metavar="N", help="of every random number (default 0)")
    parser.add_argument("--repeats", metavar="N", help="independent repeats; the spread is over them")
    parser.add_argument("--quick", action="store_true", help="small sizes: seconds, not minutes")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    for name, (words, owners) in _options().items():
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, metavar="X", help=f"{words} ({', '.join(owners)})")
    return parser


def _options() -> dict[str, tuple[str, list[str]]]:
    """Every option's words and the experiments that take it."""
    found: dict[str, tuple[str, list[str]]] = {}
    for each in EXPERIMENTS.values():
        for option in each.options:
            found.setdefault(option.name, (option.words, []))[1].append(each.name)
    return found


def run(args: argparse.Namespace) -> int:
    """Answer, print, return 0."""
    given = {name: text for name in _options() if (text := getattr(args, name)) is not None}
    if args.experiment is None:
        if given or args.seed is not None or args.repeats is not None or args.quick:
            raise UsageError(f"which experiment? give a NAME: {', '.join(EXPERIMENTS)}")
        return _list(as_json=args.json)
    entry = experiment(args.experiment)
    options = {name: entry.option(name).parse(text) for name, text in given.items()}
    seed = 0 if args.seed is None else parse_count(args.seed, what="--seed", minimum=0, maximum=MOST_SEED)
    repeats = optional_count(args.repeats, what="--repeats", maximum=MOST_REPEATS)
    if not args.quick and entry.seconds >= 60 and sys.stderr.isatty():
        sys.stderr.write(f"{entry.name} takes about {entry.seconds} s; --quick takes seconds\n")
    try:
        result = registry.run(entry.name, seed=seed, repeats=repeats, quick=args.quick, **options)
    except ModuleNotFoundError as error:
        raise missing_extra("headcount experiment", error) from None
    if args.json:
        emit_json(result.as_document())
        return 0
    from headcount.report.console import Page
    from headcount.report.experiment_page import write_result

    page = Page(colour=wants_colour())
    write_result(page, result)
    sys.stdout.write(page.text())
    return 0


def _list(*, as_json: bool) -> int:
    if as_json:
        emit_json({"experiments": [each.as_document() for each in EXPERIMENTS.values()]})
        return 0
    from headcount.report.console import Page
    from headcount.report.experiment_page import write_experiments

    page = Page(colour=wants_colour())
    write_experiments(page, EXPERIMENTS)
    sys.stdout.write(page.text())
    return 0
