"""T5 and its successors against transformers."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from two_stacks import check, disturb

from headcount.errors import ModelFileError, UnsupportedModelError
from headcount.spec.huggingface.config import spec_from_config
from headcount.transformer.families.registry import build_network
from headcount.transformer.families.told_positions import RelativeBias

pytestmark = [pytest.mark.reference]
SMALL = {
    "vocab_size": 97,
    "d_model": 48,
    "d_kv": 10,
    "d_ff": 70,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 3,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
}


@pytest.mark.parametrize("feed_forward", ["relu", "gelu", "gated-gelu", "gated-silu", "gated-relu"])
def test_t5(feed_forward: str, tmp_path: Any) -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    check(T5ForConditionalGeneration(T5Config(**SMALL, feed_forward_proj=feed_forward)), tmp_path)


@pytest.mark.parametrize("switches", [{}, {"layer_norm_epsilon": 1e-2, "num_heads": 5}])
def test_defaults(switches: dict[str, Any], tmp_path: Any) -> None:
    """32 buckets that reach 128 tokens."""
    from transformers import T5Config, T5ForConditionalGeneration

    small = {key: value for key, value in SMALL.items() if "relative" not in key}
    torch.manual_seed(0)
    check(T5ForConditionalGeneration(T5Config(**{**small, **switches})), tmp_path)


@pytest.mark.parametrize("name", ["MT5", "UMT5"])
def test_successors(name: str, tmp_path: Any) -> None:
    import transformers

    torch.manual_seed(0)
    # mT5 does not divide what enters its head: smaller embeddings keep its logits of the size of the others'.
    factor = 0.2 if name == "MT5" else 1.0
    config = getattr(transformers, f"{name}Config")(**SMALL, initializer_factor=factor)
    check(getattr(transformers, f"{name}ForConditionalGeneration")(config), tmp_path)


def test_own_head(tmp_path: Any) -> None:
    """T5 1.1 and Flan-T5 as published: ``tie_word_embeddings`` false, a head in the file, nothing scaled."""
    from safetensors.torch import save_file
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = {**SMALL, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    model = T5ForConditionalGeneration(T5Config(**config))
    model.lm_head.weight = torch.nn.Parameter(torch.randn(97, 48) * 0.3)
    disturb(model)
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    save_file(tensors, tmp_path / "model.safetensors")
    published = {"model_type": "t5", **config, "architectures": ["T5ForConditionalGeneration"]}
    (tmp_path / "config.json").write_text(json.dumps(published))
    ours = check(model, tmp_path, saved=True)
    assert ours.network.head is not None


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize(("buckets", "reach"), [(32, 128), (8, 12), (10, 20), (64, 512)])
def test_buckets(both_ways: bool, buckets: int, reach: int) -> None:
    """Every distance up to 700 tokens, both ways."""
    from transformers.models.t5.modeling_t5 import T5Attention

    distances = torch.arange(-700, 701)
    theirs = T5Attention._relative_position_bucket(distances, both_ways, buckets, reach)
    ours = RelativeBias(buckets, 2, reach=reach, both_ways=both_ways).bucket(distances)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("hand", [True, False])
def test_gradients(hand: bool, tmp_path: Any) -> None:
    """Of every parameter, the shared table of positions included, by our backward passes and by PyTorch's."""
    from transformers import T5Config, T5ForConditionalGeneration

    from headcount.transformer.ops.operation import differentiate
    from headcount.transformer.weights.model import load_model

    torch.manual_seed(0)
    model = T5ForConditionalGeneration(T5Config(**SMALL)).eval()
    disturb(model)
    model.save_pretrained(tmp_path)
    network = load_model(str(tmp_path), dtype=torch.float32).network
    network.use_kernel("naive")
    source, target = torch.randint(3, 97, (2, 9)), torch.randint(3, 97, (2, 7))
    with differentiate("by_hand" if hand else "autograd"):
        network(target, network.encode(source)).square().mean().backward()
    model(input_ids=source, decoder_input_ids=target, use_cache=False).logits.square().mean().backward()
    pairs = (
        (network.embedding.weight, model.shared.weight),
        (
            network.layers[0].mixer.told.table.weight,
            model.decoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight,
        ),
        (
            network.encoder.layers[0].mixer.told.table.weight,
            model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight,
        ),
        (network.layers[1].cross.key.weight, model.decoder.block[1].layer[1].EncDecAttention.k.weight),
    )
    for ours, theirs in pairs:
        assert (ours.grad - theirs.grad).abs().max() / theirs.grad.abs().max() < 1e-5


@pytest.mark.parametrize(
    ("key", "value", "error", "words"),
    [
        ("feed_forward_proj", "gated-tanh", UnsupportedModelError, "tanh"),
        ("feed_forward_proj", "gated-wave", ModelFileError, "wave"),
        ("relative_attention_max_distance", 2, ModelFileError, "do not reach 2 tokens"),
        ("layer_norm_epsilon", "small", ModelFileError, "layer_norm_epsilon"),
    ],
)
def test_refused(key: str, value: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        build_network(spec_from_config({"model_type": "t5", **SMALL, key: value}, name="x", source="test"))
