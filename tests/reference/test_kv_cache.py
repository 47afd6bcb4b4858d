"""Headed attention of every decoder type: heads x widths x tokens equal what transformers' cache really holds.

A tiny random model runs one prefill of ``TOKENS`` tokens. Translation rules, all transformers' own:
full layers keep every token; sliding layers keep ``window - 1`` after an update (they need the window's last token only
with the next query); layers that share a cache hold nothing. Types whose cache is another object (latent attention
stores expanded heads there, recurrent states, encoder-decoders, remote code) are left to tests of their own and named here.
"""

from __future__ import annotations

from typing import Any

import pytest

from headcount.spec.attention import FullAttention, SharedCache, SlidingWindow
from headcount.spec.huggingface.config import spec_from_config
from headcount.spec.huggingface.registry import MODULES

from .configs import random_keys
from .models import HEADLESS, NO_REFERENCE_CLASS, build, quiet, reference_config, spelled_out

pytestmark = pytest.mark.reference
TOKENS = 9
OTHER_CACHE = {
    "dbrx": "the tiny draw has no rotary base in its attn_config",
    "falcon": "the new decoder architecture broadcasts keys to all query heads before caching",
    "gpt_neo": "local layers keep every token in transformers; the window is an attention mask only",
    "helium": "no draw runs: its output projection needs heads that fill the width",
    "llama4_text": "chunked layers are cached as sliding ones",
    "mllama_text_model": "cross-attention layers need an image",
    "mpt": "no cache class of its own",
}
TYPES = [
    model_type
    for module in ("dense", "classic", "mixture", "per_layer")
    for model_type in MODULES[module]
    if model_type not in (*NO_REFERENCE_CLASS, *OTHER_CACHE, *HEADLESS)
]


def cached_shapes(model_type: str, config: Any) -> list[tuple[int, int, int, int] | None]:
    """Per layer ``(heads, tokens, key width, value width)``, None where the cache layer holds nothing."""
    import torch

    with quiet():
        model = build(model_type, config).eval()
        ids = torch.arange(TOKENS).unsqueeze(0) % config.vocab_size
        with torch.no_grad():
            cache = model(input_ids=ids, use_cache=True).past_key_values
    shapes: list[tuple[int, int, int, int] | None] = []
    for layer in cache.layers:
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if keys is None or keys.numel() == 0:
            shapes.append(None)
        else:
            shapes.append((keys.shape[1], keys.shape[2], keys.shape[3], values.shape[3]))
    return shapes


@pytest.mark.parametrize("model_type", TYPES)
def test_cache_holds_what_the_spec_says(model_type: str) -> None:
    compared = 0
    for seed in range(4):
        try:
            config = reference_config(model_type, random_keys(model_type, seed))
            held = cached_shapes(model_type, config)
        except Exception:
            continue  # the class refuses this draw, or cannot run it
        spec = spec_from_config(spelled_out(model_type, config), name=model_type, source="test")
        expected = []
        for layer in spec.layers:
            (mixer,) = layer.mixers
            if isinstance(mixer, SharedCache):
                continue
            assert isinstance(mixer, FullAttention | SlidingWindow)
            kept = min(TOKENS, mixer.window - 1) if isinstance(mixer, SlidingWindow) else TOKENS
            expected.append((mixer.num_key_value_heads, kept, mixer.head_dim, mixer.v_head_dim))
        assert [shape for shape in held if shape is not None] == expected, random_keys(model_type, seed)
        compared += 1
    assert compared, f"no draw of {model_type} could be run"
