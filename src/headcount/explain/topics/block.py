"""The block put together: post-norm and pre-norm, the decoder's three sub-layers, shares, gradients with depth."""

from __future__ import annotations

from statistics import median

import torch
from torch import Tensor
from torch.nn import Module

from headcount.explain.arithmetic import number
from headcount.explain.asked import Asked
from headcount.explain.assembled import make_block, run_block
from headcount.explain.derivation import Derivation, Step, Symbol, Table, shown
from headcount.transformer.layers import Linear
from headcount.transformer.ops.arithmetic import add

WIDTH, HEADS, TOKENS = 16, 4, 6
DEPTHS = (2, 6, 12, 24)
DRAWS = 5


def derive(asked: Asked) -> Derivation:
    """A small real block, checked against its equation written out."""
    seed = asked.seed
    return Derivation(
        topic="block",
        title="The block: sub-layers, residual sums, norms",
        summary=f"Real blocks of width {WIDTH}, {HEADS} heads, feed-forward {4 * WIDTH} wide, {TOKENS} random "
        f"tokens (seed "
        f"{seed}), float64.",
        symbols=(
            Symbol(
                symbol="x", meaning="the residual stream, one vector per token", shape=f"{TOKENS} x {WIDTH}"
            ),
            Symbol(symbol="MHA", meaning="multi-head attention with its four projections"),
            Symbol(symbol="FFN", meaning="two linear layers with an activation between"),
            Symbol(symbol="LN", meaning="LayerNorm"),
            Symbol(symbol="M", meaning="the encoder's output, which a decoder block reads"),
        ),
        steps=(_post(seed), _pre(seed), _decoder(seed), _parameters(), _flops(seed), _depth(seed), _modern()),
        sources=(
            "Vaswani et al. 2017, sections 3.1 and 5.4 (post-norm)",
            "Xiong et al. 2020 (pre-norm and warm-up)",
        ),
    )


def _sizes(x: dict[str, Tensor]) -> Table:
    rows = tuple(
        (name, number(t.norm(dim=-1).mean()), number(t.mean()), number(t.var(unbiased=False)))
        for name, t in x.items()
    )
    return Table(title="per token, averaged", header=("value", "norm", "mean", "variance"), rows=rows)


def _assembled(kind: str, seed: int) -> tuple[dict[str, Tensor], float]:
    """Each value of the block from its own modules, and how far the whole block is from the last of them."""
    run = run_block(kind, seed=seed, tokens=TOKENS, width=WIDTH, heads=HEADS, feed_forward=4 * WIDTH)
    block = run.block
    x = run.x.detach()
    attention, feed, norms = block.attention, block.feed_forward, block.norms
    found = {"x": x}
    with torch.no_grad():
        if kind == "encoder":
            found["MHA(x)"] = attention(x)
            found["x' = LN(x + MHA(x))"] = first = norms["attention"](add(x, found["MHA(x)"]))
            found["FFN(x')"] = feed(first)
            found["y = LN(x' + FFN(x'))"] = norms["feed_forward"](add(first, found["FFN(x')"]))
        else:
            found["MHA(LN(x))"] = attention(norms["attention"](x))
            found["x' = x + MHA(LN(x))"] = first = add(x, found["MHA(LN(x))"])
            found["FFN(LN(x'))"] = feed(norms["feed_forward"](first))
            found["y = x' + FFN(LN(x'))"] = add(first, found["FFN(LN(x'))"])
    return found, number((list(found.values())[-1] - run.out.detach()).abs().max())


def _post(seed: int) -> Step:
    found, gap = _assembled("encoder", seed)
    return Step(
        title="post-norm, the encoder block as published",
        why="Each sub-layer adds to the stream, then the sum is normalised.",
        formula=("x' = LN(x + MHA(x))", "y = LN(x' + FFN(x'))", "FFN(x) = W_2 max(0, W_1 x + b_1) + b_2"),
        tables=(_sizes(found),),
        values=(shown("block - equation", gap, "largest difference"),),
        chapters="give this as the block of 'one encoder or decoder'. It is the encoder's; a decoder block of "
        "the original has a "
        "third sub-layer. They also leave out W_O, W_1, W_2 and their biases.",
    )


def _pre(seed: int) -> Step:
    found, gap = _assembled("pre-norm", seed)
    return Step(
        title="pre-norm, the block of nearly every model since",
        why="The norm moves in front of the sub-layer: the stream itself is never rescaled, so it is a plain "
        "sum of all sub-layers.",
        formula=("x' = x + MHA(LN(x))", "y = x' + FFN(LN(x'))"),
        tables=(_sizes(found),),
        values=(shown("block - equation", gap, "largest difference"),),
        note="A pre-norm stack ends with one more norm, because its stream grows from block to block.",
    )


def _decoder(seed: int) -> Step:
    run = run_block("decoder", seed=seed, tokens=TOKENS, width=WIDTH, heads=HEADS, feed_forward=4 * WIDTH)
    rows = []
    for scope in run.graph.scopes():
        if "/" in scope:
            continue
        inside = [op for op in run.graph.operations if op.scope and op.scope[0] == scope]
        rows.append((scope, len(inside), ", ".join(dict.fromkeys(op.name for op in inside))))
    return Step(
        title="the decoder block has three sub-layers",
        why="Masked attention over its own tokens; attention from its tokens (queries) to the encoder's output "
        "M (keys and "
        "values); feed-forward.",
        formula=("x' = LN(x + MHA(x))", "x'' = LN(x' + MHA(x', M))", "y = LN(x'' + FFN(x''))"),
        tables=(
            Table(
                title="operations that really ran, by sub-layer",
                header=("sub-layer", "number", "operations"),
                rows=tuple(rows),
            ),
        ),
        graph=run.graph.collapsed("*1"),
    )


def _parameters() -> Step:
    rows = []
    for kind, words in (("encoder", "encoder block"), ("decoder", "decoder block")):
        block = make_block(kind, seed=0, width=WIDTH, heads=HEADS, feed_forward=4 * WIDTH)
        total = sum(p.numel() for p in block.parameters())
        rows.append((words, total, ""))
        for name, child in block.named_children():
            count = sum(p.numel() for p in child.parameters())
            if count:
                rows.append((f"  {name}", count, f"{100 * count / total:.1f} %"))
    d = WIDTH
    return Step(
        title="parameters of the real modules",
        why="Attention has four D x D matrices, the feed-forward two of D x 4 D: one third against two thirds.",
        formula=("MHA: 4 D^2 + 4 D", "FFN: 8 D^2 + 5 D", "LN: 2 D"),
        arithmetic=(f"D = {d}: {4 * d * d + 4 * d:,}, {8 * d * d + 5 * d:,}, {2 * d}",),
        tables=(Table(title="", header=("part", "parameters", "share"), rows=tuple(rows)),),
    )


def linear_macs(block: Module, x: Tensor) -> dict[str, int]:
    """Multiply-adds of every linear layer as it runs: rows x outputs x inputs, by sub-layer."""
    found: dict[str, int] = {}
    hooks = []
    for path, module in block.named_modules():
        if isinstance(module, Linear):
            part = path.split(".")[0]

            def count(layer: Module, inputs: tuple[Tensor, ...], _: Tensor, part: str = part) -> None:
                weight = layer.weight
                assert isinstance(weight, Tensor)
                found[part] = found.get(part, 0) + inputs[0][..., 0].numel() * weight.numel()

            hooks.append(module.register_forward_hook(count))
    with torch.no_grad():
        block(x)
    for hook in hooks:
        hook.remove()
    return found


def _flops(seed: int) -> Step:
    block = make_block("encoder", seed=seed, width=WIDTH, heads=HEADS, feed_forward=4 * WIDTH)
    rows = []
    for n in (TOKENS, 4 * WIDTH, 16 * WIDTH):
        macs = linear_macs(block, torch.zeros(1, n, WIDTH, dtype=torch.float64))
        parts = (macs["attention"], 2 * n * n * WIDTH, macs["feed_forward"])
        total = sum(parts)
        rows.append((n, 2 * total, *(f"{100 * part / total:.1f} %" for part in parts)))
    return Step(
        title="where its FLOPs go",
        why="Linear layers counted as they run (rows x outputs x inputs), scores and values as 2 n^2 D; FLOPs "
        "are twice that.",
        tables=(
            Table(
                title="one block, n tokens",
                header=("n", "FLOPs", "projections", "scores, values", "feed-forward"),
                rows=tuple(rows),
            ),
        ),
        note=f"At n = 4 D = {4 * WIDTH} scores and values equal the feed-forward: the crossover of `headcount "
        f"explain flops`.",
        chapters="call the residual sum and LayerNorm free. Of FLOPs they take little; the sum decides how "
        "gradients travel, and "
        "the norm how large they are (next step).",
    )


def depth_gradients(kind: str, depth: int, seed: int) -> tuple[float, float]:
    """``(||dL/dx|| at the first block's input, at the last block's input)`` of a stack of fresh blocks."""
    blocks = [
        make_block(kind, seed=seed * 1000 + i, width=WIDTH, heads=HEADS, feed_forward=4 * WIDTH)
        for i in range(depth)
    ]
    stream = torch.Generator().manual_seed(seed)
    x = torch.randn(1, TOKENS, WIDTH, generator=stream, dtype=torch.float64).requires_grad_()
    upstream = torch.randn(1, TOKENS, WIDTH, generator=stream, dtype=torch.float64)
    inputs, value = [], x
    for block in blocks:
        inputs.append(value)
        value = block(value)
    if kind != "encoder":
        value = torch.nn.functional.layer_norm(value, (WIDTH,))
    first, last = torch.autograd.grad(value, (inputs[0], inputs[-1]), upstream)
    return number(first.norm()), number(last.norm())


def _depth(seed: int) -> Step:
    rows: list[tuple[object, ...]] = []
    ratios: dict[str, list[float]] = {}
    for depth in DEPTHS:
        cells = []
        for kind in ("encoder", "pre-norm"):
            drawn = [depth_gradients(kind, depth, seed * DRAWS + draw) for draw in range(DRAWS)]
            cells += [median(first for first, _ in drawn), median(last for _, last in drawn)]
            ratios[kind] = [first / last for first, last in drawn]
        rows.append((depth, *cells))
    spread = {kind: f"{min(found):.2g} to {max(found):.2g}" for kind, found in ratios.items()}
    return Step(
        title="gradients with depth, at initialisation",
        why="In post-norm the gradient passes every norm above a block. In pre-norm the identity path reaches every block, "
        "and the one norm at the end divides by the size that the stream has grown to.",
        formula=("\"post-norm:\" dx = LN'(x + f(x)) (1 + f'(x)) dy", '"pre-norm:" dx = (1 + (f LN)\'(x)) dy'),
        tables=(
            Table(
                title=f"||dL/dx|| at the input of the first and of the last block, median of {DRAWS} draws",
                header=("blocks", "post: first", "post: last", "pre: first", "pre: last"),
                rows=tuple(rows),
            ),
        ),
        note=f"At {DEPTHS[-1]} blocks the first block's gradient is {spread['encoder']} times the last one's in post-norm, "
        f"{spread['pre-norm']} times in pre-norm, over {DRAWS} draws of weights: post-norm is at the mercy of the draw.",
        chapters="say that putting the pieces together needs no mathematics beyond attention, softmax, FLOPs and cache. "
        "Where the norm stands changes how gradients scale with depth; initialisation and positions are mathematics too.",
    )


def _modern() -> Step:
    rows = []
    for kind, words in (("encoder", "post-norm, ReLU (original)"), ("gated", "RMSNorm, SwiGLU, K = N / 2")):
        block = make_block(kind, seed=0, width=WIDTH, heads=HEADS, feed_forward=4 * WIDTH)
        rows.append((words, sum(p.numel() for p in block.parameters())))
    return Step(
        title="the modern block",
        why="RMSNorm before each sub-layer, a third matrix that gates the feed-forward, fewer key/value heads, "
        "rotary positions in "
        "place of sinusoids, no biases.",
        formula=("FFN(x) = W_down (silu(W_gate x) * W_up x)",),
        tables=(
            Table(title="parameters at equal D and F", header=("block", "parameters"), rows=tuple(rows)),
        ),
        note="`headcount explain graph --example gated` draws it.",
    )
