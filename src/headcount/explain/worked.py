"""Run a worked example through the transformer's own operations, forward and backward, on a tape.

    C = [O, O2]    Y = C W_O    L = sum Y        with projections
    L = sum O                                    with Q, K, V given

float64 throughout; every number of a derivation is read off this run.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor

from headcount.explain.derivation import Quantity, nested
from headcount.explain.examples import Example, HeadNames, WhatIf, apply
from headcount.explain.graph import Graph, graph_of, with_constant
from headcount.record import Record
from headcount.transformer.attention.attend import attend
from headcount.transformer.attention.masks import Causal, Everything
from headcount.transformer.attention.rule import Rule
from headcount.transformer.ops.arithmetic import product, total
from headcount.transformer.ops.operation import differentiate
from headcount.transformer.ops.rearrange import concat
from headcount.transformer.ops.recording import name, record, scope


class Worked(Record):
    """What one run gave: value and gradient by letter, and the graph."""

    example: Example
    what_if: WhatIf
    values: dict[str, Tensor]
    gradients: dict[str, Tensor]
    graph: Graph

    def value(self, letter: str) -> Tensor:
        """The value of that letter, leading dimensions of size one dropped."""
        return _flat(self.values[letter])

    def gradient(self, letter: str) -> Tensor:
        """Its gradient."""
        return _flat(self.gradients[letter])


def rule_of(what_if: WhatIf, head_width: int) -> Rule:
    """The attention rule these what-ifs ask for."""
    scale = {"sqrt": None, "none": 1.0, "dk": 1 / head_width}[what_if.scale]
    return Rule(mask=Causal() if what_if.causal else Everything(), scale=scale)


def leaves(example: Example, *, gradient: bool = True) -> dict[str, Tensor]:
    """The inputs as float64 tensors; operands of attention get batch and head dimensions of one."""
    tensors = {}
    for letter, matrix in example.matrices.items():
        tensor = torch.tensor(matrix, dtype=torch.float64)
        if not letter.startswith("W_"):
            tensor = tensor[None, None]
        tensors[letter] = tensor.clone().requires_grad_(gradient)
    return tensors


def output(
    example: Example, what_if: WhatIf, inputs: dict[str, Tensor], *, kernel: str = "composed"
) -> Tensor:
    """Y (or O when Q, K, V are the inputs), every step an operation of its own with the ``composed`` kernel."""
    heads = [_head(head, what_if, inputs, kernel) for head in example.heads]
    if not example.projected:
        return heads[0]
    return name(product(name(concat(*heads), "C"), inputs["W_O"]), "Y")


def work(example: Example, what_if: WhatIf | None = None, *, mode: str = "by_hand") -> Worked:
    """Run forward, take L = the sum of the output, run backward."""
    asked = what_if or WhatIf()
    changed = apply(example, asked)
    inputs = leaves(changed)
    with differentiate(mode), record() as tape:
        for letter, tensor in inputs.items():
            name(tensor, letter)
        loss = name(total(output(changed, asked, inputs)), "L")
        loss.backward()  # type: ignore[no-untyped-call]
    _suffix_heads(tape, example)
    values = {value.name: value.tensor.detach() for value in tape.values.values()}
    gradients = {v.name: v.gradient for v in tape.values.values() if v.gradient is not None}
    graph = with_constant(
        graph_of(tape), rule_of(asked, values["Q"].shape[-1]).resolved(values["Q"].shape[-1])
    )
    return Worked(example=changed, what_if=asked, values=values, gradients=gradients, graph=graph)


def _head(head: HeadNames, what_if: WhatIf, inputs: dict[str, Tensor], kernel: str) -> Tensor:
    with scope(head.scope) if head.projections else nullcontext():
        if head.projections is None:
            q, k, v = (inputs[letter] for letter in "QKV")
        else:
            q, k, v = (
                name(product(inputs["x"], inputs[weight]), head.letter(letter))
                for letter, weight in zip("QKV", head.projections, strict=True)
            )
        return attend(q, k, v, rule=rule_of(what_if, q.shape[-1]), kernel=kernel)


def _suffix_heads(tape: object, example: Example) -> None:
    """The kernel calls its values S, S', A, O in every head; the second head's become S2, S2', A2, O2."""
    by_scope = {head.scope: head for head in example.heads}
    for node in tape.nodes:  # type: ignore[attr-defined]
        head = by_scope.get(node.scope[0]) if node.scope else None
        for key in node.outputs:
            value = tape.values[key]  # type: ignore[attr-defined]
            plain = value.name
            if not plain and node.operation.name == "scale":
                # With a mask the kernel calls the masked scores S'; what it masks is the scaled S.
                plain = value.name = "Z"
            if head is not None and plain in ("S", "S'", "Z", "A", "O"):
                value.name = head.letter(plain)


def _flat(tensor: Tensor) -> Tensor:
    while tensor.dim() > 2 and tensor.shape[0] == 1:
        tensor = tensor[0]
    return tensor


class Pair(Record):
    """A run with the what-ifs beside the run without: each quantity knows whether it changed."""

    now: Worked
    plain: Worked | None

    def value(self, letter: str, words: str = "", *, shown: str = "") -> Quantity:
        """A value as a quantity."""
        before = None if self.plain is None else self.plain.values.get(letter)
        return self.quantity(shown or letter, self.now.values[letter], before, words)

    def gradient(self, letter: str, words: str = "") -> Quantity:
        """The gradient of a value as a quantity called ``dX``."""
        before = None if self.plain is None else self.plain.gradients.get(letter)
        return self.quantity("d" + letter, self.now.gradients[letter], before, words)

    def quantity(self, shown: str, now: Tensor, before: Tensor | None, words: str = "") -> Quantity:
        """A quantity with rows labelled by tokens where the letter has a row per token."""
        values = nested(now)
        tokens = self.now.example.tokens if self.now.example.projected else ()
        letter = shown.lstrip("d")
        per_token = bool(tokens) and not letter.startswith("W_") and now.dim() > 1
        square = letter.rstrip("'2") in ("S", "A", "Z")
        return Quantity(
            name=shown,
            values=values,
            words=words,
            rows=tokens if per_token else (),
            columns=tokens if per_token and square else (),
            before=None if before is None else nested(before),
        )


def pair(example: Example, what_if: WhatIf) -> Pair:
    """Run the example with the what-ifs and, when there are any, without."""
    return Pair(now=work(example, what_if), plain=None if what_if.is_plain else work(example))
