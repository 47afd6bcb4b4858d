"""A model's own terms: weights, the cache of each kind of layer, what one conversation and the next token cost."""

from __future__ import annotations

from headcount.cost.cache import conversation_bytes, marginal_bytes, mixer_runs
from headcount.ledger import Ledger, Term

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.spec.attention import Mixer
    from headcount.spec.kv_format import KvFormat
    from headcount.spec.model import ModelSpec


def model_ledger(
    model: ModelSpec, context: int, kv: KvFormat, *, weight_name: str, total: int | None
) -> Ledger:
    """Weights, the cache of every kind of layer, one conversation, the next token, the break-even."""
    terms = []
    if total is not None:
        terms.append(
            Term(
                name=f"weights of the whole model, {weight_name}",
                symbol="W_model",
                value=total,
                unit="B",
                formula="sum over tensors of bytes"
                if model.checkpoint
                else "sum over tensors of parameters x bytes each",
                source=model.checkpoint.path if model.checkpoint else model.source,
            )
        )
    terms += [_mixer_term(mixer, times, context, kv) for mixer, times in mixer_runs(model)]
    each = conversation_bytes(model, context, kv)
    terms.append(
        Term(
            name="one conversation",
            symbol="c",
            value=each,
            unit="B",
            formula="sum over kinds of layers",
            numbers=f"{context:,} tokens, {kv.name}",
        )
    )
    terms.append(
        Term(
            name="the next token",
            symbol="b",
            value=marginal_bytes(model, context, kv),
            unit="B",
            formula="c(n + 1) - c(n)",
            numbers="full windows and states add nothing",
        )
    )
    if total is not None and each:
        terms.append(
            Term(
                name="conversations past which the cache outweighs the weights",
                symbol="N_even",
                value=total / each,
                unit="conversations",
                formula="W / c",
                numbers=f"{total:,} / {each:,}",
            )
        )
    return Ledger(name=f"{model.name} at {context:,} tokens", terms=tuple(terms))


def _mixer_term(mixer: Mixer, times: int, context: int, kv: KvFormat) -> Term:
    kept = mixer.tokens_kept(context)
    count = times * mixer.kv_bytes(context, kv)
    return Term(
        name=f"cache of {times} {mixer.kind} layer{'s' if times != 1 else ''}",
        symbol=f"c_{mixer.kind}",
        value=count,
        unit="B",
        formula="layers x entries kept x bytes of an entry",
        numbers=f"{times} x {kept:,} x {mixer.entry_bytes(kv):,}",
        source=mixer.words(),
    )
