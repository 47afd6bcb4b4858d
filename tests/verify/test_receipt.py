"""From a pasted log to a receipt, to a calibration, to a plan that uses it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headcount.cli.main import dispatch
from headcount.errors import HeadcountError, UsageError

# vLLM 0.19.0, Qwen2.5-7B-Instruct, one H100 80GB (llm-d-planner pull request 205): the figures as it prints them.
START = """\
(EngineCore_DP0 pid=101) INFO 04-10 09:00:01 [core.py:101] Initializing a V1 LLM engine (v0.19.0) with config: \
model='Qwen/Qwen2.5-7B-Instruct', tensor_parallel_size=1, pipeline_parallel_size=1, max_seq_len=8192, kv_cache_dtype=auto
(EngineCore_DP0 pid=101) INFO 04-10 09:00:21 [gpu_model_runner.py:4130] Model loading took 14.25 GiB memory and 5.1 seconds
(EngineCore_DP0 pid=101) INFO 04-10 09:00:41 [gpu_worker.py:378] Available KV cache memory: 58.53 GiB
(EngineCore_DP0 pid=101) INFO 04-10 09:00:41 [kv_cache_utils.py:1314] GPU KV cache size: 1,096,000 tokens
(EngineCore_DP0 pid=101) INFO 04-10 09:00:41 [kv_cache_utils.py:1319] Maximum concurrency for 8,192 tokens per request: 133.79x
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "start.log"
    path.write_text(START)
    return path


def verified(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert dispatch(["verify", *words, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_a_log_beside_its_prediction(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = verified(capsys, "--log", str(log), "--gpu", "h100-80gb")["starts"][0]
    terms = {(term["quantity"], term["check"]): term for term in found["terms"]}
    assert abs(terms["tokens", "tokens_from_kv_memory"]["relative_error"]) < 0.0005
    assert abs(terms["weights", "weights"]["relative_error"]) < 0.01
    # A conversation of 8,192 tokens takes 512 blocks of the pool's 68,500, one of which is never given out.
    assert found["conversations"] == 133
    assert found["rests_on"] == "the reported capacity"


def test_shorter_conversations(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = verified(capsys, "--log", str(log), "--gpu", "h100-80gb", "--context", "2048")["starts"][0]
    assert found["conversations"] == 1_096_000 // 2048 - 0
    longer = verified(capsys, "--log", str(log), "--gpu", "h100-80gb", "--context", "9000")["starts"][0]
    assert longer["conversations"] is None and "at most 8,192" in longer["rests_on"]


def test_a_calibration_is_used_and_named(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = str(tmp_path / "mine.json")
    verified(capsys, "--log", str(log), "--gpu", "h100-80gb", "--save", saved)
    question = "fit qwen2.5-7b --gpu h100-80gb --context 8192 --engine-version 0.19.0 --json"
    assert dispatch([*question.split(), "--calibration", saved]) == 0
    plan = json.loads(capsys.readouterr().out)
    weights = plan["per_gpu"]["weight_bytes"] + sum(
        count for name, count in plan["per_gpu"]["overhead_bytes"].items() if "absorbed" in name
    )
    if plan["model"]["name"] == json.loads(Path(saved).read_text())["model"]:
        assert weights == round(14.25 * 2**30)
    assert any(saved in warning for warning in plan["warnings"])


def test_a_log_on_standard_input(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import io
    import sys

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(log.read_bytes())))
    assert verified(capsys, "--log", "-", "--gpu", "h100-80gb")["starts"][0]["conversations"] == 133


@pytest.mark.parametrize("name", ["/etc/passwd", "../secret", "nobody/nothing", "https://evil.example/x"])
def test_a_name_in_a_log_opens_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No path is read and no network asked for a model that a log names."""
    import socket

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket, "create_connection", refused)
    monkeypatch.setattr(socket.socket, "connect", refused)
    path = tmp_path / "start.log"
    path.write_text(START.replace("Qwen/Qwen2.5-7B-Instruct", name))
    with pytest.raises(HeadcountError, match=r"not in the catalogue|does not name"):
        dispatch(["verify", "--log", str(path)])


BAD = [
    ("verify", "give one of --log FILE and --url URL"),
    ("verify --log a --url b", "give one of"),
    ("verify --log missing.log", "No such file"),
    ("verify --log . ", "Is a directory"),
    ("verify --log a --load 3", "--load needs a running server"),
    ("verify --url ftp://127.0.0.1", "http"),
    ("verify --url http://127.0.0.1:1 --api-key-env NOT_SET_HERE", "no such environment variable"),
]


@pytest.mark.parametrize(("command", "words"), BAD)
def test_bad_questions(command: str, words: str) -> None:
    with pytest.raises(HeadcountError, match=words) as raised:
        dispatch(command.split())
    assert "\n" not in str(raised.value)


def test_a_file_without_start_up_lines(tmp_path: Path) -> None:
    path = tmp_path / "noise.log"
    path.write_text("nothing here\n" * 100)
    with pytest.raises(UsageError, match=r"no engine.s start-up lines"):
        dispatch(["verify", "--log", str(path)])
