"""Bad input: one clear line on stderr, exit 2, nothing on stdout, no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BASE = "llama-2-7b --gpu a100-80gb --context 2048"


def run(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headcount", *command.split()],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )


def refused(command: str) -> str:
    done = run(command)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("fit llama-2-7b --gpu a100-80gb --context -5", "--context must be 1 to"),
        ("fit llama-2-7b --gpu a100-80gb --context 0", "--context must be 1 to"),
        ("fit llama-2-7b --gpu a100-80gb --context nan", "--context 'nan'"),
        ("fit llama-2-7b --gpu a100-80gb --context 1.5", "whole number"),
        ("fit llama-2-7b --gpu a100-80gb", "--context is required"),
        ("fit llama-2-7b --context 2048", "--gpu is required"),
        (f"fit {BASE} --gpus -1", "--gpus must be 1 to"),
        (f"fit {BASE} --gpus 0", "--gpus must be 1 to"),
        (f"book {BASE} --users -3", "--users must be 1 to"),
        (f"book {BASE}", "--users is required"),
        (f"fit {BASE} --tp 3", "32 query heads do not divide by 3"),
        (f"fit {BASE} --tp 3 --engine textbook", "32 query heads do not divide by 3"),
        (f"fit {BASE} --tp 2 --gpus 3", "--gpus 3"),
        (f"fit {BASE} --reserve 2", "--reserve must be 0 to 0.99"),
        (f"fit {BASE} --utilization -1", "--utilization must be"),
        (f"fit {BASE} --reserve 0.1 --utilization 0.9", "say the same thing"),
        (f"fit {BASE} --memory 80", "has no unit"),
        (f"fit {BASE} --memory 80XB", "--memory '80XB'"),
        (f"fit {BASE} --params -7e9", "--params must be"),
        (f"fit {BASE} --kv-heads 5", "32 query heads must be a multiple"),
        (f"fit {BASE} --kv-heads 64", "32 query heads must be a multiple"),
        (f"fit {BASE} --kv fp9", "unknown KV format 'fp9'"),
        (f"fit {BASE} --kv q8_0", "vLLM has no KV cache format"),
        (f"fit {BASE} --weights int3", "unknown weight format 'int3'"),
        (f"fit {BASE} --engine vlm", "nearest: vllm"),
        (f"fit {BASE} --engine sglan", "nearest: sglang"),
        (f"fit {BASE} --engine-version abc", "unknown vLLM version"),
        (f"fit {BASE} --contxt 5", "nearest: --context"),
        ("fit llama-2-7b --gpu a100-80g --context 2048", "nearest: a100-80gb"),
        ("fit lama-2-7b --gpu a100-80gb --context 2048", "llama-2-7b"),
        ("fit no/such-model-anywhere --gpu a100-80gb --context 2048", "no/such-model-anywhere"),
        ("fit ./missing.json --gpu a100-80gb --context 2048", "no such file"),
        ("fit llama-2-7b --gpu a100-80gb --context 9999", "past the 4,096 positions"),
        ("fit layers=32,hidden=4096,heads=32 --gpu a100-80gb --context 2048", "--params"),
        ("fit layers=32,heads=32 --gpu a100-80gb --context 2048", "hidden (or head_dim)"),
        ("fit layers=x,hidden=1,heads=1 --gpu a100-80gb --context 2048", "inline layers"),
        ("fit layers=32,hiden=4096,heads=32 --gpu a100-80gb --context 2048", "nearest: hidden"),
        ("fit t5-base --gpu a100-80gb --context 512", "does not serve model type t5"),
        ("boook llama-2-7b", "nearest: book"),
        (f"fit {BASE} --tp=--", "--tp has no value"),
        (f"fit {BASE} --engine-version=", "--engine-version has no value"),
        ("book gpt2 --gpu h100-80gb --context 5 --users 10 --tp 2 --max-gpus 1", "over the limit of 1"),
        ("show", "MODEL"),
        ("gpus h999x", "unknown GPU"),
        ("completion fish", "allowed: bash, zsh"),
    ],
)
def test_refused_with_one_line(command: str, words: str) -> None:
    assert words in refused(command)


def test_a_long_context_is_allowed_with_a_flag_and_a_warning() -> None:
    done = run("fit llama-2-7b --gpu a100-80gb --context 8192 --allow-long-context")
    assert done.returncode == 0
    assert "past the 4,096 positions" in done.stderr


def test_directory_without_a_model(tmp_path: Path) -> None:
    assert "a directory without a model" in refused(f"show {tmp_path}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not valid JSON"),
        ("[1, 2]", "must be a JSON object"),
        ('{"model_type": "llama", "hidden_size": NaN}', "NaN"),
        ('{"model_type": "llama", "hidden_size": "big"}', "hidden_size must be a whole number"),
        ('{"model_type": "llama", "num_hidden_layers": -1}', "num_hidden_layers must be"),
        ('{"model_type": "llama", "num_hidden_layers": 1000000000}', "num_hidden_layers must be"),
        ('{"model_type": "brand_new_thing"}', "'brand_new_thing' is not supported"),
        ('{"hello": 1}', "neither model_type nor architectures"),
        ("[" * 100_000, "nested too deeply"),
        (
            '{"model_type": "qwen2", "layer_types": ["telepathy_attention"], "num_hidden_layers": 1}',
            "telepathy_attention",
        ),
    ],
)
def test_bad_config_files(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    assert words in refused(f"show {path}")


def test_a_huge_config_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(2**30)
    assert "is no config.json" in refused(f"show {path}")


def test_broken_pipe_is_silent() -> None:
    command = f"{sys.executable} -m headcount models | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("name")
    assert done.stderr == ""


def test_no_colour_when_it_is_not_a_terminal() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headcount", "show", "gpt2"],
        capture_output=True,
        text=True,
        env={**os.environ, "TERM": "xterm"},
    )
    assert "\x1b[" not in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


@pytest.mark.parametrize(
    "command",
    [
        "book deepseek-v3 --gpu h200 --users 1000 --context 8192 --explain",
        "book llama-3.1-405b --gpu h100-80gb --users 50 --context 8192 --allow-pp --price 2.5",
        "show nemotron-h-8b --explain",
        "show whisper-large-v3",
        "models",
        "gpus",
    ],
)
def test_pages_fit_80_columns(command: str) -> None:
    done = run(command)
    assert done.returncode == 0, done.stderr
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_version_and_help() -> None:
    assert run("--version").stdout.startswith("headcount 0.")
    assert "book" in run("--help").stdout
    for command in ("fit", "book", "show", "models", "gpus", "completion"):
        assert "--" in run(f"{command} --help").stdout


def test_too_many_users_are_said_to_be_short() -> None:
    done = run("fit llama-2-7b --gpu a100-80gb --context 2048 --users 100 --engine textbook")
    # 80 GB less 13.5 GB of weights hold 61 conversations of 1 GiB.
    assert "61 for 100 users, 39 short" in done.stdout
    assert done.stdout.startswith("61 conversations on 1 x")


def test_a_closed_standard_output_is_an_error() -> None:
    command = f"{sys.executable} -m headcount fit {BASE} >&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "standard output is closed" in done.stderr
