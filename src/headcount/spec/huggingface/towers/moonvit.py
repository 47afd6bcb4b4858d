"""MoonViT, the image encoder of Kimi-VL and Kimi K2.5 (arXiv 2504.07491).

patches + height x width positions + blocks + norm; projector: norm, (m^2 W)^2, m^2 W x D. Kimi K2.5 adds computed positions
in time. Kimi-VL's code lies in its repository; its sizes are those of Kimi K2.5's class.

Sources: the model class of transformers 5.24.0; Kimi-VL: parameter total of the published checkpoint.
"""

from __future__ import annotations

from math import prod

from headcount.errors import ModelFileError
from headcount.spec.huggingface.towers.parts import (
    Blocks,
    Wrapper,
    convolution,
    stack,
    tower_norm,
    two_layers,
    vision_tower,
)
from headcount.spec.weight import PROJECTOR, VISION, vector

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headcount.spec.model import TowerSpec

PATH = "vision_tower."


def moonvit(wrapper: Wrapper) -> tuple[TowerSpec, ...]:
    """See the module; Kimi K2.5's published file writes ``vt_`` before the encoder's keys."""
    if not wrapper.states("vision_config"):
        return ()
    # Kimi-VL's own class has the same defaults.
    keys = wrapper.encoder_keys("kimi_k25_vision", wrapper.config["vision_config"])
    original = wrapper.model_type == "kimi_vl"
    apart = ("attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.proj")
    shape = Blocks(
        width=keys.integer("vt_hidden_size", "hidden_size"),
        inner=keys.integer("vt_intermediate_size", "intermediate_size"),
        heads=keys.integer("vt_num_attention_heads", "num_attention_heads"),
        layers=keys.layer_count("vt_num_hidden_layers", "num_hidden_layers"),
        attention=("wqkv", "wo") if original else apart,
        norms=("norm1", "norm2"),
    )
    width = shape.width
    patch = keys.integer("patch_size")
    sides = [keys.integer(f"init_pos_emb_{side}", f"pos_emb_{side}") for side in ("height", "width")]
    merge = keys.integers("merge_kernel_size", minimum=1)
    if merge is None or len(merge) != 2:
        raise ModelFileError("config key merge_kernel_size must be two whole numbers")
    inside = width * prod(merge)
    project = "multi_modal_projector." if original else "mm_projector."
    weights = (
        *convolution(PATH + "patch_embed.proj", VISION, width, 3, patch, patch),
        vector(PATH + "patch_embed.pos_emb", VISION, *sides, width),
        *stack(PATH + "encoder.blocks.{i}.", shape),
        *tower_norm(PATH + "encoder.final_layernorm", width, VISION),
        *tower_norm(project + "pre_norm", width, PROJECTOR),
        *two_layers(project, (inside, inside, wrapper.hidden)),
    )
    return (vision_tower(keys, shape, weights),)


BUILDERS: dict[str, Callable[[Wrapper], tuple[TowerSpec, ...]]] = {"kimi_vl": moonvit, "kimi_k25": moonvit}
