"""Gates and importance: derivatives against finite differences, PyTorch's autograd, and the equation of the paper."""

from __future__ import annotations

import pytest
import torch
from random_decoders import random_decoder, random_ids
from torch.autograd import gradcheck
from torch.nn.functional import cross_entropy

from headcount.errors import OperandError, UnsupportedModelError, UsageError
from headcount.transformer.heads.gates import GATE, gated, open_gates, without
from headcount.transformer.heads.importance import gate_slopes, importance, normalised
from headcount.transformer.heads.pruning import token_losses
from headcount.transformer.heads.sites import site_of, sites
from headcount.transformer.ops.operation import differentiate


@pytest.mark.parametrize("rows", [1, 3])
def test_gradient_of_the_gate(rows: int) -> None:
    generator = torch.Generator().manual_seed(0)
    o = torch.randn(3, 4, 10, dtype=torch.float64, generator=generator, requires_grad=True)
    gate = torch.randn(rows, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    assert gradcheck(lambda o, g: GATE(o, g), (o, gate))
    assert torch.equal(GATE(o, gate)[..., 2:4], o[..., 2:4] * gate[:, 1].view(-1, 1, 1))


def test_gates_that_do_not_fit() -> None:
    network, _ = random_decoder()
    with pytest.raises(OperandError, match="gates"), gated(network, open_gates(network)[:-1]):
        pass
    with pytest.raises(OperandError, match="no gates of shape"):
        GATE(torch.zeros(2, 3, 12), torch.ones(4, 6))


def test_open_gates_change_nothing_and_leave_no_trace() -> None:
    network, _ = random_decoder()
    ids = random_ids(2, 9)
    before = network(ids)
    with gated(network, open_gates(network)):
        assert torch.equal(network(ids), before)
    with gated(network, without(network, [(1, 4)])):
        assert not torch.allclose(network(ids), before)
    assert torch.equal(network(ids), before)


def test_closed_gate_is_zero_columns_of_the_output_projection() -> None:
    network, _ = random_decoder()
    ids = random_ids(2, 9)
    with gated(network, without(network, [(1, 4), (2, 0)])):
        closed = network(ids)
    with torch.no_grad():
        network.layers[1].mixer.output.weight[:, 4 * 8 : 5 * 8] = 0
        network.layers[2].mixer.output.weight[:, :8] = 0
    assert torch.allclose(network(ids), closed, atol=1e-6)


def test_slopes_against_finite_differences() -> None:
    network, _ = random_decoder(dtype=torch.float64)
    ids = random_ids(2, 12)
    slopes = gate_slopes(network, ids)
    step = 1e-4
    for site in sites(network):
        for head in range(site.heads):
            ends = []
            for sign in (1, -1):
                gates = open_gates(network)
                gates[site.layer][head] += sign * step
                with gated(network, gates), torch.no_grad():
                    logits = network(ids)[:, :-1]
                    ends.append(cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none").mean(1))
            rise = (ends[0] - ends[1]) / (2 * step)
            assert torch.allclose(slopes[site.layer][:, head], rise, atol=1e-7), (site.layer, head)


def test_slopes_are_the_papers_product() -> None:
    """dL/dg_h = sum O_h dL/dO_h, with O_h and its gradient taken by PyTorch at the input of W_O."""
    network, _ = random_decoder(dtype=torch.float64)
    ids = random_ids(1, 12)
    slopes = gate_slopes(network, ids)
    outputs: dict[int, torch.Tensor] = {}

    def keep(number: int) -> object:
        def hook(module: object, inputs: tuple[torch.Tensor, ...]) -> None:
            inputs[0].retain_grad()
            outputs[number] = inputs[0]

        return hook

    for number, layer in enumerate(network.layers):
        layer.mixer.output.register_forward_pre_hook(keep(number))
    with differentiate("autograd"):
        logits = network(ids)
        cross_entropy(logits[0, :-1], ids[0, 1:]).backward()
    for number, o in outputs.items():
        product = (o * o.grad).view(1, 12, 6, 8).sum((1, 3))
        assert torch.allclose(slopes[number], product, atol=1e-12)


def test_importance_is_the_mean_of_absolute_slopes() -> None:
    network, _ = random_decoder(dtype=torch.float64)
    ids = random_ids(5, 12)
    found = importance(network, ids, at_once=2)
    alone = [gate_slopes(network, ids[i : i + 1]) for i in range(5)]
    for layer, values in enumerate(found):
        expected = torch.stack([slopes[layer][0] for slopes in alone]).abs().mean(0)
        assert torch.allclose(values, expected, atol=1e-12)
    for values in normalised(found):
        assert float(values.norm()) == pytest.approx(1)
    assert all(parameter.requires_grad for parameter in network.parameters())
    assert all(site.attention.kernel == "fused" for site in sites(network))


def test_what_is_refused() -> None:
    network, _ = random_decoder()
    with pytest.raises(UsageError, match="2 tokens or more"):
        token_losses(network, random_ids(1, 1))
    with pytest.raises(UsageError, match="heads 0 to 5"):
        site_of(network, 1, 6)
    with pytest.raises(UsageError, match="layer 3 does not attend"):
        site_of(network, 3)
    with pytest.raises(UnsupportedModelError, match="decoder"):
        sites(torch.nn.Linear(2, 2))
