"""Two real processes under torchrun train as one does, with the same global batch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headcount
from headcount.cli.main import dispatch
from headcount.errors import HeadcountError
from headcount.transformer.training.parallel import join

SOURCE = str(Path(headcount.__file__).parents[1])
TASK = "train sort --batch 8 --length 6 --width 16 --layers 1 --heads 2 --seed 4 --schedule constant --json"


def train(options: str) -> dict[str, Any]:
    """The JSON of a run in two processes under torchrun."""
    command = f"-m torch.distributed.run --standalone --nproc-per-node 2 -m headcount {TASK} {options}"
    done = subprocess.run(
        [sys.executable, *command.split()],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": SOURCE},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    # The first process answers, the other is silent.
    assert done.stdout.count("\n") == 1
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_processes_train_as_one(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch([*TASK.split(), "--steps", "9"]) == 0
    alone = json.loads(capsys.readouterr().out)
    first = train(f"--steps 6 --parallel {kind} --accumulate 2 --checkpoint {tmp_path}/run")
    assert first["losses"] == pytest.approx(alone["losses"][:6], abs=1e-5)
    # Without dropout the processes hold no state of their own: one alone may go on from their checkpoint too.
    shutil.copytree(tmp_path / "run", tmp_path / "one")
    assert dispatch([*TASK.split(), "--steps", "9", "--checkpoint", f"{tmp_path}/one", "--resume"]) == 0
    assert json.loads(capsys.readouterr().out)["losses"] == pytest.approx(alone["losses"], abs=1e-5)
    resumed = train(f"--steps 9 --parallel {kind} --checkpoint {tmp_path}/run --resume")
    assert resumed["losses"] == pytest.approx(alone["losses"], abs=1e-5)
    assert resumed["held_out"] == alone["held_out"] and resumed["parameters"] == alone["parameters"]


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    assert join(None).size == 1
    with pytest.raises(
        HeadcountError, match="--parallel ddp runs under torchrun: torchrun --nproc-per-node 2"
    ):
        join("ddp")
    with pytest.raises(HeadcountError, match="unknown kind of parallel training 'ddd'; nearest: ddp"):
        join("ddd")
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "localhost")):
        monkeypatch.setenv(name, value)
    with pytest.raises(HeadcountError, match="torchrun started 2 processes; say --parallel ddp or fsdp"):
        join(None)
