"""GPT-BigCode (SantaCoder, StarCoder 1): GPT-2 with one key/value head for all queries when ``multi_query``.

The fused matrix holds, for each key/value head, its G query heads, then the key, then the value; (outputs, inputs), as usual.
Source: Ben Allal et al. 2023 (SantaCoder); Li et al. 2023 (StarCoder).
"""

from __future__ import annotations

from headcount.spec.model import ModelSpec
from headcount.transformer.families import gpt2
from headcount.transformer.families.decoder import Decoder
from headcount.transformer.families.style import build_decoder

MODEL_TYPES = ("gpt_bigcode",)
NAMES = """
embedding.weight                        transformer.wte.weight
positions.weight                        transformer.wpe.weight
layers.{i}.norms.mixer.weight           transformer.h.{i}.ln_1.weight
layers.{i}.norms.mixer.bias             transformer.h.{i}.ln_1.bias
layers.{i}.mixer.query.weight           transformer.h.{i}.attn.c_attn.weight    heads 0:G of G+2 by H
layers.{i}.mixer.query.bias             transformer.h.{i}.attn.c_attn.bias      heads 0:G of G+2 by H
layers.{i}.mixer.key.weight             transformer.h.{i}.attn.c_attn.weight    heads G:G+1 of G+2 by H
layers.{i}.mixer.key.bias               transformer.h.{i}.attn.c_attn.bias      heads G:G+1 of G+2 by H
layers.{i}.mixer.value.weight           transformer.h.{i}.attn.c_attn.weight    heads G+1:G+2 of G+2 by H
layers.{i}.mixer.value.bias             transformer.h.{i}.attn.c_attn.bias      heads G+1:G+2 of G+2 by H
layers.{i}.mixer.output.weight          transformer.h.{i}.attn.c_proj.weight
layers.{i}.mixer.output.bias            transformer.h.{i}.attn.c_proj.bias
layers.{i}.norms.feed_forward.weight    transformer.h.{i}.ln_2.weight
layers.{i}.norms.feed_forward.bias      transformer.h.{i}.ln_2.bias
layers.{i}.feed_forward.up.weight       transformer.h.{i}.mlp.c_fc.weight
layers.{i}.feed_forward.up.bias         transformer.h.{i}.mlp.c_fc.bias
layers.{i}.feed_forward.down.weight     transformer.h.{i}.mlp.c_proj.weight
layers.{i}.feed_forward.down.bias       transformer.h.{i}.mlp.c_proj.bias
norm.weight                             transformer.ln_f.weight
norm.bias                               transformer.ln_f.bias
head.weight                             lm_head.weight
"""


def build(spec: ModelSpec) -> Decoder:
    """The network, parameters not yet loaded."""
    style = gpt2.style(spec, default_activation="gelu_pytorch_tanh")
    return build_decoder(spec, style, positions=spec.max_positions)
