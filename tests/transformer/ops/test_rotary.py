"""Rotary positions: rotation, its inverse as gradient, relative scores, and the reference's frequencies and layouts."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from headcount.errors import OperandError, UnknownNameError, UsageError
from headcount.transformer.ops.operation import differentiate
from headcount.transformer.ops.rotary import LAYOUTS, rotary, turns
from headcount.transformer.ops.rotary_frequencies import plain, rotary_frequencies, yarn_attention_factor

MODES = st.sampled_from(["by_hand", "autograd"])


@given(
    lead=st.lists(st.integers(1, 3), max_size=2),
    length=st.integers(0, 4),
    planes=st.integers(1, 3),
    rest=st.integers(0, 2),
    layout=st.sampled_from(LAYOUTS),
    mode=MODES,
)
def test_gradient(lead: list[int], length: int, planes: int, rest: int, layout: str, mode: str) -> None:
    x = torch.randn(*lead, length, 2 * planes + rest, dtype=torch.float64, requires_grad=True)
    cos, sin = turns(
        torch.arange(length), torch.rand(planes, dtype=torch.float64), attention_factor=1.3, dtype=x.dtype
    )
    if length:
        with differentiate(mode):
            assert gradcheck(lambda y: rotary(y, cos, sin, layout=layout), (x,))
    assert torch.equal(rotary(x, cos, sin, layout=layout)[..., 2 * planes :], x[..., 2 * planes :])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_plane_is_a_complex_number_turned(layout: str) -> None:
    """The rotation written as complex multiplication, which knows no layout: planes are picked by hand."""
    w = plain(6, dtype=torch.float64).inverse
    positions = torch.tensor([0, 3, 50])
    x = torch.randn(3, 8, dtype=torch.float64)
    out = rotary(x, *turns(positions, w, dtype=torch.float64), layout=layout)
    for i in range(3):
        a, b = (i, i + 3) if layout == "half" else (2 * i, 2 * i + 1)
        turned = torch.complex(x[:, a], x[:, b]) * torch.polar(
            torch.ones(3, dtype=torch.float64), positions * w[i]
        )
        torch.testing.assert_close(torch.complex(out[:, a], out[:, b]), turned, rtol=0, atol=1e-13)


@given(shift=st.integers(0, 5000), layout=st.sampled_from(LAYOUTS))
def test_scores_depend_on_the_offset_alone(shift: int, layout: str) -> None:
    torch.manual_seed(0)
    q, k = torch.randn(5, 8, dtype=torch.float64), torch.randn(5, 8, dtype=torch.float64)
    w = plain(8, dtype=torch.float64).inverse

    def scores(start: int) -> torch.Tensor:
        cos, sin = turns(torch.arange(start, start + 5), w, dtype=torch.float64)
        return rotary(q, cos, sin, layout=layout) @ rotary(k, cos, sin, layout=layout).T

    torch.testing.assert_close(scores(shift), scores(0), rtol=0, atol=1e-11)


def test_positions_per_sequence() -> None:
    x = torch.randn(2, 3, 4, 8)
    positions = torch.tensor([[0, 1, 2, 3], [5, 6, 7, 8]])
    w = plain(8).inverse
    out = rotary(x, *turns(positions[:, None], w))
    for b in range(2):
        torch.testing.assert_close(out[b], rotary(x[b], *turns(positions[b], w)), rtol=0, atol=0)


WIDTH = 64
RULES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # Name -> (numbers for ours, rope_parameters of the reference).
    "linear": ({"factor": 4.0}, {"factor": 4.0}),
    "dynamic": ({"factor": 2.0, "trained_length": 2048}, {"factor": 2.0}),
    "llama3": (
        {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "trained_length": 512},
        {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 512,
        },
    ),
    "yarn": (
        {"factor": 4.0, "trained_length": 512},
        {"factor": 4.0, "original_max_position_embeddings": 512},
    ),
    "yarn, exact borders": (
        {
            "factor": 40.0,
            "trained_length": 512,
            "turns": (16.0, 2.0),
            "truncate": False,
            "attention_factor": 1.25,
        },
        {
            "factor": 40.0,
            "original_max_position_embeddings": 512,
            "beta_fast": 16,
            "beta_slow": 2,
            "truncate": False,
            "attention_factor": 1.25,
        },
    ),
    "yarn, multipliers": (
        {"factor": 40.0, "trained_length": 512, "attention_factor": yarn_attention_factor(40.0, 0.707, 1.0)},
        {"factor": 40.0, "original_max_position_embeddings": 512, "mscale": 0.707, "mscale_all_dim": 1.0},
    ),
    "longrope": (
        {
            "factor": 4.0,
            "trained_length": 512,
            "factors": ([1.0 + i / 64 for i in range(32)], [1.0 + i for i in range(32)]),
        },
        {
            "factor": 4.0,
            "original_max_position_embeddings": 512,
            "short_factor": [1.0 + i / 64 for i in range(32)],
            "long_factor": [1.0 + i for i in range(32)],
        },
    ),
    "proportional": ({"share": 0.25, "factor": 2.0}, {"partial_rotary_factor": 0.25, "factor": 2.0}),
}


@pytest.mark.reference
@pytest.mark.parametrize("base", [10000.0, 500000.0])
@pytest.mark.parametrize("length", [None, 100, 3000, 9000])
@pytest.mark.parametrize("rule", RULES)
def test_frequencies_are_the_references_bit_for_bit(rule: str, length: int | None, base: float) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    name = rule.split(",")[0]
    ours, theirs = RULES[rule]
    if name in ("dynamic", "longrope"):
        ours = {**ours, "length": length}
    config = LlamaConfig(
        hidden_size=4 * WIDTH,
        num_attention_heads=4,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": name, "rope_theta": base, **theirs},
    )
    expected, factor = ROPE_INIT_FUNCTIONS[name](config, torch.device("cpu"), seq_len=length)
    frequencies, attention_factor = rotary_frequencies(name, WIDTH, base=base, **ours)
    assert torch.equal(frequencies, expected)
    assert attention_factor == factor


@pytest.mark.reference
def test_rotation_is_the_references() -> None:
    from transformers import LlamaConfig
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as interleaved
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    config = LlamaConfig(
        hidden_size=64, num_attention_heads=4, rope_parameters={"rope_type": "default", "rope_theta": 1e4}
    )
    q, k = torch.randn(2, 4, 9, 16), torch.randn(2, 2, 9, 16)
    positions = torch.arange(100, 109)
    cos, sin = turns(positions, rotary_frequencies("default", 16)[0])
    table = LlamaRotaryEmbedding(config)(q, positions[None])
    assert torch.equal(torch.cat((cos, cos), -1), table[0][0]) and torch.equal(
        torch.cat((sin, sin), -1), table[1][0]
    )
    for mine, other in zip(
        (rotary(q, cos, sin), rotary(k, cos, sin)), apply_rotary_pos_emb(q, k, *table), strict=True
    ):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-6)
    theirs = interleaved(q.transpose(1, 2), sin[None], cos[None]).transpose(1, 2)
    torch.testing.assert_close(rotary(q, cos, sin, layout="interleaved"), theirs, rtol=0, atol=1e-6)


def test_plain_frequencies() -> None:
    w = plain(4, dtype=torch.float64).inverse
    assert w.tolist() == pytest.approx([1.0, 0.01])
    assert yarn_attention_factor(0.5) == 1.0
    assert yarn_attention_factor(4.0) == pytest.approx(1 + 0.1 * math.log(4))


def test_refusals() -> None:
    x, (cos, sin) = torch.ones(3, 4), turns(torch.arange(3), torch.ones(3))
    with pytest.raises(OperandError, match="turns 3 planes of two columns, x has H = 4"):
        rotary(x, cos, sin)
    with pytest.raises(UnknownNameError, match="unknown rotary layout 'halves'; nearest: half"):
        rotary(x, cos[:, :2], sin[:, :2], layout="halves")
    with pytest.raises(UnknownNameError, match="unknown rotary scaling 'yarm'; nearest: yarn"):
        rotary_frequencies("yarm", 8)
    with pytest.raises(UsageError, match="rotary width 7 is not even"):
        rotary_frequencies("default", 7)
    with pytest.raises(UsageError, match="2 factors for 4 planes"):
        rotary_frequencies("longrope", 8, factors=([1.0, 1.0], [1.0, 1.0]), factor=2.0, trained_length=8)
