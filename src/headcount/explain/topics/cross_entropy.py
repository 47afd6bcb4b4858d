"""Cross-entropy of logits: log-sum-exp, the gradient p - q, smoothing, ignored tokens, perplexity."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from headcount.explain.arithmetic import number, short
from headcount.explain.asked import Asked
from headcount.explain.derivation import Derivation, Step, Symbol, Table, shown
from headcount.transformer.ops.cross_entropy import cross_entropy
from headcount.transformer.ops.softmax import naive_softmax, softmax

ROW = (2.0, 1.0, 0.0, -1.0)
TARGET = 1
SMOOTHING = 0.1


def derive(asked: Asked) -> Derivation:
    """A row of four logits, then checks on many."""
    return Derivation(
        topic="cross-entropy",
        title="Cross-entropy from logits",
        summary=f"A vocabulary of four tokens, logits {[int(v) for v in ROW]}, the right token is number "
        f"{TARGET}; float64.",
        symbols=(
            Symbol(symbol="x_v", meaning="logit of token v", shape="V = 4, in step 5 V = 8"),
            Symbol(symbol="[v = t]", meaning="1 when v is t, else 0"),
            Symbol(symbol="t", meaning="the right token", shape=str(TARGET)),
            Symbol(symbol="p", meaning="softmax(x)"),
            Symbol(symbol="q", meaning="target distribution: 1 at t, or smoothed"),
            Symbol(symbol="e", meaning="label smoothing", shape=str(SMOOTHING)),
        ),
        steps=(_loss(), _stable(), _gradient(), _smoothing(), _tokens(), _check(asked.seed)),
        sources=("Szegedy et al. 2016 (label smoothing); Vaswani et al. 2017, section 5.4",),
    )


def _row() -> Tensor:
    return torch.tensor([ROW], dtype=torch.float64, requires_grad=True)


def _target() -> Tensor:
    return torch.tensor([TARGET])


def _loss() -> Step:
    x = _row()
    p, loss = softmax(x.detach())[0], cross_entropy(x, _target())
    lse = number(torch.logsumexp(x.detach()[0], 0))
    return Step(
        title="the loss",
        why="The surprise at the right token: minus the log of the probability it was given. The logarithm meets the "
        "exponential, so no probability needs to be formed.",
        formula=(
            "L = -log p_t",
            "log p_v = x_v - lse(x)",
            "L = lse(x) - x_t",
            "lse(x) = m + log sum_v exp(x_v - m)",
        ),
        arithmetic=(f"lse = {short(lse)}, L = {short(lse)} - {short(ROW[TARGET])} = {short(number(loss))}",),
        values=(shown("x", x), shown("p", p), shown("L", number(loss), "our operation, nats")),
    )


def _stable() -> Step:
    hard = torch.tensor([[-200.0, 0.0]])
    target = torch.tensor([0])
    textbook = -torch.log(naive_softmax(hard)[0, 0])
    return Step(
        title="why not take the logarithm of softmax",
        why="A probability below the smallest float is 0, and log 0 is -inf. The log-sum-exp keeps the exact answer.",
        values=(
            shown("-log(softmax)", number(textbook), "logits [-200, 0], target 0, float32"),
            shown("L", number(cross_entropy(hard, target)), "through lse"),
        ),
    )


def _gradient() -> Step:
    x = _row()
    cross_entropy(x, _target()).backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    p = softmax(x.detach())[0]
    return Step(
        title="the gradient",
        why="The gradient of lse is p, that of -x_t is -1 at t. Softmax and logarithm cancel into the simplest "
        "gradient there "
        "is: what was predicted minus what was right.",
        formula=("dx = (p - q) / C", '"C tokens counted"'),
        arithmetic=(f"dx[{TARGET}] = {short(number(p[TARGET]))} - 1 = {short(number(x.grad[0, TARGET]))}",),
        values=(shown("p", p), shown("dx", x.grad, "our backward"), shown("sum dx", number(x.grad.sum()))),
        note="The gradient sums to zero, and its size is at most sqrt(2): unlike the squared error through "
        "softmax, it does not "
        "vanish for a row that is confidently wrong.",
    )


def _smoothing() -> Step:
    rows = []
    for e in (0.0, SMOOTHING):
        x = _row()
        loss = cross_entropy(x, _target(), label_smoothing=e)
        (d_x,) = torch.autograd.grad(loss, x)
        rows.append((f"e = {e:g}", number(loss), *(number(v) for v in d_x[0])))
    # The smoothed target gives t the share 1 - e + e/V, the others e/V each.
    rest = SMOOTHING / len(ROW)
    top = 1 - SMOOTHING + rest
    entropy = -top * math.log(top) - (len(ROW) - 1) * rest * math.log(rest)
    return Step(
        title="label smoothing",
        why="A little of the target goes to every token, so the logits have a finite best value.",
        formula=('q_v = (1 - e) "[v = t]" + e / V', "L = lse(x) - (1 - e) x_t - e mean(x)"),
        tables=(Table(title="", header=("", "L", "dx_0", "dx_1", "dx_2", "dx_3"), rows=tuple(rows)),),
        note=f"The loss cannot fall below the entropy of q, {short(entropy)} here: a smoothed loss is not "
        f"comparable with a plain "
        "one.",
    )


def _tokens() -> Step:
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(4, 8, generator=stream, dtype=torch.float64)
    targets = torch.tensor([3, 1, -100, 6])
    counted = cross_entropy(x, targets)
    alone = cross_entropy(x[[0, 1, 3]], targets[[0, 1, 3]])
    flat = cross_entropy(torch.zeros(1, 8, dtype=torch.float64), torch.tensor([0]))
    return Step(
        title="many tokens",
        why="Other logits here: four rows of V = 8 random ones. "
        "The mean over the tokens that count; padding carries an ignored target. Perplexity is exp of the mean.",
        formula=("L = 1/C sum_i L_i", "ppl = exp(L)"),
        values=(
            shown("L", number(counted), "four rows, one ignored"),
            shown("L of the three", number(alone)),
            shown("ppl", math.exp(number(counted))),
            shown("L, all logits equal", number(flat), f"ln 8 = {math.log(8):.4f}: a guess"),
        ),
    )


def _check(seed: int) -> Step:
    stream = torch.Generator().manual_seed(seed)
    x = torch.randn(32, 50, generator=stream, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 50, (32,), generator=stream)
    rows = []
    for e in (0.0, SMOOTHING):
        ours, stock = (
            cross_entropy(x, targets, label_smoothing=e),
            functional.cross_entropy(x, targets, label_smoothing=e),
        )
        (mine,), (theirs,) = torch.autograd.grad(ours, x), torch.autograd.grad(stock, x)
        rows.append((f"e = {e:g}", abs(number(ours - stock)), number((mine - theirs).abs().max())))
    return Step(
        title=f"check: PyTorch's cross-entropy, 32 tokens of 50 (seed {seed})",
        tables=(Table(title="largest difference", header=("", "L", "dx"), rows=tuple(rows)),),
    )
