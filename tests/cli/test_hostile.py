"""What an attack found on the commands that read foreign files: each mended, each stays mended."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headcount.cli.main import dispatch
from headcount.errors import HeadcountError

FIT = "fit llama-3.1-8b --gpu h100-80gb --context 8192"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--engine-arg kv-cache-memory-bytes=500GB", "of the card's"),
        ("--engine-arg num-gpu-blocks-override=99999999", "of the card's"),
        ("--engine-arg block-size=17", "no multiple of 16"),
        (
            "--engine-arg speculative-method=mtp --engine-arg num-speculative-tokens=3",
            "no multi-token-prediction layers",
        ),
        (
            "--engine-arg speculative-method=eagle --engine-arg num-speculative-tokens=1000000",
            "more than any drafter",
        ),
        ("--kv nvfp4", "compute capability 10"),
        ("--engine-version 0.6.0 --max-batched-tokens 100", "without chunked prefill"),
        ("--engine-arg block_size=16 --engine-arg block-size=32", "given twice"),
        ("--engine textbook --max-seqs 3", "no batches"),
        ("--engine textbook --engine-arg foo=1", "no arguments of its own"),
        ("--engine-arg max-model-len=100", "shorter than the conversation"),
    ],
)
def test_plans_that_would_not_start(options: str, words: str) -> None:
    with pytest.raises(HeadcountError, match=words) as raised:
        dispatch([*FIT.split(), *options.split()])
    assert "\n" not in str(raised.value)


def test_a_smaller_pool_by_override(ask: Callable[[str], dict[str, Any]]) -> None:
    """33 blocks of 16 tokens, one never given out, hold two conversations of 256 tokens."""
    plan = ask("fit llama-3.1-8b --gpu h100-80gb --context 256 --engine-arg num-gpu-blocks-override=33")
    assert plan["conversations"] == 2


ROW = {
    "id": "x",
    "engine": "vllm",
    "config": "c.json",
    "gpu": "H100 80GB",
    "kv_cache_memory_gib": 10.0,
    "num_gpu_blocks": 1,
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tensor_parallel", 0),
        ("tensor_parallel", -1),
        ("tensor_parallel", 999999999999),
        ("pipeline_parallel", 10**8),
        ("gpu_memory_utilization", 7.5),
        ("gpu_memory_utilization", 0),
        ("max_num_seqs", -3),
        ("max_num_batched_tokens", 10**18),
        ("weights_gib", -14.99),
        ("kv_cache_memory_gib", 1e15),
        ("circular", "false"),
    ],
)
def test_a_row_that_no_engine_can_have(tmp_path: Path, name: str, value: Any) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({**ROW, name: value}) + "\n")
    (tmp_path / "c.json").write_text("{}")
    with pytest.raises(HeadcountError, match=f"line 1.*{name}"):
        dispatch(["accuracy", "--logs", str(tmp_path / "rows.jsonl"), "--configs", str(tmp_path)])


def test_no_control_sign_reaches_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b]0;owned\x07\x9b31m\ud800"
    (tmp_path / "rows.jsonl").write_text(json.dumps({**ROW, "id": evil, "config": None}) + "\n")
    for form in (["--rows"], ["--json"]):
        assert (
            dispatch(["accuracy", "--logs", str(tmp_path / "rows.jsonl"), "--configs", str(tmp_path), *form])
            == 0
        )
        written = capsys.readouterr().out
        assert not any(sign in written for sign in "\x1b\x07\x9b\ud800")
        written.encode("utf-8")


def test_configs_that_are_no_files_of_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROW) + "\n")
    command = ["accuracy", "--logs", str(tmp_path / "rows.jsonl"), "--configs", str(tmp_path), "--json"]

    def reason() -> str:
        assert dispatch(command) == 0
        (tmp_path / "c.json").unlink()
        text: str = json.loads(capsys.readouterr().out)["rows"][0]["reason"]
        return text

    (tmp_path / "c.json").symlink_to("/dev/zero")
    assert "not a regular file" in reason()
    os.mkfifo(tmp_path / "c.json")
    assert "not a regular file" in reason()
    (tmp_path / "c.json").symlink_to("/etc/hostname")
    assert "not a regular file" in reason()


def layer(**changes: Any) -> dict[str, Any]:
    kept = {
        "kind": "full_attention",
        "block_size": 16,
        "kv_heads_per_rank": 8,
        "head_size": 128,
        "head_size_v": 128,
    }
    return {"count": 2, "layer": {**kept, "kv_dtype": "bfloat16", **changes}}


CASE = {
    "engine": "vllm",
    "engine_version": "0.33.0",
    "max_model_len": 2048,
    "max_in_flight_tokens": 16384,
    "mamba_cache_mode": "none",
    "hybrid_manager": True,
    "available_bytes": 10**9,
    "layers": [layer()],
    "expect": {"num_blocks": 1},
}


@pytest.mark.parametrize(
    "change",
    [
        {"layers": [layer(block_size=0)]},
        {"layers": [layer(head_size=-1)]},
        {"layers": [{"count": 1, "layer": {"kind": "mamba"}}]},
        {"layers": [layer(kind="sliding_window")]},
        {"layers": [{**layer(), "count": 0}]},
        {"layers": [{**layer(), "count": 10**9}]},
        {"layers": []},
        {"max_model_len": float("nan")},
        {"available_bytes": 1.5},
        {"expect": "ab"},
        {"expect": {}},
        {"engine_version": "zz"},
        {"mamba_cache_mode": "zz"},
    ],
)
def test_a_planner_case_that_is_none(tmp_path: Path, change: dict[str, Any]) -> None:
    (tmp_path / "cases.jsonl").write_text(json.dumps({**CASE, **change}) + "\n")
    with pytest.raises(HeadcountError, match="line 1"):
        dispatch(["accuracy", "--planner-cases", str(tmp_path / "cases.jsonl")])


def test_empty_tables(tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").write_text("\n")
    for words in (["--planner-cases", "none.jsonl"], ["--logs", "none.jsonl", "--configs", "."]):
        with pytest.raises(HeadcountError, match=r"no (row|case) in it"):
            dispatch(
                ["accuracy", *(str(tmp_path / word) if word == "none.jsonl" else word for word in words)]
            )


def test_a_calibration_replaces_regular_files_only(tmp_path: Path) -> None:
    log = Path(__file__).parents[2] / "docs/examples/vllm-0.19-start.log"
    os.mkfifo(tmp_path / "pipe")
    for target in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(HeadcountError, match="no regular file"):
            dispatch(["verify", "--log", str(log), "--gpu", "h100-80gb", "--save", str(target)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pipe"]
    with pytest.raises(HeadcountError, match="--gpu NAME"):
        dispatch(["verify", "--log", str(log), "--save", str(tmp_path / "c.json")])


def test_a_calibration_is_of_one_server(
    tmp_path: Path, ask: Callable[[str], dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Measured with one format of weights it says nothing of another: the bytes are others."""
    log = Path(__file__).parents[2] / "docs/examples/vllm-0.19-start.log"
    saved = str(tmp_path / "c.json")
    assert dispatch(["verify", "--log", str(log), "--gpu", "h100-80gb", "--save", saved]) == 0
    capsys.readouterr()
    base = "fit qwen2.5-7b --gpu h100-80gb --context 4096 --engine-version 0.19.0 --utilization 0.95"
    same = ask(f"{base} --calibration {saved}")
    assert same["kv_budget_bytes"] == round(58.53 * 2**30)
    for other in ("--weights fp8", "--kv fp8", "--max-seqs 64", "--memory 79GiB"):
        assert (
            ask(f"{base} {other} --calibration {saved}")["kv_budget_bytes"]
            == ask(f"{base} {other}")["kv_budget_bytes"]
        )
