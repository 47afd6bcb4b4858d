"""A published Flan-T5 in int8 ONNX (package traceforge-title-model, MIT): our answers against the graphs themselves.

The graphs quantise activations as they run, which the float network does not. So the judge is the same graphs with their
activations left alone: ``MatMulInteger`` becomes ``DequantizeLinear`` and ``MatMul``, nothing else changes, and the onnx
package's reference evaluator runs them. A second judge is transformers' T5 with the dequantised weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from installed import installed
from two_stacks import trained

from headcount.transformer.generation.translate import generate
from headcount.transformer.weights.model import LoadedModel, load_model

pytestmark = [pytest.mark.reference]
REQUESTS = [
    "Fix the login bug where users are redirected to a blank page after entering their password.",
    "Read src/parser.py, edit tokenizer to handle unicode escapes, run pytest tests/test_parser.py: 14 passed",
    "summarize: The tower is 324 metres tall, about the same height as an 81-storey building.",
    "translate English to German: The house is wonderful.",
    "user asks to add dark mode to settings page; assistant edits theme.ts and settings.tsx; runs npm test",
    "Investigate flaky CI: the integration tests time out on macOS runners. Increase timeout, add retries.",
]


@pytest.fixture(scope="module")
def folder() -> Path:
    pytest.importorskip("onnx")
    return installed("traceforge_title_model") / "data" / "span"


@pytest.fixture(scope="module")
def model(folder: Path) -> LoadedModel:
    return load_model(str(folder))


@pytest.fixture(scope="module")
def answers(folder: Path, model: LoadedModel) -> list[tuple[list[int], list[int]]]:
    """(source ids, our answer) of every request."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    sources = [tokenizer.encode(text).ids for text in REQUESTS]
    return [(source, generate(model, source, limit=24)) for source in sources]


def with_float_activations(path: Path) -> Any:
    """The graph of a file, its products no longer in integers; opset 19, the first the evaluator has DequantizeLinear of."""
    import onnx
    from onnx import helper

    model = onnx.load(path)
    graph = model.graph
    stored = {tensor.name for tensor in graph.initializer}
    maker = {output: node for node in graph.node for output in node.output}
    user = {value: node for node in graph.node for value in node.input}
    instead, gone = {}, set()
    for node in graph.node:
        if node.op_type != "MatMulInteger":
            continue
        quantise, cast = maker[node.input[0]], user[node.output[0]]
        product = user[cast.output[0]]
        scales = next(maker[value] for value in product.input if value != cast.output[0])
        (scale,) = [value for value in scales.input if value in stored]
        weight = node.input[1] + "_number"
        instead[product.output[0]] = [
            helper.make_node("DequantizeLinear", [node.input[1], scale, node.input[3]], [weight]),
            helper.make_node("MatMul", [quantise.input[0], weight], [product.output[0]]),
        ]
        gone |= {output for old in (node, cast, scales, quantise) for output in old.output}
    kept = []
    for node in graph.node:
        if node.output[0] in instead:
            kept += instead[node.output[0]]
        elif node.output[0] not in gone:
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            kept.append(copy)
    del graph.node[:]
    graph.node.extend(kept)
    model.opset_import[0].version = 19
    return model


def test_description(model: LoadedModel) -> None:
    """Flan-T5-small's own numbers, and every parameter in its place."""
    wanted = {"d_model": 512, "d_kv": 64, "d_ff": 1024, "num_heads": 6, "num_layers": 8, "vocab_size": 32128}
    assert {key: model.spec.config[key] for key in wanted} == wanted
    assert model.network.head is not None and model.network.shape.head_factor == 1.0
    assert trained(model.network) == model.spec.parameters == 76_961_152


def test_against_the_graphs(
    folder: Path, model: LoadedModel, answers: list[tuple[list[int], list[int]]]
) -> None:
    """Given our answer as target, the graphs predict each of its tokens and its end."""
    numpy = pytest.importorskip("numpy")
    from onnx.reference import ReferenceEvaluator

    encoder, decoder = (
        ReferenceEvaluator(with_float_activations(folder / f"{name}.onnx")) for name in ("encoder", "decoder")
    )
    for source, answer in answers:
        assert 0 < len(answer) < 24
        ids = numpy.array([source])
        with torch.no_grad():
            mine = model.network.encode(torch.tensor([source]))
        # The graphs take the logarithm of distance 0 and replace it afterwards.
        with numpy.errstate(divide="ignore", invalid="ignore"):
            (encoded,) = encoder.run(None, {"input_ids": ids, "attention_mask": numpy.ones_like(ids)})
            inputs = {
                "input_ids": numpy.array([[0, *answer]]),
                "encoder_hidden_states": encoded,
                "encoder_attention_mask": numpy.ones_like(ids),
            }
            (logits,) = decoder.run(None, inputs)
        theirs = torch.tensor(encoded)
        assert (mine - theirs).norm() / theirs.norm() < 1e-5
        assert logits[0].argmax(-1).tolist() == [*answer, 1]


def test_against_transformers(model: LoadedModel, answers: list[tuple[list[int], list[int]]]) -> None:
    """Its class with these weights, its own greedy search and cache."""
    from transformers import T5Config, T5ForConditionalGeneration

    from headcount.transformer.weights.onnx_file import OnnxSource

    config = {key: value for key, value in model.spec.config.items() if key != "model_type"}
    theirs = T5ForConditionalGeneration(T5Config(**config)).eval()
    source = OnnxSource(model.path)
    state = {name: source.tensor(name) for name in source.names()}
    theirs.lm_head.weight = torch.nn.Parameter(state["lm_head.weight"])
    state["decoder.embed_tokens.weight"] = state["shared.weight"]
    theirs.load_state_dict(state)
    for ids, answer in answers:
        found = theirs.generate(torch.tensor([ids]), max_new_tokens=24, do_sample=False, num_beams=1)
        assert found[0, 1:].tolist() == [*answer, 1]
