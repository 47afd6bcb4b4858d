"""Mixture of experts: choose k of E experts per token, send the tokens there, add the weighted results up.

Route. Per token, z are its E router logits and s its scores, softmax(z) or sigmoid(z) entry by entry. The k highest are
chosen: the set C. Their weights are

    w_i = c s_i               or, renormalised,   w_i = c s_i / T,  T = sum_{j in C} s_j

c is a constant (DeepSeek's routed scaling factor). The choice is piecewise constant, so no gradient goes through it; it
goes through the scores of the chosen:

    ds_i = c dw_i             or   ds_i = (c dw_i - sum_j dw_j w_j) / T        for i in C, 0 elsewhere

(quotient rule: dw_i/ds_j = c delta_ij / T - c s_i / T^2), and from s to z by softmax's gradient, or dz = ds s (1 - s).
Softmax renormalised over C equals a softmax of the chosen logits alone. A bias may be added for the choice only
(balancing without a loss), and the choice may be limited to the best groups of experts.

Dispatch. Rows of x are copied to where they were sent, sorted by expert: part e holds the tokens of expert e. A token
appears k times, so dx is the sum of the gradients of its copies.

Combine. y_m = sum_{i in C(m)} w_mi f_i(x_m):   df_i(x_m) = w_mi dy_m,   dw_mi = dy_m . f_i(x_m).

Balance (optional loss). f_e is the share of tokens sent to expert e, P_e the mean softmax probability:

    L = E sum_e f_e P_e,    f constant, so   dp_me = dL E f_e / M   and then softmax's gradient

It is 1 (k if every token has k choices) when the load is even. Switch counts the single choice, GShard the first of two
(pass that column alone), Mixtral all k. Half-precision logits are scored in float32, weights are float32.

Shapes: logits (M, E), weights and chosen (M, k), x (M, D), part e (m_e, D) with sum m_e = M k.
Source: Shazeer et al. 2017; Lepikhin et al. 2020 (GShard); Fedus et al. 2021 (Switch); DeepSeek-V3 report 2024.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headcount.errors import OperandError, UnknownNameError, UsageError
from headcount.transformer.ops import softmax
from headcount.transformer.ops.operands import bind
from headcount.transformer.ops.operation import Operation
from headcount.transformer.ops.precision import widen

SCORINGS = ("softmax", "sigmoid")
# Under the sum of the chosen scores, so that scores that all underflowed give zero weights and not 0 / 0.
TINY = 1e-20


class Groups(NamedTuple):
    """Limit the choice: of ``groups`` equal groups keep ``kept``, ranked by the sum of their ``best`` highest scores."""

    groups: int
    kept: int
    best: int = 2


class SavedRoute(NamedTuple):
    """What the backward of the routing reads; ``total`` is T, None without renormalising."""

    score: Tensor
    chosen: Tensor
    weights: Tensor
    total: Tensor | None
    scale: float
    scoring: str
    dtype: torch.dtype


def forward_route(
    logits: Tensor,
    bias: Tensor | None = None,
    *,
    top_k: int,
    scoring: str = "softmax",
    renormalize: bool = True,
    scale: float = 1.0,
    groups: Groups | None = None,
) -> tuple[tuple[Tensor, Tensor], SavedRoute]:
    """Return ``((weights, chosen), saved)``."""
    wide = widen(logits)
    experts = bind("route", logits=(wide, "M E"), bias=(bias if bias is None else widen(bias), "E"))["E"]
    if scoring not in SCORINGS:
        raise UnknownNameError(what="router scoring", given=scoring, allowed=SCORINGS)
    if not 1 <= top_k <= experts:
        raise UsageError(f"route: top_k = {top_k} of E = {experts} experts")
    score = softmax.forward(wide)[0] if scoring == "softmax" else torch.sigmoid(wide)
    chosen = _choose(score.detach() if bias is None else score.detach() + bias, top_k, groups)
    picked = score.gather(1, chosen)
    total = picked.sum(-1, keepdim=True) + TINY if renormalize else None
    weights = picked * scale if total is None else picked * scale / total
    return (weights, chosen), SavedRoute(score, chosen, weights, total, scale, scoring, logits.dtype)


def backward_route(saved: SavedRoute, d_weights: Tensor, _: Tensor | None = None) -> tuple[Tensor, None]:
    """Return dz through the chosen scores; the bias only decides the choice and has none."""
    d_picked = d_weights * saved.scale
    if saved.total is not None:
        d_picked = (d_picked - (d_weights * saved.weights).sum(-1, keepdim=True)) / saved.total
    d_score = torch.zeros_like(saved.score).scatter_(1, saved.chosen, d_picked)
    if saved.scoring == "softmax":
        (d_logits,) = softmax.backward(softmax.Saved(saved.score, -1), d_score)
    else:
        d_logits = d_score * saved.score * (1 - saved.score)
    return d_logits.to(saved.dtype), None


class SavedDispatch(NamedTuple):
    """What the backward of the dispatch reads: the slots in expert order, and the choices per token."""

    order: Tensor
    choices: int
    tokens: int


def forward_dispatch(x: Tensor, chosen: Tensor, *, experts: int) -> tuple[tuple[Tensor, ...], SavedDispatch]:
    """Return ``((order, part_0, ..., part_E-1), saved)``; slot m k + i is token m's i-th choice, order sorts the slots."""
    bind("dispatch", x=(x, "M D"), chosen=(chosen, "M k"))
    choices = chosen.shape[-1]
    slots = chosen.flatten()
    order = slots.argsort(stable=True)
    counts = torch.bincount(slots, minlength=experts)
    if len(counts) != experts:
        raise OperandError(f"dispatch: expert {len(counts) - 1} was chosen, there are E = {experts}")
    rows = x.index_select(0, order // choices)
    return (order, *rows.split_with_sizes(counts.tolist())), SavedDispatch(order, choices, len(x))


def backward_dispatch(saved: SavedDispatch, _: Tensor | None, *d_parts: Tensor) -> tuple[Tensor, None]:
    """Return dx: the gradients of a token's copies added up."""
    d_rows = torch.cat(d_parts)
    d_x = d_rows.new_zeros(saved.tokens, d_rows.shape[-1])
    return d_x.index_add_(0, saved.order // saved.choices, d_rows), None


class SavedCombine(NamedTuple):
    """What the backward of the combination reads: all results in slot order (M, k, D), the weights, where they came from."""

    results: Tensor
    weights: Tensor
    order: Tensor
    counts: tuple[int, ...]


def forward_combine(weights: Tensor, order: Tensor, *parts: Tensor) -> tuple[Tensor, SavedCombine]:
    """Return ``(sum_i w_mi f_i(x_m), saved)``."""
    sizes = bind("combine", weights=(weights, "M k"), order=(order, "R"))
    if sum(len(part) for part in parts) != sizes["R"] or sizes["R"] != sizes["M"] * sizes["k"]:
        raise OperandError(
            f"combine: {sum(len(part) for part in parts)} rows from the experts for M k = {sizes['M']} x {sizes['k']} slots"
        )
    sorted_rows = torch.cat(parts)
    results = sorted_rows.index_select(0, order.argsort()).view(sizes["M"], sizes["k"], sorted_rows.shape[-1])
    # A sum of k scaled rows, not a matrix product: the FLOP counts of docs and planner leave such sums out.
    y = (weights[:, :, None] * results.to(weights.dtype)).sum(1).to(sorted_rows.dtype)
    return y, SavedCombine(results, weights, order, tuple(len(part) for part in parts))


def backward_combine(saved: SavedCombine, d_y: Tensor) -> tuple[Tensor | None, ...]:
    """Return dw_mi = dy_m . f_i(x_m), nothing for the order, and df_i(x_m) = w_mi dy_m sorted by expert."""
    wide = d_y.to(saved.weights.dtype)
    d_weights = (saved.results.to(wide.dtype) @ wide[:, :, None]).squeeze(-1)
    d_results = (saved.weights[:, :, None] * wide[:, None, :]).flatten(0, 1).index_select(0, saved.order)
    return d_weights, None, *d_results.to(saved.results.dtype).split_with_sizes(saved.counts)


class SavedBalance(NamedTuple):
    """What the backward of the balance loss reads: probabilities, and f_e E / M."""

    p: Tensor
    pull: Tensor
    dtype: torch.dtype


def forward_balance(logits: Tensor, chosen: Tensor) -> tuple[Tensor, SavedBalance]:
    """Return ``(E sum_e f_e P_e, saved)``."""
    sizes = bind("balance", logits=(logits, "M E"), chosen=(chosen, "M k"))
    p = softmax.forward(widen(logits))[0]
    counts = torch.bincount(chosen.flatten(), minlength=sizes["E"])
    pull = counts.to(p.dtype) * (sizes["E"] / sizes["M"] ** 2)
    return (p @ pull).sum(), SavedBalance(p, pull, logits.dtype)


def backward_balance(saved: SavedBalance, d_loss: Tensor) -> tuple[Tensor, None]:
    """Return dz = p (pull - sum p pull) dL."""
    (d_logits,) = softmax.backward(softmax.Saved(saved.p, -1), saved.pull.expand_as(saved.p))
    return d_logits.mul_(d_loss).to(saved.dtype), None


ROUTE = Operation(
    "route",
    forward=forward_route,
    backward=backward_route,
    formula="w_i = c s_i / sum of chosen s",
    gradient="ds_i = (c dw_i - sum dw w) / T for the chosen",
    constant_outputs=(1,),
)
DISPATCH = Operation(
    "dispatch",
    whole_inputs=(1,),
    forward=forward_dispatch,
    backward=backward_dispatch,
    formula="part_e = rows of x sent to expert e",
    gradient="dx_m = sum of its copies' gradients",
    constant_outputs=(0,),
)
COMBINE = Operation(
    "combine",
    whole_inputs=(1,),
    forward=forward_combine,
    backward=backward_combine,
    formula="y_m = sum w_mi f_i(x_m)",
    gradient="df_i = w_mi dy_m, dw_mi = dy_m . f_i(x_m)",
)
BALANCE = Operation(
    "balance",
    whole_inputs=(1,),
    forward=forward_balance,
    backward=backward_balance,
    formula="L = E sum f_e P_e",
    gradient="dp_me = dL E f_e / M",
)


def route(
    logits: Float[Tensor, "M E"],
    bias: Float[Tensor, " E"] | None = None,
    *,
    top_k: int,
    scoring: str = "softmax",
    renormalize: bool = True,
    scale: float = 1.0,
    groups: Groups | None = None,
) -> tuple[Float[Tensor, "M k"], Int[Tensor, "M k"]]:
    """Weights and indices of the k experts chosen for each token (module docstring: equation, gradient)."""
    weights, chosen = ROUTE(
        logits, bias, top_k=top_k, scoring=scoring, renormalize=renormalize, scale=scale, groups=groups
    )
    return weights, chosen


def dispatch(
    x_MD: Float[Tensor, "M D"], chosen_Mk: Int[Tensor, "M k"], *, experts: int
) -> tuple[tuple[Float[Tensor, ...], ...], Int[Tensor, " R"]]:
    """The rows of x that each expert is to compute, and the order that ``combine`` needs to put results back."""
    order, *parts = DISPATCH(x_MD, chosen_Mk, experts=experts)
    return tuple(parts), order


def combine(
    results: Sequence[Float[Tensor, ...]], weights_Mk: Float[Tensor, "M k"], order: Int[Tensor, " R"]
) -> Float[Tensor, "M D"]:
    """The weighted sum of each token's k results; ``results[e]`` are the rows of expert e in the order of ``dispatch``."""
    y: Tensor = COMBINE(weights_Mk, order, *results)
    return y


def balance(logits: Float[Tensor, "M E"], chosen: Int[Tensor, "M k"]) -> Float[Tensor, ""]:
    """The load-balancing loss E sum f_e P_e; give only the rows (tokens) and columns (choices) that should count."""
    loss: Tensor = BALANCE(logits, chosen)
    return loss


def _choose(choice: Tensor, top_k: int, groups: Groups | None) -> Tensor:
    if groups is not None:
        experts = choice.shape[-1]
        if experts % groups.groups or not 1 <= groups.kept <= groups.groups:
            raise UsageError(
                f"route: E = {experts} experts in {groups.groups} groups of which {groups.kept} are kept"
            )
        if groups.best > experts // groups.groups or top_k > groups.kept * (experts // groups.groups):
            raise UsageError(
                f"route: groups of {experts // groups.groups} experts; best = {groups.best}, top_k = {top_k}"
            )
        grouped = choice.view(len(choice), groups.groups, -1)
        rank = grouped.topk(groups.best, dim=-1).values.sum(-1)
        kept = torch.zeros_like(rank, dtype=torch.bool).scatter_(
            1, rank.topk(groups.kept, dim=-1).indices, True
        )
        choice = grouped.masked_fill(~kept[:, :, None], -torch.inf).flatten(1)
    return choice.topk(top_k, dim=-1).indices
