"""``Mixture``: where a model type keeps the numbers of its experts, and the tensors they make.

    parameters     = D E + E m D F + m D F_shared          D E is the router, F the width of one expert
    read per token = D E + top_k m D F + m D F_shared      m = 3 matrices (gate, up, down)

Tensor names are those of the released checkpoints (``experts.*`` stands for the expert index), because
quantisation lists name modules by them. Sources: the model classes of transformers 5.24.0 and its table of
checkpoint renamings.
"""

from __future__ import annotations

from headcount.errors import ModelFileError
from headcount.record import Record
from headcount.spec.huggingface.keys import Keys
from headcount.spec.huggingface.parts import LAYER, gated, layer_kinds
from headcount.spec.huggingface.style import Style, build
from headcount.spec.model import UNCOUNTED_PREDICTION, FeedForward, ModelSpec
from headcount.spec.weight import (
    COLUMN,
    EXPERT,
    EXPERTS,
    REPLICATED,
    ROUTER,
    ROW,
    SHARED_EXPERTS,
    Weight,
    matrix,
    vector,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

SEPARATE = ("experts.*.gate_proj", "experts.*.up_proj", "experts.*.down_proj")
PACKED = ("experts.gate_up_proj", "experts.down_proj")
W123 = ("experts.*.w1", "experts.*.w3", "experts.*.w2")


def no_shared(keys: Keys, width: int) -> int:
    """No expert that every token visits."""
    return 0


def every_layer(keys: Keys, count: int) -> list[bool]:
    """All layers are mixtures."""
    return [True] * count


class Mixture(Record):
    """Where a model type keeps the numbers of its mixture, and what the checkpoint calls its tensors.

    experts, top_k  config keys, first stated wins
    width, dense_width  config keys of F of one expert, and of the layers that are not mixtures
    shared     (keys, F) -> width of the expert every token visits, 0 for none
    sparse     (keys, layers) -> which layers are mixtures
    path       module that holds router and experts; ``names``, ``router`` and ``shared_path`` are below it
    names      three matrices of one expert (gate, up, down), or two when gate and up are stored as one
    expert_bias, router_bias  whether those linear layers have biases
    mlp_bias   config key of the biases of dense and shared feed-forwards; empty: none
    extra      what else a mixture layer stores
    """

    experts: tuple[str, ...]
    top_k: tuple[str, ...] = ("num_experts_per_tok",)
    width: str = "moe_intermediate_size"
    dense_width: str = "intermediate_size"
    shared: Callable[[Keys, int], int] = no_shared
    sparse: Callable[[Keys, int], list[bool]] = every_layer
    path: str = LAYER + "mlp."
    router: str = "gate"
    names: tuple[str, ...] = SEPARATE
    shared_path: str = "shared_experts."
    shared_names: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")
    router_bias: bool = False
    expert_bias: bool = False
    mlp_bias: str = ""
    extra: Callable[[str, int, FeedForward], tuple[Weight, ...]] = lambda path, hidden, ffn: ()


def read_mixture(keys: Keys, mixture: Mixture) -> FeedForward:
    """Read E, top_k, F and the shared width. ModelFileError when top_k > E.

    A config that states no top_k (null class default) is counted as if every expert ran, and a note says so.
    """
    count = keys.integer(*mixture.experts)
    top_k = keys.optional_integer(*mixture.top_k)
    if top_k is None:
        keys.notes.append(
            f"{mixture.top_k[0]} is not stated: FLOPs and active parameters count all {count} experts, "
            "an upper bound"
        )
        top_k = count
    if top_k > count:
        raise ModelFileError(f"config: {top_k} experts per token out of {count} is not possible")
    width = keys.integer(mixture.width)
    return FeedForward(
        width=width, matrices=3, experts=count, top_k=top_k, shared_width=mixture.shared(keys, width)
    )


def expert_matrices(
    path: str, names: tuple[str, ...], shape: tuple[int, int], *, part: str, bias: bool = False
) -> tuple[Weight, ...]:
    """Return one gated feed-forward of ``shape`` (D, F): three names, or two when gate and up are one."""
    hidden, width = shape
    rows = (2 * width, hidden) if len(names) == 2 else (width, width, hidden)
    weights: list[Weight] = []
    for name, out in zip(names, rows, strict=True):
        last = name == names[-1]
        weights += matrix(path + name, part, (out, width if last else hidden), ROW if last else COLUMN)
        if bias:
            suffix = "_bias" if len(names) == 2 else ".bias"
            weights.append(vector(path + name + suffix, part, out, shard=REPLICATED if last else COLUMN))
    return tuple(weights)


def mixture_weights(
    hidden: int, ffn: FeedForward, mixture: Mixture, *, bias: bool = False
) -> tuple[Weight, ...]:
    """Return a layer's router, experts (``copies`` E, ``active`` top_k), shared expert (``bias``), extras."""
    path = mixture.path
    single = expert_matrices(path, mixture.names, (hidden, ffn.width), part=EXPERTS, bias=mixture.expert_bias)
    shared = (
        expert_matrices(
            path + mixture.shared_path,
            mixture.shared_names,
            (hidden, ffn.shared_width),
            part=SHARED_EXPERTS,
            bias=bias,
        )
        if ffn.shared_width
        else ()
    )
    return (
        *matrix(path + mixture.router, ROUTER, (ffn.experts, hidden), REPLICATED, bias=mixture.router_bias),
        # The bias behind the down projection is as wide as D: experts divided across their width keep it whole (gpt-oss).
        *(
            w.replace(
                shard=w.shard if w.shard == REPLICATED else EXPERT, copies=ffn.experts, active=ffn.top_k
            )
            for w in single
        ),
        *shared,
        *mixture.extra(path, hidden, ffn),
    )


def feed_forward_rule(
    keys: Keys, mixture: Mixture, count: int
) -> tuple[list[bool], Callable[[int], tuple[FeedForward, tuple[Weight, ...]]]]:
    """Return which of ``count`` layers are mixtures, and a function from layer index to shape and weights."""
    sparse = mixture.sparse(keys, count)
    hidden = keys.integer("hidden_size")
    bias = bool(mixture.mlp_bias) and keys.flag(mixture.mlp_bias)
    ffn = read_mixture(keys, mixture) if any(sparse) else None

    def rule(i: int) -> tuple[FeedForward, tuple[Weight, ...]]:
        if sparse[i] and ffn is not None:
            return ffn, mixture_weights(hidden, ffn, mixture, bias=bias)
        width = keys.integer(mixture.dense_width, "intermediate_size")
        return FeedForward(width=width, matrices=3), gated(hidden, width, path=mixture.path, bias=bias)

    return sparse, rule


def build_mixture(keys: Keys, style: Style, mixture: Mixture) -> ModelSpec:
    """Build a decoder in this style whose feed-forwards follow ``mixture``."""
    sparse, rule = feed_forward_rule(keys, mixture, keys.layer_count())
    note_prediction_layers(keys)
    return build(
        keys,
        style.replace(feed_forward=lambda _, i: rule(i), feed_forward_key=lambda _, i: sparse[i]),
    )


def note_prediction_layers(keys: Keys) -> None:
    """Note the multi-token-prediction layers that the file announces; the model proper has none."""
    name = "num_nextn_predict_layers"
    extra = keys.optional_integer(name, minimum=0) if keys.stated(name) else None
    if extra:
        keys.notes.append(
            f"{extra} multi-token-prediction layer{'s are' if extra > 1 else ' is'} {UNCOUNTED_PREDICTION}"
        )


def after_dense_layers(first: int = 0) -> Callable[[Keys, int], list[bool]]:
    """``mlp_layer_types``, else the first ``first_k_dense_replace`` (``first`` when unstated) dense.

    ``moe_layer_freq`` f > 1 leaves only every f-th layer a mixture; as a list it names each layer.
    """

    def rule(keys: Keys, count: int) -> list[bool]:
        dense = keys.integer("first_k_dense_replace", default=first, minimum=0)
        period = keys.value("moe_layer_freq")
        if isinstance(period, list):
            flags = numbered_layers(keys, "moe_layer_freq", count)
            return [flag > 0 for flag in flags]
        step = 1 if period is None else keys.checked("moe_layer_freq", period)
        words = {"dense": "dense", "sparse": "sparse"}
        kinds = layer_kinds(
            keys,
            count,
            attr="mlp_layer_types",
            names=words,
            fallback=lambda i: "sparse" if i >= dense and i % step == 0 else "dense",
        )
        return [kind == "sparse" for kind in kinds]

    return rule


def numbered_layers(keys: Keys, name: str, count: int) -> list[int]:
    """A list with one number per layer; ModelFileError when it is shorter than the model."""
    values = keys.integers(name) or []
    if len(values) < count:
        raise ModelFileError(f"config key {name} lists {len(values)} layers; num_hidden_layers is {count}")
    return values[:count]


def shared_times(key: str) -> Callable[[Keys, int], int]:
    """The shared expert is as wide as ``key`` routed experts."""
    return lambda keys, width: width * (keys.optional_integer(key, minimum=0) or 0)


def shared_width(key: str) -> Callable[[Keys, int], int]:
    """The shared expert's width is ``key`` itself."""
    return lambda keys, width: keys.optional_integer(key, minimum=0) or 0
