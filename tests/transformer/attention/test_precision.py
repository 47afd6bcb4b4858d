"""Rounding: the tiled kernel against float64 is no worse than PyTorch's fused kernel against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headcount.transformer.attention.attend import attend
from headcount.transformer.attention.masks import Causal, Everything, Mask
from headcount.transformer.attention.rule import Rule


def outputs(kernel: str, inputs: list[Tensor], dtype: torch.dtype, mask: Mask) -> list[Tensor]:
    leaves = [tensor.to(dtype).detach().clone().requires_grad_() for tensor in inputs[:3]]
    out = attend(*leaves, rule=Rule(mask=mask), kernel=kernel)
    out.backward(inputs[3].to(dtype))
    return [out.detach().double(), *[leaf.grad.double() for leaf in leaves if leaf.grad is not None]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("kv_heads", [4, 1])
@pytest.mark.parametrize("mask", [Causal(), Everything()], ids=["causal", "everything"])
def test_error_is_at_most_the_fused_kernels(dtype: torch.dtype, kv_heads: int, mask: Mask) -> None:
    """Relative root-mean-square error of O, dQ, dK, dV, averaged over twelve draws of 512 tokens."""
    errors: dict[str, list[Tensor]] = {"tiled": [], "fused": []}
    for seed in range(12):
        draw = torch.Generator().manual_seed(seed)
        heads = (4, kv_heads, kv_heads, 4)
        inputs = [torch.randn(1, n, 512, 64, generator=draw).to(dtype) for n in heads]
        truth = outputs("naive", inputs, torch.float64, mask)
        for kernel, found in errors.items():
            pairs = zip(outputs(kernel, inputs, dtype, mask), truth, strict=True)
            found.append(torch.stack([(out - true).norm() / true.norm() for out, true in pairs]))
    tiled, fused = (torch.stack(found).mean(0) for found in errors.values())
    assert (tiled <= fused).all(), f"O, dQ, dK, dV: tiled {tiled.tolist()}, fused {fused.tolist()}"
