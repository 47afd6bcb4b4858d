"""``prove``: a model's counts as ``cost/`` derives them beside what the running transformer really takes.

    predicted                            measured
    cost.parameters_by_part              numel of the module tree's parameters, the whole model laid out
    cost.weight_bytes                    their bytes
    cost.bytes_by_kind after t tokens    bytes the caches of a real conversation keep, and what was allocated for them
    cost.prefill, cost.decode_step       PyTorch's FLOP counter
    cost.rank_weights, rank_mixer        bytes that each of T real processes holds (``--tp``)

Neither side reads the other: ``cost/`` sums over tensors of a ``ModelSpec``, ``transformer/`` builds modules and runs them.
Attention runs by the kernel that multiplies exactly the pairs a mask allows (``attention/row_by_row.py``); the fast ones
compute whole rectangles and discard half of them.
"""

from __future__ import annotations

import os

import torch

from headcount.cost.cache import bytes_by_kind, mixer_runs, rank_mixer
from headcount.cost.flops import MacCount, decode_step, encoder_macs, prefill
from headcount.cost.parameters import parameters_by_part
from headcount.cost.weights import rank_weights, weight_bytes, weight_format
from headcount.engines.base import head_refusal
from headcount.errors import LayoutError, UnsupportedModelError, UsageError
from headcount.record import Record
from headcount.spec.kv_format import kv_format
from headcount.spec.model import ModelSpec
from headcount.transformer.families.registry import build_network
from headcount.transformer.kv_cache.conversation import make_caches
from headcount.units import GIB
from headcount.verify import measured
from headcount.verify.ranks import TOLERANCE, run_ranks
from headcount.verify.reduced import Reduced, reduce

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_MOST_BYTES = 4 * GIB


class Line(Record):
    """One count, predicted and measured. ``group`` is the heading it stands under."""

    group: str
    name: str
    unit: str
    predicted: int
    measured: int

    @property
    def difference(self) -> int:
        """Measured minus predicted."""
        return self.measured - self.predicted


class Proof(Record):
    """All counts of one model. ``ran`` is the model that ran: the whole one, or one with the named cuts."""

    model: ModelSpec
    ran: ModelSpec
    cuts: tuple[str, ...]
    tokens: int
    kv: str
    weights: str
    lines: tuple[Line, ...]

    def as_document(self) -> dict[str, object]:
        """The JSON object of ``prove``."""
        return {
            "question": "prove",
            "model": {"name": self.model.name, "family": self.model.family, "source": self.model.source},
            "ran_whole": not self.cuts,
            "cuts": list(self.cuts),
            "tokens": self.tokens,
            "kv_format": self.kv,
            "weights": self.weights,
            "holds": self.holds,
            "counts": [{**line.as_dict(), "difference": line.difference} for line in self.lines],
        }

    @property
    def holds(self) -> bool:
        """Whether every difference is zero."""
        return all(line.difference == 0 for line in self.lines)


def prove(
    spec: ModelSpec,
    *,
    tokens: int = 32,
    kv: str = "bf16",
    weights: str = "fp32",
    tp: int = 1,
    most_bytes: int | None = None,
) -> Proof:
    """Build, run and count ``spec``.

    Raises
    ------
    UsageError: fewer than 2 tokens, or weights in a type the run does not take.
    UnsupportedModelError: a family the transformer does not run.
    """
    if tokens < 2:
        raise UsageError(
            f"a proof needs a prompt of 1 token and one more: --tokens 2 or more; given {tokens}"
        )
    if weights not in _DTYPES:
        raise UsageError(f"--weights {weights}: the proof runs in {' or '.join(_DTYPES)}")
    if not spec.parameters_known:
        raise UsageError("an inline description without ffn and vocab names no network that could be built")
    if spec.max_positions and tokens > spec.max_positions:
        raise UsageError(f"--tokens {tokens:,} is past the {spec.max_positions:,} positions of {spec.name}")
    bytes_each = 4 if weights == "fp32" else 2
    small = reduce(
        spec, most_bytes=most_bytes or _affordable(), bytes_per_parameter=bytes_each, tokens=tokens
    )
    make_caches(
        small.spec, format=kv_format(kv).name
    )  # refuses a format that no cache stores, before anything is built
    if tp > 1:
        _check_ranks(spec, small, tp)
    # The ranks first: a model that does not divide is refused before the rest is run.
    ranks = _rank_lines(small, tp, tokens=tokens, kv=kv_format(kv).name) if tp > 1 else []
    lines = _static_lines(spec, weights, "whole model" if small.cuts else "")
    lines += [*_run_lines(small, tokens=tokens, kv=kv, weights=weights), *ranks]
    return Proof(
        model=spec, ran=small.spec, cuts=small.cuts, tokens=tokens, kv=kv, weights=weights, lines=tuple(lines)
    )


def _check_ranks(spec: ModelSpec, small: Reduced, tp: int) -> None:
    """Refuse what cannot be cut into ``tp`` ranks, by arithmetic, before any process is started."""
    if spec.encoder is not None:
        raise UnsupportedModelError("--tp: the ranks of an encoder-decoder are not run here")
    reason = head_refusal(small.spec, tp)
    if reason and small.cuts and not head_refusal(spec, tp):
        raise LayoutError(
            f"tensor parallelism of {tp}: the model is reduced to fit here ({', '.join(small.cuts)}), and of that {reason}; "
            f"{spec.name} itself divides: fewer ranks, or more --memory"
        )
    if reason:
        raise LayoutError(f"tensor parallelism of {tp}: {reason}")


def _affordable() -> int:
    """Weights of at most 4 GiB, and of at most a third of the memory that is free now."""
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return _MOST_BYTES
    return min(_MOST_BYTES, free // 3)


def _static_lines(spec: ModelSpec, weights: str, note: str) -> list[Line]:
    """Parameters by part and weight bytes of the model laid out whole: the meta device gives shapes, not memory."""
    network = build_network(spec).to(_DTYPES[weights])
    # The transformer runs language models: vision and audio towers are not built, and not compared.
    spec = spec.replace(towers=())
    predicted, found = parameters_by_part(spec), measured.parameters_by_part(network)
    group = "parameters" + (f", {note}" if note else "")
    lines = [
        Line(group=group, name=part, unit="", predicted=predicted.get(part, 0), measured=found.get(part, 0))
        for part in [*predicted, *(part for part in found if part not in predicted)]
    ]
    lines.append(
        Line(group=group, name="total", unit="", predicted=spec.parameters, measured=sum(found.values()))
    )
    plain = spec.replace(checkpoint=None, quantization=None, nominal_parameters=None)
    lines.append(
        Line(
            group=group,
            name=f"weight bytes, {weights}",
            unit="B",
            predicted=weight_bytes(plain, weights),
            measured=measured.weight_bytes(network),
        )
    )
    return lines


def _run_lines(small: Reduced, *, tokens: int, kv: str, weights: str) -> list[Line]:
    """Cache bytes after all tokens, FLOPs of the prefill and of the step after it."""
    spec, format = small.spec, kv_format(kv)
    with torch.inference_mode(False):
        network = build_network(spec, seed=0).to(_DTYPES[weights])
    note = ", reduced model" if small.cuts else ""
    if not spec.layers:
        longest = spec.encoder.max_source_positions if spec.encoder else 0
        name = f"matmul FLOPs, {longest:,} tokens{note}"
        counted = measured.run_encoder(network, spec)
        return [Line(group=name, name="encoder", unit="", predicted=2 * encoder_macs(spec), measured=counted)]
    found = measured.run(network, spec, tokens=tokens, kv=format.name)
    group = f"KV bytes after {tokens:,} tokens, {format.name}{note}"
    lines = []
    total = 0
    for kind, (layers, count) in bytes_by_kind(spec, tokens, format).items():
        name = f"{kind}, {layers} layer{'s' if layers != 1 else ''}"
        lines.append(
            Line(group=group, name=name, unit="B", predicted=count, measured=found.cache_bytes[kind])
        )
        total += count
    lines.append(
        Line(group=group, name="allocated", unit="B", predicted=total, measured=found.allocated_bytes)
    )
    lines += _flop_lines(
        f"matmul FLOPs, prefill of {tokens - 1:,} tokens{note}", prefill(spec, tokens - 1), found.prefill
    )
    lines += _flop_lines(
        f"matmul FLOPs, decode step at {tokens:,} tokens{note}", decode_step(spec, tokens), found.decode
    )
    return lines


def _rank_lines(small: Reduced, tp: int, *, tokens: int, kv: str) -> list[Line]:
    """Bytes of every rank, replicated key/value heads and latents included.

    Raises LayoutError when the ranks together do not compute what the whole model does.
    """
    spec, format = small.spec, kv_format(kv)
    plain = spec.replace(checkpoint=None, quantization=None, nominal_parameters=None, towers=())
    weight = rank_weights(plain, weight_format(plain, "fp32"), tp=tp).total
    cache = sum(times * rank_mixer(mixer, tp).kv_bytes(tokens, format) for mixer, times in mixer_runs(spec))
    lines = []
    for rank, report in enumerate(run_ranks(spec, tp, tokens=tokens, kv=kv)):
        if report.logit_gap > TOLERANCE:
            raise LayoutError(
                f"rank {rank} of {tp}: its logits lie {report.logit_gap:.2g} from the whole model's"
            )
        group = f"rank {rank} of {tp}, fp32 weights" + (", reduced model" if small.cuts else "")
        lines.append(
            Line(group=group, name="weight bytes", unit="B", predicted=weight, measured=report.weight_bytes)
        )
        lines.append(
            Line(group=group, name=f"KV bytes, {kv}", unit="B", predicted=cache, measured=report.cache_bytes)
        )
    return lines


_GROUPS = {
    "encoder": ("encoder",),
    "mixers": ("projections", "scores_values", "state"),
    "feed_forward": ("feed_forward", "router", "experts", "shared_experts"),
    "lm_head": ("lm_head",),
}


def _flop_lines(group: str, predicted: MacCount, found: dict[str, int]) -> list[Line]:
    lines = [
        Line(
            group=group,
            name=name,
            unit="",
            predicted=2 * sum(predicted.parts.get(part, 0) for part in parts),
            measured=found[name],
        )
        for name, parts in _GROUPS.items()
        if name in found
    ]
    return [
        *lines,
        Line(group=group, name="total", unit="", predicted=predicted.flops, measured=found["total"]),
    ]
