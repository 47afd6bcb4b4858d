"""What new queries see, against the caches of transformers: the same tensors past the window."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headcount.spec.attention import Mixer
from headcount.transformer.kv_cache.conversation import make_cache

from .histories import CPU, History, chunked, full, sliding

pytestmark = pytest.mark.reference
STEPS = st.lists(st.one_of(st.just(1), st.integers(1, 15)), min_size=1, max_size=10)


@pytest.mark.parametrize(
    "mixer", [full(2, 3, 5), sliding(2, 3, 5, 7), sliding(1, 4, 4, 2), chunked(2, 3, 5, 6)]
)
@given(steps=STEPS, reserved=st.booleans())
def test_visible_entries(mixer: Mixer, steps: list[int], reserved: bool) -> None:
    layers = pytest.importorskip("transformers.cache_utils")
    window = getattr(mixer, "window", None) or getattr(mixer, "chunk", None)
    theirs = layers.DynamicSlidingWindowLayer(sliding_window=window) if window else layers.DynamicLayer()
    ours = make_cache(mixer, format="fp32", dtype=torch.float32, device=CPU)
    if reserved:
        ours.reserve(sum(steps))
    shape = (mixer.num_key_value_heads, mixer.head_dim, mixer.v_head_dim)  # type: ignore[attr-defined]
    history = History(*shape, seed=len(steps), dtype=torch.float32)
    for tokens in steps:
        offset = theirs.get_mask_sizes(tokens)[1]
        keys, values = history.draw(tokens)
        full_keys, full_values = theirs.update(keys[None], values[None])
        kept = ours.extend(keys, values)
        # Theirs keeps a window for chunked layers as well, and masks what lies before the chunk.
        hidden = kept.first - offset
        assert hidden >= 0 and (hidden == 0 or hasattr(mixer, "chunk"))
        assert torch.equal(kept.keys, full_keys[0, :, hidden:])
        assert torch.equal(kept.values, full_values[0, :, hidden:])
        assert ours.length == theirs.get_seq_length()
