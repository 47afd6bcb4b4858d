"""``profile``: everything ``show`` says of one model at one context length, as one record with its ledger."""

from __future__ import annotations

from headcount.cost.cache import (
    bytes_by_kind,
    conversation_bytes,
    fitting_formats,
    token_bytes,
)
from headcount.cost.crossovers import model_crossovers, textbook_crossovers
from headcount.cost.flops import MacCount, decode_step, materialised_score_bytes, prefill
from headcount.cost.model_ledger import model_ledger
from headcount.cost.parameters import active_parameters, parameters_by_part
from headcount.cost.weights import PLAIN_BYTES, stored_name, weight_bytes, weight_format
from headcount.record import Record
from headcount.spec.kv_format import kv_format
from headcount.spec.quantization import RECIPES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.ledger import Ledger
    from headcount.spec.kv_format import KvFormat
    from headcount.spec.model import ModelSpec


class Profile(Record):
    """The counts of one model.

    kv            the format that ``kv_bytes`` and the ledger use
    weights       format name -> bytes of the whole model
    doubling      how prefill FLOPs, decode FLOPs and KV bytes grow from ``context`` to twice it
    break_even    conversations past which the cache outweighs the weights
    """

    model: ModelSpec
    context: int
    kv: KvFormat
    weight_name: str
    parameters: int | None
    active: int | None
    parts: dict[str, int]
    weights: dict[str, int]
    token_by_format: dict[str, int]
    conversation_by_format: dict[str, int]
    kinds: dict[str, tuple[int, int]]
    prefill: MacCount | None
    decode: MacCount | None
    doubling: dict[str, float]
    score_bytes: int
    crossovers: dict[str, dict[str, int | None] | None]
    break_even: float | None
    ledger: Ledger

    def as_document(self, warnings: list[str]) -> dict[str, object]:
        """The JSON object of ``show``."""
        model = self.model
        return {
            "question": "show",
            "model": {"name": model.name, "family": model.family, "source": model.source},
            "context": self.context,
            "max_positions": model.max_positions or None,
            "layers": len(model.layers),
            "hidden_size": model.hidden_size if model.parameters_known else None,
            "vocab_size": model.vocab_size if model.parameters_known else None,
            "parameters": self.parameters,
            "nominal_parameters": model.nominal_parameters,
            "active_parameters": self.active,
            "parameters_by_part": self.parts,
            "weight_format": self.weight_name,
            "weight_bytes": self.weights,
            "kv_format": self.kv.name,
            "kv_bytes_per_token": self.token_by_format,
            "kv_bytes": {str(self.context): self.conversation_by_format.get(self.kv.name)},
            "kv_bytes_by_dtype": self.conversation_by_format,
            "kv_bytes_by_kind": {
                kind: {"layers": layers, "bytes": count} for kind, (layers, count) in self.kinds.items()
            },
            "flops": _flops_document(self.prefill, self.decode, self.context),
            "materialised_score_bytes_per_layer": self.score_bytes,
            "doubling": self.doubling,
            "crossovers": self.crossovers,
            "break_even_conversations": self.break_even,
            "warnings": warnings,
            "ledger": self.ledger.as_dict(),
        }


def _flops_document(first: MacCount | None, step: MacCount | None, context: int) -> dict[str, object] | None:
    if first is None or step is None:
        return None
    return {
        "convention": "2 FLOPs per multiply-add; causal pairs counted exactly",
        "prefill_tokens": context,
        "prefill": first.flops,
        "decode_per_token": step.flops,
        "macs": {"prefill": first.macs, "decode_per_token": step.macs},
        "prefill_by_part": {part: 2 * macs for part, macs in first.parts.items()},
        "decode_by_part": {part: 2 * macs for part, macs in step.parts.items()},
    }


def profile(model: ModelSpec, *, context: int, weights: str = "auto", kv: str = "auto") -> Profile:
    """Count everything once.

    Raises UsageError when the asked KV format does not divide this model's rows, UnknownNameError for an unknown one.
    """
    fmt = kv_format("fp16" if kv == "auto" else kv)
    conversation_bytes(model, 1, fmt)  # refuses a format whose blocks do not fill this model's rows
    name = stored_name(model) if weights == "auto" else weight_format(model, weights).name
    known = model.parameters_known or model.nominal_parameters is not None
    whole = model.parameters_known
    formats = fitting_formats(model)
    first, step = (prefill(model, context), decode_step(model, context)) if whole else (None, None)
    total = weight_bytes(model, weights) if known else None
    each = conversation_bytes(model, context, fmt)
    return Profile(
        model=model,
        context=context,
        kv=fmt,
        weight_name=name,
        parameters=model.parameters if whole else model.nominal_parameters,
        active=active_parameters(model) if whole else None,
        parts=parameters_by_part(model) if whole else {},
        weights=_weights_by_format(model, weights) if known else {},
        token_by_format={f.name: token_bytes(model, f) for f in formats},
        conversation_by_format={f.name: conversation_bytes(model, context, f) for f in formats},
        kinds=bytes_by_kind(model, context, fmt),
        prefill=first,
        decode=step,
        doubling=_doubling(model, context, fmt) if whole else {},
        score_bytes=materialised_score_bytes(model, context),
        crossovers={
            "model": model_crossovers(model) if whole else None,
            "textbook": textbook_crossovers(model.hidden_size),
        },
        break_even=None if total is None or not each else total / each,
        ledger=model_ledger(model, context, fmt, weight_name=name, total=total),
    )


def _weights_by_format(model: ModelSpec, asked: str) -> dict[str, int]:
    """Bytes of every plain and packed format, the asked one under its own name."""
    names = dict.fromkeys([asked, *PLAIN_BYTES, *RECIPES])
    return {name: weight_bytes(model, name) for name in names}


def _doubling(model: ModelSpec, context: int, kv: KvFormat) -> dict[str, float]:
    before, after = prefill(model, context), prefill(model, 2 * context)
    ratios = {
        "prefill_flops": after.macs / before.macs,
        "decode_flops": decode_step(model, 2 * context).macs / decode_step(model, context).macs,
    }
    if before.parts["scores_values"]:
        ratios["prefill_scores_values"] = after.parts["scores_values"] / before.parts["scores_values"]
    each = conversation_bytes(model, context, kv)
    if each:
        ratios["kv_bytes"] = conversation_bytes(model, 2 * context, kv) / each
    return ratios
