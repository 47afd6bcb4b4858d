"""Who may attend to whom: the masks by name, what each leaves, and what a mask does to the worked example."""

from __future__ import annotations

import torch
from torch import Tensor

from headcount.explain.asked import Asked
from headcount.explain.derivation import Derivation, Step, Symbol, Table, shown
from headcount.explain.worked import pair
from headcount.transformer.attention.attend import attend
from headcount.transformer.attention.masks import (
    Causal,
    Chunked,
    Everything,
    Mask,
    Packed,
    Padding,
    Prefix,
    SlidingWindow,
)
from headcount.transformer.attention.rule import Rule

TOKENS = 6


def _masks() -> dict[str, tuple[Mask, str]]:
    keep = torch.tensor([[True, True, True, True, False, False]])
    return {
        "everything": (Everything(), "encoder, cross-attention"),
        "causal": (Causal(), "decoder: key <= query"),
        "sliding window of 3": (SlidingWindow(window=3), "the query and the two tokens before it"),
        "chunks of 3": (Chunked(chunk=3), "causal inside the query's own chunk"),
        "prefix of 2": (Prefix(length=2), "the first two tokens are open to all"),
        "padding, 4 real keys": (Padding(keep_BS=keep), "the last two keys do not exist"),
        "packed 2 + 4, causal": (Packed.of_lengths([2, 4]) & Causal(), "two sequences in one row"),
    }


def derive(asked: Asked) -> Derivation:
    """Each mask drawn, then applied."""
    example, what_if = asked.worked_example("upi")
    steps = [_rule()]
    steps += [_drawn(name, mask, words) for name, (mask, words) in _masks().items()]
    steps += [_on_example(asked), _empty_row(), _cost()]
    return Derivation(
        topic="masks",
        title="Masks: who may attend to whom",
        summary="A mask is a rule over positions; a forbidden pair gets the score -inf, so its weight is exactly 0.",
        symbols=(
            Symbol(symbol="i, j", meaning="positions of the query and of the key, from 0"),
            Symbol(symbol="n", meaning="tokens", shape=str(TOKENS)),
            Symbol(symbol="1, 0", meaning="in the drawings: pair allowed, pair forbidden"),
        ),
        steps=tuple(steps),
        settings=what_if.words(example),
        sources=("Vaswani et al. 2017, section 3.2.3 (causal); Beltagy et al. 2020 (sliding window)",),
    )


def _rule() -> Step:
    return Step(
        title="the rule",
        why="Added before softmax, not multiplied after it: the remaining weights must sum to 1 again.",
        formula=('S\'_ij = s_ij "if allowed, else" -inf', "A = softmax(S')", "exp(-inf) = 0"),
    )


def _drawn(name: str, mask: Mask, words: str) -> Step:
    allowed: Tensor = mask.allowed(torch.arange(TOKENS), torch.arange(TOKENS))[0]
    open_pairs = int(allowed.sum())
    return Step(
        title=name,
        why=f"{words[:1].upper()}{words[1:]}: {open_pairs} of {TOKENS * TOKENS} pairs.",
        values=(
            shown(
                "allowed",
                allowed.long(),
                rows=tuple(f"i={i}" for i in range(TOKENS)),
                columns=tuple(f"j={j}" for j in range(TOKENS)),
            ),
        ),
    )


def _on_example(asked: Asked) -> Step:
    example, what_if = asked.worked_example("upi")
    run = pair(example, what_if.replace(causal=True))
    return Step(
        title=f"the causal mask on example {example.name}, before -> after",
        why="The first token sees itself only, so its row is [1, 0] and its output is its own value.",
        values=(run.value("A"), run.value("O")),
        chapters="compute without a mask and read meaning into what the first token attends to. A chat model is "
        "causal: its "
        "first token never sees the second.",
    )


def _empty_row() -> Step:
    stream = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, 2, 2, generator=stream, dtype=torch.float64) for _ in range(3))
    nothing = Padding(keep_BS=torch.zeros(1, 2, dtype=torch.bool))
    return Step(
        title="a row with no key left",
        why="A sequence of padding alone has nothing to attend to. Softmax of a row of -inf is 0/0; we define "
        "it as zeros, "
        "in every kernel, with a zero gradient.",
        values=tuple(
            shown(f"O, {kernel}", attend(q, k, v, rule=Rule(mask=nothing), kernel=kernel))
            for kernel in ("naive", "tiled")
        ),
    )


def _cost() -> Step:
    rows = []
    for n in (1024, 8192):
        causal = n * (n + 1) // 2
        window = 4096
        kept = min(n, window)
        windowed = kept * (kept + 1) // 2 + (n - kept) * kept
        rows.append((n, n * n, causal, windowed))
    return Step(
        title="pairs that are really needed",
        why="A kernel that skips forbidden tiles does half the work under a causal mask, and linear work under "
        "a window.",
        formula=('n^2 "without,"  n (n + 1) / 2 "causal,"  sum_i min(i, w) "in a window of w"',),
        tables=(
            Table(
                title="(query, key) pairs of one head",
                header=("n", "everything", "causal", "window 4,096"),
                rows=tuple(rows),
            ),
        ),
    )
