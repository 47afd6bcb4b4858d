"""The passes over a recurrent state, counted in the operations that the reference really runs."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.reference


def test_the_reference_reads_a_delta_state_twice_and_writes_it_once() -> None:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

    heads, keys, values, tokens = 4, 8, 16, 5
    state = heads * keys * values

    class Additions(TorchDispatchMode):
        """Numbers of the state's size that a sum takes in or an addition gives out: one multiply-add each."""

        numbers = 0

        def __torch_dispatch__(self, function, types, arguments=(), named=None):  # type: ignore[no-untyped-def]
            out = function(*arguments, **(named or {}))
            name = function.overloadpacket.__name__
            touched = arguments[0] if name == "sum" else out
            if name in ("sum", "add", "add_") and touched.numel() == state:
                Additions.numbers += state
            return out

    def draw(width: int) -> torch.Tensor:
        return torch.randn(1, tokens, heads, width)

    with Additions():
        torch_recurrent_gated_delta_rule(
            draw(keys), draw(keys), draw(values), -torch.rand(1, tokens, heads), torch.rand(1, tokens, heads)
        )
    assert Additions.numbers == 3 * tokens * state
