"""Two independent counts agree: what ``cost/`` derives from a spec, and what the running network allocates and multiplies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headcount.cli.main import dispatch
from headcount.errors import HeadcountError, LayoutError, UnsupportedModelError
from headcount.spec.kv_format import KV_FORMATS
from headcount.spec.reader import read_model
from headcount.transformer.families.registry import families
from headcount.units import MIB
from headcount.verify import prove as room
from headcount.verify.prove import Proof, prove

# The smallest catalogue model of each type; types the catalogue lacks are built in tests/transformer/families.
MODELS = (
    "aya-23-8b", "bamba-9b", "bart-base", "bigscience/bloom-560m", "bigcode/starcoder", "bigcode/starcoder2-3b",
    "cohereforai/c4ai-command-r7b-12-2024", "deepseek-ai/deepseek-coder-v2-lite-base", "deepseek-v3", "distilbert/distilgpt2",
    "eleutherai/gpt-j-6b", "eleutherai/pythia-160m", "facebook/opt-125m", "falcon-7b", "gemma-2-2b", "gemma-2b", "gemma-3-270m",
    "glm-4-9b-0414", "google-t5/t5-small", "gpt-oss-20b", "granite-3.1-2b", "granite-4.0-h-1b", "helsinki-nlp/opus-mt-en-de",
    "kimi-k2", "mistral-7b", "mistralai/mixtral-8x7b-instruct-v0.1", "mosaicml/mpt-7b", "allenai/olmo-1b-hf",
    "allenai/olmo-2-1124-7b", "allenai/olmo-3-1025-7b", "phi-4", "qwen/qwen1.5-moe-a2.7b", "qwen/qwen2.5-0.5b", "qwen/qwen3-0.6b",
    "qwen/qwen3-30b-a3b", "smollm2-135m",
)  # fmt: skip


def differences(proof: Proof) -> list[str]:
    return [
        f"{line.group}, {line.name}: {line.predicted:,} | {line.measured:,}"
        for line in proof.lines
        if line.difference
    ]


@pytest.mark.parametrize("name", MODELS)
def test_every_count_is_equal(name: str) -> None:
    proof = prove(read_model(name), tokens=20, most_bytes=256 * MIB)
    assert not differences(proof)
    assert {line.group.split(" ")[0].rstrip(",") for line in proof.lines} >= {"parameters", "KV", "matmul"}


def test_the_models_cover_every_decoder_type() -> None:
    proven = {read_model(name).family for name in MODELS}
    without_catalogue_entry = {
        "olmoe",
        "phi",
        "stablelm",
        "bert",
        "distilbert",
        "roberta",
        "glm",
        "umt5",
        "granitemoe",
        "granitemoeshared",
    }
    same_network = {"mbart", "mt5", "pegasus", "phi3"}
    assert set(families()) - proven <= without_catalogue_entry | same_network


@pytest.mark.parametrize("format", sorted(KV_FORMATS))
@pytest.mark.parametrize("name", ["smollm2-135m", "gemma-3-270m", "deepseek-v3", "bamba-9b"])
def test_every_cache_format(name: str, format: str) -> None:
    """A format either holds exactly the bytes that are predicted, or is refused by name."""
    try:
        proof = prove(read_model(name), tokens=40, kv=format, most_bytes=192 * MIB)
    except HeadcountError as error:
        assert format in str(error) or "multiple of" in str(error)
        return
    assert not differences(proof)


@pytest.mark.parametrize(
    ("name", "tp"),
    [
        ("falcon-7b", 1),
        ("gemma-2b", 2),
        ("deepseek-v3", 2),
        ("smollm2-135m", 3),
        ("qwen/qwen1.5-moe-a2.7b", 2),
        ("gpt-oss-20b", 2),
        ("bigscience/bloom-560m", 2),
    ],
)
def test_ranks_hold_what_is_predicted(name: str, tp: int) -> None:
    """MQA: the one key/value head lies on every rank; MLA: the latent does; GQA: heads are divided."""
    proof = prove(read_model(name), tokens=12, tp=tp, most_bytes=192 * MIB)
    assert not differences(proof)
    assert sum("rank" in line.group for line in proof.lines) == (2 * tp if tp > 1 else 0)


def test_ranks_that_do_not_divide_are_refused() -> None:
    with pytest.raises(LayoutError, match="tensor parallelism of 2: 9 query heads do not divide by 2"):
        prove(read_model("smollm2-135m"), tokens=4, tp=2, most_bytes=1024 * MIB)
    # Eight heads are what is left of 64 after the reduction, and 64 divide by 16.
    with pytest.raises(LayoutError, match=r"reduced to fit here .* itself divides: fewer ranks"):
        prove(read_model("llama-3.1-70b"), tokens=2, tp=16, most_bytes=300 * MIB)
    with pytest.raises(UnsupportedModelError, match="ranks of an encoder-decoder"):
        prove(read_model("flan-t5-small"), tokens=4, tp=2, most_bytes=1024 * MIB)


def test_a_wrong_formula_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A prediction that is off by one byte fails the command."""
    right = room.bytes_by_kind

    def wrong(*args: Any) -> dict[str, tuple[int, int]]:
        return {kind: (layers, count + 1) for kind, (layers, count) in right(*args).items()}

    monkeypatch.setattr(room, "bytes_by_kind", wrong)
    assert dispatch(["prove", "smollm2-135m", "--tokens", "4", "--memory", "64MiB", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert not document["holds"]
    assert [line["difference"] for line in document["counts"] if line["name"].startswith("full")] == [-1]


def test_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["prove", "smollm2-135m", "--tokens", "8", "--memory", "64MiB"]) == 0
    page = capsys.readouterr().out
    assert "134,515,008" in page and "ran reduced" in page and "counts are equal." in page
    assert max(map(len, page.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--tokens 1", "2 or more"),
        ("--weights int4", "fp32 or bf16"),
        ("--kv nonsense", "unknown KV format"),
        ("--tp 0", "--tp"),
    ],
)
def test_bad_input_is_one_line(words: str, message: str) -> None:
    with pytest.raises(HeadcountError, match=message):
        dispatch(["prove", "smollm2-135m", *words.split()])
