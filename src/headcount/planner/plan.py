"""``Deployment`` (what was asked) and ``Plan`` (the answer, with everything that was considered and refused)."""

from __future__ import annotations

from headcount.engines.base import Case, Engine, Layout, Replica, Settings
from headcount.errors import LayoutError, UsageError
from headcount.record import Record
from headcount.spec.kv_format import kv_format
from headcount.spec.model import UNCOUNTED_PREDICTION
from headcount.units import ceil_div

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.hardware import Accelerator
    from headcount.ledger import Ledger
    from headcount.spec.kv_format import KvFormat
    from headcount.spec.model import ModelSpec


PIPELINE_COST = (
    "stages run in series: every token crosses each stage and the link between them, and stages idle "
    "unless enough requests are in flight"
)


class Deployment(Record):
    """Model x engine x card x settings, and the bounds of the search.

    gpus_per_node  cards that share the fast link; a tensor-parallel group never leaves a node
    max_gpus       search limit
    allow_pp       whether pipeline stages may be chosen, not only listed
    tp, pp, dp     fixed by the user; None: searched
    """

    model: ModelSpec
    engine: Engine
    accelerator: Accelerator
    settings: Settings
    gpus_per_node: int = 8
    max_gpus: int = 4096
    allow_pp: bool = False
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None

    @property
    def kv(self) -> KvFormat:
        """The KV format in force."""
        return kv_format(self.engine.kv_format_name(self.model, self.settings))

    def case(self, layout: Layout, context: int) -> Case:
        """What the engine is asked for ``layout``, its calibration compared with it."""
        return self.engine.calibrated_case(
            Case(
                model=self.model,
                accelerator=self.accelerator,
                layout=layout,
                context=context,
                settings=self.settings,
            )
        )

    def attempt(self, layout: Layout, context: int) -> tuple[Replica | None, str]:
        """Ask the engine for one replica of ``layout``: it and "", or None and the reason it is refused."""
        reason = self.refusal(layout)
        if reason:
            return None, reason
        try:
            return self.engine.replica(self.case(layout, context)), ""
        except LayoutError as error:
            return None, str(error)

    def refusal(self, layout: Layout) -> str | None:
        """Why ``layout`` cannot be: the node is too small, or the engine's own reason."""
        if layout.tp > self.gpus_per_node:
            return f"a node holds {self.gpus_per_node} GPUs and tensor parallelism stays inside one"
        return self.engine.refusal(self.model, layout)


class Alternative(Record):
    """A layout that was considered: what it holds, or why it was refused (``refused`` empty: it would do)."""

    layout: Layout
    conversations: int | None
    refused: str
    usd_per_hour: float | None = None
    note: str = ""


class Plan(Record):
    """The answer to ``fit`` or ``book``.

    conversations  whole conversations all replicas hold; low and high: within the engine's stated uncertainty
    lower_bound    pooled arithmetic: ``(total bytes, GPUs)``; only for ``book``
    smaller        for each smaller GPU count, why it fails
    what_ifs       ``(change, GPUs, note)``
    """

    question: str
    deployment: Deployment
    layout: Layout
    context: int
    replica: Replica
    conversations: int
    low: int
    high: int
    users: int | None
    spare_replicas: int = 0
    usd_per_gpu_hour: float | None = None
    price_source: str = ""
    lower_bound: tuple[int, int] | None = None
    alternatives: tuple[Alternative, ...] = ()
    smaller: tuple[tuple[int, str], ...] = ()
    what_ifs: tuple[tuple[str, int | None, str], ...] = ()
    warnings: tuple[str, ...] = ()
    ledger: Ledger

    @property
    def nodes(self) -> int:
        """Nodes to book: a tensor-parallel group never leaves a node, so each holds floor(GPUs / T) groups."""
        groups = self.deployment.gpus_per_node // self.layout.tp
        return ceil_div(self.layout.dp * self.layout.pp, max(1, groups))


def check_context(model: ModelSpec, context: int, *, allow_long: bool) -> tuple[str, ...]:
    """Warn about a context past the model's positions; refuse it unless ``allow_long``."""
    if not model.max_positions or context <= model.max_positions:
        return ()
    message = f"context {context:,} is past the {model.max_positions:,} positions of {model.name}"
    if not allow_long:
        raise UsageError(
            f"{message}; the largest allowed is {model.max_positions:,}, or add --allow-long-context"
        )
    return (message + ": allowed as asked, its output there is not trained",)


def standing_warnings(deployment: Deployment) -> tuple[str, ...]:
    """What holds whatever the answer: unverified card figures, notes of the model."""
    card = deployment.accelerator
    drafts = ("speculative-method", "mtp") in deployment.settings.arguments
    warnings = [note for note in deployment.model.notes if not (drafts and UNCOUNTED_PREDICTION in note)]
    if not card.verified:
        warnings.append(
            f"{card.name}: some of its figures are not verified against a datasheet or a tool's output"
        )
    return tuple(warnings)


def calibration_words(deployment: Deployment, layout: Layout, context: int) -> tuple[str, ...]:
    """What of a calibration the plan uses, by the file's name, or why it does not apply."""
    found = deployment.settings.calibration
    if found is None:
        return ()
    from headcount.engines.calibration import measured_terms

    case = deployment.case(layout, context)
    engine, version = deployment.engine.name, deployment.engine.version
    settled = case.settings.calibration
    assert settled is not None
    used = measured_terms(case, deployment.engine.calibrated, engine, version)
    name, differs = found.path or "the calibration", settled.differs(case, engine, version)
    if not used:
        return (f"{name} does not apply: {differs or 'it holds no term of this plan'}",)
    rest = f"; its other terms do not apply: {differs}" if differs else ""
    if not differs and found.cache_bytes is not None and settled.cache_bytes is None:
        share = "not known" if found.utilization is None else f"{found.utilization:g}"
        rest = f"; not the cache, whose utilization was {share}"
    words = ", ".join(term.removesuffix("_bytes").replace("_", " ") for term in used)
    return (f"measured, from {name} ({found.origin[:80]}): {words}{rest}",)


def require_parameters(model: ModelSpec) -> None:
    """Refuse to plan a model whose weights are not known."""
    if not model.parameters_known and model.nominal_parameters is None:
        raise UsageError(
            "the inline model gives no ffn, vocab or hidden, so its weights are not known: "
            "add ffn=...,vocab=... or --params N (such as 7e9)"
        )
