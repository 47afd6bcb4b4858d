"""A small trainer that every test here takes a variant of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from headcount.transformer.stacks.config import EncoderDecoderConfig
from headcount.transformer.stacks.encoder_decoder import EncoderDecoder
from headcount.transformer.training.loop import Settings, Trainer
from headcount.transformer.training.schedule import Schedule
from headcount.transformer.training.toys import Toy


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums in one order: what is compared bit for bit must not depend on how threads meet."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def make_trainer() -> Callable[..., Trainer]:
    """``make_trainer(steps=..., dropout=..., dtype=..., ...)``: reverse on strings of at most 6, 16 wide, 1 + 1 blocks."""

    def make(
        *, steps: int = 8, dropout: float = 0.0, dtype: torch.dtype = torch.float32, **settings: Any
    ) -> Trainer:
        toy = Toy(name=settings.pop("task", "reverse"), length=6, seed=5)
        torch.manual_seed(settings.pop("weights", 5))
        config = EncoderDecoderConfig(
            vocabulary=toy.vocabulary,
            width=settings.pop("width", 16),
            layers=1,
            heads=2,
            feed_forward=32,
            dropout=dropout,
        )
        schedule = Schedule(name=settings.pop("schedule", "inverse_sqrt"), peak=0.01, warmup=5, steps=steps)
        model = EncoderDecoder(config).to(dtype)
        return Trainer(model, toy, Settings(schedule=schedule, batch=8, seed=5, **settings))

    return make
