"""Blocks: our gradients against PyTorch's autograd, the wiring as published, and all kernels alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headcount.errors import UnknownNameError, UsageError
from headcount.transformer.attention.masks import Causal, Padding
from headcount.transformer.attention.multi_head import Heads
from headcount.transformer.blocks.block import BlockShape, DecoderBlock, EncoderBlock
from headcount.transformer.ops.operation import differentiate
from headcount.transformer.ops.recording import record

PLACEMENTS = ["post", "pre", "parallel"]
KEEP = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])


def shape(**changes: Any) -> BlockShape:
    heads = {name: changes.pop(name) for name in ("kv_heads", "kernel", "context_width") if name in changes}
    return BlockShape(attention=Heads(width=12, heads=4, **heads), feed_forward=20, **changes)


def make(kind: type[nn.Module], given: BlockShape) -> nn.Module:
    torch.manual_seed(1)
    block = kind(given).double()
    for parameter in block.parameters():
        parameter.data += torch.randn_like(parameter) * 0.1
    return block


def inputs(context_width: int = 12) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(2)
    x = torch.randn(2, 6, 12, generator=draw, dtype=torch.float64, requires_grad=True)
    return x, torch.randn(2, 6, context_width, generator=draw, dtype=torch.float64, requires_grad=True)


def run(block: Any, x: Tensor, encoded: Tensor) -> Tensor:
    if isinstance(block, DecoderBlock):
        out: Tensor = block(x, encoded, mask=Causal(), encoded_mask=Padding(keep_BS=KEEP))
    else:
        out = block(x, mask=Padding(keep_BS=KEEP) & Causal())
    return out


@pytest.mark.parametrize("kind", [EncoderBlock, DecoderBlock])
@pytest.mark.parametrize("norm", PLACEMENTS)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kv_heads": 2, "activation": "swiglu", "norm_kind": "rms_norm"},
        {"activation": "gelu", "kv_heads": 1},
    ],
    ids=["as published", "grouped, gated, RMS", "GELU, one key head"],
)
def test_gradients_by_hand_equal_autograd(kind: type[nn.Module], norm: str, changes: dict[str, Any]) -> None:
    block = make(kind, shape(norm=norm, **changes))
    x, encoded = inputs()
    found: dict[str, dict[str, Tensor]] = {}
    for mode in ("by_hand", "autograd"):
        block.zero_grad()
        x.grad = encoded.grad = None
        with differentiate(mode):
            out = run(block, x, encoded)
            (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
        found[mode] = {name: value.grad for name, value in block.named_parameters() if value.grad is not None}
        found[mode]["x"] = x.grad  # type: ignore[assignment]
        if encoded.grad is not None:
            found[mode]["encoded"] = encoded.grad
    names = {"x", *(name for name, _ in block.named_parameters())}
    assert set(found["by_hand"]) == names | ({"encoded"} if kind is DecoderBlock else set())
    for name, gradient in found["by_hand"].items():
        torch.testing.assert_close(gradient, found["autograd"][name], rtol=0, atol=1e-10, msg=name)


def test_wiring_as_published() -> None:
    """The three formulas, with torch.nn's norm and the block's own sub-layers."""
    x, encoded = inputs()
    mask = Padding(keep_BS=KEEP)

    def norm(block: nn.Module, name: str, value: Tensor) -> Tensor:
        layer = block.norms[name]
        return nn.functional.layer_norm(value, (12,), layer.weight, layer.bias)

    block = make(EncoderBlock, shape(norm="post"))
    y = norm(block, "attention", x + block.attention(x, mask=mask))
    wanted = norm(block, "feed_forward", y + block.feed_forward(y))
    torch.testing.assert_close(block(x, mask=mask), wanted, rtol=0, atol=1e-12)

    block = make(EncoderBlock, shape(norm="pre"))
    y = x + block.attention(norm(block, "attention", x), mask=mask)
    wanted = y + block.feed_forward(norm(block, "feed_forward", y))
    torch.testing.assert_close(block(x, mask=mask), wanted, rtol=0, atol=1e-12)

    block = make(EncoderBlock, shape(norm="parallel"))
    n = norm(block, "shared", x)
    wanted = x + block.attention(n, mask=mask) + block.feed_forward(n)
    torch.testing.assert_close(block(x, mask=mask), wanted, rtol=0, atol=1e-12)

    block = make(DecoderBlock, shape(norm="parallel"))
    n = norm(block, "shared", x)
    wanted = x + block.attention(n, mask=Causal()) + block.cross_attention(n, encoded, mask=mask)
    found = block(x, encoded, mask=Causal(), encoded_mask=mask)
    torch.testing.assert_close(found, wanted + block.feed_forward(n), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [EncoderBlock, DecoderBlock])
def test_all_kernels_give_the_same_block(kind: type[nn.Module]) -> None:
    x, encoded = inputs()
    results = {}
    for kernel in ("naive", "composed", "tiled", "fused"):
        block = make(kind, shape(kernel=kernel, kv_heads=2))
        out = run(block, x, encoded)
        weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
        results[kernel] = [out, *torch.autograd.grad((out * weight).sum(), list(block.parameters()))]
    for kernel in ("composed", "tiled", "fused"):
        torch.testing.assert_close(results[kernel], results["naive"], rtol=0, atol=1e-12, msg=kernel)


def test_encoder_of_another_width() -> None:
    block = make(DecoderBlock, shape(context_width=7))
    x, encoded = inputs(context_width=7)
    assert run(block, x, encoded).shape == x.shape
    assert block.attention.key.weight.shape == (12, 12)
    assert block.cross_attention.key.weight.shape == (12, 7)


@pytest.mark.parametrize("norm", PLACEMENTS)
def test_tape_is_connected_and_scoped(norm: str) -> None:
    block = make(DecoderBlock, shape(norm=norm, kernel="composed"))
    x, encoded = inputs()
    with record() as tape:
        run(block, x, encoded).sum().backward()
    made = {key for node in tape.nodes for key in node.outputs}
    given = {id(x), id(encoded), *(id(parameter) for parameter in block.parameters())}
    for node in tape.nodes:
        assert set(node.inputs) <= made | given, node.operation
    assert {node.scope for node in tape.nodes} >= {("attention",), ("cross_attention",), ("feed_forward",)}


def test_dropout_acts_on_each_sublayer_and_only_while_training() -> None:
    block = make(EncoderBlock, shape(norm="pre", dropout=0.5))
    x, encoded = inputs()
    torch.manual_seed(0)
    first, second = run(block, x, encoded), run(block, x, encoded)
    assert not torch.equal(first, second)
    # The stream itself is never dropped: with both sub-layers silent the block is the identity.
    for parameter in block.parameters():
        parameter.data.zero_()
    torch.testing.assert_close(run(block, x, encoded), x, rtol=0, atol=0)
    block.eval()
    assert torch.equal(run(block, x, encoded), run(block, x, encoded))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"norm": "prenorm"}, "unknown placement of the norms 'prenorm'; nearest: pre"),
        ({"norm_kind": "batch_norm"}, "unknown norm 'batch_norm'"),
        ({"activation": "swish"}, "unknown feed-forward 'swish'"),
        ({"dropout": 1.0}, "dropout must be 0 or more and below 1; given 1.0"),
    ],
)
def test_refusals(changes: dict[str, Any], words: str, plain_signatures: None) -> None:
    with pytest.raises((UsageError, UnknownNameError)) as caught:
        shape(**changes)
    assert words in str(caught.value) and "\n" not in str(caught.value)
