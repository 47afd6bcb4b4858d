"""Multiply-adds and FLOPs of a block, the five crossovers, and a whole model; from ``cost/``, no tensors."""

from __future__ import annotations

from headcount.cost.crossovers import NAMES, model_crossovers, textbook_crossovers
from headcount.cost.flops import MacCount, decode_step, materialised_score_bytes, pair_macs, prefill
from headcount.errors import UsageError
from headcount.explain.derivation import Derivation, Quantity, Step, Symbol, Table
from headcount.spec.attention import FullAttention, HeadedAttention, LatentAttention, SlidingWindow
from headcount.spec.reader import read_model
from headcount.units import human_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.explain.asked import Asked
    from headcount.spec.model import LayerSpec, ModelSpec

MODEL, CONTEXT = "mistral-7b", 2048
CROSSINGS = {
    "quad_eq_ffn": "scores and values = feed-forward",
    "quad_plus_proj_eq_ffn": "scores, values, projections = feed-forward",
    "quad_eq_all_linear": "scores and values = all linear layers",
    "causal_quad_eq_ffn": "causal half of the scores = feed-forward",
    "causal_quad_plus_proj_eq_ffn": "causal half and projections = feed-forward",
}


def derive(asked: Asked) -> Derivation:
    """The chapters' block first, then the model's own."""
    model = read_model(asked.model or MODEL)
    if not model.parameters_known:
        raise UsageError(
            f"explain flops: the widths of {model.name} are not all known; give ffn, hidden and vocab"
        )
    n = asked.context or CONTEXT
    steps = [_block(model, n), _crossing(model)]
    steps += [_own_block(model, n), _own_crossings(model)] if representative(model) else []
    steps += [_whole(model, n), _doubling(model, n), _time(model, n), _recurrent(model)]
    return Derivation(
        topic="flops",
        title=f"Where the FLOPs go: {model.name}, {n:,} tokens",
        summary=f"{model.source}. Counts, not times; every number from the same functions that plan and show use.",
        symbols=(
            Symbol(symbol="n", meaning="tokens read at once", shape=f"{n:,}"),
            Symbol(symbol="D", meaning="model width d_model", shape=f"{model.hidden_size:,}"),
            Symbol(symbol="MAC", meaning="one multiply-add"),
            Symbol(symbol="FLOP", meaning="one operation; a multiply-add is two: FLOPs = 2 MACs"),
            Symbol(
                symbol="q, a, f",
                meaning="multiply-adds: of one (query, key) pair; of attention's projections per token; "
                "of the feed-forward per token",
            ),
        ),
        steps=tuple(steps),
        sources=(
            "linear layers and attention of the block; norms, softmax and activations left out, below 1 %",
        ),
    )


def textbook_macs(width: int, n: int) -> dict[str, int]:
    """The chapters' block, per layer: scores and values 2 n^2 D, projections 4 n D^2, feed-forward 8 n D^2."""
    head = FullAttention(num_attention_heads=1, num_key_value_heads=1, head_dim=width, v_head_dim=width)
    return {
        "scores and values": n * n * pair_macs(head),
        "projections Q, K, V, O": n * 4 * width * width,
        "feed-forward, 4 D wide": n * 8 * width * width,
    }


def _block(model: ModelSpec, n: int) -> Step:
    counts = textbook_macs(model.hidden_size, n)
    formulas = ("2 n^2 D", "4 n D^2", "8 n D^2")
    rows = tuple((part, f, macs, 2 * macs) for (part, macs), f in zip(counts.items(), formulas, strict=True))
    return Step(
        title="one block of the original transformer",
        why="A matrix product (n x D) (D x m) costs n D m multiply-adds. Scores and values are two products of "
        "n x n against "
        "width D, over all heads together.",
        formula=('S = Q K^T: n^2 D  "and"  A V: n^2 D', "Q, K, V, O: 4 n D^2", "D -> 4 D -> D: 8 n D^2"),
        tables=(
            Table(
                title=f"D = {model.hidden_size:,}, n = {n:,}, one layer",
                header=("part", "formula", "MACs", "FLOPs"),
                rows=rows,
            ),
        ),
        chapters="call 2 n^2 D and 8 n D^2 'FLOPs'. They are multiply-adds; in FLOPs both double (4 n^2 D and "
        "16 n D^2). The "
        "crossing point does not move, every absolute number does. The projections, 4 n D^2, are left out altogether.",
    )


def _crossing(model: ModelSpec) -> Step:
    found = textbook_crossovers(model.hidden_size)
    equations = {
        "quad_eq_ffn": ("2 n^2 D = 8 n D^2", "4 D"),
        "quad_plus_proj_eq_ffn": ("2 n^2 D + 4 n D^2 = 8 n D^2", "2 D"),
        "quad_eq_all_linear": ("2 n^2 D = 12 n D^2", "6 D"),
        "causal_quad_eq_ffn": ("n^2 D = 8 n D^2", "8 D"),
        "causal_quad_plus_proj_eq_ffn": ("n^2 D + 4 n D^2 = 8 n D^2", "4 D"),
    }
    return Step(
        title="when attention overtakes: five questions, five lengths",
        why="'Attention' may mean the scores alone or with its projections, against the feed-forward or all "
        "linear layers, with "
        "or without the half that a causal mask removes.",
        formula=tuple(f"{equation}  ->  n = {length}" for equation, length in equations.values()),
        tables=(
            Table(
                title=f"D = {model.hidden_size:,}",
                header=("question", "solution", "n"),
                rows=tuple((CROSSINGS[name], equations[name][1], found[name]) for name in CROSSINGS),
            ),
        ),
        chapters="give one of them, 4 D, as the crossover.",
    )


def representative(model: ModelSpec) -> LayerSpec | None:
    """The most frequent layer that holds attention and a feed-forward, as the crossovers count it."""
    runs = [
        (times, layer)
        for layer, times in model.layer_runs()
        if layer.feed_forward is not None
        and any(isinstance(m, HeadedAttention | LatentAttention) for m in layer.mixers)
    ]
    return max(runs, key=lambda run: run[0])[1] if runs else None


def coefficients(layer: LayerSpec) -> tuple[int, int, int]:
    """``(q, a, f)`` of one layer."""
    a = sum(w.active_parameters for w in layer.weights if w.linear and w.part == "attention")
    parts = ("feed_forward", "experts", "shared_experts")
    f = sum(w.active_parameters for w in layer.weights if w.linear and w.part in parts)
    return max(pair_macs(mixer) for mixer in layer.mixers), a, f


def feed_forward_line(layer: LayerSpec, width: int, f: int) -> str:
    """f as its product: matrices x D x F, times the experts one token visits; empty where f is no such product."""
    feed = layer.feed_forward
    if feed is None:
        return ""
    shared = feed.shared_width // feed.width if feed.experts else 0
    visited = feed.top_k + shared if feed.experts else 1
    if visited * feed.matrices * width * feed.width != f:
        return ""
    product = f"{feed.matrices} x {width:,} x {feed.width:,} = {f:,}"
    if not feed.experts:
        return f"f = {product}"
    words = f"{feed.top_k} of {feed.experts} routed" + (f" + {shared} shared" if shared else "")
    return f"f = {visited} experts ({words}) x {product}"


def _own_block(model: ModelSpec, n: int) -> Step:
    layer = representative(model)
    assert layer is not None
    q, a, f = coefficients(layer)
    words = "; ".join(mixer.words() for mixer in layer.mixers)
    width = layer.feed_forward.width if layer.feed_forward else 0
    rows = (
        ("scores and values", "q n^2", q * n * n, 2 * q * n * n),
        ("... causal half, exactly", "q n (n + 1) / 2", q * n * (n + 1) // 2, q * n * (n + 1)),
        ("projections", "a n", a * n, 2 * a * n),
        ("feed-forward", "f n", f * n, 2 * f * n),
    )
    matrices = layer.feed_forward.matrices if layer.feed_forward else 0
    line = feed_forward_line(layer, model.hidden_size, f)
    return Step(
        title=f"one layer of {model.name}",
        why=f"{words}; feed-forward {width:,} wide with {matrices} matrices. The widths are the model's own, "
        f"not 4 D and D / N.",
        arithmetic=(line,) if line else (),
        values=(
            Quantity(name="q", values=q, unit="MACs per pair"),
            Quantity(name="a", values=a, unit="MACs per token"),
            Quantity(name="f", values=f, unit="MACs per token"),
        ),
        tables=(
            Table(title=f"n = {n:,}, one layer", header=("part", "formula", "MACs", "FLOPs"), rows=rows),
        ),
    )


def _own_crossings(model: ModelSpec) -> Step:
    layer = representative(model)
    assert layer is not None
    q, _, f = coefficients(layer)
    own, book = model_crossovers(model) or {}, textbook_crossovers(model.hidden_size)
    rows = tuple((CROSSINGS[name], own.get(name), book.get(name)) for name in NAMES if name in CROSSINGS)
    windows = [m.window for one, _ in model.layer_runs() for m in one.mixers if isinstance(m, SlidingWindow)]
    note = "A dash: attention is dearer at every length." if any(row[1] is None for row in rows) else ""
    if windows:
        note += (
            f" Layers with a window of {min(windows):,} stop growing there: past it their scores cost the same "
            f"per token, so "
            "these lengths hold for the model without its window."
        )
    return Step(
        title=f"the five lengths for {model.name}",
        formula=(
            "q n^2 = f n  ->  n = f / q",
            "q n^2 + a n = f n  ->  n = (f - a) / q",
            "q n^2 = (f + a) n  ->  n = (f + a) / q",
            '"causal: q / 2 in place of q"',
        ),
        arithmetic=(f"f / q = {f:,} / {q:,} = {f // q:,}",),
        tables=(
            Table(
                title="", header=("crossover", model.name, f"textbook D = {model.hidden_size:,}"), rows=rows
            ),
        ),
        note=note.strip(),
    )


def _whole(model: ModelSpec, n: int) -> Step:
    first, step = prefill(model, n), decode_step(model, n)
    rows = [
        (part, first.parts.get(part, 0), 2 * first.parts.get(part, 0), 2 * step.parts.get(part, 0))
        for part in dict.fromkeys([*first.parts, *step.parts])
    ]
    rows.append(("total", first.macs, first.flops, step.flops))
    return Step(
        title="the whole model",
        why=f"All {len(model.layers)} layers: reading {n:,} tokens, and the step of token {n:,} alone, its predecessors "
        f"cached: it attends to {n:,} keys, itself included, in a layer with a window to the window's keys at most. "
        "Causal pairs counted exactly.",
        tables=(
            Table(
                title="",
                header=("part", "read: MACs", "read: FLOPs", f"token {n:,}: FLOPs"),
                rows=tuple(rows),
            ),
        ),
    )


def _ratio(after: MacCount, before: MacCount, part: str = "") -> float | None:
    if not part:
        return after.macs / before.macs
    return after.parts[part] / before.parts[part] if before.parts.get(part) else None


def _doubling(model: ModelSpec, n: int) -> Step:
    book, twice = textbook_macs(model.hidden_size, n), textbook_macs(model.hidden_size, 2 * n)
    quad, projections, feed = book
    both = (twice[quad] + twice[projections]) / (book[quad] + book[projections])
    before, after = prefill(model, n), prefill(model, 2 * n)
    rows = (
        ("textbook: scores and values", twice[quad] / book[quad]),
        ("textbook: with projections", both),
        ("textbook: feed-forward", twice[feed] / book[feed]),
        (f"{model.name}: scores and values, causal", _ratio(after, before, "scores_values")),
        (f"{model.name}: everything, reading", _ratio(after, before)),
        (
            f"{model.name}: everything, the last token alone",
            _ratio(decode_step(model, 2 * n), decode_step(model, n)),
        ),
    )
    return Step(
        title=f"twice the context: {n:,} to {2 * n:,}",
        tables=(Table(title="factor", header=("what", "x"), rows=rows),),
        chapters="say 'doubling the context quadruples the attention cost'. That is the scores while reading a "
        "prompt. With "
        f"the projections it is x {both:.2f} here, and each generated token costs at most twice its scores.",
    )


def _time(model: ModelSpec, n: int) -> Step:
    return Step(
        title="FLOPs are not time",
        why="Scores and values do few operations per byte moved, so attention takes a larger share of the time "
        "than of the "
        "FLOPs, and a kernel that keeps scores on the chip pays off long before these crossovers.",
        values=(
            Quantity(
                name="scores of one layer, were they stored",
                values=materialised_score_bytes(model, n),
                unit=f"B = {human_bytes(materialised_score_bytes(model, n))}, 16 bits",
            ),
        ),
        chapters="say that attention engineering earns its complexity above 16k tokens. Kernels such as "
        "FlashAttention win from "
        "about a thousand tokens on, because of bytes, not FLOPs.",
    )


def _recurrent(model: ModelSpec) -> Step:
    d = model.hidden_size
    rows = tuple(
        (
            f"n = {n:,}",
            n * d * d,
            n * n * d,
            "recurrent" if n * d * d < n * n * d else "attention" if n < d else "equal",
        )
        for n in (d // 4, d, 4 * d)
    )
    return Step(
        title="beside a recurrent layer",
        why="Per layer, without constants: a recurrence multiplies a D x D matrix n times, one after another; "
        "attention visits "
        "n^2 pairs of width D, all at once.",
        formula=(
            'recurrent: n D^2 "in n sequential steps"',
            'attention: n^2 D "in one"',
            "n D^2 = n^2 D  ->  n = D",
        ),
        tables=(Table(title=f"D = {d:,}", header=("", "recurrent", "attention", "cheaper"), rows=rows),),
        chapters="compare O(n) with O(n^2) and leave D out: below n = D attention is the cheaper of the two.",
    )
