"""Audio encoders in the manner of Whisper (arXiv 2212.04356), and the Qwen omni models that have an image encoder too.

Whisper      2 convolutions over time + positions + blocks (keys without a bias) + norm
Qwen3        3 convolutions over time and frequency + 1 matrix + blocks + norm; positions are computed

Sources: the model classes of transformers 5.24.0.
"""

from __future__ import annotations

from headcount.spec.huggingface.towers.parts import (
    PROJECTOR_PATH,
    Blocks,
    Wrapper,
    convolution,
    dense,
    stack,
    tower_norm,
    two_layers,
)
from headcount.spec.huggingface.towers.qwen import qwen2_5_vision, qwen3_vision
from headcount.spec.model import TowerSpec
from headcount.spec.weight import AUDIO, PROJECTOR, vector

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headcount.spec.huggingface.keys import Keys
    from headcount.spec.weight import Weight

PATH = "audio_tower."


def _shape(keys: Keys, *, key_bias: bool) -> Blocks:
    return Blocks(
        width=keys.integer("d_model"),
        inner=keys.integer("encoder_ffn_dim"),
        heads=keys.integer("encoder_attention_heads"),
        layers=keys.layer_count("encoder_layers"),
        biases=(True, key_bias, True, True),
        feed_forward=("fc1", "fc2"),
        norms=("self_attn_layer_norm", "final_layer_norm"),
    )


def _tower(keys: Keys, shape: Blocks, weights: Iterable[Weight]) -> TowerSpec:
    return TowerSpec(
        kind="audio",
        family=keys.model_type,
        layers=shape.layers,
        hidden_size=shape.width,
        heads=shape.heads,
        weights=tuple(weights),
    )


def _whisper(keys: Keys, *, last_norm: str, table: bool) -> tuple[Blocks, tuple[Weight, ...]]:
    """Whisper's encoder; ``table``: positions are a stored table of ``max_source_positions`` rows."""
    shape = _shape(keys, key_bias=False)
    width = shape.width
    return shape, (
        *convolution(PATH + "conv1", AUDIO, width, keys.integer("num_mel_bins"), 3),
        *convolution(PATH + "conv2", AUDIO, width, width, 3),
        *(
            (vector(PATH + "embed_positions", AUDIO, keys.integer("max_source_positions"), width),)
            if table
            else ()
        ),
        *stack(PATH + "layers.{i}.", shape, part=AUDIO),
        *tower_norm(PATH + last_norm, width, AUDIO),
    )


def _qwen3(keys: Keys) -> tuple[Blocks, tuple[Weight, ...]]:
    shape = _shape(keys, key_bias=True)
    channels, bins = keys.integer("downsample_hidden_size"), keys.integer("num_mel_bins")
    for _ in range(3):
        bins = (bins + 1) // 2
    return shape, (
        *convolution(PATH + "conv2d1", AUDIO, channels, 1, 3, 3),
        *convolution(PATH + "conv2d2", AUDIO, channels, channels, 3, 3),
        *convolution(PATH + "conv2d3", AUDIO, channels, channels, 3, 3),
        *dense(PATH + "conv_out", shape.width, channels * bins, part=AUDIO, bias=False),
        *stack(PATH + "layers.{i}.", shape, part=AUDIO),
        *tower_norm(PATH + "ln_post", shape.width, AUDIO),
    )


def qwen2_audio(wrapper: Wrapper) -> tuple[TowerSpec, ...]:
    """Whisper's encoder and one matrix."""
    if not wrapper.states("audio_config"):
        return ()
    keys = wrapper.tower("audio_config")
    shape, weights = _whisper(keys, last_norm="layer_norm", table=True)
    project = dense(PROJECTOR_PATH + "linear", wrapper.hidden, shape.width)
    return (_tower(keys, shape, (*weights, *project)),)


def voxtral(wrapper: Wrapper) -> tuple[TowerSpec, ...]:
    """Whisper's encoder and two matrices; four neighbouring frames (``intermediate_size`` numbers) go in together."""
    if not wrapper.states("audio_config"):
        return ()
    keys = wrapper.tower("audio_config")
    shape, weights = _whisper(keys, last_norm="layer_norm", table=True)
    sizes = (keys.integer("encoder_ffn_dim"), wrapper.hidden, wrapper.hidden)
    return (_tower(keys, shape, (*weights, *two_layers(PROJECTOR_PATH, sizes, bias=False))),)


def qwen3_asr(wrapper: Wrapper) -> tuple[TowerSpec, ...]:
    """Qwen3's audio encoder and two matrices."""
    if not wrapper.states("audio_config"):
        return ()
    keys = wrapper.tower("audio_config")
    shape, weights = _qwen3(keys)
    sizes = (shape.width, shape.width, keys.integer("output_dim"))
    return (_tower(keys, shape, (*weights, *two_layers(PROJECTOR_PATH, sizes))),)


def qwen2_5_omni(wrapper: Wrapper) -> tuple[TowerSpec, ...]:
    """The thinker of Qwen2.5-Omni: Whisper's encoder with computed positions, and Qwen2.5-VL's."""
    towers: list[TowerSpec] = []
    if wrapper.states("audio_config"):
        keys = wrapper.tower("audio_config")
        shape, weights = _whisper(keys, last_norm="ln_post", table=False)
        out = keys.integer("output_dim")
        project = (
            vector(PATH + "audio_bos_eos_token", PROJECTOR, 2, out),
            *dense(PATH + "proj", out, shape.width),
        )
        towers.append(_tower(keys, shape, (*weights, *project)))
    if wrapper.states("vision_config"):
        towers.append(qwen2_5_vision(wrapper.tower("vision_config"), fused=False))
    return tuple(towers)


def qwen3_omni(wrapper: Wrapper) -> tuple[TowerSpec, ...]:
    """The thinker of Qwen3-Omni: Qwen3's audio encoder and Qwen3-VL's."""
    towers: list[TowerSpec] = []
    if wrapper.states("audio_config"):
        keys = wrapper.tower("audio_config")
        shape, weights = _qwen3(keys)
        sizes = (shape.width, shape.width, keys.integer("output_dim"))
        towers.append(_tower(keys, shape, (*weights, *two_layers(PATH, sizes, names=("proj1", "proj2")))))
    if wrapper.states("vision_config"):
        towers.append(qwen3_vision(wrapper.tower("vision_config"), omni=True))
    return tuple(towers)


BUILDERS: dict[str, Callable[[Wrapper], tuple[TowerSpec, ...]]] = {
    "qwen2_audio": qwen2_audio,
    "voxtral": voxtral,
    "qwen3_asr": qwen3_asr,
    "qwen2_5_omni_thinker": qwen2_5_omni,
    "qwen3_omni_moe_thinker": qwen3_omni,
}
