"""What towers are assembled from: a stack of equal blocks, a patch convolution, a projector of two matrices.

block, plain   4 W^2 + 2 W F + biases + two norms           W width, F feed-forward
block, gated   4 W^2 + 3 W F + biases + two norms
patches        W x channels x kernel (+ W)                  positions: (image / patch)^2 x W

Every tensor of the L equal blocks is one ``Weight`` with ``copies = L``. Names are those of transformers 5.24.0 without
the leading ``model.``; ``Quantization`` tries the older spellings too.
"""

from __future__ import annotations

from math import prod

from headcount.errors import ModelFileError, UnsupportedModelError
from headcount.record import Record
from headcount.spec.huggingface.keys import Keys
from headcount.spec.model import TowerSpec
from headcount.spec.weight import COLUMN, PROJECTOR, REPLICATED, ROW, VISION, Weight, matrix, norm, vector

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from headcount.spec.huggingface.towers.defaults import Defaults

PROJECTOR_PATH = "multi_modal_projector."

# How every note on a tower that is left out ends.
UNCOUNTED_TOWER = "encoder is not counted"


class Wrapper:
    """A multimodal config around a language model.

    keys     the wrapper's own keys
    config   the raw object
    text     the language model's config
    hidden   width of the language model: what a projector maps into
    """

    def __init__(
        self,
        config: dict[str, Any],
        model_type: str,
        *,
        text: dict[str, Any],
        hidden: int,
        defaults: Defaults,
    ) -> None:
        self.config = config
        self.model_type = model_type
        self.text = text
        self.hidden = hidden
        self._defaults = defaults
        self.keys = Keys(
            config, model_type=model_type, defaults=defaults.wrapper(model_type), attribute_map={}
        )
        self.notes: list[str] = []

    def states(self, name: str) -> bool:
        """Whether the file holds the object ``name``; when it does not, the note says that it is not counted."""
        value = self.config.get(name)
        if value is None:
            what = "audio" if name.startswith("audio") else "vision"
            self.notes.append(
                f"the config of {self.model_type!r} states no {name}: a {what} {UNCOUNTED_TOWER}"
            )
            return False
        if not isinstance(value, dict):
            raise ModelFileError(f"config key {name} must be an object; given {str(value)[:40]!r}")
        return True

    def tower(self, name: str, *, kinds: tuple[str, ...] = ()) -> Keys:
        """The keys of the encoder's object ``name`` with its class's defaults.

        ``kinds``: the encoder types this wrapper may hold; empty when its class allows one only, whatever the file calls
        it. Raises UnsupportedModelError for a type that is not among them.
        """
        config: dict[str, Any] = self.config.get(name) or {}
        usual = self._defaults.encoder_type(self.model_type, name)
        stated = config.get("model_type")
        found = stated if kinds and isinstance(stated, str) and stated else usual
        if kinds and found not in kinds:
            raise UnsupportedModelError(f"encoder type {found[:60]!r} of {self.model_type!r} is not known")
        return self.encoder_keys(found, config)

    def encoder_keys(self, kind: str, config: dict[str, Any]) -> Keys:
        """The keys of ``config`` with the class defaults of encoder type ``kind``."""
        return self._defaults.keys(kind, config)


class Blocks(Record):
    """A stack of equal pre-norm blocks.

    width         W
    inner         F
    heads         attention heads; inside: width of all heads together (0: W)
    layers        L
    attention     names of query, key, value, output; or of the fused query-key-value and the output
    biases        which of them have one
    feed_forward  names of up and down, or gate, up and down
    feed_forward_bias, norms, norm_bias  as they say
    """

    width: int
    inner: int
    heads: int
    layers: int
    inside: int = 0
    attention: tuple[str, ...] = (
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.out_proj",
    )
    biases: tuple[bool, ...] = (True, True, True, True)
    feed_forward: tuple[str, ...] = ("mlp.fc1", "mlp.fc2")
    feed_forward_bias: bool = True
    norms: tuple[str, ...] = ("layer_norm1", "layer_norm2")
    norm_bias: bool = True

    def _check(self) -> None:
        if self.width % self.heads:
            raise ModelFileError(
                f"config: an encoder's width {self.width} does not divide by {self.heads} heads"
            )


def repeated(weights: Iterable[Weight], layers: int, part: str) -> tuple[Weight, ...]:
    """Return the tensors of one block as those of ``layers`` equal blocks, all of one ``part``."""
    return tuple(weight.replace(copies=weight.copies * layers, part=part) for weight in weights)


def stack(
    path: str, shape: Blocks, *, part: str = VISION, extra: Iterable[Weight] = ()
) -> tuple[Weight, ...]:
    """Return the tensors of ``shape.layers`` blocks; ``path`` ends in the block's ``{i}.``; ``extra`` is per block."""
    width, inner, inside = shape.width, shape.inner, shape.inside or shape.width
    *queries, out = shape.attention
    rows = 3 * inside if len(queries) == 1 else inside
    weights: list[Weight] = []
    for name, bias in zip(queries, shape.biases, strict=False):
        weights += matrix(path + name, part, (rows, width), COLUMN, bias=bias, heads=shape.heads)
    weights += matrix(path + out, part, (width, inside), ROW, bias=shape.biases[-1])
    *ups, down = shape.feed_forward
    for name in ups:
        weights += matrix(path + name, part, (inner, width), COLUMN, bias=shape.feed_forward_bias)
    weights += matrix(path + down, part, (width, inner), ROW, bias=shape.feed_forward_bias)
    for name in shape.norms:
        weights += norm(path + name, width, bias=shape.norm_bias)
    return repeated([*weights, *extra], shape.layers, part)


def convolution(name: str, part: str, *shape: int, bias: bool = True) -> tuple[Weight, ...]:
    """Return a convolution (out, in, kernel ...) and its bias; quantisers and engines leave it whole."""
    weights = (vector(name, part, *shape),)
    return (*weights, vector(name + ".bias", part, shape[0])) if bias else weights


def tower_norm(name: str, width: int, part: str, *, bias: bool = True) -> tuple[Weight, ...]:
    """Return a normalisation that belongs to ``part``."""
    return tuple(weight.replace(part=part) for weight in norm(name, width, bias=bias))


def dense(
    name: str, out: int, inside: int, *, part: str = PROJECTOR, shard: str = REPLICATED, bias: bool = True
) -> tuple[Weight, ...]:
    """Return one linear layer of a projector."""
    return matrix(name, part, (out, inside), shard, bias=bias)


def two_layers(
    path: str,
    sizes: tuple[int, int, int],
    *,
    names: tuple[str, str] = ("linear_1", "linear_2"),
    bias: bool = True,
) -> tuple[Weight, ...]:
    """Return the usual projector: ``sizes = (in, between, out)``."""
    inside, between, out = sizes
    return (
        *dense(path + names[0], between, inside, shard=COLUMN, bias=bias),
        *dense(path + names[1], out, between, shard=ROW, bias=bias),
    )


def pair(keys: Keys, name: str) -> tuple[int, int]:
    """A size that may be one number or ``[height, width]``."""
    value = keys.value(name)
    if isinstance(value, list):
        if len(value) != 2:
            raise ModelFileError(
                f"config key {name} must be one or two whole numbers; given {str(value)[:40]!r}"
            )
        return keys.checked(name, value[0]), keys.checked(name, value[1])
    side = keys.integer(name)
    return side, side


def grid(keys: Keys) -> int:
    """Number of patches of one image: ``(height // patch) (width // patch)``."""
    image, patch = pair(keys, "image_size"), pair(keys, "patch_size")
    return prod(side // cell for side, cell in zip(image, patch, strict=True))


def feature_layers(wrapper: Wrapper) -> int:
    """Encoder layers whose outputs are put side by side: the length of ``vision_feature_layer``, 1 for a number."""
    value = wrapper.keys.value("vision_feature_layer")
    return len(value) if isinstance(value, list) and value else 1


def vision_tower(keys: Keys, shape: Blocks, weights: Iterable[Weight]) -> TowerSpec:
    """Return a vision tower made of ``shape`` blocks, ``weights`` being all of its tensors."""
    return TowerSpec(
        kind="vision",
        family=keys.model_type,
        layers=shape.layers,
        hidden_size=shape.width,
        heads=shape.heads,
        weights=tuple(weights),
    )
