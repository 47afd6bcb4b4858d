"""From what a user asks for to a ``Host`` that serves it: device, types, threads, weights, tokenizer, compiled step."""

from __future__ import annotations

import torch

from headcount.errors import ModelFileError, UnknownNameError, UnsupportedModelError, UsageError
from headcount.record import Record
from headcount.transformer.generation.host import Host
from headcount.transformer.weights.model import load_model
from headcount.transformer.weights.tokenizer import Tokenizer, read_tokenizer
from headcount.transformer.weights.where import model_path

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.bfloat16}


class Choices(Record):
    """What was asked for; ``auto`` lets the machine decide."""

    model: str
    weights: str = "auto"
    kv: str = "auto"
    device: str = "cpu"
    budget_bytes: int | None = None
    chunk: int = 512
    threads: int | None = None
    compiled: bool = True


def load_host(choices: Choices) -> tuple[Host, Tokenizer, list[str]]:
    """The host, its tokenizer, and what its user should know (a step that is not compiled, a type that was chosen).

    Raises
    ------
    UsageError, UnknownNameError: a device that is not here, a type that does not run.
    ModelFileError, UnsupportedModelError: weights that cannot be read or run.
    """
    device = _device(choices.device)
    if choices.threads is not None:
        torch.set_num_threads(choices.threads)
    weights = "bf16" if choices.weights == "auto" else choices.weights
    if weights not in DTYPES:
        raise UnknownNameError(what="type of weights", given=weights, allowed=["auto", *DTYPES])
    if weights == "int8" and device.type != "cpu":
        raise UsageError("--weights int8 runs on the CPU alone")
    path = model_path(choices.model)
    model = load_model(path, dtype=DTYPES[weights], device=str(device))
    if model.spec.encoder is not None or not hasattr(model.network, "hidden"):
        raise UnsupportedModelError(f"{model.spec.family!r} is no decoder: there is nothing to continue")
    tokenizer = read_tokenizer(path)
    if tokenizer.vocab_size > model.spec.vocab_size:
        raise ModelFileError(
            f"the tokenizer knows {tokenizer.vocab_size:,} tokens, the model {model.spec.vocab_size:,}: not made for each other"
        )
    program = None
    notes: list[str] = []
    if choices.compiled and device.type == "cpu":
        program, notes = _compiled(model.network, weights)
    kv = ("fp32" if weights == "fp32" else "bf16") if choices.kv == "auto" else choices.kv
    host = Host(
        model, tokenizer=tokenizer, kv=kv, budget=choices.budget_bytes, chunk=choices.chunk, program=program
    )
    return host, tokenizer, notes


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0][:120]
        raise UsageError(f"device {name[:40]!r} cannot be used here: {reason}") from None
    if device.type == "meta":
        raise UsageError("device 'meta' holds shapes and no numbers; give cpu, cuda or mps")
    return device


def _compiled(network: object, weights: str) -> tuple[None, list[str]]:
    return None, []
