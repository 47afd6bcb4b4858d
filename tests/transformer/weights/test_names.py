"""Name tables: their syntax, and every transformation against plain index arithmetic."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from headcount.errors import HeadcountError, ModelFileError, UnknownNameError, UsageError
from headcount.transformer.weights.names import Row, by_parameter, read_names, rows_of
from headcount.transformer.weights.transformations import size, transform

LETTERS = {"N": 4, "K": 2, "G": 2, "H": 6, "W": 3, "D": 5, "F": 7, "E": 3, "r": 8}


def test_a_table_is_read_in_order_with_remarks_and_steps() -> None:
    rows = read_names(
        """
        embedding.weight              wte.weight      # tokens
        layers.{i}.mixer.query.bias   h.{i}.c_attn.bias    transpose ;  rows 0 of 3
        layers.{i}.feed_forward.gate  h.{i}.experts.{e}.w1  expert {e}
        layers.{i}.feed_forward.gate  h.{i}.gate
        """
    )
    assert rows == [
        Row("embedding.weight", "wte.weight"),
        Row("layers.{i}.mixer.query.bias", "h.{i}.c_attn.bias", ("transpose", "rows 0 of 3")),
        Row("layers.{i}.feed_forward.gate", "h.{i}.experts.{e}.w1"),
        Row("layers.{i}.feed_forward.gate", "h.{i}.gate"),
    ]
    grouped = by_parameter(rows)
    assert rows_of("layers.11.feed_forward.gate", grouped) == (rows[2:], "11")
    assert rows_of("embedding.weight", grouped) == (rows[:1], "")
    assert rows_of("layers.0.nothing", grouped) == ([], "0")


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("alone", UsageError, "one column"),
        ("a b turn", UnknownNameError, "unknown transformation 'turn'"),
        ("a b transpose; ", UnknownNameError, "unknown transformation"),
        ("a b expert {e}", UsageError, "second column"),
        ("a.{e} b.{e}", UsageError, "second column"),
        ("a b.{i}", UsageError, "{i} is in theirs"),
    ],
)
def test_a_wrong_table_is_refused(text: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match="(?i)" + words.replace("{", r"\{")):
        read_names(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("NH", 24),
        ("NH+KH", 36),
        ("2F", 14),
        ("NH+2KH", 48),
        ("NH-KH", 12),
        ("G+2", 4),
        ("H+W", 9),
        ("r", 8),
    ],
)
def test_sizes(text: str, value: int) -> None:
    assert size(text, LETTERS) == value


@pytest.mark.parametrize("text", ["", "N*H", "N H", "+", "N+", "X", "3.5", "NH)", "2+", "²"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        size(text, LETTERS)


def numbered(*shape: int) -> Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)


@given(n=st.integers(1, 4), rows=st.integers(0, 3), columns=st.integers(1, 3), k=st.integers(0, 3))
def test_rows_and_columns_are_blocks(n: int, rows: int, columns: int, k: int) -> None:
    k %= n
    x = numbered(n * rows, columns)
    expected = [x[k * rows + j] for j in range(rows)]
    got = transform(x, (f"rows {k} of {n}",), {})
    assert got.shape == (rows, columns) and all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert torch.equal(transform(x.t(), (f"columns {k} of {n}",), {}), got.t())
    if rows:
        assert got.untyped_storage().data_ptr() == x.untyped_storage().data_ptr(), "a view"


def test_rows_of_a_stack_are_the_dimension_before_the_last() -> None:
    x = numbered(3, 8, 2)
    assert torch.equal(transform(x, ("rows 1 of 2",), {}), x[:, 4:])
    assert torch.equal(transform(x, ("rows H:H+2",), {"H": 3}), x[:, 3:5])
    assert torch.equal(transform(x[0, :, 0], ("rows :N",), {"N": 3}), x[0, :3, 0])


@pytest.mark.parametrize("bias", [False, True])
def test_heads_of_a_fused_projection(bias: bool) -> None:
    """Falcon's layout, row by row: K groups of G queries, one key, one value."""
    groups, width = 2, 6
    x = numbered(groups * 4 * width) if bias else numbered(groups * 4 * width, 5)
    query = [x[(g * 4 + q) * width + j] for g in range(groups) for q in range(2) for j in range(width)]
    key = [x[(g * 4 + 2) * width + j] for g in range(groups) for j in range(width)]
    assert torch.equal(transform(x, ("heads 0:G of G+2 by H",), LETTERS), torch.stack(query))
    assert torch.equal(transform(x, ("heads G of G+2 by H",), LETTERS), torch.stack(key))
    assert torch.equal(transform(x, ("heads G:G+1 of G+2 by H",), LETTERS), torch.stack(key))


def test_halves_undo_pairs() -> None:
    """In a head of 6, stored order (0, 3, 1, 4, 2, 5) means rotary pairs (0, 3), (1, 4), (2, 5)."""
    halves = numbered(12, 2)
    pairs = torch.cat([halves[6 * head + torch.tensor([0, 3, 1, 4, 2, 5])] for head in range(2)])
    assert torch.equal(transform(pairs, ("halves by H",), LETTERS), halves)
    assert torch.equal(transform(pairs[:, 0], ("halves by H",), LETTERS), halves[:, 0])


def test_interleave_takes_every_nth() -> None:
    x = numbered(3, 4, 6)
    assert torch.equal(
        transform(x, ("interleave columns 1 of 2", "transpose"), {}), x[..., 1::2].transpose(1, 2)
    )
    assert torch.equal(transform(x, ("interleave 0 of 2",), {}), x[:, ::2])
    assert torch.equal(transform(x[0, 0], ("interleave 1 of 3",), {}), x[0, 0, 1::3])


def test_reshape_add_and_minus() -> None:
    x = numbered(4 * 9, 8)
    split = transform(x, ("reshape N H+W r", "rows H:H+W"), LETTERS)
    assert torch.equal(split, x.reshape(4, 9, 8)[:, 6:])
    half = torch.tensor([0.001, 1.0], dtype=torch.bfloat16)
    assert torch.equal(transform(half, ("add 1",), {}), half.float() + 1)
    assert torch.equal(transform(x, ("minus 1",), {}), x - 1)


@pytest.mark.parametrize(
    ("shape", "step"),
    [
        ((10, 2), "rows 0 of 3"),
        ((4, 2), "rows 3:9"),
        ((10, 2), "heads 0 of 3 by 2"),
        ((9, 2), "halves by 3"),
        ((5, 2), "interleave 0 of 2"),
        ((5, 2), "reshape 3 4"),
        ((), "rows 0 of 2"),
    ],
)
def test_a_tensor_that_does_not_fit_is_the_files_fault(shape: tuple[int, ...], step: str) -> None:
    with pytest.raises(ModelFileError):
        transform(torch.zeros(shape), (step,), {})


@pytest.mark.parametrize(
    "step",
    [
        "rows",
        "rows 1",
        "rows 3 of 3",
        "rows 0 of 0",
        "heads 0 of 3",
        "halves H",
        "transpose 1",
        "add x",
        "add",
        "minus 1 2",
    ],
)
def test_a_step_that_makes_no_sense_is_the_tables_fault(step: str) -> None:
    with pytest.raises(UsageError):
        transform(torch.zeros(6, 6), (step,), LETTERS)


@given(st.text("rowsheadcfmntvby0123456789:+- NHKEG{}", max_size=40))
def test_any_text_gives_a_tensor_or_one_of_our_errors(text: str) -> None:
    try:
        rows = read_names("a b " + text)
        transform(torch.zeros(4, 6, device="meta"), rows[0].how if rows else (), LETTERS)
    except HeadcountError:
        pass
