"""``gguf_config`` against what transformers states of models that llama.cpp's converter wrote as GGUF.

data/gguf_conversions.json holds, per model, the header that the converter wrote and the config and parameter
count of transformers; its ``source`` says how they were made. Neither comes from headcount.
"""

from __future__ import annotations

import json
import math
import os
from typing import Any

import pytest

from headcount.errors import ModelFileError, UnsupportedModelError
from headcount.spec.checkpoint import Checkpoint, TensorInfo
from headcount.spec.gguf_architectures import gguf_config, stored_parameters, supported_architectures

with open(
    os.path.join(os.path.dirname(__file__), "data", "gguf_conversions.json"), encoding="utf-8"
) as _file:
    CASES: dict[str, dict[str, Any]] = json.load(_file)["cases"]

# Where the translation is meant to differ from the config, and why.
DIFFERENCES = {
    "falcon7": {"num_kv_heads": "transformers ignores it when multi_query; the file has the real 1"},
    "gemma3n": {"intermediate_size": "transformers lists the same width once per layer"},
    "mixtral": {"head_dim": "null in transformers: D / N"},
    "mistral": {"model_type": "the file has no window: a Llama"},
    "glm": {"model_type": "files of GLM-4-9B carry the name of its remote code"},
    "qwen2_moe": {"sliding_window": "0 in transformers: none"},
    "starcoder2": {"sliding_window": "the file does not carry it"},
    "granitehybrid": {
        "max_position_embeddings": "the converter writes 2**20",
        "layer_types": "transformers 5.24 says linear_attention for mamba",
    },
    "granitehybrid-dense": {
        "max_position_embeddings": "the converter writes 2**20",
        "layer_types": "transformers 5.24 says linear_attention for mamba",
    },
    "nemotron_h": {
        "max_position_embeddings": "the converter writes 2**20",
        "layers_block_type": "transformers 5.24 says linear_attention for mamba",
    },
    "nemotron_h_moe": {
        "max_position_embeddings": "the converter writes 2**20",
        "layers_block_type": "transformers 5.24 says linear_attention for mamba",
    },
}


def indices(runs: str) -> list[int]:
    """``0-2,4`` -> [0, 1, 2, 4]."""
    out: list[int] = []
    for run in runs.split(","):
        first, _, last = run.partition("-")
        out.extend(range(int(first), int(last or first) + 1))
    return out


def same(value: object, truth: object) -> bool:
    """Equal; a 32-bit number of the header is compared with a decimal of the config."""
    if isinstance(value, float) and isinstance(truth, float | int):
        return math.isclose(value, truth, rel_tol=1e-6)
    return value == truth


def checkpoint_of(case: dict[str, Any]) -> Checkpoint:
    tensors = []
    for name, shapes in case["tensors"].items():
        for text, runs in shapes.items():
            shape = tuple(int(part) for part in text.split("x"))
            names = [name.replace("*", str(i), 1) for i in indices(runs)] if runs else [name]
            for full in names:
                tensors.append(TensorInfo(name=full, dtype="F32", shape=shape, nbytes=4 * math.prod(shape)))
    metadata = {key: tuple(v) if isinstance(v, list) else v for key, v in case["metadata"].items()}
    return Checkpoint(
        path="model.gguf",
        file_format="gguf",
        tensors=tuple(tensors),
        metadata=metadata,
        files=("model.gguf",),
    )


def changed(
    name: str, *, metadata: dict[str, Any] | None = None, drop: str = "", rename: str = ""
) -> Checkpoint:
    """A case with metadata replaced (None removes a key), or tensors dropped or renamed (``old>new``)."""
    checkpoint = checkpoint_of(CASES[name])
    data = {**checkpoint.metadata, **(metadata or {})}
    old, _, new = rename.partition(">")
    tensors = [
        tensor.replace(name=tensor.name.replace(old, new)) if old else tensor
        for tensor in checkpoint.tensors
        if not drop or drop not in tensor.name
    ]
    return checkpoint.replace(
        metadata={key: value for key, value in data.items() if value is not None}, tensors=tuple(tensors)
    )


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_key_says_what_transformers_says(name: str) -> None:
    config, truth = gguf_config(checkpoint_of(CASES[name])), CASES[name]["config"]
    allowed = DIFFERENCES.get(name, {})
    wrong = {
        key: (value, truth[key])
        for key, value in config.items()
        if key in truth and key not in allowed and not same(value, truth[key])
    }
    assert not wrong
    assert {key for key in allowed if config[key] == truth[key]} == set()


@pytest.mark.parametrize("name", sorted(CASES))
def test_parameters_are_those_of_transformers(name: str) -> None:
    from headcount.spec.huggingface.config import spec_from_config

    spec = spec_from_config(gguf_config(checkpoint_of(CASES[name])), name=name, source="test")
    assert spec.parameters == CASES[name]["parameters"]


@pytest.mark.parametrize("name", sorted(CASES))
def test_stored_parameters_are_those_of_transformers(name: str) -> None:
    checkpoint = checkpoint_of(CASES[name])
    assert stored_parameters(checkpoint, gguf_config(checkpoint)) == CASES[name]["parameters"]


def test_stored_parameters_count_a_tied_head_once() -> None:
    # Older converters of Falcon wrote the embedding a second time as output.weight.
    checkpoint = checkpoint_of(CASES["falcon7"])
    head = TensorInfo(name="output.weight", dtype="F32", shape=(256, 64), nbytes=65536)
    checkpoint = checkpoint.replace(tensors=(*checkpoint.tensors, head))
    config = gguf_config(checkpoint)
    assert config["tie_word_embeddings"] is True
    assert stored_parameters(checkpoint, config) == CASES["falcon7"]["parameters"]


def test_stored_parameters_leave_out_projections_of_cache_sharing_layers() -> None:
    # Gemma 3n checkpoints of 2025 hold keys and values for the last layers too, which only reuse earlier ones.
    shapes = {"attn_k.weight": (64, 64), "attn_v.weight": (64, 64), "attn_k_norm.weight": (32,)}
    checkpoint = with_tensors(checkpoint_of(CASES["gemma3n"]), shapes, [6, 7, 8, 9])
    config = gguf_config(checkpoint)
    assert config == gguf_config(checkpoint_of(CASES["gemma3n"]))
    assert stored_parameters(checkpoint, config) == CASES["gemma3n"]["parameters"]


def test_delta_nets_of_the_first_files() -> None:
    # ssm_in holds what attn_qkv (128 rows) and attn_gate (64 rows) hold in later files.
    checkpoint = checkpoint_of(CASES["qwen3_next"])
    split = ("attn_qkv", "attn_gate")
    kept = [tensor for tensor in checkpoint.tensors if not any(part in tensor.name for part in split)]
    old = with_tensors(checkpoint.replace(tensors=tuple(kept)), {"ssm_in.weight": (192, 64)}, [0, 1, 2])
    assert gguf_config(old) == gguf_config(checkpoint)
    assert stored_parameters(old, gguf_config(old)) == CASES["qwen3_next"]["parameters"]


@pytest.mark.parametrize("name", ["llama", "mixtral", "mamba2", "gpt2"])
def test_a_layer_of_another_shape_is_refused(name: str) -> None:
    checkpoint = checkpoint_of(CASES[name])
    tensors = [
        tensor.replace(shape=(2 * tensor.shape[0], *tensor.shape[1:]))
        if tensor.name == "blk.1.attn_norm.weight"
        else tensor
        for tensor in checkpoint.tensors
    ]
    with pytest.raises(UnsupportedModelError, match=r"'attn_norm\.weight' has several shapes"):
        gguf_config(checkpoint.replace(tensors=tuple(tensors)))


def test_sliding_layers_of_gemma3_follow_the_architecture_rule() -> None:
    # The converter writes no pattern for Gemma 3: every sixth layer is full (layer 5 of these seven).
    assert gguf_config(checkpoint_of(CASES["gemma3"]))["layer_types"] == [
        *["sliding_attention"] * 5,
        "full_attention",
        "sliding_attention",
    ]


def test_a_pattern_in_the_file_wins_over_the_rule() -> None:
    array = changed(
        "gemma3", metadata={"gemma3.attention.sliding_window_pattern": (True, False) * 3 + (True,)}
    )
    assert gguf_config(array)["layer_types"].count("full_attention") == 3
    period = changed("gemma3", metadata={"gemma3.attention.sliding_window_pattern": 7})
    assert gguf_config(period)["layer_types"][6] == "full_attention"


def test_without_a_window_every_layer_is_full() -> None:
    config = gguf_config(changed("gemma3", metadata={"gemma3.attention.sliding_window": None}))
    assert config["sliding_window"] is None
    assert set(config["layer_types"]) == {"full_attention"}


def test_llama_with_a_window_is_mistral() -> None:
    config = gguf_config(changed("llama", metadata={"llama.attention.sliding_window": 128}))
    assert (config["model_type"], config["sliding_window"]) == ("mistral", 128)


def test_multi_token_prediction_layers_are_left_out() -> None:
    # GLM-4.5 counts its drafting layer in block_count: 5 stated, 4 in the model.
    case = CASES["glm4_moe"]
    assert case["metadata"]["glm4moe.block_count"] == 5
    assert gguf_config(checkpoint_of(case))["num_hidden_layers"] == 4


def test_experts_stored_one_by_one() -> None:
    # Mixtral files of 2023: blk.0.ffn_down.3.weight instead of one stack of four.
    checkpoint = checkpoint_of(CASES["mixtral"])
    tensors = []
    for tensor in checkpoint.tensors:
        if "_exps." not in tensor.name:
            tensors.append(tensor)
            continue
        for expert in range(4):
            name = tensor.name.replace("_exps.weight", f".{expert}.weight")
            tensors.append(tensor.replace(name=name, shape=tensor.shape[1:]))
    split = gguf_config(checkpoint.replace(tensors=tuple(tensors)))
    assert split == gguf_config(checkpoint)
    assert (split["num_local_experts"], split["intermediate_size"]) == (4, 96)


def test_latent_attention_of_older_files() -> None:
    # Before April 2025: key_length is the head (16 + 8), one up-projection attn_kv_b, no *_mla keys.
    checkpoint = checkpoint_of(CASES["deepseek_v2"])
    metadata = {
        **checkpoint.metadata,
        "deepseek2.attention.key_length": 24,
        "deepseek2.attention.value_length": 24,
        "deepseek2.attention.head_count_kv": 4,
    }
    del metadata["deepseek2.attention.key_length_mla"], metadata["deepseek2.attention.value_length_mla"]
    tensors = [tensor for tensor in checkpoint.tensors if "attn_v_b" not in tensor.name]
    tensors = [
        tensor.replace(name=tensor.name.replace("attn_k_b", "attn_kv_b"), shape=(4 * (16 + 24), 32))
        if "attn_k_b" in tensor.name
        else tensor
        for tensor in tensors
    ]
    old = gguf_config(checkpoint.replace(metadata=metadata, tensors=tuple(tensors)))
    assert old == gguf_config(checkpoint)
    assert (old["kv_lora_rank"], old["qk_nope_head_dim"], old["qk_rope_head_dim"], old["v_head_dim"]) == (
        32,
        16,
        8,
        24,
    )


@pytest.mark.parametrize("shape", [(96,), (96, 64)])
def test_a_tensor_nobody_asked_for_is_refused(shape: tuple[int, ...]) -> None:
    checkpoint = checkpoint_of(CASES["llama"])
    extra = TensorInfo(name="blk.0.attn_new.weight", dtype="F32", shape=shape, nbytes=4 * math.prod(shape))
    with pytest.raises(UnsupportedModelError, match="attn_new"):
        gguf_config(checkpoint.replace(tensors=(*checkpoint.tensors, extra)))


def test_tables_and_scales_are_not_parameters() -> None:
    checkpoint = checkpoint_of(CASES["llama"])
    extra = tuple(
        TensorInfo(name=name, dtype="F32", shape=(8,), nbytes=32)
        for name in ("rope_freqs.weight", "blk.0.attn_q.scale", "blk.1.ffn_up.input_scale")
    )
    assert gguf_config(checkpoint.replace(tensors=(*checkpoint.tensors, *extra))) == gguf_config(checkpoint)


def test_unknown_architecture_names_the_nearest() -> None:
    with pytest.raises(UnsupportedModelError, match=r"'qwen4'.*nearest: .*qwen3"):
        gguf_config(changed("llama", metadata={"general.architecture": "qwen4"}))


def test_adapters_are_not_models() -> None:
    with pytest.raises(UnsupportedModelError, match="adapter"):
        gguf_config(changed("llama", metadata={"general.type": "adapter"}))


@pytest.mark.parametrize(
    ("name", "metadata", "message"),
    [
        ("llama", {"general.architecture": None}, r"general\.architecture is missing"),
        ("llama", {"general.architecture": 3}, r"general\.architecture"),
        ("llama", {"llama.block_count": None}, r"llama\.block_count' is missing"),
        ("llama", {"llama.block_count": 5}, "5 layers announced, tensors for 4; layer 4 has none"),
        ("llama", {"llama.block_count": 2**31}, "2,147,483,648 layers announced, tensors for 4"),
        ("llama", {"llama.block_count": 3}, "beyond the 3 layers"),
        ("llama", {"llama.rope.freq_base": float("nan")}, "must be a number"),
        ("llama", {"llama.block_count": 0}, "whole number from 1"),
        ("llama", {"llama.block_count": -1}, "whole number from 1"),
        ("llama", {"llama.block_count": True}, "whole number from 1"),
        ("llama", {"llama.block_count": "4"}, "whole number from 1"),
        ("llama", {"llama.block_count": 2**40}, "whole number from 1"),
        ("llama", {"llama.attention.head_count": None}, "head_count' is missing"),
        ("llama", {"llama.attention.head_count": 0}, "head_count is 0"),
        ("mistral", {"llama.attention.head_count": 2**31}, "attn_q.weight has 128 rows"),
        ("granite", {"granite.attention.head_count": 2**31}, "heads share a width of 64"),
        ("granitehybrid", {"granitehybrid.attention.head_count": 128}, "128 heads share a width of 64"),
        (
            "llama",
            {"llama.attention.head_count": 8},
            "attn_q.weight has 64 rows, the head counts ask for 128",
        ),
        ("llama", {"llama.attention.head_count_kv": 4}, "attn_k.weight has 32 rows"),
        ("llama", {"llama.attention.head_count_kv": (2, 2)}, "lists 2 layers; the model has 4"),
        ("llama", {"llama.context_length": None}, "context_length' is missing"),
        ("llama", {"llama.embedding_length": 32}, "embedding_length is 32"),
        ("mixtral", {"llama.expert_count": 8}, "8 experts, 2 used, 4 stored"),
        ("mixtral", {"llama.expert_used_count": 5}, "4 experts, 5 used"),
        ("mixtral", {"llama.expert_used_count": None}, "expert_used_count' is missing"),
        ("deepseek_v3", {"deepseek2.attention.kv_lora_rank": None}, "kv_lora_rank' is missing"),
        ("deepseek_v3", {"deepseek2.attention.kv_lora_rank": 24}, "attn_kv_a_mqa"),
        ("deepseek_v3", {"deepseek2.leading_dense_block_count": 2}, "tensors show 1"),
        ("mamba2", {"mamba2.ssm.state_size": 32}, "ssm_conv1d is 192 x 4"),
        ("lfm2", {"lfm2.shortconv.l_cache": 4}, "shortconv.conv is not 4 wide"),
        ("gemma4", {"gemma4.attention.shared_kv_layers": 8}, "8 of 8 layers share"),
        ("gemma3", {"gemma3.attention.sliding_window_pattern": (True,)}, "must hold 7 true/false"),
    ],
)
def test_contradictions_are_named(name: str, metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        gguf_config(changed(name, metadata=metadata))


@pytest.mark.parametrize(
    ("name", "drop", "message"),
    [
        ("llama", "token_embd", "token_embd.weight is missing"),
        ("llama", "blk.3.attn_k.", r"3 of 4 layers hold 'attn_k.weight'"),
        ("llama", "ffn_norm", "ffn_norm.weight is missing"),
        ("qwen2", ".bias", "biases"),
        ("qwen3", "attn_q_norm", "attn_q_norm.weight is missing"),
        ("mixtral", "ffn_down_exps", "ffn_down_exps.weight is missing"),
        ("gpt2", "position_embd", "position_embd.weight is missing"),
        ("gpt_oss", "attn_sinks", "attn_sinks.weight is missing"),
        ("llama-bias", "attn_v.bias", "attn_v.bias"),
        ("llama-bias", "attn_output.bias", "biases on queries only"),
        ("t5", "cross_attn_k", "cross_attn_k.weight is missing"),
        ("jamba", "blk.3.", "layer 3 has none"),
    ],
)
def test_missing_tensors_are_named(name: str, drop: str, message: str) -> None:
    with pytest.raises((ModelFileError, UnsupportedModelError), match=message):
        gguf_config(changed(name, drop=drop))


def renamed(checkpoint: Checkpoint, architecture: str) -> Checkpoint:
    """The same file under another architecture's name."""
    old = checkpoint.metadata["general.architecture"]
    metadata = {
        architecture + key.removeprefix(old) if key.startswith(old + ".") else key: value
        for key, value in checkpoint.metadata.items()
    }
    return checkpoint.replace(metadata={**metadata, "general.architecture": architecture})


def with_tensors(checkpoint: Checkpoint, shapes: dict[str, tuple[int, ...]], layers: list[int]) -> Checkpoint:
    extra = [
        TensorInfo(name=f"blk.{i}.{name}", dtype="F32", shape=shape, nbytes=4 * math.prod(shape))
        for name, shape in shapes.items()
        for i in layers
    ]
    return checkpoint.replace(tensors=(*checkpoint.tensors, *extra))


def parameters(checkpoint: Checkpoint) -> int:
    """Stored numbers without the router's correction bias, which transformers keeps as a buffer."""
    return sum(tensor.elements for tensor in checkpoint.tensors if "exp_probs_b" not in tensor.name)


def built(checkpoint: Checkpoint) -> int:
    from headcount.spec.huggingface.config import spec_from_config

    return spec_from_config(gguf_config(checkpoint), name="hand-made", source="test").parameters


def test_deepseek_moe_of_2024_is_counted_to_the_parameter() -> None:
    # GLM-4.5 without its biases and query/key norms, the second norm under its usual name.
    checkpoint = renamed(changed("glm4_moe", rename="post_attention_norm>ffn_norm"), "deepseek")
    gone = ("attn_q.bias", "attn_k.bias", "attn_v.bias", "attn_q_norm", "attn_k_norm")
    kept = [tensor for tensor in checkpoint.tensors if not any(part in tensor.name for part in gone)]
    checkpoint = checkpoint.replace(tensors=tuple(kept))
    config = gguf_config(checkpoint)
    assert (config["first_k_dense_replace"], config["n_shared_experts"], config["n_routed_experts"]) == (
        1,
        1,
        8,
    )
    assert built(checkpoint) == parameters(checkpoint)


def test_sparse_latent_attention_keeps_its_indexer() -> None:
    # DeepSeek-V3.2 = V3 and, per layer, an indexer of 2 heads of 16: wq_b, wk, k_norm, weights_proj.
    checkpoint = renamed(checkpoint_of(CASES["deepseek_v3"]), "deepseek32")
    shapes = {
        "indexer.attn_q_b.weight": (32, 24),
        "indexer.attn_k.weight": (16, 64),
        "indexer.k_norm.weight": (16,),
        "indexer.k_norm.bias": (16,),
        "indexer.proj.weight": (2, 64),
    }
    numbers = {"head_count": 2, "key_length": 16, "top_k": 64}
    metadata = {f"deepseek32.attention.indexer.{key}": value for key, value in numbers.items()}
    checkpoint = with_tensors(checkpoint, shapes, [0, 1, 2, 3])
    checkpoint = checkpoint.replace(metadata={**checkpoint.metadata, **metadata})
    config = gguf_config(checkpoint)
    assert (config["model_type"], config["index_n_heads"], config["index_head_dim"]) == (
        "deepseek_v32",
        2,
        16,
    )
    assert config["index_topk"] == 64
    assert built(checkpoint) == parameters(checkpoint)


def test_hunyuan_mixture_has_a_shared_expert_in_every_layer() -> None:
    checkpoint = renamed(checkpoint_of(CASES["qwen3_moe"]), "hunyuan-moe")
    shapes = {
        "ffn_gate_shexp.weight": (32, 64),
        "ffn_up_shexp.weight": (32, 64),
        "ffn_down_shexp.weight": (64, 32),
    }
    checkpoint = with_tensors(checkpoint, shapes, [0, 1, 2, 3])
    assert gguf_config(checkpoint)["moe_topk"] == 2
    assert built(checkpoint) == parameters(checkpoint)


def test_heads_that_differ_between_layers_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="differs between layers"):
        gguf_config(changed("llama", metadata={"llama.attention.head_count": (4, 4, 2, 4)}))


def test_per_layer_arrays_of_equal_counts_are_one_count() -> None:
    # Newer converters write arrays even where all layers are alike.
    config = gguf_config(changed("llama", metadata={"llama.attention.head_count_kv": (2, 2, 2, 2)}))
    assert config == gguf_config(checkpoint_of(CASES["llama"]))


def test_the_listed_architectures_are_all_tried() -> None:
    tried = {case["metadata"]["general.architecture"] for case in CASES.values()}
    # Not run through the converter: a neighbour's tensors under another name, or made by hand, in this file.
    assert set(supported_architectures()) - tried == {
        "baichuan",
        "deepseek",
        "deepseek32",
        "exaone",
        "hunyuan-moe",
        "internlm2",
        "minicpm",
        "mistral3",
        "nemotron_h",
        "qwen2vl",
        "qwen3vl",
        "qwen3vlmoe",
    }


@pytest.mark.parametrize(
    ("name", "architecture", "model_type"),
    [
        ("llama", "minicpm", "llama"),
        ("llama", "mistral3", "ministral3"),
        ("llama", "internlm2", "internlm2"),
        ("llama", "baichuan", "baichuan"),
        ("llama", "exaone", "exaone"),
        ("qwen2", "qwen2vl", "qwen2_vl_text"),
        ("qwen3", "qwen3vl", "qwen3_vl_text"),
        ("qwen3_moe", "qwen3vlmoe", "qwen3_vl_moe_text"),
        ("nemotron_h_moe", "nemotron_h", "nemotron_h"),
    ],
)
def test_neighbours_with_the_same_tensors(name: str, architecture: str, model_type: str) -> None:
    checkpoint = checkpoint_of(CASES[name])
    if architecture == "baichuan":  # no grouped heads
        tensors = tuple(
            tensor.replace(shape=(64, 64)) if "attn_k" in tensor.name or "attn_v" in tensor.name else tensor
            for tensor in checkpoint.tensors
        )
        metadata = {**checkpoint.metadata, "llama.attention.head_count_kv": 4}
        checkpoint = checkpoint.replace(tensors=tensors, metadata=metadata)
    checkpoint = renamed(checkpoint, architecture)
    assert gguf_config(checkpoint)["model_type"] == model_type
    assert built(checkpoint) == parameters(checkpoint)


@pytest.mark.reference
@pytest.mark.parametrize("name", sorted(CASES))
def test_transformers_builds_the_same_model_from_the_translated_config(name: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = gguf_config(checkpoint_of(CASES[name]))
    if config["model_type"] == "chatglm":
        pytest.skip("remote code")
    model_type = config.pop("model_type")
    if model_type in ("phi3", "glm4", "smollm3"):
        config["pad_token_id"] = 0  # the class default lies outside a vocabulary of 256
    if model_type == "nemotron_h":
        config.pop("num_hidden_layers")
    auto = transformers.AutoModelForSeq2SeqLM if model_type == "t5" else transformers.AutoModelForCausalLM
    with torch.device("meta"):
        model = auto.from_config(transformers.AutoConfig.for_model(model_type, **config))
    assert sum(parameter.numel() for parameter in model.parameters()) == CASES[name]["parameters"]
