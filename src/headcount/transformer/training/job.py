"""A training job from beginning to end: task and model from a few choices, the loop, and what was learnt.

A toy trains an encoder-decoder and is judged by exact match on held-out strings; a text file trains a decoder-only
model and is judged by its cost on the held-out tenth.
"""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from torch.nn import Module

from headcount.errors import UnknownNameError, UsageError
from headcount.record import Record
from headcount.transformer.stacks.config import DecoderOnlyConfig, EncoderDecoderConfig
from headcount.transformer.stacks.decoder_only import DecoderOnly
from headcount.transformer.stacks.encoder_decoder import EncoderDecoder
from headcount.transformer.training import checkpoint, text
from headcount.transformer.training.loop import Settings, Trainer
from headcount.transformer.training.parallel import Group, join, whole
from headcount.transformer.training.schedule import Schedule, published_peak
from headcount.transformer.training.text import Text
from headcount.transformer.training.toys import END, START, TOYS, Toy

HELD_OUT_STRINGS = 500
SAMPLE_TOKENS = 120
# Measured 2026-11-30 on 2 cores: each toy but addition is past 99 % exact after about a minute at these values on one thread.
TOY_DEFAULTS = {"length": 12, "width": 64, "layers": 2, "heads": 4, "steps": 1500, "batch": 64, "rate": 2e-3}
TEXT_DEFAULTS = {
    "length": 128,
    "width": 128,
    "layers": 4,
    "heads": 4,
    "steps": 600,
    "batch": 16,
    "rate": 2e-3,
}


class Job(Record):
    """Everything that can be chosen; None takes the task's default (norm: post for toys, pre for text).

    ``threads``: a toy takes one, text as many as PyTorch does. A toy's matrices are small, and threads wait for each
    other where cores are shared: a step of copy took 47 ms on one thread and 41 on two with the machine to itself, 75
    and 540 beside three other processes (2 cores, 2026-11-30). On one thread losses also repeat bit for bit.
    """

    task: str
    length: int | None = None
    tokens: str = "bytes"
    width: int | None = None
    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    feed_forward: int | None = None
    norm: str | None = None
    kernel: str = "naive"
    dropout: float = 0.0
    steps: int | None = None
    batch: int | None = None
    rate: float | None = None
    warmup: int = 100
    schedule: str = "cosine"
    clip: float = 1.0
    accumulate: int = 1
    label_smoothing: float = 0.0
    seed: int = 0
    threads: int | None = None
    derivatives: str = "by_hand"
    directory: str | None = None
    every: int = 0
    resume: bool = False
    parallel: str | None = None

    def number(self, name: str) -> Any:
        """A size as given, else the task's default."""
        given = getattr(self, name)
        return (TOY_DEFAULTS if self.task in TOYS else TEXT_DEFAULTS)[name] if given is None else given

    def read_task(self) -> Toy | Text:
        """The toy or the text file.

        Raises
        ------
        UnknownNameError: neither a toy nor a file.
        """
        length: int = self.number("length")
        if self.task in TOYS:
            return Toy(name=self.task, length=length, seed=self.seed)
        if not os.path.exists(self.task):
            raise UnknownNameError(
                what="task",
                given=self.task,
                allowed=TOYS,
                hint="or the path of a text file, which is not here",
            )
        return text.read(self.task, tokens=self.tokens, length=length, seed=self.seed)

    def make_model(self, task: Toy | Text) -> EncoderDecoder | DecoderOnly:
        """A fresh model whose first weights follow from the seed."""
        torch.manual_seed(self.seed)
        width: int = self.number("width")
        sizes = {
            "vocabulary": task.vocabulary,
            "width": width,
            "layers": self.number("layers"),
            "heads": self.number("heads"),
            "kv_heads": self.kv_heads,
            "feed_forward": 4 * width if self.feed_forward is None else self.feed_forward,
            "dropout": self.dropout,
            "kernel": self.kernel,
        }
        if isinstance(task, Toy):
            return EncoderDecoder(EncoderDecoderConfig(**sizes, norm=self.norm or "post"))
        return DecoderOnly(DecoderOnlyConfig(**sizes, norm=self.norm or "pre", max_length=task.length))

    def settings(self) -> Settings:
        """How to train; the published schedule without a rate takes the published peak."""
        rate: float = self.number("rate")
        if self.rate is None and self.schedule == "inverse_sqrt":
            rate = published_peak(self.number("width"), max(1, self.warmup))
        return Settings(
            schedule=Schedule(name=self.schedule, peak=rate, warmup=self.warmup, steps=self.number("steps")),
            batch=self.number("batch"),
            accumulate=self.accumulate,
            clip=self.clip,
            label_smoothing=self.label_smoothing,
            seed=self.seed,
            derivatives=self.derivatives,
        )


class Outcome(Record):
    """What came of a job: the loss of every step, and the judgement on held-out data (exact match, or cost)."""

    kind: str
    parameters: int
    losses: list[float]
    steps_taken: int
    seconds: float
    held_out: dict[str, int | float]
    examples: list[dict[str, str]]


def run(job: Job) -> Outcome | None:
    """Train and judge; None in all processes but the first.

    Raises
    ------
    UsageError: choices that contradict each other, a checkpoint that is there, or not there, against ``resume``.
    """
    if job.resume and job.directory is None:
        raise UsageError("--resume needs --checkpoint DIR, the directory to continue from")
    if job.directory is not None and not job.resume and checkpoint.steps(job.directory):
        raise UsageError(
            f"checkpoint {job.directory}: holds step {checkpoint.steps(job.directory)[-1]:,} already; "
            "--resume continues it, another directory starts afresh"
        )
    before = torch.get_num_threads()
    threads = job.threads if job.threads is not None else 1 if job.task in TOYS else before
    torch.set_num_threads(threads)
    try:
        return _run(job)
    finally:
        torch.set_num_threads(before)


def _run(job: Job) -> Outcome | None:
    settings = job.settings()
    task = job.read_task()
    model = job.make_model(task)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    group = join(job.parallel)
    try:
        trainer = Trainer(model, task, settings, group=group)
        if job.resume and job.directory is not None:
            trainer.restore(checkpoint.load(job.directory))
        before, start = len(trainer.losses), time.perf_counter()
        losses = trainer.run(directory=job.directory, every=job.every)
        seconds = time.perf_counter() - start
        learnt = _plain(job, task, model, group)
        outcome = None
        if group.rank == 0:
            held_out, examples = judge(learnt, task)
            outcome = Outcome(
                kind="encoder-decoder" if isinstance(task, Toy) else "decoder-only",
                parameters=parameters,
                losses=losses,
                steps_taken=len(losses) - before,
                seconds=seconds,
                held_out=held_out,
                examples=examples,
            )
        group.wait()
        return outcome
    finally:
        group.close()


def judge(model: Module, task: Toy | Text) -> tuple[dict[str, int | float], list[dict[str, str]]]:
    """Held-out figures and a few examples: wrong answers first, or a continuation of the held-out text."""
    model.eval()
    if isinstance(task, Toy):
        return _judge_toy(model, task)
    prompt = task.held_out_M[:16]
    draw = torch.Generator().manual_seed(task.seed)
    found = model.sample(prompt, SAMPLE_TOKENS, window=task.length, generator=draw).tolist()  # type: ignore[operator]
    shown = {"prompt": task.decode(found[: len(prompt)]), "sample": task.decode(found[len(prompt) :])}
    return task.held_out_cost(model), [shown]


def _judge_toy(model: Module, task: Toy) -> tuple[dict[str, int | float], list[dict[str, str]]]:
    sources = task.held_out(HELD_OUT_STRINGS)
    source_BS, _, keep_BS = task.encode(sources).arguments
    found_BT = model.generate(source_BS, keep_BS, start=START, end=END, limit=task.length + 2)  # type: ignore[operator]
    rows = [
        {"source": source, "answer": task.decode(ids), "wanted": task.answer(source)}
        for source, ids in zip(sources, found_BT.tolist(), strict=True)
    ]
    wrong = [row for row in rows if row["answer"] != row["wanted"]]
    right = [row for row in rows if row["answer"] == row["wanted"]]
    return {"strings": len(rows), "exact": len(right) / len(rows)}, [*wrong[:3], *right[:3]]


def _plain(job: Job, task: Toy | Text, model: Module, group: Group) -> Module:
    """The learnt model in one piece; all processes must call it."""
    if group.kind != "fsdp":
        return model
    weights = {name: whole(parameter.detach()) for name, parameter in model.named_parameters()}
    learnt = job.make_model(task)
    learnt.load_state_dict(weights)
    return learnt
