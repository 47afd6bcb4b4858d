"""Against SGLang 0.5.23's own modules: fractions, pools of 30 models, pipeline cuts (data/sglang_README.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headcount.engines import Case, Layout, Settings
from headcount.engines.sglang import fraction, memory, pools
from headcount.engines.sglang.engine import Sglang
from headcount.engines.sglang.options import resolve
from headcount.hardware import accelerator
from headcount.spec.model import TowerSpec
from headcount.spec.reader import read_model

GOLDEN = json.loads((Path(__file__).parent / "data/sglang_golden.json").read_text())
FRACTIONS = [dict(zip(GOLDEN["fraction_fields"], row, strict=True)) for row in GOLDEN["fractions"]]
POOLS = [dict(zip(GOLDEN["pool_fields"], row, strict=True)) for row in GOLDEN["pools"]]
MODELS = sorted({row["model"] for row in POOLS})


def test_the_reference_is_whole() -> None:
    assert (len(FRACTIONS), len(POOLS), len(MODELS)) == (140, 152, 30)


def test_default_fraction_of_every_card_and_setting() -> None:
    for row in FRACTIONS:
        found = fraction.capacity(row["mib"], row["tp"])
        chunk = row["chunk"] or found.chunk
        batch = min(found.graph_batch, row["running"] or found.graph_batch)
        asked = fraction.Request(
            chunk=chunk,
            graph_batch=batch if row["graphs"] else 0,
            prefill=chunk if row["graphs"] and row["pp"] == 1 else 0,
            gpus=row["tp"] * row["pp"],
            groups=row["groups"],
            latent=row["latent"],
        )
        assert fraction.default_fraction(row["mib"], asked) == row["fraction"], row
        assert (chunk, batch) == (row["chunk_in_force"], row["graph_batch"]), row


def test_a_case_finds_the_same_fraction() -> None:
    """The whole path, from a card's name: H100, one GPU and eight with latent attention in eight groups."""
    plain = case("llama-3.1-8b")
    assert setup(plain).fraction == 0.83
    mib = accelerator("h200").reported_mib
    want = next(r for r in FRACTIONS if r["mib"] == mib and r["groups"] == 8 and r["latent"])
    latent = case("deepseek-r1", card="h200", tp=8, arguments=(("attn-dp-size", "8"),))
    assert setup(latent).fraction == want["fraction"]


@pytest.mark.parametrize("row", GOLDEN["vision"], ids=lambda row: f"{row['layers']}x{row['width']}")
def test_fraction_with_a_vision_tower(row: dict[str, Any]) -> None:
    found = fraction.capacity(row["mib"], 1)
    asked = fraction.Request(
        chunk=found.chunk, graph_batch=found.graph_batch, prefill=0, gpus=1, groups=1, latent=False
    )
    tower = TowerSpec(
        kind="vision", family="siglip", layers=row["layers"], hidden_size=row["width"], heads=16, weights=()
    )
    assert fraction.default_fraction(row["mib"], asked) * fraction.vision_factor(tower) == row["fraction"]


def case(model: str, *, card: str = "h100-80gb", tp: int = 1, context: int = 32768, **settings: Any) -> Case:
    return Case(
        model=read_model(model),
        accelerator=accelerator(card),
        layout=Layout(tp=tp),
        context=context,
        settings=Settings(**settings),
    )


def setup(asked: Case) -> Any:
    engine = Sglang()
    return resolve(asked, engine.rules, engine.kv_format_name(asked.model, asked.settings))


def solved(row: dict[str, Any]) -> tuple[int, int, int, int]:
    arguments = [
        ("swa-full-tokens-ratio", str(row["ratio"])),
        ("mamba-full-memory-ratio", str(row["state_ratio"])),
        ("chunked-prefill-size", str(row["chunk"])),
        ("dsa-decode-backend", row["dsa"]),
    ]
    if not row["radix"]:
        arguments.append(("disable-radix-cache", "true"))
    if row["running"]:
        arguments.append(("max-running-requests", str(row["running"])))
    asked = case(row["model"], tp=row["tp"], context=row["context"], kv=row["kv"], arguments=tuple(arguments))
    # The reference was given the page directly, whatever the kernels of the card would have made of it.
    found = setup(asked).replace(page=row["page"])
    stages = [pools.stage_pool(asked.model, 0, len(asked.model.layers), found)]
    made = pools.solve(stages, [row["total"]], found)
    requests = pools.most_requests(made, found)
    if made.slots:
        requests = min(requests, made.slots // found.states_per_request)
    return made.tokens, made.sliding_tokens, made.slots, requests


@pytest.mark.parametrize("model", MODELS)
def test_pools_to_the_single_token(model: str) -> None:
    """Tokens, sliding tokens, state slots and max_running_requests."""
    for row in POOLS:
        if row["model"] == model:
            want = (row["tokens"], row["sliding"] or 0, row["slots"] or 0, row["requests"])
            assert solved(row) == want, row


def test_pipeline_cuts() -> None:
    for layers, stages, cuts in GOLDEN["stages"]:
        assert memory.stages_of(layers, stages) == [tuple(cut) for cut in cuts]
