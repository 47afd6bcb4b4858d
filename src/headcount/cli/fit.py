"""``headcount fit MODEL --gpu NAME [--gpus N] --context TOKENS``; with ``--users`` and no context: the longest one."""

from __future__ import annotations

from headcount.cli.options import (
    Parser,
    add_deployment_options,
    add_emit_option,
    add_model_options,
    add_output_options,
    head_change_warning,
    hourly_price,
    optional_count,
    read_asked_model,
    read_deployment,
    required,
)
from headcount.cli.output import emit_plan
from headcount.errors import UsageError
from headcount.units import parse_count

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse


def make_parser() -> Parser:
    """Options of ``fit``."""
    parser = Parser(prog="headcount fit", description="How many conversations fit on these GPUs?")
    add_model_options(parser)
    parser.add_argument("--gpus", metavar="N", help="number of GPUs (default 1, or tp x pp x dp)")
    parser.add_argument(
        "--users", metavar="N", help="without --context: the longest context that holds this many"
    )
    add_deployment_options(parser)
    add_output_options(parser)
    add_emit_option(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Answer, print, return 0."""
    from headcount.planner.fit import fit, largest_context

    gpus = optional_count(args.gpus, what="--gpus", maximum=10**6)
    users = optional_count(args.users, what="--users")
    if args.context is None and users is None:
        raise UsageError(
            "--context is required, such as --context 4096 (or --users N for the longest context)"
        )
    context = None if args.context is None else parse_count(args.context, what="--context", maximum=2**31)
    required(args.gpu, "--gpu", "a100-80gb")
    model = read_asked_model(args)
    deployment = read_deployment(args, model)
    if args.emit is not None:
        from headcount.cli.emit import check_emit, emit_launch

        check_emit(args, deployment.engine)
    if context is None:
        assert users is not None
        plan = largest_context(deployment, gpus=gpus, users=users, allow_long=args.allow_long_context)
    else:
        plan = fit(deployment, gpus=gpus, context=context, allow_long=args.allow_long_context, users=users)
    if args.emit is not None:
        emit_launch(plan, args)
        return 0
    price, source = hourly_price(args, deployment)
    warnings = (*head_change_warning(args, model), *plan.warnings)
    emit_plan(plan.replace(usd_per_gpu_hour=price, price_source=source, warnings=warnings), args)
    return 0
