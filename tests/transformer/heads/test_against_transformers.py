"""Attention weights, losses and pooled heads against the reference implementation."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from random_decoders import LLAMA, VOCABULARY, random_ids

from headcount.spec.huggingface.config import spec_from_config
from headcount.transformer.heads.maps import attention_map, watch
from headcount.transformer.heads.pruning import perplexity
from headcount.transformer.heads.regroup import regroup
from headcount.transformer.weights.model import load_model

pytestmark = [pytest.mark.reference]
SMALL = {key: value for key, value in LLAMA.items() if key != "model_type"}


def reference(kind: str, **changes: Any) -> Any:
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, kind + "Config")(**{**SMALL, **changes})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    return model


CASES = {
    "llama": ("Llama", {}),
    "biased": ("Llama", {"attention_bias": True, "num_key_value_heads": 1}),
    "window": ("Mistral", {"sliding_window": 5}),
    "query norm": ("Qwen3", {}),
    "capped": ("Gemma2", {"sliding_window": 6, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 8}),
}


@pytest.mark.parametrize("case", sorted(CASES))
@torch.no_grad()
def test_attention_weights(case: str, tmp_path: Any) -> None:
    kind, changes = CASES[case]
    model = reference(kind, **changes)
    model.save_pretrained(tmp_path)
    ours = load_model(str(tmp_path), dtype=torch.float32)
    ids = random_ids(2, 17)
    theirs = model(ids, output_attentions=True, use_cache=False).attentions
    seen: dict[int, torch.Tensor] = {}
    before = ours.network(ids)
    watch(ours.network, ids, lambda layer, a: seen.update({layer: a.clone()}))
    assert sorted(seen) == [0, 1, 2]
    for layer, a in seen.items():
        assert (a - theirs[layer]).abs().max() < 1e-5
    assert torch.equal(attention_map(ours.network, ids[1], layer=2, head=3), seen[2][1, 3])
    assert torch.equal(ours.network(ids), before)


@torch.no_grad()
def test_perplexity(tmp_path: Any) -> None:
    model = reference("Llama")
    model.save_pretrained(tmp_path)
    ours = load_model(str(tmp_path), dtype=torch.float32)
    ids = random_ids(3, 20)
    assert perplexity(ours.network, ids) == pytest.approx(
        math.exp(float(model(ids, labels=ids).loss)), rel=1e-5
    )


@pytest.mark.parametrize(("kv_heads", "pooled"), [(6, 3), (6, 2), (6, 1), (3, 1)])
@pytest.mark.parametrize("bias", [False, True])
@torch.no_grad()
def test_pooled_heads(kv_heads: int, pooled: int, bias: bool, tmp_path: Any) -> None:
    """The reference's own model with fewer key/value heads, filled with means written out head by head."""
    model = reference("Llama", num_key_value_heads=kv_heads, attention_bias=bias)
    model.save_pretrained(tmp_path)
    ours = load_model(str(tmp_path), dtype=torch.float32)
    fewer = reference("Llama", num_key_value_heads=pooled, attention_bias=bias)
    state = {}
    each = kv_heads // pooled
    for name, value in model.state_dict().items():
        if "k_proj" in name or "v_proj" in name:
            heads = value.split(8)
            groups = [heads[g * each : (g + 1) * each] for g in range(pooled)]
            value = torch.cat([sum(group) / each for group in groups])
        state[name] = value
    fewer.load_state_dict(state)
    smaller = regroup(ours.network, ours.spec, pooled)
    ids = random_ids(2, 13)
    assert (smaller.network(ids) - fewer(ids, use_cache=False).logits).abs().max() < 1e-5
    assert smaller.spec.parameters == sum(parameter.numel() for parameter in fewer.parameters())
    described = spec_from_config(fewer.config.to_dict(), name="fewer", source="test")
    assert smaller.spec.layers == described.layers
    assert smaller.cache_bytes_saved == 3 * (kv_heads - pooled) * 16 * 2


def test_groups_that_do_not_divide() -> None:
    from random_decoders import random_decoder

    from headcount.errors import UsageError

    network, spec = random_decoder(num_key_value_heads=6)
    for wrong in (4, 6, 0):
        with pytest.raises(UsageError, match="1, 2, 3, not"):
            regroup(network, spec, wrong)
    assert spec.vocab_size == VOCABULARY
