"""The image encoders of Qwen2-VL to Qwen3.5, and of the Qwen omni models.

Qwen2-VL     3-D patches + blocks (fused qkv, plain) + merger                        (arXiv 2409.12191)
Qwen2.5-VL   3-D patches + RMS blocks (fused qkv, gated, biases) + merger            (arXiv 2502.13923)
Qwen3-VL     3-D patches + positions + blocks (fused qkv, plain) + merger + one merger per deepstack level

merger       norm + (m^2 W)^2 + m^2 W x out, m neighbouring patches a side; deepstack norms are m^2 W wide

Sources: the model classes of transformers 5.24.0.
"""

from __future__ import annotations

from headcount.spec.huggingface.towers.parts import (
    Blocks,
    Wrapper,
    convolution,
    repeated,
    stack,
    tower_norm,
    two_layers,
    vision_tower,
)
from headcount.spec.weight import PROJECTOR, VISION, vector

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headcount.spec.huggingface.keys import Keys
    from headcount.spec.model import TowerSpec
    from headcount.spec.weight import Weight

PATH = "visual."
_FUSED = ("attn.qkv", "attn.proj")
_NORMS = ("norm1", "norm2")


def _patches(keys: Keys, width: int, *, bias: bool) -> tuple[Weight, ...]:
    patch, frames = keys.integer("patch_size"), keys.integer("temporal_patch_size")
    channels = keys.integer("in_channels")
    return convolution(PATH + "patch_embed.proj", VISION, width, channels, frames, patch, patch, bias=bias)


def _merger(
    path: str,
    sizes: tuple[int, int, int],
    *,
    names: tuple[str, str] = ("mlp.0", "mlp.2"),
    norm_name: str = "ln_q",
    norm_width: int | None = None,
    norm_bias: bool = True,
) -> tuple[Weight, ...]:
    """``sizes = (W, m, out)``."""
    width, merge, out = sizes
    inside = width * merge**2
    return (
        *tower_norm(path + norm_name, norm_width or width, PROJECTOR, bias=norm_bias),
        *two_layers(path, (inside, inside, out), names=names),
    )


def qwen2_vl(wrapper: Wrapper) -> tuple[TowerSpec, ...]:
    """Qwen2-VL: ``embed_dim`` is the encoder's width, ``hidden_size`` the language model's."""
    if not wrapper.states("vision_config"):
        return ()
    keys = wrapper.tower("vision_config")
    width = keys.integer("embed_dim")
    shape = Blocks(
        width=width,
        inner=width * keys.integer("mlp_ratio"),
        heads=keys.integer("num_heads"),
        layers=keys.layer_count("depth"),
        attention=_FUSED,
        norms=_NORMS,
    )
    sizes = (width, keys.integer("spatial_merge_size"), keys.integer("hidden_size"))
    weights = (
        *_patches(keys, width, bias=False),
        *stack(PATH + "blocks.{i}.", shape),
        *_merger(PATH + "merger.", sizes),
    )
    return (vision_tower(keys, shape, weights),)


def qwen2_5_vision(keys: Keys, *, fused: bool = True) -> TowerSpec:
    """The encoder of Qwen2.5-VL; the omni model's keeps query, key and value apart."""
    apart = ("attn.q", "attn.k", "attn.v", "attn.proj")
    shape = Blocks(
        width=keys.integer("hidden_size"),
        inner=keys.integer("intermediate_size"),
        heads=keys.integer("num_heads"),
        layers=keys.layer_count("depth"),
        attention=_FUSED if fused else apart,
        feed_forward=("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
        norms=_NORMS,
        norm_bias=False,
    )
    sizes = (shape.width, keys.integer("spatial_merge_size"), keys.integer("out_hidden_size"))
    weights = (
        *_patches(keys, shape.width, bias=False),
        *stack(PATH + "blocks.{i}.", shape),
        *_merger(PATH + "merger.", sizes, norm_bias=False),
    )
    return vision_tower(keys, shape, weights)


def qwen3_vision(keys: Keys, *, omni: bool = False) -> TowerSpec:
    """The encoder of Qwen3-VL and Qwen3.5 (no deepstack levels); the omni model only names its mergers otherwise."""
    shape = Blocks(
        width=keys.integer("hidden_size"),
        inner=keys.integer("intermediate_size"),
        heads=keys.integer("num_heads"),
        layers=keys.layer_count("depth"),
        attention=_FUSED,
        feed_forward=("mlp.linear_fc1", "mlp.linear_fc2"),
        norms=_NORMS,
    )
    merge = keys.integer("spatial_merge_size")
    sizes = (shape.width, merge, keys.integer("out_hidden_size"))
    names, norm_name = (("mlp.0", "mlp.2"), "ln_q") if omni else (("linear_fc1", "linear_fc2"), "norm")
    # Qwen3.5's files still list the key, empty; its class ignores it.
    levels = len(keys.integers("deepstack_visual_indexes") or ()) if "qwen3_5" not in keys.model_type else 0
    list_path = PATH + ("merger_list.{i}." if omni else "deepstack_merger_list.{i}.")
    deep = _merger(list_path, sizes, names=names, norm_name=norm_name, norm_width=shape.width * merge**2)
    weights = (
        *_patches(keys, shape.width, bias=True),
        vector(PATH + "pos_embed", VISION, keys.integer("num_position_embeddings"), shape.width),
        *stack(PATH + "blocks.{i}.", shape),
        *_merger(PATH + "merger.", sizes, names=names, norm_name=norm_name),
        *(repeated(deep, levels, PROJECTOR) if levels else ()),
    )
    return vision_tower(keys, shape, weights)


def _alone(build: Callable[[Keys], TowerSpec]) -> Callable[[Wrapper], tuple[TowerSpec, ...]]:
    return lambda wrapper: (build(wrapper.tower("vision_config")),) if wrapper.states("vision_config") else ()


BUILDERS: dict[str, Callable[[Wrapper], tuple[TowerSpec, ...]]] = {
    "qwen2_vl": qwen2_vl,
    "qwen2_5_vl": _alone(qwen2_5_vision),
    "qwen3_vl": _alone(qwen3_vision),
    "qwen3_vl_moe": _alone(qwen3_vision),
    "qwen3_5": _alone(qwen3_vision),
    "qwen3_5_moe": _alone(qwen3_vision),
}
