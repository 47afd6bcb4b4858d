"""From what a user asks for to a ``Host`` that serves it: device, types, threads, weights, tokenizer, compiled step."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import Module

from headcount.errors import ModelFileError, UnknownNameError, UnsupportedModelError, UsageError
from headcount.record import Record
from headcount.spec.kv_format import kv_format
from headcount.transformer.attention.compiled import follows
from headcount.transformer.decode.program import compile_program
from headcount.transformer.decode.tiles import FORMATS, PAIRS
from headcount.transformer.families.latent_attention import LatentSelfAttention
from headcount.transformer.families.self_attention import SelfAttention
from headcount.transformer.generation.host import DecodeProgram, Host
from headcount.transformer.weights.model import load_model
from headcount.transformer.weights.tokenizer import Tokenizer, read_tokenizer
from headcount.transformer.weights.where import model_path

# What the compiled step reads in place.
COMPILED_CACHES = ("fp32", "bf16")
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
    if max(tokenizer.vocab_size, tokenizer.largest_id + 1) > model.spec.vocab_size:
        raise ModelFileError(
            f"the tokenizer knows {tokenizer.vocab_size:,} tokens up to id {tokenizer.largest_id:,}, "
            f"the model {model.spec.vocab_size:,}: not made for each other"
        )
    kv = ("fp32" if weights == "fp32" else "bf16") if choices.kv == "auto" else choices.kv
    program = None
    notes: list[str] = []
    if device.type == "cpu" and kv_format(kv).name not in COMPILED_CACHES:
        if weights == "int8":
            raise UsageError(
                f"--weights int8 needs a cache of {' or '.join(COMPILED_CACHES)}; given --kv {kv}"
            )
        notes = [
            f"decode steps are not compiled: they read caches of {' or '.join(COMPILED_CACHES)}, not {kv}"
        ]
    elif choices.compiled and device.type == "cpu":
        program, notes = _compiled(model.network, weights)
    if choices.compiled and device.type == "cpu" and (PAIRS or weights == "fp32"):
        # Without AVX512_BF16, pairs of bfloat16 are widened first, and PyTorch's kernel is the faster one for long prompts.
        compile_prompts(model.network)
    host = Host(
        model, tokenizer=tokenizer, kv=kv, budget=choices.budget_bytes, chunk=choices.chunk, program=program
    )
    return host, tokenizer, notes


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        reason = str(error).splitlines()[0][:120]
        raise UsageError(f"device {name[:40]!r} cannot be used here: {reason}") from None
    if device.type == "meta":
        raise UsageError("device 'meta' holds shapes and no numbers; give cpu, cuda or mps")
    return device


def _compiled(network: Any, weights: str) -> tuple[DecodeProgram | None, list[str]]:
    """The compiled step, or why there is none: PyTorch then runs the decode steps too."""
    if weights not in FORMATS:
        return None, []
    try:
        return compile_program(network, weights=weights), []
    except UnsupportedModelError as error:
        if weights == "int8":
            raise UnsupportedModelError(f"--weights int8 needs the compiled step: {error}") from None
        return None, [f"decode steps are not compiled: {error}"]


def compile_prompts(network: Any) -> None:
    """Let prompts run the compiled attention kernel, when every attention of the network can; else none does."""
    if all(_prompts_run_compiled(module) for module in network.modules() if hasattr(module, "kernel")):
        network.use_kernel("compiled")


def _prompts_run_compiled(module: Module) -> bool:
    if type(module) is LatentSelfAttention:
        shape = module.shape
        expanded = follows(None, shape.plain_width + shape.rotary_width, shape.value_width)
        return expanded and follows(None, shape.latent + shape.rotary_width, shape.latent)
    if type(module) is SelfAttention:
        return module.told is None and follows(module.mask, module.shape.H, module.shape.W)
    return False
