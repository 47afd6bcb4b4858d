"""Encoder-only models (BERT, RoBERTa, DistilBERT): counted for the transformer, which runs them; nothing plans them.

    tokens V D + positions P D + types A D + norm 2 D
    + L (4 D (D + 1) + 2 D F + F + D + 4 D)                  attention, feed-forward, two norms
    + D (D + 1)                                              the pooler, where the class has one

An encoder keeps nothing between requests: its spec has no decoder layers and an ``EncoderSpec``. ``fit`` and ``book`` go
through ``registry.builder``, which refuses these types by name.

Sources: the model classes of transformers 5.24.0 (tests/transformer/families/test_bert.py).
"""

from __future__ import annotations

import os

from headcount.errors import UnsupportedModelError
from headcount.record import Record
from headcount.spec.attention import FullAttention
from headcount.spec.huggingface.classic import projections
from headcount.spec.huggingface.keys import Keys
from headcount.spec.huggingface.parts import HeadShape, embedding, norms, plain, positions
from headcount.spec.model import EncoderSpec, FeedForward, LayerSpec, ModelSpec
from headcount.spec.weight import ATTENTION, COLUMN, OTHER, matrix, norm

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Blueprint(Record):
    """How one type names its keys and layers, which defaults its class has, and whether it has types and a pooler."""

    defaults: tuple[tuple[str, int], ...]
    aliases: tuple[tuple[str, str], ...] = ()
    layer: str = "encoder.layer.{i}."
    attention: tuple[str, str, str, str] = (
        "attention.self.query",
        "attention.self.key",
        "attention.self.value",
        "attention.output.dense",
    )
    feed_forward: tuple[str, str] = ("intermediate.dense", "output.dense")
    norms: tuple[str, str] = ("attention.output.LayerNorm", "output.LayerNorm")
    pooled: bool = True


_BASE = (
    ("hidden_size", 768),
    ("num_hidden_layers", 12),
    ("num_attention_heads", 12),
    ("intermediate_size", 3072),
    ("max_position_embeddings", 512),
    ("type_vocab_size", 2),
    ("vocab_size", 30522),
)
BLUEPRINTS: dict[str, Blueprint] = {
    "bert": Blueprint(defaults=_BASE),
    "roberta": Blueprint(defaults=(*_BASE, ("vocab_size", 50265))),
    "distilbert": Blueprint(
        defaults=(*_BASE, ("num_hidden_layers", 6)),
        aliases=(
            ("dim", "hidden_size"),
            ("n_layers", "num_hidden_layers"),
            ("n_heads", "num_attention_heads"),
            ("hidden_dim", "intermediate_size"),
        ),
        layer="transformer.layer.{i}.",
        attention=("attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin"),
        feed_forward=("ffn.lin1", "ffn.lin2"),
        norms=("sa_layer_norm", "output_layer_norm"),
        pooled=False,
    ),
}
# The classes that give vectors; the others put a head on them, which is not counted and not run.
_CLASSES = ("BertModel", "DistilBertModel", "RobertaModel")


def read_encoder(folder: str) -> ModelSpec | None:
    """Read ``config.json`` in ``folder``; None when there is none, or it describes no encoder-only model.

    Raises as ``encoder_from_config``.
    """
    from headcount.spec.huggingface.config import read_config_file

    file = os.path.join(folder, "config.json")
    if not os.path.isfile(file):
        return None
    config = read_config_file(file)
    if config.get("model_type") not in list(BLUEPRINTS):  # a value of any type compares, not every one hashes
        return None
    return encoder_from_config(config, name=os.path.basename(os.path.abspath(folder)), source=file)


def encoder_from_config(config: dict[str, Any], *, name: str, source: str) -> ModelSpec:
    """The spec of an encoder-only model.

    Raises UnsupportedModelError for another type, a head, or an encoder used as a decoder; ModelFileError for bad values.
    """
    from headcount.spec.huggingface.config import stored_dtype

    model_type = config.get("model_type")
    if model_type not in BLUEPRINTS:
        raise UnsupportedModelError(
            f"model type {str(model_type)[:40]!r} is no encoder-only type known here: {', '.join(BLUEPRINTS)}"
        )
    _refuse(config)
    blueprint = BLUEPRINTS[model_type]
    keys = Keys(
        config,
        model_type=model_type,
        defaults=dict(blueprint.defaults),
        attribute_map=dict(blueprint.aliases),
    )
    layer = _layer(keys, blueprint)
    encoder = EncoderSpec(
        layers=(layer,) * keys.layer_count(),
        outside=_outside(keys, blueprint),
        max_source_positions=keys.integer("max_position_embeddings"),
    )
    return ModelSpec(
        name=name,
        family=model_type,
        vocab_size=keys.integer("vocab_size"),
        hidden_size=keys.integer("hidden_size"),
        layers=(),
        outside=(),
        tied_embeddings=True,
        max_positions=keys.integer("max_position_embeddings"),
        dtype=stored_dtype(config),
        source=source,
        encoder=encoder,
        config=config,
    )


def _refuse(config: dict[str, Any]) -> None:
    stated = config.get("architectures")
    named = stated[0] if isinstance(stated, list) and stated else _CLASSES[0]
    if named not in _CLASSES:
        raise UnsupportedModelError(
            f"architecture {str(named)[:60]!r} has a head that is not known; known: {', '.join(_CLASSES)}"
        )
    kind = config.get("position_embedding_type")
    if kind not in (None, "absolute"):
        raise UnsupportedModelError(
            f"position_embedding_type {str(kind)[:40]!r} is not known; known: absolute"
        )
    for key in ("is_decoder", "add_cross_attention"):
        if config.get(key):
            raise UnsupportedModelError(f"config key {key}: an encoder used as a decoder is not known")


def _layer(keys: Keys, blueprint: Blueprint) -> LayerSpec:
    hidden, heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    width = keys.integer("intermediate_size")
    d = keys.divided("hidden_size", hidden, heads)
    shape = HeadShape(hidden=hidden, q=heads, kv=heads, d=d, dv=d)
    biases = (True, True, True, True)
    return LayerSpec(
        mixers=(
            FullAttention(num_attention_heads=heads, num_key_value_heads=heads, head_dim=d, v_head_dim=d),
        ),
        feed_forward=FeedForward(width=width, matrices=2),
        weights=(
            *projections(shape, blueprint.layer, blueprint.attention, biases=biases, part=ATTENTION),
            *plain(hidden, width, path=blueprint.layer, names=blueprint.feed_forward),
            *norms(hidden, blueprint.norms, bias=True, path=blueprint.layer),
        ),
    )


def _outside(keys: Keys, blueprint: Blueprint) -> tuple[Any, ...]:
    hidden = keys.integer("hidden_size")
    path = "embeddings."
    types = keys.integer("type_vocab_size", minimum=0) if blueprint.pooled else 0
    return (
        embedding(path + "word_embeddings", keys.integer("vocab_size"), hidden),
        positions(path + "position_embeddings", keys.integer("max_position_embeddings"), hidden),
        *((positions(path + "token_type_embeddings", types, hidden),) if types else ()),
        *norm(path + "LayerNorm", hidden, bias=True),
        *(matrix("pooler.dense", OTHER, (hidden, hidden), COLUMN, bias=True) if blueprint.pooled else ()),
    )
