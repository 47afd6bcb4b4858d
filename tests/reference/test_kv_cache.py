"""What a conversation holds: every mixer of ``ModelSpec`` against the tensors in transformers' own cache.

A tiny random model of each type reads ``TOKENS`` tokens; heads, widths and tokens of every layer have to agree.
Where transformers 5.24.0 keeps them in another form than ``ModelSpec`` counts them, the translation is:

    sliding and chunked layers   window - 1 tokens once the window is full: the next token fills the place
    latent attention             the latent as "key" and the rotary key as "value", one head
    sparse-attention indexer     one more key of ``index_head_dim`` beside them
    state-space layers           K columns of convolution inputs, although K - 1 are enough
    Falcon's new architecture    keys and values of all N query heads, broadcast from K
    GPT-Neo's local layers       every token; the window is a mask only
    Griffin (RecurrentGemma)     states on the modules, not in the cache
    MiniMax                      states in a list of the cache's own
    LongCat-Flash                two attentions in a layer are two layers of the cache
    DeepSeek-V4                  one tensor is key and value; older tokens in ``compressed_kv``
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from headcount.spec.attention import (
    ChunkedAttention,
    CompressedLatent,
    CrossAttention,
    HeadedAttention,
    LatentAttention,
    Mixer,
    SharedCache,
    SlidingWindow,
    StateSpace,
)
from headcount.spec.huggingface.config import spec_from_config
from headcount.spec.huggingface.registry import supported_types
from headcount.spec.model import ModelSpec

from .configs import random_keys
from .models import ENCODER_DECODERS, NO_REFERENCE_CLASS, build, quiet, reference_config, spelled_out

pytestmark = pytest.mark.reference
# One context longer than any drawn window, one that no window cuts.
LONG, SHORT = 9, 3
SOURCE = 11
SEEDS = range(8)

TYPES = [model_type for model_type in supported_types() if model_type not in NO_REFERENCE_CLASS]


class Held(NamedTuple):
    """Numbers that one layer holds: ``(heads, tokens, key width, value width)`` of attention, and the rest."""

    attention: tuple[tuple[int, int, int, int], ...] = ()
    indexer: int = 0
    compressed: int = 0
    convolution: int = 0
    recurrent: int = 0


# What the spec says, in transformers' terms --------------------------------------------------------


def expected_layers(spec: ModelSpec, config: Any, tokens: int) -> list[Held]:
    if spec.family == "longcat_flash":
        return [
            _expected((mixer,), spec.family, config, tokens)
            for layer in spec.layers
            for mixer in layer.mixers
        ]
    return [_expected(layer.mixers, spec.family, config, tokens) for layer in spec.layers]


def _expected(mixers: tuple[Mixer, ...], family: str, config: Any, tokens: int) -> Held:
    held = Held()
    for mixer in mixers:
        if isinstance(mixer, SharedCache):
            continue
        if isinstance(mixer, StateSpace):
            held = held._replace(
                convolution=held.convolution + mixer.conv_elements,
                recurrent=held.recurrent + mixer.recurrent_elements,
            )
        elif isinstance(mixer, LatentAttention):
            entry = (1, mixer.tokens_kept(tokens), mixer.kv_lora_rank, mixer.qk_rope_head_dim)
            held = held._replace(attention=(entry,), indexer=tokens * mixer.index_head_dim)
        elif isinstance(mixer, CompressedLatent):
            held = _compressed(mixer, tokens)
        else:
            assert isinstance(mixer, HeadedAttention)
            held = held._replace(attention=(*held.attention, _headed(mixer, family, config, tokens)))
    return held


def _headed(mixer: HeadedAttention, family: str, config: Any, tokens: int) -> tuple[int, int, int, int]:
    heads, kept = mixer.num_key_value_heads, mixer.tokens_kept(tokens)
    if isinstance(mixer, CrossAttention):
        # The text models' own source lengths; a shorter source was given here.
        kept = config.max_source_positions if family == "whisper" else SOURCE
    if isinstance(mixer, SlidingWindow | ChunkedAttention):
        kept = tokens if family == "gpt_neo" else _less_one(mixer, tokens)
    if family == "falcon" and config.new_decoder_architecture:
        heads = mixer.num_attention_heads
    return heads, kept, mixer.head_dim, mixer.v_head_dim


def _less_one(mixer: SlidingWindow | ChunkedAttention, tokens: int) -> int:
    """``window - 1`` once the window is full."""
    window = mixer.window if isinstance(mixer, SlidingWindow) else mixer.chunk
    return mixer.tokens_kept(tokens) - (1 if tokens >= window else 0)


def _compressed(mixer: CompressedLatent, tokens: int) -> Held:
    recent = mixer.tokens_kept(tokens) - (tokens // mixer.rate if mixer.rate else 0)
    older = mixer.tokens_kept(tokens) - recent
    kept = recent - (1 if tokens >= mixer.window else 0)
    return Held(
        attention=((1, kept, mixer.head_dim, mixer.head_dim),),
        indexer=older * mixer.index_head_dim,
        compressed=older * mixer.head_dim,
    )


# What transformers holds -----------------------------------------------------------------------------


def held_layers(model_type: str, config: Any, tokens: int) -> list[Held]:
    """Run a forward pass over ``tokens`` tokens and measure the cache, layer by layer."""
    import torch
    from transformers import DynamicCache

    ids = torch.arange(tokens).unsqueeze(0)
    inputs: dict[str, Any] = {"input_ids": ids}
    if model_type in ENCODER_DECODERS:
        inputs = {"decoder_input_ids": ids, "input_ids": torch.arange(SOURCE).unsqueeze(0)}
    if model_type == "whisper":
        # Two mel frames make one source position.
        inputs["input_features"] = torch.zeros(1, config.num_mel_bins, 2 * config.max_source_positions)
        del inputs["input_ids"]
    if model_type == "mllama_text_model":
        inputs["cross_attention_states"] = torch.zeros(1, SOURCE, config.hidden_size)
    if model_type == "recurrent_gemma":
        inputs["cache"] = DynamicCache(config=config)
    with quiet(), torch.no_grad():
        model = build(model_type, config).eval()
        output = model(use_cache=True, **inputs)
    if model_type == "recurrent_gemma":
        return _griffin(model, inputs["cache"])
    if model_type in ENCODER_DECODERS:
        pairs = zip(
            output.cache.self_attention_cache.layers, output.cache.cross_attention_cache.layers, strict=True
        )
        return [Held(attention=(*_attention(own), *_attention(cross))) for own, cross in pairs]
    if model_type == "minimax":
        return _minimax(output.cache)
    return [_held(layer) for layer in output.cache.layers]


def _attention(layer: Any) -> tuple[tuple[int, int, int, int], ...]:
    keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
    if keys is None or keys.numel() == 0:
        return ()
    assert keys.shape[:3] == values.shape[:3]
    return ((keys.shape[1], keys.shape[2], keys.shape[3], values.shape[3]),)


def _held(layer: Any) -> Held:
    convolutions = [state for state in getattr(layer, "conv_states", {}).values() if state is not None]
    states = [state for state in getattr(layer, "recurrent_states", {}).values() if state is not None]
    indexer_keys = getattr(layer, "indexer_keys", None)
    stored = getattr(layer, "compressed_kv", {})
    older = {name: 0 if entries is None else entries.numel() for name, entries in stored.items()}
    return Held(
        attention=_attention(layer),
        indexer=older.get("indexer", 0) + (0 if indexer_keys is None else indexer_keys.numel()),
        compressed=older.get("compressor", 0),
        # K columns are kept where K - 1 are needed.
        convolution=sum(state.numel() // state.shape[-1] * (state.shape[-1] - 1) for state in convolutions),
        recurrent=sum(state.numel() for state in states),
    )


def _minimax(cache: Any) -> list[Held]:
    """Lightning layers lie in a list of the cache's own; an empty list marks an attention layer."""
    held = []
    for i in range(len(cache)):
        state = cache.linear_cache[i] if i < len(cache.linear_cache) else []
        attention = _attention(cache.layers[i]) if i < len(cache.layers) else ()
        held.append(Held(attention=attention, recurrent=0 if isinstance(state, list) else state.numel()))
    return held


def _griffin(model: Any, cache: Any) -> list[Held]:
    """Recurrent blocks keep both states on the module."""
    held = []
    for i, block in enumerate(model.model.layers):
        recurrent = getattr(block.temporal_block, "rg_lru", None)
        if recurrent is None:
            held.append(Held(attention=_attention(cache.layers[i])))
        else:
            convolution = block.temporal_block.conv1d_state.numel()
            held.append(Held(convolution=convolution, recurrent=recurrent.recurrent_states.numel()))
    return held


@pytest.mark.parametrize("model_type", TYPES)
def test_cache_holds_what_the_spec_says(model_type: str) -> None:
    compared: set[int] = set()
    refusals = []
    for seed in SEEDS:
        tokens = SHORT if seed % 3 == 2 else LONG
        if {LONG, SHORT} <= compared or (seed > 5 and compared):
            break
        keys = random_keys(model_type, seed)
        try:
            config = reference_config(model_type, keys)
            held = held_layers(model_type, config, tokens)
        except Exception as refused:
            refusals.append(f"{type(refused).__name__}: {str(refused)[:100]}")
            continue
        spec = spec_from_config(spelled_out(model_type, config), name=model_type, source="test")
        assert held == expected_layers(spec, config, tokens), keys
        compared.add(tokens)
    assert LONG in compared, f"no draw of {model_type} could be run: {refusals}"
