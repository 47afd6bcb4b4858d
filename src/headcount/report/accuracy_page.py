"""``accuracy`` as a page and as JSON: one line per engine and check, then the rows that are not reproduced."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.report.console import Page
    from headcount.verify.accuracy import Outcome, Score
    from headcount.verify.planner_cases import PlannerOutcome

WORDS = {
    "tokens_from_kv_memory": "pool from its bytes",
    "bytes_per_token": "bytes of a request",
    "weights": "weights",
    "balance": "memory balance",
    "end_to_end": "cache, end to end",
    "term": "single terms",
}
_HEADER = ("engine", "figure", "rows", "n", "same", "median", "90th", "held", "out")


def score_rows(scores: list[Score]) -> list[tuple[str, ...]]:
    """The cells of the table of scores."""
    return [
        (
            each.engine,
            WORDS.get(each.check, each.check),
            f"{each.rows:,}",
            f"{each.figures:,}",
            _share(each.share, 0),
            _share(each.median, 2),
            _share(each.ninetieth, 2),
            _share(each.covered, 0),
            f"{each.listed:,}" if each.listed else "",
        )
        for each in scores
        if each.rows
    ]


def _share(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}%}"


def write_accuracy(page: Page, outcomes: list[Outcome], scores: list[Score], *, listing: bool) -> None:
    """Title, scores, and with ``listing`` every figure that is not reproduced or left out, with its reason."""
    rows = len({outcome.row.id for outcome in outcomes})
    page.pair("Predicted against published logs", f"{rows:,} engine starts")
    page.blank()
    page.table(_HEADER, score_rows(scores), right={2, 3, 4, 5, 6, 7, 8})
    page.blank()
    page.wrapped(
        "rows: starts. n: their figures. same: share of these within 0.5 % of the printed figure (pool, request), 1 % "
        "(weights) or 0.1 GiB (balance). median, 90th: absolute relative errors. held: share of stated intervals that "
        "hold the figure. out: left out, as they are circular, or whose decisive setting was not said."
    )
    if not listing:
        page.blank()
        page.line("Every row with its reason: --rows     Data: --json", "dim")
        return
    for outcome in outcomes:
        if outcome.reason:
            page.blank()
            found = outcome.comparison
            what = "" if found is None else f" {WORDS.get(found.check, found.check)}, {found.quantity}"
            page.line(f"{outcome.row.id[:50]}{what}", "bold")
            if found is not None and found.predicted is not None and found.reported is not None:
                page.line(
                    f"  predicted {_figure(found.predicted)}, reported {_figure(found.reported)} {found.unit}"
                )
            page.wrapped(outcome.reason, indent=2)


def _figure(value: float) -> str:
    """Counts whole, sizes with two decimals."""
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:,.2f}"


def accuracy_document(outcomes: list[Outcome], scores: list[Score]) -> dict[str, object]:
    """``{"rows": [...], "scores": [...]}``: one entry per figure; a row that cannot be predicted is one entry."""
    return {
        "rows": [outcome_document(outcome) for outcome in outcomes],
        "scores": [score_document(s) for s in scores],
    }


def outcome_document(outcome: Outcome) -> dict[str, object]:
    """One figure of one row."""
    found, row = outcome.comparison, outcome.row
    document: dict[str, object] = {
        "id": row.id,
        "source_url": row.source_url,
        "engine": row.engine,
        "engine_version": outcome.engine_version or None,
        "model": row.model,
        "family": outcome.family or None,
        "check": None if found is None else found.check,
        "quantity": None if found is None else found.quantity,
        "unit": None if found is None else found.unit,
        "predicted": None if found is None else found.predicted,
        "reported": None if found is None else found.reported,
        "difference": None if found is None else found.difference,
        "relative_error": outcome.error,
        "low": None if found is None else found.low,
        "high": None if found is None else found.high,
        "within_interval": outcome.within,
        "counted": outcome.counted,
        "reason": outcome.reason or None,
    }
    return document


def score_document(each: Score) -> dict[str, object]:
    """One engine and check."""
    return {
        "engine": each.engine,
        "check": each.check,
        "rows": each.rows,
        "figures": each.figures,
        "share_reproduced": each.share,
        "median_error": each.median,
        "p90_error": each.ninetieth,
        "share_within_interval": each.covered,
        "left_out": each.listed,
    }


def write_planner_cases(page: Page, outcomes: list[PlannerOutcome]) -> None:
    """How many cases agree in every figure, and each that does not."""
    exact = sum(outcome.exact for outcome in outcomes)
    page.line(f"{exact:,} of {len(outcomes):,} planner cases exact", "bold")
    for outcome in outcomes:
        if not outcome.exact:
            page.blank()
            page.line(outcome.id)
            page.wrapped(f"predicted {outcome.predicted}", indent=2)
            page.wrapped(f"reported {outcome.reported}", indent=2)


def planner_document(outcomes: list[PlannerOutcome]) -> dict[str, object]:
    """``{"rows": [{id, predicted, reported, relative_error, exact, reason}], "exact": N, "cases": N}``."""
    return {
        "cases": len(outcomes),
        "exact": sum(outcome.exact for outcome in outcomes),
        "rows": [
            {
                "id": outcome.id,
                "predicted": outcome.predicted,
                "reported": outcome.reported,
                "relative_error": _worst(outcome),
                "exact": outcome.exact,
                "reason": outcome.reason or None,
            }
            for outcome in outcomes
        ],
    }


def _worst(outcome: PlannerOutcome) -> float | None:
    """The largest relative error over the figures of a case; None where one side refuses."""
    errors = []
    for name, theirs in outcome.reported.items():
        ours = outcome.predicted.get(name)
        if isinstance(theirs, bool) or not isinstance(theirs, int | float):
            continue
        if not isinstance(ours, int | float) or not theirs:
            return None
        errors.append(abs(ours - theirs) / abs(theirs))
    return (
        max(errors, default=0.0)
        if outcome.predicted.get("refused") == outcome.reported.get("refused")
        else None
    )
