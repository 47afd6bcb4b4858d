"""The recurrent mixers of hybrid and attention-free decoders: their tensors and what they remember.

    mamba1            conv I (K-1)               state I S              I inner, S state width; K taps
    mamba2            conv (I + 2 G S) (K-1)     state N P S = I S      N heads of width P, G groups
    gated_delta_net   conv (2 A a + B b) (K-1)   state B a b            A key heads of a, B value heads of b
    kimi_delta        conv 3 N P (K-1)           state N P P
    short_conv        conv D (K-1)               none
    lightning         none                       state N P P
    rg_lru            conv R (K-1)               state R                R recurrent width

Sources: Mamba, arXiv 2312.00752; Mamba-2, arXiv 2405.21060; gated delta net, arXiv 2412.06464; Kimi Linear,
arXiv 2510.26692; lightning attention, arXiv 2501.08313; Griffin (RG-LRU), arXiv 2402.19427. Tensor names are
those of the released checkpoints.
"""

from __future__ import annotations

from headcount.errors import ModelFileError
from headcount.record import Record
from headcount.spec.attention import StateSpace
from headcount.spec.huggingface.keys import Keys
from headcount.spec.model import UNCOUNTED_PREDICTION
from headcount.spec.weight import COLUMN, REPLICATED, ROW, STATE_SPACE, Weight, matrix, vector
from headcount.units import ceil_div

# Words for layer kinds; "attention" and "mamba" are what files written before transformers 5 say.
HYBRID_KINDS = {
    "full_attention": "full",
    "attention": "full",
    "linear_attention": "linear",
    "mamba": "linear",
}

_STATE_DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2, "auto": None}


def state_dtype_bytes(keys: Keys) -> int | None:
    """Bytes of a number of the recurrent state where the config fixes its type; None: the model's own.

    Read from ``mamba_ssm_cache_dtype`` (Nemotron-H) or ``mamba_ssm_dtype`` (Qwen3.5).
    """
    for name in ("mamba_ssm_cache_dtype", "mamba_ssm_dtype"):
        if keys.value(name) is None:
            continue
        word = keys.text(name)
        plain = word.removeprefix("torch.")
        if plain not in _STATE_DTYPES:
            raise ModelFileError(
                f"config key {name} {word[:40]!r} is not a dtype of states: {', '.join(_STATE_DTYPES)}"
            )
        return _STATE_DTYPES[plain]
    return None


def note_prediction_layers(keys: Keys) -> None:
    """Note the multi-token-prediction layers that a file announces; the model proper has none."""
    extra = keys.optional_integer("num_nextn_predict_layers", "mtp_num_hidden_layers", minimum=0)
    if extra:
        keys.notes.append(
            f"{extra} multi-token-prediction layer{'s are' if extra > 1 else ' is'} {UNCOUNTED_PREDICTION}"
        )


def conv(name: str, channels: int, kernel: int, *, bias: bool) -> tuple[Weight, ...]:
    """Return a causal depthwise convolution: one filter of ``kernel`` taps per channel."""
    taps = vector(name, STATE_SPACE, channels, 1, kernel, shard=COLUMN)
    if not bias:
        return (taps,)
    return taps, vector(name + ".bias", STATE_SPACE, channels, shard=COLUMN)


# Mamba 1 ------------------------------------------------------------------------------------------


class Mamba1Shape(Record):
    """D = hidden, I = inner, S = state, R = rank of the time step, K = kernel."""

    hidden: int
    inner: int
    state: int
    rank: int
    kernel: int


def time_step_rank(keys: Keys, name: str, hidden: int) -> int:
    """R: a number, or ``auto`` (also when unstated) for ``ceil(D / 16)``."""
    value = keys.value(name)
    if value is None or value == "auto":
        return ceil_div(hidden, 16)
    return keys.checked(name, value)


def mamba1_weights(
    shape: Mamba1Shape, path: str, *, bias: bool, conv_bias: bool, inner_norms: bool = False
) -> tuple[Weight, ...]:
    """Return one Mamba mixer; ``inner_norms`` adds the gains of Jamba's norms of time step, B and C."""
    inner, state, rank = shape.inner, shape.state, shape.rank
    norms = {"dt_layernorm": rank, "b_layernorm": state, "c_layernorm": state} if inner_norms else {}
    return (
        *matrix(path + "in_proj", STATE_SPACE, (2 * inner, shape.hidden), COLUMN, bias=bias),
        *conv(path + "conv1d", inner, shape.kernel, bias=conv_bias),
        *matrix(path + "x_proj", STATE_SPACE, (rank + 2 * state, inner), ROW),
        *matrix(path + "dt_proj", STATE_SPACE, (inner, rank), COLUMN, bias=True),
        vector(path + "A_log", STATE_SPACE, inner, state, shard=COLUMN),
        vector(path + "D", STATE_SPACE, inner, shard=COLUMN),
        *matrix(path + "out_proj", STATE_SPACE, (shape.hidden, inner), ROW, bias=bias),
        *(vector(path + name, STATE_SPACE, width) for name, width in norms.items()),
    )


def mamba1_state(shape: Mamba1Shape, dtype_bytes: int | None) -> StateSpace:
    """Return ``I (K-1)`` inputs of the convolution and an ``I x S`` state."""
    return StateSpace(
        family="mamba1",
        conv_elements=shape.inner * (shape.kernel - 1),
        conv_columns=shape.kernel - 1,
        recurrent_elements=shape.inner * shape.state,
        recurrent_dtype_bytes=dtype_bytes,
    )


# Mamba 2 ------------------------------------------------------------------------------------------


class Mamba2Shape(Record):
    """D = hidden, I = inner = N P, N = heads, G = groups, S = state, K = kernel."""

    hidden: int
    inner: int
    heads: int
    groups: int
    state: int
    kernel: int

    @property
    def conv_width(self) -> int:
        """Channels of the convolution, ``I + 2 G S``: the input and, per group, B and C."""
        return self.inner + 2 * self.groups * self.state


def whole_heads(keys: Keys, name: str, shape: Mamba2Shape) -> Mamba2Shape:
    """Return ``shape`` when its heads of the stated width (``auto``: I / N) fill I, else ModelFileError."""
    value = keys.value(name)
    stated = None if value is None or value == "auto" else keys.checked(name, value)
    if shape.inner % shape.heads or (stated is not None and stated * shape.heads != shape.inner):
        width = "" if stated is None else f" of width {stated}"
        raise ModelFileError(
            f"config: {shape.heads} Mamba heads{width} do not fill the inner width {shape.inner}"
        )
    return shape


def mamba2_weights(
    shape: Mamba2Shape,
    path: str,
    *,
    bias: bool,
    conv_bias: bool,
    out_bias: bool | None = None,
    gated_norm: bool = True,
) -> tuple[Weight, ...]:
    """Return one Mamba-2 mixer; ``in_proj`` makes gate, input, B, C and the time step of every head."""
    rows = shape.inner + shape.conv_width + shape.heads
    per_head = ("dt_bias", "A_log", "D")
    return (
        *matrix(path + "in_proj", STATE_SPACE, (rows, shape.hidden), COLUMN, bias=bias),
        *conv(path + "conv1d", shape.conv_width, shape.kernel, bias=conv_bias),
        *(vector(path + name, STATE_SPACE, shape.heads, shard=COLUMN) for name in per_head),
        *((vector(path + "norm", STATE_SPACE, shape.inner, shard=COLUMN),) if gated_norm else ()),
        *matrix(
            path + "out_proj",
            STATE_SPACE,
            (shape.hidden, shape.inner),
            ROW,
            bias=bias if out_bias is None else out_bias,
        ),
    )


def mamba2_state(shape: Mamba2Shape, dtype_bytes: int | None) -> StateSpace:
    """Return ``(I + 2 G S)(K-1)`` inputs of the convolution and a ``P x S`` state for each of N heads."""
    return StateSpace(
        family="mamba2",
        conv_elements=shape.conv_width * (shape.kernel - 1),
        conv_columns=shape.kernel - 1,
        recurrent_elements=shape.inner * shape.state,
        recurrent_dtype_bytes=dtype_bytes,
    )


# Gated delta net ----------------------------------------------------------------------------------


class DeltaShape(Record):
    """D = hidden; A key heads of width a, B value heads of width b; K = kernel."""

    hidden: int
    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    kernel: int

    @property
    def keys_width(self) -> int:
        """``A a``."""
        return self.key_heads * self.key_dim

    @property
    def values_width(self) -> int:
        """``B b``."""
        return self.value_heads * self.value_dim


def delta_weights(
    shape: DeltaShape,
    path: str,
    *,
    rows: dict[str, int],
    convs: dict[str, int],
    ends: tuple[str, str],
) -> tuple[Weight, ...]:
    """Return a gated delta net: projections and convolutions by width; ``ends`` names norm and output."""
    taps = [conv(path + name, width, shape.kernel, bias=False) for name, width in convs.items()]
    inputs = [matrix(path + name, STATE_SPACE, (width, shape.hidden), COLUMN) for name, width in rows.items()]
    return (
        *(weight for group in (*inputs, *taps) for weight in group),
        vector(path + "dt_bias", STATE_SPACE, shape.value_heads, shard=COLUMN),
        vector(path + "A_log", STATE_SPACE, shape.value_heads, shard=COLUMN),
        vector(path + ends[0], STATE_SPACE, shape.value_dim),
        *matrix(path + ends[1], STATE_SPACE, (shape.hidden, shape.values_width), ROW),
    )


def delta_state(shape: DeltaShape, dtype_bytes: int | None) -> StateSpace:
    """Return ``(2 A a + B b)(K-1)`` inputs of the convolution and an ``a x b`` state for each value head."""
    return StateSpace(
        family="gated_delta_net",
        passes=3,
        conv_elements=(2 * shape.keys_width + shape.values_width) * (shape.kernel - 1),
        conv_columns=shape.kernel - 1,
        recurrent_elements=shape.value_heads * shape.key_dim * shape.value_dim,
        recurrent_dtype_bytes=dtype_bytes,
    )


# Kimi delta attention, lightning attention, short convolution, RG-LRU -----------------------------


def kimi_delta_weights(hidden: int, heads: int, head_dim: int, kernel: int, path: str) -> tuple[Weight, ...]:
    """Return one Kimi delta attention: q, k, v with a convolution each, low-rank decay (f) and gate (g)."""
    width = heads * head_dim
    low_rank = [
        weight
        for letter in ("f", "g")
        for weight in (
            *matrix(f"{path}{letter}_a_proj", STATE_SPACE, (head_dim, hidden), REPLICATED),
            *matrix(f"{path}{letter}_b_proj", STATE_SPACE, (width, head_dim), COLUMN),
        )
    ]
    return (
        *(
            weight
            for letter in ("q", "k", "v")
            for weight in (
                *matrix(f"{path}{letter}_proj", STATE_SPACE, (width, hidden), COLUMN),
                *conv(f"{path}{letter}_conv1d", width, kernel, bias=False),
            )
        ),
        *low_rank,
        *matrix(path + "b_proj", STATE_SPACE, (heads, hidden), COLUMN),
        vector(path + "A_log", STATE_SPACE, heads, shard=COLUMN),
        vector(path + "dt_bias", STATE_SPACE, width, shard=COLUMN),
        vector(path + "o_norm", STATE_SPACE, head_dim),
        *matrix(path + "o_proj", STATE_SPACE, (hidden, width), ROW),
    )


def kimi_delta_state(heads: int, head_dim: int, kernel: int) -> StateSpace:
    """Return ``3 N P (K-1)`` inputs of the convolutions and a ``P x P`` float32 state per head."""
    return StateSpace(
        family="kimi_delta",
        passes=3,
        conv_elements=3 * heads * head_dim * (kernel - 1),
        conv_columns=kernel - 1,
        recurrent_elements=heads * head_dim * head_dim,
        recurrent_dtype_bytes=4,
    )


def lightning_weights(hidden: int, heads: int, head_dim: int, path: str) -> tuple[Weight, ...]:
    """Return one lightning attention: fused q, k, v, an output gate and a norm over all heads."""
    width = heads * head_dim
    return (
        *matrix(path + "qkv_proj", STATE_SPACE, (3 * width, hidden), COLUMN),
        *matrix(path + "output_gate", STATE_SPACE, (width, hidden), COLUMN),
        vector(path + "norm", STATE_SPACE, width, shard=COLUMN),
        *matrix(path + "out_proj", STATE_SPACE, (hidden, width), ROW),
    )


def lightning_state(heads: int, head_dim: int) -> StateSpace:
    """Return a ``P x P`` float32 state per head; there is no convolution."""
    return StateSpace(
        family="lightning",
        conv_elements=0,
        recurrent_elements=heads * head_dim * head_dim,
        recurrent_dtype_bytes=4,
    )


def short_conv_weights(hidden: int, kernel: int, path: str, *, bias: bool) -> tuple[Weight, ...]:
    """Return one gated short convolution: ``in_proj`` makes the input and two gates, each D wide."""
    return (
        *matrix(path + "in_proj", STATE_SPACE, (3 * hidden, hidden), COLUMN, bias=bias),
        *conv(path + "conv", hidden, kernel, bias=bias),
        *matrix(path + "out_proj", STATE_SPACE, (hidden, hidden), ROW, bias=bias),
    )


def short_conv_state(hidden: int, kernel: int) -> StateSpace:
    """Return ``D (K-1)`` inputs of the convolution; nothing recurrent."""
    return StateSpace(
        family="short_conv",
        conv_elements=hidden * (kernel - 1),
        conv_columns=kernel - 1,
        recurrent_elements=0,
    )


def rg_lru_weights(hidden: int, width: int, heads: int, kernel: int, path: str) -> tuple[Weight, ...]:
    """Return one recurrent block: two input branches, a convolution, two gates of N blocks, an output."""
    block = width // heads
    gates = [
        weight
        for gate in ("input_gate", "recurrent_gate")
        for weight in (
            # One small matrix per head: it costs FLOPs like a matrix, but nothing packs it.
            Weight(
                name=f"{path}rg_lru.{gate}_weight",
                part=STATE_SPACE,
                shape=(heads, block, block),
                shard=COLUMN,
                linear=True,
            ),
            vector(f"{path}rg_lru.{gate}_bias", STATE_SPACE, heads, block, shard=COLUMN),
        )
    ]
    return (
        *matrix(path + "linear_y", STATE_SPACE, (width, hidden), COLUMN, bias=True),
        *matrix(path + "linear_x", STATE_SPACE, (width, hidden), COLUMN, bias=True),
        *conv(path + "conv_1d", width, kernel, bias=True),
        vector(path + "rg_lru.recurrent_param", STATE_SPACE, width, shard=COLUMN),
        *gates,
        *matrix(path + "linear_out", STATE_SPACE, (hidden, width), ROW, bias=True),
    )


def rg_lru_state(width: int, kernel: int) -> StateSpace:
    """Return ``R (K-1)`` inputs of the convolution and R float32 numbers (the reference keeps them so)."""
    return StateSpace(
        family="rg_lru",
        passes=1,
        conv_elements=width * (kernel - 1),
        conv_columns=kernel - 1,
        recurrent_elements=width,
        recurrent_dtype_bytes=4,
    )
