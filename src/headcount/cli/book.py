"""``headcount book MODEL --gpu NAME --users N --context TOKENS``: how many GPUs, and why not fewer."""

from __future__ import annotations

from headcount.cli.options import (
    Parser,
    add_deployment_options,
    add_emit_option,
    add_model_options,
    add_output_options,
    head_change_warning,
    hourly_price,
    read_asked_model,
    read_deployment,
    required,
)
from headcount.cli.output import emit_plan
from headcount.units import parse_count

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse


def make_parser() -> Parser:
    """Options of ``book``."""
    parser = Parser(prog="headcount book", description="How many GPUs do I book for this many conversations?")
    add_model_options(parser)
    parser.add_argument("--users", metavar="N", help="conversations alive at the same time, at the peak")
    add_deployment_options(parser)
    parser.add_argument("--spare", metavar="K", default="0", help="replicas that may fail (N+K)")
    parser.add_argument(
        "--allow-pp", action="store_true", help="let pipeline stages be chosen, not only listed"
    )
    parser.add_argument("--max-gpus", metavar="N", default="4096", help="search limit (default 4096)")
    add_output_options(parser)
    add_emit_option(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Answer, print, return 0."""
    from headcount.planner.book import Demand, book
    from headcount.planner.what_if import what_ifs

    users = parse_count(required(args.users, "--users", "200"), what="--users", maximum=10**9)
    context = parse_count(required(args.context, "--context", "2048"), what="--context", maximum=2**31)
    spare = parse_count(args.spare, what="--spare", minimum=0, maximum=10**6)
    required(args.gpu, "--gpu", "a100-80gb")
    model = read_asked_model(args)
    deployment = read_deployment(args, model)
    if args.emit is not None:
        from headcount.cli.emit import check_emit, emit_launch

        check_emit(args, deployment.engine)
    price, source = hourly_price(args, deployment)
    demand = Demand(
        users=users,
        context=context,
        spare=spare,
        allow_long=args.allow_long_context,
        usd_per_gpu_hour=price,
        price_source=source,
    )
    plan = book(deployment, demand)
    if args.emit is not None:
        emit_launch(plan, args)
        return 0
    # A change is compared with this plan: where it has stages, the change may have them too.
    alike = deployment.replace(allow_pp=deployment.allow_pp or plan.layout.pp > 1)
    plan = plan.replace(
        warnings=(*head_change_warning(args, model), *plan.warnings),
        what_ifs=what_ifs(alike, demand, model_text=args.model),
    )
    emit_plan(plan, args)
    return 0
