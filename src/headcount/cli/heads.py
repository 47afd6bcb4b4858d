"""``headcount heads MODEL``: what each attention head does, and what fewer heads would cost."""

from __future__ import annotations

import sys

from headcount.cli.options import Parser, missing_extra, optional_count, wants_colour
from headcount.cli.output import emit_json
from headcount.errors import HeadcountError, UnknownNameError, UsageError
from headcount.units import parse_count, parse_fraction

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from headcount.transformer.heads.sample import Sample
    from headcount.transformer.heads.study import Study

ORDERS = ("importance", "normalized", "random")
DESCRIPTION = """Run MODEL over a text and say which heads do something that has a name, how much the
loss depends on each, and what removing heads or pooling key/value heads would cost.

What a head is worth belongs to the head and to the text: the text is named in the
answer. Perplexity is of the part of the text that chose nothing. Nothing is trained."""
EPILOG = """examples
  headcount heads SmolLM2-135M-Instruct.Q4_1.gguf
  headcount heads ./model --text report.txt --prune 20% --order importance
  headcount heads ./model --kv-heads 1
  headcount heads ./model --map 18,6 --svg head.svg"""
_MAP_TOKENS = 32


def make_parser() -> Parser:
    """Options of ``heads``."""
    parser = Parser(prog="headcount heads", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("model", metavar="MODEL", help="a *.gguf file, or a directory with *.safetensors")
    parser.add_argument(
        "--text", metavar="FILE", help="plain text to judge by (default: prose that comes with headcount)"
    )
    parser.add_argument(
        "--tokens", metavar="N", default="512", help="tokens measured, and at most as many held out (512)"
    )
    parser.add_argument(
        "--prune", metavar="FRACTION", help="remove this share of the heads, such as 0.2 or 20%%"
    )
    parser.add_argument("--order", metavar="NAME", help=f"which go first: {', '.join(ORDERS)} (importance)")
    parser.add_argument("--kv-heads", metavar="K", help="mean-pool the key/value heads to K a layer")
    parser.add_argument(
        "--map", metavar="L,N", help="print the attention of head N of layer L (both from 0), and no more"
    )
    parser.add_argument("--svg", metavar="FILE", help="with --map: write it as a picture too")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def run(args: argparse.Namespace) -> int:
    """Measure, print, return 0."""
    tokens = parse_count(args.tokens, what="--tokens", minimum=64, maximum=4096)
    fraction = None if args.prune is None else parse_fraction(args.prune, what="--prune", high=0.99)
    kv_heads = optional_count(args.kv_heads, what="--kv-heads", maximum=2**20)
    place = None if args.map is None else _place(args.map)
    _check_together(args)
    try:
        from headcount.transformer.heads.regroup import check_kv_heads
        from headcount.transformer.heads.sample import read_sample
        from headcount.transformer.heads.study import study, study_pruning, study_regrouping
    except ModuleNotFoundError as error:
        raise missing_extra("heads", error) from None
    network, spec, tokenizer = _load(args.model)
    sample = read_sample(tokenizer, path=args.text, tokens=tokens)
    most = max(len(sample.measured_T), len(sample.held_out_T)) + 1
    table = network.shape.positions - network.shape.position_offset if network.shape.positions else most
    if most > table:
        raise UsageError(
            f"{most:,} tokens in one run are past the {table:,} positions of the model's table: --tokens"
        )
    if place is not None:
        return _map(args, network, tokenizer, sample, place)
    if sys.stderr.isatty():
        sys.stderr.write(f"measuring {len(spec.layers)} layers on {len(sample.measured_T):,} tokens ...\n")
    if kv_heads is not None:
        # Heads that do not divide are refused before the minute of measuring.
        check_kv_heads(network, kv_heads)
    lead = [] if tokenizer.bos is None or int(sample.measured_T[0]) != tokenizer.bos else [tokenizer.bos]
    found = study(network, spec, sample, lead=lead)
    pruned = None
    if fraction is not None:
        pruned = study_pruning(network, found, sample, fraction=fraction, order=args.order or "importance")
    pooled = None if kv_heads is None else study_regrouping(network, found, sample, kv_heads)
    if args.json:
        changes = {"pruned": pruned and pruned.as_document(), "regrouped": pooled and pooled.as_document()}
        emit_json({**found.as_document(), **changes})
        return 0
    _print(found, pruned, pooled)
    return 0


def _check_together(args: argparse.Namespace) -> None:
    """Options that belong together, before anything large is read."""
    if args.order is not None and args.order not in ORDERS:
        raise UnknownNameError(what="order of removal", given=args.order, allowed=ORDERS)
    if args.order is not None and args.prune is None:
        raise UsageError("--order says which heads --prune removes; give --prune too")
    if args.svg is not None and args.map is None:
        raise UsageError("--svg draws one head; give --map L,N too")
    if args.map is not None and (args.prune is not None or args.kv_heads is not None):
        raise UsageError("--map shows one head of the model as it is; leave --prune and --kv-heads out")


def _place(text: str) -> tuple[int, int]:
    layer, comma, head = text.partition(",")
    if not comma:
        raise UsageError(f"--map takes a layer and a head, such as 18,6; given {text[:40]!r}")
    return (
        parse_count(layer, what="--map layer", minimum=0, maximum=10**6),
        parse_count(head, what="--map head", minimum=0, maximum=10**6),
    )


def _load(model: str) -> tuple[Any, Any, Any]:
    """Network (float32), spec and tokeniser."""
    import torch

    from headcount.transformer.weights.model import load_model
    from headcount.transformer.weights.tokenizer import read_tokenizer
    from headcount.transformer.weights.where import model_path

    path = model_path(model)
    tokenizer = read_tokenizer(path)
    loaded = load_model(path, dtype=torch.float32)
    return loaded.network, loaded.spec, tokenizer


def _map(
    args: argparse.Namespace, network: Any, tokenizer: Any, sample: Sample, place: tuple[int, int]
) -> int:
    """One head's attention over the first tokens of the text."""
    from headcount.transformer.heads.maps import attention_map

    layer, head = place
    ids = sample.measured_T[:_MAP_TOKENS]
    weights = attention_map(network, ids, layer=layer, head=head).tolist()
    words = [tokenizer.decode([token], special=True) for token in ids.tolist()]
    if args.svg is not None:
        from headcount.report.attention_map import map_svg

        _write(args.svg, map_svg(words, weights, title=f"layer {layer}, head {head}: {sample.name}"))
    if args.json:
        emit_json(
            {
                "question": "heads",
                "text": sample.name,
                "layer": layer,
                "head": head,
                "tokens": words,
                "weights": weights,
            }
        )
        return 0
    from headcount.report.attention_map import write_map
    from headcount.report.console import Page

    page = Page(colour=wants_colour())
    write_map(page, words, weights, title=f"Layer {layer}, head {head}", subtitle=sample.name)
    sys.stdout.write(page.text())
    return 0


def _print(found: Study, pruned: Any, pooled: Any) -> None:
    from headcount.report.console import Page
    from headcount.report.heads_page import write_change, write_study

    page = Page(colour=wants_colour())
    write_study(page, found)
    if pruned is not None:
        write_change(page, pruned, title=f"Removing {pruned.heads_removed:,} of {pruned.heads:,} heads")
    if pooled is not None:
        write_change(page, pooled, title=f"Pooling to {pooled.what} a layer")
    sys.stdout.write(page.text())


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise HeadcountError(f"--svg {path[:120]!r} cannot be written: {reason}") from None
    sys.stderr.write(f"wrote {path}\n")
