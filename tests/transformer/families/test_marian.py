"""Marian, BART, mBART and Pegasus against transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from two_stacks import check

from headcount.errors import OperandError, UnsupportedModelError, UsageError
from headcount.spec.huggingface.config import spec_from_config
from headcount.transformer.families.registry import build_network
from headcount.transformer.generation.translate import generate
from headcount.transformer.kv_cache.conversation import Conversation
from headcount.transformer.weights.model import LoadedModel

pytestmark = [pytest.mark.reference]
SMALL = {
    "vocab_size": 97,
    "d_model": 48,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 70,
    "decoder_ffn_dim": 50,
    "max_position_embeddings": 40,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
    "forced_eos_token_id": None,
}
SINUSOIDS = 2 * 40 * 48
CASES = {
    "marian as released": (
        "MarianMTModel",
        {"activation_function": "swish", "scale_embedding": True},
        SINUSOIDS,
    ),
    "marian, class defaults": ("MarianMTModel", {}, SINUSOIDS),
    "marian, two vocabularies": (
        "MarianMTModel",
        {"decoder_vocab_size": 83, "share_encoder_decoder_embeddings": False},
        SINUSOIDS,
    ),
    "bart": ("BartForConditionalGeneration", {}, 0),
    "bart, relu, scaled": (
        "BartForConditionalGeneration",
        {"activation_function": "relu", "scale_embedding": True},
        0,
    ),
    # The class keeps a shared table that no forward reads.
    "bart, nothing tied": ("BartForConditionalGeneration", {"tie_word_embeddings": False}, 97 * 48),
    "mbart": ("MBartForConditionalGeneration", {"scale_embedding": True}, 0),
    "pegasus": ("PegasusForConditionalGeneration", {"scale_embedding": True}, SINUSOIDS),
}


@pytest.mark.parametrize("case", CASES)
def test_parity(case: str, tmp_path: Any) -> None:
    import transformers

    name, switches, computed = CASES[case]
    torch.manual_seed(0)
    config = getattr(transformers, name.partition("For")[0].partition("MT")[0] + "Config")(
        **SMALL, **switches
    )
    check(getattr(transformers, name)(config), tmp_path, computed=computed)


def small(**keys: Any) -> LoadedModel:
    spec = spec_from_config({"model_type": "marian", **SMALL, **keys}, name="x", source="test")
    return LoadedModel(spec, build_network(spec, seed=0), "test")


@pytest.mark.parametrize("key", ["normalize_before", "normalize_embedding", "add_final_layer_norm"])
def test_other_wiring_is_refused(key: str) -> None:
    with pytest.raises(UnsupportedModelError, match=key):
        small(**{key: True})
    small(**{key: False})


def test_source_is_written_once() -> None:
    model = small()
    conversation = Conversation(model.spec)
    with pytest.raises(UsageError, match="41 tokens; 1 to 40"):
        model.network.remember(conversation, torch.zeros(1, 41, dtype=torch.long))
    model.network.remember(conversation, torch.ones(1, 40, dtype=torch.long))
    with pytest.raises(UsageError, match="another source"):
        model.network.remember(conversation, torch.ones(1, 3, dtype=torch.long))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"source_ids": []}, "a source of 0 tokens"),
        ({"source_ids": [5, 97]}, "token 97"),
        ({"source_ids": [5], "start": 97}, "token 97"),
        ({"source_ids": [5], "start": True}, "decoder_start_token_id"),
    ],
)
def test_translate_refuses(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        generate(small(), limit=3, **arguments)


def test_positions_end() -> None:
    with pytest.raises(OperandError, match="position 40"):
        generate(small(), [5, 6], limit=60, end=1, forbidden=[1])
