"""The transformers engine against the tensors of transformers 5.24.0 itself: random small models, in bf16, on the CPU.

A prompt is read, one more token is decoded, and the bytes of everything in the cache are summed: of the tensors, of the
storage behind them, and of the storage at the end of the prompt, before a window has been cut.
"""

from __future__ import annotations

from typing import Any

import pytest
from reference.configs import random_keys
from reference.models import NO_REFERENCE_CLASS, build, config_class, quiet, reference_config, spelled_out

from headcount.engines import Case, Layout, Settings, engine
from headcount.engines.transformers.cache import cache_layers
from headcount.engines.transformers.paged import paged_cache
from headcount.engines.transformers.plans import DIVIDED
from headcount.errors import UnsupportedModelError
from headcount.hardware import accelerator
from headcount.spec.huggingface.config import spec_from_config
from headcount.spec.huggingface.registry import supported_types
from headcount.spec.model import ModelSpec

pytestmark = pytest.mark.reference
PROMPT = 9
# Free memory that the release's memory handler is told.
AVAILABLE = 2**28
NAMED = (
    *(
        "llama",
        "mistral",
        "gemma2",
        "gemma3_text",
        "gemma3n_text",
        "gpt_oss",
        "llama4_text",
        "gpt_neo",
        "falcon",
    ),
    *(
        "deepseek_v3",
        "deepseek_v32",
        "mimo_v2_flash",
        "qwen3_next",
        "mamba2",
        "jamba",
        "falcon_h1",
        "lfm2_moe",
    ),
    *("kimi_linear", "nemotron_h"),
)
REFUSED = ("deepseek_v4", "minimax", "recurrent_gemma")
ENCODER_DECODERS = ("bart", "marian", "mbart", "mt5", "pegasus", "t5", "umt5", "whisper", "mllama_text_model")
OTHERS = [
    name
    for name in supported_types()
    if name not in (*NAMED, *NO_REFERENCE_CLASS, *ENCODER_DECODERS, *REFUSED)
]


def tensors(cache: Any) -> list[Any]:
    """Every tensor of a cache that grows with its conversation."""
    found = []
    for layer in cache.layers:
        own = [getattr(layer, name, None) for name in ("keys", "values", "indexer_keys")]
        for states in ("conv_states", "recurrent_states"):
            own += list((getattr(layer, states, None) or {}).values())
        found += [tensor for tensor in own if tensor is not None and tensor.numel()]
    return list({(tensor.data_ptr(), tensor.shape): tensor for tensor in found}.values())


def kept_bytes(cache: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors(cache))


def storage_bytes(cache: Any) -> int:
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors(cache)}
    return sum(storage.nbytes() for storage in storages.values())


def runnable(model_type: str, seeds: range) -> list[tuple[ModelSpec, Any, Any]]:
    """``(spec, model, config)`` of the draws that the reference itself can run."""
    import torch

    found = []
    for seed in seeds:
        keys = random_keys(model_type, seed)
        try:
            config = reference_config(model_type, keys)
            with quiet(), torch.no_grad():
                model = build(model_type, config).to(torch.bfloat16).eval()
                model(input_ids=torch.arange(PROMPT).unsqueeze(0), use_cache=True)
        except Exception:
            continue
        spec = spec_from_config(spelled_out(model_type, config), name=model_type, source="test")
        found.append((spec, model, config))
    return found


def step(model: Any, tokens: int, cache: Any) -> Any:
    import torch

    with quiet(), torch.no_grad():
        return model(input_ids=torch.arange(tokens).unsqueeze(0), cache=cache, use_cache=True).cache


def check_dynamic(model_type: str, seeds: range) -> None:
    draws = runnable(model_type, seeds)
    assert draws, f"no draw of {model_type} could be run"
    for spec, model, _ in draws:
        layers = cache_layers(spec, 2)
        cache = step(model, PROMPT, None)
        assert storage_bytes(cache) == sum(
            layer.times * layer.after_prompt(PROMPT, PROMPT) for layer in layers
        )
        assert kept_bytes(cache) == sum(layer.times * layer.kept(PROMPT) for layer in layers)
        cache = step(model, 1, cache)
        assert kept_bytes(cache) == sum(layer.times * layer.kept(PROMPT + 1) for layer in layers)
        assert storage_bytes(cache) == sum(layer.times * layer.held(PROMPT + 1) for layer in layers)


@pytest.mark.parametrize("model_type", NAMED)
def test_cache_bytes(model_type: str) -> None:
    check_dynamic(model_type, range(3))


@pytest.mark.slow
@pytest.mark.parametrize("model_type", OTHERS)
def test_cache_bytes_of_every_type(model_type: str) -> None:
    check_dynamic(model_type, range(6))


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "gpt_oss", "deepseek_v3", "qwen3_next"])
def test_static_cache(model_type: str) -> None:
    from transformers import StaticCache

    draws = runnable(model_type, range(3))
    assert draws
    for spec, model, config in draws:
        cache = step(model, PROMPT, StaticCache(config=config, max_cache_len=2 * PROMPT))
        layers = cache_layers(spec, 2)
        assert kept_bytes(cache) == sum(layer.times * layer.static(2 * PROMPT) for layer in layers)


def case_of(spec: ModelSpec, context: int, *arguments: tuple[str, str]) -> Case:
    return Case(
        model=spec,
        accelerator=accelerator("h100-80gb"),
        layout=Layout(),
        context=context,
        settings=Settings(weights="bf16", arguments=arguments),
    )


def test_fp8_cache() -> None:
    from transformers import QuantizedCache

    draws = runnable("llama", range(4))
    assert draws
    for spec, model, config in draws:
        cache = step(model, PROMPT, QuantizedCache(backend="fp8", config=config))
        cache = step(model, 1, cache)
        held = 0
        for layer in cache.layers:
            for codes, scale in (layer._quantized_keys, layer._quantized_values):
                held += codes.numel() * codes.element_size() + scale.numel() * scale.element_size()
        case = case_of(spec, PROMPT + 1, ("cache", "quantized"), ("backend", "fp8"))
        assert engine("transformers").pool(case, 2**30).needed_bytes == held


def test_types_that_keep_states_elsewhere_are_refused() -> None:
    for model_type in REFUSED:
        config = reference_config(model_type, random_keys(model_type, 1))
        spec = spec_from_config(spelled_out(model_type, config), name=model_type, source="test")
        with pytest.raises(UnsupportedModelError, match=model_type):
            cache_layers(spec, 2)


def test_tensor_parallel_plans() -> None:
    """The list of types is what the release's own plans say: q, k, v, o, gate, up and down, and nothing else."""
    attention = {f"layers.*.self_attn.{part}_proj" for part in "qkvo"}
    parts = attention | {f"layers.*.mlp.{part}_proj" for part in ("gate", "up", "down")}
    for model_type in sorted(DIVIDED):
        plan = config_class(model_type).base_model_tp_plan
        assert {key for key, how in plan.items() if not how.startswith("replicated")} == parts, model_type


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gemma3_text", "gpt_oss", "mistral"])
@pytest.mark.parametrize("attention", ["sdpa", "flash_attention_2"])
def test_continuous_batching_sectors(model_type: str, attention: str) -> None:
    """Sectors, blocks and footprint of the release's own memory handler, for a given amount of free memory."""
    import torch
    from transformers.generation.configuration_utils import ContinuousBatchingConfig
    from transformers.generation.continuous_batching import cache as paged

    compared = 0
    for seed in range(6):
        config = reference_config(model_type, random_keys(model_type, seed))
        spec = spec_from_config(spelled_out(model_type, config), name=model_type, source="test")
        flash = attention == "flash_attention_2"
        try:
            ours = paged_cache(spec, 2, 1, page_tokens=16, flash=flash)
        except UnsupportedModelError:
            continue
        # Past the check that flash attention is installed.
        config._attn_implementation_internal = attention
        settings = ContinuousBatchingConfig(
            page_size=16,
            max_requests_per_batch=8,
            max_blocks_per_request=32 if flash and not any(g.window for g in ours.groups) else 0,
            use_async_batching=flash,
            max_memory_percent=0.9,
        )
        groups = paged.group_layers_by_attn_type(config)
        kinds = [
            paged.ATTN_TYPE_TO_ALLOCATOR[kind](
                index=i,
                layer_indices=indices,
                num_key_value_heads=ours.heads,
                config=config,
                cache_dtype=torch.bfloat16,
                page_size=16,
                allow_block_sharing=True,
            )
            for i, (kind, indices) in enumerate(groups.items())
        ]
        assert ours.sector_bytes == paged.lcm(*(kind.bytes_per_block for kind in kinds), 128)

        class Handler(paged.PagedAttentionMemoryHandler):
            def get_available_memory(self) -> int:
                return AVAILABLE

        handler = Handler(
            config=config,
            cb_config=settings,
            dtype=torch.bfloat16,
            bytes_per_sector=ours.sector_bytes,
            tokens_per_sector=max(ours.sector_bytes // kind.bytes_per_block * 16 for kind in kinds),
            bytes_per_block=ours.block_bytes,
            attn_types=list(groups),
            model_supports_logits_to_keep=True,
        )
        settings.max_batch_tokens = 64
        _, sectors = handler.infer_max_batch_tokens_and_num_sectors()
        assert ours.sectors(AVAILABLE, batch_tokens=64, requests=8) == sectors
        compared += 1
    assert compared
