"""A derivation as one self-contained HTML page: no script, no network, light and dark, from 320 pixels up.

Formulas are MathML with their plain text as ``alttext``; matrices are tables with row and column heads; a graph is an
SVG with the text drawing as its twin; arithmetic folds away in ``<details>``.
"""

from __future__ import annotations

from html import escape

from headcount import __version__
from headcount.explain.derivation import CHAPTERS, same
from headcount.report.derivation_formula import inline, mathml
from headcount.report.derivation_numbers import (
    NOISE,
    NOISE_WORDS,
    matrix_cells,
    number_text,
    rows_of,
    shape_text,
    state_text,
    table_cells,
)
from headcount.report.derivation_style import STYLE
from headcount.report.graph_svg import graph_svg
from headcount.report.graph_text import graph_lines

# Signs of a formula that a phone of 320 pixels shows without scrolling.
NARROW = 26

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.explain.derivation import Derivation, Quantity, Step, Symbol, Table


def derivation_page(found: Derivation, digits: int = 4) -> str:
    """The whole page."""
    steps = "\n".join(_step(number, step, digits) for number, step in enumerate(found.steps, 1))
    contents = "".join(
        f'<li><a href="#step-{number}">{inline(_capital(step.title))}</a></li>'
        for number, step in enumerate(found.steps, 1)
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(found.title)}</title>
<style>{STYLE}</style>
</head>
<body>
<a class="skip" href="#steps">Skip to the steps</a>
<header>
<h1>{inline(found.title)}</h1>
<p>{inline(found.summary)}</p>
{_settings(found)}
</header>
<nav aria-label="Steps">
<details open><summary>Steps</summary><ol>{contents}</ol></details>
</nav>
<main id="steps">
{_symbols(found.symbols)}
{steps}
{_reach(found)}
</main>
<footer>
{_sources(found)}
{_pointers(found)}
<p>headcount {escape(__version__)}; every number on this page was computed when it was written.</p>
</footer>
</body>
</html>
"""


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _settings(found: Derivation) -> str:
    if not found.settings:
        return ""
    items = "".join(f"<li>{inline(words)}</li>" for words in found.settings)
    return f'<section aria-labelledby="asked"><h2 id="asked">Changed by you</h2><ul>{items}</ul></section>'


def _symbols(symbols: tuple[Symbol, ...]) -> str:
    if not symbols:
        return ""
    shaped = any(symbol.shape for symbol in symbols)
    rows = "".join(
        f'<tr><th scope="row">{inline(s.symbol)}</th><td>{inline(s.meaning)}</td>'
        + (f"<td>{inline(s.shape)}</td></tr>" if shaped else "</tr>")
        for s in symbols
    )
    head = '<th scope="col">symbol</th><th scope="col">meaning</th>'
    head += '<th scope="col">shape or value</th>' if shaped else ""
    table = f'<table class="plain"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<section aria-labelledby="symbols"><h2 id="symbols">Symbols</h2>{_scroll(table, "Symbols", wide=False)}</section>'


def _step(number: int, step: Step, digits: int) -> str:
    parts = [f'<section id="step-{number}" class="step" aria-labelledby="title-{number}">']
    parts.append(f'<h2 id="title-{number}">{number}. {inline(_capital(step.title))}</h2>')
    if step.why:
        parts.append(f"<p>{inline(step.why)}</p>")
    if step.formula:
        math = "".join(mathml(line) for line in step.formula)
        stop = (
            ' role="group" aria-label="Formula" tabindex="0"' if max(map(len, step.formula)) > NARROW else ""
        )
        parts.append(f'<div class="formula"{stop}>{math}</div>')
    if step.arithmetic:
        lines = "".join(f"<li>{inline(line)}</li>" for line in step.arithmetic)
        parts.append(
            f'<details open><summary>With the numbers</summary><ul class="lines">{lines}</ul></details>'
        )
    if step.values:
        parts.append(
            '<div class="values">' + "".join(_quantity(value, digits) for value in step.values) + "</div>"
        )
        if NOISE in parts[-1]:
            parts.append(f'<p class="small">{escape(NOISE_WORDS)}</p>')
    parts += [_table(table, digits) for table in step.tables]
    if step.graph is not None:
        parts.append(_graph(number, step))
    if step.note:
        parts.append(f'<p class="note"><strong>Note</strong> {inline(step.note)}</p>')
    if step.chapters:
        parts.append(f'<p class="note chapters"><strong>The chapters</strong> {inline(step.chapters)}</p>')
    parts.append("</section>")
    return "\n".join(parts)


def _quantity(quantity: Quantity, digits: int) -> str:
    state = state_text(quantity)
    words = f" <span>{inline(quantity.words)}</span>" if quantity.words else ""
    badge = f' <span class="state {state}">{state}</span>' if state else ""
    if not quantity.shape:
        before = f"{number_text(quantity.before, digits)} → " if quantity.changed else ""  # type: ignore[arg-type]
        value = number_text(quantity.values, digits)  # type: ignore[arg-type]
        return (
            f'<div class="quantity"><p class="scalar"><b>{inline(quantity.name)}</b> = {before}{value} '
            f'{escape(quantity.unit)}</p><p class="small">{words}{badge}</p></div>'
        )
    shape = shape_text(quantity.shape).replace("x", "×")
    tables = _matrix(quantity, quantity.values, digits, "now" if quantity.changed else "")
    if quantity.changed:
        tables = (
            _matrix(quantity, quantity.before, digits, "before")
            + '<span class="arrow" aria-hidden="true">→</span>'
            + tables
        )
    inside = _scroll(
        f'<div class="pair">{tables}</div>',
        quantity.name,
        wide=bool(quantity.changed) or quantity.shape[-1] > 3,
    )
    return (
        f'<figure class="quantity"><figcaption><b>{inline(quantity.name)}</b> ({shape}){words}{badge}</figcaption>'
        f"{inside}</figure>"
    )


def _matrix(quantity: Quantity, values: object, digits: int, moment: str) -> str:
    """A table with heads; a cell that changed is underlined and bold, and its row says so to a reader of the text."""
    cells = matrix_cells(values, digits)
    vector = len(quantity.shape) == 1
    columns = quantity.columns or tuple(str(index) for index in range(len(cells[0]) if cells else 0))
    rows = quantity.rows or tuple("" if vector else str(index) for index in range(len(cells)))
    other = rows_of(quantity.before if moment == "now" else quantity.values)
    own = rows_of(values)
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = ""
    for i, row in enumerate(cells):
        tds = ""
        for j, cell in enumerate(row):
            changed = moment == "now" and not same(own[i][j], other[i][j])
            tds += f"<td><mark>{cell.strip()}</mark></td>" if changed else f"<td>{cell.strip()}</td>"
        body += f'<tr><th scope="row">{escape(rows[i])}</th>{tds}</tr>'
    caption = f"<caption>{moment}</caption>" if moment else ""
    return (
        f'<table class="matrix">{caption}<thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table>'
    )


def _table(table: Table, digits: int) -> str:
    rows, numeric = table_cells(table, digits)
    head = "".join(
        f'<th scope="col"{_right(index in numeric)}>{inline(cell)}</th>'
        for index, cell in enumerate(table.header)
    )
    body = ""
    for row in rows:
        first = f'<th scope="row">{inline(row[0])}</th>'
        rest = "".join(f"<td{_right(i in numeric)}>{inline(cell)}</td>" for i, cell in enumerate(row) if i)
        body += f"<tr>{first}{rest}</tr>"
    caption = f"<caption>{inline(table.title)}</caption>" if table.title else ""
    note = f'<p class="small">{inline(table.note)}</p>' if table.note else ""
    inner = f'<table class="plain">{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return _scroll(inner, table.title or "Table", wide=len(table.header) > 2) + note


def _right(number: bool) -> str:
    return ' class="number"' if number else ""


def _graph(number: int, step: Step) -> str:
    assert step.graph is not None
    picture = graph_svg(step.graph, title=_capital(step.title), prefix=f"graph-{number}")
    text = "\n".join(graph_lines(step.graph, 72))
    return (
        f'<figure class="graph"><figcaption>Values flow down (solid, blue), gradients flow up (dashed, red).</figcaption>'
        f"{picture}<details><summary>The same graph as text</summary>"
        + _scroll(f"<pre>{escape(text)}</pre>", "Graph as text")
        + "</details></figure>"
    )


def _reach(found: Derivation) -> str:
    if not found.settings:
        return ""
    changed, unchanged = found.changes()
    return (
        '<section aria-labelledby="reach"><h2 id="reach">What the change reached</h2>'
        f"<p><b>changed</b> {escape(', '.join(changed) or 'nothing')}</p>"
        f"<p><b>unchanged</b> {escape(', '.join(unchanged) or 'nothing')}</p></section>"
    )


def _sources(found: Derivation) -> str:
    if not found.sources:
        return ""
    items = "".join(f"<li>{inline(source)}</li>" for source in found.sources)
    return f"<h2>Sources</h2><ul>{items}</ul>"


def _pointers(found: Derivation) -> str:
    lines = ([CHAPTERS] if found.quotes_chapters else []) + ([found.see] if found.see else [])
    return "\n".join(f"<p>{inline(line)}</p>" for line in lines)


def _scroll(inner: str, label: str, *, wide: bool = True) -> str:
    """A wide thing scrolls in its own frame, by keyboard too; the page itself never scrolls sideways.

    What fits on the narrowest phone is no stop of the tab key.
    """
    if not wide:
        return f'<div class="scroll">{inner}</div>'
    return f'<div class="scroll" role="group" aria-label="{escape(label, quote=True)}" tabindex="0">{inner}</div>'
