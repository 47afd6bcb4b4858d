"""``Operation``: a forward and its hand-derived backward, joined to PyTorch's autograd.

    out, saved = forward(*inputs, **options)      saved: a NamedTuple of exactly what backward reads
    d_inputs   = backward(saved, d_out)           one gradient per input, None for an input that has none

``SOFTMAX(x, dim=-1)`` runs the pair as one node of autograd's graph, so ``loss.backward()`` calls *our* backward.
Inside ``with differentiate("autograd"):`` the same forward runs bare and PyTorch differentiates it: the independent
check of every gradient in this package. A forward is therefore written so that PyTorch can differentiate it too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from headcount.errors import OperandError, UnknownNameError
from headcount.transformer.ops import recording
from headcount.transformer.ops.operands import plain

MODES = ("by_hand", "autograd")
_mode: ContextVar[str] = ContextVar("derivatives", default="by_hand")


@contextmanager
def differentiate(mode: str) -> Iterator[None]:
    """Choose who differentiates inside the block: ``by_hand`` (our backward) or ``autograd`` (PyTorch's)."""
    if mode not in MODES:
        raise UnknownNameError(what="derivative mode", given=mode, allowed=MODES)
    token = _mode.set(mode)
    try:
        yield
    finally:
        _mode.reset(token)


class Operation:
    """A named forward/backward pair.

    ``formula`` and ``gradient`` are the equations as text, shown on graphs and derivations. ``constant_outputs`` are
    the indices of outputs that carry no gradient (chosen experts, a log-sum-exp that only the backward reads),
    ``whole_inputs`` those of inputs that are ids rather than numbers.
    """

    traceable = True

    def __init__(
        self,
        name: str,
        *,
        forward: Callable[..., tuple[Any, Any]],
        backward: Callable[..., tuple[Tensor | None, ...]],
        formula: str,
        gradient: str,
        constant_outputs: tuple[int, ...] = (),
        whole_inputs: tuple[int, ...] = (),
    ) -> None:
        self.name = name
        self.forward = forward
        self.backward = backward
        self.formula = formula
        self.gradient = gradient
        self.constant_outputs = constant_outputs
        self.whole_inputs = whole_inputs

    def __repr__(self) -> str:
        return f"Operation({self.name}: {self.formula})"

    def __call__(self, *inputs: Tensor | None, **options: Any) -> Any:
        """Run forward; when a gradient is asked for, it comes from ``backward`` (or from PyTorch, see the mode)."""
        self._check(inputs)
        if _mode.get() == "by_hand":
            if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs):
                out = _Join.apply(self, options, *inputs)  # type: ignore[no-untyped-call]
            else:
                # Nobody asks for a gradient (generation): the bare forward saves a node per operation and token.
                out = self.forward(*inputs, **options)[0]
        elif self.traceable:
            out = self.forward(*inputs, **options)[0]
        else:
            raise OperandError(
                f"{self.name}: PyTorch cannot differentiate this forward; take the naive kernel with autograd"
            )
        tape = recording.active()
        if tape is not None:
            tape.add(self, inputs, out if isinstance(out, tuple) else (out,))
        return out

    def _check(self, inputs: tuple[Tensor | None, ...]) -> None:
        """Numbers are floating, ids are whole, all on one device: PyTorch would truncate, or read foreign memory."""
        device = None
        for index, tensor in enumerate(inputs):
            if tensor is None:
                continue
            whole = index in self.whole_inputs
            if tensor.is_floating_point() == whole or tensor.is_complex():
                wanted = "whole numbers" if whole else "floating"
                raise OperandError(
                    f"{self.name}: input {index + 1} is {plain(tensor.dtype)}; it must be {wanted}"
                )
            if device is not None and tensor.device != device:
                raise OperandError(
                    f"{self.name}: inputs are on {device} and on {tensor.device}; move them to one device"
                )
            device = tensor.device


class BufferedOperation(Operation):
    """A pair whose forward writes into buffers, which PyTorch cannot differentiate: refused in autograd mode."""

    traceable = False


class _Join(torch.autograd.Function):
    """The one autograd node: keeps ``saved`` for backward (tensors through autograd, the rest as it is)."""

    @staticmethod
    def forward(ctx: Any, operation: Operation, options: dict[str, Any], *inputs: Tensor | None) -> Any:
        out, saved = operation.forward(*inputs, **options)
        ctx.operation = operation
        ctx.saved_type = type(saved)
        ctx.is_tensor = [isinstance(value, Tensor) for value in saved]
        ctx.others = [value for value in saved if not isinstance(value, Tensor)]
        ctx.save_for_backward(*[value for value in saved if isinstance(value, Tensor)])
        if operation.constant_outputs:
            ctx.mark_non_differentiable(*[out[index] for index in operation.constant_outputs])
        return out

    @staticmethod
    def backward(ctx: Any, *d_outs: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            # create_graph=True: the gradient would come back as a constant, and what is built on it would be wrong in silence.
            raise OperandError(
                f"{ctx.operation.name}: second derivatives are not derived by hand; use differentiate('autograd')"
            )
        tensors, others = iter(ctx.saved_tensors), iter(ctx.others)
        saved = ctx.saved_type(*[next(tensors) if tensor else next(others) for tensor in ctx.is_tensor])
        return (None, None, *ctx.operation.backward(saved, *d_outs))
