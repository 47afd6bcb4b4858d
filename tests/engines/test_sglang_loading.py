"""Which tensors SGLang makes, and what the device loses to them."""

from __future__ import annotations

from typing import Any

import pytest

from headcount.engines import Case, Layout, Settings
from headcount.engines.sglang import memory
from headcount.engines.sglang.engine import Sglang
from headcount.hardware import accelerator
from headcount.spec.reader import read_model
from headcount.units import MIB


def case(model: str, card: str = "h100-80gb", *, tp: int = 1, **arguments: str) -> Case:
    given = tuple((name.replace("_", "-"), text) for name, text in arguments.items())
    return Case(
        model=read_model(model),
        accelerator=accelerator(card),
        layout=Layout(tp=tp),
        context=8192,
        settings=Settings(arguments=given),
    )


def weights(asked: Case, version: str | None = None) -> Any:
    return memory.stage_weights(asked, Sglang(version)._setup(asked))[0]


def test_projections_that_are_merged_are_one_tensor() -> None:
    """Qwen3-14B on one of four ranks: 18.35 MB of Q, K and V are 18 MiB, not three segments shared by all layers.

    Of a layer 0.5 + 1.5 + 1 + 1.5 MiB stay unused: Q K V 17.5, output 12.5, gate and up 85, down 42.5 MiB.
    """
    found = weights(case("qwen3-14b", tp=4))
    assert found.rounding == pytest.approx(40 * 4.5 * MIB, abs=4 * MIB)
    assert found.tables == 40_960 * 128 * 4


def test_tables_follow_the_share_of_a_head_that_rotates() -> None:
    assert weights(case("qwen3.5-9b")).tables == 262_144 * 64 * 4
    assert weights(case("qwen3-next-80b-a3b", tp=4)).tables == 262_144 * 64 * 4
    for model in ("granite-4.0-h-1b", "gemma-3-12b", "nemotron-3-nano-30b-a3b"):
        assert weights(case(model)).tables == 0


def test_tables_of_older_releases_on_amd_are_in_the_models_type() -> None:
    """rotary_embedding/base.py: 0.5.20 keeps float32 on CUDA, 0.5.23 on ROCm too."""
    new, old = (weights(case("qwen3-8b", "mi300x"), version).tables for version in ("0.5.23", "0.5.20"))
    assert (new, old) == (40_960 * 128 * 4, 40_960 * 128 * 2)


def test_a_tower_that_is_not_loaded_takes_nothing() -> None:
    with_it, without = (
        weights(case("qwen3.5-9b", **given)) for given in ({}, {"language_model_only": "true"})
    )
    assert with_it.tensors - without.tensors == 456_010_480 * 2


def test_the_ledger_shows_what_loading_adds() -> None:
    shown = [node for _, node in Sglang().replica(case("qwen3-14b")).ledger.walk()]
    term = next(node for node in shown if getattr(node, "symbol", "") == "W")
    assert "rotary tables" in term.numbers
    assert "rounding" in term.numbers


def test_buffers_of_images_are_kept_from_the_cache_from_0_5_20_on() -> None:
    """kv_cache_configurator.py of 0.5.20 (mm_runtime_reservation_gb); 0.5.15 cuts the pools from all that is left."""
    newer, older = (
        dict(Sglang(version).replica(case("qwen3.5-9b")).budget.overhead) for version in ("0.5.20", "0.5.15")
    )
    assert newer["images or sound"] == 100 * MIB
    assert "images or sound" not in older
