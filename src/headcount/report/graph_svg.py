"""A computational graph as one SVG column, 360 units wide: it reads on a phone as it does in print.

Values flow down in solid blue, gradients flow up in dashed red; every box says ``value`` and ``gradient`` in words, so
neither colour nor line style carries anything alone. An edge between neighbours is an arrow in the gap; any other edge
runs on a rail, values at the left, gradients at the right.
"""

from __future__ import annotations

import textwrap
from html import escape

from headcount.record import Record
from headcount.report.derivation_formula import unicode_text
from headcount.report.derivation_numbers import matrix_cells, number_text, shape_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.explain.graph import Graph, GraphOperation, GraphValue

WIDTH = 360
TOP = 62
GAP = 22
PAD = 8
LINE = 15
CHARACTER = 6.63  # width of one sign of an 11-unit monospace font
STYLE = """
.g{font:11px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;--ink:#16191d;--soft:#57606a;
--paper:#fff;--edge:#8c959f;--down:#0b57b0;--up:#b3261e}
@media (prefers-color-scheme:dark){.g{--ink:#e6edf3;--soft:#9aa5b1;--paper:#161b22;--edge:#6e7781;--down:#79b8ff;--up:#ff8f85}}
.g text{fill:var(--ink);white-space:pre}.g .soft{fill:var(--soft)}.g .name{font-weight:700;font-size:13px}
.g .down{fill:var(--down)}.g .up{fill:var(--up)}
.g .box{fill:var(--paper);stroke:var(--edge)}.g .input{stroke-width:1}.g .result{stroke-width:2.5}
.g .rail{fill:none;stroke-width:1.6}.g .rail.down{fill:none;stroke:var(--down)}
.g .rail.up{fill:none;stroke:var(--up);stroke-dasharray:4 3}
.g .tray{fill:none;stroke-width:1}.g .tray.down{fill:none;stroke:var(--down)}
.g .tray.up{fill:none;stroke:var(--up);stroke-dasharray:4 3}
"""


class _Box(Record):
    """Where a value stands: its top, its height, and the text in it."""

    value: GraphValue
    maker: GraphOperation | None
    top: float
    height: float
    body: str

    @property
    def bottom(self) -> float:
        """The lower edge."""
        return self.top + self.height


def graph_svg(graph: Graph, *, title: str, prefix: str = "graph") -> str:
    """The picture with ``<title>`` and ``<desc>``; ``prefix`` keeps its ids apart on a page with several."""
    lanes, count = _lanes(graph)
    pitch = min(7.0, 42 / max(count, 1))
    side = 12 + pitch * count
    boxes = _boxes(graph, side)
    height = boxes[-1].bottom + 12 if boxes else TOP
    parts = [_legend(), *(_edges(graph, boxes, lanes, pitch, side)), *(box.body for box in boxes)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
        f'height="{height:.0f}" role="img" aria-labelledby="{prefix}-title {prefix}-desc">'
        f'<title id="{prefix}-title">{escape(title)}</title>'
        f'<desc id="{prefix}-desc">{escape(description(graph))}</desc>'
        f"<style>{STYLE}</style>"
        f'<g class="g">{"".join(parts)}</g></svg>\n'
    )


def description(graph: Graph) -> str:
    """The graph in sentences: every value, how it was made, how its gradient is handed on."""
    sentences = []
    for value in graph.values:
        maker = graph.maker(value.key)
        how = (
            "input" if maker is None else f"made by {maker.name}: {maker.formula}; backward {maker.gradient}"
        )
        sentences.append(f"{value.name} {shape_text(value.shape)}, {how}.")
    return f"{len(graph.values)} values in one column, values flow down, gradients flow up. " + " ".join(
        sentences
    )


def _lanes(graph: Graph) -> tuple[dict[str, int], int]:
    """A rail for every value that some reader does not stand right below: intervals that overlap get different lanes."""
    place = {value.key: index for index, value in enumerate(graph.values)}
    ends: list[int] = []
    lanes: dict[str, int] = {}
    for value in graph.values:
        start = place[value.key]
        far = [place[op.outputs[0]] for op in graph.readers(value.key) if place[op.outputs[0]] > start + 1]
        if not far:
            continue
        free = next((index for index, end in enumerate(ends) if end <= start), len(ends))
        if free == len(ends):
            ends.append(0)
        ends[free] = max(far)
        lanes[value.key] = free
    return lanes, len(ends)


def _boxes(graph: Graph, side: float) -> list[_Box]:
    boxes = []
    top = float(TOP)
    for value in graph.values:
        maker = graph.maker(value.key)
        body, height = _body(value, maker, side, top)
        boxes.append(_Box(value=value, maker=maker, top=top, height=height, body=body))
        top += height + GAP
    return boxes


def _body(value: GraphValue, maker: GraphOperation | None, side: float, top: float) -> tuple[str, float]:
    width = WIDTH - 2 * side
    letters = int((width - 2 * PAD) / CHARACTER)
    x = side + PAD
    out = []
    y = top + PAD + 11
    out.append(_text(x, y, value.name, "name"))
    words = "  ".join(
        part for part in (shape_text(value.shape).replace("x", "×"), _kind(value, maker)) if part
    )
    lead = len(value.name) * 8 + 12
    if lead + len(words) * CHARACTER <= width - 2 * PAD:
        out.append(_text(x + lead, y, words, "soft"))
    else:
        y += LINE
        out.append(_text(x, y, words, "soft"))
    if maker is not None:
        lines = [("down", "↓ ", maker.name if maker.count > 1 else maker.formula)]
        lines += (
            [("up", "↑ ", maker.gradient)] if maker.count == 1 and value.gradient_norm is not None else []
        )
        for kind, arrow, formula in lines:
            for number, line in enumerate(
                textwrap.wrap(unicode_text(formula), letters - 2, break_on_hyphens=False)
            ):
                y += LINE
                out.append(_text(x, y, (arrow if number == 0 else "  ") + line, kind))
    trays, y = _trays(value, x, y + 6, width - 2 * PAD)
    height = y + PAD - top
    box = f'<rect class="box {value.kind}" x="{side:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" rx="5"/>'
    return box + "".join(out) + trays, height


def _kind(value: GraphValue, maker: GraphOperation | None) -> str:
    if maker is not None and maker.count > 1:
        return f"{maker.count} operations"
    return "" if value.kind == "inner" else value.kind


def _trays(value: GraphValue, x: float, y: float, width: float) -> tuple[str, float]:
    """The numbers of value and gradient in their frames, beside each other when they fit."""
    letters = int((width - 10) / CHARACTER)
    left = _tray_lines(value.values, value.norm, letters)
    right = None if value.gradient_norm is None else _tray_lines(value.gradient, value.gradient_norm, letters)
    trays = [("down", "value ↓", left)] + ([("up", "gradient ↑", right)] if right is not None else [])
    sizes = [max(len(word), *(len(line) for line in lines)) * CHARACTER + 10 for _, word, lines in trays]
    beside = sum(sizes) + 8 * (len(trays) - 1) <= width
    out, bottom, at = [], y, x
    for (kind, word, lines), size in zip(trays, sizes, strict=True):
        if not beside and kind == "up":
            at, y = x, bottom + 6
        height = LINE * (len(lines) + 1) + 6
        out.append(
            f'<rect class="tray {kind}" x="{at:.1f}" y="{y:.1f}" width="{min(size, width):.1f}" height="{height}" rx="3"/>'
        )
        out.append(_text(at + 5, y + 12, word, kind))
        out += [_text(at + 5, y + 12 + LINE * number, line, "") for number, line in enumerate(lines, 1)]
        bottom = max(bottom, y + height)
        at += size + 8
    return "".join(out), bottom


def _tray_lines(values: object, norm: float, letters: int) -> list[str]:
    """Rows of numbers; the norm alone when there are too many, or they are too wide."""
    rows = [] if values is None else ["  ".join(row) for row in matrix_cells(values)]
    if not rows or max(len(row) for row in rows) > letters:
        return [f"norm {number_text(norm)}"]
    return rows


def _text(x: float, y: float, text: str, kind: str) -> str:
    name = f' class="{kind}"' if kind else ""
    return f'<text{name} x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _legend() -> str:
    return (
        '<path class="rail down" d="M12 14V40"/><path class="down" d="M12 46l-4 -7h8z"/>'
        + _text(24, 24, "value ↓", "down")
        + _text(24, 40, "solid blue, flows down", "soft")
        + '<path class="rail up" d="M192 46V20"/><path class="up" d="M192 13l-4 7h8z"/>'
        + _text(204, 24, "gradient ↑", "up")
        + _text(204, 40, "dashed red, flows up", "soft")
    )


def _edges(graph: Graph, boxes: list[_Box], lanes: dict[str, int], pitch: float, side: float) -> list[str]:
    place = {box.value.key: index for index, box in enumerate(boxes)}
    parts = []
    for box in boxes:
        index = place[box.value.key]
        below = {place[op.outputs[0]] for op in graph.readers(box.value.key) if op.outputs}
        graded = box.value.gradient_norm is not None
        if index + 1 in below:
            parts += _neighbours(box, boxes[index + 1], side, graded)
        far = sorted(below - {index + 1})
        if far:
            parts += _rails(box, [boxes[i] for i in far], lanes[box.value.key], (pitch, side), graded)
    return parts


def _neighbours(upper: _Box, lower: _Box, side: float, graded: bool) -> list[str]:
    down, up = WIDTH / 2 - 40, WIDTH / 2 + 40
    y0, y1 = upper.bottom, lower.top
    parts = [
        f'<path class="rail down" d="M{down} {y0:.1f}V{y1 - 6:.1f}"/>',
        f'<path class="down" d="M{down} {y1:.1f}l-4 -7h8z"/>',
    ]
    if graded:
        parts += [
            f'<path class="rail up" d="M{up} {y1:.1f}V{y0 + 6:.1f}"/>',
            f'<path class="up" d="M{up} {y0:.1f}l-4 7h8z"/>',
        ]
    return parts


def _rails(upper: _Box, lowers: list[_Box], lane: int, frame: tuple[float, float], graded: bool) -> list[str]:
    """One rail per value: out of its side, along the lane, into every reader; gradients the other way round."""
    pitch, side = frame
    left, right = side - 7 - pitch * lane, WIDTH - side + 7 + pitch * lane
    leave = upper.bottom - 9
    parts = []
    for number, lower in enumerate(lowers):
        enter = lower.top + 12
        start = (
            f"M{side:.1f} {leave:.1f}H{left:.1f}V{enter:.1f}"
            if number == len(lowers) - 1
            else f"M{left:.1f} {enter:.1f}"
        )
        parts.append(f'<path class="rail down" d="{start}H{side - 5:.1f}"/>')
        parts.append(f'<path class="down" d="M{side:.1f} {enter:.1f}l-6 -3.5v7z"/>')
        if graded:
            back = f"M{WIDTH - side:.1f} {enter:.1f}H{right:.1f}"
            end = f"V{leave:.1f}H{WIDTH - side + 5:.1f}" if number == len(lowers) - 1 else ""
            parts.append(f'<path class="rail up" d="{back}{end}"/>')
    if graded:
        parts.append(f'<path class="up" d="M{WIDTH - side:.1f} {leave:.1f}l6 -3.5v7z"/>')
    return parts
