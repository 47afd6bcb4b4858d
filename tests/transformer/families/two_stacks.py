"""Parity of an encoder-decoder with the reference's: whole, padded, step by step, packed, greedy; counts and bytes exact."""

from __future__ import annotations

from typing import Any

import torch
from parity import close

from headcount.spec.kv_format import kv_format
from headcount.transformer.generation.translate import generate
from headcount.transformer.kv_cache.call import Call
from headcount.transformer.kv_cache.conversation import Conversation
from headcount.transformer.weights.model import LoadedModel, load_model

SOURCE, TARGET, REAL = 19, 15, 11


def trained(network: Any) -> int:
    """Parameters that training changes, in the sense of ``ModelSpec.parameters``."""
    return sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)


def disturb(model: Any) -> None:
    """Random values for what starts at a constant; the reference's frozen sinusoids stay as they are."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_(generator=generator)


def padded(shape: tuple[int, int], row: int, real: int) -> torch.Tensor:
    """True on real tokens; ``row`` has ``real`` of them."""
    keep = torch.ones(shape, dtype=torch.bool)
    keep[row, real:] = False
    return keep


@torch.no_grad()
def check(model: Any, folder: Any, *, computed: int = 0, saved: bool = False) -> LoadedModel:
    """``computed``: numbers that the reference stores and counts, and the network computes (sinusoids)."""
    model = model.eval()
    if not saved:
        disturb(model)
        model.save_pretrained(folder)
    ours = load_model(str(folder), dtype=torch.float32)
    spec, network = ours.spec, ours.network
    assert trained(network) + computed == spec.parameters
    generator = torch.Generator().manual_seed(1)
    source = torch.randint(3, model.config.vocab_size, (2, SOURCE), generator=generator)
    target = torch.randint(3, spec.vocab_size, (2, TARGET), generator=generator)
    theirs = model(input_ids=source, decoder_input_ids=target, use_cache=False).logits
    assert theirs.std() > 0.1, "logits so small prove nothing"
    close(network(target, network.encode(source)), theirs, "whole")
    keep_BS, keep_BT = padded((2, SOURCE), 0, REAL), padded((2, TARGET), 1, 9)
    theirs_padded = model(
        input_ids=source,
        attention_mask=keep_BS.long(),
        decoder_input_ids=target,
        decoder_attention_mask=keep_BT.long(),
        use_cache=False,
    ).logits
    mine = network(target, network.encode(source, keep_BS), keep_BS=keep_BS, keep_BT=keep_BT)
    close(mine[keep_BT], theirs_padded[keep_BT], "padded")
    check_cached(ours, source, target, theirs, theirs_padded)
    check_greedy(ours, model, source)
    return ours


def check_cached(
    ours: LoadedModel, source: torch.Tensor, target: torch.Tensor, whole: torch.Tensor, part: torch.Tensor
) -> None:
    """``part``: logits when only the first REAL tokens of the first source are real."""
    spec, network = ours.spec, ours.network
    one = Conversation(spec)
    network.remember(one, source[:1])
    steps = [network(target[:1, t : t + 1], call=Call([(one, 1)])) for t in range(TARGET)]
    close(torch.cat(steps, 1), whole[:1], "step by step")
    fmt = kv_format("fp32")
    kept = {"full": 0, "cross": 0}
    for layer in spec.layers:
        own, cross = layer.mixers
        kept["full"] += own.kv_bytes(TARGET, fmt)
        kept["cross"] += cross.replace(source_positions=SOURCE).kv_bytes(TARGET, fmt)
    assert one.nbytes_by_kind() == kept
    short, long = Conversation(spec), Conversation(spec)
    network.remember(short, source[:1, :REAL])
    network.remember(long, source[1:])
    network(target[:1, :6], call=Call([(short, 6)]))
    row = torch.cat((target[:1, 6:9], target[1:, :9]), 1)
    mixed = network(row, call=Call([(short, 3), (long, 9)]))
    close(mixed[:, :3], part[:1, 6:9], "packed: three more tokens")
    close(mixed[:, 3:], part[1:, :9], "packed: prompt")


def check_greedy(ours: LoadedModel, model: Any, source: torch.Tensor) -> None:
    """The reference's own generate, without its cache, against ours through the caches."""
    answer = model.generate(
        source[:1],
        max_new_tokens=12,
        min_new_tokens=12,
        do_sample=False,
        num_beams=1,
        use_cache=False,
        decoder_start_token_id=0,
        forced_eos_token_id=None,
    )
    end = model.config.eos_token_id
    mine = generate(ours, source[0].tolist(), limit=12, start=0, end=end, forbidden=[end])
    assert len(mine) == 12
    assert mine == answer[0, 1:].tolist()
