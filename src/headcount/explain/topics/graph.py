"""The computational graph of a worked example or of a real block, drawn from its tape."""

from __future__ import annotations

from headcount.errors import UnknownNameError, UsageError
from headcount.explain.asked import Asked
from headcount.explain.assembled import WORDS, run_block
from headcount.explain.derivation import Derivation, Step, Symbol
from headcount.explain.examples import EXAMPLES
from headcount.explain.graph import Graph
from headcount.explain.worked import work


def derive(asked: Asked) -> Derivation:
    """Record, run backward, read the tape."""
    name = asked.example or "identity"
    known = [*EXAMPLES, *WORDS]
    if name not in known:
        raise UnknownNameError(what="example", given=name, allowed=known)
    settings: tuple[str, ...] = ()
    if name in EXAMPLES:
        example, what_if = asked.worked_example("identity")
        graph, words, settings = work(example, what_if).graph, example.title, what_if.words(example)
    else:
        if asked.cells or asked.causal or asked.scale != "sqrt":
            raise UsageError(
                f"--set, --causal and --scale change the worked examples {', '.join(EXAMPLES)}; {name} is a real block"
            )
        graph, words = (
            run_block(name, seed=asked.seed).graph,
            f"{WORDS[name]}, random weights (seed {asked.seed})",
        )
    return Derivation(
        topic="graph",
        title=f"Computational graph: {name}",
        summary=f"{words}. Every box is a value of the run that was just recorded; {_loss(name)}",
        symbols=_symbols(name),
        steps=(_step(graph, asked),),
        settings=settings,
    )


def _symbols(name: str) -> tuple[Symbol, ...]:
    """The letters that stand in the boxes."""
    gradient = Symbol(symbol="dX", meaning="gradient of L at X, the same shape")
    letters = Symbol(
        symbol="Q, K, V, S, S'", meaning="queries, keys, values; scores raw, and scaled and masked"
    )
    output = Symbol(symbol="A, O", meaning="attention weights; A V, the output of the heads")
    norm = Symbol(symbol="||X||", meaning="sqrt of the sum of squares, where X is too large to print")
    if name in EXAMPLES:
        return (letters, output, Symbol(symbol="L", meaning="the loss"), gradient)
    found = [
        Symbol(symbol="x, y", meaning="input and output of the block, one row per token"),
        Symbol(symbol="W_Q, W_K, W_V, W_O", meaning="projections of attention; b_Q, ... their biases"),
    ]
    if name == "decoder":
        found += [
            Symbol(symbol="M", meaning="output of the encoder, read by cross-attention"),
            Symbol(symbol="W_Qc, ..., W_Oc", meaning="projections of cross-attention"),
        ]
    gate = "W_gate, " if name == "gated" else ""
    found += [
        Symbol(symbol=f"{gate}W_up, W_down", meaning="matrices of the feed-forward"),
        Symbol(symbol="w_n1, b_n1", meaning="scale and shift of the first sub-layer's norm, and so on"),
        Symbol(symbol="u, z, L", meaning="random readout; z = y u; L = sum of z"),
    ]
    return (*found, letters, output, gradient, norm)


def _loss(name: str) -> str:
    if name in EXAMPLES:
        return "L is the sum of the output."
    return "L is the sum of y u with a random u: the plain sum of LayerNorm's outputs is a constant, without a gradient."


def _step(graph: Graph, asked: Asked) -> Step:
    scopes = graph.scopes()
    note = ""
    if scopes:
        note = (
            f"Scopes that --collapse folds into one box: {', '.join(scopes)}; "
            "*1, *2 fold all scopes of that depth (1 is the outermost)."
        )
    return Step(
        title="values down, gradients up",
        why=f"{len(graph.values)} values, {len(graph.operations)} operations on the tape.",
        graph=graph.collapsed(*asked.collapse),
        note=note,
    )
