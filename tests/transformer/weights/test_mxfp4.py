"""MXFP4 experts against the table of the format and transformers' own unpacking, and pairs that do not fit together."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headcount.errors import ModelFileError
from headcount.transformer.weights.mxfp4 import open_blocks, open_mxfp4
from headcount.transformer.weights.source import open_weights

BYTES = {"dtype": torch.uint8, "generator": torch.Generator().manual_seed(0)}


def stored(folder: Any, **tensors: torch.Tensor) -> Any:
    from safetensors.torch import save_file

    save_file(tensors, str(folder / "model.safetensors"))
    return open_weights(str(folder))


def test_all_codes_by_the_table_of_the_format() -> None:
    # OCP MX 1.0, table 5: e2m1. The byte 0x10 k + j holds j first.
    codes = torch.arange(16, dtype=torch.uint8)
    blocks = (codes | (codes << 4)).view(1, 1, 1, 16)
    positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    expected = torch.tensor([x for code in (*positive, *(-p for p in positive)) for x in (code, code)])
    for scale in (127, 124, 130, 0, 254):
        opened = open_blocks(blocks, torch.tensor([[[scale]]], dtype=torch.uint8), torch.float64)
        assert torch.equal(opened.view(-1), expected.double() * 2.0 ** (scale - 127))


def test_lower_bits_come_first() -> None:
    blocks = torch.zeros(1, 1, 1, 16, dtype=torch.uint8)
    blocks[0, 0, 0, 0] = 0x72
    opened = open_blocks(blocks, torch.full((1, 1, 1), 127, dtype=torch.uint8))
    assert opened[0, 0, :3].tolist() == [1.0, 6.0, 0.0]


@pytest.mark.reference
def test_equals_the_reference() -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks = torch.randint(0, 256, (3, 10, 2, 16), **BYTES)
    scales = torch.randint(100, 140, (3, 10, 2), **BYTES)
    assert torch.equal(open_blocks(blocks, scales).mT, convert_moe_packed_tensors(blocks, scales))


def test_a_pair_is_one_tensor_and_the_rest_is_untouched(tmp_path: Any) -> None:
    pair = {
        "mlp.gate_blocks": torch.randint(0, 256, (2, 6, 3, 16), **BYTES),
        "mlp.gate_scales": torch.randint(120, 130, (2, 6, 3), **BYTES),
    }
    source = open_mxfp4(stored(tmp_path, **pair, bias=torch.ones(4)))
    assert sorted(source.names()) == ["bias", "mlp.gate"]
    assert source.shape("mlp.gate") == tuple(source.tensor("mlp.gate").shape) == (2, 96, 6)
    assert source.dtype("mlp.gate") == "BF16"
    assert source.tensor("mlp.gate", torch.float32).dtype == torch.float32
    assert torch.equal(source.tensor("bias"), torch.ones(4))


def test_a_source_without_pairs_is_itself(tmp_path: Any) -> None:
    source = stored(tmp_path, weight=torch.ones(2, 2), lone_blocks=torch.ones(2))
    assert open_mxfp4(source) is source


@pytest.mark.parametrize(
    ("blocks", "scales"),
    [
        (torch.zeros(2, 6, 3, 15, dtype=torch.uint8), torch.zeros(2, 6, 3, dtype=torch.uint8)),
        (torch.zeros(2, 6, 3, 16, dtype=torch.uint8), torch.zeros(2, 6, 4, dtype=torch.uint8)),
        (torch.zeros(2, 6, 3, 16), torch.zeros(2, 6, 3)),
        (torch.zeros(16, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8)),
    ],
)
def test_halves_that_do_not_fit_are_refused(
    blocks: torch.Tensor, scales: torch.Tensor, tmp_path: Any
) -> None:
    with pytest.raises(ModelFileError, match="do not fit together"):
        open_mxfp4(stored(tmp_path, gate_blocks=blocks, gate_scales=scales))


def test_a_scale_that_is_no_number_is_refused() -> None:
    with pytest.raises(ModelFileError, match="not a number"):
        open_blocks(
            torch.zeros(1, 1, 1, 16, dtype=torch.uint8), torch.full((1, 1, 1), 255, dtype=torch.uint8)
        )
