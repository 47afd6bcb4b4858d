"""``headcount train TASK_OR_FILE``: train a small transformer here, with gradients derived by hand."""

from __future__ import annotations

import sys

from headcount.cli.options import Parser, missing_extra, optional_count
from headcount.cli.output import emit_json
from headcount.units import parse_count, parse_fraction

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from headcount.transformer.training.job import Job, Outcome

TASKS = ("copy", "reverse", "sort", "addition")
DESCRIPTION = """Train a small transformer on this machine and judge it on held-out data.

  copy, reverse, sort, addition   toys for an encoder-decoder, judged by exact match
  a text file                     for a decoder-only model, judged by bits per byte

Gradients are this package's own, derived by hand; --autograd lets PyTorch differentiate
the same forward pass instead, and must give the same losses.

A run that stopped early resumes exactly. To make a finished run longer, choose --schedule constant or
inverse_sqrt from the start: a cosine's rates depend on its last step. With the defaults a toy takes one
to two minutes on two cores."""
EPILOG = """examples
  headcount train reverse
  headcount train book.txt --tokens bpe --steps 2000 --checkpoint run1 --schedule constant
  headcount train book.txt --tokens bpe --steps 4000 --checkpoint run1 --schedule constant --resume
  torchrun --nproc-per-node 2 -m headcount train sort --parallel fsdp"""


def make_parser() -> Parser:
    """Options of ``train``."""
    parser = Parser(prog="headcount train", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("task", metavar="TASK_OR_FILE", help="copy, reverse, sort, addition, or a text file")
    for option, metavar, words in (
        ("--steps", "N", "optimiser steps (toys 1500, text 600)"),
        ("--batch", "N", "sequences per step (toys 64, text 16)"),
        ("--length", "N", "symbols of a toy's source (12), tokens of a text window (128)"),
        ("--width", "D", "model width (toys 64, text 128)"),
        ("--layers", "L", "blocks, of each half of an encoder-decoder (toys 2, text 4)"),
        ("--heads", "N", "query heads (4)"),
        ("--kv-heads", "K", "key/value heads (as many as query heads)"),
        ("--feed-forward", "F", "inner width of the feed-forward (4 D)"),
        ("--norm", "PLACE", "post (toys), pre (text) or parallel"),
        ("--threads", "N", "threads of one process (toys 1, text as many as PyTorch takes)"),
        ("--lr", "RATE", "highest learning rate (0.002; inverse_sqrt: the published one)"),
    ):
        parser.add_argument(option, metavar=metavar, help=words)
    for option, metavar, default, words in (
        ("--kernel", "NAME", "naive", "naive, composed, tiled (all by hand) or fused (PyTorch's)"),
        ("--tokens", "KIND", "bytes", "bytes or bpe, for a text file"),
        ("--warmup", "N", "100", "steps of rising rate (100)"),
        ("--schedule", "NAME", "cosine", "cosine, inverse_sqrt (as published) or constant"),
        ("--clip", "NORM", "1", "largest gradient norm (1)"),
        ("--accumulate", "N", "1", "cut each batch into N parts: less memory, the same step"),
        ("--dropout", "P", "0", "probability of dropping an entry (0)"),
        ("--label-smoothing", "E", "0", "share of the target spread over the vocabulary (0)"),
        ("--seed", "N", "0", "of weights, batches and dropout (0)"),
        ("--every", "N", "0", "steps between checkpoints (only one at the end)"),
    ):
        parser.add_argument(option, metavar=metavar, default=default, help=words)
    parser.add_argument("--checkpoint", metavar="DIR", help="write weights, moments and state there")
    parser.add_argument("--resume", action="store_true", help="continue from the newest checkpoint")
    parser.add_argument("--autograd", action="store_true", help="let PyTorch differentiate instead")
    parser.add_argument("--parallel", metavar="KIND", help="ddp or fsdp, under torchrun")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def run(args: argparse.Namespace) -> int:
    """Train, judge, print, return 0."""
    choices = _choices(args)
    try:
        from headcount.transformer.training.job import Job
        from headcount.transformer.training.job import run as run_job
    except ModuleNotFoundError as error:
        raise missing_extra("headcount train", error) from None
    job = Job(**choices)
    outcome = run_job(job)
    if outcome is None:
        return 0
    if args.json:
        emit_json({"task": job.task, **outcome.as_dict()})
        return 0
    sys.stdout.write("\n".join(_page(job, outcome)) + "\n")
    return 0


def _choices(args: argparse.Namespace) -> dict[str, Any]:
    """Every option checked and turned into a number, before anything heavy is imported."""
    sizes = {
        name: optional_count(getattr(args, name), what="--" + name.replace("_", "-"), maximum=maximum)
        for name, maximum in (
            ("steps", 10**8),
            ("batch", 2**20),
            ("length", 2**20),
            ("width", 2**16),
            ("layers", 2**12),
            ("heads", 2**12),
            ("kv_heads", 2**12),
            ("feed_forward", 2**20),
            ("threads", 2**10),
        )
    }
    return {
        "task": args.task,
        **sizes,
        "norm": args.norm,
        "kernel": args.kernel,
        "tokens": args.tokens,
        "schedule": args.schedule,
        "rate": None if args.lr is None else parse_fraction(args.lr, what="--lr", low=1e-9, high=10.0),
        "warmup": parse_count(args.warmup, what="--warmup", minimum=0, maximum=10**8),
        "clip": parse_fraction(args.clip, what="--clip", low=1e-6, high=1e6),
        "accumulate": parse_count(args.accumulate, what="--accumulate", maximum=2**16),
        "dropout": parse_fraction(args.dropout, what="--dropout", high=0.99),
        "label_smoothing": parse_fraction(args.label_smoothing, what="--label-smoothing", high=0.99),
        "seed": parse_count(args.seed, what="--seed", minimum=0, maximum=2**31),
        "every": parse_count(args.every, what="--every", minimum=0, maximum=10**8),
        "directory": args.checkpoint,
        "resume": args.resume,
        "derivatives": "autograd" if args.autograd else "by_hand",
        "parallel": args.parallel,
    }


def _page(job: Job, outcome: Outcome) -> list[str]:
    """The answer as lines."""
    by_whom = "PyTorch's autograd" if job.derivatives == "autograd" else "gradients by hand"
    blocks = (
        f"{job.number('layers')} + {job.number('layers')}"
        if outcome.kind != "decoder-only"
        else job.number("layers")
    )
    lines = [
        f"{job.task}: {outcome.kind}, {blocks} blocks, {job.number('width')} wide, {outcome.parameters:,} parameters",
        f"  trained   {outcome.steps_taken:,} steps of {job.number('batch')} in {outcome.seconds:,.0f} s, {by_whom}",
        f"  loss      {outcome.losses[0]:.4f} at step 1, {outcome.losses[-1]:.4f} at step {len(outcome.losses):,}",
    ]
    held_out = outcome.held_out
    if "exact" in held_out:
        lines.append(
            f"  held out  {held_out['exact']:.1%} exact on {held_out['strings']:,} strings never trained on"
        )
        for row in outcome.examples:
            verdict = "" if row["answer"] == row["wanted"] else f"   wrong, should be {row['wanted']}"
            lines.append(f"            {row['source']} -> {row['answer']}{verdict}")
        return lines
    lines.append(
        f"  held out  {held_out['bits_per_byte']:.3f} bits per byte, perplexity {held_out['perplexity']:,.2f} "
        f"per token ({held_out['tokens']:,} tokens)"
    )
    lines.append(
        f"  baseline  {held_out['baseline_bits_per_byte']:.3f} bits per byte from the tokens' frequencies alone"
    )
    for row in outcome.examples:
        lines.append(f"  sample    {row['prompt']!r} -> {row['sample']!r}")
    return lines
