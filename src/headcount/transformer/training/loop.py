"""The training loop: forward, our backward, clip, AdamW, step after step.

    L      = cross-entropy over all positions of the batch that have a target, labels smoothed
    g      = dL/dtheta, by hand (``ops/``) or by PyTorch's autograd (``derivatives``)
    g     <- g min(1, clip / |g|)
    theta <- AdamW(theta, g) at the schedule's rate

A batch may be cut over processes and into parts (``accumulate``). Each piece's mean is weighed by its share of the
batch's counted positions, so the step is the same however it is cut.

Sources: Vaswani et al. 2017, 5.3 and 5.4 (betas, eps, label smoothing); Loshchilov and Hutter 2019 (AdamW).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]

from headcount.errors import ModelFileError, UsageError
from headcount.record import Record
from headcount.transformer.layers import positive
from headcount.transformer.ops.cross_entropy import cross_entropy
from headcount.transformer.ops.operation import differentiate
from headcount.transformer.training import checkpoint
from headcount.transformer.training.batch import IGNORED, Batch, Task
from headcount.transformer.training.checkpoint import Snapshot
from headcount.transformer.training.parallel import ALONE, Group, like, whole
from headcount.transformer.training.schedule import Schedule

MOMENTS = ("step", "exp_avg", "exp_avg_sq")
# What may change between a checkpoint and its continuation: none of these changes what a step computes.
FREE = {"training.accumulate", "training.derivatives", "model.kernel"}


class Settings(Record):
    """How to train. ``batch`` rows per step, over all processes and parts together."""

    schedule: Schedule
    batch: int = 64
    accumulate: int = 1
    clip: float = 1.0
    label_smoothing: float = 0.0
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-9
    seed: int = 0
    derivatives: str = "by_hand"

    def _check(self) -> None:
        positive("training", batch=self.batch, accumulate=self.accumulate)
        if self.batch % self.accumulate:
            raise UsageError(f"training: batch {self.batch} does not divide into {self.accumulate} parts")
        if not self.clip > 0:
            raise UsageError(f"training: clip must be positive; given {self.clip}")
        if not 0 <= self.label_smoothing < 1:
            raise UsageError(
                f"training: label smoothing must be 0 or more and below 1; given {self.label_smoothing}"
            )


class Trainer:
    """A model on its way: ``run`` takes it to the last step; ``snapshot`` and ``restore`` cross a break."""

    def __init__(self, model: Module, task: Task, settings: Settings, *, group: Group = ALONE) -> None:
        if settings.batch % (group.size * settings.accumulate):
            raise UsageError(
                f"training: batch {settings.batch} does not divide into {group.size} processes "
                f"x {settings.accumulate} parts"
            )
        self.model = model.train()
        self.model_name = type(model).__name__
        self.task = task
        self.settings = settings
        self.group = group
        self.wrapped = group.wrap(model)
        self.optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=settings.schedule.peak,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self.losses: list[float] = []
        # Dropout must differ between processes; everything drawn before this line must not.
        torch.manual_seed(settings.seed * 1_000_003 + group.rank)

    def run(self, *, directory: str | None = None, every: int = 0) -> list[float]:
        """Train to the schedule's last step and return the loss of every step.

        With a ``directory`` a checkpoint is written every ``every`` steps (0: none in between) and after the last.
        """
        last = self.settings.schedule.steps
        for step in _shown(self, last):
            self.advance()
            if directory is not None and (step == last or (every and step % every == 0)):
                snapshot = self.snapshot()
                if self.group.rank == 0:
                    checkpoint.save(directory, snapshot)
                self.group.wait()
        return self.losses

    def advance(self) -> float:
        """Take one step and return its loss."""
        settings, group = self.settings, self.group
        step = len(self.losses) + 1
        batch = self.task.batch(settings.batch, step)
        counted = batch.counted()
        total = torch.zeros(())
        self.optimizer.zero_grad(set_to_none=True)
        rows = settings.batch // (group.size * settings.accumulate)
        with differentiate(settings.derivatives):
            for part in range(settings.accumulate):
                group.exchange(self.wrapped, now=part == settings.accumulate - 1)
                first = (part * group.size + group.rank) * rows
                loss = self._loss(batch.rows(slice(first, first + rows)), counted)
                loss.backward()  # type: ignore[no-untyped-call]
                total = total + loss.detach()
        value = float(group.mean(total))
        if not math.isfinite(value):
            raise UsageError(
                f"training: the loss is {value} at step {step:,}; a lower learning rate may help"
            )
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), settings.clip)
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = settings.schedule.rate(step)
        self.optimizer.step()
        self.losses.append(value)
        return value

    def _loss(self, piece: Batch, counted: int) -> Tensor:
        """The piece's share of the batch's mean, times the processes (whose gradients are averaged, not added)."""
        mean = cross_entropy(
            self.wrapped(*piece.arguments),
            piece.targets_BT,
            label_smoothing=self.settings.label_smoothing,
            ignore_index=IGNORED,
        )
        return mean * (piece.counted() / counted * self.group.size)

    def config(self) -> dict[str, Any]:
        """What a continuation must share with this run."""
        own = self.settings.as_dict()
        parts: dict[str, dict[str, Any]] = {
            "task": self.task.describe(),
            "schedule": own.pop("schedule").as_dict(),
            "model": {"name": self.model_name, **self.model.config.as_dict()},  # type: ignore[operator, union-attr]
            "training": {
                name: list(value) if isinstance(value, tuple) else value for name, value in own.items()
            },
        }
        return {f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()}

    def snapshot(self) -> Snapshot:
        """Everything the next step depends on; all processes must call it."""
        weights, moments = {}, {}
        for name, parameter in self.model.named_parameters():
            weights[name] = whole(parameter.detach()).clone()
            for moment in MOMENTS:
                moments[f"{name}/{moment}"] = whole(self.optimizer.state[parameter][moment]).clone()
        states = self.group.gather(torch.get_rng_state())
        return Snapshot(weights, moments, list(self.losses), self.config(), states)

    def restore(self, snapshot: Snapshot) -> None:
        """Continue from a snapshot.

        Raises
        ------
        UsageError: it was made with other choices.
        ModelFileError: its tensors are not those of this model.
        """
        # Only the cosine's rates depend on the last step; other runs may be made longer.
        free = FREE if self.settings.schedule.name == "cosine" else FREE | {"schedule.steps"}
        checkpoint.check_config(snapshot.config, self.config(), free=free)
        taken, last = len(snapshot.losses), self.settings.schedule.steps
        if taken > last:
            raise UsageError(f"checkpoint: it has taken {taken:,} steps, this run is to end at step {last:,}")
        processes = len(snapshot.random_states)
        if processes == self.group.size:
            torch.set_rng_state(snapshot.random_states[self.group.rank])
        elif snapshot.config["model.dropout"]:
            raise UsageError(
                f"checkpoint: {processes} processes drew dropout, here are {self.group.size}; start as many"
            )
        for name, parameter in self.model.named_parameters():
            stored = {"": _stored(snapshot.weights, name, parameter)}
            for moment in MOMENTS:
                shape = parameter if moment != "step" else torch.zeros(())
                stored[moment] = _stored(snapshot.moments, f"{name}/{moment}", shape)
            with torch.no_grad():
                parameter.copy_(like(stored.pop(""), parameter))
            self.optimizer.state[parameter] = {
                moment: value if moment == "step" else like(value, parameter)
                for moment, value in stored.items()
            }
        self.losses = list(snapshot.losses)


def _stored(tensors: dict[str, Tensor], name: str, wanted: Tensor) -> Tensor:
    found = tensors.get(name)
    if found is None or found.shape != wanted.shape or found.dtype != wanted.dtype:
        given = "is missing" if found is None else f"is {tuple(found.shape)} of {found.dtype}"
        raise ModelFileError(
            f"checkpoint: tensor {name} {given}; this model has {tuple(wanted.shape)} of {wanted.dtype}"
        )
    return found


def _shown(trainer: Trainer, last: int) -> Iterator[int]:
    """The steps still to take, with progress on stderr: a bar on a terminal, else a line every tenth of the way."""
    steps = range(len(trainer.losses) + 1, last + 1)
    if trainer.group.rank:
        yield from steps
        return
    if sys.stderr.isatty():
        with tqdm(total=last, initial=len(trainer.losses), unit="step", file=sys.stderr) as bar:
            for step in steps:
                yield step
                bar.set_postfix_str(f"loss {trainer.losses[-1]:.4f}", refresh=False)
                bar.update()
        return
    for step in steps:
        yield step
        if step % max(1, last // 10) == 0 or step == last:
            sys.stderr.write(f"step {step:,} of {last:,}  loss {trainer.losses[-1]:.4f}\n")
