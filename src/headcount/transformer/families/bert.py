"""BERT, RoBERTa and DistilBERT: encoders whose vectors are used as they are, or pooled into one per text.

Norms after each sum, learned positions, biases everywhere, GELU; BERT and RoBERTa add token types and have a pooler.
RoBERTa's position 0 has row ``pad_token_id + 1``, and its positions count real tokens only.
Sources: Devlin et al. 2019; Liu et al. 2019; Sanh et al. 2019.
"""

from __future__ import annotations

from headcount.errors import UnsupportedModelError
from headcount.spec.model import ModelSpec
from headcount.transformer.families.column import ColumnStyle, column_layer
from headcount.transformer.families.encoder import Encoder, EncoderShape
from headcount.transformer.families.settings import Settings
from headcount.transformer.families.stack import StackShape
from headcount.transformer.families.style import activation_of
from headcount.transformer.layers import NormShape

MODEL_TYPES = ("bert", "distilbert", "roberta")
NAMES = """
embedding.weight                        embeddings.word_embeddings.weight
positions.weight                        embeddings.position_embeddings.weight
token_types.weight                      embeddings.token_type_embeddings.weight
embedding_norm.weight                   embeddings.LayerNorm.weight
embedding_norm.bias                     embeddings.LayerNorm.bias
layers.{i}.mixer.query.weight           encoder.layer.{i}.attention.self.query.weight
layers.{i}.mixer.query.weight           transformer.layer.{i}.attention.q_lin.weight
layers.{i}.mixer.query.bias             encoder.layer.{i}.attention.self.query.bias
layers.{i}.mixer.query.bias             transformer.layer.{i}.attention.q_lin.bias
layers.{i}.mixer.key.weight             encoder.layer.{i}.attention.self.key.weight
layers.{i}.mixer.key.weight             transformer.layer.{i}.attention.k_lin.weight
layers.{i}.mixer.key.bias               encoder.layer.{i}.attention.self.key.bias
layers.{i}.mixer.key.bias               transformer.layer.{i}.attention.k_lin.bias
layers.{i}.mixer.value.weight           encoder.layer.{i}.attention.self.value.weight
layers.{i}.mixer.value.weight           transformer.layer.{i}.attention.v_lin.weight
layers.{i}.mixer.value.bias             encoder.layer.{i}.attention.self.value.bias
layers.{i}.mixer.value.bias             transformer.layer.{i}.attention.v_lin.bias
layers.{i}.mixer.output.weight          encoder.layer.{i}.attention.output.dense.weight
layers.{i}.mixer.output.weight          transformer.layer.{i}.attention.out_lin.weight
layers.{i}.mixer.output.bias            encoder.layer.{i}.attention.output.dense.bias
layers.{i}.mixer.output.bias            transformer.layer.{i}.attention.out_lin.bias
layers.{i}.norms.mixer.weight           encoder.layer.{i}.attention.output.LayerNorm.weight
layers.{i}.norms.mixer.weight           transformer.layer.{i}.sa_layer_norm.weight
layers.{i}.norms.mixer.bias             encoder.layer.{i}.attention.output.LayerNorm.bias
layers.{i}.norms.mixer.bias             transformer.layer.{i}.sa_layer_norm.bias
layers.{i}.feed_forward.up.weight       encoder.layer.{i}.intermediate.dense.weight
layers.{i}.feed_forward.up.weight       transformer.layer.{i}.ffn.lin1.weight
layers.{i}.feed_forward.up.bias         encoder.layer.{i}.intermediate.dense.bias
layers.{i}.feed_forward.up.bias         transformer.layer.{i}.ffn.lin1.bias
layers.{i}.feed_forward.down.weight     encoder.layer.{i}.output.dense.weight
layers.{i}.feed_forward.down.weight     transformer.layer.{i}.ffn.lin2.weight
layers.{i}.feed_forward.down.bias       encoder.layer.{i}.output.dense.bias
layers.{i}.feed_forward.down.bias       transformer.layer.{i}.ffn.lin2.bias
layers.{i}.norms.feed_forward.weight    encoder.layer.{i}.output.LayerNorm.weight
layers.{i}.norms.feed_forward.weight    transformer.layer.{i}.output_layer_norm.weight
layers.{i}.norms.feed_forward.bias      encoder.layer.{i}.output.LayerNorm.bias
layers.{i}.norms.feed_forward.bias      transformer.layer.{i}.output_layer_norm.bias
pooler.weight                           pooler.dense.weight
pooler.bias                             pooler.dense.bias
"""
IGNORED = (r"embeddings\.position_ids",)


def build(spec: ModelSpec) -> Encoder:
    """The network, parameters not yet loaded."""
    settings, distilled = Settings(spec), spec.family == "distilbert"
    assert spec.encoder is not None
    norm = NormShape(
        kind="layer_norm", eps=1e-12 if distilled else settings.number("layer_norm_eps", default=1e-12)
    )
    activation = activation_of(settings, *(("activation",) if distilled else ("hidden_act",)), default="gelu")
    style = ColumnStyle(norm=norm, feed_forward=activation)
    offset = settings.integer("pad_token_id", default=1) + 1 if spec.family == "roberta" else 0
    if not offset < spec.max_positions:
        raise UnsupportedModelError(
            f"{spec.max_positions} positions leave none behind padding row {offset - 1}"
        )
    shape = EncoderShape(
        vocabulary=spec.vocab_size,
        stack=StackShape(
            width=spec.hidden_size,
            norm=norm,
            positions="learned",
            rows=spec.max_positions,
            offset=offset,
            embedding_norm=True,
        ),
        token_types=0 if distilled else settings.integer("type_vocab_size", default=2),
        pooler=not distilled,
        skips_padding=spec.family == "roberta",
    )
    return Encoder(
        shape, [column_layer(spec.hidden_size, style, layer, causal=False) for layer in spec.encoder.layers]
    )
