"""What was measured on a server, so that later plans need not predict it: a small JSON file.

A term that belongs to the model (weights, activations, graphs) is used for the same model, card, layout and engine
release; one that belongs to the machine (device total, non-torch) for the same card, layout and engine. A plan names
the file it used, and says when it does not apply.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress

from headcount.errors import UsageError
from headcount.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from headcount.engines.base import Case

FORMAT = "headcount calibration 1"
_MACHINE = ("device_bytes", "non_torch_bytes")
_MODEL = ("weight_bytes", "activation_bytes", "graph_bytes", "cache_bytes")
_MOST_BYTES = 1 << 20
_MOST_ARGUMENTS = 100
_MOST_SHOWN = 200


class Calibration(Record):
    """Measured bytes of one GPU, None where the log did not say; ``origin`` says which log or server, and when.

    device_bytes      the card's total as the engine reported it
    weight_bytes      weights after loading
    activation_bytes  the peak of the profile run
    non_torch_bytes   context, communication buffers and kernels that were charged
    graph_bytes       CUDA graphs, where they were charged
    cache_bytes       what was left for the cache (with ``utilization``)
    weights, kv, max_num_batched_tokens, max_num_seqs   what the server was started with; other ones, other bytes
    arguments         the engine's own arguments that change its terms, by name
    mismatch          the first setting in which a case differs, by the engine that knows its defaults; None: not asked yet
    """

    engine: str
    engine_version: str
    model: str
    gpu: str
    tp: int
    pp: int
    origin: str
    utilization: float | None = None
    context: int | None = None
    device_bytes: int | None = None
    weight_bytes: int | None = None
    activation_bytes: int | None = None
    non_torch_bytes: int | None = None
    graph_bytes: int | None = None
    cache_bytes: int | None = None
    weights: str = "auto"
    kv: str = "auto"
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    arguments: tuple[tuple[str, str], ...] = ()
    path: str = ""
    mismatch: str | None = None

    def applies_to_machine(self, case: Case, engine: str) -> bool:
        """Same engine, card and layout: the machine's terms hold."""
        same = (self.engine, self.gpu, self.tp, self.pp)
        return same == (engine, case.accelerator.name, case.layout.tp, case.layout.pp)

    def applies_to_model(self, case: Case, engine: str, version: str) -> bool:
        """Same model, formats, batches and release as well: the model's terms hold."""
        return self.applies_to_machine(case, engine) and not self.differs(case, engine, version)

    def measured(self, name: str, case: Case, engine: str, version: str) -> int | None:
        """The measured value of ``name`` if it holds for this case, else None."""
        holds = (
            self.applies_to_machine(case, engine)
            if name in _MACHINE
            else self.applies_to_model(case, engine, version)
        )
        value: int | None = getattr(self, name)
        return value if holds else None

    def differs(self, case: Case, engine: str, version: str) -> str:
        """The first thing in which it is of another server than ``case``; "" when it is the same."""
        settings = case.settings
        pairs: tuple[tuple[str, object, object], ...] = (
            ("the engine", self.engine, engine),
            ("the card", self.gpu, case.accelerator.name),
            ("TP", self.tp, case.layout.tp),
            ("PP", self.pp, case.layout.pp),
            ("the release", self.engine_version, version),
            ("the model", self.model.lower(), case.model.name.lower()),
            ("the memory", None, settings.memory_bytes),
        )
        if self.mismatch is None:
            pairs += (
                ("the weights' format", self.weights, settings.weights),
                ("the cache's format", self.kv, settings.kv),
                ("max_num_batched_tokens", self.max_num_batched_tokens, settings.max_num_batched_tokens),
                ("max_num_seqs", self.max_num_seqs, settings.max_num_seqs),
                ("the arguments", dict(self.arguments), dict(settings.arguments)),
            )
        return next(
            (
                f"{what} is {theirs!s:.60} there, {ours!s:.60} here"
                for what, theirs, ours in pairs
                if theirs != ours
            ),
            self.mismatch or "",
        )

    def document(self) -> dict[str, object]:
        """What is written to the file."""
        fields = {name: getattr(self, name) for name in self._fields if name not in ("path", "mismatch")}
        fields["arguments"] = dict(self.arguments) or None
        return {"format": FORMAT, **{name: value for name, value in fields.items() if value is not None}}


def measured_terms(case: Case, names: Iterable[str], engine: str, version: str) -> dict[str, tuple[int, str]]:
    """``name -> (measured bytes, file or origin)`` of the ``names`` that hold for ``case``; empty without a calibration.

    A total that the question says itself (``--memory``) outranks a measured one.
    """
    found = case.settings.calibration
    if found is None:
        return {}
    terms = {}
    for name in names:
        value = found.measured(name, case, engine, version)
        if value is not None:
            terms[name] = (value, found.path or found.origin)
    return terms


def write_calibration(calibration: Calibration, path: str) -> None:
    """Write the file; an existing one is replaced whole.

    Raises UsageError when it cannot be written.
    """
    text = json.dumps(calibration.document(), indent=2) + "\n"
    if os.path.lexists(path) and not os.path.isfile(path):
        raise UsageError(f"{path}: exists and is no regular file; nothing was written")
    partial = f"{path}.{os.getpid()}.part"
    try:
        with open(partial, "x", encoding="utf-8") as file:
            file.write(text)
        os.replace(partial, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(partial)
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None


def read_calibration(path: str) -> Calibration:
    """Read the file that ``headcount verify --save`` wrote.

    Raises UsageError for a file that is missing, too large, not JSON, or not such a file.
    """
    shown = path if len(path) <= _MOST_SHOWN else path[:_MOST_SHOWN] + "..."
    # A pipe would block for ever.
    if os.path.exists(path) and not os.path.isfile(path):
        raise UsageError(f"{shown}: not a regular file")
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{shown}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not a text file") from None
    if len(text) > _MOST_BYTES:
        raise UsageError(f"{path}: larger than any calibration file ({_MOST_BYTES:,} bytes)")
    try:
        raw = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        raise UsageError(f"{path}: not JSON") from None
    if not isinstance(raw, dict) or raw.pop("format", None) != FORMAT:
        raise UsageError(f"{path}: not a calibration file (verify --save writes one)")
    fields = _checked(raw, path)
    return Calibration(**fields | {"arguments": tuple(fields.get("arguments", {}).items())}, path=path)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose entries stand once. ValueError otherwise: which of two values was meant is not for us to say."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an entry stands twice")
    return found


def _checked(raw: dict[str, Any], path: str) -> dict[str, Any]:
    required = ("engine", "engine_version", "model", "gpu", "origin", "tp", "pp")
    text = (*required[:5], "weights", "kv")
    for name in required:
        if name not in raw:
            raise UsageError(f"{path}: {name!r} is missing")
    for name, value in raw.items():
        if name in text:
            good = isinstance(value, str) and len(value) <= 500
        elif name == "arguments":
            good = isinstance(value, dict) and len(value) <= _MOST_ARGUMENTS
            good = good and all(isinstance(text, str) and len(text) <= 500 for text in value.values())
        elif name == "utilization":
            good = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1
        elif name in (*_MACHINE, *_MODEL, "tp", "pp", "context", "max_num_batched_tokens", "max_num_seqs"):
            least = 1 if name in ("weight_bytes", "device_bytes") else 0
            good = isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**45
        else:
            raise UsageError(f"{path}: unknown entry {name[:40]!r}")
        if not good:
            raise UsageError(f"{path}: {name} is {value!r:.60}, which is not possible")
    if not raw["tp"] or not raw["pp"]:
        raise UsageError(f"{path}: tp and pp are at least 1")
    return raw
