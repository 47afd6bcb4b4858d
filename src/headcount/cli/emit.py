"""``--emit KIND`` of ``fit`` and ``book``: the plan as something that can be started, in place of the page."""

from __future__ import annotations

import sys

from headcount.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from headcount.engines.base import Engine
    from headcount.planner.plan import Plan


def check_emit(args: argparse.Namespace, engine: Engine) -> None:
    """Refuse, before anything is planned, a kind that cannot be written or that another output option contradicts."""
    if args.emit is None:
        return
    from headcount.report.launch.artefact import check_kind

    check_kind(args.emit, engine)
    for option in ("json", "explain"):
        if getattr(args, option):
            raise UsageError(f"--emit prints the {args.emit} artefact only; leave --{option} out")
    if args.kv_heads is not None:
        raise UsageError(
            "--kv-heads makes another model, which no checkpoint holds: there is nothing to launch"
        )


def emit_launch(plan: Plan, args: argparse.Namespace) -> None:
    """Print the artefact on stdout, the plan's warnings on stderr."""
    from headcount.report.launch.artefact import write_launch

    sys.stdout.write(write_launch(plan, args.emit, model=args.model))
    sys.stdout.flush()
    for warning in plan.warnings:
        sys.stderr.write(f"warning: {warning}\n")
