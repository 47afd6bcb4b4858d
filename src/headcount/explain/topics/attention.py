"""Attention forward on a worked example: projections, scores, scale, mask, softmax, output, heads."""

from __future__ import annotations

import math

import torch

from headcount.explain.arithmetic import dot_line, short
from headcount.explain.asked import Asked
from headcount.explain.derivation import Derivation, Step, Symbol, Table
from headcount.explain.examples import Example, HeadNames, WhatIf
from headcount.explain.worked import Pair, leaves, output, pair

SOURCES = (
    "Vaswani et al. 2017, section 3.2.1 (scaled dot-product attention) and 3.2.2 (heads)",
    "the chapters' worked examples, recomputed in float64",
)


def derive(asked: Asked) -> Derivation:
    """Forward through the example, every number read off the run."""
    example, what_if = asked.worked_example("upi")
    run = pair(example, what_if)
    steps = [_inputs(run)]
    for number, head in enumerate(example.heads):
        steps += head_steps(run, head, first=number == 0)
    if example.projected:
        steps += [_divergence(run), _join(run)]
    steps.append(_check(run))
    return Derivation(
        topic="attention",
        title=f"Attention, step by step: example {example.name}",
        summary=f"{example.title}; float64, computed by the operations that the transformer runs.",
        symbols=symbols(run),
        steps=tuple(steps),
        settings=what_if.words(example),
        sources=SOURCES,
    )


def symbols(run: Pair) -> tuple[Symbol, ...]:
    """The letters of attention with their shapes in this example."""
    values = run.now
    tokens, width = values.value("Q").shape
    found = [
        Symbol(symbol="n", meaning="tokens of the sequence", shape=str(tokens)),
        Symbol(symbol="d_k", meaning="width of a query and a key (a number, not a matrix)", shape=str(width)),
        Symbol(symbol="Q, K", meaning="queries and keys, one row per token", shape="n x d_k"),
        Symbol(symbol="V", meaning="values, one row per token", shape="n x d_v"),
        Symbol(symbol="S, S'", meaning="scores before and after scaling and mask", shape="n x n"),
        *(
            [Symbol(symbol="Z", meaning="scores scaled but not yet masked", shape="n x n")]
            if run.now.what_if.causal
            else []
        ),
        Symbol(symbol="A", meaning="attention weights, every row sums to 1", shape="n x n"),
        Symbol(symbol="O", meaning="output of a head", shape="n x d_v"),
    ]
    if values.example.projected:
        rows, model = values.value("x").shape
        found.insert(
            1, Symbol(symbol="x", meaning="embeddings, one row per token", shape=f"{rows} x {model}")
        )
        found.insert(
            2, Symbol(symbol="W_Q, W_K, W_V", meaning="learned projections", shape="d_model x d_k, d_k, d_v")
        )
        found.append(
            Symbol(symbol="C, W_O, Y", meaning="heads side by side, output projection, result", shape="")
        )
    return tuple(found)


def _inputs(run: Pair) -> Step:
    example = run.now.example
    names = [
        name for name in example.matrices if not (example.projected and name.endswith("2")) and name != "W_O"
    ]
    what = (
        "The embeddings and the first head's projections."
        if example.projected
        else "Queries, keys and values."
    )
    return Step(
        title="What is given",
        why=f"{what} Any cell may be changed with --set, rows and columns counted from 0.",
        values=tuple(run.value(name) for name in names),
        chapters=_given_remark(example),
    )


def _given_remark(example: Example) -> str:
    if example.projected:
        return (
            "call Q, K and V projections of 'the same input token embeddings' and give W_V the shape (d_model, d_k). "
            "V has its own width d_v; only the first layer sees embeddings, later ones see hidden states; and in "
            "cross-attention K and V come from the other sequence."
        )
    return ""


def head_steps(run: Pair, head: HeadNames, *, first: bool) -> list[Step]:
    """The steps of one head; later heads are told in fewer words."""
    steps = [_project(run, head)] if head.projections else []
    steps += [_scores(run, head, first), _scale(run, head, first)]
    if run.now.what_if.causal:
        steps.append(_mask(run, head))
    steps += [_softmax(run, head, first), _output(run, head, first)]
    prefix = f"{head.scope}: " if len(run.now.example.heads) > 1 else ""
    return [step.replace(title=prefix + step.title) for step in steps]


def _project(run: Pair, head: HeadNames) -> Step:
    q, k, v = (head.letter(letter) for letter in "QKV")
    w_q, w_k, w_v = head.projections or ("", "", "")
    x, now = run.now.value("x"), run.now
    lines = [
        dot_line(
            f"{letter}[{token},{column}]",
            x[row],
            now.value(weight)[:, column],
            float(now.value(letter)[row, column]),
        )
        for letter, weight in ((q, w_q), (k, w_k))
        for row, token in enumerate(now.example.tokens)
        for column in (0,)
    ]
    weights = tuple(run.value(name) for name in (w_q, w_k, w_v)) if head.suffix else ()
    return Step(
        title="project the embeddings",
        why="Three separate matrices let one token ask (Q), be found (K) and hand something over (V) in "
        "different words."
        if not head.suffix
        else "The same embeddings through another three matrices.",
        formula=(f"{q} = x {w_q}", f"{k} = x {w_k}", f"{v} = x {w_v}"),
        arithmetic=tuple(lines),
        values=(*weights, run.value(q, "queries"), run.value(k, "keys"), run.value(v, "values")),
    )


def _scores(run: Pair, head: HeadNames, first: bool) -> Step:
    q, k, s = (head.letter(letter) for letter in "QKS")
    now = run.now
    names = now.example.tokens
    lines = [
        dot_line(f"{s}[{names[i]},{names[j]}]", now.value(q)[i], now.value(k)[j], float(now.value(s)[i, j]))
        for i in range(len(names))
        for j in range(len(names))
    ]
    return Step(
        title="score every query against every key",
        why="A large dot product says: this key is what I am looking for." if first else "",
        formula=(f"{s} = {q} {k}^T", f"{s}_ij = sum_h {q}_ih {k}_jh"),
        arithmetic=tuple(lines),
        values=(run.value(s, "raw scores: row = query, column = key"),),
    )


_SCALE_WORDS = {
    "sqrt": "; dividing by sqrt(d_k) brings it back to 1, whatever d_k is.",
    "none": ". Nothing is divided here (--scale none), so the spread of the scores grows with d_k.",
    "dk": ". Dividing by d_k (--scale dk) leaves 1 / d_k: the wider the head, the flatter the weights.",
}


def _scale(run: Pair, head: HeadNames, first: bool) -> Step:
    s, z = head.letter("S"), _scaled_letter(run, head)
    what_if, width = run.now.what_if, run.now.value(head.letter("Q")).shape[1]
    factor = {"sqrt": 1 / math.sqrt(width), "none": 1.0, "dk": 1 / width}[what_if.scale]
    formula = {
        "sqrt": f"{z} = {s} / sqrt(d_k)",
        "none": f"{z} = {s}",
        "dk": f"{z} = {s} / d_k",
    }[what_if.scale]
    corner = float(run.now.value(s)[0, -1])
    line = f"{short(corner)} x {short(factor)} = {short(corner * factor)}"
    remark = ""
    if first and width == 2 and run.now.example.projected:
        remark = (
            "promise that the effect of the scale can be watched in this example. With d_k = 2 it is hardly visible: "
            "see `headcount explain scaling`, which puts d_k = 64 beside it."
        )
    return Step(
        title="scale",
        why="A sum of d_k products of independent numbers of variance 1 has variance d_k"
        + _SCALE_WORDS[what_if.scale]
        if first
        else "",
        formula=(formula,),
        arithmetic=(f"d_k = {width}, factor {short(factor)}; {z}[first,last] = {line}",),
        values=(run.value(z, "scaled scores"),),
        chapters=remark,
    )


def _scaled_letter(run: Pair, head: HeadNames) -> str:
    return head.letter("Z") if run.now.what_if.causal else head.letter("S'")


def _mask(run: Pair, head: HeadNames) -> Step:
    z, s = head.letter("Z"), head.letter("S'")
    return Step(
        title="mask the future",
        why="A decoder predicts token i + 1 from tokens 1..i: a key after the query gets the score -inf, so its "
        "weight is "
        "exactly 0 and no gradient reaches it.",
        formula=(f'{s}_ij = {z}_ij "if" j <= i "else" -inf',),
        values=(run.value(s, "masked scores"),),
    )


def _softmax(run: Pair, head: HeadNames, first: bool) -> Step:
    s, a = head.letter("S'"), head.letter("A")
    now = run.now
    row = now.value(s)[0]
    shifted = row - row.max()
    powers = shifted.exp()
    parts = " + ".join(short(float(p)) for p in powers)
    lines = (
        f"row {now.example.tokens[0]}: shifted by its maximum [{', '.join(short(float(p)) for p in shifted)}]",
        f"exp [{', '.join(short(float(p)) for p in powers)}], sum {parts} = {short(float(powers.sum()))}",
        f"divided: [{', '.join(short(float(p)) for p in now.value(a)[0])}]",
    )
    return Step(
        title="softmax, row by row",
        why="Each row of scores becomes weights that are positive and sum to 1; subtracting the row's maximum "
        "changes nothing "
        "but keeps exp from overflowing."
        if first
        else "",
        formula=(f"{a}_ij = exp({s}_ij - m_i) / sum_k exp({s}_ik - m_i)", f"m_i = max_j {s}_ij"),
        arithmetic=lines,
        values=(run.value(a, "attention weights"),),
        note=_weights_note(run, head) if first else "",
        chapters=_weights_remark(run) if first else "",
    )


def _weights_note(run: Pair, head: HeadNames) -> str:
    sums = run.now.value(head.letter("A")).sum(-1)
    columns = run.now.value(head.letter("A")).sum(0)
    return (
        f"Rows sum to {', '.join(short(float(v)) for v in sums)}; columns need not: they sum to "
        f"{', '.join(short(float(v)) for v in columns)}. A column sum says how much each token was used."
    )


def _weights_remark(run: Pair) -> str:
    if not run.now.example.projected:
        return ""
    if run.now.what_if.causal:
        return (
            "let UPI attend 67 % to 'down'. With the causal mask that every chat model applies, the first token "
            "can only "
            "attend to itself: its row is [1, 0]."
        )
    return (
        "find it sensible that UPI attends 67 % to 'down', the token that carries the outage. The matrices were "
        "chosen by "
        "hand, nothing was trained; and with the causal mask of a chat model UPI attends only to itself (--causal)."
    )


def _output(run: Pair, head: HeadNames, first: bool) -> Step:
    a, v, o = (head.letter(letter) for letter in "AVO")
    now = run.now
    lines = [
        dot_line(
            f"{o}[{token},{column}]",
            now.value(a)[row],
            now.value(v)[:, column],
            float(now.value(o)[row, column]),
        )
        for row, token in enumerate(now.example.tokens)
        for column in range(now.value(v).shape[1])
    ]
    return Step(
        title="blend the values",
        why="The output of a token is the average of all values, weighted by its row of A." if first else "",
        formula=(f"{o} = {a} {v}",),
        arithmetic=tuple(lines),
        values=(run.value(o, "output"),),
        note=rounding_note(now.value(a)[0], now.value(v)[:, 0], float(now.value(o)[0, 0]), f"{o}[0,0]"),
    )


def rounding_note(left: torch.Tensor, right: torch.Tensor, exact: float, name: str) -> str:
    """Where operands rounded to four decimals do not give the rounded result, say so; else nothing."""
    from_printed = sum(round(a, 4) * round(b, 4) for a, b in zip(left.tolist(), right.tolist(), strict=True))
    if f"{from_printed:.4f}" == f"{exact:.4f}":
        return ""
    return (
        f"The operands as printed, to four decimals, give {name} = {from_printed:.4f}; the value is "
        f"{exact:.10f}, printed "
        f"{exact:.4f}. Rounding is for showing, not for computing."
    )


def _divergence(run: Pair) -> Step:
    names = run.now.example.tokens
    # Under a causal mask the first query has one key, so no head can disagree about it.
    query = len(names) - 1 if run.now.what_if.causal else 0
    first, second = (run.now.value(head.letter("A"))[query] for head in run.now.example.heads)
    rows = [
        (token, *(float(run.now.value(head.letter("A"))[query, j]) for head in run.now.example.heads))
        for j, token in enumerate(names)
    ]
    gap = 0.5 * float((first - second).abs().sum())
    return Step(
        title="the heads disagree",
        why="Each head has its own projections, so its own idea of what is similar.",
        formula=(f"T = 1/2 sum_j |A_{query + 1}j - A2_{query + 1}j|",),
        tables=(
            Table(
                title=f"weights of the query {names[query]}",
                header=("key", *(head.scope for head in run.now.example.heads)),
                rows=tuple(rows),
            ),
        ),
        arithmetic=(f"total variation distance T = {short(gap)} (0 the same, 1 nothing in common)",),
        chapters="explain with this that heads 'specialise'. These two were written by hand to differ; for what "
        "trained heads "
        "do, and which may be removed, see `headcount explain heads`.",
    )


def _join(run: Pair) -> Step:
    outputs = [head.letter("O") for head in run.now.example.heads]
    return Step(
        title="join the heads and project",
        why="The heads lie side by side again; W_O mixes them. It is the identity in this example, a learned "
        "matrix in a model.",
        formula=(f"C = [{', '.join(outputs)}]", "Y = C W_O"),
        values=(
            run.value("C", "heads side by side"),
            run.value("W_O"),
            run.value("Y", "result of the sub-layer"),
        ),
    )


def _check(run: Pair) -> Step:
    example, what_if = run.now.example, run.now.what_if
    letter = "Y" if example.projected else "O"
    rows = []
    for kernel in ("naive", "tiled", "fused"):
        other = _other_kernel(example, what_if, kernel)
        gap = float((other - run.now.values[letter]).abs().max())
        rows.append((kernel, _KERNELS[kernel], gap))
    return Step(
        title="check: three other kernels",
        why="The steps above ran one operation at a time. The same operands through the other implementations "
        "must agree.",
        tables=(
            Table(
                title=f"largest difference in {letter}",
                header=("kernel", "how it computes", "difference"),
                rows=tuple(rows),
            ),
        ),
    )


_KERNELS = {
    "naive": "scores stored, one operation",
    "tiled": "online softmax by tiles, scores never stored",
    "fused": "PyTorch's own scaled_dot_product_attention",
}


def _other_kernel(example: Example, what_if: WhatIf, kernel: str) -> torch.Tensor:
    with torch.no_grad():
        return output(example, what_if, leaves(example, gradient=False), kernel=kernel)
