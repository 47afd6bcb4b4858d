"""Every kernel against the naive judge; the naive judge against PyTorch's math and finite differences."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from headcount.errors import OperandError, UnknownNameError, UsageError
from headcount.transformer.attention import tiled
from headcount.transformer.attention.attend import attend
from headcount.transformer.attention.masks import (
    Causal,
    Chunked,
    Everything,
    Mask,
    Packed,
    Padding,
    Prefix,
    SlidingWindow,
    mask,
)
from headcount.transformer.attention.rule import Rule
from headcount.transformer.ops.operation import differentiate

BATCH, QUERIES, KEYS = 2, 13, 13
MASKS: dict[str, Mask] = {
    "everything": Everything(),
    "causal": Causal(),
    "window": SlidingWindow(window=3),
    "chunked": Chunked(chunk=4),
    "prefix": Prefix(length=5),
    "padding": Padding.of_lengths(torch.tensor([13, 6]), KEYS),
    "left padding": Padding(keep_BS=torch.arange(KEYS)[None, :] >= torch.tensor([[0], [7]])),
    "no key at all": Padding(keep_BS=torch.tensor([[False], [True]]).expand(2, KEYS)),
    "causal, left padding": Causal()
    & Padding(keep_BS=torch.arange(KEYS)[None, :] >= torch.tensor([[2], [9]])),
    "packed": Packed.of_lengths([4, 1, 8]),
    "packed causal": Causal() & Packed.of_lengths([4, 1, 8]),
    "window, padding": SlidingWindow(window=2) & Padding.of_lengths(torch.tensor([13, 4]), KEYS),
}


@pytest.fixture(params=[(512, 512), (4, 3), (1, 5)], ids=lambda p: f"tiles {p[0]}x{p[1]}")
def tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small tiles, so that short sequences cross tile borders."""
    monkeypatch.setattr(tiled, "TILE_ROWS", request.param[0])
    monkeypatch.setattr(tiled, "TILE_KEYS", request.param[1])
    monkeypatch.setattr(tiled, "TILE_PAIRS", 2 * request.param[0] * request.param[1])
    yield


def operands(shape: dict[str, int], seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    B, N, K, T, S, H, W = (shape[letter] for letter in "BNKTSHW")
    sizes = [(B, N, T, H), (B, K, S, H), (B, K, S, W)]
    return [torch.randn(size, generator=draw, dtype=dtype).requires_grad_() for size in sizes]


def run(kernel: str, inputs: list[Tensor], rule: Rule, sinks: Tensor | None = None) -> list[Tensor]:
    """Output and every gradient, for a loss that weighs each output entry differently."""
    leaves = [
        tensor.detach().clone().requires_grad_() for tensor in [*inputs, *([] if sinks is None else [sinks])]
    ]
    out = attend(*leaves[:3], rule=rule, sinks_N=None if sinks is None else leaves[3], kernel=kernel)
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    (out * weight).sum().backward()
    return [out.detach(), *[leaf.grad for leaf in leaves if leaf.grad is not None]]


def same(found: list[Tensor], wanted: list[Tensor], tolerance: float = 1e-12) -> None:
    assert len(found) == len(wanted)
    for ours, judge in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, judge, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)], ids=["MHA", "GQA", "MQA"])
def test_naive_equals_pytorch(name: str, heads: tuple[int, int]) -> None:
    """Values against PyTorch's math attention, gradients against PyTorch's autograd of it."""
    inputs = operands({"B": BATCH, "N": heads[0], "K": heads[1], "T": QUERIES, "S": KEYS, "H": 5, "W": 5})
    rule = Rule(mask=MASKS[name])
    allowed = rule.allowed(QUERIES, KEYS, torch.device("cpu"))[:, None]
    leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    q, k, v = leaves
    G = heads[0] // heads[1]
    scores = q @ k.repeat_interleave(G, 1).mT / math.sqrt(5)
    weights = torch.softmax(scores.masked_fill(~allowed, -torch.inf), -1)
    weights = torch.where(allowed.any(-1, keepdim=True), weights, 0.0)
    out = weights @ v.repeat_interleave(G, 1)
    if allowed.any(-1).all():
        library = scaled_dot_product_attention(q, k, v, attn_mask=allowed, enable_gqa=True)
        torch.testing.assert_close(out, library, rtol=0, atol=1e-12)
    scale = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    grads = torch.autograd.grad((out * scale).sum(), leaves)
    grads = tuple(torch.nan_to_num(grad) for grad in grads)
    same(run("naive", inputs, rule), [out.detach(), *grads])


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("kernel", ["tiled", "composed", "fused"])
def test_kernels_equal_naive_under_every_mask(kernel: str, name: str, tiles: None) -> None:
    inputs = operands(
        {"B": BATCH, "N": 6, "K": 2, "T": QUERIES, "S": KEYS, "H": 8, "W": 3 if kernel != "fused" else 8}
    )
    rule = Rule(mask=MASKS[name], scale=0.7)
    same(run(kernel, inputs, rule), run("naive", inputs, rule))


@pytest.mark.parametrize("kernel", ["tiled", "composed"])
def test_soft_cap_and_sinks(kernel: str, tiles: None) -> None:
    inputs = operands({"B": 2, "N": 4, "K": 2, "T": 7, "S": 11, "H": 4, "W": 6})
    sinks = torch.tensor([0.5, -3.0, 2.0, 9.0], dtype=torch.float64)
    rule = Rule(mask=Causal(), soft_cap=0.8, query_start=4)
    same(run(kernel, inputs, rule, sinks), run("naive", inputs, rule, sinks))


@given(data=st.data())
def test_tiled_equals_naive_on_random_shapes(data: st.DataObject) -> None:
    K, G = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    sizes = {
        letter: data.draw(st.integers(0 if letter in "BTS" else 1, 9), label=letter) for letter in "BTSHW"
    }
    start = data.draw(st.integers(0, 4))
    inputs = operands({**sizes, "N": K * G, "K": K}, data.draw(st.integers(0, 2**31)))
    masks: list[Mask] = [Everything(), Causal(), SlidingWindow(window=2), Chunked(chunk=3), Prefix(length=2)]
    rule = Rule(mask=data.draw(st.sampled_from(masks)), query_start=start)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiled, "TILE_ROWS", data.draw(st.integers(1, 4)))
        patch.setattr(tiled, "TILE_KEYS", data.draw(st.integers(1, 4)))
        same(run("tiled", inputs, rule), run("naive", inputs, rule))


@pytest.mark.parametrize("kernel", ["naive", "tiled", "composed"])
@given(data=st.data())
def test_gradcheck(kernel: str, data: st.DataObject) -> None:
    """Central differences of PyTorch's gradcheck on every operand, sinks included."""
    K, G = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2))
    sizes = {letter: data.draw(st.integers(1, 3)) for letter in "BTSHW"}
    inputs = operands({**sizes, "N": K * G, "K": K}, data.draw(st.integers(0, 2**31)))
    cap = data.draw(st.sampled_from([None, 1.5]))
    rule = Rule(mask=data.draw(st.sampled_from([Everything(), Causal()])), soft_cap=cap, query_start=1)
    if data.draw(st.booleans()):
        inputs.append(torch.linspace(-1, 1, K * G, dtype=torch.float64).requires_grad_())

    def call(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> Tensor:
        return attend(q, k, v, rule=rule, sinks_N=sinks, kernel=kernel)

    assert torch.autograd.gradcheck(call, inputs)


def test_strided_operands() -> None:
    """Heads split from a fused projection are views with strides; the result must not care."""
    fused_projection = torch.randn(2, 9, 3, 4, 8, dtype=torch.float64).permute(2, 0, 3, 1, 4)
    inputs = list(fused_projection)
    assert not inputs[0].is_contiguous()
    rule = Rule(mask=Causal())
    solid = [part.contiguous() for part in inputs]
    for kernel in ("naive", "tiled"):
        out = attend(*inputs, rule=rule, kernel=kernel)
        torch.testing.assert_close(out, attend(*solid, rule=rule, kernel="naive"), rtol=0, atol=1e-12)
    same(run("tiled", inputs, rule), run("naive", inputs, rule))


def test_reference_moves_when_later_keys_are_larger() -> None:
    """Scores that climb by hundreds from tile to tile: the kept reference must move, exactly."""
    q = torch.ones(1, 1, 3, 1, dtype=torch.float64)
    k = torch.tensor([-900.0, -300.0, 5.0, 12.0, 400.0, 401.0, -50.0], dtype=torch.float64).view(1, 1, 7, 1)
    v = torch.arange(7.0, dtype=torch.float64).view(1, 1, 7, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiled, "TILE_KEYS", 2)
        for last in range(1, 8):
            rule = Rule(scale=1.0)
            inputs = [q, k[:, :, :last], v[:, :, :last]]
            same(run("tiled", inputs, rule), run("naive", inputs, rule))


@pytest.mark.parametrize("kernel", ["naive", "tiled"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_not_a_number_is_not_hidden(kernel: str, bad: float) -> None:
    q, k, v = (
        tensor.detach().clone()
        for tensor in operands({"B": 1, "N": 1, "K": 1, "T": 3, "S": 3, "H": 2, "W": 2})
    )
    q[0, 0, 1, 0] = bad
    out = attend(q, k, v, kernel=kernel)
    assert out[0, 0, 1].isnan().all()
    assert not out[0, 0, [0, 2]].isnan().any()


def test_autograd_mode_gives_the_same_gradients() -> None:
    inputs = operands({"B": 1, "N": 4, "K": 2, "T": 5, "S": 5, "H": 3, "W": 3})
    rule = Rule(mask=Causal(), soft_cap=2.0)
    sinks = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    by_hand = run("naive", inputs, rule, sinks)
    with differentiate("autograd"):
        same(run("naive", inputs, rule, sinks), by_hand)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"K": 3}, "4 query heads (N) do not divide into 3 key/value heads"),
        ({"H2": 7}, "attention: k has shape (B=1, K=2, S=5, H=7)"),
        ({"dtype2": torch.float32}, "q is float64"),
        ({"kernel": "flash"}, "unknown attention kernel 'flash'"),
        ({"window": 0}, "window must be a whole number, 1 or more; given 0"),
        ({"soft_cap": -1.0}, "soft_cap must be positive"),
        ({"fused_cap": 1.0}, "fused kernel has no form with a soft cap"),
        ({"mask": "triangular"}, "unknown mask 'triangular'"),
        ({"lengths": True}, "expected (B=1, S=5)"),
        ({"soft_cap": 1e39}, "soft_cap must be positive and at most"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_refusals_are_one_clear_line(change: dict[str, Any], words: str, plain_signatures: None) -> None:
    q = torch.zeros(1, 4, 5, 8, dtype=torch.float64)
    k = torch.zeros(1, change.get("K", 2), 5, change.get("H2", 8), dtype=change.get("dtype2", torch.float64))
    v = torch.zeros(1, change.get("K", 2), 5, 8, dtype=torch.float64)
    with pytest.raises((OperandError, UsageError, UnknownNameError)) as caught:
        chosen = mask(change["mask"]) if "mask" in change else Everything()
        if "window" in change:
            chosen = SlidingWindow(window=change["window"])
        if "lengths" in change:
            chosen = Padding.of_lengths(torch.tensor([3, 4]), 6)
        cap = change.get("soft_cap", change.get("fused_cap"))
        kernel = "fused" if "fused_cap" in change else change.get("kernel", "naive")
        attend(q, k, v, rule=Rule(mask=chosen, soft_cap=cap), kernel=kernel)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_second_derivatives_are_refused_not_dropped() -> None:
    """create_graph=True would hand back a constant gradient, and a penalty on it would vanish in silence."""
    q, k, v = operands({"B": 1, "N": 1, "K": 1, "T": 2, "S": 2, "H": 2, "W": 2})
    with pytest.raises(OperandError, match="second derivatives are not derived by hand"):
        torch.autograd.grad(attend(q, k, v).sum(), q, create_graph=True)
    with differentiate("autograd"):
        (gradient,) = torch.autograd.grad(attend(q, k, v).square().sum(), q, create_graph=True)
    assert gradient.requires_grad


def test_tiled_is_refused_where_pytorch_is_to_differentiate() -> None:
    inputs = operands({"B": 1, "N": 1, "K": 1, "T": 2, "S": 2, "H": 2, "W": 2})
    with differentiate("autograd"), pytest.raises(OperandError, match="take the naive kernel"):
        attend(*inputs, kernel="tiled")


def test_a_mask_changed_before_the_backward_is_noticed() -> None:
    q, k, v = operands({"B": 1, "N": 1, "K": 1, "T": 3, "S": 3, "H": 2, "W": 2})
    keep = torch.tensor([[True, True, False]])
    out = attend(q, k, v, rule=Rule(mask=Causal() & Padding(keep_BS=keep)), kernel="tiled")
    keep.fill_(True)
    with pytest.raises(OperandError, match="mask was changed in place"):
        out.sum().backward()


@pytest.mark.parametrize("kernel", ["naive", "tiled", "fused"])
def test_half_precision_neither_overflows_nor_stalls(kernel: str) -> None:
    """float16 scores of 115,200 before the scale, and a sum over 70,000 equal keys."""
    q = torch.full((1, 1, 1, 128), 30.0, dtype=torch.float16)
    assert attend(q, q, q, kernel=kernel).flatten()[0] == 30
    ones = torch.ones(1, 1, 70_000, 8, dtype=torch.float16)
    assert attend(ones[:, :, :1], ones, ones, kernel=kernel).flatten()[0] == pytest.approx(1, rel=2e-3)


@pytest.mark.parametrize("size", [1e11, 1e-16, 1e-25])
def test_far_apart_scores_keep_large_values_and_tiny_gradients(size: float) -> None:
    """Scores of -30 in the first tile and +30 in the second: values of 1e11, gradients of 1e-25, in float32."""
    q = torch.tensor([[[[30.0, 0.0]]]], requires_grad=True)
    k = torch.zeros(1, 1, 512, 2)
    k[..., 0] = -1
    k[:, :, 256:, 0] = 1
    k.requires_grad_()
    v = (
        torch.randn(1, 1, 512, 2, generator=torch.Generator().manual_seed(0))
        .mul_(max(size, 1.0))
        .requires_grad_()
    )
    rule = Rule(scale=1.0)
    d_out = torch.full((1, 1, 1, 2), min(size, 1.0))
    found = []
    for kernel in ("tiled", "naive"):
        out = attend(q, k, v, rule=rule, kernel=kernel)
        # All keys of a tile are equal, so the gradients of Q and K cancel to rounding noise; that of V does not.
        found.append([out.detach(), *torch.autograd.grad(out, v, d_out)])
    for ours, judge in zip(*found, strict=True):
        assert ours.isfinite().all()
        torch.testing.assert_close(ours, judge, rtol=1e-4, atol=1e-6 * float(judge.abs().max()))


def test_empty_batches_pass_every_kernel() -> None:
    for kernel in ("naive", "composed", "tiled"):
        inputs = operands({"B": 0, "N": 4, "K": 2, "T": 3, "S": 3, "H": 2, "W": 2})
        attend(*inputs, kernel=kernel).sum().backward()
        assert inputs[1].grad is not None and inputs[1].grad.shape == (0, 2, 3, 2)
