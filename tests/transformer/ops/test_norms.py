"""LayerNorm and RMSNorm against PyTorch's, finite differences, and the invariances their gradients must show."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck
from torch.nn import functional

from headcount.errors import OperandError
from headcount.transformer.ops.layer_norm import LAYER_NORM, layer_norm
from headcount.transformer.ops.operation import differentiate
from headcount.transformer.ops.rms_norm import RMS_NORM, rms_norm

LEADS = st.lists(st.integers(1, 3), max_size=2)
MODES = st.sampled_from(["by_hand", "autograd"])


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@given(lead=LEADS, width=st.integers(1, 6), scaled=st.booleans(), shifted=st.booleans(), mode=MODES)
def test_layer_norm(lead: list[int], width: int, scaled: bool, shifted: bool, mode: str) -> None:
    x, weight, bias = random(*lead, width), random(width), random(width)
    operands = (x, weight if scaled else None, bias if shifted else None)
    expected = functional.layer_norm(x, (width,), *operands[1:], eps=1e-3)
    torch.testing.assert_close(layer_norm(*operands, eps=1e-3), expected, rtol=0, atol=1e-13)
    with differentiate(mode):
        # eps well above the step of the finite differences: a row of equal entries is then smooth.
        assert gradcheck(lambda *given: layer_norm(*given, eps=1e-1), operands)


@given(lead=LEADS, width=st.integers(1, 6), scaled=st.booleans(), add_one=st.booleans(), mode=MODES)
def test_rms_norm(lead: list[int], width: int, scaled: bool, add_one: bool, mode: str) -> None:
    x, weight = random(*lead, width), random(width) if scaled else None
    factor = None if weight is None else weight + 1 if add_one else weight
    expected = functional.rms_norm(x, (width,), factor, eps=1e-3)
    torch.testing.assert_close(rms_norm(x, weight, eps=1e-3, add_one=add_one), expected, rtol=0, atol=1e-13)
    with differentiate(mode):
        assert gradcheck(lambda *given: rms_norm(*given, eps=1e-1, add_one=add_one), (x, weight))


@pytest.mark.parametrize("shape", [(7, 33), (2, 5, 64)])
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
def test_gradients_equal_pytorchs(shape: tuple[int, ...], dtype: torch.dtype, close: float) -> None:
    x, d_y = torch.randn(shape, dtype=dtype, requires_grad=True), torch.randn(shape, dtype=dtype)
    weight, bias = (torch.randn(shape[-1], dtype=dtype, requires_grad=True) for _ in range(2))
    pairs = [
        (layer_norm(x, weight, bias), functional.layer_norm(x, shape[-1:], weight, bias), (x, weight, bias)),
        (rms_norm(x, weight), functional.rms_norm(x, shape[-1:], weight, eps=1e-6), (x, weight)),
    ]
    for ours, theirs, inputs in pairs:
        for mine, other in zip(
            torch.autograd.grad(ours, inputs, d_y), torch.autograd.grad(theirs, inputs, d_y), strict=True
        ):
            torch.testing.assert_close(mine, other, rtol=close, atol=10 * close)


@pytest.mark.parametrize("order", [(1, 0, 2), (2, 0, 1)])
def test_strided_and_empty_inputs(order: tuple[int, int, int]) -> None:
    x = torch.randn(3, 4, 5, dtype=torch.float64).permute(order).requires_grad_()
    weight, bias = random(x.shape[-1]), random(x.shape[-1])
    d_y = torch.randn(x.shape, dtype=torch.float64)
    theirs = torch.autograd.grad(functional.layer_norm(x, x.shape[-1:], weight, bias), (x, weight, bias), d_y)
    for mine, other in zip(
        torch.autograd.grad(layer_norm(x, weight, bias), (x, weight, bias), d_y), theirs, strict=True
    ):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-12)
    none = x[:0].detach().requires_grad_()
    rms_norm(layer_norm(none, weight, bias), weight).sum().backward()
    assert none.grad is not None and none.grad.shape == none.shape
    assert weight.grad is not None and not weight.grad.any()


def test_gradient_is_blind_to_shift_and_scale() -> None:
    x, weight, bias = random(4, 8), random(8), random(8)
    d_y = torch.randn(4, 8, dtype=torch.float64)
    d_x = torch.autograd.grad(layer_norm(x, weight, bias, eps=0.0), x, d_y)[0]
    centred = x - x.mean(-1, keepdim=True)
    torch.testing.assert_close(d_x.sum(-1), torch.zeros(4, dtype=torch.float64), rtol=0, atol=1e-13)
    torch.testing.assert_close(
        (d_x * centred).sum(-1), torch.zeros(4, dtype=torch.float64), rtol=0, atol=1e-13
    )
    d_x = torch.autograd.grad(rms_norm(x, weight, eps=0.0), x, d_y)[0]
    torch.testing.assert_close((d_x * x).sum(-1), torch.zeros(4, dtype=torch.float64), rtol=0, atol=1e-13)


def test_variance_does_not_cancel_far_from_zero() -> None:
    x = torch.tensor([[10000.0, 10001.0, 10002.0, 10003.0]])
    truth = functional.layer_norm(x.double(), (4,), eps=1e-5)
    torch.testing.assert_close(layer_norm(x).double(), truth, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(dtype: torch.dtype) -> None:
    x, weight, bias = torch.randn(5, 512).to(dtype), torch.randn(512).to(dtype), torch.randn(512).to(dtype)
    exact = functional.layer_norm(x.double(), (512,), weight.double(), bias.double())
    out = layer_norm(x, weight, bias)
    assert out.dtype == dtype
    # One rounding: within half a unit of the last place, and a little for the float32 before it.
    assert ((out.double() - exact).abs() <= torch.finfo(dtype).eps * 0.51 * exact.abs() + 1e-6).all()
    for tensor in (x, weight, bias):
        tensor.requires_grad_()
    layer_norm(x, weight, bias).sum().backward()
    assert x.grad is not None and x.grad.dtype == dtype


@pytest.mark.reference
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_roundings_are_those_of_llama_and_gemma(dtype: torch.dtype) -> None:
    from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    x, weight = torch.randn(9, 96).to(dtype), torch.randn(96).to(dtype)
    for module, add_one in ((LlamaRMSNorm(96, eps=1e-6), False), (Gemma2RMSNorm(96, eps=1e-6), True)):
        module.to(dtype).weight.data.copy_(weight)
        close = 1e-6 if dtype == torch.float32 else 0.0
        torch.testing.assert_close(
            rms_norm(x, weight, eps=1e-6, add_one=add_one), module(x), rtol=close, atol=close
        )


def test_refusal_names_the_letter() -> None:
    with pytest.raises(OperandError, match=r"weight has shape \(D=3\).*expected D = 4"):
        LAYER_NORM(torch.ones(2, 4), torch.ones(3))
    with pytest.raises(OperandError, match="weight is float64"):
        RMS_NORM(torch.ones(2, 4), torch.ones(4, dtype=torch.float64))
