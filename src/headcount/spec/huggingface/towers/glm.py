"""The image encoder of GLM-4.1V, GLM-4.5V and GLM-4.6V.

3-D patches + positions + RMS blocks (fused qkv, gated, F = out_hidden_size) + a convolution that merges m x m patches
+ merger (a matrix, a norm and a gated feed-forward of intermediate_size).

Source: the model class of transformers 5.24.0.
"""

from __future__ import annotations

from headcount.spec.huggingface.towers.parts import (
    Blocks,
    Wrapper,
    convolution,
    dense,
    grid,
    stack,
    tower_norm,
    vision_tower,
)
from headcount.spec.weight import COLUMN, PROJECTOR, ROW, VISION, vector

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headcount.spec.model import TowerSpec

PATH = "visual."


def glm4v(wrapper: Wrapper) -> tuple[TowerSpec, ...]:
    """See the module."""
    if not wrapper.states("vision_config"):
        return ()
    keys = wrapper.tower("vision_config")
    width, out, inner = (
        keys.integer("hidden_size"),
        keys.integer("out_hidden_size"),
        keys.integer("intermediate_size"),
    )
    patch, merge = keys.integer("patch_size"), keys.integer("spatial_merge_size")
    shape = Blocks(
        width=width,
        inner=out,
        heads=keys.integer("num_heads"),
        layers=keys.layer_count("depth"),
        attention=("attn.qkv", "attn.proj"),
        biases=(keys.flag("attention_bias"), False),
        feed_forward=("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
        feed_forward_bias=False,
        norms=("norm1", "norm2"),
        norm_bias=False,
    )
    kernel = (keys.integer("in_channels"), keys.integer("temporal_patch_size"), patch, patch)
    weights = (
        *convolution(PATH + "patch_embed.proj", VISION, width, *kernel),
        vector(PATH + "embeddings.position_embedding", VISION, grid(keys), width),
        *tower_norm(PATH + "post_conv_layernorm", width, VISION, bias=False),
        *stack(PATH + "blocks.{i}.", shape),
        *tower_norm(PATH + "post_layernorm", width, VISION, bias=False),
        *convolution(PATH + "downsample", PROJECTOR, out, width, merge, merge),
        *dense(PATH + "merger.proj", out, out, bias=False),
        *tower_norm(PATH + "merger.post_projection_norm", out, PROJECTOR),
        *dense(PATH + "merger.gate_proj", inner, out, shard=COLUMN, bias=False),
        *dense(PATH + "merger.up_proj", inner, out, shard=COLUMN, bias=False),
        *dense(PATH + "merger.down_proj", out, inner, shard=ROW, bias=False),
    )
    return (vision_tower(keys, shape, weights),)


BUILDERS: dict[str, Callable[[Wrapper], tuple[TowerSpec, ...]]] = {
    "glm4v": glm4v,
    "glm4v_moe": glm4v,
    "glm46v": glm4v,
}
