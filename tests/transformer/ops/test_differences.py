"""Central differences against derivatives that are known in closed form."""

from __future__ import annotations

import pytest
import torch

from headcount.errors import OperandError
from headcount.transformer.ops.differences import central_differences


def test_known_derivatives() -> None:
    x = torch.linspace(-2, 2, 6, dtype=torch.float64).view(2, 3)
    torch.testing.assert_close(central_differences(lambda y: y.sin().sum(), x), x.cos(), rtol=0, atol=1e-9)
    torch.testing.assert_close(central_differences(lambda y: y.pow(3).sum(), x), 3 * x * x, rtol=0, atol=1e-9)
    mixed = central_differences(lambda y: y.prod(), x)
    torch.testing.assert_close(mixed, x.prod() / x, rtol=0, atol=1e-9)


def test_float32_is_refused() -> None:
    with pytest.raises(OperandError, match="x is float32; give float64"):
        central_differences(lambda y: y.sum(), torch.ones(2))
