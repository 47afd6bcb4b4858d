"""The public table: every engine start that was published with its figures, beside what the rules predict.

    rows of the table -> Observation -> ask -> compare -> Outcome        one per figure
    Outcomes -> Score                                                    one per engine and check

The table ships with the package (``public_logs.jsonl``, ``public_configs.json``); files of the same form are read too.
"""

from __future__ import annotations

import json
import os

from headcount.errors import HeadcountError, ModelFileError, UsageError
from headcount.record import Record
from headcount.spec.attention import FullAttention, LatentAttention
from headcount.spec.huggingface.config import spec_from_config
from headcount.spec.huggingface.towers.parts import UNCOUNTED_TOWER
from headcount.spec.huggingface.towers.registry import THINKERS
from headcount.verify.case_of import SLOT_ENGINES, UNSHARED, Asked, ask
from headcount.verify.comparison import compare
from headcount.verify.explanation import explain_gap, unsaid
from headcount.verify.observation import Comparison, Observation, read_observation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from headcount.spec.model import ModelSpec

_DATA = os.path.join(os.path.dirname(__file__), "data")
_MOST_LINE = 1 << 20
_MOST_CONFIG = 16 << 20
# How a config's own note begins when its shape is not the published one.
_UNSURE = ("not known", "inferred")
DEFECT = "internal error"
_TOKENS = "tokens_from_kv_memory"
# The arithmetic checks hold within the rounding of what was printed.
TOLERANCE = {_TOKENS: 0.005, "bytes_per_token": 0.005, "weights": 0.01}
BALANCE_GIB = 0.1


class Outcome(Record):
    """One figure of one row: the comparison, and whether the row is one that the check is made for.

    counted   False: the row is circular, or what decides the figure (KV dtype, shape, packing) is not known
    reason    why it is not counted or not reproduced; "" when it is reproduced
    """

    row: Observation
    engine_version: str
    family: str
    comparison: Comparison | None
    counted: bool
    reason: str

    @property
    def error(self) -> float | None:
        """Relative error of the figure."""
        return None if self.comparison is None else self.comparison.relative_error

    @property
    def within(self) -> bool | None:
        """Whether the stated interval holds the reported figure; None without an interval."""
        found = self.comparison
        if found is None or found.low is None or found.high is None or found.reported is None:
            return None
        return found.low <= found.reported <= found.high


def public_table() -> tuple[list[Observation], dict[str, dict[str, Any]]]:
    """The rows and configs that ship with the package."""
    rows = list(read_table(os.path.join(_DATA, "public_logs.jsonl")))
    with open(os.path.join(_DATA, "public_configs.json"), encoding="utf-8") as file:
        configs: dict[str, dict[str, Any]] = json.load(file)
    return rows, configs


def read_table(path: str) -> Iterator[Observation]:
    """Read a JSON Lines file of rows, one at a time.

    Raises UsageError naming the line of a row that cannot be read.
    """
    for where, row in read_objects(path):
        yield read_observation(row, where=where)


def read_objects(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ``(where, object)`` for every line of a JSON Lines file.

    Raises UsageError for a file that cannot be read, and for the first line that is no object.
    """
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(_MOST_LINE + 1), b""), start=1):
                if line.strip():
                    yield f"{path} line {number}", _object(line, f"{path} line {number}")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None


def _object(line: bytes, where: str) -> dict[str, Any]:
    if len(line) > _MOST_LINE:
        raise UsageError(f"{where}: longer than any row ({_MOST_LINE:,} bytes)")
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise UsageError(f"{where}: not JSON") from None
    if not isinstance(row, dict):
        raise UsageError(f"{where}: not a JSON object")
    return row


def read_config(folder: str, name: str) -> dict[str, Any]:
    """Read one config file of ``folder``; only a plain file name is followed.

    Raises ModelFileError.
    """
    if os.path.basename(name) != name or not name.endswith(".json"):
        raise ModelFileError(f"config {name!r:.80} is not a plain file name")
    path = os.path.join(folder, name)
    try:
        if not os.path.isfile(path) or os.path.dirname(os.path.realpath(path)) != os.path.realpath(folder):
            found = os.path.lexists(path)
            raise ModelFileError(
                f"{path}: {'not a regular file of that folder' if found else 'No such file'}"
            )
        with open(path, encoding="utf-8") as file:
            text = file.read(_MOST_CONFIG + 1)
        if len(text) > _MOST_CONFIG:
            raise ModelFileError(f"{path}: larger than any config")
        config = json.loads(text)
    except OSError as error:
        raise ModelFileError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ModelFileError(f"{path}: not JSON") from None
    if not isinstance(config, dict):
        raise ModelFileError(f"{path}: not a JSON object")
    return config


def complete(config: dict[str, Any]) -> dict[str, Any]:
    """Fill in what an abridged config left out because it was null or 0, where the class default would add it.

    Configs of the public table say where they were copied from (``_source``), and leave out null entries: a Mistral without
    a window, a Gemma 4 without per-layer embeddings (which only the models with shared caches have).
    """
    if "_source" not in config:
        return config
    text = config["text_config"] if isinstance(config.get("text_config"), dict) else config
    added: dict[str, Any] = {}
    kind = str(text.get("model_type") or config.get("model_type"))
    if kind in ("mistral", "mixtral", "ministral"):
        added = {"sliding_window": None}
    elif kind in THINKERS and "thinker_config" not in config:
        return _inner_text(config, THINKERS[kind])
    elif kind.startswith("gemma4") and not text.get("num_kv_shared_layers"):
        added = {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0}
    filled = added | text
    return {**config, "text_config": filled} if text is not config else filled


def _inner_text(config: dict[str, Any], thinker: str) -> dict[str, Any]:
    """The language model of an abridged config of a model that also speaks: of the stage that it states."""
    talker = config.get("talker_config")
    stage = (
        config if isinstance(config.get("text_config"), dict) else talker if isinstance(talker, dict) else {}
    )
    text = stage.get("text_config")
    if not isinstance(text, dict):
        return config
    return {
        "model_type": thinker.replace("_thinker", "_text"),
        "torch_dtype": config.get("torch_dtype"),
        **text,
    }


def read_shape(config: dict[str, Any], name: str) -> tuple[ModelSpec, str]:
    """The model, and why its weights are not known ("" when they are).

    A quantization_config that says too little is left out: the cache does not depend on it.
    """
    config = complete(config)
    try:
        return spec_from_config(config, name=name, source="public table"), ""
    except ModelFileError as error:
        if "quantization_config" not in str(error):
            raise
        reason = str(error)
    plain = {
        key: value
        for key, value in config.items()
        if key not in ("quantization_config", "compression_config")
    }
    if isinstance(plain.get("text_config"), dict):
        text = plain["text_config"]
        plain["text_config"] = {key: value for key, value in text.items() if key != "quantization_config"}
    return spec_from_config(plain, name=name, source="public table"), reason


def judge(row: Observation, config: dict[str, Any] | None) -> list[Outcome]:
    """Every outcome of one row; a row that cannot be predicted is one outcome with its reason."""
    if config is None:
        return [refused(row, "no config: the model is not named or its shape is not known")]
    source = str(config.get("_source", ""))
    if source.startswith(_UNSURE):
        row = row.replace(circular=True, notes=f"{row.notes}; config {source}")
    try:
        model, packing = read_shape(config, row.model or row.config or "the row's model")
        asked = ask(row, model)
        found = compare(row, asked)
    except HeadcountError as error:
        return [refused(row, str(error))]
    except Exception as error:
        # A defect of ours in one row must not lose the others; the command ends with the status of a defect.
        return [refused(row, f"{DEFECT}, {type(error).__name__}: {error}")]
    if not found:
        return [refused(row, "no figure that a rule predicts", asked)]
    if row.engine not in SLOT_ENGINES:
        # A GGUF file holds the language model alone.
        packing = packing or next((note for note in model.notes if UNCOUNTED_TOWER in note), "")
    return [_outcome(row, asked, comparison, packing) for comparison in found]


def refused(row: Observation, reason: str, asked: Asked | None = None) -> Outcome:
    """The one outcome of a row that is not predicted."""
    return Outcome(
        row=row,
        engine_version=asked.engine.version if asked else row.engine_version or "",
        family=asked.case.model.family if asked else "",
        comparison=None,
        counted=False,
        reason=reason,
    )


def _outcome(row: Observation, asked: Asked, found: Comparison, packing: str) -> Outcome:
    reason = found.reason or _uncounted(row, asked, found, packing)
    counted = not reason
    if not reason and not _reproduced(found):
        reason = explain_gap(row, asked, found.quantity) if found.check == _TOKENS else ""
        reason = reason or "; ".join(("not reproduced", *asked.assumed))
    return Outcome(
        row=row,
        engine_version=asked.engine.version,
        family=asked.case.model.family,
        comparison=found,
        counted=counted,
        reason=reason,
    )


def _uncounted(row: Observation, asked: Asked, found: Comparison, packing: str) -> str:
    """Why the figure is no test of the rules."""
    if row.circular:
        return "circular: the model or its shape was inferred, here or from other figures, or is not the published one"
    unshared = next((words for words in asked.assumed if words.startswith(UNSHARED)), "")
    if unshared and found.check != "balance":
        return unshared
    if found.check in ("weights", "end_to_end") and packing:
        return packing
    if found.check in ("weights", "end_to_end") and not asked.weights_known:
        return next(
            (words for words in asked.assumed if words.startswith("every linear")), "packing not known"
        )
    if found.check == _TOKENS and asked.assumed and not _reproduced(found):
        # Something that was not said explains it: no fault of the rules, and no proof of them.
        explained = explain_gap(row, asked, found.quantity)
        if explained or not asked.kv_known:
            return explained or "KV dtype was not said, and the default does not reproduce it"
    missing = unsaid(row, asked)
    if found.check in (_TOKENS, "bytes_per_token") and missing and not _reproduced(found):
        return f"not said, and the pool depends on it: {missing}"
    whole = all(
        isinstance(m, FullAttention | LatentAttention)
        for layer, _ in asked.case.model.layer_runs()
        for m in layer.mixers
    )
    if found.check in (_TOKENS, "bytes_per_token") and row.max_model_len is None and not whole:
        return "max_model_len was not said, and the printed capacity of this model depends on it"
    if found.check == "end_to_end" and "end_to_end" not in row.check:
        return "the utilization or the card was not said"
    if found.check == "end_to_end" and row.engine_version is None:
        return "the release was not said, and what start-up reserves depends on it"
    return ""


def _reproduced(found: Comparison) -> bool:
    error, difference = found.relative_error, found.difference
    if found.check == "balance":
        return difference is not None and abs(difference) <= BALANCE_GIB
    limit = TOLERANCE.get(found.check)
    # Printed figures carry two decimals: one request in ten thousand, one hundredth of a GiB.
    rounded = difference is not None and found.unit in ("GiB", "requests") and abs(difference) <= 0.0051
    return limit is None or rounded or (error is not None and abs(error) <= limit)


class Score(Record):
    """How one check does over its counted figures.

    rows, figures       counted starts, and figures in them
    share     of figures within the tolerance (0.5 % of printed figures, 1 % of weights, 0.1 GiB of the balance); None
              where no tolerance is stated
    median, ninetieth   absolute relative errors; None without a figure
    covered   share of stated intervals that hold the reported figure; None without intervals
    """

    engine: str
    check: str
    rows: int
    figures: int
    share: float | None
    median: float | None
    ninetieth: float | None
    covered: float | None
    listed: int


def score(outcomes: Iterable[Outcome]) -> list[Score]:
    """One ``Score`` per engine and check; ``listed`` counts the figures left out with their reason."""
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.comparison is not None:
            groups.setdefault((outcome.row.engine, outcome.comparison.check), []).append(outcome)
    return [_score(engine, check, group) for (engine, check), group in groups.items()]


def _score(engine: str, check: str, group: list[Outcome]) -> Score:
    counted = [outcome for outcome in group if outcome.counted and outcome.error is not None]
    errors = sorted(abs(outcome.error or 0.0) for outcome in counted)
    within = [outcome.within for outcome in counted if outcome.within is not None]
    good = sum(1 for outcome in counted if outcome.comparison is not None and _reproduced(outcome.comparison))
    return Score(
        engine=engine,
        check=check,
        rows=len({outcome.row.id for outcome in counted}),
        figures=len(counted),
        share=good / len(counted) if counted and check in (*TOLERANCE, "balance") else None,
        median=errors[len(errors) // 2] if errors else None,
        ninetieth=errors[min(len(errors) - 1, int(0.9 * len(errors)))] if errors else None,
        covered=sum(within) / len(within) if within else None,
        listed=len(group) - len(counted),
    )
