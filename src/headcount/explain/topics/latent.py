"""Latent attention: one narrow vector per token is cached, keys and values are rebuilt from it, or never built."""

from __future__ import annotations

import torch

from headcount.cost.cache import growing_attention, token_bytes
from headcount.cost.flops import pair_macs
from headcount.errors import UsageError
from headcount.explain.asked import Asked
from headcount.explain.derivation import Derivation, Quantity, Step, Symbol, Table, shown
from headcount.spec.attention import FullAttention
from headcount.spec.attention import LatentAttention as LatentSpec
from headcount.spec.kv_format import kv_format
from headcount.spec.model import ModelSpec
from headcount.spec.reader import read_model
from headcount.transformer.attention.latent import LatentAttention, LatentHeads
from headcount.transformer.attention.masks import Causal
from headcount.transformer.ops.rotary import turns
from headcount.transformer.ops.rotary_frequencies import plain

MODEL = "deepseek-v3"
TOKENS = 7
SHAPE = LatentHeads(width=24, heads=4, latent=8, plain_width=6, rotary_width=4, value_width=6)


def derive(asked: Asked) -> Derivation:
    """A small real layer both ways, then a model's bytes and multiply-adds."""
    model = read_model(asked.model or MODEL)
    mixer = growing_attention(model)
    if not isinstance(mixer, LatentSpec):
        raise UsageError(f"explain latent: {model.name} has no latent attention; deepseek-v3 has")
    return Derivation(
        topic="latent",
        title=f"Latent attention: {model.name}",
        summary="Keys and values of all heads are linear in one narrow vector per token, so only that vector is cached.",
        symbols=(
            Symbol(symbol="c", meaning="latent of a token, cached", shape=f"r = {mixer.kv_lora_rank}"),
            Symbol(
                symbol="k_r",
                meaning="rotary key, one for all heads, cached",
                shape=f"R = {mixer.qk_rope_head_dim}",
            ),
            Symbol(
                symbol="N, H, W", meaning="heads; width of a key without its rotary part; width of a value"
            ),
            Symbol(
                symbol="W_UK, W_UV", meaning="up-projections of a head, from the latent to its key and value"
            ),
        ),
        steps=(_expanded(), _absorbed(asked.seed), _bytes(model, mixer), _work(mixer)),
        sources=("DeepSeek-V2 report 2024, section 2.1 and appendix C", model.source),
    )


def _expanded() -> Step:
    return Step(
        title="down and up again",
        why="Each head's key and value come out of the same latent. The rotary part must stay outside: a turn that depends on "
        "the position cannot be moved through a fixed matrix.",
        formula=("c = norm(x W_D)", "k_n = [W_UK c, k_r]", "v_n = W_UV c", "O_n = attend(q_n, k_n, v_n)"),
    )


def absorbed_difference(seed: int) -> float:
    """Largest difference of the two orders in float64, random weights, causal."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = LatentAttention(SHAPE).double()
    stream = torch.Generator().manual_seed(seed)
    x = torch.randn(1, TOKENS, SHAPE.width, generator=stream, dtype=torch.float64)
    angles = plain(SHAPE.rotary_width, dtype=torch.float64).inverse
    positions = turns(torch.arange(TOKENS), angles, dtype=torch.float64)
    with torch.no_grad():
        both = [layer(x, turns=positions, mask=Causal(), absorbed=absorbed) for absorbed in (False, True)]
    return float((both[0] - both[1]).abs().max())


def _absorbed(seed: int) -> Step:
    return Step(
        title="absorbed: never build a key or a value",
        why="A matrix between two vectors may be applied to either. Moved to the query, and past the weighted sum, the "
        "up-projections leave attention running on the latents themselves: one key head of width r + R for all queries.",
        formula=("q . (W_UK c) = (W_UK^T q) . c", "sum_j a_j W_UV c_j = W_UV (sum_j a_j c_j)"),
        values=(
            shown(
                "difference",
                absorbed_difference(seed),
                f"expanded against absorbed, a real layer of {SHAPE.heads} heads (seed {seed})",
            ),
        ),
    )


def _bytes(model: ModelSpec, mixer: LatentSpec) -> Step:
    fmt = kv_format("fp16")
    heads = mixer.num_attention_heads
    key = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim

    def headed(kv_heads: int) -> int:
        layer = FullAttention(
            num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=key, v_head_dim=mixer.v_head_dim
        )
        return layer.entry_bytes(fmt)

    own = mixer.entry_bytes(fmt)
    rows = [("latent, as published", own, f"x {1:.2f}")]
    for kv_heads, words in (
        (heads, f"the same {heads} heads kept in full"),
        (8, "8 key/value heads"),
        (1, "one"),
    ):
        rows.append((words, headed(kv_heads), f"x {headed(kv_heads) / own:.2f}"))
    return Step(
        title="bytes of one token in one layer, 16 bits",
        formula=("b = (r + R) p",),
        arithmetic=(f"({mixer.kv_lora_rank} + {mixer.qk_rope_head_dim}) x 2 = {mixer.latent_width * 2:,}",),
        tables=(Table(title="", header=("what is cached", "B", "of the latent"), rows=tuple(rows)),),
        values=(Quantity(name="b, all layers", values=token_bytes(model, fmt), unit="B per token"),),
        note="The latent has no heads, so tensor parallelism cannot divide it: every card keeps all of it.",
    )


def _work(mixer: LatentSpec) -> Step:
    rows = (("expanded", pair_macs(mixer)), ("absorbed", pair_macs(mixer, absorbed=True)))
    return Step(
        title="multiply-adds of one (query, key) pair, all heads",
        why="Absorbed costs more per pair but reads only the latent, which is what a decode step waits for; reading a prompt "
        "is done expanded.",
        formula=("expanded: N (H + R + W)", "absorbed: N (2 r + R)"),
        tables=(Table(title="", header=("order", "MACs per pair"), rows=rows),),
    )
