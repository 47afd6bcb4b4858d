"""Tensor parallelism with real processes: what each rank holds, and that together they compute the whole model.

One process per rank joins by gloo over a file, builds the same random network from the same seed, keeps its part
(``transformer/families/rank.py``), runs the same conversation and reports the bytes it holds. Rank 0's logits are compared
with those of the whole network.
"""

from __future__ import annotations

import json
import os
import tempfile
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

from headcount.errors import HeadcountError, LayoutError
from headcount.record import Record
from headcount.spec.attention import HeadedAttention
from headcount.spec.huggingface.config import spec_from_config
from headcount.spec.model import ModelSpec
from headcount.transformer.attention.multi_head import MultiHeadAttention
from headcount.transformer.families.rank import cut
from headcount.transformer.families.registry import build_network
from headcount.transformer.kv_cache.call import Call
from headcount.transformer.kv_cache.conversation import Conversation

# Sums over ranks are taken in another order than in one process: rounding of float32 over some thousand terms.
TOLERANCE = 1e-3


class RankReport(Record):
    """One rank: bytes of its weights, bytes of its cache, and how far its logits lie from the whole model's."""

    weight_bytes: int
    cache_bytes: int
    logit_gap: float


def run_ranks(spec: ModelSpec, world: int, *, tokens: int, kv: str) -> list[RankReport]:
    """Run ``world`` processes and return their reports, rank 0 first.

    Raises
    ------
    LayoutError: the model does not divide over this many ranks, or a process failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        context = processes.get_context("spawn")
        arguments = (world, folder, dict(spec.config), spec.name, tokens, kv)
        started = [context.Process(target=_rank, args=(rank, *arguments)) for rank in range(world)]
        for process in started:
            process.start()
        for process in started:
            process.join()
        reports = []
        for rank in range(world):
            try:
                with open(os.path.join(folder, f"{rank}.json"), encoding="utf-8") as file:
                    found = json.load(file)
            except OSError:
                raise LayoutError(f"rank {rank} of {world} ended without a report") from None
            if "error" in found:
                raise LayoutError(f"tensor parallelism of {world}: {found['error']}")
            reports.append(RankReport(**found))
    return reports


def _rank(
    rank: int, world: int, folder: str, config: dict[str, Any], name: str, tokens: int, kv: str
) -> None:
    """What one process does; its report, or the error that a user can mend, goes to a file."""
    try:
        found = _work(rank, world, folder, config, name, tokens, kv)
    except HeadcountError as error:
        found = {"error": str(error)}
    with open(os.path.join(folder, f"{rank}.json"), "w", encoding="utf-8") as file:
        json.dump(found, file)


@torch.no_grad()
def _work(
    rank: int, world: int, folder: str, config: dict[str, Any], name: str, tokens: int, kv: str
) -> dict[str, Any]:
    torch.set_num_threads(1)
    spec = spec_from_config(config, name=name, source="prove")
    network = build_network(spec, seed=0)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, spec.vocab_size, (1, tokens), generator=generator)
    # Compared in float32: a 16-bit cache rounds sums that differ in their last bit to different numbers.
    whole, _ = _talk(network, spec, ids, "fp32")
    cut(network, rank, world)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    mine = _spec_of_rank(spec, network)
    part, _ = _talk(network, mine, ids, "fp32")
    _, held = _talk(network, mine, ids, kv)
    dist.barrier()
    dist.destroy_process_group()
    return {
        "weight_bytes": sum(p.numel() * p.element_size() for p in network.parameters()),
        "cache_bytes": held,
        "logit_gap": (part - whole).abs().max().item(),
    }


def _talk(network: Any, spec: ModelSpec, ids: torch.Tensor, kv: str) -> tuple[torch.Tensor, int]:
    """A prompt and one decode step; the logits of both, and the bytes kept."""
    conversation = Conversation(spec, format=kv)
    first = network(ids[:, :-1], call=Call([(conversation, ids.shape[1] - 1)]))
    last = network(ids[:, -1:], call=Call([(conversation, 1)]))
    return torch.cat((first, last), 1), conversation.nbytes


def _spec_of_rank(spec: ModelSpec, network: Any) -> ModelSpec:
    """The spec whose caches have the heads that this rank's attention modules really have."""
    layers = []
    for layer, block in zip(spec.layers, network.layers, strict=True):
        mixers = tuple(
            mixer.replace(
                num_attention_heads=block.mixer.shape.heads, num_key_value_heads=block.mixer.shape.K
            )
            if isinstance(mixer, HeadedAttention) and isinstance(block.mixer, MultiHeadAttention)
            else mixer
            for mixer in layer.mixers
        )
        layers.append(layer.replace(mixers=mixers))
    return spec.replace(layers=tuple(layers))
