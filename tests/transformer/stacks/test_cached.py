"""The paper's encoder-decoder through its caches: the answers of decoding every prefix anew, and of torch.nn's decoder."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_against_torch import column_pairs
from torch import nn

from headcount.transformer.stacks.config import EncoderDecoderConfig
from headcount.transformer.stacks.encoder_decoder import CachedDecoder, EncoderDecoder

SIZES = {"vocabulary": 30, "width": 16, "heads": 4, "layers": 2, "feed_forward": 24}
KEEP = torch.arange(9)[None] < torch.tensor([9, 5, 7])[:, None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "switches",
    [
        {},
        {"positions": "learned", "norm": "pre", "kv_heads": 1},
        {"positions": "none", "norm": "parallel", "activation": "swiglu", "kernel": "tiled"},
    ],
)
def test_cached_equals_uncached(switches: dict[str, Any], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = EncoderDecoder(EncoderDecoderConfig(**SIZES, **switches)).to(dtype).eval()
    source, target = torch.randint(0, 30, (3, 9)), torch.randint(0, 30, (3, 11))
    with torch.no_grad():
        encoded = model.encode(source, KEEP)
        whole = model.decode(target, encoded, KEEP)
        steps = CachedDecoder(model, encoded, KEEP)
        parts = [steps.decode(target[:, a:b]) for a, b in ((0, 1), (1, 5), (5, 6), (6, 11))]
    exact = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=exact, rtol=0)
    cached, uncached = (
        model.generate(source, KEEP, start=0, end=1, limit=12, cached=cached) for cached in (True, False)
    )
    assert torch.equal(cached, uncached)


def test_cached_equals_stock_decoder() -> None:
    """Steps of 1 through the cache against ``nn.TransformerDecoder`` over the whole target."""
    torch.manual_seed(0)
    model = EncoderDecoder(EncoderDecoderConfig(**SIZES)).eval()
    layer = nn.TransformerDecoderLayer(16, 4, 24, dropout=0.0, batch_first=True)
    stock = nn.TransformerDecoder(layer, 2).eval()
    with torch.no_grad():
        for _, own, other, rows in column_pairs(model.decoder, stock):
            other[rows] = own
        encoded, target = torch.randn(3, 9, 16), torch.randint(0, 30, (3, 11))
        theirs = stock(
            model.inputs(target),
            encoded,
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(11),
            memory_key_padding_mask=~KEEP,
            tgt_is_causal=True,
        )
        steps = CachedDecoder(model, encoded, KEEP)
        ours = torch.cat([steps.decode(target[:, t : t + 1]) for t in range(11)], 1)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_source_is_projected_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values of cross-attention: one projection per block, whatever the length of the answer."""
    torch.manual_seed(0)
    model = EncoderDecoder(EncoderDecoderConfig(**SIZES)).eval()
    calls = []
    for block in model.decoder.blocks:
        block.cross_attention.key.register_forward_hook(
            lambda module, given, out: calls.append(given[0].shape[1])
        )
    model.generate(torch.randint(2, 30, (2, 9)), start=0, end=31, limit=7)
    assert calls == [9, 9]
