"""The encoders of Gemma 3n and Gemma 4.

Gemma 4 image    one matrix per patch + 2 tables of positions + blocks (four norms, query and key norms, gated)
Gemma audio      2 convolutions + 1 matrix + conformer blocks: two half feed-forwards, attention, a light convolution
Gemma 3n image   MobileNetV5-300M, a convolutional network of one fixed size

Sources: the model classes of transformers 5.24.0. MobileNetV5's count is what the published totals of Gemma 3n E2B and E4B
leave when everything else is taken off; both give the same number.
"""

from __future__ import annotations

from headcount.errors import ModelFileError, UnsupportedModelError
from headcount.spec.huggingface.towers.parts import (
    Blocks,
    Wrapper,
    convolution,
    dense,
    repeated,
    stack,
    tower_norm,
    vision_tower,
)
from headcount.spec.model import TowerSpec
from headcount.spec.weight import AUDIO, COLUMN, PROJECTOR, ROW, VISION, matrix, norm, vector

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headcount.spec.huggingface.keys import Keys
    from headcount.spec.weight import Weight

AUDIO_PATH = "audio_tower."
VISION_PATH = "vision_tower."
# E2B: 5,439,438,272 published - 4,435,182,688 language model - 681,348,640 audio encoder - 7,806,976 embedders
#      - 20,974,080 key/value matrices and norms that 10 layers store without using. E4B: 7,849,978,192 - 6,835,235,568
#      - 681,348,640 - 7,806,976 - 31,461,120 (15 layers). Both leave this count, exactly.
MOBILENET_V5_300M = 294_126_912


def _conformer(keys: Keys, path: str, *, heads: int, layers: int, kernel: int) -> tuple[Weight, ...]:
    """Conformer blocks without biases; every feed-forward is four widths wide."""
    width = keys.integer("hidden_size")
    if width % heads:
        raise ModelFileError(f"config: an audio encoder's width {width} does not divide by {heads} heads")

    def half(name: str) -> tuple[Weight, ...]:
        inside = path + name
        return (
            *matrix(inside + "ffw_layer_1", AUDIO, (4 * width, width), COLUMN),
            *matrix(inside + "ffw_layer_2", AUDIO, (width, 4 * width), ROW),
            *norm(inside + "pre_layer_norm", width),
            *norm(inside + "post_layer_norm", width),
        )

    attention = path + "self_attn."
    block = (
        *half("feed_forward1."),
        *half("feed_forward2."),
        *(
            weight
            for name in ("q_proj", "k_proj", "v_proj")
            for weight in matrix(attention + name, AUDIO, (width, width), COLUMN, heads=heads)
        ),
        *matrix(attention + "relative_k_proj", AUDIO, (width, width), COLUMN, heads=heads),
        *matrix(attention + "post", AUDIO, (width, width), ROW),
        vector(attention + "per_dim_scale", AUDIO, width // heads),
        *matrix(path + "lconv1d.linear_start", AUDIO, (2 * width, width), COLUMN),
        *matrix(path + "lconv1d.linear_end", AUDIO, (width, width), ROW),
        *convolution(path + "lconv1d.depthwise_conv1d", AUDIO, width, 1, kernel, bias=False),
        *norm(path + "lconv1d.pre_layer_norm", width),
        *norm(path + "lconv1d.conv_norm", width),
        *(
            weight
            for name in ("norm_pre_attn", "norm_post_attn", "norm_out")
            for weight in norm(path + name, width)
        ),
    )
    return repeated(block, layers, AUDIO)


def _subsample(
    channels: list[int], width: int, inside: int, kernels: tuple[tuple[int, int], tuple[int, int]]
) -> tuple[Weight, ...]:
    path = AUDIO_PATH + "subsample_conv_projection."
    first, second = channels
    return (
        *convolution(path + "layer0.conv", AUDIO, first, 1, *kernels[0], bias=False),
        *tower_norm(path + "layer0.norm", first, AUDIO, bias=False),
        *convolution(path + "layer1.conv", AUDIO, second, first, *kernels[1], bias=False),
        *tower_norm(path + "layer1.norm", second, AUDIO, bias=False),
        *dense(path + "input_proj_linear", width, inside, part=AUDIO, bias=False),
    )


def _two_channels(keys: Keys, name: str) -> list[int]:
    channels = keys.integers(name, minimum=1)
    if channels is None or len(channels) != 2:
        raise ModelFileError(f"config key {name} must be two whole numbers")
    return channels


def _audio_tower(keys: Keys, layers: int, heads: int, weights: tuple[Weight, ...]) -> TowerSpec:
    return TowerSpec(
        kind="audio",
        family=keys.model_type,
        layers=layers,
        hidden_size=keys.integer("hidden_size"),
        heads=heads,
        weights=weights,
    )


def _gemma4_audio(wrapper: Wrapper) -> TowerSpec:
    keys = wrapper.tower("audio_config")
    width, out = keys.integer("hidden_size"), keys.integer("output_proj_dims")
    heads, layers = keys.integer("num_attention_heads"), keys.layer_count()
    channels = _two_channels(keys, "subsampling_conv_channels")
    weights = (
        *_subsample(channels, width, channels[0] // 4 * channels[1], ((3, 3), (3, 3))),
        *_conformer(
            keys,
            AUDIO_PATH + "layers.{i}.",
            heads=heads,
            layers=layers,
            kernel=keys.integer("conv_kernel_size"),
        ),
        *dense(AUDIO_PATH + "output_proj", out, width, part=AUDIO),
        *dense("embed_audio.embedding_projection", wrapper.hidden, out, bias=False),
    )
    return _audio_tower(keys, layers, heads, weights)


def _gemma4_vision(wrapper: Wrapper) -> TowerSpec:
    keys = wrapper.tower("vision_config")
    width, heads, d = (
        keys.integer("hidden_size"),
        keys.integer("num_attention_heads"),
        keys.integer("head_dim"),
    )
    if keys.integer("num_key_value_heads") != heads:
        raise UnsupportedModelError("an encoder of type 'gemma4_vision' with grouped key/value heads")
    shape = Blocks(
        width=width,
        inner=keys.integer("intermediate_size"),
        heads=heads,
        layers=keys.layer_count(),
        inside=heads * d,
        attention=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
        biases=(False,) * 4,
        feed_forward=("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
        feed_forward_bias=False,
        norms=(
            "input_layernorm",
            "post_attention_layernorm",
            "pre_feedforward_layernorm",
            "post_feedforward_layernorm",
        ),
        norm_bias=False,
    )
    embed, block = VISION_PATH + "patch_embedder.", VISION_PATH + "encoder.layers.{i}."
    tables = (2, keys.integer("position_embedding_size"), width)
    weights = (
        *dense(embed + "input_proj", width, 3 * keys.integer("patch_size") ** 2, part=VISION, bias=False),
        vector(embed + "position_embedding_table", VISION, *tables),
        *stack(
            block,
            shape,
            extra=(*norm(block + "self_attn.q_norm", d), *norm(block + "self_attn.k_norm", d)),
        ),
        *dense("embed_vision.embedding_projection", wrapper.hidden, width, bias=False),
    )
    return vision_tower(keys, shape, weights)


def gemma4(wrapper: Wrapper) -> tuple[TowerSpec, ...]:
    """Gemma 4; the larger models have no audio encoder and say so by leaving it out."""
    towers = [_gemma4_vision(wrapper)] if wrapper.states("vision_config") else []
    if isinstance(wrapper.config.get("audio_config"), dict):
        towers.append(_gemma4_audio(wrapper))
    return tuple(towers)


def _embedder(name: str, keys: Keys, hidden: int) -> tuple[Weight, ...]:
    """Gemma 3n: a small vocabulary of its own, two norms and one matrix."""
    width = keys.integer("hidden_size")
    return (
        vector(name + "embedding", PROJECTOR, keys.integer("vocab_size"), width),
        *tower_norm(name + "hard_embedding_norm", width, PROJECTOR, bias=False),
        *tower_norm(name + "soft_embedding_norm", width, PROJECTOR, bias=False),
        *dense(name + "embedding_projection", hidden, width, bias=False),
    )


def _gemma3n_audio(wrapper: Wrapper) -> TowerSpec:
    keys = wrapper.tower("audio_config")
    width = keys.integer("hidden_size")
    heads, layers = (
        keys.integer("conf_num_attention_heads"),
        keys.layer_count("conf_num_hidden_layers"),
    )
    channels = _two_channels(keys, "sscp_conv_channel_size")
    kernels, strides = _sizes(keys, "sscp_conv_kernel_size"), _sizes(keys, "sscp_conv_stride_size")
    bins = keys.integer("input_feat_size")
    for kernel, stride in zip(kernels, strides, strict=True):
        # One bin of padding on either side of the frequencies.
        bins = (bins + 2 - kernel[1]) // stride[1] + 1
    weights = (
        *_subsample(channels, width, channels[1] * bins, kernels),
        *_conformer(
            keys,
            AUDIO_PATH + "conformer.{i}.",
            heads=heads,
            layers=layers,
            kernel=keys.integer("conf_conv_kernel_size"),
        ),
        *_embedder("embed_audio.", keys, wrapper.hidden),
    )
    return _audio_tower(keys, layers, heads, weights)


def _sizes(keys: Keys, name: str) -> tuple[tuple[int, int], tuple[int, int]]:
    value = keys.sequence(name) or []
    if len(value) != 2 or not all(isinstance(entry, list) and len(entry) == 2 for entry in value):
        raise ModelFileError(f"config key {name} must be two pairs of whole numbers")
    first, second = ((keys.checked(name, entry[0]), keys.checked(name, entry[1])) for entry in value)
    return first, second


def gemma3n(wrapper: Wrapper) -> tuple[TowerSpec, ...]:
    """Gemma 3n: MobileNetV5 and a conformer."""
    towers: list[TowerSpec] = []
    if wrapper.states("vision_config"):
        keys = wrapper.tower("vision_config")
        network = keys.text("architecture")
        if network != "mobilenetv5_300m_enc":
            raise UnsupportedModelError(f"the image network {network[:60]!r} is not known")
        weights = (
            vector(VISION_PATH + "timm_model", VISION, MOBILENET_V5_300M),
            *_embedder("embed_vision.", keys, wrapper.hidden),
        )
        towers.append(
            TowerSpec(
                kind="vision",
                family=network,
                layers=0,
                hidden_size=keys.integer("hidden_size"),
                heads=0,
                weights=weights,
            )
        )
    if wrapper.states("audio_config"):
        towers.append(_gemma3n_audio(wrapper))
    return tuple(towers)


BUILDERS: dict[str, Callable[[Wrapper], tuple[TowerSpec, ...]]] = {"gemma3n": gemma3n, "gemma4": gemma4}
