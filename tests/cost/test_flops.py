"""Multiply-adds against the textbook block worked by hand and against PyTorch's own counter on running models.

Full-square attention counts n^2 pairs of query and key; headcount counts the n (n + 1) / 2 that causality leaves.
"""

from __future__ import annotations

from typing import Any

import pytest

from headcount.cost.flops import decode_step, encoder_macs, materialised_score_bytes, prefill, score_pairs
from headcount.cost.parameters import active_parameters, parameters_by_part
from headcount.spec.attention import ChunkedAttention, CompressedLatent, FullAttention, SlidingWindow
from headcount.spec.huggingface.config import spec_from_config
from headcount.spec.model import ModelSpec
from headcount.spec.reader import read_model

SHAPE = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "v_head_dim": 8}


def textbook_block(hidden: int) -> ModelSpec:
    """One layer of multi-head attention and a plain feed-forward of four widths."""
    config = {
        "model_type": "gpt_neox",
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_hidden_layers": 1,
        "num_attention_heads": 32,
        "vocab_size": 10,
    }
    return spec_from_config(config, name="block", source="test")


@pytest.mark.parametrize(
    ("n", "square", "feed_forward"),
    [
        (2048, 34_359_738_368, 274_877_906_944),
        (4096, 137_438_953_472, 549_755_813_888),
        (16384, 2_199_023_255_552, 2_199_023_255_552),
    ],
)
def test_the_textbook_block(n: int, square: int, feed_forward: int) -> None:
    # Width 4096: 2 D n^2 for scores and values over the full square, 8 D^2 n for the feed-forward, 4 D^2 n projected.
    parts = prefill(textbook_block(4096), n).parts
    assert parts["feed_forward"] == feed_forward
    assert parts["projections"] == feed_forward // 2
    # n (n + 1) / 2 of n^2 pairs: (n + 1) / 2n of the square.
    assert 2 * n * parts["scores_values"] == (n + 1) * square


def test_one_decode_step_is_a_row_of_the_square() -> None:
    parts = decode_step(textbook_block(4096), 4096).parts
    assert parts["scores_values"] == 2 * 4096 * 4096
    assert parts["feed_forward"] == 8 * 4096**2
    assert parts["lm_head"] == 10 * 4096


@pytest.mark.parametrize("n", [1, 5, 8, 9, 30])
def test_pairs_by_brute_force(n: int) -> None:
    positions = range(1, n + 1)
    assert score_pairs(FullAttention(**SHAPE), n) == sum(positions)
    assert score_pairs(SlidingWindow(window=8, **SHAPE), n) == sum(min(i, 8) for i in positions)
    assert score_pairs(ChunkedAttention(chunk=8, **SHAPE), n) == sum((i - 1) % 8 + 1 for i in positions)
    compressed = CompressedLatent(num_attention_heads=4, head_dim=8, window=6, rate=4)
    assert score_pairs(compressed, n) == sum(min(i, 6) + i // 4 for i in positions)


def test_prefill_is_the_sum_of_its_decode_steps() -> None:
    # Token by token or at once, the scores and the linear weights are the same work; logits differ.
    for name in ("llama-2-7b", "gemma-2-2b", "mixtral-8x7b", "jamba-v0.1"):
        model = read_model(name)
        whole, steps = prefill(model, 9).parts, [decode_step(model, i).parts for i in range(1, 10)]
        for part in whole.keys() - {"lm_head"}:
            assert whole[part] == sum(step[part] for step in steps), (name, part)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("mixtral-8x7b", 12.9),  # arXiv 2401.04088: 13B active of 47B
        ("deepseek-v3", 37.6),  # arXiv 2412.19437: 37B activated of 671B; with the embedding and head
        ("qwen3-30b-a3b", 3.3),  # model card: 3.3B activated
        ("gpt-oss-120b", 5.7),  # model card: 5.1B active, embedding not counted (0.58B)
    ],
)
def test_published_active_parameters(name: str, billions: float) -> None:
    assert active_parameters(read_model(name)) / 1e9 == pytest.approx(billions, abs=0.06)


def test_parameters_by_part() -> None:
    # Llama-2-7B: 32 x 4 x 4096^2, 32 x 3 x 4096 x 11008, two tables of 32,000 x 4096, 65 norms.
    assert parameters_by_part(read_model("llama-2-7b")) == {
        "feed_forward": 4_328_521_728,
        "attention": 2_147_483_648,
        "embedding": 131_072_000,
        "lm_head": 131_072_000,
        "norm": 266_240,
    }


def test_six_n_d() -> None:
    # A forward pass costs about 2 FLOPs a parameter and token (arXiv 2001.08361, section 2.1): here, without logits,
    # exactly 2 a linear weight, attention apart.
    parts = prefill(read_model("llama-2-7b"), 1000).parts
    assert parts["projections"] + parts["feed_forward"] == 1000 * 6_476_005_376


def test_latent_attention_is_expanded_in_prefill_and_absorbed_in_decode() -> None:
    # DeepSeek-V3, 61 layers of 128 heads: 192 + 128 a pair expanded, 576 + 512 absorbed (arXiv 2405.04434).
    model = read_model("deepseek-v3")
    assert prefill(model, 1).parts["scores_values"] == 61 * 128 * (192 + 128)
    assert decode_step(model, 1000).parts["scores_values"] == 1000 * 61 * 128 * (576 + 512)


def test_a_state_is_updated_and_read_and_every_tap_multiplied() -> None:
    # Mamba-130M: 24 layers, 1,536 channels of 4 taps, a state of 1,536 x 16. The cache keeps 3 columns, 4 are multiplied.
    state = 24 * (2 * 1536 * 16 + 1536 * 4)
    model = read_model("mamba-130m")
    assert decode_step(model, 1000).parts["state"] == state
    assert prefill(model, 7).parts["state"] == 7 * state


def linear_model(config: dict[str, Any]) -> ModelSpec:
    return spec_from_config({"vocab_size": 1000, **config}, name="state", source="test")


def test_the_delta_rule_reads_its_state_twice() -> None:
    # S <- a S;  S <- S + k (b (v - S'k))';  o = S'q (arXiv 2412.06464, equation 10): three passes over 32 states of
    # 128 x 128, and four taps on the 2 x 16 x 128 + 32 x 128 channels of keys, queries and values.
    model = linear_model(
        {
            "model_type": "qwen3_next",
            "hidden_size": 2048,
            "num_hidden_layers": 4,
            "layer_types": ["linear_attention"] * 3 + ["full_attention"],
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "intermediate_size": 5120,
            "linear_num_key_heads": 16,
            "linear_key_head_dim": 128,
            "linear_num_value_heads": 32,
            "linear_value_head_dim": 128,
            "linear_conv_kernel_dim": 4,
            "num_experts": 0,
        }
    )
    assert decode_step(model, 1000).parts["state"] == 3 * (3 * 32 * 128 * 128 + 4 * 8192)


def test_a_gated_recurrence_is_its_own_output() -> None:
    # h <- a h + b x (arXiv 2402.19427, section 2.4): one pass over 2,560 numbers, and four taps on each.
    model = linear_model(
        {
            "model_type": "recurrent_gemma",
            "hidden_size": 2560,
            "intermediate_size": 15360,
            "num_hidden_layers": 3,
            "block_types": ["recurrent", "recurrent", "attention"],
            "num_attention_heads": 10,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "attention_window_size": 2048,
            "lru_width": 2560,
            "conv1d_width": 4,
        }
    )
    assert decode_step(model, 1000).parts["state"] == 2 * (2560 + 4 * 2560)


def test_an_encoder_runs_once() -> None:
    # Whisper tiny: 4 + 4 layers of width 384 and 1536, 6 heads of 64; 1,500 positions, keys and values of the source.
    # Its two convolutions are not linear layers and not counted.
    model = read_model("whisper-tiny")
    block = 4 * 384**2 + 2 * 384 * 1536
    expected = 4 * (1500 * block + 2 * 384 * 1500**2) + 4 * 2 * 384**2 * 1500
    assert encoder_macs(model) == prefill(model, 4).parts["encoder"] == expected
    assert encoder_macs(read_model("llama-2-7b")) == 0


def test_a_stored_score_matrix() -> None:
    # 32 heads x 4096^2 x 2 B: 1 GiB a layer.
    assert materialised_score_bytes(read_model("llama-2-7b"), 4096) == 2**30


# PyTorch's counter on eager models -----------------------------------------------------------------

COMMON: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "intermediate_size": 160,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
RUNNING: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"head_dim": None},
    "qwen3": {},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "gemma2": {"sliding_window": 8},
    "gemma3_text": {"sliding_window": 8},
}


def _running(model_type: str) -> tuple[Any, ModelSpec]:
    """A random eager model of the reference class, and what headcount makes of its config."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    keys = {key: value for key, value in {**COMMON, **RUNNING[model_type]}.items() if value is not None}
    config = CONFIG_MAPPING[model_type](**keys)
    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    if model_type == "mixtral":
        network.set_experts_implementation("eager")
    spec = spec_from_config({**config.to_dict(), "model_type": model_type}, name=model_type, source="test")
    return network, spec


def _counted(network: Any, ids: Any, cache: Any = None) -> tuple[int, int]:
    """FLOPs of the linear layers and of the batched products, without the rotary table's outer product."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(ids, cache=cache, use_cache=cache is not None, logits_to_keep=1)
    counts = counter.get_flop_counts()
    rotary = sum(
        sum(ops.values()) for name, ops in counts.items() if name.rsplit(".", 1)[-1].startswith("rotary_emb")
    )
    linear = {"aten.mm", "aten.addmm"}
    whole = counts["Global"]
    by_kind = {str(op): count for op, count in whole.items()}
    assert by_kind.keys() <= linear | {"aten.bmm"}
    products = sum(count for op, count in by_kind.items() if op in linear)
    return products, by_kind.get("aten.bmm", 0) - rotary


def _linear(spec: ModelSpec, n: int, sequences: int) -> int:
    parts = prefill(spec, n).parts
    return 2 * sequences * sum(macs for part, macs in parts.items() if part != "scores_values")


@pytest.mark.reference
@pytest.mark.parametrize("model_type", sorted(RUNNING))
def test_prefill_against_the_counter(model_type: str) -> None:
    import torch

    network, spec = _running(model_type)
    sequences, n = 2, 20
    linear, attention = _counted(network, torch.zeros((sequences, n), dtype=torch.long))
    assert linear == _linear(spec, n, sequences)
    layer = spec.layers[0].mixers[0]
    assert isinstance(layer, FullAttention | SlidingWindow)
    width = layer.num_attention_heads * layer.head_dim
    # Eager attention multiplies the whole square, whatever the mask; windows as well.
    assert attention == 4 * sequences * width * n * n * len(spec.layers)
    pairs = sum(score_pairs(mixer, n) for held in spec.layers for mixer in held.mixers)
    ours = 2 * sequences * prefill(spec, n).parts["scores_values"]
    assert ours * n * n * len(spec.layers) == attention * pairs


@pytest.mark.reference
@pytest.mark.parametrize("model_type", sorted(RUNNING))
@pytest.mark.parametrize("past", [5, 20])
def test_decode_against_the_counter(model_type: str, past: int) -> None:
    import torch
    from transformers import DynamicCache

    network, spec = _running(model_type)
    cache = DynamicCache(config=network.config)
    with torch.no_grad():
        network(torch.zeros((2, past), dtype=torch.long), cache=cache, use_cache=True)
    linear, attention = _counted(network, torch.zeros((2, 1), dtype=torch.long), cache)
    parts = decode_step(spec, past + 1).parts
    assert linear == 2 * 2 * sum(macs for part, macs in parts.items() if part != "scores_values")
    # One row of the square: what a cache holds is what the query meets, windows included.
    assert attention == 2 * 2 * parts["scores_values"]


@pytest.mark.reference
def test_several_tokens_after_a_past() -> None:
    # S new tokens after P: the counter's 4 B q S (S + P) is the rectangle that ours leaves half a square of.
    import torch
    from transformers import DynamicCache

    network, spec = _running("llama")
    past, new, layers, width = 12, 7, 4, 4 * 24
    cache = DynamicCache(config=network.config)
    with torch.no_grad():
        network(torch.zeros((1, past), dtype=torch.long), cache=cache, use_cache=True)
    _, attention = _counted(network, torch.zeros((1, new), dtype=torch.long), cache)
    assert attention == 4 * width * new * (new + past) * layers
    rows = prefill(spec, past + new).parts["scores_values"] - prefill(spec, past).parts["scores_values"]
    assert 2 * rows == attention - 4 * width * layers * (new * (new - 1) // 2)
