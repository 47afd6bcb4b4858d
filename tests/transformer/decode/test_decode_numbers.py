"""The instructions written for the compiler, against NumPy, PyTorch and ggml's own quantiser."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headcount.transformer.decode import instructions as at
from headcount.transformer.decode import tiles
from headcount.transformer.decode.attention_tiles import scores_bf16, scores_fp32, weigh
from headcount.transformer.decode.bends import bend
from headcount.transformer.decode.feed import feed_bf16, feed_fp32, feed_int8
from headcount.transformer.decode.lanes import exp, load, store, store_bfloat16_part, total
from headcount.transformer.decode.normalise import normalise
from headcount.transformer.decode.panels import Arena, pack, packed_bytes
from headcount.transformer.decode.tiles import BF16, FP32, INT8, PAIRS, vector_bytes

FEEDS = {FP32: feed_fp32, BF16: feed_bf16, INT8: feed_int8}
TILES = {
    FP32: (tiles.fp32_1, tiles.fp32_2, tiles.fp32_4, tiles.fp32_8),
    BF16: (tiles.bf16_1, tiles.bf16_2, tiles.bf16_4, tiles.bf16_8),
    INT8: (tiles.int8_1, tiles.int8_2, tiles.int8_4, tiles.int8_8),
}


@numba.njit
def run_exp(x: int, y: int, count: int) -> None:
    for at_byte in range(0, 4 * count, 64):
        store(y + at_byte, exp(load(x + at_byte)))


@numba.njit
def run_bend(x: int, y: int, count: int, kind: int, bound: float) -> None:
    for at_byte in range(0, 4 * count, 64):
        store(y + at_byte, bend(load(x + at_byte), kind, bound))


@numba.njit
def run_round(x: int, y: int, count: int) -> None:
    store_bfloat16_part(y, load(x), count)


@numba.njit
def run_total(x: int) -> float:
    return total(load(x))


def applied(function: Any, x: NDArray[np.float32], *more: Any) -> NDArray[np.float32]:
    y = np.zeros_like(x)
    function(x.ctypes.data, y.ctypes.data, len(x), *more)
    return y


def test_exp() -> None:
    x = np.linspace(-87.2, 88.6, 16 * 20000).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    assert np.abs(applied(run_exp, x) / exact - 1).max() < 2e-7
    edges = np.array([-np.inf, -1e30, -90, 0, -0.0, 100, np.inf, np.nan] * 2, np.float32)
    found = applied(run_exp, edges)
    assert found[:5].tolist() == [0, 0, 0, 1, 1] and found[5] > 3e38 and np.isnan(found[7])


@pytest.mark.parametrize(
    ("kind", "wanted", "bound"),
    [
        (at.IDENTITY, lambda x: x, 0.0),
        (at.SILU, torch.nn.functional.silu, 0.0),
        (at.GELU, torch.nn.functional.gelu, 0.0),
        (at.GELU_TANH, lambda x: torch.nn.functional.gelu(x, approximate="tanh"), 0.0),
        (at.RELU, torch.relu, 0.0),
        (at.SIGMOID, torch.sigmoid, 0.0),
        (at.CLIP, lambda x: x.clamp(-0.7, 0.7), 0.7),
        (at.SOFT_CAP, lambda x: 5.0 * torch.tanh(x / 5.0), 5.0),
    ],
)
def test_bends(kind: int, wanted: Any, bound: float) -> None:
    x = np.concatenate([np.linspace(-12, 12, 16 * 4000), np.linspace(-200, 200, 1600)]).astype(np.float32)
    found = applied(run_bend, x, kind, bound)
    exact = wanted(torch.from_numpy(x).double()).numpy()
    assert np.abs(found - exact).max() <= 1e-6 * max(1.0, np.abs(exact).max() / 4)
    lost = applied(run_bend, np.full(16, np.nan, np.float32), kind, bound)
    assert np.isnan(lost).all()


@given(st.lists(st.floats(width=32), min_size=16, max_size=16), st.integers(0, 16))
@settings(max_examples=300)
def test_rounding_to_bfloat16(numbers: list[float], count: int) -> None:
    x = np.array(numbers, np.float32)
    y = np.full(16, 7, np.uint16)
    run_round(x.ctypes.data, y.ctypes.data, count)
    wanted = torch.from_numpy(x).bfloat16()
    found = torch.from_numpy(y.view(np.int16)).view(torch.bfloat16)
    assert torch.equal(found[:count].nan_to_num(0), wanted[:count].nan_to_num(0))
    assert torch.equal(found[:count].isnan(), wanted[:count].isnan())
    assert (y[count:] == 7).all()


def test_total() -> None:
    x = np.arange(16, dtype=np.float32)
    assert run_total(x.ctypes.data) == 120


@numba.njit
def run_normalise(x: int, y: int, width: int, kind: int, weight: int, bias: int, epsilon: float) -> None:
    normalise(x, width, x, y, width, (kind, weight, bias, epsilon))


@given(
    st.integers(1, 70),
    st.sampled_from([at.RMS_NORM, at.LAYER_NORM, at.NO_NORM]),
    st.booleans(),
    st.integers(0, 99),
)
@settings(max_examples=60)
def test_norms(width: int, kind: int, with_bias: bool, seed: int) -> None:
    torch.manual_seed(seed)
    x, weight, bias = torch.randn(width) + 1, torch.randn(width), torch.randn(width)
    y = torch.full((width + 16,), 7.0)
    run_normalise(
        x.data_ptr(), y.data_ptr(), width, kind, weight.data_ptr(), bias.data_ptr() if with_bias else 0, 1e-5
    )
    if kind == at.LAYER_NORM:
        wanted = torch.nn.functional.layer_norm(x, (width,), weight, bias if with_bias else None)
    elif kind == at.RMS_NORM:
        wanted = torch.nn.functional.rms_norm(x, (width,), weight, 1e-5) + (bias if with_bias else 0)
    else:
        wanted = x
    torch.testing.assert_close(y[:width], wanted, atol=2e-5, rtol=2e-5)
    assert (y[width:] == 7).all()


def _runner(form: int) -> Any:
    one, two, four, eight = TILES[form]
    feed, block_bytes, group = FEEDS[form], vector_bytes(form, 1), tiles.group_bytes(form, 1)

    @numba.njit
    def run(w: int, groups: int, blocks: int, x: int, count: int, packed: int, y: int) -> None:
        for number in range(count):
            for block in range(blocks):
                feed(x + 128 * (number * blocks + block), packed + block_bytes * (number * blocks + block))
        for each in range(groups):
            place, target = w + each * blocks * group, y + 128 * each * count
            if count == 1:
                one(place, blocks, packed, blocks * block_bytes, target)
            elif count == 2:
                two(place, blocks, packed, blocks * block_bytes, target)
            elif count == 4:
                four(place, blocks, packed, blocks * block_bytes, target)
            else:
                eight(place, blocks, packed, blocks * block_bytes, target)

    return run


RUNNERS = {form: _runner(form) for form in (FP32, BF16, INT8)}


def multiplied(form: int, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """x W^T by packing, feeding and the tiles."""
    outputs, inputs = weight.shape
    arena = Arena(packed_bytes(form, outputs, inputs))
    address, groups, blocks = pack(form, [weight], arena)
    padded = torch.zeros(len(x), blocks * 32)
    padded[:, :inputs] = x
    packed = np.zeros(len(x) * vector_bytes(form, blocks) + 64, np.uint8)
    y = np.zeros(groups * len(x) * 32 + 16, np.float32)
    skip = -y.ctypes.data % 64 // 4
    RUNNERS[form](
        address, groups, blocks, padded.data_ptr(), len(x), packed.ctypes.data, y.ctypes.data + 4 * skip
    )
    found = torch.from_numpy(y[skip : skip + groups * len(x) * 32].reshape(groups, len(x), 32).copy())
    return found.transpose(0, 1).reshape(len(x), -1)[:, :outputs]


@pytest.mark.parametrize("count", [1, 2, 4, 8])
@pytest.mark.parametrize("form", [FP32, BF16, INT8])
@given(outputs=st.integers(1, 90), inputs=st.integers(1, 150), seed=st.integers(0, 9))
@settings(max_examples=12)
def test_tiles(form: int, count: int, outputs: int, inputs: int, seed: int) -> None:
    torch.manual_seed(seed)
    weight, x = torch.randn(outputs, inputs), torch.randn(count, inputs)
    found = multiplied(form, weight, x)
    if form == FP32:
        wanted = x.double() @ weight.double().T
    elif form == BF16:
        rounded = x.bfloat16() if PAIRS else x
        wanted = rounded.double() @ weight.bfloat16().double().T
    else:
        wanted = quantised(x, half=False) @ quantised(weight, half=True).T
    torch.testing.assert_close(found.double(), wanted, atol=3e-5 * math.sqrt(inputs), rtol=1e-4)


def quantised(rows: torch.Tensor, *, half: bool) -> torch.Tensor:
    """Rows as whole numbers times a scale per 32, put back."""
    count, width = rows.shape
    padded = torch.nn.functional.pad(rows, (0, -width % 32)).view(count, -1, 32)
    scale = padded.abs().amax(-1, keepdim=True) / 127
    used = scale.half().float() if half else scale
    whole = torch.where(used == 0, 0.0, padded / used).round().clamp(-127, 127)
    return (whole.double() * used.double()).view(count, -1)[:, :width]


@pytest.mark.reference
def test_int8_weights_are_ggml_q8_0() -> None:
    """What the packed groups hold, put back, is what ggml's Q8_0 holds; and Q8_0 weights survive packing exactly."""
    from gguf import GGMLQuantizationType, quants

    torch.manual_seed(0)
    weight = torch.randn(64, 96)
    blocks = quants.quantize(weight.numpy(), GGMLQuantizationType.Q8_0)
    theirs = torch.from_numpy(quants.dequantize(blocks, GGMLQuantizationType.Q8_0))
    assert (
        unpacked(weight) - theirs
    ).abs().max() <= theirs.abs().max() / 127 * 1.001  # halves may round either way
    assert (unpacked(weight) != theirs).float().mean() < 0.01
    assert torch.equal(unpacked(theirs), theirs)


def unpacked(weight: torch.Tensor) -> torch.Tensor:
    """The numbers that the packed bytes stand for, read by the layout that ``tiles`` documents."""
    outputs, inputs = weight.shape
    arena = Arena(packed_bytes(INT8, outputs, inputs))
    pack(INT8, [weight], arena)
    raw = arena._bytes[-arena._bytes.data_ptr() % 64 :][: arena.nbytes].view(
        outputs // 32, inputs // 32, 1088
    )
    whole = (
        raw[..., :1024]
        .view(-1, inputs // 32, 8, 32, 4)
        .permute(0, 3, 1, 2, 4)
        .reshape(outputs, inputs // 32, 32)
    )
    scale = raw[..., 1024:].contiguous().view(torch.float16).view(-1, inputs // 32, 32).transpose(1, 2)
    return ((whole.float() - 128) * scale.reshape(outputs, -1, 1).float()).view(outputs, inputs)


def test_a_gated_pair_is_woven() -> None:
    torch.manual_seed(0)
    gate, up = torch.randn(40, 32), torch.randn(40, 32)
    arena = Arena(2 * packed_bytes(FP32, 64, 32))
    address, groups, blocks = pack(FP32, [gate, up], arena, gated=True)
    assert (groups, blocks) == (3, 1)
    raw = arena._bytes[-arena._bytes.data_ptr() % 64 :][: arena.nbytes].view(torch.float32).view(3, 32, 32)
    rows = raw.transpose(1, 2)
    assert torch.equal(rows[:, :16].reshape(48, 32)[:40], gate)
    assert torch.equal(rows[:, 16:].reshape(48, 32)[:40], up)
    assert address % 64 == 0 and not rows[2, 8:16].any()


@numba.njit
def run_scores(bf16: int, q: int, k: int, row_bytes: int, width: int, count: int, y: int) -> None:
    if bf16:
        store(y, scores_bf16(q, k, row_bytes, width, count))
    else:
        store(y, scores_fp32(q, k, row_bytes, width, count))


@numba.njit
def run_weigh(
    bf16: int, heads: int, sums: int, p: int, v: int, row_bytes: int, width: int, count: int, factors: int
) -> None:
    weigh(bf16, heads, sums, 256, p, 512, v, row_bytes, width, count, factors)


@given(st.booleans(), st.integers(1, 40), st.integers(1, 16), st.integers(0, 99))
@settings(max_examples=80)
def test_scores(bf16: bool, half_width: int, count: int, seed: int) -> None:
    """Exactly ``count`` rows of exactly ``width`` numbers are read: behind them lies NaN."""
    torch.manual_seed(seed)
    width = 2 * half_width if bf16 else 2 * half_width - 1
    dtype = torch.bfloat16 if bf16 else torch.float32
    memory = torch.full((count * width + 64,), math.nan, dtype=dtype)
    k = memory[: count * width].view(count, width).copy_(torch.randn(count, width))
    q = torch.randn(width)
    ready = torch.zeros(128)
    ready[:width] = q
    if bf16:
        ready = ready.view(-1, 16, 2).transpose(1, 2).contiguous().flatten()
    y = torch.zeros(16)
    run_scores(int(bf16), ready.data_ptr(), k.data_ptr(), width * dtype.itemsize, width, count, y.data_ptr())
    torch.testing.assert_close(y[:count].double(), k.double() @ q.double(), atol=1e-5, rtol=1e-5)


@given(st.booleans(), st.integers(1, 4), st.integers(1, 32), st.integers(1, 100), st.integers(0, 99))
@settings(max_examples=80)
def test_weighted_rows(bf16: bool, heads: int, half_width: int, count: int, seed: int) -> None:
    torch.manual_seed(seed)
    width = 2 * half_width if bf16 else 2 * half_width - 1
    dtype = torch.bfloat16 if bf16 else torch.float32
    memory = torch.full((count * width + 64,), math.nan, dtype=dtype)
    v = memory[: count * width].view(count, width).copy_(torch.randn(count, width))
    p, before, factors = torch.rand(heads, 128), torch.randn(heads, 64), torch.rand(heads)
    sums = before.clone()
    run_weigh(
        int(bf16), heads, sums.data_ptr(), p.data_ptr(), v.data_ptr(), width * dtype.itemsize, width, count,
        factors.data_ptr(),
    )  # fmt: skip
    columns = torch.zeros(count, 64)
    columns[:, :width] = v.float()
    if bf16:
        columns = columns.view(count, 2, 16, 2).transpose(2, 3).reshape(count, 64)
    wanted = before.double() * factors.double()[:, None] + p[:, :count].double() @ columns.double()
    torch.testing.assert_close(sums.double(), wanted, atol=1e-4, rtol=1e-5)
