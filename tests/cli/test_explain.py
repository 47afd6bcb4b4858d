"""``explain`` without PyTorch: the list, the two counting topics, what is refused, and what a missing extra says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headcount.cli.main import dispatch
from headcount.errors import HeadcountError
from headcount.explain.topics import TOPICS

Ask = Callable[[str], dict[str, Any]]
SOURCE = Path(__file__).parent.parent.parent / "src"
ASKED = "attention backward softmax jacobian scaling heads positions masks tiled flops kv-cache block norms cross-entropy graph"


def test_topics_are_listed_one_line_each(capsys: pytest.CaptureFixture[str], ask: Ask) -> None:
    assert dispatch(["explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert set(ASKED.split()) <= {line.split()[0] for line in lines if line}
    assert max(map(len, lines)) <= 80
    assert [topic["name"] for topic in ask("explain")["topics"]] == list(TOPICS)


def test_flops_of_the_chapters_block(ask: Ask) -> None:
    document = ask("explain flops --model mistral-7b --context 4096")
    table = next(
        t for s in document["steps"] for t in s["tables"] if t["title"].startswith("D = 4,096, n = 4,096")
    )
    assert [row[2] for row in table["rows"]] == [137_438_953_472, 274_877_906_944, 549_755_813_888]
    assert all(row[3] == 2 * row[2] for row in table["rows"])
    lengths = next(t for s in document["steps"] for t in s["tables"] if t["header"][:1] == ["question"])
    assert [row[2] for row in lengths["rows"]] == [16_384, 8_192, 24_576, 32_768, 16_384]


def test_cache_with_and_without(ask: Ask) -> None:
    document = ask("explain kv-cache --model llama-2-7b --context 2048")
    table = next(t for s in document["steps"] for t in s["tables"] if "not cached" in t["header"])
    assert [row[1:3] for row in table["rows"]] == [[2048, 2_098_176], [2_098_176, 2_865_409_024]]


def test_latent_cache_is_priced_by_its_widths(ask: Ask) -> None:
    """DeepSeek-V3, published configuration: 61 layers, kv_lora_rank 512, qk_rope_head_dim 64."""
    document = ask("explain kv-cache --model deepseek-v3")
    step = document["steps"][0]
    assert step["formula"] == ["b = L (r + R) p", "c = b n"]
    assert "latent: 61 x ((512 + 64) x 2) = 70,272 B per token" in step["arithmetic"]
    assert {"r": "512", "R": "64"}.items() <= {s["symbol"]: s["shape"] for s in document["symbols"]}.items()
    assert "explain latent --model deepseek-v3" in step["note"]
    assert not any(t["header"][:1] == ["K"] for s in document["steps"] for t in s["tables"])


def test_windows_are_summed_by_kind(ask: Ask) -> None:
    """Gemma 2 9B: 21 layers with a window of 4,096, 21 without; 8 key/value heads of 256."""
    step = ask("explain kv-cache --model gemma-2-9b --context 8192")["steps"][0]
    assert "c = sum_i L_i e_i min(n, w_i)" in step["formula"]
    assert next(v for v in step["values"] if v["name"] == "c")["values"] == 21 * 8192 * (4096 + 8192)
    assert "= 2,113,929,216 B" in step["arithmetic"][-1] and "min(8,192, 4,096)" in step["arithmetic"][-1]


def test_the_last_token_counts_itself(ask: Ask) -> None:
    """gpt-oss-20b: 12 layers with a window of 128, 12 without; 64 heads of 64, so 2 x 64 x 64 multiply-adds a pair."""
    steps = ask("explain flops --model gpt-oss-20b --context 2048")["steps"]
    step = next(s for s in steps if s["title"] == "the whole model")
    row = next(r for t in step["tables"] for r in t["rows"] if r[0] == "scores_values")
    assert row[3] == 2 * 12 * (128 + 2048) * 2 * 64 * 64
    assert "attends to 2,048 keys, itself included" in step["why"]
    assert step["tables"][0]["header"][3] == "token 2,048: FLOPs"


@pytest.mark.parametrize(
    ("model", "line"),
    [
        ("deepseek-v3", "f = 9 experts (8 of 256 routed + 1 shared) x 3 x 7,168 x 2,048 = 396,361,728"),
        ("gpt-oss-20b", "f = 4 experts (4 of 32 routed) x 3 x 2,880 x 2,880 = 99,532,800"),
        ("mistral-7b", "f = 3 x 4,096 x 14,336 = 176,160,768"),
    ],
)
def test_feed_forward_product_can_be_redone(model: str, line: str, ask: Ask) -> None:
    steps = ask(f"explain flops --model {model}")["steps"]
    assert line in [text for step in steps for text in step["arithmetic"]]


def test_every_topic_points_to_chapters_and_experiments_that_exist() -> None:
    from headcount.experiments.registry import EXPERIMENTS

    for topic in TOPICS.values():
        assert topic.chapters and set(topic.experiments) <= set(EXPERIMENTS)
        for name in topic.chapters:
            assert (SOURCE.parent / "docs" / "derivations" / f"{name}.md").is_file(), name


def test_the_chapters_are_named(ask: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask("explain flops")["chapters"].endswith("docs/chapters.md")
    assert dispatch(["explain", "flops"]) == 0
    out = capsys.readouterr().out
    assert "The chapters: the two teaching texts this began from, docs/chapters.md" in out
    assert "headcount experiment crossover" in out


@pytest.mark.parametrize(
    "command",
    [
        "flops --model bloom-176b",
        "flops --model llama-3.1-405b --context 131072",
        "kv-cache --context 2147483648",
    ],
)
def test_large_numbers_stay_within_80_columns(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["explain", *command.split()]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80, max(lines, key=len)


def test_a_table_too_wide_is_turned_and_loses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Scores of n = 2^31 tokens: n (n + 1) / 2 with a cache, n (n + 1) (2 n + 1) / 6 without."""
    n = 2**31
    assert dispatch(["explain", "kv-cache", "--context", str(n)]) == 0
    out = capsys.readouterr().out
    assert f"{n * (n + 1) // 2:,}" in out and f"{n * (n + 1) * (2 * n + 1) // 6:,}" in out


def test_an_empty_argument_is_refused_not_ignored() -> None:
    for option in ("--html", "--model"):
        with pytest.raises(HeadcountError, match="an argument is empty"):
            dispatch(["explain", "flops", option, ""])


def test_other_models_and_inline_ones() -> None:
    for model in ("deepseek-v3", "mamba-130m", "gemma-2-9b", "layers=2,hidden=64,heads=4,ffn=128,vocab=100"):
        for topic in ("flops", "kv-cache"):
            assert dispatch(["explain", topic, "--model", model, "--json"]) == 0


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("explain atention", "unknown topic 'atention'; nearest: attention"),
        ("explain kvcache", "nearest: kv-cache"),
        ("explain zebra", "unknown topic 'zebra'"),
        ("explain flops --causal", "topic flops does not read --causal; it takes --model, --context"),
        ("explain attention --model mistral-7b", "topic attention does not read --model"),
        ("explain --causal", "--causal needs a topic"),
        ("explain --html x.html", "--html needs a topic"),
        ("explain flops --context 0", "--context must be 1 to"),
        ("explain flops --model nosuchmodel", "nosuchmodel"),
        ("explain flops --model layers=2,hidden=64,heads=4", "give ffn, hidden and vocab"),
        ("explain flops --digits 99", "--digits must be 1 to 15"),
        ("explain flops --html /no/such/folder/x.html", "cannot be written"),
        ("explain flops extra", "unexpected argument 'extra'"),
    ],
)
def test_refused(command: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(HeadcountError) as caught:
        dispatch(command.split())
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capsys.readouterr().out == ""


def without_torch(command: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; sys.modules['torch'] = None; sys.argv[0] = 'headcount'\nfrom headcount.cli.main import run; run()"
    return subprocess.run(
        [sys.executable, "-c", code, *command.split()],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )


@pytest.mark.parametrize("topic", [topic.name for topic in TOPICS.values() if topic.needs_torch])
def test_missing_torch_names_the_extra(topic: str) -> None:
    done = without_torch(f"explain {topic}")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert f"headcount explain {topic} needs torch, which is not installed" in done.stderr
    assert "pip install 'headcount[transformer]'" in done.stderr
    assert "pip install -c constraints.txt '.[transformer]'" in done.stderr


def test_counting_topics_need_no_torch() -> None:
    for command in ("explain", "explain flops --json", "explain kv-cache --json"):
        done = without_torch(command)
        assert done.returncode == 0 and done.stderr == "", done.stderr
        if "--json" in command:
            assert json.loads(done.stdout)["steps"]


def test_page_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "flops.html"
    assert dispatch(["explain", "flops", "--html", str(path)]) == 0
    captured = capsys.readouterr()
    assert captured.out == "" and str(path) in captured.err
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_pointers_fit_one_line() -> None:
    assert all(len(topic.see) <= 80 for topic in TOPICS.values())
