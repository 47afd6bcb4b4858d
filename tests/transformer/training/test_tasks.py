"""Toys and texts: right answers, held-out data kept out, the same batches for the same seed."""

from __future__ import annotations

import math
import re
import zlib
from pathlib import Path

import pytest
import torch
from torch import Tensor

from headcount.errors import HeadcountError
from headcount.transformer.training import text
from headcount.transformer.training.batch import IGNORED
from headcount.transformer.training.toys import END, PAD, START, Toy

TOYS = ["copy", "reverse", "sort", "addition"]


def strings(toy: Toy, number: int, rows: int = 64) -> list[tuple[str, str, str]]:
    """(source, decoder input, target) of a batch, read back from the ids."""
    (source_BS, input_BT, keep_BS), target_BT = toy.batch(rows, number)
    found = []
    for source, keep, given, target in zip(source_BS, keep_BS, input_BT, target_BT, strict=True):
        assert given[0] == START
        assert (source[~keep] == PAD).all() and source[keep][-1] == END
        length = int((target != IGNORED).sum())
        assert target[length - 1] == END and (given[length:] == PAD).all()
        assert torch.equal(given[1:length], target[: length - 1])
        found.append(
            (toy.decode(source.tolist()), toy.decode(given[1:length].tolist()), toy.decode(target.tolist()))
        )
    return found


@pytest.mark.parametrize("name", TOYS)
def test_answers(name: str) -> None:
    toy = Toy(name=name, length=9, seed=3)
    for source, given, target in strings(toy, 1):
        if name == "addition":
            left, right = source.split("+")
            wanted = str(int(left) + int(right))
            assert len(left) <= 4 and len(right) <= 4
        else:
            wanted = {"copy": list, "reverse": lambda s: s[::-1], "sort": sorted}[name](source)  # type: ignore[operator]
            wanted = "".join(wanted)
            assert re.fullmatch("[a-p]{1,9}", source)
        assert given == target == wanted


@pytest.mark.parametrize("name", TOYS)
def test_held_out_strings_never_come_up_in_training(name: str) -> None:
    toy = Toy(name=name, length=5, seed=1)
    held_out = set(toy.held_out(200))
    assert len(held_out) == 200
    trained = {source for number in range(60) for source, _, _ in strings(toy, number)}
    assert len(trained) > 500 and not trained & held_out
    assert all(zlib.crc32(source.encode()) % 10 == 0 for source in held_out)
    assert not any(zlib.crc32(source.encode()) % 10 == 0 for source in trained)


def test_unequal_lengths_in_one_batch() -> None:
    keep_BS = Toy(name="copy").batch(64, 5).arguments[2]
    lengths = keep_BS.sum(1) - 1
    assert int(lengths.min()) == 1 and int(lengths.max()) == 12


def test_batches_follow_from_seed_and_number() -> None:
    def ids(seed: int, number: int) -> list[list[int]]:
        found: list[list[int]] = Toy(name="sort", seed=seed).batch(4, number).targets_BT.tolist()
        return found

    assert ids(0, 7) == ids(0, 7)
    assert len({str(ids(seed, number)) for seed in range(3) for number in range(3)}) == 9


def test_text_of_bytes(tmp_path: Path) -> None:
    path = tmp_path / "text"
    content = bytes(range(256)) * 40
    path.write_bytes(content)
    task = text.read(str(path), length=16, seed=2)
    assert bytes(task.train_M.tolist()) + bytes(task.held_out_M.tolist()) == content
    assert len(task.held_out_M) == len(content) // 10
    (window_BT,), target_BT = task.batch(8, 3)
    assert window_BT.shape == target_BT.shape == (8, 16)
    assert torch.equal((window_BT + 1) % 256, target_BT)
    assert torch.equal(task.batch(8, 3).targets_BT, target_BT)
    assert not torch.equal(task.batch(8, 4).targets_BT, target_BT)


def test_text_of_byte_pairs_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "text"
    content = "Der Kopf zählt, the head counts, 頭は数える.\n" * 60
    path.write_text(content, encoding="utf-8")
    task = text.read(str(path), tokens="bpe", length=8)
    assert task.vocabulary == task.tokenizer.get_vocab_size() <= text.MERGES  # type: ignore[union-attr]
    assert len(task.train_M) < len(content.encode()) / 4
    assert task.decode(task.train_M.tolist()) + task.decode(task.held_out_M.tolist()) == content


@pytest.mark.parametrize("tokens", ["bytes", "bpe"])
def test_cost_of_a_model_that_knows_nothing(tmp_path: Path, tokens: str) -> None:
    """Equal logits: log2 V bits per token, perplexity V, whatever the text."""
    path = tmp_path / "text"
    path.write_text("to be or not to be, that is the question\n" * 200)
    task = text.read(str(path), tokens=tokens, length=32)

    def model(ids_BT: Tensor) -> Tensor:
        return torch.zeros(*ids_BT.shape, task.vocabulary, dtype=torch.float64)

    cost = task.held_out_cost(model)
    assert cost["tokens"] == len(task.held_out_M) - 1
    assert cost["perplexity"] == pytest.approx(task.vocabulary)
    bits = math.log2(task.vocabulary) * len(task.held_out_M) / task.held_out_bytes
    assert cost["bits_per_byte"] == pytest.approx(bits)
    assert task.held_out_cost(model, most=50)["bits_per_byte"] == pytest.approx(bits)


def test_baseline_is_the_entropy_of_the_frequencies(tmp_path: Path) -> None:
    """Three bytes a, b, c in proportion 2 : 1 : 1 carry 1.5 bits each; the 253 others' share is one count each."""
    path = tmp_path / "text"
    path.write_text("aabc" * 25_000)
    cost = text.read(str(path), length=16).held_out_cost(lambda ids_BT: torch.zeros(*ids_BT.shape, 256))
    assert cost["baseline_bits_per_byte"] == pytest.approx(1.5, abs=0.01)


def test_cost_sees_every_token_once(tmp_path: Path) -> None:
    """A model whose loss is the target's id itself: the sum tells which targets were counted."""
    path = tmp_path / "text"
    path.write_bytes(bytes(index % 7 for index in range(1500)))
    task = text.read(str(path), length=16)

    def model(ids_BT: Tensor) -> Tensor:
        # Logits whose log-softmax at v is -v log 2 up to a constant.
        return (-math.log(2) * torch.arange(256.0, dtype=torch.float64)).expand(*ids_BT.shape, 256)

    targets = task.held_out_M[1:].double()
    bits = targets + math.log2(sum(2.0**-v for v in range(256)))
    assert task.held_out_cost(model)["bits_per_byte"] == pytest.approx(float(bits.mean()))


@pytest.mark.parametrize(
    ("content", "tokens", "words"),
    [
        (b"short", "bytes", "more than 128 are needed"),
        (b"", "bytes", "0 tokens to train on"),
        (b"\xff\xfe" * 3000, "bpe", "not UTF-8 at byte 0"),
        (b"text" * 3000, "words", "unknown kind of tokens 'words'"),
    ],
)
def test_refused_texts(tmp_path: Path, content: bytes, tokens: str, words: str) -> None:
    path = tmp_path / "text"
    path.write_bytes(content)
    with pytest.raises(HeadcountError, match=re.escape(words)) as caught:
        text.read(str(path), tokens=tokens)
    assert "\n" not in str(caught.value)


def test_refused_toys() -> None:
    with pytest.raises(HeadcountError, match="unknown task 'sorting'; nearest: sort"):
        Toy(name="sorting")
    with pytest.raises(HeadcountError, match="length must be 3 to 512"):
        Toy(name="sort", length=2)
    with pytest.raises(HeadcountError, match="cannot be read"):
        text.read("/nowhere/at/all")
