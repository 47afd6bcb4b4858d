"""The catalogue's index is fresh, and every entry builds to its independently known parameter count."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from headcount.spec import catalogue
from headcount.spec.reader import read_model

SCRIPT = Path(__file__).parent.parent.parent / "scripts/catalogue_index.py"
ENTRIES = [
    json.loads(path.read_text())
    for path in sorted(Path(catalogue.FOLDER).glob("*.json"))
    if path.stem != "index"
]


def test_index_is_fresh() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry["name"] for entry in ENTRIES])
def test_entry_has_its_known_parameters(entry: dict[str, object]) -> None:
    """Counts of the reference classes and published totals, both recorded in the entry, are not ours."""
    known = (
        entry.get("transformers_language_parameters")
        or entry.get("transformers_parameters")
        or entry.get("published_parameters")
    )
    model = read_model(str(entry["name"]))
    assert model.parameters > 0
    if known is not None:
        assert model.parameters == known


def test_an_alias_in_any_case_finds_its_model() -> None:
    assert read_model("META-LLAMA/llama-2-7B-hf").name == "llama-2-7b"
