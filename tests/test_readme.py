"""The README's examples are run; every digit must be what the program prints today."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
EXAMPLES = re.findall(r"```console\n\$ headcount ([^\n]*)\n(.*?)```", README.read_text(), re.S)


@pytest.mark.parametrize(("command", "expected"), EXAMPLES, ids=[command for command, _ in EXAMPLES])
def test_example_prints_what_the_readme_shows(command: str, expected: str) -> None:
    if command.startswith(("explain", "prove")):
        pytest.importorskip("torch", reason="derivations and proofs run the transformer")
    done = subprocess.run(
        [sys.executable, "-m", "headcount", *command.split()], capture_output=True, text=True, check=True
    )
    assert done.stdout + done.stderr == expected


def test_readme_has_examples_and_exactly_two_set_up_commands() -> None:
    assert len(EXAMPLES) >= 4
    assert len(re.findall(r"```bash\n", README.read_text())) == 2


def test_readme_counts_are_true() -> None:
    from headcount.spec import catalogue
    from headcount.spec.huggingface.registry import supported_types

    text = README.read_text()
    assert f"{len(catalogue.index())} models" in text
    assert f"{len(supported_types())} model types" in text


def test_readme_count_of_running_types_is_true() -> None:
    pytest.importorskip("torch")
    from headcount.transformer.families.registry import families

    assert f"{len(families())} model types run" in README.read_text()
