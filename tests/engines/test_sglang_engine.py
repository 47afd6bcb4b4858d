"""The SGLang engine's contract: refusals, formats, attention groups, limits, budgets, launch lines."""

from __future__ import annotations

from typing import Any

import pytest

from headcount.engines import Case, Layout, Settings, engine
from headcount.engines.calibration import Calibration
from headcount.engines.sglang import pools
from headcount.engines.sglang.engine import Sglang
from headcount.engines.sglang.rules import RULES, rules_for
from headcount.errors import LayoutError, UnknownNameError, UnsupportedModelError, UsageError
from headcount.hardware import accelerator
from headcount.spec.reader import read_model

GIB = 2**30


def case(
    model: str, card: str = "h100-80gb", *, tp: int = 1, pp: int = 1, context: int = 8192, **settings: Any
) -> Case:
    return Case(
        model=read_model(model),
        accelerator=accelerator(card),
        layout=Layout(tp=tp, pp=pp),
        context=context,
        settings=Settings(**settings),
    )


def given(**arguments: object) -> tuple[tuple[str, str], ...]:
    return tuple((name.replace("_", "-"), str(value)) for name, value in arguments.items())


def test_the_door_finds_it() -> None:
    found = engine("sglang")
    assert (found.name, found.version) == ("sglang", "0.5.23")


@pytest.mark.parametrize("text", ["newest", "five", "5", "v"])
def test_text_that_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(UnknownNameError, match="SGLang version"):
        Sglang(text)


@pytest.mark.parametrize(
    ("version", "rules"),
    [
        ("0.4.6.post1", "0.5.3"),
        ("v0.5.6.post2", "0.5.6"),
        ("0.5.9", "0.5.7"),
        ("0.6.0", "0.5.23"),
        ("0.5.22", "0.5.20"),
    ],
)
def test_a_release_between_two_samples_follows_the_older(version: str, rules: str) -> None:
    assert rules_for(version).version == rules
    said = Sglang(version).replica(case("llama-3.1-8b")).warnings
    assert (rules == version.removeprefix("v").removesuffix(".post2")) or any(rules in line for line in said)


def test_versions_are_newest_first() -> None:
    numbers = [tuple(map(int, version.split("."))) for version in RULES]
    assert numbers == sorted(numbers, reverse=True)


@pytest.mark.parametrize(
    ("model", "tp", "said"),
    [
        ("llama-3.1-8b", 3, "32 query heads do not divide by 3"),
        ("qwen2.5-7b", 8, "28 query heads do not divide by 8"),
        ("t5-base", 1, "does not serve model type t5"),
        ("jamba-v0.1", 1, "no state pool for model type jamba"),
        ("zamba2-7b", 1, "no state pool for model type zamba2"),
    ],
)
def test_refusals_name_the_reason(model: str, tp: int, said: str) -> None:
    reason = Sglang().refusal(read_model(model), Layout(tp=tp))
    assert reason is not None
    assert said in reason


def test_stages_are_no_more_than_layers() -> None:
    assert "stages" in str(Sglang().refusal(read_model("llama-3.1-8b"), Layout(pp=33)))
    assert Sglang().refusal(read_model("llama-3.1-8b"), Layout(tp=8, pp=4)) is None


@pytest.mark.parametrize("model", ["deepseek-v4-flash", "whisper-small", "llama-3.2-11b-vision"])
def test_caches_without_a_known_rule_are_refused(model: str) -> None:
    with pytest.raises(UnsupportedModelError, match="not modelled"):
        Sglang().replica(case(model, "h200", context=128))


def test_cards_that_it_does_not_run_on_are_refused() -> None:
    with pytest.raises(LayoutError, match="not modelled on m4-max"):
        Sglang().replica(case("llama-3.1-8b", "m4-max-128gb"))


def test_kv_formats() -> None:
    model, found = read_model("llama-3.1-8b"), Sglang()
    assert found.kv_format_name(model, Settings()) == "bf16"
    assert found.kv_format_name(model, Settings(weights="fp16", kv="fp16")) == "fp16"
    assert found.kv_format_name(model, Settings(kv="fp8_e5m2")) == "fp8"
    with pytest.raises(UsageError, match="allowed: auto, bf16, fp16, fp8, nvfp4"):
        found.kv_format_name(model, Settings(kv="q8_0"))
    with pytest.raises(UsageError, match="--weights fp16"):
        found.kv_format_name(model, Settings(kv="fp16"))
    with pytest.raises(UsageError, match="nvfp4"):
        found.replica(case("llama-3.1-8b", kv="nvfp4"))


def test_sparse_latent_attention_is_fp8_on_blackwell_and_bf16_on_hopper() -> None:
    """kv_cache_dtype of DeepSeek-V3.2 by card; 656 B a row with scales, 576 B without; 132 B an indexer."""
    layers, indexer = 61, 128 + 4
    cells = {
        ("h200", "auto"): 576 * 2,
        ("h200", "fp8"): 512 + 512 // 128 * 4 + 64 * 2,
        ("b200", "auto"): 576,
    }
    for (card, kv), row in cells.items():
        pool = Sglang().pool(case("deepseek-v3.2", card, tp=8, kv=kv), GIB)
        assert pool.bytes_per_token == layers * (row + indexer)
        assert pool.block_tokens == 64


def test_one_conversation_takes_whole_pages() -> None:
    exact = Sglang().replica(case("qwen3-8b", context=1000))
    paged = Sglang().replica(case("qwen3-8b", context=1000, arguments=given(page_size=64)))
    token = 2 * 36 * 8 * 128 * 2
    assert exact.kv_bytes_per_conversation_per_gpu == 1000 * token
    assert paged.kv_bytes_per_conversation_per_gpu == 1024 * token


def test_a_latent_cache_is_whole_on_every_rank_unless_attention_is_grouped() -> None:
    """DeepSeek-R1, 61 layers of 576 numbers: one pool for eight ranks, or a pool on each."""
    whole = Sglang().replica(case("deepseek-r1", "h200", tp=8, utilization=0.85))
    grouped = Sglang().replica(
        case("deepseek-r1", "h200", tp=8, utilization=0.85, arguments=given(attn_dp_size=8))
    )
    assert whole.kv_bytes_per_conversation_per_gpu == 8192 * 61 * 576 * 2
    assert grouped.kv_bytes_per_conversation_per_gpu == whole.kv_bytes_per_conversation_per_gpu
    assert grouped.budget.weights > whole.budget.weights
    assert grouped.conversations % 8 == 0
    assert grouped.conversations > 3 * whole.conversations
    flag = Sglang().replica(
        case("deepseek-r1", "h200", tp=8, utilization=0.85, arguments=given(enable_dp_attention="true"))
    )
    assert flag.conversations == grouped.conversations
    with pytest.raises(LayoutError, match="attn-dp-size 3 does not divide TP 8"):
        Sglang().replica(case("deepseek-r1", "h200", tp=8, arguments=given(attn_dp_size=3)))


def test_heads_are_not_divided_inside_a_group() -> None:
    """T = 4 in 4 groups: each rank holds all 8 key/value heads of Llama-3.1 70B, as one GPU alone would."""
    grouped = Sglang().pool(case("llama-3.1-70b", tp=4, arguments=given(attn_dp_size=4)), GIB)
    alone = Sglang().pool(case("llama-3.1-70b"), GIB)
    assert grouped.bytes_per_token == alone.bytes_per_token == 2 * 80 * 8 * 128 * 2


def test_the_sliding_pool_can_bind() -> None:
    """gpt-oss-20b, 12 windowed layers of 128: with a small ratio their pool holds fewer conversations than the full one.

    A conversation holds its window, an eviction interval of 128 and two pages of one: 258 tokens; two chunks of 2,048 and
    a page are in flight.
    """
    arguments = given(swa_full_tokens_ratio=0.02, chunked_prefill_size=2048)
    replica = Sglang().replica(case("gpt-oss-20b", context=8192, arguments=arguments))
    tokens = next(node.value for _, node in replica.ledger.walk() if getattr(node, "symbol", "") == "N_s")
    assert replica.conversations == (int(tokens) - 2 * 2048 - 1) // (128 + 128 + 2)
    assert "sliding" in replica.binding


def test_states_can_bind() -> None:
    """Short conversations of a hybrid: slots / 5 (three, and two that track the newest states)."""
    replica = Sglang().replica(case("qwen3-next-80b-a3b", tp=4, context=256))
    slots = next(node.value for _, node in replica.ledger.walk() if getattr(node, "symbol", "") == "S")
    assert replica.conversations == int(slots) // 5
    assert "state slots" in replica.binding
    bare = case("qwen3-next-80b-a3b", tp=4, context=256, arguments=given(disable_radix_cache="true"))
    assert Sglang().replica(bare).conversations > 4 * replica.conversations


def test_half_precision_states_double_their_number() -> None:
    """36 layers: 24,576 numbers of the convolution in 2 bytes, 524,288 of the state in 4 or 2."""
    asked = case("qwen3-next-80b-a3b", tp=4)
    found = Sglang()
    setup = found._setup(asked)
    whole = pools.stage_pool(asked.model, 0, 48, setup).state
    half = pools.stage_pool(asked.model, 0, 48, setup.replace(state_bytes=2)).state
    assert whole == 36 * (24_576 * 2 + 524_288 * 4) // 4
    assert half == 36 * (24_576 * 2 + 524_288 * 2) // 4


def test_requests_at_a_time_are_bounded() -> None:
    """2,048 to 4,096 by default, and as asked."""
    short = Sglang().replica(case("qwen3-0.6b", context=64))
    assert short.conversations == 4096
    assert "max_running_requests" in short.binding
    assert Sglang().replica(case("qwen3-0.6b", context=64, max_num_seqs=100)).conversations == 100
    with pytest.raises(UsageError, match="given twice"):
        Sglang().replica(case("qwen3-0.6b", max_num_seqs=100, arguments=given(max_running_requests=50)))


def test_max_total_tokens_caps_the_pool() -> None:
    capped = Sglang().pool(
        case("qwen3-8b", arguments=given(max_total_tokens=100_000, page_size=64)), 40 * GIB
    )
    assert capped.tokens == 100_000 // 64 * 64


@pytest.mark.parametrize(
    ("model", "card", "page"),
    [
        ("llama-3.1-8b", "h100-80gb", 1),
        ("llama-3.1-8b", "b200", 64),
        ("llama-3.1-8b", "rtx-5090", 1),
        ("deepseek-r1", "h200", 1),
        ("deepseek-r1", "b200", 64),
        ("mimo-v2-flash", "b200", 128),
        ("gpt-oss-120b", "b200", 64),
        ("llama-3.1-8b", "mi300x", 1),
    ],
)
def test_page_of_the_default_kernels(model: str, card: str, page: int) -> None:
    assert Sglang().pool(case(model, card), GIB).block_tokens == page


def test_kernels_fix_the_page() -> None:
    asked = given(attention_backend="flashmla", page_size=16)
    assert Sglang().pool(case("deepseek-r1", "h200", arguments=asked), GIB).block_tokens == 64


@pytest.mark.parametrize(
    ("model", "tp", "pp"),
    [("llama-3.1-8b", 1, 1), ("llama-3.3-70b", 2, 2), ("deepseek-r1", 8, 1), ("gemma-3-12b", 1, 1)],
)
def test_the_budget_adds_up(model: str, tp: int, pp: int) -> None:
    card = "h200" if model == "deepseek-r1" else "h100-80gb"
    replica = Sglang().replica(case(model, card, tp=tp, pp=pp))
    budget = replica.budget
    spent = budget.reserved + budget.weights + sum(count for _, count in budget.overhead) + budget.kv_budget
    assert spent == budget.memory
    assert budget.kv_low < budget.kv_budget < budget.kv_high
    assert replica.low <= replica.conversations <= replica.high


def test_weights_that_do_not_fit_are_said() -> None:
    replica = Sglang().replica(case("llama-3.1-70b"))
    assert replica.conversations == 0
    assert "weights leave no memory" in replica.binding


def test_a_measured_server_replaces_what_is_predicted() -> None:
    measured = Calibration(
        engine="sglang",
        engine_version="0.5.23",
        model=read_model("llama-3.1-8b").name,
        gpu="h100-80gb",
        tp=1,
        pp=1,
        origin="a log",
        weight_bytes=16 * GIB,
        non_torch_bytes=GIB,
    )
    asked = case("llama-3.1-8b", utilization=0.8, calibration=measured)
    budget = Sglang().replica(asked).budget
    assert budget.kv_budget == int((accelerator("h100-80gb").driver_bytes - GIB) * 0.8) - 16 * GIB
    assert budget.kv_low == budget.kv_budget == budget.kv_high
    other = Sglang("0.5.10").replica(asked).budget
    assert other.weights != 16 * GIB


def test_launch_says_what_the_plan_implies() -> None:
    asked = case(
        "llama-3.3-70b",
        tp=4,
        pp=2,
        kv="fp8",
        arguments=given(swa_full_tokens_ratio=0.5, cuda_graph_max_bs=64),
    )
    line = Sglang().launch(asked, model="meta-llama/Llama-3.3-70B-Instruct", concurrency=77)
    assert line.argv[:5] == (
        "python",
        "-m",
        "sglang.launch_server",
        "--model-path",
        "meta-llama/Llama-3.3-70B-Instruct",
    )
    said = dict(zip(line.argv[3::1], line.argv[4::1], strict=False))
    assert said["--tp-size"] == "4"
    assert said["--pp-size"] == "2"
    assert said["--context-length"] == "8192"
    assert said["--kv-cache-dtype"] == "fp8_e4m3"
    assert said["--max-running-requests"] == "77"
    assert said["--chunked-prefill-size"] == "8192"
    assert said["--swa-full-tokens-ratio"] == "0.5"
    assert said["--cuda-graph-max-bs-decode"] == "64"
    assert float(said["--mem-fraction-static"]) == pytest.approx(Sglang()._setup(asked).fraction, abs=1e-4)
    assert (line.image, line.port, line.health) == ("lmsysorg/sglang:v0.5.23", 30000, "/health")


def test_launch_spells_attention_groups_as_its_release_does() -> None:
    asked = case("deepseek-r1", "h200", tp=8, arguments=given(attn_dp_size=8))
    assert "--attn-dp-size" in Sglang().launch(asked, model="m", concurrency=8).argv
    older = Sglang("0.5.10").launch(asked, model="m", concurrency=8).argv
    assert "--enable-dp-attention" in older
    assert older[older.index("--dp-size") + 1] == "8"


def test_launch_does_not_change_how_pools_are_cut() -> None:
    """Without reuse of prompts a stated number of requests would size the sliding pool anew."""
    asked = case("gpt-oss-20b", arguments=given(disable_radix_cache="true"))
    assert "--max-running-requests" not in Sglang().launch(asked, model="m", concurrency=8).argv


@pytest.mark.parametrize(
    ("model", "tp", "kernels"),
    [
        ("llama-3.1-8b", 1, "aiter"),
        ("deepseek-r1", 8, "aiter"),
        # Latent attention with 8 heads on a rank: aiter reads 16 or 128 (Kimi-K2.5 on MI355X logs triton).
        ("kimi-k2.5", 8, "triton"),
        ("kimi-k2.5", 4, "aiter"),
        ("deepseek-r1", 4, "triton"),
        ("deepseek-v3.2", 8, "dsa"),
        ("gemma-4-31b", 1, "triton"),
    ],
)
def test_default_kernels_on_amd(model: str, tp: int, kernels: str) -> None:
    assert Sglang()._setup(case(model, "mi355x", tp=tp)).backend == kernels


@pytest.mark.parametrize(
    ("settings", "in_force", "said"),
    [
        ({"context": 8192}, 0.8, "0.8"),
        # attention_hook.py: past 8,192 tokens aiter takes 15 % of a stated fraction too.
        ({"context": 8193}, 0.8 * 0.85, "0.8"),
        ({"context": 32768, "arguments": given(attention_backend="triton")}, 0.8, "0.8"),
        ({"context": 32768, "arguments": given(aiter_honor_explicit_mem_fraction="true")}, 0.8, "0.8"),
    ],
)
def test_long_contexts_with_aiter_keep_part_of_the_fraction(
    settings: dict[str, Any], in_force: float, said: str
) -> None:
    """The fraction in force, and what the command line must say for it: SGLang takes the factor off itself."""
    asked = case("llama-3.1-8b", "mi300x", utilization=0.8, **settings)
    assert Sglang().default_utilization(asked) == pytest.approx(in_force)
    line = Sglang().launch(asked, model="m", concurrency=8)
    assert line.argv[line.argv.index("--mem-fraction-static") + 1] == said
    honoured = ("SGLANG_AITER_HONOR_EXPLICIT_MEM_FRACTION", "1") in line.environment
    assert honoured == any("honor" in name for name, _ in asked.settings.arguments)


def test_a_default_fraction_is_written_before_the_long_context_factor() -> None:
    asked = case("llama-3.1-8b", "mi300x", context=32768)
    found = Sglang()
    argv = found.launch(asked, model="m", concurrency=8).argv
    said = float(argv[argv.index("--mem-fraction-static") + 1])
    in_force = found.default_utilization(asked)
    assert in_force == pytest.approx(said * 0.85, abs=1e-4)
    assert "x 0.85 past 8,192 tokens with aiter" in str(found._setup(asked).fraction_words)


def test_a_fraction_that_stands_is_written_as_each_release_reads_it() -> None:
    """The variable is read from 0.5.20 on; before, the factor is made up for; before 0.5.5 no printed fraction holds it."""
    arguments = given(aiter_honor_explicit_mem_fraction="true")
    asked = case("llama-3.1-8b", "mi300x", context=32768, utilization=0.8, arguments=arguments)
    older = Sglang("0.5.15").launch(asked, model="m", concurrency=8)
    assert float(older.argv[older.argv.index("--mem-fraction-static") + 1]) == pytest.approx(
        0.8 / 0.85, abs=1e-4
    )
    assert older.environment == ()
    assert Sglang("0.5.5").default_utilization(asked) == 0.8
    assert Sglang("0.5.4").default_utilization(asked) == pytest.approx(0.8 * 0.85)


def test_usable_bytes_follow_the_fraction() -> None:
    card = accelerator("h100-80gb")
    assert Sglang().usable_bytes(card, Settings(utilization=0.5)) == card.driver_bytes // 2
    assert 0.8 * card.driver_bytes < Sglang().usable_bytes(card, Settings()) < 0.9 * card.driver_bytes


def test_the_fraction_in_force_is_told() -> None:
    assert Sglang().default_utilization(case("llama-3.1-8b")) == 0.83
    assert Sglang().default_utilization(case("llama-3.1-8b", utilization=0.7)) == 0.7


def test_an_argument_that_it_has_no_rule_for_is_refused() -> None:
    with pytest.raises(UsageError, match="page-size"):
        Sglang().replica(case("llama-3.1-8b", arguments=given(page_sise=64)))


def test_warnings_name_what_is_uncertain() -> None:
    assert any(
        "attn-dp-size=8" in line for line in Sglang().replica(case("deepseek-r1", "h200", tp=8)).warnings
    )
    assert any(
        "transformers' code" in line for line in Sglang().replica(case("pythia-6.9b", context=2048)).warnings
    )
    assert any("few logs" in line for line in Sglang().replica(case("llama-3.1-8b", "mi300x")).warnings)
    assert any("table" in line for line in Sglang().replica(case("qwen3-8b", context=1_000_000)).warnings)
