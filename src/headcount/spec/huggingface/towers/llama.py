"""The image encoders of Llama 4 and Llama 3.2 Vision.

Llama 4     class token + patches as one matrix + positions + blocks + adapter of two matrices; projector of one
Llama 3.2   class token + patches + gated positions per tile + blocks + gated blocks; projector of one matrix with a bias
            tables have one row per aspect ratio and one for none; a projector sees the last and the listed layers

Sources: the model classes of transformers 5.24.0.
"""

from __future__ import annotations

from headcount.spec.huggingface.towers.parts import (
    PROJECTOR_PATH,
    Blocks,
    Wrapper,
    convolution,
    dense,
    grid,
    stack,
    tower_norm,
    vision_tower,
)
from headcount.spec.weight import COLUMN, ROW, VISION, vector

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headcount.spec.huggingface.keys import Keys
    from headcount.spec.model import TowerSpec

PATH = "vision_model."


def _blocks(keys: Keys, heads: int, *, biases: bool) -> Blocks:
    return Blocks(
        width=keys.integer("hidden_size"),
        inner=keys.integer("intermediate_size"),
        heads=heads,
        layers=keys.layer_count(),
        attention=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
        biases=(biases,) * 4,
        norms=("input_layernorm", "post_attention_layernorm"),
    )


def llama4(wrapper: Wrapper) -> tuple[TowerSpec, ...]:
    """See the module."""
    if not wrapper.states("vision_config"):
        return ()
    keys = wrapper.tower("vision_config")
    shape = _blocks(keys, keys.integer("num_attention_heads"), biases=True)
    width, between = shape.width, keys.integer("projector_output_dim")
    flat = keys.integer("num_channels") * keys.integer("patch_size") ** 2
    adapter = PATH + "vision_adapter.mlp."
    weights = (
        vector(PATH + "class_embedding", VISION, width),
        vector(PATH + "positional_embedding_vlm", VISION, grid(keys) + 1, width),
        *dense(PATH + "patch_embedding.linear", width, flat, part=VISION, shard=COLUMN, bias=False),
        *tower_norm(PATH + "layernorm_pre", width, VISION),
        *stack(PATH + "model.layers.{i}.", shape),
        *tower_norm(PATH + "layernorm_post", width, VISION),
        *dense(
            adapter + "fc1",
            keys.integer("projector_input_dim"),
            shape.inner,
            part=VISION,
            shard=COLUMN,
            bias=False,
        ),
        *dense(adapter + "fc2", between, between, part=VISION, shard=ROW, bias=False),
        *dense(
            PROJECTOR_PATH + "linear_1",
            wrapper.hidden,
            keys.integer("vision_output_dim"),
            shard=COLUMN,
            bias=False,
        ),
    )
    return (vision_tower(keys, shape, weights),)


def mllama(wrapper: Wrapper) -> tuple[TowerSpec, ...]:
    """See the module."""
    if not wrapper.states("vision_config"):
        return ()
    keys = wrapper.tower("vision_config")
    shape = _blocks(keys, keys.integer("attention_heads"), biases=False)
    width, patch, tiles = shape.width, keys.integer("patch_size"), keys.integer("max_num_tiles")
    ratios, places = len(keys.sequence("supported_aspect_ratios") or ()) + 1, grid(keys) + 1
    deeper = shape.replace(layers=keys.layer_count("num_global_layers"))
    block = PATH + "global_transformer.layers.{i}."
    weights = (
        vector(PATH + "class_embedding", VISION, width),
        *convolution(
            PATH + "patch_embedding", VISION, width, keys.integer("num_channels"), patch, patch, bias=False
        ),
        vector(PATH + "gated_positional_embedding.gate", VISION, 1),
        vector(PATH + "gated_positional_embedding.embedding", VISION, places, width),
        vector(PATH + "gated_positional_embedding.tile_embedding", VISION, ratios, tiles * places * width),
        vector(PATH + "pre_tile_positional_embedding.gate", VISION, 1),
        vector(PATH + "pre_tile_positional_embedding.embedding", VISION, ratios, tiles * width),
        vector(PATH + "post_tile_positional_embedding.gate", VISION, 1),
        vector(PATH + "post_tile_positional_embedding.embedding", VISION, ratios, tiles * width),
        *tower_norm(PATH + "layernorm_pre", width, VISION),
        *stack(PATH + "transformer.layers.{i}.", shape),
        *stack(
            block,
            deeper,
            extra=(vector(block + "gate_attn", VISION, 1), vector(block + "gate_ffn", VISION, 1)),
        ),
        *tower_norm(PATH + "layernorm_post", width, VISION),
        *dense(
            PROJECTOR_PATH.removesuffix("."), wrapper.hidden, keys.integer("vision_output_dim"), shard=COLUMN
        ),
    )
    tower = vision_tower(keys, shape, weights)
    return (tower.replace(layers=shape.layers + deeper.layers),)


BUILDERS: dict[str, Callable[[Wrapper], tuple[TowerSpec, ...]]] = {"llama4": llama4, "mllama": mllama}
