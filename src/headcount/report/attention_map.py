"""One head's attention over a short text: as signs on a console, and as an SVG. Row: the token that looks; column: looked at."""

from __future__ import annotations

from html import escape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from headcount.report.console import Page

# Tenths of weight, from none to all; the sign says it, no colour is needed.
SHADES = " .:-=+*%#@"
_LABEL = 14
_CELL = 14
_MARGIN = 118
_STYLE = """
.m{font:11px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;--ink:#16191d;--edge:#d0d7de;--mark:#0b57b0}
@media (prefers-color-scheme:dark){.m{--ink:#e6edf3;--edge:#3d444d;--mark:#79b8ff}}
.m text{fill:var(--ink);white-space:pre}.m .title{font-weight:700;font-size:13px}
.m rect{fill:var(--mark)}.m .frame{fill:none;stroke:var(--edge)}
"""


def word_label(word: str, width: int) -> str:
    """A token as a label: line breaks spelled out, signs that do not print replaced, cut to ``width``."""
    shown = word.replace("\n", "\\n").replace("\t", "\\t").strip(" ") or "' '"
    shown = "".join(sign if sign.isprintable() else "?" for sign in shown)
    return shown if len(shown) <= width else shown[: width - 1] + "~"


def shade(weight: float) -> str:
    """The sign of a weight between 0 and 1."""
    return SHADES[min(int(weight * len(SHADES)), len(SHADES) - 1)]


def write_map(
    page: Page, words: Sequence[str], weights: Sequence[Sequence[float]], *, title: str, subtitle: str
) -> None:
    """Write one line per query; two columns a key."""
    page.pair(title, subtitle)
    page.blank()
    label = " " * (_LABEL + 4)
    page.line(label + "".join(f"{j:<10}" for j in range(0, len(words), 5)).rstrip(), "dim")
    for number, (word, row) in enumerate(zip(words, weights, strict=True)):
        cells = "".join(shade(weight) * 2 for weight in row[: number + 1])
        page.line(f"{number:3d} {word_label(word, _LABEL - 1):<{_LABEL}}" + cells.rstrip())
    page.blank()
    steps = "   ".join(f"{sign * 2} {i / 10:.1f}" for i, sign in enumerate(SHADES) if i)
    page.wrapped(f"weight at least:   {steps}", indent=2, hanging=4)
    page.line("  row: the token that looks; column: the token looked at", "dim")


def map_svg(words: Sequence[str], weights: Sequence[Sequence[float]], *, title: str) -> str:
    """The picture: a square per pair, its opacity the weight; every row and column is named, each square says its numbers."""
    count = len(words)
    side = count * _CELL
    width, height = _MARGIN + side + 8, _MARGIN + side + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" class="m" role="img">',
        f"<title>{_plain(title)}</title>",
        "<desc>Attention weights: a row for the token that looks, a column for the token looked at.</desc>",
        f"<style>{_STYLE}</style>",
        f'<text class="title" x="6" y="16">{_plain(title)}</text>',
        f'<rect class="frame" x="{_MARGIN}" y="{_MARGIN}" width="{side}" height="{side}"/>',
    ]
    for i, word in enumerate(words):
        name = _plain(word_label(word, 13))
        middle = i * _CELL + _CELL - 3
        parts.append(f'<text x="{_MARGIN - 6}" y="{_MARGIN + middle}" text-anchor="end">{name}</text>')
        parts.append(
            f'<text transform="translate({_MARGIN + middle} {_MARGIN - 6}) rotate(-90)">{name}</text>'
        )
    for i, row in enumerate(weights):
        for j, weight in enumerate(row):
            if weight < 0.005:
                continue
            tip = f"{_plain(words[i])} looks at {_plain(words[j])}: {weight:.2f}"
            parts.append(
                f'<rect x="{_MARGIN + j * _CELL}" y="{_MARGIN + i * _CELL}" width="{_CELL}" height="{_CELL}" '
                f'fill-opacity="{weight:.2f}"><title>{tip}</title></rect>'
            )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _plain(text: str) -> str:
    """Escaped, control signs replaced: a token may be any bytes."""
    return escape("".join(sign if sign.isprintable() else "?" for sign in text))
