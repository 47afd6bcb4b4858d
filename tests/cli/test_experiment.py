"""``headcount experiment``: the list, bad values, PyTorch missing. None of these needs PyTorch."""

from __future__ import annotations

import json
import sys

import pytest

from headcount.cli.main import dispatch
from headcount.errors import HeadcountError
from headcount.experiments.option import Option
from headcount.experiments.registry import EXPERIMENTS, run
from headcount.experiments.result import Spread
from headcount.report.experiment_page import number_text


def test_the_list_names_all_nine(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["experiment"]) == 0
    text = capsys.readouterr().out
    for name in [
        "variance",
        "saturation",
        "gradients",
        "scaling",
        "heads",
        "norms",
        "equivariance",
        "recurrent",
        "crossover",
    ]:
        assert f"\n  {name} " in text
    assert max(len(line) for line in text.splitlines()) <= 80
    assert dispatch(["experiment", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["experiments"]) == len(EXPERIMENTS) == 9


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("variannce", "nearest: variance"),
        ("variance --seed -1", "--seed must be 0 to"),
        ("variance --seed x", "--seed 'x' is not a number"),
        ("variance --repeats 0", "--repeats must be 1 to 100"),
        ("variance --repeats 1.5", "whole number"),
        ("variance --pairs 3", "--pairs must be 1,000 to"),
        ("variance --rho 2", "--rho must be 0 to 1"),
        ("variance --rho nan", "--rho 'nan'"),
        ("variance --widths 64,2", "rising list"),
        ("variance --widths 64,,2", "--widths ''"),
        ("variance --keys 4", "takes no --keys; its options are --pairs, --widths, --rho"),
        ("variance more", "takes one NAME"),
        ("variance --sed 1", "nearest: --seed"),
        ("variance --seed=", "--seed has no value"),
        ("crossover --mask all", "allowed: everything, causal"),
        ("--quick", "which experiment?"),
        ("scaling --sgd-rates 0", "--sgd-rates must be"),
    ],
)
def test_bad_values_are_refused_in_one_line(command: str, words: str) -> None:
    with pytest.raises(HeadcountError) as caught:
        dispatch(["experiment", *command.split(" ")])
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("missing", ["torch", "jaxtyping"])
def test_without_pytorch_one_line_says_what_to_install(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(HeadcountError, match=r"pip install 'headcount\[transformer\]'"):
        dispatch(["experiment", "variance", "--quick"])


def test_values_of_a_python_call_are_checked_too() -> None:
    for bad in (
        {"pairs": 2.5},
        {"pairs": True},
        {"widths": ()},
        {"widths": "64"},
        {"rho": (2.0,)},
    ):
        with pytest.raises(HeadcountError):
            run("variance", **bad)  # type: ignore[arg-type]
    with pytest.raises(HeadcountError, match="--seed must be whole"):
        run("variance", seed=1.5)  # type: ignore[arg-type]


def test_every_default_is_allowed() -> None:
    for each in EXPERIMENTS.values():
        for option in each.options:
            assert option.check(option.default) == option.default
            assert option.check(option.quick) == option.quick


def test_parsing_of_lists() -> None:
    option = Option(name="head_widths", words="", default=(1, 2), quick=(1,), most=10**6)
    assert option.flag == "--head-widths"
    assert option.parse("64,1k") == (64, 1000)
    assert option.check([3, 4]) == (3, 4)


def test_spread_puts_what_never_came_last() -> None:
    spread = Spread.of([3, None, 1])
    assert (spread.median, spread.low, spread.high) == (3, 1, None)
    assert Spread.of([None, None, 1]).median is None
    assert Spread.of([1, 2]).over(2).median == 0.75


def test_numbers_as_text() -> None:
    assert number_text(1.7e-4, ".2g") == "0.00017"
    assert number_text(1.7e-5, ".2g") == "1.7e-5"
    assert number_text(0.02, "+-.3f") == "+-0.020"
    assert number_text(1234.5, ".3g") == "1,234"
    assert number_text(1e20, ".1e") == "1.0e+20"
