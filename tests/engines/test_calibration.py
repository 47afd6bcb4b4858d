"""Calibration files and engine arguments: what is refused, and that what is measured is used."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headcount.cli.main import dispatch
from headcount.engines.arguments import Argument, read_arguments
from headcount.engines.calibration import FORMAT, Calibration, read_calibration, write_calibration
from headcount.errors import HeadcountError, UsageError

GOOD = {
    "format": FORMAT,
    "engine": "vllm",
    "engine_version": "0.19.0",
    "model": "llama-3.1-8b",
    "gpu": "h100-80gb",
    "tp": 1,
    "pp": 1,
    "origin": "a test",
}
FIT = "fit llama-3.1-8b --gpu h100-80gb --context 8192 --engine-version 0.19.0 --utilization 0.95"


def written(tmp_path: Path, **changes: Any) -> str:
    path = tmp_path / "c.json"
    path.write_text(json.dumps({**GOOD, **changes}))
    return str(path)


def test_measured_terms_replace_predicted_ones(tmp_path: Path, ask: Callable[[str], dict[str, Any]]) -> None:
    """llm-d-planner PR 205: 79.19 GiB, weights 14.99, activation 1.99, non-torch 0.25 leave 58.00 GiB at 0.95."""
    gib = 2**30
    path = written(
        tmp_path,
        device_bytes=round(79.19 * gib),
        weight_bytes=round(14.99 * gib),
        activation_bytes=round(1.99 * gib),
        non_torch_bytes=round(0.25 * gib),
    )
    plan = ask(f"{FIT} --calibration {path}")
    assert plan["kv_budget_bytes"] / gib == pytest.approx(79.19 * 0.95 - 14.99 - 1.99 - 0.25, abs=0.001)
    assert plan["conversations_low"] == plan["conversations_high"] == plan["conversations"]


def test_a_calibration_that_does_not_apply_is_said(
    tmp_path: Path, ask: Callable[[str], dict[str, Any]]
) -> None:
    path = written(tmp_path, gpu="a100-80gb", device_bytes=2**30)
    plan = ask(f"{FIT} --calibration {path}")
    assert plan["conversations"] > 0
    assert any("does not apply" in warning and path in warning for warning in plan["warnings"])


BAD = [
    ({"format": "other"}, "not a calibration file"),
    ({"tp": 0}, "at least 1"),
    ({"tp": "one"}, "tp is 'one'"),
    ({"weight_bytes": -1}, "weight_bytes is -1"),
    ({"weight_bytes": 1.5}, "weight_bytes is 1.5"),
    ({"weight_bytes": True}, "weight_bytes is True"),
    ({"utilization": 2}, "utilization is 2"),
    ({"surprise": 1}, "unknown entry 'surprise'"),
    ({"model": 3}, "model is 3"),
]


@pytest.mark.parametrize(("change", "words"), BAD)
def test_bad_files(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_calibration(written(tmp_path, **change))


@pytest.mark.parametrize("text", ["", "[]", "{", "\x00", "[" * 100_000, "null"])
def test_files_that_are_no_objects(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(UsageError, match=r"not JSON|not a calibration"):
        read_calibration(str(tmp_path / "c.json"))


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    made = Calibration(**{k: v for k, v in GOOD.items() if k != "format"}, weight_bytes=7, utilization=0.9)
    path = str(tmp_path / "out.json")
    write_calibration(made, path)
    assert read_calibration(path) == made.replace(path=path)
    assert [file.name for file in tmp_path.iterdir()] == ["out.json"]
    with pytest.raises(UsageError, match="cannot be written"):
        write_calibration(made, str(tmp_path / "no" / "out.json"))


ARGUMENTS = (
    Argument(name="block-size", kind="count", help="", default=16),
    Argument(name="drafts", kind="count", help="", default=0, least=0),
    Argument(name="eager", kind="flag", help="", default=False),
    Argument(name="share", kind="fraction", help=""),
    Argument(name="cache", kind="bytes", help=""),
    Argument(name="mode", kind="choice", help="", choices=("none", "align")),
)


def test_arguments_are_typed() -> None:
    given = [
        ("--block_size", "32"),
        ("drafts", "0"),
        ("eager", ""),
        ("share", "0.5"),
        ("cache", "1GiB"),
        ("mode", "align"),
    ]
    values = read_arguments(given, ARGUMENTS, engine="x")
    assert values == {
        "block-size": 32,
        "drafts": 0,
        "eager": True,
        "share": 0.5,
        "cache": 2**30,
        "mode": "align",
    }


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        (("blok-size", "1"), "nearest: block-size"),
        (("block-size", "0"), "block-size"),
        (("block-size", "-1"), "block-size"),
        (("eager", "maybe"), "neither true nor false"),
        (("mode", "all"), "allowed: none, align"),
        (("share", "1.5"), "share"),
        (("cache", "much"), "cache"),
    ],
)
def test_bad_arguments(pair: tuple[str, str], words: str) -> None:
    with pytest.raises(HeadcountError, match=words):
        read_arguments([pair], ARGUMENTS, engine="x")


def test_arguments_on_the_command_line() -> None:
    with pytest.raises(UsageError, match="nearest: block-size"):
        dispatch([*FIT.split(), "--engine-arg", "blocksize=32"])
    with pytest.raises(UsageError, match="given twice"):
        dispatch([*FIT.split(), "--engine-arg", "block-size=32", "--engine-arg", "block-size=16"])
    with pytest.raises(UsageError, match="has no name"):
        dispatch([*FIT.split(), "--engine-arg", "=32"])


def test_too_close_to_call(ask: Callable[[str], dict[str, Any]]) -> None:
    """Qwen3-32B on one H100: 4.45 GiB were left (0.11 to 0.16, llm-d-planner), two conversations of 8,192 tokens."""
    question = "fit qwen3-32b --gpu h100-80gb --context 8192 --engine-version 0.12.0 --utilization 0.9"
    plan = ask(question)
    assert plan["conversations_low"] <= 2 <= plan["conversations_high"]
    assert plan["conversations_low"] < plan["conversations_high"]
    close = ask(f"{question} --users {plan['conversations_high']}")
    assert any("too close to call" in warning for warning in close["warnings"])
    clear = ask(f"{question} --users {plan['conversations_high'] + 1}")
    assert not any("too close to call" in warning for warning in clear["warnings"])


def words_of(plan: dict[str, Any], path: str) -> str:
    (found,) = (warning for warning in plan["warnings"] if path in warning)
    return str(found)


def test_graphs_that_the_release_does_not_charge_take_nothing(
    tmp_path: Path, ask: Callable[[str], dict[str, Any]]
) -> None:
    """vLLM 0.10 captures its graphs after the cache is sized: 0.62 GiB of them leave the 54.50 GiB that were printed."""
    question = FIT.replace("0.19.0", "0.10.0").replace("0.95", "0.9")
    path = written(
        tmp_path,
        engine_version="0.10.0",
        graph_bytes=round(0.62 * 2**30),
        cache_bytes=round(54.5 * 2**30),
        utilization=0.9,
    )
    plan = ask(f"{question} --calibration {path}")
    assert plan["conversations"] == 54 and plan["kv_budget_bytes"] == round(54.5 * 2**30)
    assert words_of(plan, path).endswith("(a test): cache")


def test_a_cache_of_another_utilization_is_not_said_to_be_used(
    tmp_path: Path, ask: Callable[[str], dict[str, Any]]
) -> None:
    terms = {"weight_bytes": round(14.99 * 2**30), "cache_bytes": 40 * 2**30, "utilization": 0.7}
    path = written(tmp_path, **terms)
    plan = ask(f"{FIT} --calibration {path}")
    assert plan["kv_budget_bytes"] > 50 * 2**30
    assert words_of(plan, path).endswith(": weight; not the cache, whose utilization was 0.7")


def test_a_default_is_the_same_said_or_not(tmp_path: Path, ask: Callable[[str], dict[str, Any]]) -> None:
    """8,192 batched tokens and 1,024 sequences are the API server's own on an H100 (vllm/engine/arg_utils.py)."""
    said = written(tmp_path, weight_bytes=round(14.99 * 2**30), max_num_batched_tokens=8192)
    assert words_of(ask(f"{FIT} --calibration {said}"), said).endswith(": weight")
    left_out = written(tmp_path, weight_bytes=round(14.99 * 2**30))
    assert words_of(ask(f"{FIT} --max-seqs 1024 --calibration {left_out}"), left_out).endswith(": weight")
    other = ask(f"{FIT} --max-seqs 256 --calibration {left_out}")
    assert words_of(other, left_out).endswith("does not apply: max_num_seqs is 1024 there, 256 here")


def test_a_format_is_the_same_by_name_or_by_default(
    tmp_path: Path, ask: Callable[[str], dict[str, Any]]
) -> None:
    """Llama 3.1's own type is bf16, so that ``auto`` is bf16 for weights and cache."""
    terms = {"weight_bytes": round(14.99 * 2**30)}
    auto = written(tmp_path, **terms)
    assert words_of(ask(f"{FIT} --kv bf16 --weights bf16 --calibration {auto}"), auto).endswith(": weight")
    named = written(tmp_path, **terms, kv="bf16", weights="bf16")
    assert words_of(ask(f"{FIT} --calibration {named}"), named).endswith(": weight")
    other = words_of(ask(f"{FIT} --kv fp8 --calibration {named}"), named)
    assert other.endswith("does not apply: the cache's format is bf16 there, fp8 here")


def test_an_argument_that_changes_terms_is_compared(
    tmp_path: Path, ask: Callable[[str], dict[str, Any]]
) -> None:
    path = written(tmp_path, weight_bytes=round(14.99 * 2**30), arguments={"enforce-eager": "true"})
    eager = ask(f"{FIT} --engine-arg enforce-eager=1 --calibration {path}")
    assert words_of(eager, path).endswith(": weight")
    plan = ask(f"{FIT} --calibration {path}")
    assert words_of(plan, path).endswith("does not apply: enforce-eager is True there, False here")
    odd = written(tmp_path, weight_bytes=1, arguments={"enforce-eager": "maybe"})
    assert "its settings are not to be read" in words_of(ask(f"{FIT} --calibration {odd}"), odd)


@pytest.mark.parametrize("arguments", [[], "x", {"a": 1}, {str(i): "" for i in range(101)}])
def test_bad_arguments_in_a_file(tmp_path: Path, arguments: object) -> None:
    with pytest.raises(UsageError, match="arguments is"):
        read_calibration(written(tmp_path, arguments=arguments))


def test_a_pipe_is_no_calibration(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="not a regular file"):
        read_calibration(str(tmp_path / "pipe"))
    with pytest.raises(UsageError) as raised:
        read_calibration("x" * 100_000)
    assert len(str(raised.value)) < 300
