"""Whole stacks: gradients against PyTorch's autograd, symmetry, causality, generation, refusals."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headcount.errors import HeadcountError, OperandError
from headcount.transformer.attention.masks import Packed
from headcount.transformer.ops.cross_entropy import cross_entropy
from headcount.transformer.ops.operation import differentiate
from headcount.transformer.ops.recording import record
from headcount.transformer.stacks.config import DecoderOnlyConfig, EncoderDecoderConfig, EncoderOnlyConfig
from headcount.transformer.stacks.decoder_only import DecoderOnly
from headcount.transformer.stacks.encoder_decoder import EncoderDecoder
from headcount.transformer.stacks.encoder_only import EncoderOnly

SMALL: dict[str, Any] = {
    "vocabulary": 13,
    "width": 16,
    "layers": 2,
    "heads": 4,
    "feed_forward": 24,
    "dropout": 0.0,
}
SOURCE = torch.tensor([[5, 3, 8, 2, 0, 0], [4, 4, 9, 1, 12, 2]])
TARGET = torch.tensor([[1, 7, 7, 10], [1, 11, 3, 6]])


def make(kind: type[nn.Module], config: Any, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return kind(config).double()


def seq2seq(**changes: Any) -> EncoderDecoder:
    return make(EncoderDecoder, EncoderDecoderConfig(**{**SMALL, **changes}))  # type: ignore[return-value]


def decoder(**changes: Any) -> DecoderOnly:
    return make(DecoderOnly, DecoderOnlyConfig(**{**SMALL, "max_length": 8, **changes}))  # type: ignore[return-value]


def encoder(**changes: Any) -> EncoderOnly:
    return make(EncoderOnly, EncoderOnlyConfig(**{**SMALL, "max_length": 8, **changes}))  # type: ignore[return-value]


def seq2seq_loss(model: nn.Module) -> Tensor:
    return cross_entropy(model(SOURCE, TARGET, SOURCE != 0), TARGET.roll(-1, 1), label_smoothing=0.1)


def decoder_loss(model: nn.Module) -> Tensor:
    return cross_entropy(model(SOURCE), SOURCE.roll(-1, 1))


def encoder_loss(model: Any) -> Tensor:
    return cross_entropy(model.logits(model(SOURCE, SOURCE != 0)), SOURCE)


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[Any], Tensor]]] = {
    "encoder-decoder": (seq2seq, seq2seq_loss),
    "encoder-decoder, pre": (lambda: seq2seq(norm="pre"), seq2seq_loss),
    "encoder-decoder, parallel, learned": (
        lambda: seq2seq(norm="parallel", positions="learned"),
        seq2seq_loss,
    ),
    "decoder-only, learned": (decoder, decoder_loss),
    "decoder-only, rotary, gated, grouped, RMS": (
        lambda: decoder(positions="rotary", activation="swiglu", kv_heads=2, norm_kind="rms_norm"),
        decoder_loss,
    ),
    "decoder-only, sinusoidal, post": (lambda: decoder(positions="sinusoidal", norm="post"), decoder_loss),
    "encoder-only": (encoder, encoder_loss),
    "encoder-only, rotary, parallel": (lambda: encoder(positions="rotary", norm="parallel"), encoder_loss),
}


@pytest.mark.parametrize("case", CASES)
def test_gradients_by_hand_equal_autograd(case: str) -> None:
    make_model, loss_of = CASES[case]
    model = make_model()
    found = {}
    for mode in ("by_hand", "autograd"):
        model.zero_grad()
        with differentiate(mode):
            loss_of(model).backward()
        found[mode] = {name: parameter.grad for name, parameter in model.named_parameters()}
    for name, gradient in found["by_hand"].items():
        assert gradient is not None, name
        torch.testing.assert_close(gradient, found["autograd"][name], rtol=0, atol=1e-10, msg=name)


@pytest.mark.parametrize("case", CASES)
def test_tape_of_a_stack_is_connected(case: str) -> None:
    make_model, loss_of = CASES[case]
    model = make_model()
    with record() as tape:
        loss_of(model)
    made = {key for node in tape.nodes for key in node.outputs}
    for node in tape.nodes:
        for key in node.inputs:
            value = tape.values[key].tensor
            assert key in made or isinstance(value, nn.Parameter) or not value.requires_grad, node.operation
    assert any("block 1" in node.scope and "feed_forward" in node.scope for node in tape.nodes)


@pytest.mark.parametrize("norm", ["post", "pre", "parallel"])
def test_encoder_without_positions_is_permutation_equivariant(norm: str) -> None:
    model = encoder(positions="none", norm=norm)
    order = torch.tensor([4, 2, 0, 5, 1, 3])
    torch.testing.assert_close(model(SOURCE)[:, order], model(SOURCE[:, order]), rtol=0, atol=1e-12)
    if norm == "pre":
        for positions in ("sinusoidal", "learned", "rotary"):
            other = encoder(positions=positions, norm=norm)
            # Weights of a trained size: at their small beginnings attention hardly tells tokens apart.
            for parameter in other.parameters():
                parameter.data.normal_(std=0.5)
            change = other(SOURCE)[:, order] - other(SOURCE[:, order])
            assert change.detach().abs().max() > 0.01, positions


@pytest.mark.parametrize("kernel", ["composed", "tiled", "fused"])
@pytest.mark.parametrize("case", [seq2seq, decoder])
def test_kernels_give_the_same_logits(kernel: str, case: Callable[..., nn.Module]) -> None:
    arguments = (SOURCE, TARGET, SOURCE != 0) if case is seq2seq else (SOURCE,)
    torch.testing.assert_close(
        case(kernel=kernel)(*arguments), case(kernel="naive")(*arguments), rtol=0, atol=1e-12
    )


def test_later_tokens_do_not_reach_back() -> None:
    model = decoder(positions="rotary")
    changed = SOURCE.clone()
    changed[:, 4:] = 7
    torch.testing.assert_close(model(changed)[:, :4], model(SOURCE)[:, :4], rtol=0, atol=1e-12)


def test_rotary_logits_depend_on_distances_alone() -> None:
    """The same three tokens further along, the first three out of view: only the positions differ."""
    model = decoder(positions="rotary")
    ids = torch.tensor([[6, 2, 9, 6, 2, 9]])
    logits = model(ids, mask=Packed.of_lengths([3, 3]))
    torch.testing.assert_close(logits[:, :3], logits[:, 3:], rtol=0, atol=1e-10)
    learned = decoder()(ids, mask=Packed.of_lengths([3, 3]))
    assert (learned[:, :3] - learned[:, 3:]).detach().abs().max() > 1e-3


def test_padding_does_not_matter() -> None:
    model = seq2seq()
    longer = torch.cat((SOURCE[:1], torch.full((1, 4), 9)), 1)
    keep = torch.arange(10)[None] < 4
    short = SOURCE[:1, :4]
    torch.testing.assert_close(model(longer, TARGET[:1], keep), model(short, TARGET[:1]), rtol=0, atol=1e-12)


def test_generate_follows_the_largest_logit_until_the_end() -> None:
    model = seq2seq().train()
    for parameter in model.parameters():
        parameter.data.normal_(std=0.4)
    keep = SOURCE != 0
    found = model.generate(SOURCE, keep, start=1, end=2, limit=9)
    assert model.training
    assert found.shape[1] <= 9
    for row in range(2):
        prefix = torch.tensor([[1]])
        for token in found[row].tolist():
            logits = model(SOURCE[row : row + 1], prefix, keep[row : row + 1])[0, -1]
            assert token == int(logits.argmax())
            if token == 2:
                break
            prefix = torch.cat((prefix, torch.tensor([[token]])), 1)
        after_end = found[row].tolist()[prefix.shape[1] :]
        assert all(token == 2 for token in after_end)


@torch.no_grad()
def test_initial_weights() -> None:
    """Glorot's bound on matrices, zero biases, N(0, 1/D) rows scaled by sqrt(D); GPT-2's 0.02 and its depth scaling."""
    config = EncoderDecoderConfig(vocabulary=4000, width=64, layers=1, heads=4, feed_forward=256)
    model = EncoderDecoder(config)
    weight = model.encoder.blocks[0].feed_forward.up.weight
    bound = math.sqrt(6 / (64 + 256))
    assert 0.97 * bound < float(weight.detach().abs().max()) <= bound
    assert not model.encoder.blocks[0].feed_forward.up.bias.any()
    assert float(model.inputs.embedding.weight.std()) == pytest.approx(1 / 8, rel=0.02)
    entries = model.inputs.eval()(torch.arange(2000)[None]) - model.inputs(torch.zeros(1, 2000).long())
    assert float(entries.std()) == pytest.approx(1.0, abs=0.5)
    stack = DecoderOnly(DecoderOnlyConfig(vocabulary=4000, width=64, layers=8, heads=4, feed_forward=256))
    assert float(stack.inputs.embedding.weight.std()) == pytest.approx(0.02, rel=0.02)
    last = stack.decoder.blocks[3].feed_forward.down.weight.detach()
    assert float(last.abs().max()) == pytest.approx(bound / 4, rel=0.03)


def test_published_base_model_has_the_published_size() -> None:
    """65 million parameters (table 3 of the paper) with its shared vocabulary of about 37,000."""
    with torch.device("meta"):
        model = EncoderDecoder(EncoderDecoderConfig(vocabulary=37_000))
    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(65e6, rel=0.04)


def test_gpt2_has_the_published_size() -> None:
    """GPT-2 small: 124,439,808 parameters with its vocabulary of 50,257."""
    with torch.device("meta"):
        model = DecoderOnly(DecoderOnlyConfig(vocabulary=50_257))
    assert sum(parameter.numel() for parameter in model.parameters()) == 124_439_808


@pytest.mark.parametrize(
    ("make_config", "words"),
    [
        (lambda: EncoderDecoderConfig(vocabulary=0), "vocabulary must be a whole number of 1 or more"),
        (
            lambda: EncoderDecoderConfig(vocabulary=5, width=30, heads=8),
            "width 30 does not divide into 8 heads",
        ),
        (lambda: EncoderDecoderConfig(vocabulary=5, positions="rotary"), "given rotary"),
        (lambda: EncoderDecoderConfig(vocabulary=5, positions="sinus"), "nearest: sinusoidal"),
        (lambda: EncoderDecoderConfig(vocabulary=5, width=9, heads=3), "need an even width; given 9"),
        (lambda: DecoderOnlyConfig(vocabulary=5, width=36, positions="rotary"), "even head width"),
        (lambda: DecoderOnlyConfig(vocabulary=5, layers=0), "layers must be"),
        (lambda: DecoderOnlyConfig(vocabulary=5, norm="both"), "unknown placement of the norms 'both'"),
        (lambda: EncoderOnlyConfig(vocabulary=5, dropout=-1.0), "given -1.0"),
    ],
)
def test_refusals(make_config: Callable[[], Any], words: str, plain_signatures: None) -> None:
    with pytest.raises(HeadcountError) as caught:
        make_config()
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_too_long_for_learned_positions(plain_signatures: None) -> None:
    with pytest.raises(OperandError, match="the table has 8 rows"):
        decoder()(torch.zeros(1, 9, dtype=torch.long))
