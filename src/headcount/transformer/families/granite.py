"""Granite 3: Llama with four multipliers, on the embeddings, on what a sub-layer adds, on the scores and on the logits.

Source: IBM Granite Team 2024; the multipliers are those of Yang et al. 2022 (maximal update parametrisation).
"""

from __future__ import annotations

from headcount.errors import ModelFileError
from headcount.spec.model import ModelSpec
from headcount.transformer.families import llama
from headcount.transformer.families.decoder import Decoder
from headcount.transformer.families.settings import Settings
from headcount.transformer.families.style import build_decoder

MODEL_TYPES = ("granite",)
NAMES = llama.NAMES


def build(spec: ModelSpec) -> Decoder:
    """The network, parameters not yet loaded."""
    settings = Settings(spec)
    divisor = settings.number("logits_scaling", default=1.0)
    if divisor == 0:
        raise ModelFileError("config key logits_scaling is 0; logits are divided by it")
    style = llama.style(spec).replace(
        scale=settings.number("attention_multiplier", default=1.0),
        branch=settings.number("residual_multiplier", default=1.0),
    )
    return build_decoder(
        spec,
        style,
        embedding_factor=settings.number("embedding_multiplier", default=1.0),
        logit_factor=1 / divisor,
    )
