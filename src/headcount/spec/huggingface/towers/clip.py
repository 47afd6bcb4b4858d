"""CLIP, SigLIP, SigLIP 2 and Pixtral encoders, and the projectors that language models put behind them.

CLIP       class token W + patches + (1 + n) W positions + 2 norms + blocks                  (arXiv 2103.00020)
SigLIP     patches + n W positions + norm + blocks (+ attention-pooling head)                (arXiv 2303.15343)
Pixtral    patches + norm + gated blocks without biases; rotary positions                    (arXiv 2410.07073)

Phi-3-vision keeps no sizes in its config: its code builds CLIP ViT-L/14-336 and a projector of two matrices whose input
is four neighbouring patches.

Sources: the model classes of transformers 5.24.0; Phi-3-vision: parameter total of the published checkpoint.
"""

from __future__ import annotations

from headcount.spec.huggingface.keys import Keys
from headcount.spec.huggingface.towers.parts import (
    PROJECTOR_PATH,
    Blocks,
    Wrapper,
    convolution,
    dense,
    feature_layers,
    grid,
    repeated,
    stack,
    tower_norm,
    two_layers,
    vision_tower,
)
from headcount.spec.weight import COLUMN, PROJECTOR, ROW, VISION, matrix, norm, vector

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headcount.spec.model import TowerSpec
    from headcount.spec.weight import Weight

    Encoder = tuple[Blocks, tuple[Weight, ...]]

_CLIP_L_336 = {
    "hidden_size": 1024,
    "image_size": 336,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_channels": 3,
    "num_hidden_layers": 24,
    "patch_size": 14,
}


def _blocks(keys: Keys) -> Blocks:
    return Blocks(
        width=keys.integer("hidden_size"),
        inner=keys.integer("intermediate_size"),
        heads=keys.integer("num_attention_heads"),
        layers=keys.layer_count(),
    )


def clip(keys: Keys, path: str) -> Encoder:
    """A CLIP image encoder."""
    shape = _blocks(keys)
    patch, width = keys.integer("patch_size"), shape.width
    return shape, (
        vector(path + "embeddings.class_embedding", VISION, width),
        *convolution(
            path + "embeddings.patch_embedding",
            VISION,
            width,
            keys.integer("num_channels"),
            patch,
            patch,
            bias=False,
        ),
        vector(path + "embeddings.position_embedding", VISION, grid(keys) + 1, width),
        *tower_norm(path + "pre_layrnorm", width, VISION),
        *stack(path + "encoder.layers.{i}.", shape),
        *tower_norm(path + "post_layernorm", width, VISION),
    )


def siglip(keys: Keys, path: str) -> Encoder:
    """A SigLIP image encoder; ``vision_use_head`` (true unless stated, where the class has it) adds the pooling head."""
    shape = _blocks(keys)
    patch, width, channels = keys.integer("patch_size"), shape.width, keys.integer("num_channels")
    if keys.model_type == "siglip2_vision_model":
        # Patches of any aspect ratio come in flat: a linear layer, and a table of num_patches positions.
        patches, count = (
            matrix(
                path + "embeddings.patch_embedding", VISION, (width, channels * patch**2), COLUMN, bias=True
            ),
            keys.integer("num_patches"),
        )
    else:
        patches, count = (
            convolution(path + "embeddings.patch_embedding", VISION, width, channels, patch, patch),
            grid(keys),
        )
    return shape, (
        *patches,
        vector(path + "embeddings.position_embedding", VISION, count, width),
        *stack(path + "encoder.layers.{i}.", shape),
        *tower_norm(path + "post_layernorm", width, VISION),
        *(_pooling_head(path + "head.", shape) if keys.flag("vision_use_head") else ()),
    )


def _pooling_head(path: str, shape: Blocks) -> tuple[Weight, ...]:
    width = shape.width
    return (
        vector(path + "probe", VISION, width),
        vector(path + "attention.in_proj_weight", VISION, 3 * width, width),
        vector(path + "attention.in_proj_bias", VISION, 3 * width),
        *matrix(path + "attention.out_proj", VISION, (width, width), ROW, bias=True),
        *tower_norm(path + "layernorm", width, VISION),
        *matrix(path + "mlp.fc1", VISION, (shape.inner, width), COLUMN, bias=True),
        *matrix(path + "mlp.fc2", VISION, (width, shape.inner), ROW, bias=True),
    )


def pixtral(keys: Keys, path: str) -> Encoder:
    """A Pixtral image encoder."""
    shape = _blocks(keys).replace(
        attention=("attention.q_proj", "attention.k_proj", "attention.v_proj", "attention.o_proj"),
        biases=(False,) * 4,
        feed_forward=("feed_forward.gate_proj", "feed_forward.up_proj", "feed_forward.down_proj"),
        feed_forward_bias=False,
        norms=("attention_norm", "ffn_norm"),
        norm_bias=False,
    )
    patch = keys.integer("patch_size")
    return shape, (
        *convolution(
            path + "patch_conv", VISION, shape.width, keys.integer("num_channels"), patch, patch, bias=False
        ),
        *tower_norm(path + "ln_pre", shape.width, VISION, bias=False),
        *stack(path + "transformer.layers.{i}.", shape),
    )


_ENCODERS: dict[str, Callable[[Keys, str], Encoder]] = {
    "clip_vision_model": clip,
    "siglip_vision_model": siglip,
    "siglip2_vision_model": siglip,
    "pixtral": pixtral,
    "idefics2_vision": siglip,
    "idefics3_vision": siglip,
    "smolvlm_vision": siglip,
}
# What an auto-typed wrapper may hold; the encoders of Idefics have a fixed class.
_AUTO = ("clip_vision_model", "siglip_vision_model", "siglip2_vision_model", "pixtral")


def _with(
    project: Callable[[Wrapper, Keys, int], tuple[Weight, ...]],
    *,
    path: str = "vision_tower.",
    kinds: tuple[str, ...] = _AUTO,
) -> Callable[[Wrapper], tuple[TowerSpec, ...]]:
    """Return the builder of a wrapper: its encoder at ``path`` and the projector that ``project`` gives."""

    def build(wrapper: Wrapper) -> tuple[TowerSpec, ...]:
        if not wrapper.states("vision_config"):
            return ()
        keys = wrapper.tower("vision_config", kinds=kinds)
        shape, weights = _ENCODERS[keys.model_type](keys, path)
        return (vision_tower(keys, shape, (*weights, *project(wrapper, keys, shape.width))),)

    return build


def _llava(wrapper: Wrapper, keys: Keys, width: int) -> tuple[Weight, ...]:
    bias = wrapper.keys.flag("multimodal_projector_bias", default=True)
    hidden = wrapper.hidden
    newline = wrapper.model_type.startswith(("llava_next", "llava_onevision"))
    return (
        *two_layers(PROJECTOR_PATH, (width * feature_layers(wrapper), hidden, hidden), bias=bias),
        *((vector("image_newline", PROJECTOR, hidden),) if newline else ()),
    )


def _vip_llava(wrapper: Wrapper, keys: Keys, width: int) -> tuple[Weight, ...]:
    inside = width * feature_layers(wrapper)
    return (
        *tower_norm(PROJECTOR_PATH + "projector_layernorm", inside, PROJECTOR),
        *two_layers(PROJECTOR_PATH, (inside, wrapper.hidden, wrapper.hidden)),
    )


def _mistral(wrapper: Wrapper, keys: Keys, width: int) -> tuple[Weight, ...]:
    merged = width * wrapper.keys.integer("spatial_merge_size") ** 2
    # LightOnOCR's projector is Mistral's under another name, without the choice of a bias and of several layers.
    alone = wrapper.model_type == "lighton_ocr"
    path = "vision_projection." if alone else PROJECTOR_PATH
    layers = 1 if alone else feature_layers(wrapper)
    bias = not alone and wrapper.keys.flag("multimodal_projector_bias")
    return (
        *tower_norm(path + "norm", width, PROJECTOR, bias=False),
        *dense(path + "patch_merger.merging_layer", width, merged, bias=False),
        *two_layers(path, (width * layers, wrapper.hidden, wrapper.hidden), bias=bias),
    )


def _gemma(wrapper: Wrapper, keys: Keys, width: int) -> tuple[Weight, ...]:
    return (
        vector(PROJECTOR_PATH + "mm_input_projection_weight", PROJECTOR, width, wrapper.hidden),
        *tower_norm(PROJECTOR_PATH + "mm_soft_emb_norm", width, PROJECTOR, bias=False),
    )


def _pali_gemma(wrapper: Wrapper, keys: Keys, width: int) -> tuple[Weight, ...]:
    out = wrapper.keys.integer("projection_dim", default=2048)
    return dense(PROJECTOR_PATH + "linear", out, width, shard=COLUMN)


def _shuffled(wrapper: Wrapper, keys: Keys, width: int) -> tuple[Weight, ...]:
    """Cohere: neighbouring patches side by side, then a gated pair of matrices; Aya has a norm before it."""
    inside = width * wrapper.keys.integer("downsample_factor", default=2) ** 2
    between = wrapper.keys.integer("alignment_intermediate_size", default=wrapper.hidden)
    before = tower_norm(PROJECTOR_PATH + "layernorm", inside, PROJECTOR)
    return (
        *(before if wrapper.model_type == "aya_vision" else ()),
        *dense(PROJECTOR_PATH + "linear_1", between, inside, shard=COLUMN),
        *dense(PROJECTOR_PATH + "linear_2", wrapper.hidden, between // 2, shard=ROW),
    )


def _liquid(wrapper: Wrapper, keys: Keys, width: int) -> tuple[Weight, ...]:
    inside = width * wrapper.keys.integer("downsample_factor") ** 2
    bias = wrapper.keys.flag("projector_bias")
    sizes = (inside, wrapper.keys.integer("projector_hidden_size"), wrapper.hidden)
    normed = wrapper.keys.flag("projector_use_layernorm")
    return (
        *(tower_norm(PROJECTOR_PATH + "layer_norm", inside, PROJECTOR) if normed else ()),
        *two_layers(PROJECTOR_PATH, sizes, bias=bias),
    )


def _aligner(wrapper: Wrapper, keys: Keys, width: int) -> tuple[Weight, ...]:
    return two_layers("aligner.", (width, wrapper.hidden, wrapper.hidden), names=("linear1", "linear2"))


def _connector(wrapper: Wrapper, keys: Keys, width: int) -> tuple[Weight, ...]:
    inside = width * wrapper.keys.integer("scale_factor") ** 2
    return dense("connector.modality_projection.proj", wrapper.hidden, inside, bias=False)


def _perceiver(wrapper: Wrapper, keys: Keys, width: int) -> tuple[Weight, ...]:
    """Idefics2: a gated layer, then ``depth`` blocks in which a few latents attend to the patches."""
    hidden = wrapper.hidden
    text = Keys(wrapper.text, model_type="mistral", defaults={"intermediate_size": 14336}, attribute_map={})
    inner = text.integer("intermediate_size")
    own = wrapper.config.get("perceiver_config")
    perceiver = wrapper.encoder_keys("idefics2_perceiver", own if isinstance(own, dict) else {})
    q = perceiver.integer("resampler_n_heads") * perceiver.integer("resampler_head_dim")
    kv = perceiver.integer("num_key_value_heads") * perceiver.integer("resampler_head_dim")
    path = "connector.perceiver_resampler."
    block = path + "layers.{i}."
    blocks = (
        *dense(block + "self_attn.q_proj", q, hidden, bias=False),
        *dense(block + "self_attn.k_proj", kv, hidden, bias=False),
        *dense(block + "self_attn.v_proj", kv, hidden, bias=False),
        *dense(block + "self_attn.o_proj", hidden, q, bias=False),
        *_gated(block + "mlp.", hidden, 4 * hidden, hidden),
        *norm(block + "input_latents_norm", hidden),
        *norm(block + "input_context_norm", hidden),
        *norm(block + "post_attention_layernorm", hidden),
    )
    return (
        *_gated("connector.modality_projection.", width, inner, hidden),
        vector(path + "latents", PROJECTOR, perceiver.integer("resampler_n_latents"), hidden),
        *repeated(blocks, perceiver.layer_count("resampler_depth"), PROJECTOR),
        *tower_norm(path + "norm", hidden, PROJECTOR, bias=False),
    )


def _gated(path: str, inside: int, between: int, out: int) -> tuple[Weight, ...]:
    return (
        *dense(path + "gate_proj", between, inside, shard=COLUMN, bias=False),
        *dense(path + "up_proj", between, inside, shard=COLUMN, bias=False),
        *dense(path + "down_proj", out, between, shard=ROW, bias=False),
    )


def _phi3(wrapper: Wrapper) -> tuple[TowerSpec, ...]:
    keys = Keys(_CLIP_L_336, model_type="clip_vision_model", defaults={}, attribute_map={})
    path = "model.vision_embed_tokens."
    shape, weights = clip(keys, path + "img_processor.vision_model.")
    merged = 4 * shape.width
    project = (
        *two_layers(path + "img_projection.", (merged, wrapper.hidden, wrapper.hidden), names=("0", "2")),
        vector(path + "glb_GN", PROJECTOR, merged),
        vector(path + "sub_GN", PROJECTOR, merged),
    )
    return (vision_tower(keys, shape, (*weights, *project)),)


BUILDERS: dict[str, Callable[[Wrapper], tuple[TowerSpec, ...]]] = {
    "llava": _with(_llava),
    "llava_next": _with(_llava),
    "llava_next_video": _with(_llava),
    "llava_onevision": _with(_llava),
    "vipllava": _with(_vip_llava),
    "mistral3": _with(_mistral),
    "lighton_ocr": _with(_mistral, path="vision_encoder."),
    "gemma3": _with(_gemma),
    "shieldgemma2": _with(_gemma),
    "paligemma": _with(_pali_gemma),
    "cohere2_vision": _with(_shuffled),
    "aya_vision": _with(_shuffled),
    "lfm2_vl": _with(_liquid),
    "deepseek_vl": _with(_aligner, path="vision_model."),
    "idefics2": _with(_perceiver, path="vision_model.", kinds=()),
    "idefics3": _with(_connector, path="vision_model.", kinds=()),
    "smolvlm": _with(_connector, path="vision_model.", kinds=()),
    "phi3_v": _phi3,
}
