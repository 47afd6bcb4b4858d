"""LayerNorm and RMSNorm: forward, what the backward removes, what a norm forgets."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from headcount.explain.arithmetic import number, short
from headcount.explain.asked import Asked
from headcount.explain.derivation import Derivation, Step, Symbol, Table, shown
from headcount.transformer.ops.layer_norm import layer_norm
from headcount.transformer.ops.rms_norm import rms_norm

ROW = (1.0, 2.0, 4.0, 9.0)
UPSTREAM = (1.0, 0.0, -1.0, 2.0)
WEIGHT = (1.0, 0.5, 2.0, 1.0)


def derive(asked: Asked) -> Derivation:
    """One row of four numbers through both norms."""
    return Derivation(
        topic="norms",
        title="LayerNorm and RMSNorm",
        summary="Each token's vector is brought to a fixed size before or after a sub-layer; float64, one row "
        "of four numbers.",
        symbols=(
            Symbol(symbol="x", meaning="one token's vector", shape="D = 4"),
            Symbol(symbol="mu, r", meaning="its mean; 1 / sqrt(variance + eps)"),
            Symbol(symbol="n", meaning="normalised vector"),
            Symbol(symbol="w, b", meaning="learned scale and shift", shape="D"),
            Symbol(symbol="g", meaning="w * dy, the gradient at n"),
        ),
        steps=(_layer_forward(), _layer_backward(), _rms(), _forgets(), _check(), _cost()),
        sources=("Ba, Kiros, Hinton 2016 (LayerNorm)", "Zhang, Sennrich 2019 (RMSNorm)"),
    )


def _leaf(numbers: tuple[float, ...]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64, requires_grad=True)


def _layer_forward() -> Step:
    x, w = _leaf(ROW), torch.tensor(WEIGHT, dtype=torch.float64)
    mean = number(x.mean())
    variance = number((x - mean).square().mean())
    total = " + ".join(short(v) for v in ROW)
    return Step(
        title="LayerNorm, forward",
        why="Mean 0 and variance 1 over the token's own D numbers; nothing of other tokens or of the batch enters.",
        formula=(
            "mu = 1/D sum_d x_d",
            "r = 1 / sqrt(1/D sum_d (x_d - mu)^2 + eps)",
            "n = (x - mu) r",
            "y = w * n + b",
        ),
        arithmetic=(
            f"mu = ({total}) / 4 = {short(mean)}",
            f"variance = {short(variance)} (divided by D, not D - 1), r = {short(1 / math.sqrt(variance + 1e-5))}",
        ),
        values=(
            shown("x", x),
            shown("n", layer_norm(x), "normalised"),
            shown("w", w, "scale"),
            shown("y", layer_norm(x, w)),
        ),
    )


def _layer_backward() -> Step:
    x, w = _leaf(ROW), torch.tensor(WEIGHT, dtype=torch.float64)
    upstream = torch.tensor(UPSTREAM, dtype=torch.float64)
    (d_x,) = torch.autograd.grad(layer_norm(x, w), x, upstream)
    n, g = layer_norm(x.detach()), w * upstream
    return Step(
        title="LayerNorm, backward",
        why="x_j reaches n_i directly, through mu and through r. Put together, the gradient loses its part "
        "along 1 and along n: "
        "what the norm undoes cannot have a gradient.",
        formula=(
            "dn_i / dx_j = r (delta_ij - 1/D - n_i n_j / D)",
            "dx = r (g - mean(g) - n mean(g * n))",
            'dw = sum dy * n  "and"  db = sum dy  "over all tokens"',
        ),
        arithmetic=(f"mean(g) = {short(number(g.mean()))}, mean(g n) = {short(number((g * n).mean()))}",),
        values=(
            shown("dy", upstream, "upstream"),
            shown("g", g),
            shown("dx", d_x, "our backward"),
            shown("sum dx", number(d_x.sum())),
            shown("dx . n", number(d_x @ n)),
        ),
        note="dx . n is zero only up to eps: with eps = 1e-5 a change of length is undone almost, not quite.",
    )


def _rms() -> Step:
    x, w = _leaf(ROW), torch.tensor(WEIGHT, dtype=torch.float64)
    upstream = torch.tensor(UPSTREAM, dtype=torch.float64)
    y = rms_norm(x, w)
    (d_x,) = torch.autograd.grad(y, x, upstream)
    square = number(x.detach().square().mean())
    return Step(
        title="RMSNorm: the same without mean and shift",
        why="Only the length is fixed. One sum less in each direction, and as good in practice; most models "
        "since Llama use it.",
        formula=("r = 1 / sqrt(mean(x^2) + eps)", "y = w * x r", "dx = r (g - n mean(g * n))"),
        arithmetic=(f"mean(x^2) = {short(square)}, r = {short(1 / math.sqrt(square + 1e-6))}",),
        values=(shown("y", y), shown("dx", d_x, "our backward"), shown("dx . x", number(d_x @ x.detach()))),
    )


def _forgets() -> Step:
    x = torch.tensor(ROW, dtype=torch.float64)
    rows = []
    for words, changed in (("x + 100", x + 100), ("3 x", 3 * x), ("-x", -x)):
        rows.append(
            (
                words,
                number((layer_norm(changed) - layer_norm(x)).abs().max()),
                number((rms_norm(changed) - rms_norm(x)).abs().max()),
            )
        )
    return Step(
        title="what a norm forgets",
        why="LayerNorm cannot see a shift or a positive scale of its input, RMSNorm cannot see a positive scale.",
        tables=(
            Table(title="largest change of n", header=("input", "LayerNorm", "RMSNorm"), rows=tuple(rows)),
        ),
        note="Small numbers instead of zero are eps at work. The sign is kept by both.",
        chapters="say that LayerNorm 'rescales the sum' and stop. Its gradient is divided by the size of its "
        "input, so where the "
        "norm stands decides how gradients fare with depth (`headcount explain block`).",
    )


def _check() -> Step:
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(5, 16, generator=stream, dtype=torch.float64, requires_grad=True)
    w = torch.randn(16, generator=stream, dtype=torch.float64, requires_grad=True)
    b = torch.randn(16, generator=stream, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(5, 16, generator=stream, dtype=torch.float64)
    rows: list[tuple[object, ...]] = []
    ours = layer_norm(x, w, b)
    stock = functional.layer_norm(x, (16,), w, b)
    pairs = zip(
        torch.autograd.grad(ours, (x, w, b), upstream),
        torch.autograd.grad(stock, (x, w, b), upstream),
        strict=True,
    )
    gaps = [number((a - c).abs().max()) for a, c in pairs]
    rows.append(("LayerNorm", number((ours - stock).abs().max()), gaps[0], gaps[1], gaps[2]))
    mine, theirs = rms_norm(x, w), functional.rms_norm(x, (16,), w, 1e-6)
    two = zip(
        torch.autograd.grad(mine, (x, w), upstream),
        torch.autograd.grad(theirs, (x, w), upstream),
        strict=True,
    )
    gaps = [number((a - c).abs().max()) for a, c in two]
    rows.append(("RMSNorm", number((mine - theirs).abs().max()), gaps[0], gaps[1], None))
    return Step(
        title="check: PyTorch's own norms, five random tokens of width 16",
        tables=(Table(title="largest difference", header=("", "y", "dx", "dw", "db"), rows=tuple(rows)),),
    )


def _cost() -> Step:
    width = 4096
    return Step(
        title="cost",
        why="A norm reads and writes the stream and computes about five operations per number; a projection of "
        "the same token "
        "computes 2 D per number.",
        formula=('5 D  "against"  2 D^2',),
        arithmetic=(
            f"D = {width:,}: {5 * width:,} against {2 * width * width:,} FLOPs per token and matrix",
        ),
        chapters="call LayerNorm and the residual path negligible. In FLOPs, yes. In bytes a norm moves the "
        "whole stream twice, "
        "which is why kernels fuse it with the residual sum.",
    )
