"""Codecs: ggml's bytes against gguf, fp8 against PyTorch's own type, scales against their error bound; in every place alike."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headcount.errors import UnknownNameError, UnsupportedModelError, UsageError
from headcount.spec.attention import Mixer
from headcount.spec.kv_format import KV_FORMATS, kv_format
from headcount.transformer.kv_cache.codec import RowCodec
from headcount.transformer.kv_cache.conversation import make_cache
from headcount.transformer.kv_cache.formats import CODECS, entry_of, row_codec
from headcount.transformer.kv_cache.pool import Pool

from .histories import CPU, History, chunked, full, latent, sliding

SEEDS = st.integers(0, 2**31)
HARD = [0.0, -0.0, 1e-9, -1e-9, 1.0, -1.0, 6.5e4, -6.5e4, 0.5, -127.5, 127.0]


def keys_like(
    heads: int, tokens: int, width: int, seed: int, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Numbers of many sizes, with blocks of zeros, ties and extremes among them."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(heads, tokens, width, generator=random) * 10 ** (
        torch.rand(heads, tokens, 1, generator=random) * 6 - 4
    )
    x[torch.rand(heads, tokens, generator=random) < 0.1] = 0.0
    rare = torch.rand(x.shape, generator=random) < 0.05
    x[rare] = torch.tensor(HARD)[torch.randint(len(HARD), (int(rare.sum()),), generator=random)]
    return x.to(dtype)


def stored_and_read(codec: RowCodec, x: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return codec.decode([part.clone() for part in codec.encode(x)], dtype)


@pytest.mark.reference
@pytest.mark.parametrize("name", ["q8_0", "q4_0"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@given(heads=st.sampled_from([1, 2, 4, 8]), blocks=st.integers(1, 4), tokens=st.integers(1, 6), seed=SEEDS)
def test_ggml_bytes_are_ggufs_bytes(
    name: str, dtype: torch.dtype, heads: int, blocks: int, tokens: int, seed: int
) -> None:
    gguf = pytest.importorskip("gguf")
    kind = gguf.GGMLQuantizationType[name.upper()]
    width = 32 * blocks // heads if 32 * blocks % heads == 0 else 32
    x = keys_like(heads, tokens, width, seed, dtype)
    rows = x.permute(1, 0, 2).reshape(tokens, heads * width).float().numpy()
    expected = gguf.quants.quantize(rows, kind)
    codec = row_codec(name, heads, width)
    (stored,) = codec.encode(x)
    assert stored.shape[0] == 1 and stored.dtype == torch.uint8
    assert torch.equal(stored[0], torch.from_numpy(expected))
    back = (
        torch.from_numpy(gguf.quants.dequantize(expected, kind)).view(tokens, heads, width).permute(1, 0, 2)
    )
    assert torch.equal(codec.decode([stored], torch.float32), back)


@pytest.mark.parametrize(("name", "kind"), [("fp8", torch.float8_e4m3fn), ("fp8_e5m2", torch.float8_e5m2)])
@given(seed=SEEDS)
def test_fp8_is_pytorchs_type_and_saturates(name: str, kind: torch.dtype, seed: int) -> None:
    largest = torch.finfo(kind).max
    x = keys_like(2, 3, 5, seed)
    expected = x.clamp(-largest, largest).to(kind).float()
    assert torch.equal(stored_and_read(row_codec(name, 2, 5), x), expected)


def test_what_is_not_finite_stays_so() -> None:
    for name in CODECS:
        for bad in (torch.inf, -torch.inf, torch.nan):
            x = torch.ones(2, 1, 16)
            x[0, 0, 3] = bad
            assert not stored_and_read(row_codec(name, 2, 16), x)[0].isfinite().all(), (name, bad)


@pytest.mark.parametrize("scale", ["", "_fp32"])
@pytest.mark.parametrize(("bits", "largest"), [(8, 127), (4, 7)])
@given(heads=st.integers(1, 3), tokens=st.integers(1, 5), half=st.integers(1, 9), seed=SEEDS)
def test_a_token_and_head_errs_by_half_a_step_at_most(
    scale: str, bits: int, largest: int, heads: int, tokens: int, half: int, seed: int
) -> None:
    x = keys_like(heads, tokens, 2 * half, seed)
    codec = row_codec(f"int{bits}_per_token_head{scale}", heads, 2 * half)
    error = (stored_and_read(codec, x) - x).abs()
    step = x.abs().amax(-1, keepdim=True) / largest
    # fp16 rounds the scale by up to 2^-11 of it, and by 2^-25 where it is subnormal; the top code then errs by 127 times that.
    slack = largest * (step * 2**-11 + 2**-25)
    assert (error <= step / 2 + slack + 1e-6 * x.abs()).all()


@given(heads=st.integers(1, 4), width=st.integers(1, 9), tokens=st.integers(0, 4), seed=SEEDS)
def test_int4_of_odd_heads_shares_bytes(heads: int, width: int, tokens: int, seed: int) -> None:
    name = "int4_per_token_head"
    if heads * width % 2:
        with pytest.raises(UsageError):
            row_codec(name, heads, width)
        return
    # Whole numbers up to 7 with a 7 in every head are stored exactly: the scale is 1.
    random = torch.Generator().manual_seed(seed)
    x = torch.randint(-7, 8, (heads, tokens, width), generator=random).float()
    x[..., 0] = 7
    codec = row_codec(name, heads, width)
    assert torch.equal(stored_and_read(codec, x), x)
    assert codec.nbytes == kv_format(name).row_bytes(heads, width)


@pytest.mark.parametrize("name", sorted(CODECS))
@pytest.mark.parametrize(
    "mixer", [full(4, 8, 16), sliding(2, 16, 16, 7), chunked(4, 16, 8, 5), latent(48, 16)]
)
@settings(max_examples=12)
@given(steps=st.lists(st.integers(1, 12), min_size=1, max_size=5), seed=SEEDS)
def test_every_codec_in_every_place_keeps_the_same_numbers_and_the_specs_bytes(
    name: str, mixer: Mixer, steps: list[int], seed: int
) -> None:
    entry = entry_of(mixer, name)
    pools = {entry.geometry: Pool(entry, pages=60, page_tokens=4)}
    together = [
        make_cache(mixer, format=name, dtype=torch.float32, device=CPU, pools=where)
        for where in (None, pools)
    ]
    history = History(entry.heads, entry.key_width, entry.value_width, seed=seed, dtype=torch.float32)
    for cache in together:
        empty = cache.extend(*history.draw(0))
        assert empty.keys.shape == history.keys.shape and empty.values.shape == history.values.shape
    for tokens in steps:
        keys, values = history.draw(tokens)
        for cache in together:
            kept = cache.extend(keys, values)
            parts = entry.encode(history.keys[:, kept.first :], history.values[:, kept.first :])
            stored = [part.to(kind.dtype) for part, kind in zip(parts, entry.parts, strict=True)]
            wanted_keys, wanted_values = entry.decode(stored, torch.float32)
            assert torch.equal(kept.keys, wanted_keys) and torch.equal(kept.values, wanted_values)
            assert cache.nbytes == mixer.kv_bytes(cache.length, kv_format(name))
    exact = make_cache(mixer, format=name, dtype=torch.float32, device=CPU)
    exact.reserve(len(history))
    exact.extend(history.keys, history.values)
    assert exact.allocated_bytes == exact.nbytes == mixer.kv_bytes(len(history), kv_format(name))


@pytest.mark.parametrize("name", sorted(CODECS))
def test_half_precision_is_read_back_in_its_own_type(name: str) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        codec = row_codec(name, 2, 16)
        x = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
        parts = [part.to(kind.dtype) for part, kind in zip(codec.encode(x), codec.parts, strict=True)]
        back = codec.decode(parts, dtype)
        assert back.dtype == dtype and (back.double() - x.double()).abs().max() < 0.4


def test_formats_that_are_only_counted_are_refused_by_name() -> None:
    for name in set(KV_FORMATS) - set(CODECS):
        with pytest.raises(UnsupportedModelError, match=name):
            row_codec(name, 8, 64)
    with pytest.raises(UnknownNameError, match="q8_0"):
        row_codec("q8_1", 8, 64)
    with pytest.raises(UsageError, match="blocks of 32"):
        row_codec("q8_0", 1, 48)
    assert set(CODECS) >= {
        "fp32",
        "fp16",
        "bf16",
        "fp8",
        "int8_per_token_head",
        "int4_per_token_head",
        "q8_0",
        "q4_0",
    }
