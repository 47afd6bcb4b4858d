"""What each topic states, against closed forms, PyTorch's own functions and published counts."""

from __future__ import annotations

import json
import math
from statistics import median
from typing import Any

import pytest
import torch
from torch.nn import functional

from headcount.cost.crossovers import model_crossovers
from headcount.explain.asked import Asked
from headcount.explain.assembled import make_block
from headcount.explain.derivation import Derivation, Table
from headcount.explain.topics import TOPICS, derive
from headcount.explain.topics.block import depth_gradients, linear_macs
from headcount.explain.topics.flops import coefficients, representative, textbook_macs
from headcount.explain.topics.jacobian import jacobian_of
from headcount.explain.topics.kv_cache import counts
from headcount.explain.topics.scaling import chance_band
from headcount.explain.topics.softmax import largest_argument
from headcount.explain.topics.tiled import running_sums
from headcount.spec.reader import read_model


def rows(found: Derivation, title: str) -> dict[Any, tuple[Any, ...]]:
    """The rows of the first table whose title begins so, by their first cell."""
    table: Table = next(
        table for step in found.steps for table in step.tables if table.title.startswith(title)
    )
    return {row[0]: tuple(row[1:]) for row in table.rows}


def test_softmax_of_1000_and_1002() -> None:
    found = derive("softmax", Asked())
    naive = rows(found, "scores [1000, 1002]")
    assert all(math.isnan(row[2]) and math.isnan(row[3]) for row in naive.values())
    assert found.find("a").values == pytest.approx((0.11920292202211755, 0.8807970779778823), abs=1e-15)
    assert found.find("s - m").values == (-2.0, 0.0)
    assert found.find("l").values == pytest.approx(1.1353352832366128, abs=1e-15)


@pytest.mark.parametrize(
    ("dtype", "threshold"),
    [
        # ln of the largest number of each type (IEEE 754, bfloat16).
        (torch.float16, 11.089866488461016),
        (torch.bfloat16, 88.71892521235186),
        (torch.float32, 88.72283905206835),
        (torch.float64, 709.782712893384),
    ],
)
def test_overflow_thresholds(dtype: torch.dtype, threshold: float) -> None:
    printed = rows(derive("softmax", Asked()), "from torch.finfo")[str(dtype).removeprefix("torch.")]
    assert float(printed[1]) == pytest.approx(threshold, abs=5e-9)
    last = largest_argument(dtype)
    assert last <= threshold
    following = torch.nextafter(torch.tensor(last, dtype=dtype), torch.tensor(torch.inf, dtype=dtype))
    assert torch.exp(following).isinf()


def test_jacobian() -> None:
    found = derive("jacobian", Asked())
    p = 0.6697615493266569
    assert found.find("J").values[0] == pytest.approx((p * (1 - p), -p * (1 - p)), abs=1e-14)
    assert found.find("eigenvalues").values == pytest.approx((0.0, 2 * p * (1 - p)), abs=1e-14)
    assert found.find("rank").values == 1
    assert found.find("||J J - J||").values > 0.1
    scores = torch.randn(9, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    _, ours = jacobian_of(scores)
    stock = torch.autograd.functional.jacobian(lambda s: torch.softmax(s, -1), scores)
    torch.testing.assert_close(ours, stock, rtol=0, atol=1e-15)
    values = torch.linalg.eigvalsh(ours)
    assert float(values[0].abs()) < 1e-15 and float(values[1]) > 1e-6 and float(values[-1]) <= 0.5


def test_scaling() -> None:
    found = derive("scaling", Asked())
    for width, row in rows(found, "Var(s) / d_k by distribution").items():
        # Standard error of a sample variance of 10,000: 0.014; five of them.
        assert row[:3] == pytest.approx((1, 1, 1), abs=0.08), width
    worked = rows(found, "scaled scores and weights")
    assert worked["no scale"][2:] == pytest.approx((1 / (1 + math.e), math.e / (1 + math.e)), abs=1e-14)
    assert worked["1/d_k"][2:] == pytest.approx((0.3775406687981454, 0.6224593312018546), abs=1e-14)
    soft = rows(found, "how soft")
    assert soft["no scale"][0] > soft["1/sqrt(d_k)"][0] > soft["1/d_k"][0]


@pytest.mark.parametrize(("width", "wanted"), [(2, 0.0438), (1024, 0.0278)])
def test_chance_at_each_width(width: int, wanted: float) -> None:
    """1.96 sqrt((k - 1) / 10,000); a product of two normals has kurtosis 9, so k = 3 + 6 / d_k; and measured."""
    assert chance_band(width, 3.0) == pytest.approx(wanted, abs=1e-4)
    if width == 2:
        stream = torch.Generator().manual_seed(1)
        s = (torch.randn(500, 2500, 2, generator=stream) * torch.randn(500, 2500, 2, generator=stream)).sum(
            -1
        )
        # A quarter of the pairs: twice the deviation.
        assert 1.96 * float((s.var(1) / 2).std()) / 2 == pytest.approx(wanted, rel=0.12)
    printed = rows(derive("scaling", Asked()), "Var(s) / d_k by distribution")
    assert printed[width][-1].startswith(f"{wanted:.3f}")


def test_scaling_dead_rows_are_those_of_the_unscaled_scores() -> None:
    table = next(
        t for s in derive("scaling", Asked()).steps for t in s.tables if t.title.startswith("size of ds")
    )
    share = {(row[0], row[1]): float(str(row[4]).removesuffix(" %")) for row in table.rows}
    # 64 keys: 34 % of the rows are dead at d_k = 1024, none when scaled (seeded measurement with NumPy: 34 %).
    assert share[1024, "raw"] == pytest.approx(34, abs=4)
    assert all(value == 0 for (_, kind), value in share.items() if kind == "scaled")


def test_positions() -> None:
    found = derive("positions", Asked())
    errors = rows(found, "largest entry of attention(P x)")
    assert errors["no positions"][0] < 1e-14
    assert min(errors[kind][0] for kind in ("causal mask", "sinusoids added", "rotary")) > 1e-2
    # PE(1) of width 4: sin 1, cos 1, sin 0.01, cos 0.01.
    assert found.find("PE").values[1] == pytest.approx(
        (0.8414709848078965, 0.5403023058681398, 0.009999833334166664, 0.9999500004166653), abs=1e-15
    )
    assert found.find("moved by 100").values < 1e-13
    assert found.find("spread along a diagonal").values < 1e-14
    scores = found.find("s_ij").values
    assert scores[0][1] == pytest.approx(scores[3][4], abs=1e-14)


def test_tiles_against_the_whole_row() -> None:
    stream = torch.Generator().manual_seed(5)
    scores = torch.randn(17, dtype=torch.float64, generator=stream) * 40
    v = torch.randn(17, 3, dtype=torch.float64, generator=stream)
    for tile in (1, 4, 17):
        m, total, out = running_sums(scores, v, tile)[-1]
        torch.testing.assert_close(out / total, torch.softmax(scores, -1) @ v, rtol=0, atol=1e-13)
        assert m + math.log(total) == pytest.approx(float(torch.logsumexp(scores, -1)), abs=1e-12)
    differences = rows(derive("tiled", Asked()), "largest difference")
    assert max(row[0] for row in differences.values()) < 1e-13


def test_norms_and_cross_entropy_against_pytorch() -> None:
    for topic in ("norms", "cross-entropy"):
        for row in rows(derive(topic, Asked()), "largest difference").values():
            assert max(value for value in row if value is not None) < 1e-14
    x = torch.tensor([1.0, 2.0, 4.0, 9.0], dtype=torch.float64, requires_grad=True)
    w = torch.tensor([1.0, 0.5, 2.0, 1.0], dtype=torch.float64)
    y = functional.layer_norm(x, (4,), w)
    (d_x,) = torch.autograd.grad(y, x, torch.tensor([1.0, 0.0, -1.0, 2.0], dtype=torch.float64))
    found = derive("norms", Asked())
    assert found.find("y").values == pytest.approx(tuple(y.tolist()), abs=1e-14)
    assert found.find("dx").values == pytest.approx(tuple(d_x.tolist()), abs=1e-14)
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]], dtype=torch.float64)
    loss = functional.cross_entropy(logits, torch.tensor([1]))
    assert derive("cross-entropy", Asked()).find("L").values == pytest.approx(float(loss), abs=1e-15)


def test_flops_of_the_chapter() -> None:
    """Multiply-adds at D = 4096: 2 n^2 D, 4 n D^2, 8 n D^2."""
    for n, wanted in {
        2048: (34_359_738_368, 137_438_953_472, 274_877_906_944),
        4096: (137_438_953_472, 274_877_906_944, 549_755_813_888),
        16384: (2_199_023_255_552, 1_099_511_627_776, 2_199_023_255_552),
    }.items():
        assert tuple(textbook_macs(4096, n).values()) == wanted


@pytest.mark.parametrize(
    ("model", "wanted"),
    [
        # 4 D, 2 D, 6 D, 8 D, 4 D need F = 4 D; these have their own F: published configurations, by hand.
        ("llama-2-7b", (16_512, 8_320, 24_704, 33_024, 16_640)),
        ("mistral-7b", (21_504, 16_384, 26_624, 43_008, 32_768)),
        ("llama-2-70b", (43_008, 33_792, 52_224, 86_016, 67_584)),
    ],
)
def test_crossovers(model: str, wanted: tuple[int, ...]) -> None:
    found = derive("flops", Asked(model=model))
    table = next(t for s in found.steps for t in s.tables if t.header[0] == "crossover")
    assert tuple(row[1] for row in table.rows) == wanted
    assert tuple(row[2] for row in table.rows)[:1] == (4 * read_model(model).hidden_size,)


def test_coefficients_are_those_of_the_planner() -> None:
    for name in ("mistral-7b", "deepseek-v3", "mixtral-8x7b"):
        model = read_model(name)
        layer = representative(model)
        assert layer is not None
        q, a, f = coefficients(layer)
        found = model_crossovers(model)
        assert found is not None
        assert found["quad_eq_ffn"] == f // q and found["quad_eq_all_linear"] == (f + a) // q


def test_cache_counts() -> None:
    assert counts(2048) == {
        "K and V projections": (2048, 2_098_176),
        "scores": (2_098_176, 2_865_409_024),
    }
    found = derive("kv-cache", Asked(model="llama-2-7b"))
    assert found.find("b").values == 524_288 and found.find("c").values == 2**30
    assert found.find("largest difference").values < 1e-13
    heads = {row[0]: row for s in found.steps for t in s.tables if t.header[0] == "K" for row in t.rows}
    assert heads[32][2] == 524_288 and heads[1][2] == 16_384
    mistral = derive("kv-cache", Asked(model="mistral-7b"))
    changes = {
        row[0]: row[3] for s in mistral.steps for t in s.tables if t.header[0] == "K" for row in t.rows
    }
    # W_K and W_V of 32 layers: 2 x 32 x 4096 x 128 per head; 24 heads more, 7 fewer.
    assert changes == {32: 805_306_368, 8: 0, 1: -234_881_024}


def test_block_counts_and_depth() -> None:
    block = make_block("encoder", seed=0, width=16, heads=4, feed_forward=64)
    n, d = 10, 16
    macs = linear_macs(block, torch.zeros(1, n, d, dtype=torch.float64))
    assert macs == {"attention": 4 * n * d * d, "feed_forward": 8 * n * d * d}
    assert sum(p.numel() for p in block.parameters()) == 12 * d * d + 13 * d
    found = derive("block", Asked())
    assert all(
        quantity.values < 1e-14 for quantity in found.quantities() if quantity.name == "block - equation"
    )


def test_gradients_with_depth_follow_the_literature() -> None:
    """Xiong et al. 2020: near the output independent of the depth L in post-norm, falling like 1 / sqrt(L) in pre-norm."""

    def last(kind: str, depth: int) -> float:
        return median(depth_gradients(kind, depth, seed)[1] for seed in range(7))

    assert 0.5 < last("encoder", 24) / last("encoder", 2) < 2
    assert last("pre-norm", 24) / last("pre-norm", 2) == pytest.approx(math.sqrt(2 / 24), rel=0.4)


def test_latent_attention_of_deepseek_v3() -> None:
    """r = 512, R = 64, 61 layers, 128 heads of 128 + 64 and 128 (published configuration)."""
    found = derive("latent", Asked())
    assert found.find("b, all layers").values == (512 + 64) * 2 * 61
    assert found.find("difference").values < 1e-12
    table = rows(found, "")
    assert table["latent, as published"][0] == 1152
    assert table["the same 128 heads kept in full"][0] == 128 * (192 + 128) * 2


@pytest.mark.parametrize("name", list(TOPICS))
def test_every_topic_is_a_document(name: str) -> None:
    found = derive(name, Asked())
    assert found.steps and found.title and found.summary
    document = json.loads(json.dumps(found.as_document(), allow_nan=False))
    assert document["topic"] == name
    assert all(step["title"] for step in document["steps"])


@pytest.mark.parametrize("name", [topic.name for topic in TOPICS.values() if "seed" in topic.options])
def test_seeds_repeat(name: str) -> None:
    assert derive(name, Asked(seed=3)).as_document() == derive(name, Asked(seed=3)).as_document()
