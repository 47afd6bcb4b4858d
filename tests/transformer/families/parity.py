"""Parity with the reference implementation: a small random model of its, its weights in our network, equal logits.

``check_decoder(model, tmp_path)`` saves the reference's model as a checkpoint, loads that directory as a user would, and
compares whole, padded, step by step through the cache, in chunks, and packed with a second conversation.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from headcount.transformer.kv_cache.call import Call
from headcount.transformer.kv_cache.conversation import Conversation
from headcount.transformer.weights.model import load_model

TOLERANCE = 1e-5


def loaded(model: Any, folder: Any) -> Any:
    """The reference's model through its own saved checkpoint, in float32."""
    model.save_pretrained(folder, safe_serialization=True)
    return load_model(str(folder), dtype=torch.float32)


def disturb(model: Any, seed: int = 0) -> None:
    """Random values for what starts at a constant (norms, biases, sinks): an error in them must show."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
        for name, buffer in model.named_buffers():
            if name.endswith("correction_bias"):
                buffer.add_(torch.randn(buffer.shape, generator=generator) * 0.05)


def close(ours: torch.Tensor, theirs: torch.Tensor, what: str) -> None:
    gap = (ours.float() - theirs.float()).abs().max().item()
    assert gap <= TOLERANCE, f"{what}: logits differ by {gap:.2e}"


@torch.no_grad()
def check_decoder(model: Any, folder: Any, *, tokens: int = 24, padding: bool = True) -> Any:
    """All ways of running a decoder; ``tokens`` should exceed the window of a model that has one."""
    model = model.eval()
    disturb(model)
    ours = loaded(model, folder)
    vocabulary = model.config.get_text_config().vocab_size
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, vocabulary, (2, tokens), generator=generator)
    theirs = model(ids, use_cache=False).logits
    assert theirs.std() > 0.01, "logits so small prove nothing"
    close(ours.network(ids), theirs, "whole")
    if padding:
        keep = torch.ones_like(ids, dtype=torch.bool)
        keep[0, : tokens // 3] = False
        positions = (keep.long().cumsum(1) - 1).clamp(min=0)
        padded = model(ids, attention_mask=keep.long(), position_ids=positions, use_cache=False).logits
        mine = ours.network(ids, keep_BT=keep, positions_BT=positions)
        close(mine[keep], padded[keep], "padded")
    check_cached(ours, ids, theirs)
    return ours


@torch.no_grad()
def check_cached(ours: Any, ids: torch.Tensor, theirs: torch.Tensor) -> None:
    """Token by token, in chunks, and two conversations of different lengths packed in one row."""
    spec, network, tokens = ours.spec, ours.network, ids.shape[1]
    one = Conversation(spec, format="fp32")
    steps = [network(ids[:1, t : t + 1], call=Call([(one, 1)])) for t in range(tokens)]
    close(torch.cat(steps, 1), theirs[:1], "step by step")
    chunked = Conversation(spec, format="fp32")
    cuts = [0, 5, 6, 6 + tokens // 3, tokens]
    parts = [network(ids[:1, a:b], call=Call([(chunked, b - a)])) for a, b in pairwise(cuts)]
    close(torch.cat(parts, 1), theirs[:1], "chunked")
    a, b = Conversation(spec, format="fp32"), Conversation(spec, format="fp32")
    network(ids[:1, :7], call=Call([(a, 7)]))
    mixed = network(torch.cat((ids[:1, 7:8], ids[1:, :9]), 1), call=Call([(a, 1), (b, 9)]))
    close(mixed[:, 0], theirs[:1, 7], "packed: decode step")
    close(mixed[:, 1:], theirs[1:, :9], "packed: prompt")
