"""``headcount prove MODEL``: the model built and run, its counts beside those that every plan rests on."""

from __future__ import annotations

import os
import sys

from headcount.cli.options import Parser, missing_extra
from headcount.cli.output import emit_json
from headcount.units import parse_bytes, parse_count

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from headcount.spec.model import ModelSpec

DESCRIPTION = """Build the model, run a prompt and a decode step, and compare what was really
allocated and multiplied with what fit, book and show compute.

A model too large for this machine runs with fewer layers, then narrower; what was
cut is said. Parameters are always counted on the whole model. Weights are random:
counts do not depend on their values. Exit status 1 when any difference is not 0."""
EPILOG = """examples
  headcount prove smollm2-135m
  headcount prove deepseek-v3 --tokens 64
  headcount prove llama-3.1-8b --tp 2 --kv q8_0"""


def make_parser() -> Parser:
    """Options of ``prove``."""
    parser = Parser(prog="headcount prove", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument(
        "model", metavar="MODEL", help="catalogue name, config.json, directory, *.gguf, package:NAME"
    )
    parser.add_argument("--tokens", metavar="N", default="32", help="tokens run, the last one decoded (32)")
    parser.add_argument("--kv", metavar="DTYPE", default="bf16", help="cache format: bf16, fp32, q8_0, ...")
    parser.add_argument("--weights", metavar="DTYPE", default="fp32", help="fp32 (default) or bf16")
    parser.add_argument("--tp", metavar="N", default="1", help="run on N tensor-parallel processes as well")
    parser.add_argument(
        "--memory", metavar="SIZE", help="most bytes of weights (default 4 GiB, a third of what is free)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _read(text: str) -> ModelSpec:
    """MODEL; an encoder, which no plan counts, when it is a directory that holds one."""
    from headcount.spec.huggingface.encoder_only import read_encoder
    from headcount.spec.reader import read_model

    return (read_encoder(text) if os.path.isdir(text) else None) or read_model(text)


def run(args: argparse.Namespace) -> int:
    """Prove, print, return 0 when every difference is zero, else 1."""
    spec = _read(args.model)
    tokens = parse_count(args.tokens, what="--tokens", maximum=4096)
    tp = parse_count(args.tp, what="--tp", maximum=16)
    most = None if args.memory is None else parse_bytes(args.memory, what="--memory")
    try:
        from headcount.verify.prove import prove
    except ModuleNotFoundError as error:
        raise missing_extra("prove", error) from None
    proof = prove(spec, tokens=tokens, kv=args.kv, weights=args.weights, tp=tp, most_bytes=most)
    if args.json:
        emit_json(proof.as_document())
    else:
        from headcount.cli.options import wants_colour
        from headcount.report.console import Page
        from headcount.report.proof_page import write_proof

        page = Page(colour=wants_colour())
        write_proof(page, proof)
        sys.stdout.write(page.text())
    return 0 if proof.holds else 1
