"""Every entry of a checkpoint's small files with a value of another type: the model loads, or one clear error."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from small_checkpoint import save_small_checkpoint

from headcount.errors import HeadcountError

VALUES: list[Any] = [
    None,
    [],
    {},
    ["x"],
    [["x"]],
    {"a": []},
    [{"name": ["default"], "template": "x"}],
    "\ud800",
    True,
    1.5,
    -1,
    "x",
]
TOKENIZER = (
    "chat_template",
    "bos_token",
    "eos_token",
    "add_bos_token",
    "additional_special_tokens",
    "tokenizer_class",
)
GENERATION = ("eos_token_id", "bos_token_id", "temperature")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    save_small_checkpoint(folder)
    return folder


def opens(folder: Path) -> bool:
    """Whether model and tokenizer can be used; HeadcountError is the one refusal that there may be."""
    from headcount.transformer.weights.model import load_model
    from headcount.transformer.weights.tokenizer import read_tokenizer

    try:
        load_model(str(folder))
        read_tokenizer(str(folder))
    except HeadcountError as error:
        assert "\n" not in str(error) and len(str(error)) < 1000
        return False
    return True


def test_any_type_anywhere(good: Path, tmp_path: Path) -> None:
    assert opens(good)
    folder = tmp_path / "changed"
    shutil.copytree(good, folder)
    keys = {
        "config.json": [
            *json.loads((good / "config.json").read_text()),
            "rope_scaling",
            "quantization_config",
        ],
        "tokenizer_config.json": TOKENIZER,
        "generation_config.json": GENERATION,
    }
    opened = 0
    for file, names in keys.items():
        path = folder / file
        before = path.read_text() if path.exists() else None
        whole = json.loads(before) if before else {}
        for name in names:
            for value in VALUES:
                path.write_text(json.dumps({**whole, name: value}))
                opened += opens(folder)
        path.write_text(before or "{}")
    assert opened > 50
