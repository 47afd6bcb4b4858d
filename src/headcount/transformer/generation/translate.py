"""Greedy answers of an encoder-decoder through its caches: the source is read once, each step decodes one token.

conversation remembers the source    keys and values of cross-attention, written once per layer
ids = [start], then argmax of the last logits, until ``end`` or ``limit``
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from headcount.errors import UsageError
from headcount.transformer.families.encoder_decoder import EncoderDecoder
from headcount.transformer.kv_cache.call import Call
from headcount.transformer.kv_cache.conversation import Conversation
from headcount.transformer.weights.model import LoadedModel


def generate(
    model: LoadedModel,
    source_ids: Sequence[int],
    *,
    limit: int,
    start: int | None = None,
    end: int | None = None,
    forbidden: Sequence[int] = (),
    format: str = "fp32",
) -> list[int]:
    """The most likely token after each, up to ``limit`` of them; neither ``start`` nor ``end`` is in the answer.

    ``start`` and ``end`` None are the config's ``decoder_start_token_id`` and ``eos_token_id``; ``forbidden`` ids are never
    chosen (Marian forbids its padding); ``format`` is how both caches store keys and values.

    Raises
    ------
    UsageError: the model is no encoder-decoder, an id is not of its vocabulary, the source is empty or too long, or a
        start or end is neither given nor stated.
    """
    network = model.network
    if not isinstance(network, EncoderDecoder):
        raise UsageError(f"{model.spec.family!r} is no encoder-decoder: it has no source to answer")
    first, last = _stated(model, "decoder_start_token_id", start), _stated(model, "eos_token_id", end)
    table = network.source_embedding or network.embedding
    _check_ids("source", source_ids, table.weight.shape[0])
    _check_ids("start, end or forbidden", [first, last, *forbidden], model.spec.vocab_size)
    device, dtype = table.weight.device, table.weight.dtype
    answer: list[int] = []
    with (
        torch.inference_mode(),
        Conversation(model.spec, format=format, dtype=dtype, device=device) as conversation,
    ):
        network.remember(conversation, torch.tensor([list(source_ids)], dtype=torch.long, device=device))
        token = first
        while len(answer) < limit:
            ids_11 = torch.tensor([[token]], device=device)
            logits_V = network(ids_11, call=Call([(conversation, 1)]))[0, -1]
            logits_V[list(forbidden)] = -torch.inf
            token = int(logits_V.argmax())
            if token == last:
                break
            answer.append(token)
    return answer


def _stated(model: LoadedModel, key: str, given: int | None) -> int:
    stated = model.spec.config.get(key) if given is None else given
    if isinstance(stated, bool) or not isinstance(stated, int):
        raise UsageError(f"the config states no single {key}; give {'start' if 'start' in key else 'end'}")
    return stated


def _check_ids(what: str, ids: Sequence[int], vocabulary: int) -> None:
    wrong = [token for token in ids if not 0 <= token < vocabulary]
    if wrong:
        raise UsageError(f"{what}: token {wrong[0]} is not one of 0 to {vocabulary - 1:,}")
