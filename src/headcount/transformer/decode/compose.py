"""A decoder's layers as instructions (``instructions.py``): what runs, in which order, from where to where.

    mixer          PREPARE norm(x)  PROJECT -> heads  |  HEADS  |  ATTEND  |  MERGE PREPARE  PROJECT -> mixed  |
    feed-forward   PREPARE norm(x)  PROJECT -> inner  |  PREPARE  PROJECT -> fed  |
    the sum        RESIDUAL x += norm(mixed), in the order of the placement of the norms           (| is a barrier)

A shared vector is written between two barriers and read after the second, so six barriers a layer are enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Identity, Module

from headcount.errors import OperandError, UnsupportedModelError
from headcount.transformer.attention.masks import Causal, Chunked, SlidingWindow
from headcount.transformer.decode import instructions as at
from headcount.transformer.decode.panels import Arena, pack, packed_bytes
from headcount.transformer.decode.tiles import FORMATS, ROWS
from headcount.transformer.families.decoder import Decoder
from headcount.transformer.families.layer import Layer, Scale
from headcount.transformer.families.self_attention import Alibi, SelfAttention
from headcount.transformer.layers import Embedding, FeedForward, GatedFeedForward, LayerNorm, Linear, RMSNorm

ACTIVATIONS = {
    "silu": at.SILU,
    "gelu": at.GELU,
    "gelu_tanh": at.GELU_TANH,
    "relu": at.RELU,
    "sigmoid": at.SIGMOID,
}
# A place's value: a number, a fraction (stored as its bits), or the name of a shared vector, whose address comes later.
Value = int | float | str
PADDED = 64


class Composer:
    """Collects instructions, packs weights, remembers how wide the shared vectors are."""

    def __init__(self, network: Decoder, weights: str) -> None:
        self.form = FORMATS[weights]
        self.network = network
        self.rows: list[dict[int, Value]] = []
        self.vectors: dict[str, int] = {}
        # The largest of all layers: what the buffers are made for.
        self.heads_most = self.group_largest = self.ready_bytes = self.sum_bytes = 0
        self.inputs_widest = network.shape.width
        self.keep: list[Any] = []
        matrices = [p for p in network.parameters() if p.dim() == 2]
        room = sum(packed_bytes(self.form, p.shape[0] + 2 * ROWS, p.shape[1]) + 4096 for p in matrices)
        self.arena = Arena(room)

    def emit(self, operation: int, fields: Mapping[int, Value] | None = None) -> None:
        """Append one instruction."""
        self.rows.append({at.OPERATION: operation, **(fields or {})})

    def barrier(self) -> None:
        """All threads have written what the next instructions read."""
        self.emit(at.BARRIER)

    def numbers(self, *tensors: Tensor, woven: bool = False) -> int:
        """Address of float32 copies, one behind the other (or gate and up woven, 16 each), zeros up to 64 more."""
        parts = [tensor.detach().float().flatten() for tensor in tensors]
        if woven:
            count = -(-len(parts[0]) // 16) * 16
            parts = [torch.nn.functional.pad(part, (0, count - len(part))).view(-1, 1, 16) for part in parts]
            flat = torch.cat(parts, 1).flatten()
        else:
            flat = torch.cat(parts)
        held: NDArray[np.float32] = np.zeros(len(flat) + PADDED, np.float32)
        held[: len(flat)] = flat.numpy()
        self.keep.append(held)
        return int(held.ctypes.data)

    def norm(self, norm: Module | None) -> dict[int, Value]:
        """The places of a norm."""
        if norm is None:
            return {at.NORM_KIND: at.NO_NORM}
        kind, weight, bias, epsilon = self.norm_parts(norm)
        return {at.NORM_KIND: kind, at.NORM_WEIGHT: weight, at.NORM_BIAS: bias, at.NORM_EPSILON: epsilon}

    def norm_parts(self, norm: Module) -> tuple[int, int, int, float]:
        """Kind, address of the weight, of the bias (0: none), epsilon."""
        if type(norm) is RMSNorm:
            gain = norm.weight.detach().float() + (1.0 if norm.add_one else 0.0)
            return at.RMS_NORM, self.numbers(gain), 0, norm.eps
        if type(norm) is LayerNorm:
            weight, bias = (0 if part is None else self.numbers(part) for part in (norm.weight, norm.bias))
            return at.LAYER_NORM, weight, bias, norm.eps
        raise refused(norm)

    def project(self, *given: Module | None, target: str, gated: bool = False) -> dict[int, Value]:
        """PROJECT the packed vector through linear layers of equal inputs, one output behind the other."""
        layers = [layer for layer in given if type(layer) is Linear]
        if len(layers) < len(given):
            raise refused(next(layer for layer in given if type(layer) is not Linear))
        tensors = [layer.weight.detach() for layer in layers]
        biases = [layer.bias for layer in layers]
        bias = 0
        if any(b is not None for b in biases):
            whole = [torch.zeros(len(w)) if b is None else b for w, b in zip(tensors, biases, strict=True)]
            bias = self.numbers(*whole, woven=gated)
        return self.project_packed(pack(self.form, tensors, self.arena, gated=gated), bias, target, gated)

    def project_packed(
        self, packed: tuple[int, int, int], bias: int, target: str, gated: bool = False
    ) -> dict[int, Value]:
        """The instruction's places, appended; more may be set in what is returned."""
        address, groups, blocks = packed
        self.vectors[target] = max(self.vectors.get(target, 0), groups * (16 if gated else ROWS))
        self.inputs_widest = max(self.inputs_widest, blocks * 32)
        self.emit(
            at.PROJECT,
            {
                at.WEIGHT: address,
                at.GROUPS: groups,
                at.BLOCKS: blocks,
                at.BIAS: bias,
                at.GATED: int(gated),
                at.TARGET: target,
                at.FACTOR_OUT: 1.0,
                at.ACTIVATION_BOUND: 0.0,
            },
        )
        return self.rows[-1]

    def prepare(self, width: int, source: int | str, norm: Module | None = None) -> None:
        """PREPARE a vector of ``width``: the stream, the plain one, or a shared one by name."""
        places: dict[int, Value] = {at.WIDTH: width, **self.norm(norm)}
        if isinstance(source, str):
            places |= {at.SOURCE_KIND: at.SHARED, at.SOURCE: source}
        else:
            places[at.SOURCE_KIND] = source
        self.inputs_widest = max(self.inputs_widest, width)
        self.emit(at.PREPARE, places)

    def residual(self, name: str, factor: float, norm: Module | None = None) -> None:
        """x += factor norm(vector)."""
        width = self.network.shape.width
        self.emit(
            at.RESIDUAL,
            {
                at.SOURCE_KIND: at.SHARED,
                at.SOURCE: name,
                at.FACTOR: factor,
                at.WIDTH: width,
                **self.norm(norm),
            },
        )


def compose(network: Decoder, weights: str) -> Composer:
    """All instructions of a step.

    Raises UnsupportedModelError, naming the part, for a network with an operation the program lacks.
    """
    if type(network) is not Decoder:
        raise refused(network)
    composer = Composer(network, weights)
    tied = _enter(composer)
    names = [name for name, _ in network.shape.rotaries]
    for number, layer in enumerate(network.layers):
        _layer(composer, layer, number, names)
    _leave(composer, tied)
    return composer


def _enter(c: Composer) -> tuple[int, int, int] | None:
    """Ids to the stream; returns the packed table where the output projection shares it."""
    network, shape = c.network, c.network.shape
    if type(network.embedding) is not Embedding:
        raise refused(network.embedding)
    table = network.embedding.weight.detach()
    places: dict[int, Value] = {at.TABLE_WIDTH: table.shape[1], at.FACTOR: shape.embedding_factor}
    tied = None
    if network.head is None:
        tied = pack(c.form, [table], c.arena)
        places |= {at.TABLE: tied[0], at.TABLE_KIND: at.PACKED}
    else:
        kind = at.ROWS_BF16 if table.dtype == torch.bfloat16 else at.ROWS_FP32
        rows = table.contiguous() if kind == at.ROWS_BF16 else table.float().contiguous()
        c.keep.append(rows)
        size = rows.element_size() * rows.shape[1]
        places |= {at.TABLE: rows.data_ptr(), at.TABLE_KIND: kind, at.TABLE_ROW_BYTES: size}
    c.emit(at.EMBED, places)
    if network.project_in is not None:
        c.prepare(table.shape[1], at.STREAM)
        c.project(network.project_in, target="mixed")
        c.barrier()
        c.emit(
            at.COPY, {at.SOURCE_KIND: at.SHARED, at.SOURCE: "mixed", at.WIDTH: shape.width, at.FACTOR: 1.0}
        )
    if network.positions is not None:
        if type(network.positions) is not Embedding:
            raise refused(network.positions)
        told = network.positions.weight.detach().float().contiguous()
        c.keep.append(told)
        c.emit(
            at.POSITIONS,
            {
                at.TABLE: told.data_ptr(),
                at.TABLE_KIND: at.ROWS_FP32,
                at.TABLE_ROW_BYTES: 4 * told.shape[1],
                at.TABLE_WIDTH: told.shape[1],
                at.TABLE_OFFSET: shape.position_offset,
                at.FACTOR: 1.0,
            },
        )
    if network.embedding_norm is not None:
        _norm_stream(c, network.embedding_norm)
    return tied


def _norm_stream(c: Composer, norm: Module) -> None:
    c.emit(
        at.NORM, {at.SOURCE_KIND: at.STREAM, at.WIDTH: c.network.shape.width, at.FACTOR: 1.0, **c.norm(norm)}
    )


def _leave(c: Composer, tied: tuple[int, int, int] | None) -> None:
    """The stream to logits."""
    network, shape = c.network, c.network.shape
    c.prepare(shape.width, at.STREAM, network.norm)
    if network.project_out is not None:
        c.project(network.project_out, target="narrow")
        c.barrier()
        c.prepare(shape.embedding_width or shape.width, "narrow")
    if tied is not None:
        bias = 0 if network.head_bias is None else c.numbers(network.head_bias)
        row = c.project_packed(tied, bias, "logits")
    else:
        row = c.project(network.head, target="logits")
    row[at.FACTOR_OUT] = float(shape.logit_factor)
    if shape.logit_cap is not None:
        row |= {at.ACTIVATION: at.SOFT_CAP, at.ACTIVATION_BOUND: float(shape.logit_cap)}
    c.barrier()


def _layer(c: Composer, layer: Module, number: int, rotaries: list[str]) -> None:
    if type(layer) is not Layer or layer.cross is not None or layer.feed_forward is None:
        raise refused(layer)
    norms, factor = layer.norms, 1.0
    if type(layer.branch) is Scale:
        factor = layer.branch.factor
    elif type(layer.branch) is not Identity:
        raise refused(layer.branch)

    def own(name: str) -> Module | None:
        return norms[name] if name in norms else None  # noqa: SIM401  (ModuleDict has no get)

    place = layer.placement
    before = place in ("pre", "sandwich", "beside")
    if place not in ("pre", "post", "parallel", "beside", "sandwich", "after", "through"):
        raise UnsupportedModelError(f"decode program: placement {place!r} of the norms is not known")
    shared = own("shared") if place == "parallel" else None
    if place == "through":
        _norm_stream(c, norms["mixer"])
    _mixer(c, layer.mixer, number, shared or (own("mixer") if before else None), rotaries)
    if place not in ("parallel", "beside"):
        _sum(c, "mixed", factor, place, own("mixer_out") if place == "sandwich" else own("mixer"))
    if place == "through":
        _norm_stream(c, norms["feed_forward"])
    _feed_forward(c, layer.feed_forward, shared or (own("feed_forward") if before else None))
    if place in ("parallel", "beside"):
        c.residual("mixed", factor)
    behind = own("feed_forward_out") if place == "sandwich" else own("feed_forward")
    _sum(c, "fed", factor, place, behind)


def _sum(c: Composer, name: str, factor: float, place: str, norm: Module | None) -> None:
    """Add a sub-layer's result; ``norm`` stands inside the sum, or behind it in a post-norm layer."""
    if place in ("sandwich", "after"):
        if factor != 1.0:
            raise UnsupportedModelError(
                f"decode program: a multiplier of {factor} on a branch that is normed"
            )
        c.residual(name, 1.0, norm)
        return
    c.residual(name, factor)
    if place == "post" and norm is not None:
        _norm_stream(c, norm)


def _feed_forward(c: Composer, layer: Module, norm: Module | None) -> None:
    c.prepare(c.network.shape.width, at.STREAM, norm)
    if type(layer) is GatedFeedForward:
        row = c.project(layer.gate, layer.up, target="inner", gated=True)
    elif type(layer) is FeedForward:
        row = c.project(layer.up, target="inner")
    else:
        raise refused(layer)
    row[at.ACTIVATION] = ACTIVATIONS[layer.activation]
    c.barrier()
    c.prepare(layer.down.weight.shape[1], "inner")
    c.project(layer.down, target="fed")
    c.barrier()


def _mixer(c: Composer, mixer: Module, number: int, norm: Module | None, rotaries: list[str]) -> None:
    if type(mixer) is not SelfAttention:
        raise refused(mixer)
    shape = mixer.shape
    if shape.clip is not None and (shape.clip <= 0):
        raise UnsupportedModelError(f"decode program: a clip of {shape.clip}")
    c.prepare(c.network.shape.width, at.STREAM, norm)
    row = c.project(mixer.query, mixer.key, mixer.value, target="heads")
    if shape.clip is not None:
        row |= {at.ACTIVATION: at.CLIP, at.ACTIVATION_BOUND: float(shape.clip)}
    c.barrier()
    heads: dict[int, Value] = {
        at.LAYER: number, at.QUERY_HEADS: shape.heads, at.KV_HEADS: shape.K, at.HEAD_WIDTH: shape.H, at.VALUE_WIDTH: shape.W,
        at.SCALE: float(shape.H**-0.5 if shape.scale is None else shape.scale), at.SCORE_CAP: float(shape.soft_cap or 0),
        at.READY_BYTES: 256 * -(-shape.H // 64), at.SUM_BYTES: 256 * -(-shape.W // 64),
        at.HEADS_VECTOR: "heads", at.SINKS: 0 if mixer.sinks is None else c.numbers(mixer.sinks),
        **_mask(mixer), **_told(c, mixer, rotaries), **_heads_norm(c, mixer),
    }  # fmt: skip
    c.emit(at.HEADS, heads)
    c.barrier()
    c.emit(at.ATTEND, heads)
    c.barrier()
    c.emit(at.MERGE, heads)
    c.prepare(shape.heads * shape.W, at.PLAIN)
    c.project(mixer.output, target="mixed")
    c.barrier()
    c.heads_most = max(c.heads_most, shape.heads)
    c.group_largest = max(c.group_largest, shape.heads // shape.K)
    c.ready_bytes = max(c.ready_bytes, 256 * -(-shape.H // 64))
    c.sum_bytes = max(c.sum_bytes, 256 * -(-shape.W // 64))


def _mask(mixer: SelfAttention) -> dict[int, Value]:
    mask = mixer.mask
    if type(mask) is SlidingWindow:
        return {at.WINDOW: mask.window}
    if type(mask) is Chunked:
        return {at.CHUNK: mask.chunk}
    if type(mask) is Causal:
        return {}
    raise UnsupportedModelError(
        f"decode program: attention under a {type(mask).__name__} mask is not compiled"
    )


def _told(c: Composer, mixer: SelfAttention, rotaries: list[str]) -> dict[int, Value]:
    """How positions are told: turned, or as slopes."""
    found: dict[int, Value] = {}
    if mixer.turn is not None:
        which = rotaries.index(mixer.turn)
        layout = at.HALF if mixer.shape.rotary_layout == "half" else at.INTERLEAVED
        width = 2 * (dict(c.network.shape.rotaries)[mixer.turn].width // 2)
        # The kernel writes where it is told: columns past the head's end would be another's memory.
        if not 0 < width <= mixer.shape.H:
            raise OperandError(f"decode program: {width} columns turn, a head has {mixer.shape.H}")
        found |= {at.TURN: which, at.TURN_WIDTH: width, at.TURN_LAYOUT: layout}
    if type(mixer.told) is Alibi:
        found[at.SLOPES] = c.numbers(mixer.told.slopes_N)
    elif mixer.told is not None:
        raise UnsupportedModelError(
            f"decode program: a bias of type {type(mixer.told).__name__} is not compiled"
        )
    return found


def _heads_norm(c: Composer, mixer: SelfAttention) -> dict[int, Value]:
    if mixer.query_norm is None or mixer.key_norm is None:
        return {at.HEADS_NORM_EPSILON: 0.0}
    kind, query, query_bias, epsilon = c.norm_parts(mixer.query_norm)
    _, key, key_bias, key_epsilon = c.norm_parts(mixer.key_norm)
    if epsilon != key_epsilon:
        raise UnsupportedModelError("decode program: norms of queries and keys with different epsilons")
    return {
        at.HEADS_NORM_KIND: kind, at.HEADS_NORM_FULL: int(mixer.shape.qk_norm == "full"), at.HEADS_NORM_EPSILON: epsilon,
        at.QUERY_NORM_WEIGHT: query, at.QUERY_NORM_BIAS: query_bias, at.KEY_NORM_WEIGHT: key, at.KEY_NORM_BIAS: key_bias,
    }  # fmt: skip


def refused(part: Module | None) -> UnsupportedModelError:
    """The error for a part of a network that no instruction computes."""
    return UnsupportedModelError(
        f"decode program: {type(part).__name__} is not compiled; use the network itself"
    )
