"""``verify`` as a page and as JSON: predicted | reported | difference, and what the server really holds."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.report.console import Page
    from headcount.verify.observation import Comparison
    from headcount.verify.receipt import Receipt
    from headcount.verify.servers.load import Load

_BASIS = {
    "weights": "",
    "term": "",
    "balance": "by printed terms",
    "tokens_from_kv_memory": "by printed cache",
    "bytes_per_token": "one request",
    "end_to_end": "end to end",
}
_DECIMALS = {"GiB": 2, "requests": 2}


def write_receipt(page: Page, receipt: Receipt) -> None:
    """Title, one line per figure, what explains a gap, and the conversations held."""
    asked, case = receipt.asked, receipt.asked.case
    page.pair(
        f"{asked.engine.name} {asked.engine.version}, {case.model.name[:40]}",
        f"{case.accelerator.name}, {case.layout.words()}, {case.context:,} tokens",
    )
    page.blank()
    rows = [_cells(line) for line in receipt.lines]
    page.table(("", "predicted", "reported", "difference", ""), rows, right={1, 2, 3})
    for line in receipt.lines:
        if line.reason:
            page.blank()
            page.wrapped(f"{line.quantity}: {line.reason}", indent=2, hanging=13, label="open ")
    if receipt.explains:
        page.blank()
        page.wrapped(receipt.explains, indent=2, hanging=13, label="explains ")
    page.blank()
    page.wrapped(held_words(receipt), indent=2, hanging=13, label="holds ")
    for note in receipt.notes:
        page.wrapped(note, indent=2, hanging=13, label="taken ")


def held_words(receipt: Receipt) -> str:
    """How many conversations of the asked length the server really holds."""
    if receipt.held is None:
        return f"not known: {receipt.holds_why}"
    low, high = receipt.held_low, receipt.held_high
    interval = f" ({low:,} to {high:,})" if low is not None and high is not None and low != high else ""
    if receipt.holds_why.startswith("start refused"):
        return f"nothing; {receipt.holds_why}"
    plural = "" if receipt.held == 1 else "s"
    return f"{receipt.held:,} conversation{plural} of {receipt.context:,} tokens{interval}, by {receipt.holds_why}"


def _cells(line: Comparison) -> tuple[str, str, str, str, str]:
    places = _DECIMALS.get(line.unit, 0)
    shown = None if line.difference is None else round(line.difference, places)
    difference = "" if shown is None else f"{shown:+,.{places}f}" if shown else "none"
    error = line.relative_error
    if error is not None and shown:
        difference += f" ({error:+.1%})"
    return (
        f"{line.quantity} [{line.unit}]",
        _number(line.predicted, places),
        _number(line.reported, places),
        difference,
        "see below" if line.reason else _BASIS.get(line.check, ""),
    )


def _number(value: float | None, places: int) -> str:
    return "" if value is None else f"{value:,.{places}f}"


def receipt_document(receipt: Receipt) -> dict[str, object]:
    """The JSON object of one start."""
    asked, case = receipt.asked, receipt.asked.case
    return {
        "engine": asked.engine.name,
        "engine_version": asked.engine.version,
        "model": case.model.name,
        "gpu": case.accelerator.name,
        "layout": {"tp": case.layout.tp, "pp": case.layout.pp, "dp": case.layout.dp},
        "max_model_len": case.context,
        "terms": [
            {
                "quantity": line.quantity,
                "check": line.check,
                "unit": line.unit,
                "predicted": line.predicted,
                "low": line.low,
                "high": line.high,
                "reported": line.reported,
                "difference": line.difference,
                "relative_error": line.relative_error,
                "reason": line.reason or None,
            }
            for line in receipt.lines
        ],
        "explains": receipt.explains or None,
        "context": receipt.context,
        "conversations": receipt.held,
        "conversations_low": receipt.held_low,
        "conversations_high": receipt.held_high,
        "rests_on": receipt.holds_why,
        "notes": list(receipt.notes),
        "calibration": receipt.calibration.document(),
    }


_QUEUED = {
    "cache": "the cache was full",
    "slots": "every slot was taken",
    "preempted": "it had begun and was thrown out of the cache",
    "cut": "the server ended another's reply for it",
}


def write_load(page: Page, server: str, load: Load, receipt: Receipt | None) -> None:
    """What happened under load, beside what was predicted."""
    page.pair(
        f"Held {load.at_once:,} of {load.asked:,} conversations at once",
        f"{server}, {load.context_tokens:,} tokens each, {load.seconds:.0f} s",
    )
    if load.first_queued is None:
        page.line(f"  queued      none of the {load.asked:,}")
    else:
        why = _QUEUED.get(load.queued_for or "", "the server does not say why")
        page.wrapped(f"number {load.first_queued:,}: {why}", indent=2, hanging=14, label="queued")
    page.line(f"  tokens      {load.held_tokens:,} held at one moment")
    if load.fraction is not None:
        page.line(f"  cache       {load.fraction:.1%} in use at most, by the server's count")
    if load.preemptions is not None:
        page.line(f"  preempted   {load.preemptions:,}")
    if load.others:
        page.line(f"  others      {load.others:,} requests that are not ours were running")
    if receipt is not None and receipt.held is not None:
        page.wrapped(f"{receipt.held:,}, by {receipt.holds_why}", indent=2, hanging=14, label="predicted")
    for error in load.errors:
        page.wrapped(error, indent=2, hanging=14, label="said")
    if load.stopped != "decided":
        page.line(f"  stopped     {load.stopped}: the counts are what was reached")


def load_document(load: Load) -> dict[str, object]:
    """The JSON object of a load: its fields as they are."""
    return {
        name: list(value) if isinstance(value := getattr(load, name), tuple) else value
        for name in load._fields
    }
