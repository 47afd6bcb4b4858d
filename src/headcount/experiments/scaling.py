"""Does training fail without 1/sqrt(d_k)? One wide head trained with three scalings and two optimisers.

The task needs one attention pattern (``far`` of lookup.py), the network one block with a single head, and d_k is wide
enough for the scaling to matter. Both optimisers run because they can hide different things: Adam divides every gradient
by its own size, so small gradients alone cannot stop it; plain gradient descent with momentum takes them as they are.
The latter runs at two rates, because gradients that are too large and gradients that are too small both stop it, and a
smaller rate tells the two apart.

    none       s = q.k                variance d_k at the start
    1/sqrt     s = q.k / sqrt(d_k)    variance 1
    1/d        s = q.k / d_k          variance 1/d_k (advised for wide models in muP, Yang et al. 2022)
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from headcount.experiments.lookup import BATCH, LookupNetwork, LookupShape, Trace, draw_batch, train
from headcount.experiments.result import FAILS, HOLDS, LIMIT, OPEN, Cell, Column, Result, Spread, Table
from headcount.experiments.seeds import generator, seeded
from headcount.record import Record

CLAIM = (
    "Without the scaling the gradient vanishes and training stalls; dividing by d_k instead flattens the scores and "
    "destroys the ability to tell tokens apart; 1/sqrt(d_k) trains."
)
WIDTH = 64
GOAL = 0.1
NONE, ROOT, FULL = "none", "1/sqrt", "1/d"
ADAM, SGD = "adam", "sgd"
SCALINGS: dict[str, Callable[[int], float]] = {
    NONE: lambda d_k: 1.0,
    ROOT: lambda d_k: 1 / math.sqrt(d_k),
    FULL: lambda d_k: 1 / d_k,
}


class Run(Record):
    """One training: scores and gradient at the start, loss at the end, steps to the goal."""

    start_deviation: float
    start_gradient: float
    loss: float | None
    steps_to_goal: int | None


class Recipe(Record):
    """An optimiser and its learning rate."""

    kind: str
    rate: float

    @property
    def label(self) -> str:
        """As in the tables: ``adam 0.001``."""
        return f"{self.kind} {self.rate:g}"

    def optimizer(self, network: LookupNetwork) -> torch.optim.Optimizer:
        """Adam, or gradient descent with momentum 0.9."""
        if self.kind == ADAM:
            return torch.optim.Adam(network.parameters(), lr=self.rate)
        return torch.optim.SGD(network.parameters(), lr=self.rate, momentum=0.9)


def train_once(shape: LookupShape, recipe: Recipe, *, steps: int, seed: int, repeat: int) -> Run:
    """Train one network; weights and data depend on seed and repeat alone, so the scalings start from equal ones."""
    with seeded(seed, "scaling", "weights", shape.head_width, repeat):
        network = LookupNetwork(shape)
    stream = generator(seed, "scaling", "data", repeat)
    first = draw_batch(BATCH, shape.tokens, stream)
    deviation = network.score_deviation(first)
    network.loss(first).backward()  # type: ignore[no-untyped-call]
    slope = network.get_parameter("layers.0.attention.query.weight").grad
    gradient = 0.0 if slope is None else float(slope.square().mean().sqrt())
    trace: Trace = train(network, recipe.optimizer(network), steps=steps, stream=stream)
    return Run(
        start_deviation=deviation,
        start_gradient=gradient,
        loss=trace.last(),
        steps_to_goal=trace.steps_to(GOAL),
    )


Runs = dict[tuple[str, int, str], list[Run]]


def measure(
    *,
    seed: int,
    repeats: int,
    head_widths: tuple[int, ...],
    steps: int,
    tokens: int,
    adam_rate: float,
    sgd_rates: tuple[float, ...],
) -> Result:
    """Run the experiment: options are those of the registry."""
    recipes = [Recipe(kind=ADAM, rate=adam_rate), *(Recipe(kind=SGD, rate=rate) for rate in sgd_rates)]
    runs: Runs = {}
    for recipe in recipes:
        for d_k in head_widths:
            for name, scale in SCALINGS.items():
                shape = LookupShape(
                    tokens=tokens, width=WIDTH, heads=1, head_width=d_k, value_width=WIDTH, scale=scale(d_k)
                )
                runs[recipe.label, d_k, name] = [
                    train_once(shape, recipe, steps=steps, seed=seed, repeat=repeat)
                    for repeat in range(repeats)
                ]
    labels = tuple(recipe.label for recipe in recipes)
    verdict, reason = judge(runs, labels, head_widths[-1])
    return Result(
        name="scaling",
        claim=CLAIM,
        seed=seed,
        repeats=repeats,
        settings={
            "head_widths": head_widths,
            "steps": steps,
            "tokens": tokens,
            "adam_rate": adam_rate,
            "sgd_rates": sgd_rates,
            "model_width": WIDTH,
            "goal_nats": GOAL,
        },
        tables=(_ends(runs, steps), _starts(runs, labels[0], head_widths)),
        verdict=verdict,
        reason=reason,
        notes=(
            _gradient_note(runs, labels[0], head_widths[-1]),
            "A toy: one block, one head, no tuning of rates.",
        ),
    )


def _ends(runs: Runs, steps: int) -> Table:
    rows = tuple(
        (
            label,
            d_k,
            name,
            Spread.of([run.loss for run in found]),
            Spread.of([run.steps_to_goal for run in found]),
            sum(run.steps_to_goal is not None for run in found),
        )
        for (label, d_k, name), found in runs.items()
    )
    columns = (
        Column(name="optimizer", header="optimiser"),
        Column(name="d_k", header="d_k", form="d"),
        Column(name="scaling", header="scaling"),
        Column(name="loss", header="last loss", form=".3f", spread=True),
        Column(name="steps_to_goal", header=f"steps to {GOAL}", form=".0f", spread=True),
        Column(name="reached", header="reached", form="d"),
    )
    note = f"Loss in nats after {steps:,} steps (mean of 20); ln 16 = 2.773 when nothing is known."
    return Table(title="Training", columns=columns, rows=rows, note=note)


def _starts(runs: Runs, label: str, head_widths: tuple[int, ...]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for d_k in head_widths:
        for name in SCALINGS:
            found = runs[label, d_k, name]
            rows.append(
                (
                    d_k,
                    name,
                    Spread.of([run.start_deviation for run in found]),
                    Spread.of([run.start_gradient for run in found]),
                )
            )
    columns = (
        Column(name="d_k", header="d_k", form="d"),
        Column(name="scaling", header="scaling"),
        Column(name="score_deviation", header="sd of scores", form=".3g", spread=True),
        Column(name="query_gradient", header="rms of dW_Q", form=".2g", spread=True),
    )
    return Table(title="Before the first step", columns=columns, rows=tuple(rows))


def _gradient_note(runs: Runs, label: str, d_k: int) -> str:
    first = {
        name: Spread.of([run.start_gradient for run in runs[label, d_k, name]]).median or 0.0
        for name in SCALINGS
    }
    order = "larger" if first[NONE] > first[ROOT] else "smaller"
    return (
        f"Before the first step the gradient of W_Q is {order} without scaling ({first[NONE]:.2g}) than with 1/sqrt(d_k) "
        f"({first[ROOT]:.2g}) at d_k = {d_k}."
    )


def judge(runs: Runs, labels: tuple[str, ...], widest: int) -> tuple[str, str]:
    """Where 1/sqrt trains at the widest head: does no scaling stall there, and does 1/d fail?"""
    solved, speed = {}, {}
    for (label, d_k, name), found in runs.items():
        if d_k == widest:
            middle = Spread.of([run.steps_to_goal for run in found]).median
            solved[label, name] = middle is not None
            speed[label, name] = math.inf if middle is None else middle
    judged = [label for label in labels if solved[label, ROOT]]

    def steps(label: str, name: str) -> str:
        return f"{name} {speed[label, name]:.0f}" if solved[label, name] else f"{name} never"

    shown = "; ".join(f"{label}: {', '.join(steps(label, name) for name in SCALINGS)}" for label in labels)
    said = f"median steps to {GOAL} at d_k = {widest}: {shown}"
    if not judged:
        return OPEN, f"{said}. Not even 1/sqrt gets there: these steps and rates decide nothing"
    stalled = [label for label in judged if not solved[label, NONE]]
    flat = [label for label in judged if not solved[label, FULL]]
    if len(stalled) == len(flat) == len(judged):
        return HOLDS, said
    slower = all(speed[label, NONE] > speed[label, ROOT] for label in judged)
    if not slower and not stalled and not flat:
        return FAILS, f"{said}. Leaving the scaling out costs nothing, and 1/d learns the task too"
    parts = []
    if len(stalled) < len(judged):
        where = f"it fails with {' and '.join(stalled)} only" if stalled else "it stops it nowhere"
        parts.append(
            f"Leaving the scaling out {'slows training' if slower else 'is not always slower'}; {where}"
        )
    if len(flat) < len(judged):
        parts.append(
            f"1/d learns the task {'too' if not flat else 'with other rates than ' + ' and '.join(flat)}"
        )
    return LIMIT, f"{said}. {'; '.join(parts)}"
