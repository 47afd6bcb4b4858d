"""``headcount verify --log FILE | --url URL``: what an engine reported beside what its rules predict."""

from __future__ import annotations

import os
import sys

from headcount.cli.options import Parser, optional_count, read_engine_arguments
from headcount.cli.output import emit_json
from headcount.errors import HeadcountError, UsageError, printable
from headcount.units import parse_count, parse_fraction

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from headcount.report.console import Page
    from headcount.verify.observation import Observation
    from headcount.verify.receipt import Receipt
    from headcount.verify.servers.load import Load
    from headcount.verify.servers.server import LiveServer

# Starts of one log whose gaps are explained: each may take seconds.
_EXPLAINED = 8
DESCRIPTION = """Read a start-up log of vLLM, SGLang, llama.cpp, Ollama or TensorRT-LLM, or ask a running
server, and print each term: predicted, reported, difference; name what explains a gap;
and say how many conversations that server really holds. Nothing is sent anywhere but
to the host that --url gives."""
EPILOG = """examples
  vllm serve ... 2>&1 | tee start.log; headcount verify --log start.log --context 4096
  headcount verify --log - --model llama-3.1-8b --gpu h100-80gb < start.log
  headcount verify --url http://127.0.0.1:8000 --load 12 --this-host-is-mine
  headcount verify --log start.log --save mine.json
  headcount fit llama-3.1-8b --gpu h100-80gb --context 4096 --calibration mine.json"""


def make_parser() -> Parser:
    """Options of ``verify``."""
    parser = Parser(prog="headcount verify", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--log", metavar="FILE", help="a start-up log; - reads standard input")
    parser.add_argument("--url", metavar="URL", help="a running server, such as http://127.0.0.1:8000")
    parser.add_argument(
        "--model", metavar="MODEL", help="the model, where the log does not name one known here"
    )
    parser.add_argument("--gpu", metavar="NAME", help="the card, where the log does not name it")
    parser.add_argument("--tp", metavar="N", help="tensor parallel size, where the log does not say it")
    parser.add_argument("--kv", metavar="DTYPE", help="cache format, where the log does not say it")
    parser.add_argument("--weights", metavar="DTYPE", help="weight format, where the log does not say it")
    parser.add_argument(
        "--utilization", metavar="FRAC", help="the engine's fraction, where the log does not say it"
    )
    parser.add_argument(
        "--engine-arg",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="an argument the engine was started with (headcount engines lists them)",
    )
    parser.add_argument("--engine-version", metavar="X", help="release, where the log does not say it")
    parser.add_argument(
        "--context", metavar="TOKENS", help="length of a conversation (default: the longest the server takes)"
    )
    parser.add_argument("--save", metavar="FILE", help="save the measured terms for --calibration")
    parser.add_argument("--load", metavar="N", help="with --url: really hold N conversations and watch")
    parser.add_argument(
        "--this-host-is-mine",
        metavar="HOST",
        nargs="?",
        const=True,
        default=False,
        help="needed by --load; names the host when it is not this machine",
    )
    parser.add_argument("--seconds", metavar="N", default="120", help="most seconds of a load (default 120)")
    parser.add_argument(
        "--api-key-env", metavar="NAME", help="environment variable that holds the server's key"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def run(args: argparse.Namespace) -> int:
    """Read, predict, print; return 0."""
    if (args.log is None) == (args.url is None):
        raise UsageError("give one of --log FILE and --url URL")
    if args.load is not None and args.url is None:
        raise UsageError("--load needs a running server: --url URL")
    context = optional_count(args.context, what="--context", maximum=2**31)
    if args.log is not None:
        return _log(args, context)
    return _live(args, context)


def _log(args: argparse.Namespace, context: int | None) -> int:
    from headcount.verify.logs import read_log

    if args.log == "-":
        reading = read_log(sys.stdin.buffer, name="standard input")
    else:
        try:
            with open(args.log, "rb") as file:
                reading = read_log(file, name=args.log)
        except OSError as error:
            raise UsageError(f"{args.log}: {error.strerror}") from None
    if not reading.observations:
        raise UsageError(f"{args.log}: {'; '.join(reading.refusals) or 'no start-up figures in it'}")
    receipts: list[Receipt] = []
    refused: list[str] = list(reading.refusals)
    for number, observation in enumerate(reading.observations):
        try:
            origin = "standard input" if args.log == "-" else os.path.basename(args.log)
            notes = reading.notes if not number else ()
            receipts.append(_receipt(args, observation, context, origin, notes, explain=number < _EXPLAINED))
        except HeadcountError as error:
            refused.append(str(error))
    if not receipts:
        raise UsageError("; ".join(dict.fromkeys(refused)))
    if len(reading.observations) > _EXPLAINED:
        refused.append(
            f"gaps are explained for the first {_EXPLAINED} of {len(reading.observations)} starts only"
        )
    _save(args, receipts)
    _print(args, receipts, refused)
    return 0


def _receipt(
    args: argparse.Namespace,
    observation: Observation,
    context: int | None,
    origin: str,
    notes: tuple[str, ...],
    *,
    explain: bool = True,
) -> Receipt:
    from headcount.verify.receipt import find_model, make_receipt

    said = {
        "gpu": args.gpu,
        "tensor_parallel": optional_count(args.tp, what="--tp", maximum=4096),
        "kv_cache_dtype": args.kv,
        "engine_version": args.engine_version,
        "gpu_memory_utilization": None
        if args.utilization is None
        else parse_fraction(args.utilization, what="--utilization", low=0.01),
        "arguments": (*observation.arguments, *read_engine_arguments(args.engine_arg)) or None,
    }
    notes = (*notes, *_overruled(observation, said))
    observation = observation.replace(**{name: value for name, value in said.items() if value is not None})
    model = find_model(observation, args.model)
    return make_receipt(
        observation,
        model,
        weights=args.weights,
        context=context,
        origin=origin,
        notes=notes,
        explain=explain,
    )


def _overruled(observation: Observation, said: dict[str, Any]) -> list[str]:
    """A word for every setting of the log in whose place another one was asked for."""
    words = {
        "tensor_parallel": "TP",
        "kv_cache_dtype": "cache format",
        "engine_version": "release",
        "gpu_memory_utilization": "utilization",
    }
    return [
        f"the log says {word} {getattr(observation, name)}; {said[name]} is compared, as asked"
        for name, word in words.items()
        if said[name] is not None and getattr(observation, name) not in (None, said[name])
    ]


def _save(args: argparse.Namespace, receipts: list[Receipt]) -> None:
    if args.save is None:
        return
    from headcount.engines.calibration import write_calibration

    if len(receipts) > 1:
        raise UsageError(f"--save: {len(receipts)} starts were read; save the log of one")
    if not receipts[0].asked.card_named:
        raise UsageError("--save: the log does not name a card that plans know; say which with --gpu NAME")
    found, engine = receipts[0].calibration, receipts[0].asked.engine
    if all(getattr(found, name) is None for name in engine.calibrated):
        terms = ", ".join(name.removesuffix("_bytes").replace("_", " ") for name in engine.calibrated)
        raise UsageError(f"--save: the log prints no term that a plan of {engine.name} takes over ({terms})")
    write_calibration(found, args.save)
    sys.stderr.write(f"saved {args.save}: plans use it with --calibration {args.save}\n")


def _page() -> Page:
    from headcount.cli.options import wants_colour
    from headcount.report.console import Page

    return Page(colour=wants_colour())


def _print(args: argparse.Namespace, receipts: list[Receipt], refused: list[str]) -> None:
    from headcount.report.verify_page import receipt_document, write_receipt

    if args.json:
        emit_json({"starts": [receipt_document(receipt) for receipt in receipts], "refused": refused})
        return
    page = _page()
    for receipt in receipts:
        page.blank()
        write_receipt(page, receipt)
    sys.stdout.write(page.text())
    for words in refused:
        sys.stderr.write(f"warning: {printable(words)}\n")


def _live(args: argparse.Namespace, context: int | None) -> int:
    from headcount.verify.servers.attach import attach

    seconds = parse_count(args.seconds, what="--seconds", maximum=3600)
    server = attach(args.url, key=_key(args.api_key_env))
    receipt, refused = None, []
    try:
        receipt = _receipt(args, server.observation, context, server.words, ())
    except HeadcountError as error:
        # The load needs no prediction; what could not be predicted is said beside it.
        refused.append(str(error))
        if args.load is None:
            raise
    load = None
    if args.load is not None:
        load = _hold(args, server, context, seconds)
    if receipt is not None:
        _save(args, [receipt])
    _print_live(args, server, receipt, load, refused)
    return 0


def _key(name: str | None) -> str | None:
    if name is None:
        return None
    key = os.environ.get(name)
    if not key:
        raise UsageError(f"--api-key-env {name}: no such environment variable, or it is empty")
    return key


def _hold(args: argparse.Namespace, server: LiveServer, context: int | None, seconds: int) -> Load:
    from headcount.report.load_bar import LoadBar
    from headcount.verify.servers.load import hold

    conversations = parse_count(args.load, what="--load", maximum=4096)
    tokens = context or server.longest
    if tokens is None:
        raise UsageError("the server does not say its longest request; say the length with --context TOKENS")
    with LoadBar(sys.stderr) as bar:
        return hold(
            server,
            conversations=conversations,
            context_tokens=tokens,
            yours=args.this_host_is_mine,
            seconds=float(seconds),
            progress=bar.show,
        )


def _print_live(
    args: argparse.Namespace,
    server: LiveServer,
    receipt: Receipt | None,
    load: Load | None,
    refused: list[str],
) -> None:
    from headcount.report.verify_page import load_document, receipt_document, write_load, write_receipt

    if args.json:
        emit_json(
            {
                "server": server.words,
                "model": server.model,
                "starts": [receipt_document(receipt)] if receipt else [],
                "load": load_document(load) if load else None,
                "refused": refused,
            }
        )
        return
    page = _page()
    if receipt is not None:
        write_receipt(page, receipt)
    if load is not None:
        page.blank()
        write_load(page, server.words, load, receipt)
    sys.stdout.write(page.text())
    for words in refused:
        sys.stderr.write(f"warning: {printable(words)}\n")
