"""What mixture families share: from a layer's ``FeedForward`` and the family's routing to its module."""

from __future__ import annotations

from typing import Any

from torch.nn import Module

from headcount.errors import UnsupportedModelError
from headcount.spec.model import LayerSpec, ModelSpec
from headcount.transformer.blocks.mixture import Mixture, MixtureShape, RouterShape
from headcount.transformer.families.settings import Settings
from headcount.transformer.families.style import Style, dense_feed_forward
from headcount.transformer.ops.gated import ACTIVATIONS


def feed_forward(
    spec: ModelSpec, style: Style, layer: LayerSpec, routing: dict[str, Any], **mixture: Any
) -> Module:
    """The layer's mixture, or its dense feed-forward where the spec has no experts.

    ``routing`` holds further fields of ``RouterShape``, ``mixture`` of ``MixtureShape``; sizes come from the spec.
    """
    ffn = layer.feed_forward
    if ffn is None or not ffn.experts:
        return dense_feed_forward(spec, style, layer)
    if ffn.matrices != 3 or style.activation not in ACTIVATIONS:
        raise UnsupportedModelError(
            f"experts of {spec.family!r} with {ffn.matrices} matrices and activation {style.activation!r} are not run; "
            f"three matrices and one of {', '.join(ACTIVATIONS)} are"
        )
    shape = MixtureShape(
        width=spec.hidden_size,
        inner=ffn.width,
        shared=ffn.shared_width,
        activation=style.activation,
        router=RouterShape(experts=ffn.experts, top_k=ffn.top_k, **routing),
        **mixture,
    )
    return Mixture(shape)


def refuse_other(settings: Settings, name: str, *allowed: object) -> None:
    """Raise UnsupportedModelError when the config states another value of ``name`` than those allowed, or null."""
    stated = settings.value(name)
    if stated is not None and stated not in allowed:
        only = f"; only {' or '.join(map(repr, allowed))} is" if allowed else ""
        raise UnsupportedModelError(
            f"model type {settings.spec.family!r} with {name} {str(stated)[:40]!r} is not run{only}"
        )
