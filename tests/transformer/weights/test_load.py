"""Loading: tensors land where the table says, views stay views, and everything that does not fit is named at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from networks import bare_network, values
from safetensors.torch import save_file
from torch import nn

from headcount.errors import ModelFileError, UsageError
from headcount.transformer.weights.load import load_network
from headcount.transformer.weights.names import read_names
from headcount.transformer.weights.source import TensorSource, open_weights

TABLE = read_names(
    """
    embedding.weight                   model.embed.weight
    head.weight                        lm_head.weight
    layers.{i}.mixer.query.weight      model.layers.{i}.attn.qkv.weight    rows :NH
    layers.{i}.mixer.key.weight        model.layers.{i}.attn.qkv.weight    rows NH:NH+KH
    layers.{i}.norms.mixer.weight      model.layers.{i}.norm.weight        add 1
    layers.{i}.feed_forward.gate       model.layers.{i}.experts.{e}.w1     transpose
    layers.{i}.feed_forward.gate       model.layers.{i}.gate
    """
)
LETTERS = {"N": 2, "K": 1, "H": 3, "D": 4, "F": 5, "E": 3}
SHAPES = {
    "embedding.weight": (7, 4),
    "layers.0.mixer.query.weight": (6, 4),
    "layers.0.mixer.key.weight": (3, 4),
    "layers.0.norms.mixer.weight": (4,),
    "layers.0.feed_forward.gate": (3, 5, 4),
}


def tensors(dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"embed.weight": (7, 4), "layers.0.attn.qkv.weight": (9, 4), "layers.0.norm.weight": (4,)}
    shapes |= {f"layers.0.experts.{e}.w1": (4, 5) for e in range(3)}
    return {
        "model." + name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()
    }


def source_of(folder: Path, stored: dict[str, torch.Tensor]) -> TensorSource:
    save_file(
        {name: tensor.clone().contiguous() for name, tensor in stored.items()}, folder / "model.safetensors"
    )
    return open_weights(str(folder))


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.bfloat16])
def test_every_parameter_gets_its_tensor(tmp_path: Path, dtype: torch.dtype | None) -> None:
    stored = tensors()
    network = load_network(bare_network(SHAPES), source_of(tmp_path, stored), TABLE, LETTERS, dtype=dtype)
    got, fused = values(network), stored["model.layers.0.attn.qkv.weight"]
    for name, expected in {
        "embedding.weight": stored["model.embed.weight"],
        "layers.0.mixer.query.weight": fused[:6],
        "layers.0.mixer.key.weight": fused[6:],
        "layers.0.feed_forward.gate": torch.stack(
            [stored[f"model.layers.0.experts.{e}.w1"].t() for e in range(3)]
        ),
    }.items():
        assert got[name].dtype == (dtype or torch.bfloat16)
        assert torch.equal(got[name].float(), expected.float())
        assert got[name].is_contiguous()
    one_more = stored["model.layers.0.norm.weight"].float() + 1
    assert torch.equal(got["layers.0.norms.mixer.weight"], one_more.to(dtype or torch.float32))


def test_tensors_of_the_wanted_type_are_views_of_the_file(tmp_path: Path) -> None:
    source = source_of(tmp_path, tensors())
    got = values(load_network(bare_network(SHAPES), source, TABLE, LETTERS, dtype=torch.bfloat16))
    assert got["embedding.weight"].data_ptr() == source.tensor("model.embed.weight").data_ptr()
    fused = source.tensor("model.layers.0.attn.qkv.weight")
    assert got["layers.0.mixer.key.weight"].data_ptr() == fused[6:].data_ptr()


def test_everything_wrong_is_named_at_once_and_nothing_is_loaded(tmp_path: Path) -> None:
    stored = tensors()
    del stored["model.embed.weight"], stored["model.layers.0.experts.1.w1"]
    stored["model.layers.0.norm.weight"] = torch.zeros(9)
    stored |= {f"junk.{i}": torch.zeros(1) for i in range(5)}
    network = bare_network(SHAPES)
    with pytest.raises(ModelFileError) as caught:
        load_network(network, source_of(tmp_path, stored), TABLE, LETTERS)
    said = str(caught.value)
    assert "2 missing: 'model.embed.weight', 'model.layers.0.experts.1.w1'" in said
    assert "7 left over: 'junk.0', 'junk.1', 'junk.2' and 4 more" in said
    assert "'model.layers.0.norm.weight' gives (9,), layers.0.norms.mixer.weight is (4,)" in said
    assert "\n" not in said and all(p.device.type == "meta" for p in network.parameters())


def test_rotary_tables_masks_and_counters_may_be_left_over(tmp_path: Path) -> None:
    extra = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(2),
        "h.0.attn.bias": torch.zeros(1, 1, 3, 3),
        "h.0.attn.masked_bias": torch.zeros(1),
        "gpt_neox.layers.0.attention.bias": torch.zeros(1),
        "embeddings.position_ids": torch.zeros(1, 4),
    }
    source = source_of(tmp_path, tensors() | extra)
    load_network(bare_network(SHAPES), source, TABLE, LETTERS)


@pytest.mark.parametrize("same", [True, False])
def test_a_stored_head_of_a_tied_network_must_be_its_embedding(tmp_path: Path, same: bool) -> None:
    stored = tensors()
    stored["lm_head.weight"] = stored["model.embed.weight"] if same else stored["model.embed.weight"] * 2
    source = source_of(tmp_path, stored)
    if same:
        load_network(bare_network(SHAPES), source, TABLE, LETTERS)
    else:
        with pytest.raises(ModelFileError, match=r"1 left over: 'lm_head\.weight'"):
            load_network(bare_network(SHAPES), source, TABLE, LETTERS)


@pytest.mark.parametrize(
    ("old", "new"), [("model.", ""), ("model.", "model.language_model."), ("model.", "language_model.model.")]
)
def test_bare_models_and_halves_of_larger_ones(tmp_path: Path, old: str, new: str) -> None:
    stored = {name.replace(old, new): tensor for name, tensor in tensors().items()}
    got = values(load_network(bare_network(SHAPES), source_of(tmp_path, stored), TABLE, LETTERS))
    assert torch.equal(got["embedding.weight"], tensors()["model.embed.weight"])


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.float8_e4m3fn])
def test_packed_weights_are_not_taken_for_numbers(tmp_path: Path, dtype: torch.dtype) -> None:
    stored = tensors() | {"model.embed.weight": torch.zeros(7, 4).to(dtype)}
    with pytest.raises(ModelFileError, match="packed weights, which need scales"):
        load_network(bare_network(SHAPES), source_of(tmp_path, stored), TABLE, LETTERS)


def test_a_parameter_without_a_row_and_a_missing_letter(tmp_path: Path) -> None:
    source = source_of(tmp_path, tensors())
    with pytest.raises(UsageError, match="no row for parameter 'other'"):
        load_network(bare_network({"other": (1,)}), source, TABLE, LETTERS)
    with pytest.raises(UsageError, match="letter 'N' has no size"):
        load_network(bare_network(SHAPES), source, TABLE, {"E": 3})


def test_gradients_are_wanted_as_before_and_letters_may_depend_on_the_layer(tmp_path: Path) -> None:
    network = bare_network(SHAPES)
    network.get_parameter("embedding.weight").requires_grad_(False)
    load_network(network, source_of(tmp_path, tensors()), TABLE, lambda layer: LETTERS if layer else {})
    assert not network.get_parameter("embedding.weight").requires_grad
    assert isinstance(network.get_parameter("layers.0.mixer.key.weight"), nn.Parameter)
    assert network.get_parameter("layers.0.mixer.key.weight").requires_grad
