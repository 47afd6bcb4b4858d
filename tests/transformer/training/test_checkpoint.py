"""Checkpoints: a resumed run is the uninterrupted one bit for bit; what is damaged or foreign is refused in one line."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from headcount.errors import HeadcountError, ModelFileError, UsageError
from headcount.transformer.training import checkpoint
from headcount.transformer.training.loop import Trainer

MakeTrainer = Callable[..., Trainer]


def interrupt(make_trainer: MakeTrainer, directory: Path, *, at: int, **choices: Any) -> None:
    """Train ``at`` steps of a longer run, write a checkpoint, and leave the random state elsewhere."""
    trainer = make_trainer(**choices)
    for _ in range(at):
        trainer.advance()
    checkpoint.save(str(directory), trainer.snapshot())
    torch.rand(100)


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "cosine"])
def test_resuming_is_bit_for_bit(make_trainer: MakeTrainer, tmp_path: Path, schedule: str) -> None:
    choices = {"steps": 12, "dropout": 0.2, "schedule": schedule}
    whole = make_trainer(**choices)
    wanted = whole.run()
    interrupt(make_trainer, tmp_path, at=5, **choices)
    resumed = make_trainer(**choices, weights=77)
    resumed.restore(checkpoint.load(str(tmp_path)))
    assert resumed.run() == wanted
    for own, other in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(own, other)


def test_run_writes_as_asked_and_keeps_the_newest_two(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    trainer = make_trainer(steps=11)
    trainer.run(directory=str(tmp_path), every=3)
    assert checkpoint.steps(str(tmp_path)) == [9, 11]
    assert sorted(os.listdir(tmp_path)) == ["step-11", "step-9"]
    found = load_file(tmp_path / "step-11" / "weights.safetensors")
    assert set(found) == {name for name, _ in trainer.model.named_parameters()}
    for name, parameter in trainer.model.named_parameters():
        assert torch.equal(found[name], parameter)


def test_nothing_is_pickled(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    """safetensors and JSON readers of others can read all of it."""
    interrupt(make_trainer, tmp_path, at=2)
    folder = tmp_path / "step-2"
    assert sorted(os.listdir(folder)) == ["moments.safetensors", "state.json", "weights.safetensors"]
    for name in ("weights", "moments"):
        with safe_open(folder / f"{name}.safetensors", framework="np") as file:
            assert file.keys()
    state = json.loads((folder / "state.json").read_text())
    assert state["step"] == 2 and len(state["losses"]) == 2 and len(state["random_states"]) == 1


def test_a_longer_run_may_continue_a_shorter_one(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    make_trainer(steps=4).run(directory=str(tmp_path))
    longer = make_trainer(steps=9)
    longer.restore(checkpoint.load(str(tmp_path)))
    assert longer.run() == make_trainer(steps=9).run()


def test_a_crash_while_writing_leaves_the_older_one(
    make_trainer: MakeTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer()
    trainer.advance()
    checkpoint.save(str(tmp_path), trainer.snapshot())
    trainer.advance()

    def broken(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.json, "dump", broken)
        with pytest.raises(UsageError, match="cannot be written: No space left on device"):
            checkpoint.save(str(tmp_path), trainer.snapshot())
    assert len(checkpoint.load(str(tmp_path)).losses) == 1
    checkpoint.save(str(tmp_path), trainer.snapshot())
    assert sorted(os.listdir(tmp_path)) == ["step-1", "step-2"]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(bytes(content))


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda d: cut(d / "weights.safetensors"), "weights.safetensors is damaged (its SHA-256 differs)"),
        (lambda d: flip(d / "moments.safetensors"), "moments.safetensors is damaged (its SHA-256 differs)"),
        (lambda d: (d / "weights.safetensors").unlink(), "No such file"),
        (lambda d: cut(d / "state.json"), "damaged or incomplete (JSONDecodeError"),
        (lambda d: (d / "state.json").write_text("[]"), "damaged or incomplete"),
        (lambda d: (d / "state.json").write_bytes(b"\xff\x00"), "damaged or incomplete"),
        (lambda d: edit(d / "state.json", format="other"), "format 'other' is not"),
        (lambda d: edit(d / "state.json", losses=[1.0]), "step and losses disagree"),
        (lambda d: edit(d / "state.json", losses="abc"), "damaged or incomplete"),
        (lambda d: edit(d / "state.json", random_states=["?"]), "damaged or incomplete"),
        (lambda d: edit(d / "state.json", sha256={}), "damaged or incomplete"),
    ],
)
def test_damage_is_refused(
    make_trainer: MakeTrainer, tmp_path: Path, damage: Callable[[Path], None], words: str
) -> None:
    interrupt(make_trainer, tmp_path, at=1)
    interrupt(make_trainer, tmp_path, at=2)
    damage(tmp_path / "step-2")
    with pytest.raises(ModelFileError) as caught:
        checkpoint.load(str(tmp_path))
    assert words in str(caught.value) and "\n" not in str(caught.value)
    if "format" not in words:
        assert "without it the run resumes at step 1" in str(caught.value)


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"width": 8}, "model.width is 16 in the checkpoint, 8 here"),
        ({"task": "copy"}, "task.name is 'reverse' in the checkpoint, 'copy' here"),
        ({"clip": 2.0}, "training.clip is 1.0 in the checkpoint, 2.0 here"),
        ({"schedule": "cosine"}, "schedule.name is 'inverse_sqrt' in"),
        ({"dropout": 0.3}, "model.dropout is 0.0 in the checkpoint, 0.3 here"),
    ],
)
def test_other_choices_are_refused(
    make_trainer: MakeTrainer, tmp_path: Path, choices: dict[str, Any], words: str
) -> None:
    interrupt(make_trainer, tmp_path, at=2)
    with pytest.raises(UsageError) as caught:
        make_trainer(**choices).restore(checkpoint.load(str(tmp_path)))
    assert words in str(caught.value)


def test_foreign_tensors_are_refused(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    interrupt(make_trainer, tmp_path, at=2)
    snapshot = checkpoint.load(str(tmp_path))
    with pytest.raises(
        ModelFileError, match=re.escape("is (40, 16) of torch.float32; this model has (40, 16)")
    ):
        make_trainer(dtype=torch.float64).restore(snapshot)
    del snapshot.moments["decoder.blocks.0.attention.key.bias/exp_avg"]
    with pytest.raises(ModelFileError, match=r"key\.bias/exp_avg is missing"):
        make_trainer().restore(snapshot)


def test_a_checkpoint_past_the_end_is_refused(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    interrupt(make_trainer, tmp_path, at=6)
    with pytest.raises(UsageError, match="it has taken 6 steps, this run is to end at step 5"):
        make_trainer(steps=5).restore(checkpoint.load(str(tmp_path)))


def test_dropout_is_drawn_by_as_many_processes(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    interrupt(make_trainer, tmp_path, at=2, dropout=0.1)
    snapshot = checkpoint.load(str(tmp_path))
    with pytest.raises(UsageError, match="2 processes drew dropout, here are 1; start as many"):
        make_trainer(dropout=0.1).restore(snapshot._replace(random_states=snapshot.random_states * 2))


def test_nothing_to_resume(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no checkpoint here"):
        checkpoint.load(str(tmp_path / "nothing"))
    (tmp_path / "file").write_text("")
    with pytest.raises(HeadcountError):
        checkpoint.load(str(tmp_path / "file"))
