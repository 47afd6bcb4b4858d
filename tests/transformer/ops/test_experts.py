"""Mixture of experts against a loop over tokens, finite differences, and transformers' Mixtral and DeepSeek-V3."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from headcount.errors import OperandError, UnknownNameError, UsageError
from headcount.transformer.ops.experts import COMBINE, DISPATCH, Groups, balance, combine, dispatch, route
from headcount.transformer.ops.gated import gated
from headcount.transformer.ops.linear import linear
from headcount.transformer.ops.operation import differentiate
from headcount.transformer.ops.rearrange import cut

MODES = st.sampled_from(["by_hand", "autograd"])


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def spread(tokens: int, experts: int, seed: int) -> Tensor:
    """Logits no two of which are close, so that finite differences cannot change the choice."""
    order = torch.randperm(tokens * experts, generator=torch.Generator().manual_seed(seed)).double()
    return (order.view(tokens, experts) * (4 / (tokens * experts)) - 2).requires_grad_()


@given(
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 5)),
    top_k=st.integers(1, 3),
    scoring=st.sampled_from(["softmax", "sigmoid"]),
    renormalize=st.booleans(),
    scale=st.sampled_from([1.0, 2.5]),
    seed=st.integers(0, 2**31),
    mode=MODES,
)
def test_routing(
    sizes: tuple[int, int], top_k: int, scoring: str, renormalize: bool, scale: float, seed: int, mode: str
) -> None:
    logits = spread(*sizes, seed)
    options: dict[str, Any] = {
        "top_k": min(top_k, sizes[1]),
        "scoring": scoring,
        "renormalize": renormalize,
        "scale": scale,
    }
    weights, chosen = route(logits, **options)
    score = torch.softmax(logits, -1) if scoring == "softmax" else torch.sigmoid(logits)
    for m in range(sizes[0]):
        best = sorted(range(sizes[1]), key=lambda e: -logits[m, e].item())[: options["top_k"]]
        assert chosen[m].tolist() == best
        part = score[m, best] / score[m, best].sum() if renormalize else score[m, best]
        torch.testing.assert_close(weights[m], part * scale, rtol=0, atol=1e-13)
    with differentiate(mode):
        assert gradcheck(lambda z: route(z, **options)[0], (logits,))


def test_softmax_renormalised_is_a_softmax_of_the_chosen() -> None:
    logits = random(6, 8)
    weights, chosen = route(logits, top_k=3)
    torch.testing.assert_close(weights, torch.softmax(logits.gather(1, chosen), -1), rtol=0, atol=1e-14)


def test_bias_decides_the_choice_and_not_the_weights() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]], dtype=torch.float64, requires_grad=True)
    bias = torch.tensor([0.0, 0.0, 5.0], dtype=torch.float64, requires_grad=True)
    weights, chosen = route(logits, bias, top_k=2, scoring="sigmoid", renormalize=False)
    assert chosen.tolist() == [[2, 0]]
    assert weights[0].tolist() == torch.sigmoid(torch.tensor([0.0, 2.0], dtype=torch.float64)).tolist()
    weights.sum().backward()
    assert bias.grad is None and logits.grad is not None and logits.grad[0, 1] == 0


@given(
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4)),
    top_k=st.integers(1, 3),
    seed=st.integers(0, 2**31),
    mode=MODES,
)
def test_dispatch_and_combine_against_a_loop(
    sizes: tuple[int, int, int], top_k: int, seed: int, mode: str
) -> None:
    tokens, width, experts = sizes
    top_k = min(top_k, experts)
    x, weights = random(tokens, width, seed=seed), random(tokens, top_k, seed=seed + 1)
    maps = random(experts, width, width, seed=seed + 2)
    chosen = spread(tokens, experts, seed).topk(top_k).indices

    def mixture(x: Tensor, weights: Tensor, maps: Tensor) -> Tensor:
        parts, order = dispatch(x, chosen, experts=experts)
        return combine([torch.tanh(part) @ maps[e] for e, part in enumerate(parts)], weights, order)

    truth = torch.stack(
        [
            sum(weights[m, i] * torch.tanh(x[m]) @ maps[e] for i, e in enumerate(chosen[m]))
            for m in range(tokens)
        ]
    )
    torch.testing.assert_close(mixture(x, weights, maps), truth, rtol=0, atol=1e-13)
    with differentiate(mode):
        assert gradcheck(mixture, (x, weights, maps))


@given(
    tokens=st.integers(1, 5),
    experts=st.integers(1, 5),
    top_k=st.integers(1, 2),
    seed=st.integers(0, 2**31),
    mode=MODES,
)
def test_balance(tokens: int, experts: int, top_k: int, seed: int, mode: str) -> None:
    logits = spread(tokens, experts, seed)
    chosen = logits.topk(min(top_k, experts)).indices
    p = torch.softmax(logits, -1).mean(0)
    share = torch.tensor([(chosen == e).sum() / tokens for e in range(experts)], dtype=torch.float64)
    torch.testing.assert_close(balance(logits, chosen), experts * (share * p).sum(), rtol=1e-6, atol=0)
    with differentiate(mode):
        assert gradcheck(lambda z: balance(z, chosen), (logits,))


def test_even_load_costs_one_per_choice() -> None:
    chosen = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 0]])
    assert balance(torch.zeros(4, 4), chosen).item() == pytest.approx(2)
    assert balance(torch.zeros(4, 4), chosen[:, :1]).item() == pytest.approx(1)


def test_half_precision_logits_are_scored_in_float32() -> None:
    logits = random(5, 8, dtype=torch.float32).detach().bfloat16().requires_grad_()
    weights, chosen = route(logits, top_k=2)
    assert weights.dtype == torch.float32
    parts, order = dispatch(torch.ones(5, 3, dtype=torch.bfloat16), chosen, experts=8)
    out = combine(parts, weights, order)
    assert out.dtype == torch.bfloat16 and out.float().allclose(torch.ones(5, 3))
    weights.square().sum().backward()
    assert logits.grad is not None and logits.grad.dtype == torch.bfloat16


def test_refusals() -> None:
    z = torch.zeros(2, 4)
    with pytest.raises(UsageError, match="top_k = 5 of E = 4"):
        route(z, top_k=5)
    with pytest.raises(UnknownNameError, match="unknown router scoring 'softmx'; nearest: softmax"):
        route(z, top_k=1, scoring="softmx")
    with pytest.raises(UsageError, match="4 experts in 3 groups"):
        route(z, top_k=1, groups=Groups(3, 1))
    with pytest.raises(UsageError, match="groups of 2 experts; best = 2, top_k = 3"):
        route(z, top_k=3, groups=Groups(2, 1))
    with pytest.raises(OperandError, match="expert 3 was chosen, there are E = 3"):
        DISPATCH(torch.ones(1, 2), torch.tensor([[3]]), experts=3)
    with pytest.raises(OperandError, match="1 rows from the experts"):
        COMBINE(torch.ones(1, 2), torch.tensor([0, 1]), torch.ones(1, 3))


@pytest.mark.reference
def test_mixtral_block_and_its_balance_loss() -> None:
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock, load_balancing_loss_func

    config = MixtralConfig(hidden_size=16, intermediate_size=24, num_local_experts=6, num_experts_per_tok=2)
    config._experts_implementation = "eager"
    torch.manual_seed(0)
    theirs = MixtralSparseMoeBlock(config).double().eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    names = ("gate.weight", "experts.gate_up_proj", "experts.down_proj")
    named = dict(theirs.named_parameters())
    router, gate_up, down = (named[name].detach().clone().requires_grad_() for name in names)
    x_theirs = random(3, 7, 16)
    x = x_theirs.detach().clone().requires_grad_()

    rows = x.view(-1, 16)
    logits = linear(rows, router)
    weights, chosen = route(logits, top_k=2)
    parts, order = dispatch(rows, chosen, experts=6)
    results = [
        linear(gated(*cut(linear(part, gate_up[e]), (24, 24)), activation="silu"), down[e])
        for e, part in enumerate(parts)
    ]
    out = combine(results, weights, order).view(3, 7, 16)

    # The reference scores in float32 whatever the dtype: its weights carry that rounding.
    expected = theirs(x_theirs)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-6)
    d_out = torch.randn(3, 7, 16, dtype=torch.float64)
    mine = torch.autograd.grad(out, (x, router, gate_up, down), d_out, retain_graph=True)
    other = torch.autograd.grad(expected, (x_theirs, *(named[name] for name in names)), d_out)
    for a, b in zip(mine, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)

    reference_logits = logits.detach().clone().requires_grad_()
    reference = load_balancing_loss_func((reference_logits,), num_experts=6, top_k=2)
    loss = balance(logits, chosen)
    torch.testing.assert_close(loss, reference.double(), rtol=1e-6, atol=0)
    torch.testing.assert_close(
        torch.autograd.grad(loss, logits)[0],
        torch.autograd.grad(reference, reference_logits)[0],
        rtol=0,
        atol=1e-7,
    )


@pytest.mark.reference
def test_deepseek_v3_router_with_groups_and_bias() -> None:
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

    config = DeepseekV3Config(
        hidden_size=12,
        n_routed_experts=16,
        num_experts_per_tok=4,
        n_group=4,
        topk_group=2,
        routed_scaling_factor=2.5,
    )
    router = DeepseekV3TopkRouter(config)
    torch.nn.init.normal_(router.weight)
    router.e_score_correction_bias.copy_(torch.randn(16) * 0.3)
    x = torch.randn(40, 12)
    logits, weights, chosen = router(x)
    ours = logits.detach().clone().requires_grad_()
    my_weights, mine = route(
        ours, router.e_score_correction_bias, top_k=4, scoring="sigmoid", scale=2.5, groups=Groups(4, 2, 2)
    )
    order, theirs_order = mine.argsort(-1), chosen.argsort(-1)
    assert torch.equal(mine.gather(1, order), chosen.gather(1, theirs_order))
    torch.testing.assert_close(
        my_weights.gather(1, order), weights.gather(1, theirs_order), rtol=1e-6, atol=0
    )
    pull = torch.arange(16.0)
    d_mine = torch.autograd.grad((my_weights * pull[mine]).sum(), ours)[0]
    d_theirs = torch.autograd.grad((weights * pull[chosen]).sum(), logits)[0]
    torch.testing.assert_close(d_mine, d_theirs, rtol=1e-5, atol=1e-6)
