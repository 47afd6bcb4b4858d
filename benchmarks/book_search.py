"""How long ``book`` searches when thousands of layouts are allowed: 64 cards a node, pipeline stages, 4,096 GPUs.

    layouts considered = (T, P) shapes for which a replica is asked for; D follows from the users
    budget             = 4,096 layouts in under 1 second (the process itself not counted)

Each timed search starts with a new engine and a new model, so nothing is remembered from the one before.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import sys
import time
from statistics import median

from headcount.engines import Settings, engine
from headcount.engines.base import Layout, Replica
from headcount.errors import LayoutError
from headcount.hardware import accelerator
from headcount.planner.book import Demand, book
from headcount.planner.plan import Deployment, Plan
from headcount.spec.reader import read_model

BUDGET_SECONDS = 1.0
LAYOUTS = 4096
MODELS = ("llama-3.1-405b", "kimi-k2")
DEMAND = Demand(users=2000, context=8192)


class CountedDeployment(Deployment):
    """A deployment that notes every layout it is asked about, and whether the engine planned it."""

    def replica(self, layout: Layout, context: int) -> Replica:
        """As the base; a refusal is counted too."""
        try:
            replica = super().replica(layout, context)
        except LayoutError:
            SEEN.setdefault(layout, False)
            raise
        SEEN[layout] = True
        return replica


SEEN: dict[Layout, bool] = {}


def deployment(kind: type[Deployment], model: str, engine_name: str) -> Deployment:
    return kind(
        model=read_model(model),
        engine=engine(engine_name),
        accelerator=accelerator("h200"),
        settings=Settings(),
        gpus_per_node=64,
        max_gpus=4096,
        allow_pp=True,
    )


def search(model: str, engine_name: str) -> tuple[float, Plan]:
    """Seconds of one search, model and engine read beforehand, and its plan."""
    asked = deployment(Deployment, model, engine_name)
    start = time.perf_counter()
    plan = book(asked, DEMAND)
    return time.perf_counter() - start, plan


def count(model: str, engine_name: str) -> tuple[int, int]:
    """``(layouts considered, of them planned by the engine)``, in an untimed search."""
    SEEN.clear()
    book(deployment(CountedDeployment, model, engine_name), DEMAND)
    return len(SEEN), sum(SEEN.values())


def profile(model: str, engine_name: str) -> None:
    asked = deployment(Deployment, model, engine_name)
    profiler = cProfile.Profile()
    profiler.runcall(book, asked, DEMAND)
    for order in ("tottime", "cumulative"):
        pstats.Stats(profiler).strip_dirs().sort_stats(order).print_stats(15)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--rounds", type=int, default=5, help="timed searches of each case, after one untimed"
    )
    parser.add_argument("--profile", action="store_true", help="also print cProfile's hot spots of each case")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error(f"--rounds {args.rounds}: at least 1")
    print(f"CPython {sys.version.split()[0]}, {os.cpu_count()} cores, {args.rounds} searches each")
    print(f"{DEMAND.users:,} users x {DEMAND.context:,} tokens on H200, 64 a node, at most 4,096 GPUs\n")
    head = f"{'model':<18}{'engine':<10}{'considered':>11}{'planned':>9}{'median s':>10}{'min':>8}{'max':>8}  budget"
    print(head + "\n" + "-" * len(head))
    held = True
    for model in MODELS:
        for name in ("vllm", "textbook"):
            considered, planned = count(model, name)
            runs = [search(model, name) for _ in range(args.rounds)]
            seconds = [each for each, _ in runs]
            enough, fast = considered >= LAYOUTS, median(seconds) < BUDGET_SECONDS
            verdict = "holds" if fast else "EXCEEDED"
            held = held and fast
            # A model of fewer than 64 layers makes fewer shapes.
            words = f"< {BUDGET_SECONDS:g} s: {verdict}" + ("" if enough else f" (fewer than {LAYOUTS:,})")
            print(
                f"{model:<18}{name:<10}{considered:>11,}{planned:>9,}{median(seconds):>10.3f}"
                f"{min(seconds):>8.3f}{max(seconds):>8.3f}  {words}; answer {runs[0][1].layout.words()}"
            )
            if args.profile:
                profile(model, name)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
