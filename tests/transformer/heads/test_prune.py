"""Heads really removed: equal to closed gates, equal to what the counts say, and still right with a cache."""

from __future__ import annotations

import random

import pytest
import torch
from random_decoders import random_decoder, random_ids

from headcount.cost.cache import conversation_bytes, token_bytes
from headcount.cost.weights import weight_bytes
from headcount.errors import UnknownNameError, UnsupportedModelError, UsageError
from headcount.spec.kv_format import kv_format
from headcount.transformer.heads.gates import gated, without
from headcount.transformer.heads.maps import attention_map
from headcount.transformer.heads.prune import prune
from headcount.transformer.heads.pruning import (
    heads_at,
    leave_one_out,
    masked_perplexity,
    perplexity,
    pruning_curve,
    removal_order,
)
from headcount.transformer.kv_cache.call import Call
from headcount.transformer.kv_cache.conversation import Conversation

CASES = {
    "grouped": {},
    "biased": {"attention_bias": True},
    "multi-head": {"num_key_value_heads": 6},
    "multi-query": {"num_key_value_heads": 1},
    "window": {"model_type": "mistral", "sliding_window": 4},
    "untied": {"tie_word_embeddings": False},
    "told positions": {"model_type": "bloom", "n_head": 6, "n_layer": 3},
    "learned positions": {"model_type": "gpt2", "n_embd": 48, "n_head": 6, "n_layer": 3, "n_positions": 128},
    "sinks": {"model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 5},
    "query norm": {"model_type": "qwen3"},
    "capped": {"model_type": "gemma2", "sliding_window": 5, "query_pre_attn_scalar": 8},
}
ALL = [(layer, head) for layer in range(3) for head in range(6)]


def counted(network: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize("case", sorted(CASES))
@pytest.mark.parametrize("seed", range(3))
def test_removed_is_gated_off(case: str, seed: int) -> None:
    network, spec = random_decoder(seed=seed, **CASES[case])
    ids = random_ids(2, 14, seed)
    removed = random.Random(seed).sample(ALL, 5 + 3 * seed)
    whole = network(ids)
    smaller = prune(network, spec, removed)
    with gated(network, without(network, removed)):
        closed = network(ids)
    assert not torch.allclose(closed, whole, atol=1e-3)
    assert (smaller.network(ids) - closed).abs().max() <= 1e-5 * closed.abs().max().clamp_min(1)
    assert torch.equal(network(ids), whole), "the network that was given has changed"
    # Two counts that do not know of each other: tensors laid out, and the spec's shapes.
    assert counted(smaller.network) == smaller.spec.parameters
    assert smaller.parameters_saved == counted(network) - counted(smaller.network)
    bf16 = kv_format("bf16")
    assert smaller.cache_bytes_saved == token_bytes(spec, bf16) - token_bytes(smaller.spec, bf16)
    assert weight_bytes(spec, "fp32") - weight_bytes(smaller.spec, "fp32") == 4 * smaller.parameters_saved


@pytest.mark.parametrize("case", ["grouped", "multi-query", "window"])
def test_with_a_cache(case: str) -> None:
    """Token by token equals the whole text, and the caches hold what the spec says they hold."""
    network, spec = random_decoder(**CASES[case])
    removed = [(0, 0), (0, 3), (1, 2), (1, 3), (2, 5), (2, 4), (2, 0)]
    smaller = prune(network, spec, removed)
    ids = random_ids(1, 11)
    with torch.no_grad():
        whole = smaller.network(ids)
        talk = Conversation(smaller.spec, format="fp32")
        steps = [smaller.network(ids[:, t : t + 1], call=Call([(talk, 1)])) for t in range(11)]
    assert torch.allclose(torch.cat(steps, 1), whole, atol=1e-5)
    assert talk.nbytes == conversation_bytes(smaller.spec, 11, kv_format("fp32"))


def test_a_cache_shrinks_by_whole_groups_only() -> None:
    """6 query heads over 3 key/value heads of 8 + 8 numbers: a group of two serves each."""
    network, spec = random_decoder()
    one_of_each = prune(network, spec, [(0, 0), (0, 2), (0, 4), (1, 1), (2, 3)])
    assert (one_of_each.groups_removed, one_of_each.cache_bytes_saved) == (0, 0)
    # W_Q and W_O: 8 rows and 8 columns of 48 each.
    assert one_of_each.parameters_saved == 5 * 2 * 8 * 48
    group = prune(network, spec, [(0, 2), (0, 3)])
    assert (group.groups_removed, group.cache_bytes_saved) == (1, (8 + 8) * 2)
    assert group.parameters_saved == 2 * 2 * 8 * 48 + 2 * 8 * 48


@pytest.mark.parametrize("case", ["grouped", "biased", "query norm", "sinks"])
def test_a_layer_without_heads(case: str) -> None:
    network, spec = random_decoder(**CASES[case])
    removed = [(1, head) for head in range(6)]
    smaller = prune(network, spec, removed)
    ids = random_ids(1, 9)
    with gated(network, without(network, removed)), torch.no_grad():
        closed = network(ids)
    with torch.no_grad():
        assert torch.allclose(smaller.network(ids), closed, atol=1e-5)
        talk = Conversation(smaller.spec, format="fp32")
        smaller.network(ids, call=Call([(talk, 9)]))
    assert counted(smaller.network) == smaller.spec.parameters
    assert talk.nbytes == conversation_bytes(smaller.spec, 9, kv_format("fp32"))
    assert case == "sinks" or talk.nbytes == 2 * 9 * 3 * (8 + 8) * 4


def test_maps_of_a_pruned_network() -> None:
    """In the first layer nothing before has changed: the heads that stay look where they looked."""
    network, spec = random_decoder()
    smaller = prune(network, spec, [(0, 0), (0, 2), (0, 3)])
    ids = random_ids(1, 10)[0]
    for new, old in enumerate((1, 4, 5)):
        a = attention_map(smaller.network, ids, layer=0, head=new)
        assert torch.allclose(a, attention_map(network, ids, layer=0, head=old), atol=1e-6)


def test_what_cannot_be_cut() -> None:
    network, spec = random_decoder()
    with pytest.raises(UsageError, match="not all there"):
        prune(network, spec, [(0, 6)])
    with pytest.raises(UsageError, match="not all there"):
        prune(network, spec, [(3, 0)])
    olmo, spec = random_decoder(model_type="olmo2")
    with pytest.raises(UnsupportedModelError, match="over all heads"):
        prune(olmo, spec, [(0, 0)])


def test_orders() -> None:
    network, _ = random_decoder()
    worth = [
        torch.tensor([3.0, 1, 2, 9, 8, 7]),
        torch.tensor([0.3, 0.1, 0.2, 0.9, 0.8, 0.7]),
        torch.full((6,), 5.0),
    ]
    raw = removal_order(network, "importance", importances=worth)
    assert raw[:3] == [(1, 1), (1, 2), (1, 0)]
    assert raw[-3:] == [(0, 5), (0, 4), (0, 3)]
    # Layers 0 and 1 are the same after normalisation, so their heads alternate.
    within = removal_order(network, "normalized", importances=worth)
    assert set(within[:2]) == {(0, 1), (1, 1)}
    drawn = removal_order(network, "random", seed=4)
    assert sorted(drawn) == ALL
    assert drawn == removal_order(network, "random", seed=4) != removal_order(network, "random", seed=5)
    with pytest.raises(UnknownNameError):
        removal_order(network, "fancy")
    with pytest.raises(UsageError, match="needs the importance"):
        removal_order(network, "importance")
    assert [heads_at(f, 270) for f in (0.0, 0.05, 0.1, 0.2)] == [0, 14, 27, 54]
    with pytest.raises(UsageError):
        heads_at(1.0, 270)


def test_one_at_a_time_is_one_mask_at_a_time() -> None:
    """The restarted streams give what a whole pass with one gate closed gives."""
    network, _ = random_decoder()
    ids = random_ids(1, 15)
    base = torch.tensor(perplexity(network, ids)).log()
    costs = leave_one_out(network, ids[0])
    assert [(cost.layer, cost.head) for cost in costs] == ALL
    for cost in costs:
        alone = masked_perplexity(network, ids, [(cost.layer, cost.head)])
        assert cost.nats == pytest.approx(float(torch.tensor(alone).log() - base), abs=2e-5)
    assert costs[6:12] == leave_one_out(network, ids[0], layers=[1])


def test_curve() -> None:
    network, _ = random_decoder()
    ids = random_ids(2, 15)
    order = removal_order(network, "random", seed=1)
    points = pruning_curve(network, ids, {"drawn": order}, [0, 3])
    assert points[0].ratio == 1
    assert points[1].perplexity == masked_perplexity(network, ids, order[:3])
