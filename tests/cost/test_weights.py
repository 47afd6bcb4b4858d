"""Weight bytes against published totals, memory that vLLM reported per GPU, and sharding worked by hand."""

from __future__ import annotations

import pytest

from headcount.cost.weights import nominal_scale, rank_weights, shard_of, weight_bytes, weight_format
from headcount.errors import UnknownNameError
from headcount.spec.model import ModelSpec
from headcount.spec.reader import read_model
from headcount.spec.weight import COLUMN, EXPERT, KV, REPLICATED, ROW, VOCAB, Weight


def per_rank(model: ModelSpec, tp: int, *, vocab_multiple: int = 1, name: str = "auto") -> int:
    return rank_weights(model, weight_format(model, name), tp=tp, vocab_multiple=vocab_multiple).total


@pytest.mark.parametrize(
    ("name", "total"),
    [
        # metadata.total_size of the published model.safetensors.index.json
        ("llama-2-7b", 13_476_831_232),
        ("mistral-7b", 14_483_464_192),
        ("llama-3-8b", 16_060_522_496),
        ("qwen2.5-7b", 15_231_233_024),
    ],
)
def test_published_totals(name: str, total: int) -> None:
    model = read_model(name)
    assert weight_bytes(model) == total
    assert weight_bytes(model, "fp16") == weight_bytes(model, "bf16") == total
    assert weight_bytes(model, "fp32") == 2 * total


def test_fp32_checkpoints_are_served_in_16_bits() -> None:
    model = read_model("gpt2").replace(dtype="fp32")
    # GPT-2 small: 124,439,808 parameters.
    assert weight_format(model).name == "bf16"
    assert weight_bytes(model) == 2 * 124_439_808
    assert weight_bytes(model, "fp32") == 4 * 124_439_808


def test_nominal_count_replaces_the_exact_one() -> None:
    model = read_model("llama-2-7b", nominal_parameters=7 * 10**9)
    assert weight_bytes(model) == 14_000_000_000
    assert nominal_scale(model, weight_format(model)) == (14_000_000_000, 13_476_831_232)


def test_unknown_format_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"nearest: .*nvfp4"):
        weight_format(read_model("llama-2-7b"), "nvpf4")


# "Loading model weights took X GB" / "Model loading took X GiB" of vLLM, both GiB; vocabulary padded to 64.
_LOGS = "https://github.com/llm-d-incubation/llm-d-planner/blob/56dc5b76ca53/accuracy/results/v0.19.0/logs/"
_NOTES = "https://github.com/llm-d-incubation/llm-d-planner/blob/main/docs/empirical-vllm-memory-results.md"
_VLLM = "https://github.com/vllm-project/vllm/"
MEASURED = [
    ("llama-3.1-8b", 1, 14.9888, _VLLM + "issues/10517"),
    ("llama-3.1-8b", 8, 1.9028, "https://github.com/mlcommons/inference/issues/2267"),
    ("llama-3-8b", 1, 14.96, _VLLM + "pull/10511"),
    ("llama-3-8b", 2, 7.48, _VLLM + "pull/10511"),
    ("qwen3-0.6b", 1, 1.12, _NOTES),
    ("qwen3-32b", 1, 61.03, _NOTES),
    ("qwen3-32b", 2, 30.59, _NOTES),
    ("qwen2.5-0.5b", 1, 0.9277, "https://github.com/hiyouga/EasyR1/issues/69"),
    ("qwen2.5-32b", 2, 30.7098, _VLLM + "issues/15815"),
    ("deepseek-r1-distill-qwen-14b", 2, 13.9476, _VLLM + "issues/13061"),
    ("deepseek-v2-lite", 1, 29.301, _VLLM + "pull/10927"),
    ("codellama-7b", 1, 12.56, _LOGS + "codellama-codellama-7b-h--h100-80gb--tp1pp1dp1--8192.log"),
    ("gemma-7b", 1, 15.91, _LOGS + "google-gemma-7b--h100-80gb--tp1pp1dp1--8192.log"),
    ("gemma-2-2b", 1, 4.9, _LOGS + "google-gemma-2-2b-it--h100-80gb--tp1pp1dp1--8192.log"),
    ("gemma-2-27b", 1, 50.72, _LOGS + "google-gemma-2-27b-it--h100-80gb--tp1pp1dp1--8192.log"),
    ("granite-3.1-8b", 1, 15.25, _LOGS + "granite-3-1-8b--h100-80gb--tp1pp1dp1--8192.log"),
    ("kimi-dev-72b", 2, 67.82, _LOGS + "moonshotai-kimi-dev-72b--h100-80gb--tp2pp1dp1--8192.log"),
    ("kimi-dev-72b", 4, 34.01, _LOGS + "moonshotai-kimi-dev-72b--h100-80gb--tp4pp1dp1--8192.log"),
    ("qwen2.5-72b", 2, 67.8, _LOGS + "qwen-qwen2-5-72b-instruc--h100-80gb--tp2pp1dp1--8192.log"),
    ("qwen2.5-7b", 1, 14.25, _LOGS + "qwen-qwen2-5-7b-instruc--h100-80gb--tp1pp1dp1--16384.log"),
    ("qwen2.5-7b", 2, 7.12, _LOGS + "qwen-qwen2-5-7b-instruct--h100-80gb--tp2pp1dp1--8192.log"),
    ("qwen2.5-7b", 4, 3.55, _LOGS + "qwen-qwen2-5-7b-instruct--h100-80gb--tp4pp1dp1--8192.log"),
    ("qwen3-30b-a3b", 1, 56.88, _LOGS + "qwen-qwen3-30b-a3b--h100-80gb--tp1pp1dp1--8192.log"),
    ("qwen3-8b", 1, 15.27, _LOGS + "qwen-qwen3-8b--h100-80gb--tp1pp1dp1--8192.log"),
]


@pytest.mark.parametrize(("name", "tp", "measured_gib", "source"), MEASURED)
def test_against_vllm_logs(name: str, tp: int, measured_gib: float, source: str) -> None:
    # What loading takes besides weights (rotary tables, fragments) is measured too, so the count is never above.
    predicted = per_rank(read_model(name), tp, vocab_multiple=64) / 2**30
    assert predicted == pytest.approx(measured_gib, rel=0.018), source
    assert predicted < measured_gib + 0.005, source


# Sharding -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tp", [2, 4, 8, 16, 32])
def test_ranks_of_llama_2_7b_hold_the_whole_and_a_copy_of_the_norms_each(tp: int) -> None:
    norms = 65 * 4096 * 2
    assert tp * per_rank(read_model("llama-2-7b"), tp) == 13_476_831_232 + (tp - 1) * norms


def test_key_value_heads_are_replicated_beyond_their_number() -> None:
    # Llama-3.1-8B, 8 key/value heads: at T = 16 every head is held twice, at T = 32 four times.
    model = read_model("llama-3.1-8b")
    whole, norms, key_values = 16_060_522_496, 65 * 4096 * 2, 32 * 2 * 1024 * 4096 * 2
    for tp, copies in ((2, 1), (8, 1), (16, 2), (32, 4)):
        assert tp * per_rank(model, tp) == whole + (tp - 1) * norms + (copies - 1) * key_values


def test_latent_down_projections_are_whole_on_every_rank() -> None:
    # DeepSeek-V2-Lite: kv_a_proj 576 x 2048, its norm of 512, two norms of 2048 a layer, routers 64 x 2048 in 26.
    model = read_model("deepseek-v2-lite")
    whole = weight_bytes(model)
    replicated = 2 * (27 * (576 * 2048 + 512 + 2 * 2048) + 26 * 64 * 2048 + 2048)
    for tp in (2, 4, 8):
        assert tp * per_rank(model, tp) == whole + (tp - 1) * replicated


@pytest.mark.parametrize("name", ["qwen2.5-7b", "gpt-oss-20b", "deepseek-v3", "gemma-2-2b", "jamba-v0.1"])
@pytest.mark.parametrize("tp", [2, 4, 8, 16])
def test_ranks_together_hold_no_less_than_the_whole(name: str, tp: int) -> None:
    model = read_model(name)
    assert tp * per_rank(model, tp) >= per_rank(model, 1) == weight_bytes(model)


def test_vocabulary_rows_are_padded_then_divided() -> None:
    table = Weight(name="model.embed_tokens", part="embedding", shape=(50257, 768), shard=VOCAB)
    assert shard_of(table, 1, 64).shape == (50304, 768)
    assert shard_of(table, 2, 64).shape == (25152, 768)
    assert shard_of(table, 2).shape == (25129, 768)


@pytest.mark.parametrize(
    ("shard", "shape"),
    [
        (COLUMN, (1024, 4096)),
        (ROW, (4096, 1024)),
        (REPLICATED, (4096, 4096)),
        (EXPERT, (4096, 4096)),
    ],
)
def test_a_quarter_of_a_square_matrix(shard: str, shape: tuple[int, int]) -> None:
    weight = Weight(name="w", part="attention", shape=(4096, 4096), shard=shard, linear=True)
    assert shard_of(weight, 4).shape == shape


def test_a_rank_has_one_key_value_head_at_least() -> None:
    weight = Weight(name="k_proj", part="attention", shape=(512, 4096), shard=KV, heads=4, linear=True)
    assert [shard_of(weight, tp).shape[0] for tp in (1, 2, 4, 8, 16)] == [512, 256, 128, 128, 128]


def test_pipeline_stages_hold_the_whole() -> None:
    # Llama-2-7B in two stages: embedding with the first, final norm and head with the last.
    ranks = rank_weights(read_model("llama-2-7b"), weight_format(read_model("llama-2-7b")))
    first, last = ranks.stage(0, 16), ranks.stage(16, 32)
    assert first + last == ranks.total == 13_476_831_232
    assert first == 16 * 404_766_720 + 32000 * 4096 * 2
    assert last - first == 4096 * 2


def test_a_tied_head_is_held_by_both_ends_of_a_pipeline() -> None:
    ranks = rank_weights(read_model("smollm2-135m"), weight_format(read_model("smollm2-135m")))
    assert ranks.total == 2 * 134_515_008
    assert ranks.stage(0, 15) + ranks.stage(15, 30) == 2 * 134_515_008 + 49152 * 576 * 2
