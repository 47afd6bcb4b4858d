"""The two worked examples against numbers that are not ours: the chapters, recomputed in float64 with NumPy."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from headcount.errors import HeadcountError
from headcount.explain.asked import Asked
from headcount.explain.derivation import Derivation
from headcount.explain.examples import EXAMPLES, IDENTITY, UPI, WhatIf, read_cell
from headcount.explain.topics import derive
from headcount.explain.worked import work

R = 0.6697615493266569
Q = 0.3302384506733431
# Source of every number: the chapters' two examples, recomputed in float64.
UPI_FORWARD = {
    "Q": [[2, 1], [1, 3]],
    "K": [[1, 2], [1, 3]],
    "V": [[2, 2], [1, 2]],
    "S": [[4, 5], [7, 10]],
    "S'": [[2.8284271247461903, 3.5355339059327378], [4.949747468305833, 7.0710678118654755]],
    "A": [[Q, R], [0.10704180146517049, 0.8929581985348296]],
    "O": [[1.3302384506733431, 2.0], [1.1070418014651706, 2.0]],
    "Q2": [[3, 1], [3, 1]],
    "K2": [[1, 3], [1, 1]],
    "V2": [[1, 2], [3, 1]],
    "S2": [[6, 4], [6, 4]],
    "A2": [[0.8044296825069569, 0.19557031749304313]] * 2,
    "O2": [[1.3911406349860862, 1.804429682506957]] * 2,
    "Y": [
        [1.3302384506733431, 2.0, 1.3911406349860862, 1.804429682506957],
        [1.1070418014651706, 2.0, 1.3911406349860862, 1.804429682506957],
    ],
}
UPI_DOWN_4 = {
    "Q": [[2, 1], [1, 5]],
    "K": [[1, 2], [1, 5]],
    "V": [[2, 2], [1, 4]],
    "S": [[4, 7], [11, 26]],
    "A": [[0.1070418014651704, 0.8929581985348296], [2.4751450377513086e-05, 0.9999752485496225]],
    "O": [[1.1070418014651704, 3.785916397069659], [1.0000247514503775, 3.999950497099245]],
}
IDENTITY_FORWARD = {
    "S": [[1, 0], [0, 1]],
    "S'": [[0.7071067811865475, 0], [0, 0.7071067811865475]],
    "A": [[R, Q], [Q, R]],
    "O": [[1.6604769013466862, 2.6604769013466862], [2.3395230986533138, 3.3395230986533138]],
    "L": 10.0,
}
DS = 0.6255943861804416
IDENTITY_BACKWARD = {
    "dO": [[1, 1], [1, 1]],
    "dA": [[3, 7], [3, 7]],
    "dV": [[1, 1], [1, 1]],
    "D": [4.3209538026933725, 5.6790461973066275],
    "dS'": [[-0.8847240654808521, 0.8847240654808521]] * 2,
    "dS": [[-DS, DS]] * 2,
    "dQ": [[-DS, DS]] * 2,
    "dK": [[-DS, -DS], [DS, DS]],
}


def same(found: Derivation, wanted: dict[str, Any]) -> None:
    for name, numbers in wanted.items():
        values = torch.tensor(found.find(name).values, dtype=torch.float64)
        torch.testing.assert_close(
            values,
            torch.tensor(numbers, dtype=torch.float64),
            rtol=0,
            atol=1e-12,
            msg=lambda text, n=name: f"{n}: {text}",
        )


def test_upi_forward() -> None:
    same(derive("attention", Asked(example="upi")), UPI_FORWARD)


def test_identity_forward_and_backward() -> None:
    same(
        derive("attention", Asked(example="identity")),
        {k: v for k, v in IDENTITY_FORWARD.items() if k != "L"},
    )
    same(derive("backward", Asked()), IDENTITY_FORWARD | IDENTITY_BACKWARD)


def test_upi_backward_gives_the_column_mass_and_not_ones() -> None:
    found = derive("backward", Asked(example="upi"))
    same(found, {"dV": [[0.4372802521385136] * 2, [1.5627197478614865] * 2], "dO": [[1, 1], [1, 1]]})
    step = next(step for step in found.steps if step.chapters and "column sums" in step.chapters)
    assert "not ones" in step.chapters


def test_every_gradient_of_both_examples_against_numpy_style_algebra() -> None:
    """The four steps written out with torch matrix products, for both heads and through W_O."""
    for example in EXAMPLES.values():
        run = work(example)
        for head in example.heads:
            a, v, q, k = (run.value(head.letter(letter)) for letter in "AVQK")
            d_o = run.gradient(head.letter("O"))
            d_a = d_o @ v.T
            d_scaled = a * (d_a - (a * d_a).sum(1, keepdim=True))
            d_s = d_scaled / math.sqrt(2)
            wanted = {"A": d_a, "V": a.T @ d_o, "S'": d_scaled, "S": d_s, "Q": d_s @ k, "K": d_s.T @ q}
            for letter, value in wanted.items():
                torch.testing.assert_close(run.gradient(head.letter(letter)), value, rtol=0, atol=1e-14)


def test_gradients_by_hand_equal_autograd() -> None:
    for what_if in (WhatIf(), WhatIf(causal=True), WhatIf(scale="dk")):
        ours, stock = work(UPI, what_if), work(UPI, what_if, mode="autograd")
        for letter in UPI.matrices:
            torch.testing.assert_close(ours.gradients[letter], stock.gradients[letter], rtol=0, atol=1e-13)


def test_changed_cell_and_what_it_did_not_reach() -> None:
    found = derive("attention", Asked(example="upi", cells=("x[1,1]=4",)))
    same(found, UPI_DOWN_4)
    changed, unchanged = found.changes()
    assert {"x", "Q", "K", "V", "S", "A", "O"} <= set(changed)
    assert {"W_Q", "K2", "V2", "A2", "O2", "W_O"} <= set(unchanged)
    q = found.find("Q")
    assert q.before[0] == q.values[0] and q.before[1] != q.values[1]
    assert found.settings == ("x[1,1] (down): 2 -> 4",)


def test_causal_mask() -> None:
    found = derive("attention", Asked(example="upi", causal=True))
    same(
        found,
        {"A": [[1, 0], [0.10704180146517049, 0.8929581985348296]], "O": [[2, 2], [1.1070418014651706, 2]]},
    )
    assert found.find("S'").values[0][1] == -math.inf
    backward = derive("backward", Asked(example="upi", causal=True))
    assert backward.find("dS").values[0] == (0.0, 0.0)


@pytest.mark.parametrize(
    ("scale", "row"),
    [
        ("none", (0.2689414213699951, 0.7310585786300049)),
        ("sqrt", (Q, R)),
        ("dk", (0.3775406687981454, 0.6224593312018546)),
    ],
)
def test_three_scales(scale: str, row: tuple[float, float]) -> None:
    assert derive("attention", Asked(example="upi", scale=scale)).find("A").values[0] == pytest.approx(
        row, abs=1e-12
    )


def test_printed_operands_do_not_give_the_printed_result() -> None:
    notes = " ".join(step.note for step in derive("backward", Asked()).steps)
    assert "give O[0,0] = 1.6604" in notes and "printed 1.6605" in notes
    assert "give D[0] = 4.3208" in notes


def test_cells() -> None:
    assert read_cell("x[1,1]=4", UPI) == ("x", 1, 1, 4.0)
    assert read_cell(" x [ down , 1 ] = 4e0 ", UPI) == ("x", 1, 1, 4.0)
    assert read_cell("V[1,0]=-.5", IDENTITY) == ("V", 1, 0, -0.5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x11=4", "is not NAME[row,column]=NUMBER"),
        ("x[1]=4", "is not NAME[row,column]=NUMBER"),
        ("x[2,0]=4", "x has 2 rows and 4 columns, counted from 0; the last cell is x[1,3]"),
        ("x[-1,0]=4", "x has 2 rows and 4 columns"),
        ("x[0,0]=four", "'four' is not a number"),
        ("x[0,0]=nan", "'nan' is not a number"),
        ("x[0,0]=inf", "'inf' is not a number"),
        ("x[0,0]=1e7", "-1,000,000 to 1,000,000"),
        ("Q[0,0]=1", "Q is computed from x and W_Q"),
        ("A[0,0]=1", "A is computed"),
        ("W_Z[0,0]=1", "W_O (4 x 4)"),
    ],
)
def test_bad_cells(text: str, words: str) -> None:
    with pytest.raises(HeadcountError, match=r".") as caught:
        read_cell(text, UPI)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_later_change_of_a_cell_wins() -> None:
    found = derive("attention", Asked(cells=("x[1,1]=9", "x[1,1]=4")))
    same(found, UPI_DOWN_4)
