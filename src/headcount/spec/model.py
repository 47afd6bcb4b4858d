"""``ModelSpec``: what a model is. Every reader makes one; every count starts from one.

    ModelSpec
    |-- outside     embeddings, positions, final norm, LM head
    |-- layers      LayerSpec x L: mixers (what is remembered), feed_forward, weights (what is stored)
    |-- encoder     EncoderSpec for encoder-decoder models
    `-- towers      TowerSpec per encoder of images or sound beside the language model

Equal layers are one shared object, so a 126-layer model holds two or three ``LayerSpec``.
"""

from __future__ import annotations

from headcount.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from headcount.spec.attention import Mixer
    from headcount.spec.checkpoint import Checkpoint
    from headcount.spec.quantization import Quantization
    from headcount.spec.weight import Weight

# How the note on multi-token-prediction layers ends; a plan that drafts with them leaves it out.
UNCOUNTED_PREDICTION = "not counted: only speculative decoding loads them"


class FeedForward(Record):
    """The position-wise part of a block.

    width        F, of one expert when it is a mixture
    matrices     3 gated (gate, up, down), 2 plain (up, down)
    experts      E routed experts; 0 for a dense layer
    top_k        experts one token visits
    shared_width width of the experts every token visits (0: none)
    """

    width: int
    matrices: int
    experts: int = 0
    top_k: int = 0
    shared_width: int = 0


class LayerSpec(Record):
    """One block: what it remembers, its feed-forward shape, and every tensor it stores (norms included)."""

    mixers: tuple[Mixer, ...]
    feed_forward: FeedForward | None
    weights: tuple[Weight, ...]


class EncoderSpec(Record):
    """The encoder of an encoder-decoder model; it runs once per request and keeps no cache of its own."""

    layers: tuple[LayerSpec, ...]
    outside: tuple[Weight, ...]
    max_source_positions: int


class TowerSpec(Record):
    """An encoder of images or sound beside the language model; it runs once per item and keeps no cache of its own.

    Its weights carry the parts ``vision``, ``audio`` and ``projector`` (``spec/weight.py``), and the shard that tensor
    parallelism would give them: whether an engine divides a tower is the engine's rule.

    kind         ``vision`` or ``audio``
    family       Hugging Face ``model_type`` of the encoder (``siglip_vision_model``, ``pixtral``, ...)
    layers       blocks; 0 for an encoder that is not made of equal blocks
    hidden_size  width of a block
    heads        attention heads of a block
    weights      every tensor, projector included; the tensors of equal blocks are one ``Weight`` with ``copies``
    """

    kind: str
    family: str
    layers: int
    hidden_size: int
    heads: int
    weights: tuple[Weight, ...]

    @property
    def parameters(self) -> int:
        """Stored numbers: ``sum of copies x prod(shape)``, projector included."""
        return sum(weight.parameters for weight in self.weights)


class ModelSpec(Record):
    """A model as read from a config, a header, the catalogue or an inline description.

    family         Hugging Face ``model_type`` of the language model (``llama``, ``deepseek_v3``, ...)
    dtype          the type its 16- or 32-bit weights are stored in: ``bf16``, ``fp16``, ``fp32``
    max_positions  longest context the config states; 0 when it states none
    quantization   how linear weights are packed; None when they are not
    checkpoint     exact bytes per tensor when a file header was read
    nominal_parameters  set by ``--params``: the advertised count that replaces the exact one
    towers         encoders of images and sound that are known; one that is not known is named in ``notes``
    parameters_known   False for an inline description without ffn and vocab: only its cache can be counted
    notes          what a reader should know (a vision tower left out, a class default used, ...)
    """

    name: str
    family: str
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    outside: tuple[Weight, ...]
    tied_embeddings: bool
    max_positions: int
    dtype: str
    source: str
    encoder: EncoderSpec | None = None
    towers: tuple[TowerSpec, ...] = ()
    quantization: Quantization | None = None
    checkpoint: Checkpoint | None = None
    nominal_parameters: int | None = None
    parameters_known: bool = True
    notes: tuple[str, ...] = ()
    config: dict[str, Any] = {}  # noqa: RUF012 - records are frozen; the raw config is kept for display only

    @property
    def num_hidden_layers(self) -> int:
        """L, decoder blocks."""
        return len(self.layers)

    @property
    def memo(self) -> dict[object, Any]:
        """Values derived from this spec that are asked for again and again; the spec is frozen, so they stay true."""
        memo: dict[object, Any] = self.__dict__.setdefault("_memo", {})
        return memo

    def layer_runs(self) -> tuple[tuple[LayerSpec, int], ...]:
        """Return ``(layer, count)`` over distinct layers, in order of first appearance."""
        if "layer_runs" not in self.memo:
            counts: dict[int, list[Any]] = {}
            for layer in self.layers:
                counts.setdefault(id(layer), [layer, 0])[1] += 1
            self.memo["layer_runs"] = tuple((layer, count) for layer, count in counts.values())
        runs: tuple[tuple[LayerSpec, int], ...] = self.memo["layer_runs"]
        return runs

    def all_weights(self) -> Iterator[tuple[Weight, int]]:
        """Yield ``(weight, times)`` for every tensor of decoder, encoder and outside; the towers are apart."""
        for layer, count in self.layer_runs():
            for weight in layer.weights:
                yield weight, count
        for weight in self.outside:
            yield weight, 1
        if self.encoder is not None:
            for layer in self.encoder.layers:
                for weight in layer.weights:
                    yield weight, 1
            for weight in self.encoder.outside:
                yield weight, 1

    @property
    def parameters(self) -> int:
        """Exact trainable parameters of the language model: tied embeddings once, no buffers, no multi-token prediction.

        The count published for a multimodal checkpoint is this plus ``tower_parameters``.
        """
        return sum(weight.parameters * times for weight, times in self.all_weights())

    @property
    def tower_parameters(self) -> int:
        """Exact parameters of all towers, projectors included; 0 without any."""
        return sum(tower.parameters for tower in self.towers)
