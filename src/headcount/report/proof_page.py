"""A proof as a page: predicted | measured | difference, one table per group of counts."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.report.console import Page
    from headcount.verify.prove import Proof


def write_proof(page: Page, proof: Proof) -> None:
    """Title, what ran, the tables, the verdict."""
    page.pair(
        f"Proof of {proof.model.name}", f"{proof.weights} weights, {proof.kv} KV, {proof.tokens:,} tokens"
    )
    page.blank()
    if proof.cuts:
        page.wrapped("ran reduced: " + "; ".join(proof.cuts), indent=2, hanging=4)
    else:
        page.line("  ran whole")
    groups = list(dict.fromkeys(line.group for line in proof.lines))
    width = max(len(line.name) for line in proof.lines)
    digits = max(len(f"{max(line.predicted, line.measured):,}") for line in proof.lines)
    for group in groups:
        page.blank()
        page.line(group, "bold")
        page.line(f"  {'':{width}}  {'predicted':>{digits}}  {'measured':>{digits}}  difference", "dim")
        for line in proof.lines:
            if line.group == group:
                text = f"  {line.name:{width}}  {line.predicted:>{digits},}  {line.measured:>{digits},}  {line.difference:>+10,}"
                page.line(text.replace("        +0", "         0"), "red" if line.difference else "")
    page.blank()
    wrong = sum(1 for line in proof.lines if line.difference)
    verdict = (
        f"All {len(proof.lines)} counts are equal."
        if not wrong
        else f"{wrong} of {len(proof.lines)} counts differ: a formula is wrong for this model."
    )
    page.line(verdict, "green" if not wrong else "red")
