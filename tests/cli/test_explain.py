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
    assert "torch is not installed: pip install 'headcount[transformer]'" in done.stderr


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
