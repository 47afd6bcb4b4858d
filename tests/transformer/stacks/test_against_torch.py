"""Our weights copied into torch.nn's transformer: the same outputs and the same gradient of every parameter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headcount.transformer.attention.masks import Causal, Mask, Padding
from headcount.transformer.attention.multi_head import Heads
from headcount.transformer.blocks.block import BlockShape, DecoderBlock, EncoderBlock
from headcount.transformer.stacks.config import EncoderDecoderConfig
from headcount.transformer.stacks.encoder_decoder import EncoderDecoder
from headcount.transformer.stacks.parts import Column

WIDTH, HEADS, FEED_FORWARD = 16, 4, 24
KEEP = torch.tensor([[True] * 7, [True] * 4 + [False] * 3, [True] * 6 + [False]])
OURS_TO_STOCK = {
    "feed_forward.up": "linear1",
    "feed_forward.down": "linear2",
    "attention.output": "self_attn.out_proj",
    "cross_attention.output": "multihead_attn.out_proj",
}
Pair = tuple[str, nn.Parameter, nn.Parameter, slice]


def block_pairs(ours: nn.Module, stock: nn.Module) -> Iterator[Pair]:
    """(name, our parameter, the stock parameter that holds it, which rows); every parameter of ``ours`` once."""
    theirs = dict(stock.named_parameters())
    norms = {name: f"norm{number}" for number, name in enumerate(ours.norms, 1)}
    for name, parameter in ours.named_parameters():
        module, _, kind = name.rpartition(".")
        layer, _, part = module.rpartition(".")
        if part in ("query", "key", "value"):
            row = ("query", "key", "value").index(part) * WIDTH
            attention = "self_attn" if layer == "attention" else "multihead_attn"
            yield name, parameter, theirs[f"{attention}.in_proj_{kind}"], slice(row, row + WIDTH)
        elif layer == "norms":
            yield name, parameter, theirs[f"{norms[part]}.{kind}"], slice(None)
        else:
            yield name, parameter, theirs[f"{OURS_TO_STOCK[module]}.{kind}"], slice(None)


def column_pairs(ours: Column, stock: nn.Module) -> Iterator[Pair]:
    for number, (block, layer) in enumerate(zip(ours.blocks, stock.layers, strict=True)):
        for name, own, other, rows in block_pairs(block, layer):
            yield f"blocks.{number}.{name}", own, other, rows
    for kind, own in ours.norm.named_parameters():
        yield f"norm.{kind}", own, getattr(stock.norm, kind), slice(None)


def copy(pairs: list[Pair], ours: nn.Module, *stock: nn.Module) -> None:
    """Give both the same weights; every parameter of both must be met."""
    assert {id(own) for _, own, _, _ in pairs} == {id(parameter) for parameter in ours.parameters()}
    assert {id(p) for _, _, p, _ in pairs} == {id(p) for module in stock for p in module.parameters()}
    with torch.no_grad():
        for _, own, other, rows in pairs:
            own.normal_(std=0.3)
            other[rows].copy_(own)


def compare(pairs: list[Pair], found: Tensor, wanted: Tensor, leaves: list[tuple[Tensor, Tensor]]) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)
    weight = torch.linspace(-1, 1, found.numel(), dtype=found.dtype).view_as(found)
    (found * weight).sum().backward()
    (wanted * weight).sum().backward()
    for name, own, other, rows in pairs:
        assert own.grad is not None and other.grad is not None, name
        torch.testing.assert_close(own.grad, other.grad[rows], rtol=0, atol=1e-10, msg=name)
    for mine, theirs in leaves:
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=0, atol=1e-10)


def twice(*shape: int, seed: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    value = torch.randn(shape, generator=draw, dtype=torch.float64)
    return value.clone().requires_grad_(), value.clone().requires_grad_()


def stock_options(norm: str, activation: str) -> dict[str, Any]:
    return {
        "d_model": WIDTH,
        "nhead": HEADS,
        "dim_feedforward": FEED_FORWARD,
        "dropout": 0.0,
        "activation": activation,
        "batch_first": True,
        "norm_first": norm == "pre",
        "dtype": torch.float64,
    }


def shape(norm: str, activation: str) -> BlockShape:
    return BlockShape(
        attention=Heads(width=WIDTH, heads=HEADS), feed_forward=FEED_FORWARD, norm=norm, activation=activation
    )


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("causal", [False, True], ids=["padding", "padding and causal"])
def test_encoder_block(norm: str, activation: str, causal: bool) -> None:
    ours = EncoderBlock(shape(norm, activation)).double()
    stock = nn.TransformerEncoderLayer(**stock_options(norm, activation))
    pairs = list(block_pairs(ours, stock))
    copy(pairs, ours, stock)
    x, stock_x = twice(3, 7, WIDTH, seed=1)
    mask: Mask = Padding(keep_BS=KEEP)
    forbidden = torch.ones(7, 7, dtype=torch.bool).triu(1) if causal else None
    found = ours(x, mask=mask & Causal() if causal else mask)
    wanted = stock(stock_x, src_mask=forbidden, src_key_padding_mask=~KEEP)
    compare(pairs, found, wanted, [(x, stock_x)])


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_decoder_block(norm: str) -> None:
    ours = DecoderBlock(shape(norm, "relu")).double()
    stock = nn.TransformerDecoderLayer(**stock_options(norm, "relu"))
    pairs = list(block_pairs(ours, stock))
    copy(pairs, ours, stock)
    x, stock_x = twice(3, 5, WIDTH, seed=1)
    encoded, stock_encoded = twice(3, 7, WIDTH, seed=2)
    found = ours(x, encoded, mask=Causal(), encoded_mask=Padding(keep_BS=KEEP))
    forbidden = torch.ones(5, 5, dtype=torch.bool).triu(1)
    wanted = stock(stock_x, stock_encoded, tgt_mask=forbidden, memory_key_padding_mask=~KEEP)
    compare(pairs, found, wanted, [(x, stock_x), (encoded, stock_encoded)])


class StockEncoderDecoder(nn.Module):
    """nn.Transformer between a shared table and its transpose, sinusoids from the printed formula."""

    def __init__(self, norm: str, vocabulary: int, layers: int) -> None:
        super().__init__()
        options = stock_options(norm, "relu")

        # The paper has no norm after its last block, torch.nn always adds one: left out after post-norm blocks.
        def last() -> nn.Module | None:
            return nn.LayerNorm(WIDTH, dtype=torch.float64) if norm == "pre" else None

        self.table = nn.Embedding(vocabulary, WIDTH, dtype=torch.float64)
        self.transformer = nn.Transformer(
            WIDTH,
            HEADS,
            custom_encoder=nn.TransformerEncoder(
                nn.TransformerEncoderLayer(**options), layers, last(), enable_nested_tensor=False
            ),
            custom_decoder=nn.TransformerDecoder(nn.TransformerDecoderLayer(**options), layers, last()),
            batch_first=True,
            dtype=torch.float64,
        )

    def embed(self, ids: Tensor) -> Tensor:
        position = torch.arange(ids.shape[1], dtype=torch.float64)[:, None]
        pair = torch.arange(WIDTH // 2, dtype=torch.float64)
        angle = position / 10000 ** (2 * pair / WIDTH)
        table = torch.zeros(ids.shape[1], WIDTH, dtype=torch.float64)
        table[:, 0::2], table[:, 1::2] = angle.sin(), angle.cos()
        found: Tensor = self.table(ids) * WIDTH**0.5 + table
        return found

    def forward(self, source: Tensor, target: Tensor, keep: Tensor) -> Tensor:
        length = target.shape[1]
        decoded = self.transformer(
            self.embed(source),
            self.embed(target),
            tgt_mask=torch.ones(length, length, dtype=torch.bool).triu(1),
            src_key_padding_mask=~keep,
            memory_key_padding_mask=~keep,
        )
        return nn.functional.linear(decoded, self.table.weight)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_encoder_decoder(norm: str) -> None:
    torch.manual_seed(3)
    config = EncoderDecoderConfig(
        vocabulary=11, width=WIDTH, layers=2, heads=HEADS, feed_forward=FEED_FORWARD, norm=norm, dropout=0.0
    )
    ours = EncoderDecoder(config).double()
    stock = StockEncoderDecoder(norm, 11, 2)
    pairs = [
        ("table", ours.inputs.embedding.weight, stock.table.weight, slice(None)),
        *column_pairs(ours.encoder, stock.transformer.encoder),
        *column_pairs(ours.decoder, stock.transformer.decoder),
    ]
    copy(pairs, ours, stock)
    source, target = torch.randint(11, (3, 7)), torch.randint(11, (3, 5))
    compare(pairs, ours(source, target, KEEP), stock(source, target, KEEP), [])
