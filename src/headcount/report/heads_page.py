"""The console page of ``heads``: roles, the grid of importance, and what fewer heads cost."""

from __future__ import annotations

from headcount.units import human_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from headcount.report.console import Page
    from headcount.transformer.heads.roles import Holder, Role
    from headcount.transformer.heads.study import Change, Study

LETTERS = {"previous": "p", "positional": "o", "self": "s", "sink": "f", "induction": "i", "rare": "r"}
_SHOWN = 4
_ORDERS = {"importance": "least important first", "normalized": "the same, l2 per layer"}
# A grid of more heads than this shows one digit a head, in several blocks if need be.
_WIDE = 14
_BLOCK = 36


def write_study(page: Page, found: Study) -> None:
    """Title, the text, roles, attention in numbers, the grid."""
    layers = len(found.importances)
    page.pair(f"Heads of {found.spec.name}", f"{found.heads:,} in {layers} layers")
    page.wrapped(
        f"judged by {found.text}: {found.measured_tokens:,} tokens measured, {found.held_out_tokens:,} held out",
        indent=2,
        hanging=4,
    )
    page.wrapped("What a head is worth belongs to the head and to this text.", indent=2)
    if layers < len(found.spec.layers):
        page.wrapped(
            f"{len(found.spec.layers) - layers} layers mix without heads and are left out.", indent=2
        )
    _write_roles(page, found.roles)
    _write_attention(page, found)
    _write_grid(page, found)


def _write_roles(page: Page, roles: Sequence[Role]) -> None:
    page.blank()
    page.line("Roles", "bold")
    for role in roles:
        if role.holders:
            listed = ", ".join(_named(holder) for holder in role.holders[:_SHOWN])
            more = f", {len(role.holders) - _SHOWN} more" if len(role.holders) > _SHOWN else ""
            text = f"{len(role.holders):>3}  {listed}{more}"
        else:
            text = f"  -  not found in this model (nearest {_named(role.best)})"
        page.line(f"  {LETTERS[role.name]} {role.name:<11}{text}")
        page.wrapped(f"{role.definition} ({role.source})", indent=20)


def _named(holder: Holder) -> str:
    score = f"{holder.score:.2f}"
    return f"L{holder.layer}H{holder.head} {score.removeprefix('0')}"


def _write_attention(page: Page, found: Study) -> None:
    statistics, count = found.statistics, found.heads

    def mean(name: str) -> float:
        total: float = sum(getattr(each, name) for each in statistics)
        return total / count

    confident = sum(each.confidence > 0.8 for each in statistics)
    without = sum(each.confidence_no_sink > 0.8 for each in statistics)
    page.blank()
    page.line("Attention", "bold")
    rows = (
        ("on the first token", f"{mean('sink_mass'):.2f} of all weight, mean over heads"),
        (
            "confident heads",
            f"{confident} have a mean largest weight above 0.8; {without} without the first token",
        ),
        (
            "entropy, distance",
            f"{mean('entropy_nats'):.2f} nats, {mean('distance_tokens'):.0f} tokens back, mean over heads",
        ),
        (
            "repeated text",
            f"{found.induction.tokens} random tokens cost {found.induction.first_copy_nats:.2f} nats each, "
            f"said again {found.induction.second_copy_nats:.2f}",
        ),
    )
    for name, text in rows:
        page.wrapped(text, indent=2, hanging=22, label=f"{name:<20}")


def _write_grid(page: Page, found: Study) -> None:
    """One line per layer: I_h in percent of the largest, with the letter of a role."""
    largest = max(max(values) for _, values in found.importances) or 1.0
    widest = max(len(values) for _, values in found.importances)
    letters = {
        (holder.layer, holder.head): LETTERS[role.name]
        for role in reversed(found.roles)
        for holder in role.holders
    }
    page.blank()
    page.line("Importance of each head", "bold")
    detailed = widest <= _WIDE
    unit = (
        "percent of the largest, then the letter of its role"
        if detailed
        else "tenths of the largest (0 to 9)"
    )
    page.wrapped(
        f"how far the loss moves with the head's gate, I_h = E|dL/dg_h| (Michel et al. 2019); {unit}; "
        f"the largest is {largest:.4f} nats",
        indent=2,
    )
    block, width = (_WIDE, 5) if detailed else (_BLOCK, 2)
    for start in range(0, widest, block):
        heads = range(start, min(start + block, widest))
        page.line("  layer  " + "".join(_heading(h, width) for h in heads).rstrip(), "dim")
        for layer, values in found.importances:
            cells = ""
            for h in heads:
                if h >= len(values):
                    continue
                share = values[h] / largest
                if detailed:
                    cells += f"{round(100 * share):>4}{letters.get((layer, h), ' ')}"
                else:
                    cells += f"{min(int(10 * share), 9):>2}"
            page.line(f"  {layer:>5}  {cells}".rstrip())


def _heading(head: int, width: int) -> str:
    return f"{'H' + str(head):>4} " if width == 5 else f"{head % 10:>2}"


def write_change(page: Page, change: Change, *, title: str) -> None:
    """Perplexities, what was really removed, and the bytes."""
    page.blank()
    page.line(title, "bold")
    page.line("  perplexity of the held-out text, nothing trained since", "dim")
    rows = [("the whole model", change.whole_perplexity, "")]
    removed = "random, seed 0" if change.what == "random" else change.what
    for trial in change.trials:
        mark = "   <- removed" if trial.name == removed else ""
        rows.append((_ORDERS.get(trial.name, trial.name), trial.perplexity, f"x {trial.ratio:,.2f}{mark}"))
    if not change.trials:
        rows.append((change.what, change.perplexity, f"x {change.perplexity / change.whole_perplexity:,.2f}"))
    for name, value, note in rows:
        page.line(f"    {name:<24}{value:>12,.2f}   {note}".rstrip())
    if change.gate_difference is not None:
        page.wrapped(
            f"really removed: perplexity {change.perplexity:,.2f}; logits differ from those of closed gates by at most "
            f"{change.gate_difference:.0e} of the largest",
            indent=2,
            hanging=4,
        )
    page.line("  saved, at 16 bits a number", "dim")
    page.line(f"    parameters  {_saved(2 * change.parameters_saved, 2 * change.parameters)}")
    page.line(f"    cache       {_saved(change.cache_bytes_saved, change.cache_bytes)} a token")
    page.wrapped(
        f"{change.groups_removed:,} of {change.groups:,} key/value heads are gone"
        + (
            ": a cache entry serves all query heads of its group, and is freed when the last of them goes"
            if change.heads_removed and change.groups < change.heads
            else ""
        ),
        indent=4,
        hanging=6,
    )


def _saved(saved: int, whole: int) -> str:
    share = f"{100 * saved / whole:.1f} %" if whole else "0 %"
    return f"{human_bytes(saved)} of {human_bytes(whole)} ({share})"
