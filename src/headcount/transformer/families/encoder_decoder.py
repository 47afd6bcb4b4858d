"""The network of encoder-decoder families: a source read once with all tokens in view, a target written token by token.

    C = encoder(source)
    logits = m decoder(target, C) W_head^T + b          m: 1 / sqrt(D) where a T5 ties its head

The parameters of the decoder have the names of a decoder-only network; those of the source's side begin with ``encoder``.

Over caches (``kv_cache``) each layer of a conversation keeps two: the target's keys and values, which grow, and the
source's, which ``remember`` writes once; a step projects its new tokens and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import Parameter

from headcount.errors import OperandError, UsageError
from headcount.record import Record
from headcount.transformer.attention.masks import Padding
from headcount.transformer.attention.memory import Seen
from headcount.transformer.attention.multi_head import MultiHeadAttention
from headcount.transformer.families.layer import Layer
from headcount.transformer.families.stack import Stack, StackShape, places
from headcount.transformer.families.step import Step
from headcount.transformer.kv_cache.cache import Cache
from headcount.transformer.kv_cache.call import Call
from headcount.transformer.kv_cache.conversation import Conversation
from headcount.transformer.kv_cache.cross import CrossCache
from headcount.transformer.layers import Embedding, Linear
from headcount.transformer.ops.arithmetic import add, scale

# A decoder layer's mixers are self-attention, then cross-attention.
CROSS = 1


class CrossAttention(MultiHeadAttention):
    """Attention to the source: projected from the encoder's output, or read from the conversations' caches."""

    def forward(self, x_BTD: Tensor, step: Step) -> Tensor:  # type: ignore[override]
        """``(B, T, D) -> (B, T, D)``; over caches B = 1, the conversations of the call one after another."""
        memory = step.memory(CROSS)
        if memory is None:
            return super().forward(x_BTD, step.encoded, mask=step.encoded_padding)
        return self.look_at(x_BTD, [_source(rows, cache) for rows, cache, _ in memory.rows()])


def _source(rows: slice, cache: Cache) -> Seen:
    if not isinstance(cache, CrossCache):
        raise UsageError(f"cross-attention reads a source; the conversation has a {cache.kind} cache there")
    kept = cache.read()
    return Seen(rows, kept.keys[None], kept.values[None], 0, 0)


class EncoderDecoderShape(Record):
    """What an encoder-decoder has besides its two columns.

    source_vocabulary   None: source and target share one table
    tied                the head is the target's table; ``head_factor`` multiplies what enters it
    head_offset         a constant row added to the logits (``final_logits_bias``), not trained
    """

    vocabulary: int
    encoder: StackShape
    decoder: StackShape
    tied: bool
    source_vocabulary: int | None = None
    head_factor: float = 1.0
    head_offset: bool = False


class EncoderDecoder(Stack):
    """Source and target ids to logits of the target."""

    def __init__(
        self, shape: EncoderDecoderShape, encoder_layers: Sequence[Layer], decoder_layers: Sequence[Layer]
    ) -> None:
        super().__init__(shape.decoder, decoder_layers)
        self.shape = shape
        width, source = shape.decoder.width, shape.source_vocabulary
        self.embedding = Embedding(shape.vocabulary, width)
        self.source_embedding = None if source is None else Embedding(source, width)
        self.encoder = Stack(shape.encoder, encoder_layers)
        self.head = None if shape.tied else Linear(width, shape.vocabulary, bias=False)
        self.head_offset = None
        if shape.head_offset:
            self.head_offset = Parameter(torch.zeros(1, shape.vocabulary), requires_grad=False)

    def encode(
        self, source_BS: Int[Tensor, "B S"], keep_BS: Bool[Tensor, "B S"] | None = None
    ) -> Float[Tensor, "B S D"]:
        """The source as the decoder sees it; ``keep_BS`` is False on padding."""
        table = self.embedding if self.source_embedding is None else self.source_embedding
        padding = None if keep_BS is None else Padding(keep_BS=keep_BS)
        x_BSD = self.encoder.enter(table(source_BS), places(source_BS))
        return self.encoder.climb(x_BSD, Step(turns={}, padding=padding))

    def forward(
        self,
        target_BT: Int[Tensor, "B T"],
        encoded_BSD: Float[Tensor, "B S D"] | None = None,
        *,
        keep_BS: Bool[Tensor, "B S"] | None = None,
        keep_BT: Bool[Tensor, "B T"] | None = None,
        call: Call | None = None,
        rows: Int[Tensor, " R"] | None = None,
    ) -> Float[Tensor, "B R V"]:
        """Logits after every position of the target, or only after those in ``rows``.

        Whole: ``encoded_BSD`` is the source, ``keep_BS`` and ``keep_BT`` are False on its and the target's padding. Over
        caches: ``call`` holds conversations whose source was given to ``remember``, and B is 1.
        """
        x_BTD = self._decode(target_BT, encoded_BSD, keep_BS, keep_BT, call)
        return self.logits(x_BTD if rows is None else x_BTD[:, rows])

    def _decode(
        self,
        target_BT: Tensor,
        encoded: Tensor | None,
        keep_BS: Tensor | None,
        keep_BT: Tensor | None,
        call: Call | None,
    ) -> Tensor:
        embedded = self.embedding(target_BT)
        if call is not None:
            positions_T = call.positions(target_BT.device)
            if target_BT.shape != (1, len(positions_T)):
                raise OperandError(
                    f"decoder: a call over caches takes one row of {len(positions_T)} tokens; given {tuple(target_BT.shape)}"
                )
            return self.climb(self.enter(embedded, positions_T), Step(turns={}), call.memories)
        if encoded is None:
            raise UsageError(
                "decoder: give the encoded source, or a call over conversations that remember theirs"
            )
        step = Step(
            turns={},
            padding=None if keep_BT is None else Padding(keep_BS=keep_BT),
            encoded=encoded,
            encoded_padding=None if keep_BS is None else Padding(keep_BS=keep_BS),
        )
        return self.climb(self.enter(embedded, places(target_BT)), step)

    def logits(self, x_BTD: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]:
        """Scores of every token of the target's vocabulary for these vectors."""
        x = x_BTD if self.shape.head_factor == 1.0 else scale(x_BTD, self.shape.head_factor)
        z: Tensor = self.embedding.logits(x) if self.head is None else self.head(x)
        return z if self.head_offset is None else add(z, self.head_offset.expand_as(z))

    @torch.no_grad()
    def remember(self, conversation: Conversation, source_1S: Int[Tensor, "1 S"]) -> None:
        """Read the source of a new conversation: every layer's cross-attention keeps its keys and values.

        Raises
        ------
        UsageError: the conversation has a source, or the source is longer than the model allows; nothing was written.
        """
        caches = _sources(conversation)
        longest = min(cache.source_positions for cache in caches)
        if any(cache.written for cache in caches):
            raise UsageError("the conversation has its source; make a new conversation for another source")
        if not 0 < source_1S.shape[1] <= longest:
            raise UsageError(f"a source of {source_1S.shape[1]:,} tokens; 1 to {longest:,} are allowed")
        encoded_1SD = self.encode(source_1S)
        for layer, cache in zip(self.layers, caches, strict=True):
            cross = layer.cross
            assert isinstance(cross, CrossAttention)
            keys, values = cross.keys_values(encoded_1SD)
            cache.write(keys[0], values[0])


def _sources(conversation: Conversation) -> list[CrossCache]:
    """Every layer's cache of the source."""
    found = [layer[CROSS] for layer in conversation.caches if len(layer) > CROSS]
    sources = [cache for cache in found if isinstance(cache, CrossCache)]
    if not sources or len(sources) != len(conversation.caches):
        raise UsageError("the conversation is not of an encoder-decoder: its layers keep no source")
    return sources
