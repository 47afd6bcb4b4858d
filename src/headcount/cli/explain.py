"""``headcount explain [TOPIC]``: a derivation step by step, with the numbers computed at that moment."""

from __future__ import annotations

import sys

from headcount.cli.options import Parser, missing_extra, optional_count
from headcount.errors import HeadcountError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from headcount.explain.asked import Asked
    from headcount.explain.derivation import Derivation
    from headcount.explain.topics import Topic

_EPILOG = """examples
  headcount explain attention --example upi --causal
  headcount explain attention --set "x[1,1]=4"
  headcount explain backward --example identity --html backward.html
  headcount explain flops --model mistral-7b
  headcount explain graph --example identity --svg graph.svg
"""


def make_parser() -> Parser:
    """Options of ``explain``."""
    parser = Parser(
        prog="headcount explain",
        description="Derive a topic step by step; every number is computed now. Without TOPIC: the list of topics.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "topic", nargs="?", metavar="TOPIC", help="attention, backward, ... (none: list them)"
    )
    parser.add_argument("--example", metavar="NAME", help="a built-in example: upi, identity; graph has more")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="CELL=N",
        help='change a cell, counted from 0: "x[1,1]=4"',
    )
    parser.add_argument("--causal", action="store_true", help="mask the future")
    parser.add_argument("--scale", metavar="S", help="sqrt (default: 1/sqrt(d_k)), none, dk (1/d_k)")
    parser.add_argument("--model", metavar="MODEL", help="a model, as in headcount show (flops, kv-cache)")
    parser.add_argument("--context", metavar="N", help="tokens (flops, kv-cache)")
    parser.add_argument("--seed", metavar="N", help="seed of random numbers (default 0)")
    parser.add_argument(
        "--collapse",
        action="append",
        default=[],
        metavar="SCOPE",
        help="fold a scope of the graph; *1, *2: every scope of that depth",
    )
    parser.add_argument("--digits", metavar="N", help="decimals shown, 1 to 15 (default 4)")
    parser.add_argument("--svg", metavar="FILE", help="write the graph as SVG")
    parser.add_argument("--html", metavar="FILE", help="write one self-contained page")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def run(args: argparse.Namespace) -> int:
    """List the topics, or derive one and print it; return 0."""
    from headcount.explain.topics import derive, find_topic

    digits = optional_count(args.digits, what="--digits", maximum=15) or 4
    if args.topic is None:
        _refuse_options(args, None)
        _list_topics(args)
        return 0
    topic = find_topic(args.topic)
    _refuse_options(args, topic)
    try:
        found = derive(topic.name, _asked(args))
    except ModuleNotFoundError as error:
        raise missing_extra(f"headcount explain {topic.name}", error) from None
    if args.svg:
        _write_svg(args.svg, found)
    if args.html:
        from headcount.report.derivation_html import derivation_page

        _write(args.html, derivation_page(found, digits), "--html")
    if args.json:
        from headcount.cli.output import emit_json

        emit_json(found.as_document())
    elif not (args.svg or args.html):
        _print(found, digits)
    return 0


def _asked(args: argparse.Namespace) -> Asked:
    from headcount.explain.asked import Asked
    from headcount.units import parse_count

    return Asked(
        example=args.example,
        cells=tuple(args.set),
        causal=args.causal,
        scale=args.scale or "sqrt",
        model=args.model,
        context=optional_count(args.context, what="--context", maximum=2**31),
        seed=0 if args.seed is None else parse_count(args.seed, what="--seed", minimum=0, maximum=2**31),
        collapse=tuple(args.collapse),
    )


_GIVEN = ("example", "set", "causal", "scale", "model", "context", "seed", "collapse", "svg")


def _refuse_options(args: argparse.Namespace, topic: Topic | None) -> None:
    """An option that the topic does not read is refused, not ignored."""
    takes = () if topic is None else topic.options
    for option in _GIVEN:
        if getattr(args, option) and option not in takes:
            if topic is None:
                raise UsageError(f"--{option} needs a topic (headcount explain lists them)")
            allowed = ", ".join("--" + name for name in (*takes, "digits", "html", "json"))
            raise UsageError(f"topic {topic.name} does not read --{option}; it takes {allowed}")
    if topic is None and args.html:
        raise UsageError("--html needs a topic (headcount explain lists them)")


def _list_topics(args: argparse.Namespace) -> None:
    from headcount.explain.topics import TOPICS

    if args.json:
        from headcount.cli.output import emit_json

        topics = [{"name": t.name, "words": t.words, "options": list(t.options)} for t in TOPICS.values()]
        emit_json({"question": "explain", "topics": topics})
        return
    width = max(len(name) for name in TOPICS)
    for topic in TOPICS.values():
        sys.stdout.write(f"{topic.name:<{width}}  {topic.words}\n")
    sys.stdout.write(
        "\nheadcount explain TOPIC [--html FILE] [--json]; options: headcount explain -h\n"
        "Start with attention, backward, softmax, scaling;\n"
        "chapters: docs/derivations, tests of claims: headcount experiment\n"
    )


def _print(found: Derivation, digits: int) -> None:
    from headcount.cli.options import wants_colour
    from headcount.report.console import Page
    from headcount.report.derivation_text import write_derivation

    page = Page(colour=wants_colour())
    write_derivation(page, found, digits)
    sys.stdout.write(page.text())
    sys.stdout.flush()


def _write_svg(path: str, found: Derivation) -> None:
    from headcount.report.graph_svg import graph_svg

    graph = next(step.graph for step in found.steps if step.graph is not None)
    _write(path, graph_svg(graph, title=found.title), "--svg")


def _write(path: str, text: str, option: str) -> None:
    try:
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise HeadcountError(f"{option} {path[:120]!r} cannot be written: {reason}") from None
    sys.stderr.write(f"wrote {path}\n")
