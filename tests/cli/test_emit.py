"""``--emit``: the artefact alone on stdout, talk on stderr, refusals in one line."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest

from headcount.cli.main import dispatch
from headcount.errors import HeadcountError
from headcount.report.launch.read_back import read_launch

BOOK = "book llama-3.1-8b --gpu h100-80gb --users 300 --context 8192"
FIT = "fit llama-3.1-8b --gpu h100-80gb --context 8192"


def emitted(command: str, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    assert dispatch(command.split()) == 0
    written = capsys.readouterr()
    return written.out, written.err


def test_book_prints_the_line_alone(capsys: pytest.CaptureFixture[str]) -> None:
    text, _ = emitted(BOOK + " --emit vllm", capsys)
    lines = text.splitlines()
    comments = [line for line in lines if line.startswith("#")]
    assert lines[: len(comments)] == comments
    assert "300 conversations of 8,192 tokens" in comments[0]
    words = shlex.split("\n".join(lines[len(comments) :]).replace("\\\n", ""))
    assert words[:3] == ["vllm", "serve", "meta-llama/Llama-3.1-8B"]
    assert "Book" not in text
    assert all(ch not in text for ch in "\x1b\r")


def test_the_same_question_gives_the_same_text(capsys: pytest.CaptureFixture[str]) -> None:
    first, _ = emitted(BOOK + " --emit kubernetes", capsys)
    again, _ = emitted(BOOK + " --emit kubernetes", capsys)
    assert first == again


def test_book_and_emit_say_the_same_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    import json

    plan = json.loads(emitted(BOOK + " --json", capsys)[0])
    for kind in ("vllm", "kubernetes", "ray"):
        read = read_launch(emitted(f"{BOOK} --emit {kind}", capsys)[0], kind)
        assert read.replicas * read.gpus_per_replica == plan["gpus"]


def test_fit_and_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    text, talk = emitted(FIT.replace("8192", "200000") + " --allow-long-context --emit vllm", capsys)
    assert "past the 131,072 positions" in talk
    assert "past the" not in text
    assert "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 vllm serve" in text
    text, _ = emitted("fit llama-3.1-8b --gpu h100-80gb --users 100 --emit docker-compose", capsys)
    assert text.startswith("# headcount ")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (f"{BOOK} --emit helm", "unknown --emit kind 'helm'"),
        (f"{BOOK} --emit kubernets", "nearest: kubernetes"),
        (f"{BOOK} --emit sglang", "--emit sglang is for --engine sglang; this plan is for vllm"),
        (f"{BOOK} --emit vllm --engine sglang", "--emit vllm is for --engine vllm; this plan is for sglang"),
        (f"{BOOK} --emit ray --engine sglang", "--emit ray is for --engine vllm"),
        (f"{BOOK} --emit kubernetes --engine textbook", "the textbook engine is no server"),
        (f"{BOOK} --emit vllm --engine textbook", "the textbook engine is no server"),
        (f"{BOOK} --emit kubernetes --engine ollama", "told its model by the first request"),
        (f"{BOOK} --emit vllm --json", "leave --json out"),
        (f"{BOOK} --emit vllm --explain", "leave --explain out"),
        (f"{BOOK} --emit vllm --kv-heads 4", "nothing to launch"),
        (f"{FIT} --emit vllm --kv fp8 --weights fp9", "unknown weight format"),
        ("fit llama-3.1-70b --gpu rtx-4090 --context 4096 --emit vllm", "nothing fits"),
        (
            "fit layers=32,hidden=4096,heads=32,ffn=11008,vocab=32000 --gpu l40s --context 64 --emit vllm",
            "inline",
        ),
    ],
)
def test_refusals(command: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(HeadcountError, match=words):
        dispatch(command.split())
    assert capsys.readouterr().out == ""


def test_without_pyyaml_lines_are_written_and_files_refused() -> None:
    code = "import sys; sys.modules['yaml'] = None\nfrom headcount.cli.main import run\nrun()\n"

    def run(kind: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code, *BOOK.split(), "--emit", kind],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )

    assert run("vllm").returncode == 0
    missing = run("kubernetes")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "pip install 'headcount[emit]'" in missing.stderr
    assert missing.stderr.count("\n") == 1
