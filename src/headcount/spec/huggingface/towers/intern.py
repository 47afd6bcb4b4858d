"""InternViT in InternVL (arXiv 2312.14238), in its own and in the converted file format, and Ovis 2's AIMv2 (2411.14402).

InternViT   class token + patches + (1 + n) W positions + blocks with two scales; norms and biases as the config says
projector   norm of 4 W + 4 W x D + D x D                     neighbouring patches are put side by side
Ovis 2      patches + n W positions + gated RMS blocks + a head over a visual vocabulary, whose words have D numbers each

Sources: the model classes of transformers 5.24.0; the original InternVL: parameter total of a published checkpoint.
"""

from __future__ import annotations

from headcount.errors import ModelFileError, UnsupportedModelError
from headcount.spec.huggingface.towers.parts import (
    PROJECTOR_PATH,
    Blocks,
    Wrapper,
    convolution,
    dense,
    grid,
    pair,
    stack,
    tower_norm,
    two_layers,
    vision_tower,
)
from headcount.spec.weight import PROJECTOR, VISION, norm, vector

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headcount.spec.huggingface.keys import Keys
    from headcount.spec.model import TowerSpec
    from headcount.spec.weight import Weight

_NORMS = {"layer_norm": True, "rms_norm": False}


def _embeddings(keys: Keys, path: str, patches: str, width: int) -> tuple[Weight, ...]:
    positions = (
        (vector(path + "position_embedding", VISION, grid(keys) + 1, width),)
        if keys.flag("use_absolute_position_embeddings", default=True)
        else ()
    )
    return (
        vector(path + "class_embedding", VISION, width),
        *((vector(path + "mask_token", VISION, width),) if keys.flag("use_mask_token") else ()),
        *positions,
        *convolution(
            path + patches,
            VISION,
            width,
            keys.integer("num_channels", default=3),
            *pair(keys, "patch_size"),
        ),
    )


def _project(wrapper: Wrapper, path: str, names: tuple[str, str, str], width: int) -> tuple[Weight, ...]:
    ratio = wrapper.keys.value("downsample_ratio")
    ratio = 0.5 if ratio is None else ratio
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0.01 <= ratio <= 1:
        raise ModelFileError(f"config key downsample_ratio must be 0.01 to 1; given {str(ratio)[:40]!r}")
    inside = width * int(1 / ratio) ** 2
    return (
        *tower_norm(path + names[0], inside, PROJECTOR),
        *two_layers(path, (inside, wrapper.hidden, wrapper.hidden), names=names[1:]),
    )


def _internvit(
    keys: Keys, *, names: tuple[str, ...], qkv_bias: bool, qk_norm: bool, norm_type: str
) -> Blocks:
    if norm_type not in _NORMS:
        raise UnsupportedModelError(f"norm_type {norm_type[:40]!r} of an InternViT encoder is not known")
    return Blocks(
        width=keys.integer("hidden_size"),
        inner=keys.integer("intermediate_size"),
        heads=keys.integer("num_attention_heads"),
        layers=keys.layer_count(),
        attention=names,
        biases=(*(qkv_bias,) * (len(names) - 1), True),
        norms=("norm1", "norm2"),
        norm_bias=_NORMS[norm_type],
    )


def _per_block(path: str, width: int, *, qk_norm: bool) -> tuple[Weight, ...]:
    return (
        vector(path + "ls1", VISION, width),
        vector(path + "ls2", VISION, width),
        *((*norm(path + "attn.q_norm", width), *norm(path + "attn.k_norm", width)) if qk_norm else ()),
    )


def internvl(wrapper: Wrapper) -> tuple[TowerSpec, ...]:
    """The converted format (``model_type`` internvl)."""
    if not wrapper.states("vision_config"):
        return ()
    keys = wrapper.tower("vision_config", kinds=("internvl_vision",))
    qk_norm = keys.flag("use_qk_norm")
    names = (
        "attention.q_proj",
        "attention.k_proj",
        "attention.v_proj",
        "attention.projection_layer",
    )
    shape = _internvit(
        keys,
        names=names,
        qkv_bias=keys.flag("attention_bias"),
        qk_norm=qk_norm,
        norm_type=keys.text("norm_type"),
    )
    block = "vision_tower.encoder.layer.{i}."
    last = not keys.flag("use_mean_pooling", default=True)
    weights = (
        *_embeddings(keys, "vision_tower.embeddings.", "patch_embeddings.projection", shape.width),
        *stack(block, shape, extra=_per_block(block, shape.width, qk_norm=qk_norm)),
        *(tower_norm("vision_tower.layernorm", shape.width, VISION) if last else ()),
        *_project(wrapper, PROJECTOR_PATH, ("layer_norm", "linear_1", "linear_2"), shape.width),
    )
    return (vision_tower(keys, shape, weights),)


def internvl_chat(wrapper: Wrapper) -> tuple[TowerSpec, ...]:
    """The original format (``model_type`` internvl_chat, remote code): sizes must be stated."""
    if not wrapper.states("vision_config"):
        return ()
    keys = wrapper.encoder_keys("intern_vit_6b", wrapper.config["vision_config"])
    qk_norm = keys.flag("qk_normalization", default=True)
    shape = _internvit(
        keys,
        names=("attn.qkv", "attn.proj"),
        qkv_bias=keys.flag("qkv_bias"),
        qk_norm=qk_norm,
        norm_type=keys.text("norm_type", "rms_norm"),
    )
    block = "vision_model.encoder.layers.{i}."
    weights = (
        *_embeddings(keys, "vision_model.embeddings.", "patch_embedding", shape.width),
        *stack(block, shape, extra=_per_block(block, shape.width, qk_norm=qk_norm)),
        *_project(wrapper, "mlp1.", ("0", "1", "3"), shape.width),
    )
    return (vision_tower(keys, shape, weights),)


def ovis2(wrapper: Wrapper) -> tuple[TowerSpec, ...]:
    """Ovis 2."""
    if not wrapper.states("vision_config"):
        return ()
    keys = wrapper.tower("vision_config")
    bias = keys.flag("qkv_bias")
    shape = Blocks(
        width=keys.integer("hidden_size"),
        inner=keys.integer("intermediate_size"),
        heads=keys.integer("num_attention_heads"),
        layers=keys.layer_count(),
        attention=("attention.q_proj", "attention.k_proj", "attention.v_proj", "attention.out_proj"),
        biases=(bias,) * 4,
        feed_forward=("ffn.gate_proj", "ffn.up_proj", "ffn.down_proj"),
        feed_forward_bias=keys.flag("mlp_bias"),
        norms=("rms_norm1", "rms_norm2"),
        norm_bias=False,
    )
    width, patch, path = shape.width, keys.integer("patch_size"), "vision_tower.transformer."
    vocabulary = keys.integer("vocab_size")
    words = vocabulary - keys.integer("num_visual_indicator_tokens")
    weights = (
        *convolution(
            path + "embeddings.patch_embedding", VISION, width, keys.integer("num_channels"), patch, patch
        ),
        vector(path + "embeddings.position_embedding", VISION, grid(keys), width),
        *tower_norm(path + "embeddings.rms_norm", width, VISION, bias=False),
        *stack(path + "encoder.layers.{i}.", shape),
        *tower_norm(path + "rms_norm", width, VISION, bias=False),
        *dense("vision_tower.head_linear", words, width * keys.integer("hidden_stride") ** 2, bias=False),
        *tower_norm("vision_tower.head_norm", words, PROJECTOR),
        vector(
            "visual_embeddings_table",
            PROJECTOR,
            vocabulary,
            wrapper.keys.integer("hidden_size", default=1536),
        ),
    )
    return (vision_tower(keys, shape, weights),)


BUILDERS: dict[str, Callable[[Wrapper], tuple[TowerSpec, ...]]] = {
    "internvl": internvl,
    "internvl_chat": internvl_chat,
    "ovis2": ovis2,
}
