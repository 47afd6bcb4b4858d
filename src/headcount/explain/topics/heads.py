"""Several heads: the split, what one head cannot say, groups, and what trained heads do."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headcount.explain.arithmetic import short
from headcount.explain.asked import Asked
from headcount.explain.derivation import Derivation, Step, Symbol, Table, shown
from headcount.explain.worked import Pair, pair
from headcount.transformer.attention.attend import attend
from headcount.transformer.ops.rearrange import merge_heads, repeat_heads, split_heads

WIDTH, TOKENS = 32, 48


def derive(asked: Asked) -> Derivation:
    """The worked example's two heads, then random ones of larger width."""
    example, what_if = asked.worked_example("upi")
    run = pair(example, what_if)
    steps = [_split(run)]
    steps += [_two_opinions(run)] if example.projected else []
    steps += [_same_cost(), _rank(asked.seed), _equivalences(asked.seed), _trained()]
    return Derivation(
        topic="heads",
        title="Several heads instead of one",
        summary="The width is divided among heads; each computes its own weights; their outputs are joined and mixed.",
        symbols=(
            Symbol(symbol="N, K", meaning="query heads, key/value heads; K divides N"),
            Symbol(symbol="D, H", meaning="model width; width of a head, often D / N but free"),
            Symbol(symbol="G", meaning="N / K, query heads that share one key/value head"),
        ),
        steps=tuple(steps),
        settings=what_if.words(example),
        sources=(
            "Vaswani et al. 2017, section 3.2.2; Shazeer 2019; Ainslie et al. 2023",
            "Voita et al. 2019; Michel, Levy, Neubig 2019; Budhraja et al. 2020 (pruning)",
        ),
    )


def _split(run: Pair) -> Step:
    x = torch.arange(8, dtype=torch.float64).view(1, 2, 4)
    heads = split_heads(x, 2)
    gap = float((merge_heads(heads) - x).abs().max())
    return Step(
        title="split and join",
        why="Head n takes columns n H to (n + 1) H. Splitting copies nothing, joining puts the columns back.",
        formula=(
            "q_nth = x_t(nH+h)",
            '"entry h of head n for token t is column" n H + h "of row t"',
            "MHA(x) = [O_1, ..., O_N] W_O",
        ),
        values=(
            shown("x", x, "2 tokens, D = 4"),
            shown("head 0", heads[0, 0]),
            shown("head 1", heads[0, 1]),
            shown("x from the heads again, largest difference", gap),
        ),
        chapters="give every head d_k = d_model / h. That is a habit, not a law: head width is free, and "
        "several released models "
        "have N H different from D.",
    )


def _two_opinions(run: Pair) -> Step:
    heads = run.now.example.heads
    values = [run.value(head.letter(letter)) for head in heads for letter in ("A", "O")]
    return Step(
        title="two heads of the worked example",
        why="The same tokens through two sets of projections give two sets of weights. One head has one row of "
        "weights per query; "
        "it cannot attend to itself and to another token at once with full weight on both.",
        values=tuple(values),
    )


def _same_cost() -> Step:
    rows = []
    for heads in (1, 2, 4, 8):
        width = WIDTH // heads
        rows.append((heads, width, 4 * WIDTH * heads * width, 2 * heads * width, heads))
    return Step(
        title="more heads cost nothing, except scores to store",
        why=f"D = {WIDTH}. Projections and score FLOPs depend on N H only; the number of score matrices is N.",
        tables=(
            Table(
                title="",
                header=("N", "H", "parameters", "MACs per pair", "scores per pair"),
                rows=tuple(rows),
            ),
        ),
    )


def _rank(seed: int) -> Step:
    stream = torch.Generator().manual_seed(seed)
    x = torch.randn(TOKENS, WIDTH, generator=stream, dtype=torch.float64)
    rows = []
    for heads in (1, 2, 4, 8):
        width = WIDTH // heads
        w_q, w_k = (
            torch.randn(WIDTH, width, generator=stream, dtype=torch.float64) / math.sqrt(WIDTH)
            for _ in range(2)
        )
        rank = int(torch.linalg.matrix_rank((x @ w_q) @ (x @ w_k).T))
        rows.append((heads, width, rank))
    return Step(
        title="what splitting costs: rank",
        why=f"{TOKENS} random tokens. A head's {TOKENS} x {TOKENS} score matrix is a product through width H, "
        f"so its rank is at "
        "most H: many heads see many, but poorer, similarities.",
        formula=("S = x (W_Q W_K^T) x^T", "rank S <= H"),
        tables=(Table(title="rank of one head's scores", header=("N", "H", "rank of S"), rows=tuple(rows)),),
        chapters="say that one large head 'cannot' express what several small ones can. In one layer it has one "
        "distribution per "
        "query, true; but many trained layers keep their accuracy when all but one of their heads are removed "
        "(Michel et al. "
        "2019), and splitting lowers the rank, which is why width per head is a trade-off.",
    )


def _equivalences(seed: int) -> Step:
    stream = torch.Generator().manual_seed(seed)

    def drawn(heads: int) -> Tensor:
        return torch.randn(1, heads, 10, 8, generator=stream, dtype=torch.float64)

    q, k, v = drawn(4), drawn(2), drawn(2)
    grouped = attend(q, k, v)
    repeated = attend(q, repeat_heads(k, 2), repeat_heads(v, 2))
    one = attend(q[:, :1], k[:, :1], v[:, :1])
    plain = torch.softmax(q[0, 0] @ k[0, 0].T / math.sqrt(8), -1) @ v[0, 0]
    rows = (
        ("N = 1 is plain attention", float((one[0, 0] - plain).abs().max())),
        ("groups (N = 4, K = 2) are MHA with copied K, V", float((grouped - repeated).abs().max())),
        ("MQA (K = 1) is MHA with one K, V copied to all", _mqa_gap(stream)),
    )
    return Step(
        title="one head, groups, one key/value head",
        why="Grouped-query attention stores K of N key/value heads. It computes what multi-head attention would "
        "if the heads of a "
        "group held equal keys and values.",
        formula=("k_n = k_(n // G)",),
        tables=(Table(title="largest difference", header=("identity", "difference"), rows=rows),),
    )


def _mqa_gap(stream: torch.Generator) -> float:
    q = torch.randn(1, 4, 10, 8, generator=stream, dtype=torch.float64)
    k, v = (torch.randn(1, 1, 10, 8, generator=stream, dtype=torch.float64) for _ in range(2))
    return float((attend(q, k, v) - attend(q, repeat_heads(k, 4), repeat_heads(v, 4))).abs().max())


def _trained() -> Step:
    removed = 38 / 48
    return Step(
        title="what trained heads do",
        why="From the literature, about trained translation and language models: some heads are positional "
        "(they look at the "
        "neighbour), some follow syntax, some look at rare words; many do nothing recognisable.",
        arithmetic=(
            f"Voita et al. removed 38 of 48 encoder heads ({short(100 * removed, 0)} %) for a loss of 0.15 BLEU",
        ),
        chapters="say that heads could be pruned 'because their specialised job turned out to be redundant', "
        "after training. It "
        "is the other way round: specialised heads were the last to go, the unspecialised ones went first, and "
        "the pruning was "
        "done by continuing to train with gates. Michel et al. pruned without training: 20 to 40 % of heads, "
        "then a sharp fall.",
        note="Removing query heads frees cache only when all query heads of a key/value head go.",
    )
