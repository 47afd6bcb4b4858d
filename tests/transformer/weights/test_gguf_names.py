"""GGUF files written as llama.cpp's converter writes them: our network gives the reference model's logits.

The writer in these tests is checked too: transformers' own GGUF loader must get the original weights back from its files.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from headcount.errors import UnsupportedModelError
from headcount.transformer.weights.gguf_names import CONVENTIONS, gguf_names

pytestmark = pytest.mark.reference
SIZES = {"vocab_size": 67, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
DENSE = {**SIZES, "intermediate_size": 64, "num_key_value_heads": 2, "max_position_embeddings": 64}
HEADS = {"head_count_kv": 2, "layer_norm_rms_eps": 1e-6, "rope_freq_base": 10000.0}
WIDE = {**HEADS, "key_length": 16, "value_length": 16}
# architecture, config class, its arguments, metadata of the file
CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", "LlamaConfig", DENSE, {**HEADS, "rope_dimension_count": 8}),
    "llama untied": ("llama", "LlamaConfig", {**DENSE, "tie_word_embeddings": False, "attention_bias": True}, HEADS),
    "gemma": ("gemma", "GemmaConfig", {**DENSE, "head_dim": 16}, WIDE),
    "gemma2": ("gemma2", "Gemma2Config",
        # No GGUF key holds the scale of the scores: it is the head width in all sizes but the largest.
        {**DENSE, "head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16}, {**WIDE, "sliding_window": 8}),
    "gemma3": (
        "gemma3", "Gemma3TextConfig",
        {**DENSE, "num_hidden_layers": 6, "query_pre_attn_scalar": 16, "head_dim": 16, "sliding_window": 8},
        {**WIDE, "sliding_window": 8, "rope_freq_base": 1000000.0},
    ),
    "qwen2": ("qwen2", "Qwen2Config", DENSE, HEADS),
    "qwen3": ("qwen3", "Qwen3Config", {**DENSE, "head_dim": 16}, WIDE),
    "phi3": ("phi3", "Phi3Config", {**DENSE, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1},
        {**HEADS, "layer_norm_rms_eps": 1e-5}),
    "starcoder2": (
        "starcoder2", "Starcoder2Config", {**DENSE, "sliding_window": None},
        {"head_count_kv": 2, "layer_norm_eps": 1e-5, "rope_freq_base": 10000.0},
    ),
    "stablelm": (
        "stablelm", "StableLmConfig", {**DENSE, "use_qkv_bias": True},
        {"head_count_kv": 2, "layer_norm_eps": 1e-5, "rope_freq_base": 10000.0, "rope_dimension_count": 2,
         "parallel_residual": False},
    ),
    "gpt2": ("gpt2", "GPT2Config", {**SIZES, "n_positions": 64}, {"layer_norm_eps": 1e-5}),
    "falcon 7b": (
        "falcon", "FalconConfig", {**SIZES, "multi_query": True, "bias": False},
        {"head_count_kv": 1, "layer_norm_eps": 1e-5},
    ),
    "falcon 40b": (
        "falcon", "FalconConfig", {**SIZES, "new_decoder_architecture": True, "num_kv_heads": 2, "bias": False},
        {"head_count_kv": 2, "layer_norm_eps": 1e-5},
    ),
    "bloom": ("bloom", "BloomConfig", {**SIZES, "hidden_size": 32, "n_head": 4, "n_layer": 2}, {"layer_norm_eps": 1e-5}),
}  # fmt: skip
# transformers reads these files otherwise than it should: Falcon's regrouped heads, and norms of Gemma 1 (no processor).
MISREAD = ("falcon 40b", "gemma")


def reference(config_name: str, arguments: dict[str, Any]) -> Any:
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, config_name)(**arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.05)
    return model


@pytest.mark.parametrize("case", [case for case in CASES if case != "stablelm"])
def test_logits_of_a_gguf_file_are_the_reference_models(tmp_path: Path, case: str) -> None:
    from gguf_writer import write_gguf

    from headcount.transformer.weights.model import load_model

    arch, config_name, arguments, metadata = CASES[case]
    model = reference(config_name, arguments)
    path = tmp_path / "model.gguf"
    write_gguf(path, model, arch, **metadata)
    ours = load_model(str(path), dtype=torch.float32)
    ids = torch.randint(0, 67, (2, 20), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        theirs, mine = model(ids, use_cache=False).logits, ours.network(ids)
    assert theirs.std() > 0.01
    torch.testing.assert_close(mine, theirs, rtol=0, atol=2e-5)


@pytest.mark.parametrize("case", [case for case in CASES if case not in MISREAD])
def test_the_writer_of_these_tests_is_read_by_transformers(tmp_path: Path, case: str) -> None:
    from gguf_writer import write_gguf
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    arch, config_name, arguments, metadata = CASES[case]
    model = reference(config_name, arguments)
    path = tmp_path / "model.gguf"
    write_gguf(path, model, arch, **metadata)
    got = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    stored = {name: value for name, value in model.state_dict().items() if name in got}
    assert len(stored) == len(got) >= 6
    for name, value in stored.items():
        torch.testing.assert_close(got[name], value, rtol=0, atol=2e-7, msg=name)


def test_stablelm_weights_land_under_our_names(tmp_path: Path) -> None:
    """No network of ours runs StableLM yet; its tensors are compared one by one."""
    from gguf_writer import write_gguf
    from networks import bare_network, values

    from headcount.transformer.weights.load import load_network
    from headcount.transformer.weights.source import open_weights

    arch, config_name, arguments, metadata = CASES["stablelm"]
    model = reference(config_name, arguments)
    write_gguf(tmp_path / "model.gguf", model, arch, **metadata)
    names = {
        "self_attn.q_proj": "mixer.query", "self_attn.k_proj": "mixer.key", "self_attn.v_proj": "mixer.value",
        "self_attn.o_proj": "mixer.output", "input_layernorm": "norms.mixer", "mlp.gate_proj": "feed_forward.gate",
        "post_attention_layernorm": "norms.feed_forward", "mlp.up_proj": "feed_forward.up",
        "mlp.down_proj": "feed_forward.down", "model.embed_tokens": "embedding", "lm_head": "head",
    }  # fmt: skip
    expected = {}
    for name, value in model.state_dict().items():
        for theirs, ours in names.items():
            name = name.replace(theirs, ours)
        expected[name.removeprefix("model.")] = value
    network = bare_network({name: tuple(value.shape) for name, value in expected.items()})
    got = values(load_network(network, open_weights(str(tmp_path)), gguf_names("stablelm"), {"D": 32}))
    assert got.keys() == expected.keys()
    assert all(torch.equal(got[name], value) for name, value in expected.items())


def test_quantised_matrices_are_what_the_gguf_library_makes_of_them(tmp_path: Path) -> None:
    import gguf
    from gguf_writer import write_gguf

    from headcount.transformer.weights.model import load_model

    arch, config_name, arguments, metadata = CASES["qwen2"]
    model = reference(config_name, arguments)
    write_gguf(tmp_path / "model.gguf", model, arch, kind="Q8_0", **metadata)
    q8 = gguf.GGMLQuantizationType.Q8_0
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.copy_(
                    torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(parameter.numpy(), q8), q8))
                )
        ids = torch.arange(20)[None]
        theirs = model(ids, use_cache=False).logits
        mine = load_model(str(tmp_path / "model.gguf")).network(ids)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=2e-5)


def test_other_architectures_are_refused_by_name() -> None:
    assert {"llama", "gemma3", "qwen3", "falcon"} <= set(CONVENTIONS)
    with pytest.raises(UnsupportedModelError, match=r"'gemma4'.*gemma3"):
        gguf_names("gemma4")
