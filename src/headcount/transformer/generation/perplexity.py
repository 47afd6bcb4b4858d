"""Perplexity through the cache: how much a model understands of a text when its keys and values lie in some format.

    perplexity = exp( -1/M sum_t log p(x_t | x_first ... x_{t-1}) )

over the M tokens that have a token before them in their window. The text is forced (the model reads what stands there,
never what it would have written) and read in chunks, so that every chunk attends to what the cache gives back of the
earlier ones. A cache that stores rows answers with the rows as stored, the chunk's own included: the chunk changes nothing. One
that keeps its newest tokens whole (``kv_cache.grouped``) shows a chunk its own tokens whole: small chunks judge it best.

Source: Jelinek et al. 1977 (the measure).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from headcount.errors import OperandError, UsageError
from headcount.spec.model import ModelSpec
from headcount.transformer.kv_cache.call import Call
from headcount.transformer.kv_cache.conversation import Conversation


def perplexity(
    network: Any,
    spec: ModelSpec,
    ids: Sequence[int],
    *,
    kv: str = "fp32",
    window: int | None = None,
    chunk: int = 32,
) -> float:
    """Perplexity of the tokens ``ids`` with a cache of format ``kv``.

    ``window`` None reads the whole text as one conversation; otherwise every ``window`` tokens begin a new one.

    Raises
    ------
    UsageError: fewer than 2 tokens, a window below 2 or a chunk below 1, or more tokens than the model has positions.
    UnknownNameError, UnsupportedModelError: the format is not known, or the cache cannot store it.
    OperandError: the network's logits are not numbers.
    """
    text = list(ids)
    size = len(text) if window is None else window
    if len(text) < 2 or size < 2 or chunk < 1:
        raise UsageError(
            f"perplexity needs 2 tokens, a window of 2 and a chunk of 1 or more; given {len(text)}, {window}, {chunk}"
        )
    if spec.max_positions and min(size, len(text)) > spec.max_positions:
        raise UsageError(
            f"a window of {min(size, len(text)):,} tokens is more than the model's {spec.max_positions:,} positions"
        )
    parts = [text[start : start + size] for start in range(0, len(text), size)]
    nats = math.fsum(_nats(network, spec, part, kv, chunk) for part in parts if len(part) > 1)
    if not math.isfinite(nats):
        raise OperandError("the network's logits are not numbers (NaN): no perplexity")
    return math.exp(nats / sum(len(part) - 1 for part in parts))


@torch.inference_mode()
def _nats(network: Any, spec: ModelSpec, text: list[int], kv: str, chunk: int) -> float:
    """Sum of -log p over all tokens of one conversation but its first."""
    weight = next(network.parameters())
    ids_T = torch.tensor(text, device=weight.device)
    losses: list[Tensor] = []
    with Conversation(spec, format=kv, dtype=weight.dtype, device=weight.device) as conversation:
        # The last token is only predicted, never read.
        for start in range(0, len(text) - 1, chunk):
            stop = min(start + chunk, len(text) - 1)
            call = Call([(conversation, stop - start)], ends=[len(text) - 1])
            logits_1CV = network(ids_T[None, start:stop], call=call)
            losses.append(
                cross_entropy(logits_1CV[0].float(), ids_T[start + 1 : stop + 1], reduction="none")
                .double()
                .sum()
            )
    return float(torch.stack(losses).sum())
