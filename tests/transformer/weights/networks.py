"""A network that is nothing but parameters of given names and shapes, and what the tests build from it."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def bare_network(shapes: dict[str, tuple[int, ...]], *, device: str = "meta") -> nn.Module:
    """Modules nested as the dotted names say; every parameter on ``device``."""
    root = nn.Module()
    for name, shape in shapes.items():
        module = root
        *path, leaf = name.split(".")
        for step in path:
            if not hasattr(module, step):
                module.add_module(step, nn.Module())
            module = getattr(module, step)
        module.register_parameter(leaf, nn.Parameter(torch.empty(shape, device=device)))
    return root


def values(network: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in network.named_parameters()}
