"""The compiled attention of prompts against the naive kernel in float64, and beside PyTorch's fused one."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stepwise import disturb, made, random_ids
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from headcount.errors import OperandError
from headcount.transformer.attention.attend import attend
from headcount.transformer.attention.masks import (
    Causal,
    Chunked,
    Everything,
    Mask,
    Packed,
    Prefix,
    SlidingWindow,
)
from headcount.transformer.attention.rule import Rule
from headcount.transformer.decode.hands import together
from headcount.transformer.decode.lanes import load, store
from headcount.transformer.decode.prompt_rows import exp_below
from headcount.transformer.generation.setup import compile_prompts
from headcount.transformer.kv_cache.call import Call
from headcount.transformer.kv_cache.conversation import Conversation
from headcount.transformer.ops import recording

pytestmark = pytest.mark.transformer
MASKS: list[Mask] = [
    Everything(),
    Causal(),
    SlidingWindow(window=1),
    SlidingWindow(window=37),
    SlidingWindow(window=300),
    Chunked(chunk=5),
    Chunked(chunk=64),
]


def operands(
    sizes: tuple[int, ...], *, dtype: torch.dtype = torch.float32, seed: int = 0, spread: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v as a network hands them over: views of rows with all heads, and of caches with room to spare."""
    draw = torch.Generator().manual_seed(seed)
    B, N, K, T, S, H, W = sizes
    q = torch.randn(B, T, N, H, generator=draw).mul(spread).transpose(1, 2)
    k = torch.randn(B, K, S + 9, H, generator=draw)[:, :, :S]
    v = torch.randn(B, K, S + 9, W, generator=draw)[:, :, :S]
    return q.to(dtype), k.to(dtype), v.to(dtype)


def judged(given_: tuple[Tensor, Tensor, Tensor], sinks: Tensor | None, rule: Rule) -> Tensor:
    told = None if sinks is None else sinks.double()
    q, k, v = (x.double() for x in given_)
    return attend(q, k, v, rule=rule, sinks_N=told, kernel="naive")


def rms(x: Tensor) -> float:
    return float(x.double().pow(2).mean().sqrt())


@numba.njit
def run_exp(x: int, y: int, count: int) -> None:
    for at_byte in range(0, 4 * count, 64):
        store(y + at_byte, exp_below(load(x + at_byte)))


def test_exp_of_what_lies_below_the_maximum() -> None:
    x = np.concatenate(
        [np.linspace(-87.2, 0, 16 * 20000), [-np.inf, -1e30, -120, -104.5, -0.0, 0, np.nan, -5] * 2]
    )
    x, y = x.astype(np.float32), np.ones(len(x), np.float32)
    run_exp(x.ctypes.data, y.ctypes.data, len(x))
    exact = np.exp(x[:-16].astype(np.float64))
    assert np.abs(y[:-16] / exact - 1).max() < 3e-7
    assert y[-16:-10].tolist() == [0, 0, 0, 0, 1, 1] and np.isnan(y[-10])


@settings(max_examples=60, deadline=None)
@given(
    heads=st.sampled_from([(1, 1), (3, 1), (4, 2), (5, 5)]),
    batch=st.integers(1, 2),
    queries=st.integers(1, 150),
    before=st.integers(0, 400),
    widths=st.sampled_from([(16, 16), (64, 64), (48, 80), (32, 16), (112, 32)]),
    mask=st.sampled_from(MASKS),
    cap=st.sampled_from([None, None, 3.0]),
    sinks=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_float32_agrees_with_the_naive_kernel(
    heads: tuple[int, int], batch: int, queries: int, before: int, widths: tuple[int, int], mask: Mask,
    cap: float | None, sinks: bool, seed: int,
) -> None:  # fmt: skip
    given_ = operands((batch, *heads, queries, queries + before, *widths), seed=seed)
    told = torch.linspace(-2, 3, heads[0]) if sinks else None
    rule = Rule(mask=mask, query_start=before, soft_cap=cap)
    found = attend(*given_, rule=rule, sinks_N=told, kernel="compiled")
    assert found.dtype == torch.float32
    assert (found - judged(given_, told, rule)).abs().max() < 1e-5
    naive = attend(*given_, rule=rule, sinks_N=told, kernel="naive")
    assert (found - naive).abs().max() < 1e-5


@pytest.mark.parametrize("queries", [1, 2, 8, 9, 64, 65, 300, 512])
@pytest.mark.parametrize("before", [0, 1, 255, 700])
def test_float32_at_the_borders_of_blocks(queries: int, before: int) -> None:
    given_ = operands((1, 6, 2, queries, queries + before, 64, 64), seed=queries)
    rule = Rule(mask=Causal(), query_start=before, scale=0.3)
    found = attend(*given_, rule=rule, kernel="compiled")
    assert (found - judged(given_, None, rule)).abs().max() < 1e-5


@pytest.mark.parametrize("spread", [1.0, 4.0])
@pytest.mark.parametrize(("queries", "before"), [(64, 0), (301, 0), (512, 0), (77, 1030)])
@pytest.mark.parametrize("mask", [Causal(), SlidingWindow(window=100)], ids=["causal", "window"])
def test_bfloat16_errs_no_more_than_the_fused_kernel(
    queries: int, before: int, spread: float, mask: Mask
) -> None:
    given_ = operands(
        (1, 9, 3, queries, queries + before, 64, 64), dtype=torch.bfloat16, seed=queries, spread=spread
    )
    rule = Rule(mask=mask, query_start=before)
    judge = judged(given_, None, rule)
    found = attend(*given_, rule=rule, kernel="compiled")
    allowed = rule.allowed(queries, queries + before, torch.device("cpu"))[:, None]
    fused = scaled_dot_product_attention(*given_, attn_mask=allowed, enable_gqa=True)
    assert found.dtype == torch.bfloat16
    # Both round the weights and the results to bfloat16. Their blocks of keys begin at different places, which moves the
    # error by up to 1.5 % either way.
    assert rms(found - judge) <= 1.02 * rms(fused - judge)


@pytest.mark.parametrize("cap", [None, 5.0])
def test_bfloat16_with_sinks(cap: float | None) -> None:
    given_ = operands((2, 8, 2, 130, 200, 64, 48), dtype=torch.bfloat16)
    sinks = torch.linspace(-1, 4, 8).bfloat16()
    rule = Rule(mask=SlidingWindow(window=90), query_start=70, soft_cap=cap)
    judge = judged(given_, sinks, rule)
    found = attend(*given_, rule=rule, sinks_N=sinks, kernel="compiled")
    assert (found - judge).abs().max() <= 2**-7 * judge.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_threads_give_the_same_bits(dtype: torch.dtype) -> None:
    given_ = operands((1, 6, 2, 512, 700, 64, 64), dtype=dtype)
    rule = Rule(mask=Causal(), query_start=188)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 1):
            torch.set_num_threads(threads)
            found.append(attend(*given_, rule=rule, kernel="compiled"))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, found[0]) for one in found)


def test_extremes() -> None:
    q, k, v = operands((1, 2, 1, 20, 20, 32, 32))
    rule = Rule(mask=Causal())
    # Scores far beyond what e^x holds.
    found = attend(100 * q, 100 * k, v, rule=rule, kernel="compiled")
    assert (found - judged((100 * q, 100 * k, v), None, rule)).abs().max() < 1e-4
    spoilt = v.clone()
    spoilt[0, 0, 7, 3] = torch.nan
    seen = attend(q, k, spoilt, rule=rule, kernel="compiled").isnan()
    assert bool(seen[0, :, 7:, 3].all()) and not bool(seen[0, :, :, :3].any())
    assert attend(q[:, :, :0], k, v, rule=rule, kernel="compiled").shape == (1, 2, 0, 32)
    assert attend(q, k[:, :, :0], v[:, :, :0], kernel="compiled").abs().max() == 0
    # A query without a key: its window ended before it.
    lonely = attend(q, k, v, rule=Rule(mask=SlidingWindow(window=4), query_start=30), kernel="compiled")
    assert lonely.abs().max() == 0


def test_columns_that_do_not_lie_side_by_side() -> None:
    q, k, v = (x.transpose(2, 3).contiguous().transpose(2, 3) for x in operands((1, 2, 2, 40, 40, 32, 32)))
    assert q.stride(3) != 1
    found = attend(q, k, v, rule=Rule(mask=Causal()), kernel="compiled")
    assert (found - judged((q, k, v), None, Rule(mask=Causal()))).abs().max() < 1e-5


def refused(*given_: Any, match: str, **more: Any) -> None:
    with pytest.raises(OperandError, match=match) as caught:
        attend(*given_, kernel="compiled", **more)
    assert "\n" not in str(caught.value)


def test_refusals_by_name() -> None:
    q, k, v = operands((1, 2, 2, 9, 9, 32, 32))
    refused(q, k, v, match="bias", bias_BNTS=torch.zeros(1, 2, 9, 9))
    refused(q.requires_grad_(), k, v, match="gradients")
    q = q.detach()
    refused(q.double(), k.double(), v.double(), match="float64")
    refused(q.to("meta"), k.to("meta"), v.to("meta"), match="CPU")
    refused(q[..., :24], k[..., :24], v, match="multiples of 16; given H=24, W=32")
    refused(q, k, v[..., :8], match="W=8")
    refused(q, k, v, match="Prefix", rule=Rule(mask=Prefix(length=3)))
    refused(q, k, v, match="Both", rule=Rule(mask=Causal() & Packed.of_lengths([4, 5])))
    with recording.record():
        refused(q, k, v, match="recorded")
    with torch.no_grad():
        assert attend(q.requires_grad_(), k, v, kernel="compiled").shape == (1, 2, 9, 32)


def test_attention_does_not_import_the_compiler() -> None:
    code = "import sys, headcount.transformer.attention.attend; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_goes_wrong_in_a_thread_reaches_the_caller() -> None:
    def fail(thread: int) -> None:
        if thread == 1:
            raise ValueError("one of two")

    with pytest.raises(ValueError, match="one of two"):
        together(fail, 2)
    ran: list[int] = []
    together(ran.append, 3)
    assert sorted(ran) == [0, 1, 2]


def kernels(network: Any) -> set[str]:
    return {module.kernel for module in network.modules() if hasattr(module, "kernel")}


@torch.no_grad()
def test_a_network_that_can_runs_its_prompts_compiled() -> None:
    network, spec = made(num_attention_heads=3, num_key_value_heads=1)
    disturb(network)
    ids = random_ids(1, 90)
    wanted = network(ids)
    compile_prompts(network)
    assert kernels(network) == {"compiled"}
    conversation = Conversation(spec, format="fp32", dtype=torch.float32)
    found = [network(part, call=Call([(conversation, part.shape[1])])) for part in ids.split([50, 37, 3], 1)]
    assert (torch.cat(found, 1) - wanted).abs().max() < 1e-4


def test_a_network_that_cannot_stays_as_it_is() -> None:
    narrow, _ = made()
    before = kernels(narrow)
    compile_prompts(narrow)
    assert kernels(narrow) == before == {"fused"}
    network, _ = made(num_attention_heads=3, num_key_value_heads=1)
    last = [module for module in network.modules() if hasattr(module, "told")][-1]
    last.told = object()
    compile_prompts(network)
    assert kernels(network) == {"fused"}
