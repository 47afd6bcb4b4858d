"""DeepSeek-V2 and V3 (and Kimi K2): latent attention, and mixtures whose choice is limited to the best groups of experts.

    deepseek_v2   softmax scores; with groups, those of the highest single score are kept
    deepseek_v3   sigmoid scores, renormalised; a bias that balances the load counts for the choice alone; groups are ranked
                  by the sum of their two best. Kimi K2 is the same graph with one group

A config that stretches rotary positions by yarn also sharpens the scores: their scale is multiplied by the square of
0.1 m ln f + 1, m = ``mscale_all_dim``. Multi-token-prediction layers behind the last are not part of the model.
Sources: DeepSeek-V2 report 2024; DeepSeek-V3 report 2024.
"""

from __future__ import annotations

import math
from typing import Any

from torch.nn import Module

from headcount.errors import UnsupportedModelError
from headcount.spec.attention import LatentAttention
from headcount.spec.model import ModelSpec
from headcount.transformer.attention.latent import LatentHeads
from headcount.transformer.families.decoder import Decoder
from headcount.transformer.families.experts import feed_forward, refuse_other
from headcount.transformer.families.latent_attention import LatentSelfAttention
from headcount.transformer.families.rotary import read_rotary
from headcount.transformer.families.settings import Settings
from headcount.transformer.families.style import Style, activation_of, build_decoder
from headcount.transformer.layers import NormShape
from headcount.transformer.ops.experts import Groups

MODEL_TYPES = ("deepseek_v2", "deepseek_v3", "kimi_k2")
NAMES = """
embedding.weight                             model.embed_tokens.weight
layers.{i}.norms.mixer.weight                model.layers.{i}.input_layernorm.weight
layers.{i}.mixer.query_up.weight             model.layers.{i}.self_attn.q_proj.weight
layers.{i}.mixer.query_up.weight             model.layers.{i}.self_attn.q_b_proj.weight
layers.{i}.mixer.query_down.weight           model.layers.{i}.self_attn.q_a_proj.weight
layers.{i}.mixer.query_down.bias             model.layers.{i}.self_attn.q_a_proj.bias
layers.{i}.mixer.query_norm.weight           model.layers.{i}.self_attn.q_a_layernorm.weight
layers.{i}.mixer.down.weight                 model.layers.{i}.self_attn.kv_a_proj_with_mqa.weight
layers.{i}.mixer.down.bias                   model.layers.{i}.self_attn.kv_a_proj_with_mqa.bias
layers.{i}.mixer.latent_norm.weight          model.layers.{i}.self_attn.kv_a_layernorm.weight
layers.{i}.mixer.key_up                      model.layers.{i}.self_attn.kv_b_proj.weight    reshape N H+W r; rows 0:H
layers.{i}.mixer.value_up                    model.layers.{i}.self_attn.kv_b_proj.weight    reshape N H+W r; rows H:H+W
layers.{i}.mixer.output.weight               model.layers.{i}.self_attn.o_proj.weight
layers.{i}.mixer.output.bias                 model.layers.{i}.self_attn.o_proj.bias
layers.{i}.norms.feed_forward.weight         model.layers.{i}.post_attention_layernorm.weight
layers.{i}.feed_forward.gate.weight          model.layers.{i}.mlp.gate_proj.weight
layers.{i}.feed_forward.gate.bias            model.layers.{i}.mlp.gate_proj.bias
layers.{i}.feed_forward.up.weight            model.layers.{i}.mlp.up_proj.weight
layers.{i}.feed_forward.up.bias              model.layers.{i}.mlp.up_proj.bias
layers.{i}.feed_forward.down.weight          model.layers.{i}.mlp.down_proj.weight
layers.{i}.feed_forward.down.bias            model.layers.{i}.mlp.down_proj.bias
layers.{i}.feed_forward.router.weight        model.layers.{i}.mlp.gate.weight
layers.{i}.feed_forward.router.correction    model.layers.{i}.mlp.gate.e_score_correction_bias
layers.{i}.feed_forward.gate                 model.layers.{i}.mlp.experts.{e}.gate_proj.weight    expert {e}
layers.{i}.feed_forward.up                   model.layers.{i}.mlp.experts.{e}.up_proj.weight      expert {e}
layers.{i}.feed_forward.down                 model.layers.{i}.mlp.experts.{e}.down_proj.weight    expert {e}
layers.{i}.feed_forward.shared.gate.weight   model.layers.{i}.mlp.shared_experts.gate_proj.weight
layers.{i}.feed_forward.shared.gate.bias     model.layers.{i}.mlp.shared_experts.gate_proj.bias
layers.{i}.feed_forward.shared.up.weight     model.layers.{i}.mlp.shared_experts.up_proj.weight
layers.{i}.feed_forward.shared.up.bias       model.layers.{i}.mlp.shared_experts.up_proj.bias
layers.{i}.feed_forward.shared.down.weight   model.layers.{i}.mlp.shared_experts.down_proj.weight
layers.{i}.feed_forward.shared.down.bias     model.layers.{i}.mlp.shared_experts.down_proj.bias
norm.weight                                  model.norm.weight
head.weight                                  lm_head.weight
"""
# The multi-token-prediction layers of the released files: V3 and Kimi K2 have 61 layers of their own.
IGNORED = (r"model\.layers\.61\..*",)


def build(spec: ModelSpec) -> Decoder:
    """The network, parameters not yet loaded; UnsupportedModelError for routing or attention it does not know."""
    settings = Settings(spec)
    second = spec.family == "deepseek_v2"
    routing = _second(settings) if second else _third(settings)
    base = Style(
        norm=NormShape(eps=settings.number("rms_norm_eps", default=1e-6)),
        activation=activation_of(settings, "hidden_act", default="silu"),
        ffn_bias=second and settings.flag("mlp_bias"),
        rotaries=(("all", read_rotary(settings, _latent(spec, 0).qk_rope_head_dim)),),
    )
    style = base.replace(
        mixer=lambda layer, i: _attention(spec, settings, i),
        feed_forward=lambda layer, i: feed_forward(spec, base, layer, routing, shared_bias=base.ffn_bias),
    )
    return build_decoder(spec, style)


def _latent(spec: ModelSpec, index: int) -> LatentAttention:
    mixer = spec.layers[index].mixers[0]
    if not isinstance(mixer, LatentAttention) or mixer.index_head_dim:
        what = (
            "a sparse-attention indexer" if isinstance(mixer, LatentAttention) else f"{mixer.kind} attention"
        )
        raise UnsupportedModelError(f"the transformer does not run {spec.family!r} with {what}")
    return mixer


def _attention(spec: ModelSpec, settings: Settings, index: int) -> Module:
    mixer = _latent(spec, index)
    interleaved = spec.family != "deepseek_v3" or settings.flag("rope_interleave", default=True)
    shape = LatentHeads(
        width=spec.hidden_size,
        heads=mixer.num_attention_heads,
        latent=mixer.kv_lora_rank,
        plain_width=mixer.qk_nope_head_dim,
        rotary_width=mixer.qk_rope_head_dim,
        value_width=mixer.v_head_dim,
        query_latent=_query_latent(settings),
        rotary_layout="interleaved" if interleaved else "half",
        kernel="fused",
        bias=settings.flag("attention_bias"),
        scale=score_scale(settings, mixer.qk_nope_head_dim + mixer.qk_rope_head_dim),
    )
    return LatentSelfAttention(shape, turn="all")


def _query_latent(settings: Settings) -> int | None:
    """``q_lora_rank``: null means none, silence means the class default."""
    if "q_lora_rank" in settings.config:
        return settings.integer("q_lora_rank", default=0) or None
    return 1536


def score_scale(settings: Settings, head_width: int) -> float:
    """(0.1 m ln f + 1)^2 / sqrt(H + R), the factor being 1 unless positions are stretched and m is stated."""
    scale = 1 / math.sqrt(head_width)
    inner = Settings(settings.spec)
    inner.config = settings.value("rope_parameters") or settings.value("rope_scaling") or {}
    multiplier, factor = (
        inner.number("mscale_all_dim", default=0.0),
        inner.number("factor", default=1.0, above=0.0),
    )
    if inner.text("rope_type", "type", default="default") == "default" or not multiplier or factor <= 1:
        return scale
    sharper = 0.1 * multiplier * math.log(factor) + 1.0
    return scale * sharper * sharper


def _second(settings: Settings) -> dict[str, Any]:
    """V2's routing. The reference never renormalises, the paper's code does and then leaves the factor out: refused."""
    refuse_other(settings, "scoring_func", "softmax")
    refuse_other(settings, "topk_method", "greedy", "group_limited_greedy")
    refuse_other(settings, "norm_topk_prob", False)
    grouped = settings.text("topk_method", default="greedy") == "group_limited_greedy"
    return {
        "renormalize": False,
        "scale": settings.number("routed_scaling_factor", default=1.0),
        "groups": Groups(settings.integer("n_group", least=1), settings.integer("topk_group", least=1), 1)
        if grouped
        else None,
        "wide": True,
    }


def _third(settings: Settings) -> dict[str, Any]:
    """V3's routing."""
    refuse_other(settings, "scoring_func", "sigmoid")
    refuse_other(settings, "topk_method", "noaux_tc")
    return {
        "scoring": "sigmoid",
        "renormalize": settings.flag("norm_topk_prob", default=True),
        "scale": settings.number("routed_scaling_factor", default=2.5),
        "groups": Groups(
            settings.integer("n_group", default=8, least=1),
            settings.integer("topk_group", default=4, least=1),
        ),
        "correction": True,
        "wide": True,
    }
