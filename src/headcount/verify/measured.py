"""What a network really holds and multiplies: parameters by part, cache bytes, matrix products.

parameters     numel of every parameter of the module tree, sorted into parts by where it stands
cache bytes    bytes of the tensors that the caches of one conversation keep, by kind of attention
matmul FLOPs   PyTorch's own counter (torch.utils.flop_counter) around a prefill and around one decode step
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from headcount.errors import UnsupportedModelError
from headcount.record import Record
from headcount.spec.model import ModelSpec
from headcount.transformer.families.encoder_decoder import EncoderDecoder
from headcount.transformer.families.mamba2 import Mamba2
from headcount.transformer.families.told_positions import Sinusoids
from headcount.transformer.kv_cache.call import Call
from headcount.transformer.kv_cache.conversation import Conversation

# Where a parameter stands -> the part of the model it belongs to; the first pattern that fits decides.
_PARTS = (
    (r"(^|\.)(norm|norms\..*|embedding_norm|query_norm|key_norm|latent_norm)\.(weight|bias)$", "norm"),
    (r"(^|\.)(embedding|source_embedding|positions|token_types)\.weight$", "embedding"),
    (r"\.told\.table\.weight$", "embedding"),
    (r"^head\.", "lm_head"),
    (r"^project_(in|out)\.", "other"),
    (r"\.feed_forward\.(router|shared_gate)\.", "router"),
    (r"\.feed_forward\.shared\.", "shared_experts"),
    (r"\.cross\.", "cross_attention"),
)
# Loaded beside the parameters, but a constant that no training changes (``final_logits_bias``): published counts omit it.
_CONSTANTS = ("head_offset",)


class Run(Record):
    """One conversation run for real: cache bytes after all tokens, FLOPs of its prefill and of its last step, by part."""

    cache_bytes: dict[str, int]
    allocated_bytes: int
    prefill: dict[str, int]
    decode: dict[str, int]


def part_of(name: str, states: tuple[str, ...] = ()) -> str:
    """The part of the model a parameter belongs to, by its name in our module tree.

    ``states`` are the paths of the mixers that keep a state instead of keys and values.
    """
    if name.startswith(states):
        return "state_space"
    for pattern, part in _PARTS:
        if re.search(pattern, name):
            return part
    if ".feed_forward." in name:
        # Stacked experts are the only feed-forward tensors of three dimensions, their biases of (E, F).
        return "experts" if re.search(r"\.feed_forward\.(gate|up|down)(_bias)?$", name) else "feed_forward"
    if ".mixer." in name:
        return "attention"
    return "other"


def parameters_by_part(network: nn.Module) -> dict[str, int]:
    """Parameters really allocated (or laid out), by part; a tied table once."""
    parts: dict[str, int] = {}
    states = tuple(name + "." for name, module in network.named_modules() if isinstance(module, Mamba2))
    for name, tensor in _held(network):
        part = part_of(name, states)
        parts[part] = parts.get(part, 0) + tensor.numel()
    return parts


def _held(network: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """What published counts count: parameters, and tables of sinusoids, which nothing trains."""
    tables = [
        (name + ".weight", module.table)
        for name, module in network.named_modules()
        if isinstance(module, Sinusoids)
    ]
    return [pair for pair in network.named_parameters() if pair[0] not in _CONSTANTS] + tables


def weight_bytes(network: nn.Module) -> int:
    """Bytes of all of them in their own types."""
    return sum(tensor.numel() * tensor.element_size() for _, tensor in _held(network))


@torch.no_grad()
def run(network: Any, spec: ModelSpec, *, tokens: int, kv: str, seed: int = 0) -> Run:
    """Read a prompt of ``tokens - 1`` random tokens, decode one more; count both."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, spec.vocab_size, (1, tokens), generator=generator)
    first = next(network.parameters())
    conversation = Conversation(spec, format=kv, dtype=first.dtype, device=first.device)
    conversation.reserve(tokens)
    network.use_kernel("rows")
    source = {}
    if isinstance(network, EncoderDecoder):
        source = {"encoder": _count_source(network, spec, conversation, generator)}
    prefill = _count(network, ids[:, :-1], conversation)
    prefill = {**prefill, **source, "total": prefill["total"] + sum(source.values())}
    decode = _count(network, ids[:, -1:], conversation)
    return Run(
        cache_bytes=conversation.nbytes_by_kind(),
        allocated_bytes=conversation.allocated_bytes,
        prefill=prefill,
        decode=decode,
    )


@torch.no_grad()
def run_encoder(network: Any, spec: ModelSpec, *, seed: int = 0) -> int:
    """FLOPs of an encoder-only network over its longest input; it keeps no cache."""
    if spec.encoder is None:
        raise UnsupportedModelError(f"{spec.family!r} has neither a decoder nor an encoder to run")
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, spec.vocab_size, (1, spec.encoder.max_source_positions), generator=generator)
    network.use_kernel("rows")
    with FlopCounterMode(display=False) as counter:
        network(ids)
    return int(counter.get_total_flops())


def _count_source(
    network: EncoderDecoder, spec: ModelSpec, conversation: Conversation, generator: torch.Generator
) -> int:
    """FLOPs of reading the longest source: the encoder, and the decoder's keys and values of it."""
    if spec.encoder is None:
        raise UnsupportedModelError(f"{spec.family!r} reads a source, but its spec has no encoder")
    table = network.source_embedding or network.embedding
    source = torch.randint(0, len(table.weight), (1, spec.encoder.max_source_positions), generator=generator)
    with FlopCounterMode(display=False) as counter:
        network.remember(conversation, source)
    return int(counter.get_total_flops())


def _count(network: Any, ids: torch.Tensor, conversation: Conversation) -> dict[str, int]:
    """FLOPs of one call with one row of logits, by part; ``total`` is the counter's own sum."""
    call = Call([(conversation, ids.shape[1])])
    with FlopCounterMode(display=False) as counter:
        network(ids.to(next(network.parameters()).device), call=call, rows=call.last_rows(ids.device))
    totals = {name: sum(ops.values()) for name, ops in counter.get_flop_counts().items()}
    parts = {"mixers": 0, "feed_forward": 0, "lm_head": 0}
    root = type(network).__name__
    for name, flops in totals.items():
        path = name.split(".")
        if path[:2] == [root, "layers"] and len(path) == 4:
            parts["feed_forward" if path[3] == "feed_forward" else "mixers"] += flops
    total = counter.get_total_flops()
    parts["lm_head"] = total - parts["mixers"] - parts["feed_forward"]
    return {**parts, "total": total}
