"""The pages and JSON of real, small runs: 80 columns, one verdict, one object without NaN."""

from __future__ import annotations

import importlib.util
import json

import pytest

from headcount.cli.main import dispatch
from headcount.experiments.result import VERDICTS

pytestmark = [
    pytest.mark.transformer,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch"),
]
SMALL = {
    "variance": "--pairs 1000 --widths 2,8",
    "saturation": "--widths 4,16 --keys 8 --rows 64",
    "gradients": "--widths 4,1024 --keys 2,8 --rows 64",
    "scaling": "--steps 20 --head-widths 16 --tokens 4",
    "heads": "--steps 20 --heads 1,2 --blocks 0,1 --width 16 --tokens 4",
    "norms": "--depths 2,4 --width 16 --tokens 8",
    "equivariance": "--tokens 8 --width 16",
    "recurrent": "--width 16 --lengths 8,32",
    "crossover": "--lengths 16,32 --mask causal",
}


def not_a_number(text: str) -> float:
    raise AssertionError(f"JSON holds {text}")


@pytest.mark.parametrize("name", sorted(SMALL))
def test_page_and_json(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["experiment", name, "--repeats", "2", *SMALL[name].split()]
    assert dispatch(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines) <= 80
    assert not [line for line in lines if line.endswith("...")]
    assert sum(line.startswith("Claim ") for line in lines) == 1
    assert sum(line.startswith("Verdict ") for line in lines) == 1
    assert dispatch([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out, parse_constant=not_a_number)
    assert document["experiment"] == name
    assert document["seed"] == 0
    assert document["verdict"] in VERDICTS
    assert all(table["rows"] for table in document["tables"])
