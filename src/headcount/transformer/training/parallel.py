"""More than one process, started by torchrun: each computes its rows of every batch, all keep the same weights.

    alone   one process
    ddp     every process holds all weights; gradients are averaged        (DistributedDataParallel)
    fsdp    every process holds a slice of each weight, its gradient and moments, and gathers a block's weights
            when it runs                                                   (FSDP2, fully_shard)

The average of per-process means is not the mean over all tokens when rows differ in length, so the loop weighs each
process's loss by its tokens (``loop.py``). Sources: Li et al. 2020 (DDP); Zhao et al. 2023 (FSDP).
"""

from __future__ import annotations

import os
import warnings

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn import Module

from headcount.errors import UnknownNameError, UsageError

KINDS = ("ddp", "fsdp")


class Group:
    """The processes that train together, and what differs between the kinds."""

    def __init__(self, kind: str, rank: int, size: int) -> None:
        self.kind = kind
        self.rank = rank
        self.size = size

    def wrap(self, model: Module) -> Module:
        """The module whose forward is called: the model itself, or its distributed form."""
        if self.kind == "ddp":
            return torch.nn.parallel.DistributedDataParallel(model)
        if self.kind == "fsdp":
            from torch.distributed.fsdp import fully_shard

            # The logits are a view; nobody writes into them.
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
            for module in model.modules():
                if isinstance(module, torch.nn.ModuleList):
                    for block in module:
                        fully_shard(block)
            fully_shard(model)
        return model

    def exchange(self, wrapped: Module, now: bool) -> None:
        """Whether the next backward exchanges gradients; only the last part of an accumulated batch needs to."""
        if self.kind == "ddp":
            wrapped.require_backward_grad_sync = now  # type: ignore[assignment]
        elif self.kind == "fsdp":
            wrapped.set_requires_gradient_sync(now)  # type: ignore[operator]

    def mean(self, value: Tensor) -> Tensor:
        """The mean over processes."""
        if self.size > 1:
            dist.all_reduce(value)
        return value / self.size

    def gather(self, value: Tensor) -> list[Tensor]:
        """Every process's tensor, in order of rank."""
        if self.size == 1:
            return [value]
        found = [torch.empty_like(value) for _ in range(self.size)]
        dist.all_gather(found, value)
        return found

    def wait(self) -> None:
        """Until all processes are here."""
        if self.size > 1:
            dist.barrier()

    def close(self) -> None:
        """Leave the group."""
        if self.kind != "alone":
            dist.destroy_process_group()


ALONE = Group("alone", 0, 1)


def join(kind: str | None) -> Group:
    """The group that torchrun's environment describes; None asks for one process.

    Raises
    ------
    UnknownNameError: no such kind.
    UsageError: a kind without torchrun, or torchrun's processes without a kind (each would train alone).
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    started = "RANK" in os.environ and "MASTER_ADDR" in os.environ
    if kind is None:
        if started and size > 1:
            raise UsageError(f"torchrun started {size} processes; say --parallel ddp or fsdp")
        return ALONE
    if kind not in KINDS:
        raise UnknownNameError(what="kind of parallel training", given=kind, allowed=KINDS)
    if not started:
        raise UsageError(
            f"--parallel {kind} runs under torchrun: "
            "torchrun --nproc-per-node 2 -m headcount train TASK --parallel " + kind
        )
    dist.init_process_group("gloo")
    return Group(kind, dist.get_rank(), dist.get_world_size())


def whole(tensor: Tensor) -> Tensor:
    """The full value of a weight or moment, wherever its slices lie (all processes must ask)."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def like(value: Tensor, model: Tensor) -> Tensor:
    """``value`` cut as ``model`` is."""
    if isinstance(model, DTensor):
        return distribute_tensor(value, model.device_mesh, model.placements)
    return value
