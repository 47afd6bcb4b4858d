"""The gradient walked back through attention, four steps per head, checked three ways."""

from __future__ import annotations

import math

import torch

from headcount.explain.arithmetic import dot_line, short
from headcount.explain.asked import Asked
from headcount.explain.derivation import Derivation, Quantity, Step, Symbol, Table, nested
from headcount.explain.examples import Example, HeadNames, WhatIf
from headcount.explain.topics.attention import rounding_note, symbols
from headcount.explain.worked import Pair, leaves, output, pair, work

SOURCES = (
    "Vaswani et al. 2017 for the forward; the backward is the chain rule",
    "the chapters' worked example, recomputed in float64",
)
NUDGE = 1e-6


def derive(asked: Asked) -> Derivation:
    """Backward through the example: L is the sum of the output."""
    example, what_if = asked.worked_example("identity")
    run = pair(example, what_if)
    steps = [_forward(run)]
    if example.projected:
        steps.append(_join(run))
    for number, head in enumerate(example.heads):
        steps += _head_steps(run, head, first=number == 0)
    if example.projected:
        steps.append(_projections(run))
    steps += [_check(example, what_if, run), _graph(run)]
    return Derivation(
        topic="backward",
        title=f"Backward through attention: example {example.name}",
        summary=f"{example.title}; the loss L is the sum of all outputs. Every gradient below is what our "
        f"hand-derived "
        "backward returned, in float64.",
        symbols=(
            *symbols(run),
            Symbol(symbol="dX", meaning="dL/dX, the gradient of the loss at X", shape="as X"),
        ),
        steps=tuple(steps),
        settings=what_if.words(example),
        sources=SOURCES,
    )


def _forward(run: Pair) -> Step:
    head = run.now.example.heads
    letters = [one.letter(letter) for one in head for letter in ("Q", "K", "V", "S", "S'", "A", "O")]
    if run.now.example.projected:
        letters += ["C", "Y"]
    return Step(
        title="forward, kept for the way back",
        why="Each backward step needs what its forward step read or made.",
        formula=(
            "S = Q K^T",
            "S' = S / sqrt(d_k)" if run.now.what_if.scale == "sqrt" else "S' = c S",
            "A = softmax(S')",
            "O = A V",
            "L = sum Y" if run.now.example.projected else "L = sum O",
        ),
        values=(*(run.value(letter) for letter in letters), run.value("L", "the loss")),
        note="" if run.now.example.projected else _forward_note(run),
    )


def _forward_note(run: Pair) -> str:
    return rounding_note(
        run.now.value("A")[0], run.now.value("V")[:, 0], float(run.now.value("O")[0, 0]), "O[0,0]"
    )


def _join(run: Pair) -> Step:
    letters = [head.letter("O") for head in run.now.example.heads]
    return Step(
        title="step 0, through the output projection and the join",
        why="dL/dY is 1 everywhere, since L is the sum. Cutting C back into heads hands each its slice.",
        formula=(
            "dC = dY W_O^T",
            "dW_O = C^T dY",
            *(f"d{letter} = slice {i} of dC" for i, letter in enumerate(letters, 1)),
        ),
        values=(
            run.gradient("Y"),
            run.gradient("C"),
            run.gradient("W_O"),
            *(run.gradient(letter) for letter in letters),
        ),
    )


def _head_steps(run: Pair, head: HeadNames, *, first: bool) -> list[Step]:
    steps = [_through_values(run, head, first), _through_softmax(run, head, first), _through_scale(run, head)]
    steps.append(_through_scores(run, head))
    prefix = f"{head.scope}, " if len(run.now.example.heads) > 1 else ""
    return [step.replace(title=prefix + step.title) for step in steps]


def _through_values(run: Pair, head: HeadNames, first: bool) -> Step:
    a, v, o = (head.letter(letter) for letter in "AVO")
    now = run.now
    lines = (
        dot_line(f"d{a}[0,0]", now.gradient(o)[0], now.value(v)[0], float(now.gradient(a)[0, 0])),
        dot_line(f"d{v}[0,0]", now.value(a)[:, 0], now.gradient(o)[:, 0], float(now.gradient(v)[0, 0])),
    )
    return Step(
        title=f"step 1, through {o} = {a} {v}",
        why="A matrix product: each factor's gradient is the upstream gradient times the other factor."
        if first
        else "",
        formula=(f"d{a} = d{o} {v}^T", f"d{v} = {a}^T d{o}"),
        arithmetic=lines,
        values=(run.gradient(o), run.gradient(a), run.gradient(v)),
        note=_column_note(run, head),
        chapters=_column_remark(run, head) if first else "",
    )


def _column_note(run: Pair, head: HeadNames) -> str:
    a, v = head.letter("A"), head.letter("V")
    columns = run.now.value(a).sum(0)
    ones = bool((run.now.gradient(head.letter("O")) == 1).all())
    if not ones:
        return ""
    return (
        f"With d{head.letter('O')} all ones, row j of d{v} holds the column sum of {a}: how much value j was "
        f"used in all, "
        f"here {', '.join(short(float(c)) for c in columns)}."
    )


def _column_remark(run: Pair, head: HeadNames) -> str:
    columns = run.now.value(head.letter("A")).sum(0)
    a_equal = bool((columns - 1).abs().max() < 1e-12)
    proof = (
        "In this example the columns happen to sum to 1 because A is symmetric; `--example upi` shows a dV that "
        "is not ones."
        if a_equal
        else "Here the rows of A sum to 1 and dV is not ones."
    )
    return f"give dV = ones 'because each row of A sums to 1'. The reason is wrong: dV = A^T 1 is the column sums. {proof}"


def _through_softmax(run: Pair, head: HeadNames, first: bool) -> Step:
    a, s = head.letter("A"), head.letter("S'")
    now, plain = run.now, run.plain
    dots = (now.value(a) * now.gradient(a)).sum(-1)
    before = None if plain is None else nested((plain.value(a) * plain.gradient(a)).sum(-1))
    lines = [
        dot_line(f"D[{i}]", now.value(a)[i], now.gradient(a)[i], float(dots[i])) for i in range(len(dots))
    ]
    lines += [
        f"d{s}[{i},{j}] = {short(float(now.value(a)[i, j]))} x ({short(float(now.gradient(a)[i, j]))} - "
        f"{short(float(dots[i]))}) = {short(float(now.gradient(s)[i, j]))}"
        for i in range(len(dots))
        for j in range(len(dots))
    ]
    worst = float(now.gradient(s).sum(-1).abs().max())
    return Step(
        title=f"step 2, through {a} = softmax({s})",
        why="Softmax is not element-wise: moving one score moves every weight of its row. Its Jacobian is "
        "diag(a) - a a^T, applied here without being built."
        if first
        else "",
        formula=(f"D_i = sum_k {a}_ik d{a}_ik", f"d{s}_ij = {a}_ij (d{a}_ij - D_i)"),
        arithmetic=tuple(lines),
        values=(Quantity(name="D", values=nested(dots), words="row dots", before=before), run.gradient(s)),
        note=f"Each row of d{s} sums to zero (largest sum here {worst:.1e}): the weights of a row always sum to 1, so "
        "raising all scores of a row together changes nothing." + _dot_rounding(run, head, dots),
        chapters="say that the Jacobian 'projects' onto the vectors that sum to zero. It maps into them, but it is no "
        "projection: J J is not J (`headcount explain jacobian`)."
        if first
        else "",
    )


def _dot_rounding(run: Pair, head: HeadNames, dots: torch.Tensor) -> str:
    a = head.letter("A")
    note = rounding_note(run.now.value(a)[0], run.now.gradient(a)[0], float(dots[0]), "D[0]")
    return " " + note if note else ""


def _through_scale(run: Pair, head: HeadNames) -> Step:
    s, scaled = head.letter("S"), head.letter("S'")
    what_if, width = run.now.what_if, run.now.value(head.letter("Q")).shape[1]
    divisor = {"sqrt": "sqrt(d_k)", "none": "1", "dk": "d_k"}[what_if.scale]
    factor = {"sqrt": math.sqrt(width), "none": 1.0, "dk": float(width)}[what_if.scale]
    upstream, result = float(run.now.gradient(scaled)[0, 0]), float(run.now.gradient(s)[0, 0])
    note = "A masked score is a constant: its gradient is exactly 0." if what_if.causal else ""
    return Step(
        title="step 3, through the scale",
        formula=(f"d{s} = d{scaled} / {divisor}",),
        arithmetic=(f"d{s}[0,0] = {short(upstream)} / {short(factor)} = {short(result)}",),
        values=(run.gradient(s),),
        note=note,
    )


def _through_scores(run: Pair, head: HeadNames) -> Step:
    q, k, s = (head.letter(letter) for letter in "QKS")
    now = run.now
    lines = (
        dot_line(f"d{q}[0,0]", now.gradient(s)[0], now.value(k)[:, 0], float(now.gradient(q)[0, 0])),
        dot_line(f"d{k}[0,0]", now.gradient(s)[:, 0], now.value(q)[:, 0], float(now.gradient(k)[0, 0])),
    )
    return Step(
        title=f"step 4, through {s} = {q} {k}^T",
        formula=(f"d{q} = d{s} {k}", f"d{k} = d{s}^T {q}"),
        arithmetic=lines,
        values=(run.gradient(q), run.gradient(k)),
    )


def _projections(run: Pair) -> Step:
    weights = [weight for head in run.now.example.heads for weight in head.projections or ()]
    paths = [
        f"d{head.letter(letter)} {weight}^T"
        for head in run.now.example.heads
        for letter, weight in zip("QKV", head.projections or (), strict=True)
    ]
    return Step(
        title="step 5, through the projections",
        why="x was read six times, three per head: its gradient is the sum over all six paths.",
        formula=(
            "dW_Q = x^T dQ",
            "dW_K = x^T dK",
            "dW_V = x^T dV",
            "dx = " + " + ".join(paths[:3]),
            "     + " + " + ".join(paths[3:]),
        ),
        values=(*(run.gradient(weight) for weight in weights), run.gradient("x")),
    )


def _check(example: Example, what_if: WhatIf, run: Pair) -> Step:
    automatic = work(example, what_if, mode="autograd")
    rows = []
    for letter in run.now.example.matrices:
        ours = run.now.gradients[letter]
        rows.append(
            (
                "d" + letter,
                _relative(ours, automatic.gradients[letter]),
                _relative(ours, _differences(run.now.example, what_if, letter)),
            )
        )
    coarse = any(row[2] > 1e-4 for row in rows)
    return Step(
        title="check: PyTorch's own derivative, and finite differences",
        note="Cells this large leave finite differences few digits; PyTorch's derivative is the check here."
        if coarse
        else "",
        why="The same forward differentiated by PyTorch, and (L(x + e) - L(x - e)) / 2e for every single cell.",
        tables=(
            Table(
                title="largest difference from our gradient, over its largest entry where that exceeds 1",
                header=("gradient", "autograd", f"differences, e = {NUDGE:g}"),
                rows=tuple(rows),
            ),
        ),
    )


def _relative(ours: torch.Tensor, other: torch.Tensor) -> float:
    """Largest difference, over the largest entry where that exceeds 1."""
    return float((ours - other).abs().max()) / max(1.0, float(ours.abs().max()))


def _differences(example: Example, what_if: WhatIf, letter: str) -> torch.Tensor:
    """Central differences of L in every cell of one input."""
    inputs = leaves(example, gradient=False)
    flat = inputs[letter].view(-1)
    found = torch.empty_like(flat)

    def loss() -> float:
        with torch.no_grad():
            return float(output(example, what_if, inputs, kernel="naive").sum())

    for index in range(len(flat)):
        kept = float(flat[index])
        step = NUDGE * max(1.0, abs(kept))
        flat[index] = kept + step
        above = loss()
        flat[index] = kept - step
        below = loss()
        flat[index] = kept
        found[index] = (above - below) / (2 * step)
    return found.view(inputs[letter].shape)


def _graph(run: Pair) -> Step:
    return Step(
        title="the whole path as a graph",
        why="Values flow down, gradients flow up; each box holds both. Drawn from the tape of the run above.",
        graph=run.now.graph,
    )
