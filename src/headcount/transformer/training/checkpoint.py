"""Checkpoints: weights and moments as safetensors, everything else as JSON; nothing is unpickled.

    DIR/step-300/weights.safetensors     parameters by name
                 moments.safetensors     AdamW's step count and two moments of each, as NAME/exp_avg ...
                 state.json              step, losses, configuration, random states, SHA-256 of the other two

Atomic: a checkpoint is written under another name, flushed to disk, then renamed. A crash leaves the older one.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from headcount.errors import ModelFileError, UsageError

FORMAT = "headcount training checkpoint 1"
WEIGHTS, MOMENTS, STATE = "weights.safetensors", "moments.safetensors", "state.json"
KEPT = 2
_UNFINISHED = ".unfinished-"


class Snapshot(NamedTuple):
    """All that a run is at one moment: ``losses`` has one entry per step taken."""

    weights: dict[str, Tensor]
    moments: dict[str, Tensor]
    losses: list[float]
    config: dict[str, Any]
    random_states: list[Tensor]


def save(directory: str, snapshot: Snapshot) -> str:
    """Write ``DIR/step-N`` and return its path; the newest ``KEPT`` are kept.

    Raises
    ------
    UsageError: the directory cannot be written.
    """
    step = len(snapshot.losses)
    target = os.path.join(directory, f"step-{step}")
    unfinished = os.path.join(directory, f"{_UNFINISHED}{step}")
    try:
        os.makedirs(directory, exist_ok=True)
        for name in os.listdir(directory):
            if name.startswith(_UNFINISHED):
                shutil.rmtree(os.path.join(directory, name))
        os.mkdir(unfinished)
        files = {WEIGHTS: snapshot.weights, MOMENTS: snapshot.moments}
        digests = {}
        for name, tensors in files.items():
            path = os.path.join(unfinished, name)
            save_file({key: value.detach().contiguous() for key, value in tensors.items()}, path)
            digests[name] = _digest(path)
        document = {
            "format": FORMAT,
            "step": step,
            "config": snapshot.config,
            "losses": snapshot.losses,
            "random_states": [
                base64.b64encode(state.numpy().tobytes()).decode() for state in snapshot.random_states
            ],
            "sha256": digests,
        }
        with open(os.path.join(unfinished, STATE), "w", encoding="utf-8") as file:
            json.dump(document, file, allow_nan=False)
        _flush(unfinished)
        if os.path.isdir(target):
            shutil.rmtree(target)
        os.rename(unfinished, target)
        _flush_directory(directory)
        for old in steps(directory)[:-KEPT]:
            shutil.rmtree(os.path.join(directory, f"step-{old}"))
    except OSError as error:
        raise UsageError(f"checkpoint {directory}: cannot be written: {error.strerror or error}") from None
    return target


def steps(directory: str) -> list[int]:
    """The steps of which a directory holds a checkpoint, ascending; none when it is not there."""
    if not os.path.isdir(directory):
        return []
    names = [name.removeprefix("step-") for name in os.listdir(directory) if name.startswith("step-")]
    return sorted(int(name) for name in names if name.isdecimal())


def load(directory: str) -> Snapshot:
    """Read the newest checkpoint.

    Raises
    ------
    UsageError: the directory holds none.
    ModelFileError: a file is missing, damaged, or not what its digest says.
    """
    found = steps(directory)
    if not found:
        raise UsageError(f"checkpoint {directory}: no checkpoint here (step-N/{STATE})")
    path = os.path.join(directory, f"step-{found[-1]}")
    try:
        with open(os.path.join(path, STATE), encoding="utf-8") as file:
            document = json.load(file)
        if document["format"] != FORMAT:
            raise ModelFileError(f"checkpoint {path}: format {document['format']!r} is not {FORMAT!r}")
        for name in (WEIGHTS, MOMENTS):
            if _digest(os.path.join(path, name)) != document["sha256"][name]:
                raise ModelFileError(
                    f"checkpoint {path}: {name} is damaged (its SHA-256 differs){_older(found)}"
                )
        snapshot = Snapshot(
            load_file(os.path.join(path, WEIGHTS)),
            load_file(os.path.join(path, MOMENTS)),
            [float(loss) for loss in document["losses"]],
            dict(document["config"]),
            [
                torch.frombuffer(bytearray(base64.b64decode(text, validate=True)), dtype=torch.uint8)
                for text in document["random_states"]
            ],
        )
        if document["step"] != len(snapshot.losses) or document["step"] != found[-1]:
            raise ValueError("step and losses disagree")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        words = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        raise ModelFileError(f"checkpoint {path}: damaged or incomplete ({words}){_older(found)}") from None
    return snapshot


def check_config(found: dict[str, Any], asked: dict[str, Any], *, free: set[str]) -> None:
    """Raise UsageError naming the first entry that differs; those in ``free`` may."""
    for name in sorted({*found, *asked} - free):
        if found.get(name) != asked.get(name):
            if name.startswith("schedule."):
                raise UsageError(
                    f"checkpoint: {name} is {found.get(name)!r} in the checkpoint, {asked.get(name)!r} here; a cosine's "
                    "rates depend on its last step: only constant and inverse_sqrt, chosen at the start, can be extended"
                )
            raise UsageError(
                f"checkpoint: {name} is {found.get(name)!r} in the checkpoint, {asked.get(name)!r} here; "
                "resume with the same choices"
            )


def _older(found: list[int]) -> str:
    return f"; without it the run resumes at step {found[-2]:,}" if len(found) > 1 else ""


def _digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(directory: str) -> None:
    """Put every file of a directory on the disk."""
    for name in os.listdir(directory):
        with open(os.path.join(directory, name), "rb") as file:
            os.fsync(file.fileno())
    _flush_directory(directory)


def _flush_directory(directory: str) -> None:
    if os.name != "posix":
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
