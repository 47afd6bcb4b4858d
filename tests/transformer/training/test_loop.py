"""The loop: our gradients against PyTorch's over 50 steps, and the step against one written with PyTorch alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from headcount.errors import UsageError
from headcount.transformer.ops.operation import differentiate
from headcount.transformer.training.batch import Batch
from headcount.transformer.training.loop import Settings, Trainer
from headcount.transformer.training.schedule import Schedule

MakeTrainer = Callable[..., Trainer]


def test_fifty_steps_by_hand_equal_fifty_by_autograd(make_trainer: MakeTrainer) -> None:
    """Float64, dropout on: the same masks are drawn in both."""
    curves = [
        make_trainer(steps=50, dropout=0.1, dtype=torch.float64, derivatives=mode, label_smoothing=0.1).run()
        for mode in ("by_hand", "autograd")
    ]
    assert curves[0] == pytest.approx(curves[1], abs=1e-5)
    assert curves[0][-1] < 0.8 * curves[0][0]


@pytest.mark.parametrize("accumulate", [1, 4])
def test_equals_a_loop_of_plain_pytorch(make_trainer: MakeTrainer, accumulate: int) -> None:
    """The same model and data under F.cross_entropy, autograd, clip_grad_norm_, AdamW and LambdaLR, uncut batches."""
    trainer = make_trainer(
        steps=20, dtype=torch.float64, accumulate=accumulate, label_smoothing=0.1, clip=0.5
    )
    other = make_trainer(dtype=torch.float64)
    model, task = other.model, other.task
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=0.01, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.01, fused=False
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: min((done + 1) / 5, (5 / (done + 1)) ** 0.5)
    )
    wanted = []
    for number in range(1, 21):
        batch = task.batch(8, number)
        with differentiate("autograd"):
            logits = model(*batch.arguments)
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), batch.targets_BT.flatten(), label_smoothing=0.1
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        wanted.append(loss.item())
    assert trainer.run() == pytest.approx(wanted, abs=1e-9)


def test_seeds(make_trainer: MakeTrainer) -> None:
    assert make_trainer(dropout=0.1).run() == make_trainer(dropout=0.1).run()
    assert make_trainer(dropout=0.1).run() != make_trainer(dropout=0.1, weights=6).run()


def test_progress_is_on_stderr(make_trainer: MakeTrainer, capsys: pytest.CaptureFixture[str]) -> None:
    make_trainer(steps=20).run()
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 10 and "step 20 of 20  loss " in err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch": 0}, "batch must be a whole number of 1 or more; given 0"),
        ({"accumulate": 3}, "batch 64 does not divide into 3 parts"),
        ({"clip": 0.0}, "clip must be positive; given 0.0"),
        ({"label_smoothing": 1.0}, "label smoothing must be 0 or more and below 1; given 1.0"),
    ],
)
def test_refusals(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        Settings(schedule=Schedule(name="constant", peak=0.1, warmup=0, steps=1), **changes)
    assert words in str(caught.value)


def test_a_loss_that_is_not_finite_stops_the_run(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer()
    for parameter in trainer.model.parameters():
        parameter.data.mul_(float("nan"))
    with pytest.raises(UsageError, match="the loss is nan at step 1; a lower learning rate may help"):
        trainer.run()


def test_pieces_of_unequal_length_weigh_by_their_tokens(make_trainer: MakeTrainer) -> None:
    """One row with six targets, one with a single target: the mean is over seven tokens, however the batch is cut."""

    class Uneven:
        name, vocabulary = "uneven", 40

        def describe(self) -> dict[str, Any]:
            return {"name": self.name}

        def batch(self, rows: int, number: int) -> Batch:
            ids = torch.tensor([[4, 5, 6, 7, 8, 2], [4, 2, 0, 0, 0, 0]]).repeat(rows // 2, 1)
            return Batch((ids, ids, ids != 0), ids.where(ids != 0, -100))

    losses = []
    for accumulate in (1, 8):
        trainer = make_trainer(dtype=torch.float64, accumulate=accumulate)
        trainer.task = Uneven()
        losses.append(trainer.run())
    assert losses[0] == pytest.approx(losses[1], abs=1e-12)
