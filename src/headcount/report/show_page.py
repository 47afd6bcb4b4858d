"""The console page of ``show``."""

from __future__ import annotations

from headcount.report.console import Page
from headcount.units import gb, gib, human_bytes, human_count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.cost.profile import Profile

_CROSSINGS = {
    "quad_eq_ffn": "scores and values = feed-forward",
    "quad_plus_proj_eq_ffn": "... with projections = feed-forward",
    "quad_eq_all_linear": "scores and values = all linear layers",
    "causal_quad_eq_ffn": "causal half of the scores = feed-forward",
    "causal_quad_plus_proj_eq_ffn": "... with projections = feed-forward",
    "causal_quad_eq_all_linear": "causal half = all linear layers",
}
_SHOWN_FORMATS = ("fp16", "fp8", "int8_per_token_head", "q8_0", "q4_0")
_SHOWN_WEIGHTS = ("fp32", "bf16", "fp8", "int4")


def write_profile(page: Page, found: Profile) -> None:
    """Write parameters, weights, cache, FLOPs and crossovers."""
    model = found.model
    page.pair(model.name, f"{model.family}, {len(model.layers)} layers")
    page.wrapped(model.source, indent=2)
    page.blank()
    _parameters(page, found)
    _cache(page, found)
    _flops(page, found)
    _crossovers(page, found)
    page.blank()
    page.line("Arithmetic: --explain     Data: --json", "dim")


def _parameters(page: Page, found: Profile) -> None:
    if found.parameters is None:
        page.line("Parameters     not known: give ffn, vocab and hidden, or --params")
        page.blank()
        return
    active = ""
    if found.active is not None and found.active != found.parameters:
        active = f", {human_count(found.active)} per token"
    page.line(f"{page.styled('Parameters', 'bold')}     {found.parameters:,}{active}")
    together = sum(found.parts.values())
    for part, count in found.parts.items():
        page.line(f"  {part:<20}{count:>20,}  {100 * count / together:5.1f} %")
    if found.model.towers:
        page.line(f"  {'with the towers':<20}{together:>20,}")
    page.blank()
    page.line("Weights", "bold")
    # A packed file is not what packing every matrix alike would give.
    packed = found.model.quantization is not None or found.weight_name not in _SHOWN_WEIGHTS
    own = packed and "auto" in found.weights
    rows = [(f"{found.weight_name} (as stored)", found.weights["auto"])] if own else []
    rows += [(name, found.weights[name]) for name in _SHOWN_WEIGHTS if name in found.weights]
    for name, count in rows:
        page.line(f"  {name:<20}{count:>20,} B  {gib(count):>12} {gb(count):>12}")
    page.blank()


def _cache(page: Page, found: Profile) -> None:
    page.line(f"KV cache, one conversation of {found.context:,} tokens", "bold")
    for kind, (layers, count) in found.kinds.items():
        page.line(f"  {layers:>3} {kind:<16}{count:>20,} B  {human_bytes(count):>12}  ({found.kv.name})")
    page.line("")
    rows = []
    names = dict.fromkeys([found.kv.name, *_SHOWN_FORMATS])
    for name in names:
        if name in found.token_by_format:
            per_token, each = found.token_by_format[name], found.conversation_by_format[name]
            rows.append((name, f"{per_token:,}", f"{each:,}", human_bytes(each)))
    page.table(
        ("  format", "B per token", "B per conversation", ""),
        [("  " + r[0], *r[1:]) for r in rows],
        right={1, 2, 3},
    )
    if found.break_even is not None:
        page.line(f"  Past {found.break_even:,.1f} conversations the cache outweighs the weights.")
    page.blank()


def _flops(page: Page, found: Profile) -> None:
    if found.prefill is None or found.decode is None:
        return
    page.line("FLOPs (2 per multiply-add), causal pairs counted exactly", "bold")
    rows = []
    for part in dict.fromkeys([*found.prefill.parts, *found.decode.parts]):
        first, step = 2 * found.prefill.parts.get(part, 0), 2 * found.decode.parts.get(part, 0)
        rows.append(("  " + part, human_count(first), human_count(step)))
    rows.append(("  total", human_count(found.prefill.flops), human_count(found.decode.flops)))
    rows.append(("  total in MACs", human_count(found.prefill.macs), human_count(found.decode.macs)))
    page.table(("  part", f"prefill {found.context:,}", f"token {found.context:,} alone"), rows, right={1, 2})
    growth = found.doubling
    text = (
        f"Twice the context: prefill x {growth['prefill_flops']:.2f}, a step x {growth['decode_flops']:.2f}"
    )
    if "prefill_scores_values" in growth:
        text += f", scores alone x {growth['prefill_scores_values']:.2f}"
    if "kv_bytes" in growth:
        text += f", cache x {growth['kv_bytes']:.2f}"
    page.wrapped(text + ".", indent=2)
    page.wrapped(
        f"Scores of one layer, were they stored: {human_bytes(found.score_bytes)} (online softmax stores none).",
        indent=2,
    )
    page.blank()


def _crossovers(page: Page, found: Profile) -> None:
    own, textbook = found.crossovers["model"], found.crossovers["textbook"]
    if textbook is None:
        return
    page.line("Context at which attention's FLOPs overtake, per layer", "bold")
    rows = []
    for name, words in _CROSSINGS.items():
        mine = own.get(name) if own else None
        book = textbook.get(name)
        rows.append(
            ("  " + words, "-" if mine is None else f"{mine:,}", "-" if book is None else f"{book:,}")
        )
    page.table(("  crossover", "this model", f"textbook D={found.model.hidden_size}"), rows, right={1, 2})
