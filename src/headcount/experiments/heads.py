"""One large head against several small ones at equal parameters, on a task that needs two attention patterns at once.

D columns are cut into N heads of width D / N: W_Q, W_K, W_V and W_O keep their sizes, so the parameters are the same
whatever N is (checked). The task asks every token for the value of the key it names (far) and for the value of the token
before it (near): see lookup.py. One softmax row must then serve both.

Three networks: attention alone, where the claim is about one softmax; one block, whose feed-forward reads a mixed row;
two blocks, where one head per layer can take one pattern each.
"""

from __future__ import annotations

import torch

from headcount.errors import UsageError
from headcount.experiments.lookup import FAR, NEAR, LookupNetwork, LookupShape, draw_batch, train
from headcount.experiments.result import FAILS, HOLDS, LIMIT, OPEN, Column, Result, Spread, Table
from headcount.experiments.seeds import generator, seeded
from headcount.record import Record

CLAIM = (
    "One large head cannot attend to a near and to a distant token at once; several heads with the same parameters can, "
    "so they do better."
)
RATE = 2e-3
GOAL = 0.2
SOLVED = 0.95
_TEST = 256


class Run(Record):
    """One training: accuracies on new data, steps to the goal, parameters."""

    parameters: int
    far: float
    near: float
    together: float
    steps_to_goal: int | None


Runs = dict[tuple[int, int], list[Run]]


def train_once(shape: LookupShape, *, steps: int, seed: int, repeat: int) -> Run:
    """Train one network with Adam and test it on sequences of its own stream."""
    with seeded(seed, "heads", "weights", shape.blocks, shape.heads, repeat):
        network = LookupNetwork(shape)
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE)
    trace = train(network, optimizer, steps=steps, stream=generator(seed, "heads", "data", repeat))
    found = network.accuracy(draw_batch(_TEST, shape.tokens, generator(seed, "heads", "test", repeat)))
    return Run(
        parameters=sum(weight.numel() for weight in network.parameters()),
        far=found[FAR],
        near=found[NEAR],
        together=found["all"],
        steps_to_goal=trace.steps_to(GOAL),
    )


def measure(
    *,
    seed: int,
    repeats: int,
    heads: tuple[int, ...],
    blocks: tuple[int, ...],
    width: int,
    steps: int,
    tokens: int,
) -> Result:
    """Run the experiment: options are those of the registry.

    Raises
    ------
    UsageError: a number of heads that does not divide the width, or fewer than two numbers to compare.
    """
    for number in heads:
        if width % number:
            raise UsageError(f"--heads {number} does not divide --width {width}; every head is D / N wide")
    if len(heads) < 2:
        raise UsageError("--heads needs at least two numbers to compare, such as 1,4")
    runs: Runs = {}
    for depth in blocks:
        for number in heads:
            shape = LookupShape(
                tokens=tokens,
                width=width,
                heads=number,
                head_width=width // number,
                value_width=width // number,
                blocks=depth,
                questions=(FAR, NEAR),
            )
            runs[depth, number] = [
                train_once(shape, steps=steps, seed=seed, repeat=repeat) for repeat in range(repeats)
            ]
        if len({run.parameters for number in heads for run in runs[depth, number]}) != 1:
            raise AssertionError("the networks compared have different numbers of parameters")
    verdict, reason = judge(runs, heads, blocks, steps)
    return Result(
        name="heads",
        claim=CLAIM,
        seed=seed,
        repeats=repeats,
        settings={
            "heads": heads,
            "blocks": blocks,
            "width": width,
            "steps": steps,
            "tokens": tokens,
            "rate": RATE,
            "goal_nats": GOAL,
        },
        tables=(_table(runs, steps),),
        verdict=verdict,
        reason=reason,
        notes=("A toy: it shows what one head can be trained to do, not what heads do in a language model.",),
    )


def _table(runs: Runs, steps: int) -> Table:
    rows = tuple(
        (
            "alone" if not depth else str(depth),
            number,
            found[0].parameters,
            Spread.of([run.far for run in found]),
            Spread.of([run.near for run in found]),
            Spread.of([run.together for run in found]),
            Spread.of([run.steps_to_goal for run in found]),
        )
        for (depth, number), found in runs.items()
    )
    columns = (
        Column(name="blocks", header="blocks"),
        Column(name="heads", header="N", form="d"),
        Column(name="parameters", header="parameters", form=",d"),
        Column(name="far", header="far", form=".3f"),
        Column(name="near", header="near", form=".3f"),
        Column(name="both", header="both right", form=".3f", spread=True),
        Column(name="steps_to_goal", header=f"steps to {GOAL}", form=".0f", spread=True),
    )
    note = f"Accuracy on new sequences after {steps:,} steps; chance is 1/16 for one answer, 1/256 for both."
    return Table(title="Two attention patterns at once", columns=columns, rows=rows, note=note)


def judge(runs: Runs, heads: tuple[int, ...], blocks: tuple[int, ...], steps: int) -> tuple[str, str]:
    """Fewest against most heads at every depth: who solves the task, who is faster."""
    few, many = heads[0], heads[-1]
    parts, cannot, slower, solved = [], [], [], 0
    for depth in blocks:
        right = {n: Spread.of([run.together for run in runs[depth, n]]).median or 0.0 for n in (few, many)}
        took = {n: Spread.of([run.steps_to_goal for run in runs[depth, n]]).median for n in (few, many)}
        place = f"{depth} block{'s' if depth > 1 else ''}" if depth else "attention alone"
        parts.append(f"{place}: N = {few} {right[few]:.3f}, N = {many} {right[many]:.3f}")
        if right[many] < SOLVED:
            continue
        solved += 1
        if right[few] < SOLVED:
            cannot.append(place)
        elif (took[few] or steps + 1) > (took[many] or steps + 1):
            slower.append(f"{place} ({took[few]:.0f} against {took[many]:.0f} steps)")
    said = f"both answers right, median after {steps:,} steps: {'; '.join(parts)}"
    if not solved:
        return OPEN, f"{said}. Too few steps: no network learned the task"
    if len(cannot) == len(blocks):
        return HOLDS, said
    if not cannot and not slower:
        return FAILS, f"{said}. More heads are not better at any depth tried"
    tail = []
    if cannot:
        tail.append(f"N = {few} fails where N = {many} succeeds with {' and '.join(cannot)}")
    if slower:
        tail.append(f"N = {few} learns it too, later, with {' and '.join(slower)}")
    return LIMIT, f"{said}. {'; '.join(tail)}"
