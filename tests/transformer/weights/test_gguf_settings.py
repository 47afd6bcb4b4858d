"""Rotary scaling as a GGUF file states it, by the rules of llama.cpp's reader (src/llama-model.cpp, load_hparams)."""

from __future__ import annotations

import math
from typing import Any

import pytest

from headcount.errors import HeadcountError
from headcount.transformer.weights.gguf_file import GgufSource
from headcount.transformer.weights.gguf_settings import _scaling

CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"scaling.type": "none", "scaling.factor": 4.0}, {}),
    ({"scaling.type": "linear", "scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
    # Without a type it is linear; the factor has an older name; 0 is no factor.
    ({"scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
    ({"scale_linear": 2.0}, {"rope_type": "linear", "factor": 2.0}),
    ({"scaling.factor": 0.0}, {}),
    ({"scaling.factor": 0.0, "scale_linear": 8.0}, {"rope_type": "linear", "factor": 8.0}),
    (
        {
            "scaling.type": "yarn",
            "scaling.factor": 4.0,
            "scaling.yarn_beta_fast": 3.0,
            "scaling.original_context_length": 64,
        },
        {"rope_type": "yarn", "factor": 4.0, "beta_fast": 3.0, "original_max_position_embeddings": 64},
    ),
    (
        {"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.attn_factor": 3.0},
        {"rope_type": "yarn", "factor": 4.0, "attention_factor": 3.0 * (0.1 * math.log(4.0) + 1.0)},
    ),
]


class Stated(GgufSource):
    """A source of these keys alone, without a file."""

    def __init__(self, keys: dict[str, Any]) -> None:
        self.path = "a.gguf"
        stated = {f"llama.rope.{name}": value for name, value in keys.items()}
        self._metadata = {"general.architecture": "llama", **stated}


@pytest.mark.parametrize(("keys", "scaling"), CASES)
def test_scaling(keys: dict[str, Any], scaling: dict[str, Any]) -> None:
    assert _scaling(Stated(keys)) == pytest.approx(scaling)


@pytest.mark.parametrize(
    "keys",
    [
        {"scaling.type": "magic", "scaling.factor": 2.0},
        {"scaling.type": "yarn"},
        {"scaling.type": "linear", "scaling.factor": -1.0},
        {"scaling.factor": "4"},
        {"scaling.type": "yarn", "scaling.factor": 2.0, "scaling.yarn_ext_factor": 0.5},
    ],
)
def test_what_cannot_be_applied_is_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(HeadcountError):
        _scaling(Stated(keys))
