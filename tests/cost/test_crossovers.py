"""Crossover lengths by hand: f = m D F, q = N (H + H'), a = the projections; n = f/q, (f - a)/q, (f + a)/q."""

from __future__ import annotations

import pytest

from headcount.cost.crossovers import NAMES, crossovers, model_crossovers, textbook_crossovers
from headcount.spec.reader import read_model


def test_the_textbook_block_of_4096() -> None:
    # 4 D, 2 D, 6 D, 8 D, 4 D, 12 D
    assert list(textbook_crossovers(4096).values()) == [16384, 8192, 24576, 32768, 16384, 49152]
    assert tuple(textbook_crossovers(4096)) == NAMES


@pytest.mark.parametrize(
    ("name", "lengths"),
    [
        # 3 x 4096 x 11008 = 135,266,304 over 8192; the projections are 4 x 4096^2.
        ("llama-2-7b", [16512, 8320, 24704, 33024, 16640, 49408]),
        # 3 x 4096 x 14336 over 8192; projections 2 x 4096 x (4096 + 1024).
        ("mistral-7b", [21504, 16384, 26624, 43008, 32768, 53248]),
        # 3 x 8192 x 28672 over 16384; projections 2 x 8192 x (8192 + 1024).
        ("llama-2-70b", [43008, 33792, 52224, 86016, 67584, 104448]),
        # 3 x 576 x 1536 over 1152; projections 2 x 576 x (576 + 192).
        ("smollm2-135m", [2304, 1536, 3072, 4608, 3072, 6144]),
    ],
)
def test_models(name: str, lengths: list[int]) -> None:
    found = model_crossovers(read_model(name))
    assert found is not None
    assert list(found.values()) == lengths


def test_experts_count_those_that_run() -> None:
    # Mixtral-8x7B: two of eight experts run, 2 x 3 x 4096 x 14336 over 8192.
    found = model_crossovers(read_model("mixtral-8x7b"))
    assert found is not None
    assert found["quad_eq_ffn"] == 43008


def test_attention_that_is_dearer_at_every_length() -> None:
    # Projections above the feed-forward: attention never is the cheaper half.
    found = crossovers(pair=64, projections=1000, feed_forward=900)
    assert found["quad_plus_proj_eq_ffn"] is None
    assert found["causal_quad_plus_proj_eq_ffn"] is None
    assert found["quad_eq_ffn"] == 14


def test_no_attention_no_crossover() -> None:
    assert model_crossovers(read_model("falcon-mamba-7b")) is None
