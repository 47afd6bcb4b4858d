"""The Jacobian of softmax: built from our backward, its null space, its eigenvalues, why it is no projection."""

from __future__ import annotations

import torch
from torch import Tensor

from headcount.explain.arithmetic import short
from headcount.explain.asked import Asked
from headcount.explain.derivation import Derivation, Step, Symbol, Table, shown
from headcount.explain.worked import work
from headcount.transformer.ops import softmax as operation

GAPS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


def jacobian_of(scores: Tensor) -> tuple[Tensor, Tensor]:
    """``(a, J)``: row i of J is our backward applied to the unit vector e_i (J is symmetric)."""
    a, saved = operation.forward(scores)
    rows = [operation.backward(saved, unit)[0] for unit in torch.eye(len(scores), dtype=scores.dtype)]
    return a, torch.stack(rows)


def derive(asked: Asked) -> Derivation:
    """On the first row of a worked example, then on a longer random row."""
    example, what_if = asked.worked_example("identity")
    run = work(example, what_if)
    scores, upstream = run.value("S'")[0], run.gradient("A")[0]
    a, matrix = jacobian_of(scores)
    return Derivation(
        topic="jacobian",
        title=f"The Jacobian of softmax: first row of example {example.name}",
        summary="How every weight of a row answers to every score, built from the backward that training runs.",
        symbols=(
            Symbol(symbol="s, a", meaning="scores of one row, and their softmax", shape=str(len(a))),
            Symbol(symbol="J", meaning="J_ij = da_i / ds_j", shape=f"{len(a)} x {len(a)}"),
            Symbol(symbol="delta_ij", meaning="1 when i = j, else 0"),
        ),
        steps=(
            _entries(scores, a, matrix),
            _zero_sums(matrix),
            _eigenvalues(matrix),
            _applied(a, matrix, upstream),
            _longer(asked.seed),
            _saturated(),
        ),
        settings=what_if.words(example),
        sources=("the quotient rule; Gershgorin's circle theorem for the bound on eigenvalues",),
    )


def _entries(scores: Tensor, a: Tensor, matrix: Tensor) -> Step:
    first, second = float(a[0]), float(a[1])
    lines = [f"J[0,0] = {short(first)} x (1 - {short(first)}) = {short(float(matrix[0, 0]))}"]
    lines.append(f"J[0,1] = -{short(first)} x {short(second)} = {short(float(matrix[0, 1]))}")
    return Step(
        title="every entry",
        why="With l = sum_k exp(s_k), the quotient rule on exp(s_i) / l gives a_i from the numerator when i = j, and "
        "-a_i a_j from l always.",
        formula=("J_ij = a_i (delta_ij - a_j)", "J = diag(a) - a a^T"),
        arithmetic=tuple(lines),
        values=(
            shown("s", scores, "scores"),
            shown("a", a, "weights"),
            shown("J", matrix, "from our backward"),
        ),
    )


def _zero_sums(matrix: Tensor) -> Step:
    return Step(
        title="rows and columns sum to zero",
        why="The weights always sum to 1, so no score can change their sum; and raising all scores together "
        "changes nothing.",
        formula=('1^T J = 0  "and"  J 1 = 0',),
        values=(shown("1^T J", matrix.sum(0), "column sums"), shown("J 1", matrix.sum(1), "row sums")),
    )


def _eigenvalues(matrix: Tensor) -> Step:
    values = torch.linalg.eigvalsh(matrix)
    square = matrix @ matrix
    rank = int((values > 1e-9 * float(values.max().clamp_min(1e-300))).sum())
    return Step(
        title="rank, eigenvalues, and why it is no projection",
        why="1 is the only direction that is lost, so the rank is n - 1 (for finite scores). A projection would "
        "satisfy "
        "J J = J and have eigenvalues 0 and 1 only.",
        formula=("rank J = n - 1", "lambda <= max_i 2 a_i (1 - a_i) <= 1/2"),
        values=(
            shown("eigenvalues", values),
            shown("rank", rank, f"of {len(values)}"),
            shown("J J", square, "not J"),
            shown("||J J - J||", float((square - matrix).norm())),
        ),
        chapters="say that the Jacobian 'always projects the incoming gradient onto the subspace of vectors "
        "that sum to zero'. "
        "It maps into that subspace; but a projection would leave vectors of the subspace alone, and J shrinks "
        "them to at "
        "most half.",
        note="The bound: row i of J has diagonal a_i (1 - a_i) and off-diagonal entries that sum to the same size.",
    )


def _applied(a: Tensor, matrix: Tensor, upstream: Tensor) -> Step:
    built = matrix @ upstream
    (applied,) = operation.backward(operation.Saved(a, -1), upstream)
    return Step(
        title="applied without being built",
        why="Backward needs J^T da only: 2 n multiplications, n subtractions and one sum instead of an n x n matrix per row.",
        formula=("ds = J^T da", "ds_j = a_j (da_j - sum_k a_k da_k)"),
        values=(
            shown("da", upstream, "upstream"),
            shown("J da", built, "matrix times vector"),
            shown("ds", applied, "our backward"),
            shown("difference", float((built - applied).abs().max())),
        ),
    )


def _longer(seed: int) -> Step:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(6, generator=generator, dtype=torch.float64)
    a, matrix = jacobian_of(scores)
    leaf = scores.clone().requires_grad_()
    stock = torch.softmax(leaf, -1)
    automatic = torch.stack([torch.autograd.grad(entry, leaf, retain_graph=True)[0] for entry in stock])
    values = torch.linalg.eigvalsh(matrix)
    return Step(
        title=f"a random row of 6 scores (seed {seed})",
        why="The same properties on a longer row, and the same matrix from PyTorch's own softmax.",
        values=(
            shown("a", a),
            shown("J", matrix),
            shown("eigenvalues", values),
            shown("rank", int((values > 1e-9).sum()), "of 6"),
            shown("largest row sum", float(matrix.sum(1).abs().max())),
            shown("||J - autograd's J||", float((matrix - automatic).norm())),
        ),
    )


def _saturated() -> Step:
    rows = []
    for gap in GAPS:
        a, matrix = jacobian_of(torch.tensor([gap, 0.0], dtype=torch.float64))
        rows.append(
            (gap, f"{float(a[1]):.4g}", f"{float(matrix[0, 0]):.4g}", f"{float(torch.trace(matrix)):.4g}")
        )
    return Step(
        title="a saturated row passes no gradient",
        why="With two keys J has one number, p (1 - p). It falls with the gap of the scores like exp(-gap).",
        formula=("p = 1 / (1 + exp(-gap))", "tr J = 1 - sum_i a_i^2"),
        tables=(
            Table(
                title="two keys",
                header=("gap", "smaller weight", "p (1 - p)", "tr J"),
                rows=tuple(rows),
            ),
        ),
        chapters="conclude that the gradient vanishes 'almost everywhere'. That is true of the typical row, not "
        "of the mean: "
        "`headcount explain scaling` measures both.",
    )
