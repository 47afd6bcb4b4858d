"""``headcount heads`` as a user meets it: a small saved model with a tokeniser, pages, JSON, pictures, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from random_decoders import LLAMA

from headcount.cli.main import dispatch
from headcount.errors import UnknownNameError, UsageError

pytestmark = [pytest.mark.reference]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama whose tokens are bytes."""
    import tokenizers
    import transformers

    folder = tmp_path_factory.mktemp("small")
    torch.manual_seed(0)
    settings = {**{key: value for key, value in LLAMA.items() if key != "model_type"}, "vocab_size": 256}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings)).save_pretrained(folder)
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    words = tokenizers.Tokenizer(tokenizers.models.BPE({sign: i for i, sign in enumerate(alphabet)}, []))
    words.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = tokenizers.decoders.ByteLevel()
    words.save(str(folder / "tokenizer.json"))
    return folder


def test_page(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["heads", str(model), "--tokens", "128", "--prune", "50%", "--kv-heads", "1"]) == 0
    page = capsys.readouterr().out
    assert all(len(line) <= 80 for line in page.splitlines())
    for part in (
        "18 in 3 layers",
        "ordinary.txt",
        "not found in this model",
        "Removing 9 of 18 heads",
        "<- removed",
    ):
        assert part in page, part
    assert "Pooling to 1 key/value head a layer" in page
    # Keys and values of 3 layers x 2 heads less, 8 + 8 numbers, 2 bytes.
    assert "192 B of 288 B (66.7 %) a token" in page


def test_document(model: Path, ask: Any, tmp_path: Path) -> None:
    text = tmp_path / "words.txt"
    text.write_text("The kettle sings before it boils. " * 20)
    found = ask(f"heads {model} --text {text} --tokens 200 --prune 0.2 --order random")
    assert found["text"] == {"name": "words.txt", "measured_tokens": 200, "held_out_tokens": 200}
    assert [(head["layer"], head["head"]) for head in found["heads"][:7]] == [(0, h) for h in range(6)] + [
        (1, 0)
    ]
    assert found["pruned"]["heads_removed"] == 4
    by_name = {trial["name"]: trial["perplexity"] for trial in found["pruned"]["trials"]}
    assert found["pruned"]["perplexity"] == pytest.approx(by_name["random, seed 0"], rel=1e-4)
    assert found["regrouped"] is None


def test_map(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "head.svg"
    assert dispatch(["heads", str(model), "--map", "1,5", "--svg", str(picture)]) == 0
    page = capsys.readouterr().out
    assert page.startswith("Layer 1, head 5")
    assert all(len(line) <= 80 for line in page.splitlines())
    root = ElementTree.fromstring(picture.read_text())
    assert root.tag.endswith("svg")
    assert dispatch(["heads", str(model), "--map", "1,5", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["tokens"]) == len(document["weights"]) == 32
    for number, row in enumerate(document["weights"]):
        assert sum(row) == pytest.approx(1, abs=1e-5)
        assert not any(row[number + 1 :])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--order random", "--prune"),
        ("--svg x.svg", "--map"),
        ("--map 1,5 --prune 0.2", "leave --prune"),
        ("--map 1", "18,6"),
        ("--map 9,0", "layer 9"),
        ("--map 0,9", "heads 0 to 5"),
        ("--tokens 10", "--tokens"),
        ("--prune 1.5", "--prune"),
        ("--text no-such-file", "cannot read"),
    ],
)
def test_refusals(model: Path, options: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        dispatch(["heads", str(model), *options.split()])
    assert "\n" not in str(raised.value)


def test_names(model: Path) -> None:
    with pytest.raises(UnknownNameError, match="importance"):
        dispatch(["heads", str(model), "--prune", "0.1", "--order", "importence"])
    with pytest.raises(UsageError, match="has no weights here"):
        dispatch(["heads", "llama-2-7b"])


def test_short_text(model: Path, tmp_path: Path) -> None:
    text = tmp_path / "short.txt"
    text.write_text("Too short.")
    with pytest.raises(UsageError, match="64 tokens or more"):
        dispatch(["heads", str(model), "--text", str(text)])
