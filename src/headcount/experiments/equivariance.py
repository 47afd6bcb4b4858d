"""Does attention know the order of its tokens? Permute the tokens and compare f(P x) with P f(x).

Every step of an encoder without positions treats tokens alike: projections, norms and feed-forward act on each token,
attention sums over a set. So f(P x) = P f(x) for every permutation P, up to rounding. Positions, of whatever kind, break
this; so does a causal mask, which ties what a token sees to its place.

Rotary positions turn q_i by i w and k_j by j w per plane; a rotation is orthogonal, so (R_i q) . (R_j k) = q . R_(j-i) k:
the score depends on the distance alone. A sinusoid added to the embedding has no such law for q.k, because the sum
(x + PE_i) . (y + PE_j) contains x . PE_j and PE_i . y.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headcount.errors import UsageError
from headcount.experiments.result import FAILS, HOLDS, LIMIT, Column, Result, Spread, Table
from headcount.experiments.seeds import generator, seeded
from headcount.transformer.attention.attend import attend
from headcount.transformer.ops.positions import sinusoidal_table
from headcount.transformer.ops.rotary import rotary, turns
from headcount.transformer.ops.rotary_frequencies import plain
from headcount.transformer.stacks.config import DecoderOnlyConfig, EncoderOnlyConfig
from headcount.transformer.stacks.decoder_only import DecoderOnly
from headcount.transformer.stacks.encoder_only import EncoderOnly

CLAIM = (
    "Attention compares every token with every other and knows nothing of their order; positional information has to be "
    "added. Rotary positions make a score depend on the distance of its two tokens alone."
)
HEADS = 4
LAYERS = 2
VOCABULARY = 64
SAME, DIFFERENT = 1e-10, 1e-3
SHIFTS = (1, 100, 10_000)
BARE, CAUSAL = "attention alone", "decoder, causal mask, no positions"
ENCODERS = {
    "none": "encoder, no positions",
    "sinusoidal": "encoder, sinusoidal",
    "learned": "encoder, learned",
    "rotary": "encoder, rotary",
}


def permutation_error(name: str, *, tokens: int, width: int, seed: int, repeat: int) -> float:
    """Largest |f(P x) - P f(x)|, over the rms of f(x); ``name`` is BARE, CAUSAL or a kind of positions."""
    stream = generator(seed, "equivariance", name, repeat)
    order = torch.randperm(tokens, generator=stream)
    while bool((order == torch.arange(tokens)).all()):
        order = torch.randperm(tokens, generator=stream)
    if name == BARE:
        shape = (1, HEADS, tokens, width // HEADS)
        q, k, v = (torch.randn(shape, generator=stream, dtype=torch.float64) for _ in range(3))
        plain_out = attend(q, k, v)
        moved = attend(q[:, :, order], k[:, :, order], v[:, :, order])
        return _distance(moved, plain_out[:, :, order], plain_out)
    ids = torch.randint(0, VOCABULARY, (1, tokens), generator=stream)
    with seeded(seed, "equivariance", "weights", name, repeat):
        network = _network(name, tokens, width)
    with torch.no_grad():
        out: Tensor = network(ids)
        moved = network(ids[:, order])
    return _distance(moved, out[:, order], out)


def _network(name: str, tokens: int, width: int) -> torch.nn.Module:
    kind = DecoderOnlyConfig if name == CAUSAL else EncoderOnlyConfig
    config = kind(
        vocabulary=VOCABULARY,
        width=width,
        layers=LAYERS,
        heads=HEADS,
        feed_forward=4 * width,
        positions="none" if name == CAUSAL else name,
        max_length=tokens,
        dropout=0.0,
    )
    network = DecoderOnly(config) if isinstance(config, DecoderOnlyConfig) else EncoderOnly(config)
    return network.double()


def _distance(a: Tensor, b: Tensor, reference: Tensor) -> float:
    return float((a - b).abs().max() / reference.square().mean().sqrt())


def shift_error(kind: str, *, shift: int, tokens: int, width: int, seed: int, repeat: int) -> float:
    """Largest change of a score q_i.k_j when both positions move by ``shift``, over the rms score."""
    stream = generator(seed, "shift", repeat)
    q, k = (torch.randn(tokens, width, generator=stream, dtype=torch.float64) for _ in range(2))

    def scores(start: int) -> Tensor:
        if kind == "rotary":
            positions = torch.arange(start, start + tokens)
            turned = turns(positions, plain(width, dtype=torch.float64).inverse, dtype=torch.float64)
            a, b = rotary(q, *turned), rotary(k, *turned)
        else:
            table = sinusoidal_table(tokens, width, start=start, dtype=torch.float64)
            a, b = q + table, k + table
        return a @ b.mT / math.sqrt(width)

    first = scores(0)
    return _distance(scores(shift), first, first)


def measure(*, seed: int, repeats: int, tokens: int, width: int) -> Result:
    """Run the experiment: options are those of the registry.

    Raises
    ------
    UsageError: a width that is not a multiple of 8 (4 heads of an even width).
    """
    if width % (2 * HEADS):
        raise UsageError(
            f"--width must be a multiple of {2 * HEADS} ({HEADS} heads of an even width); given {width}"
        )
    permuted = _permuted(seed, repeats, tokens, width)
    shifted = _shifted(seed, repeats, tokens, width)
    verdict, reason = _judge(permuted, shifted)
    return Result(
        name="equivariance",
        claim=CLAIM,
        seed=seed,
        repeats=repeats,
        settings={"tokens": tokens, "width": width, "heads": HEADS, "layers": LAYERS},
        tables=(permuted, shifted),
        verdict=verdict,
        reason=reason,
    )


def _permuted(seed: int, repeats: int, tokens: int, width: int) -> Table:
    names = {BARE: BARE, **ENCODERS, CAUSAL: CAUSAL}
    rows = tuple(
        (
            words,
            Spread.of(
                permutation_error(name, tokens=tokens, width=width, seed=seed, repeat=repeat)
                for repeat in range(repeats)
            ),
        )
        for name, words in names.items()
    )
    return Table(
        title="Permute the tokens: |f(Px) - P f(x)|, largest over rms",
        columns=(
            Column(name="network", header="network"),
            Column(name="error", header="error", form=".2g", spread=True),
        ),
        rows=rows,
        note="Untrained networks in float64; rounding is about 1e-15.",
    )


def _shifted(seed: int, repeats: int, tokens: int, width: int) -> Table:
    rows = tuple(
        (
            kind,
            shift,
            Spread.of(
                shift_error(kind, shift=shift, tokens=tokens, width=width, seed=seed, repeat=repeat)
                for repeat in range(repeats)
            ),
        )
        for kind in ("rotary", "sinusoidal")
        for shift in SHIFTS
    )
    return Table(
        title="Move both tokens of a score by the same distance: change over rms",
        columns=(
            Column(name="positions", header="positions"),
            Column(name="shift", header="shift", form=",d"),
            Column(name="error", header="error", form=".2g", spread=True),
        ),
        rows=rows,
    )


def _judge(permuted: Table, shifted: Table) -> tuple[str, str]:
    """Equivariant without positions, not with them; rotary scores by distance; the causal mask is the limit."""
    blind = max(permuted.number("error", network=words) for words in (BARE, ENCODERS["none"]))
    seeing = min(
        permuted.number("error", network=words) for kind, words in ENCODERS.items() if kind != "none"
    )
    rotary_change = max(shifted.number("error", positions="rotary", shift=shift) for shift in SHIFTS)
    causal = permuted.number("error", network=CAUSAL)
    said = (
        f"without positions the outputs only permute (error {blind:.1g}), with any kind they change (at least "
        f"{seeing:.2g}), and rotary scores depend on the distance alone (change {rotary_change:.1g})"
    )
    if blind > SAME or seeing < DIFFERENT or rotary_change > SAME:
        return FAILS, said
    if causal > DIFFERENT:
        return (
            LIMIT,
            f"{said}; but a causal mask tells a decoder the order too, without positions (change {causal:.2g})",
        )
    return HOLDS, said
